"""`--check-replicas`: replicas of DDP that differ, by the step, the parameter and the lines."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bridge_torchrun import run

import kernbench
from kernbench.errors import UsageError
from kernbench.ranks.spawn_errors import SpawnException

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch")

Mistake = Callable[[Any, Any, Any, int, int], Any]
"""Takes the module inside, DDP's, the optimizer, the rank and the step; returns what to call."""


def trained(mistake: Mistake, *, steps: int = 3, **options: Any) -> Callable[[int], None]:
    """Returns a worker that trains and makes a mistake."""

    def worker(rank: int) -> None:
        dist = torch.distributed
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", rank=rank, world_size=4, init_method="tcp://x:1")
        torch.manual_seed(rank)
        inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)).cuda()
        model = torch.nn.parallel.DistributedDataParallel(inner, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(1, steps + 1):
            x = torch.ones(2, 4, device="cuda") * (rank + 1)
            mistake(inner, model, optimizer, rank, step)(x).sum().backward()
            optimizer.step()  # the step
            optimizer.zero_grad()
        dist.destroy_process_group()

    return worker


def report(worker: Callable[[int], None]) -> str:
    with pytest.raises(SpawnException) as raised:
        kernbench.torchrun_spawn(worker, nprocs=4, check_replicas=True)
    return str(raised.value)


def test_a_model_that_is_called_without_ddp_is_told_at_its_first_step() -> None:
    text = report(trained(lambda inner, *_: inner))

    assert "the replicas of Sequential on ranks 0-3 differ in 0.weight, since SGD.step() #1" in text
    assert "0.weight [4, 4] torch.float32 is one on rank 0, and another on rank 1; rank 2" in text
    assert "all were alike after DistributedDataParallel(), " in text
    assert "model = torch.nn.parallel.DistributedDataParallel(inner, **options)" in text
    assert "ranks 0-3: SGD.step() #1, " in text
    assert "optimizer.step()  # the step" in text
    assert "ranks 0-3 did not call the DistributedDataParallel since the last step" in text


def test_one_rank_that_calls_the_inner_module_is_named() -> None:
    def mistake(inner: Any, model: Any, _: Any, rank: int, step: int) -> Any:
        return inner if rank == 2 and step == 2 else model.module if step == 2 else model

    text = report(trained(mistake))

    assert "since SGD.step() #2" in text
    assert "all were alike after SGD.step() #1, " in text


def test_weights_that_one_rank_changes_are_told_before_the_next_forward() -> None:
    def mistake(inner: Any, model: Any, _: Any, rank: int, step: int) -> Any:
        if rank == 1 and step == 3:
            inner[1].bias.data.add_(1)
        return model

    text = report(trained(mistake))

    assert "on ranks 0-3 differ in 1.bias, before the forward of step 3" in text
    assert "1.bias [2] torch.float32 is one on ranks 0, 2-3, and another on rank 1" in text
    assert "since then rank 1 changed them, and the others did not" in text
    assert "all were alike after SGD.step() #2, " in text
    assert "0.weight" not in text


def test_a_rank_with_another_learning_rate_is_told_with_equal_gradients() -> None:
    def mistake(_: Any, model: Any, optimizer: Any, rank: int, step: int) -> Any:
        optimizer.param_groups[0]["lr"] = 0.2 if rank == 3 and step == 2 else 0.1
        return model

    text = report(trained(mistake))

    assert "since SGD.step() #2" in text
    assert "is one on ranks 0-2, and another on rank 3" in text
    assert "gradients were alike before the step: do ranks have other settings" in text


def test_a_step_without_reduced_gradients_is_told_by_them() -> None:
    def mistake(_: Any, model: Any, optimizer: Any, rank: int, step: int) -> Any:
        def call(x: Any) -> Any:
            out = model(x)
            model.require_backward_grad_sync = True
            return out

        model.require_backward_grad_sync = step != 2  # as `no_sync` sets it
        return call

    assert "gradients differed before the step" in report(trained(mistake))


def test_replicas_that_ddp_did_not_make_alike_are_told_when_they_are_made() -> None:
    text = report(trained(lambda _, model, *__: model, init_sync=False))

    assert "differ in 0.weight, since DistributedDataParallel()" in text
    assert "init_sync=False" in text


def right(_: Any, model: Any, *__: Any) -> Any:
    return model


def test_replicas_that_stay_alike_are_counted_and_take_no_simulated_time() -> None:
    plain = kernbench.torchrun_spawn(trained(right), nprocs=4)

    checked = kernbench.torchrun_spawn(trained(right), nprocs=4, check_replicas=True)

    assert checked.document.pop("replicas_compared") == 1 + 2 * 3
    assert checked.document == plain.document


def test_an_optimizer_that_calls_others_is_looked_at_when_it_has_ended() -> None:
    def worker(rank: int) -> None:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        torch.cuda.set_device(rank)
        torch.distributed.init_process_group(
            "nccl", rank=rank, world_size=4, init_method="tcp://x:1"
        )
        inner = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(4)]).cuda()
        model = torch.nn.parallel.DistributedDataParallel(inner)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
        for _ in range(2):
            model(torch.ones(2, 4, device="cuda") * rank).sum().backward()
            optimizer.step()
        torch.distributed.destroy_process_group()

    outcome = kernbench.torchrun_spawn(worker, nprocs=4, check_replicas=True)

    assert outcome.document["replicas_compared"] == 1 + 2 * 2


def test_a_replica_that_one_rank_tries_with_other_weights_is_no_mistake() -> None:
    def mistake(inner: Any, model: Any, _: Any, rank: int, step: int) -> Any:
        if rank == 0:
            kept = inner[0].bias.detach().clone()
            with torch.no_grad():
                inner[0].bias.zero_()
                model.eval()(torch.ones(2, 4, device="cuda"))
                inner[0].bias.copy_(kept)
            model.train()
        return model

    outcome = kernbench.torchrun_spawn(
        trained(mistake, broadcast_buffers=False), nprocs=4, check_replicas=True
    )

    assert outcome.document["replicas_compared"] == 7


@pytest.mark.parametrize("data", [False, "fake"])
def test_without_numbers_it_is_refused(data: Any) -> None:
    with pytest.raises(UsageError, match="--check-replicas: without numbers there is nothing"):
        kernbench.torchrun_spawn(trained(right), nprocs=4, check_replicas=True, data=data)


PROGRAM = """\
import os, torch, torch.distributed as dist
dist.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
inner = torch.nn.Linear(4, 4).cuda()
model = torch.nn.parallel.DistributedDataParallel(inner) if {ddp} else inner
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(2, 4, device="cuda") * rank).sum().backward()
optimizer.step()
{more}
dist.destroy_process_group()
"""


@pytest.mark.parametrize("ddp", [True, False])
def test_the_command_says_what_it_has_compared(
    ddp: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM.format(ddp=ddp, more=""))

    code = run("--check-replicas", "--nproc-per-node", 2, "--json", tmp_path / "out", program)

    told = capfd.readouterr().out
    assert code == 0
    expected = "compared 3 times, alike" if ddp else "replicas: nothing was compared"
    assert expected in told
    document = json.loads((tmp_path / "out").read_text())
    assert document["results"][0]["pytorch"]["replicas_compared"] == (3 if ddp else 0)


def test_the_command_ends_with_the_difference_and_how_to_see_it_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "train.py"
    more = "inner(torch.ones(2, 4, device='cuda') * rank).sum().backward(); optimizer.step()"
    program.write_text(PROGRAM.format(ddp=True, more=more))

    code = run("--check-replicas", "--nproc-per-node", 2, program)

    told = capfd.readouterr().err
    assert code == 1
    assert "the replicas of Linear on ranks 0-1 differ in weight, since AdamW.step() #2" in told
    assert "replay: kernbench torchrun" in told
    assert "--check-replicas" in told


def test_the_command_refuses_it_without_numbers(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM.format(ddp=True, more=""))

    code = run("--check-replicas", "--data", "off", "--nproc-per-node", 2, program)

    assert code == 2
    assert "--check-replicas: without numbers there is nothing to compare" in capfd.readouterr().err
