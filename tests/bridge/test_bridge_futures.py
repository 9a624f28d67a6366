"""Futures of works, and what DDP waits for out of sight: hazards, and no false alarm."""

from collections.abc import Callable
from typing import Any

import pytest
from bridge_devices import on_ranks

from kernbench.distributed.groups import OutsideGroupWarning
from kernbench.ranks.spawn_errors import SpawnException

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
dist: Any = torch.distributed


def _in_a_group(worker: Callable[[int], Any], backend: str = "nccl") -> Callable[[int], Any]:
    def run(rank: int) -> Any:
        torch.cuda.set_device(rank)
        dist.init_process_group(backend, rank=rank, world_size=2, init_method="tcp://x:1")
        return worker(rank)

    return run


def _untyped(hook: Any) -> Any:
    """Returns a hook without annotations, which DDP would check."""
    return lambda state, bucket: hook(state, bucket)  # noqa: PLW0108


def _train(rank: int, hook: Any = None, device: str = "cuda") -> float:
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).to(device))
    if hook is not None:
        model.register_comm_hook(None, _untyped(hook))
    for _ in range(2):
        model(torch.full((2, 4), rank + 1.0, device=device)).sum().backward()
    return float(model.module.weight.grad.sum().item())


def _future(bucket: Any) -> Any:
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future()


def writes_early(state: Any, bucket: Any) -> Any:
    future = _future(bucket)
    bucket.buffer().div_(2)  # C14
    return future


def reads_early(state: Any, bucket: Any) -> Any:
    _future(bucket)
    found = torch.futures.Future()
    found.set_result(bucket.buffer() / 2)  # C15
    return found


@pytest.mark.parametrize(("hook", "code"), [(writes_early, "C14"), (reads_early, "C15")])
def test_a_hook_that_does_not_wait_for_its_collective_is_refused(hook: Any, code: str) -> None:
    with pytest.raises(SpawnException) as failed:
        on_ranks(_in_a_group(lambda rank: _train(rank, hook)), 2)
    assert f"[{code}]" in str(failed.value)
    assert f"# {code}" in str(failed.value)


def _then(state: Any, bucket: Any) -> Any:
    return _future(bucket).then(lambda done: done.value()[0] / 2)


def _waits(state: Any, bucket: Any) -> Any:
    found = torch.futures.Future()
    found.set_result(_future(bucket).wait()[0] / 2)
    return found


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("hook", [None, _then, _waits])
def test_what_ddp_waits_for_out_of_sight_is_no_mistake(hook: Any, device: str) -> None:
    backend = "gloo" if device == "cpu" else "nccl"
    run = _in_a_group(lambda rank: _train(rank, hook, device), backend)
    assert on_ranks(run, 2) == [2 * 4 * 4 * 2 * 1.5] * 2


def _steps(rank: int, *, inside: bool) -> float:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)).cuda()
    options = {"lr": 0.1}
    if inside:
        from torch.distributed.optim import _apply_optimizer_in_backward

        _apply_optimizer_in_backward(torch.optim.SGD, net.parameters(), options)
    model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), **options)
    for _ in range(3):
        model(torch.full((2, 4), rank + 1.0, device="cuda")).sum().backward()
        if not inside:
            optimizer.step()
            optimizer.zero_grad()
    return float(sum(each.sum() for each in net.parameters()).item())


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_optimizers_in_the_backward_pass_wait_for_their_gradients() -> None:
    found = on_ranks(_in_a_group(lambda rank: [_steps(rank, inside=at) for at in (True, False)]), 2)
    assert found[0] == found[1]
    assert found[0][0] == pytest.approx(found[0][1], rel=1e-6)


def test_joined_ranks_on_the_host_are_no_mistake() -> None:
    def run(rank: int) -> None:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        with model.join():
            for _ in range(2 + rank):
                model(torch.ones(2, 4)).sum().backward()
        dist.destroy_process_group()

    on_ranks(_in_a_group(run, "gloo"), 2)


@pytest.mark.parametrize("wait", ["collect_all", "wait_all"])
def test_who_waits_for_several_futures_has_waited_for_each(wait: str) -> None:
    def run(rank: int) -> float:
        both = torch.ones(2, device="cuda"), torch.ones(2, device="cuda")
        futures = [dist.all_reduce(each, async_op=True).get_future() for each in both]
        found = getattr(torch.futures, wait)(futures)
        if wait == "collect_all":
            found.wait()
        return float((both[0] + both[1]).sum().item())

    assert on_ranks(_in_a_group(run), 2) == [8.0, 8.0]


def _dropped(x: Any) -> None:
    future = dist.all_reduce(x, async_op=True).get_future()
    del future
    x + 1  # C15


def _as_list(x: Any) -> None:
    work = dist.all_reduce(x, async_op=True)
    x.tolist()  # C15
    work.wait()


def _printed(x: Any) -> None:
    work = dist.all_reduce(x, async_op=True)
    print(x)  # C15
    work.wait()


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("worker", [_dropped, _as_list, _printed])
def test_every_way_to_read_early_is_refused(worker: Callable[[Any], None], device: str) -> None:
    backend = "gloo" if device == "cpu" else "nccl"
    with pytest.raises(SpawnException) as failed:
        on_ranks(_in_a_group(lambda rank: worker(torch.ones(4, device=device)), backend), 2)
    assert "[C15]" in str(failed.value)
    assert "# C15" in str(failed.value)


def test_a_communication_outside_a_group_warns_with_the_line_of_the_program() -> None:
    def run(rank: int) -> None:
        dist.all_reduce(torch.ones(4, device="cuda"), group=dist.new_group([0]))  # C8
        dist.destroy_process_group()

    with pytest.warns(
        OutsideGroupWarning, match=r"\[C8\] Running all_reduce on global rank 1"
    ) as w:
        on_ranks(_in_a_group(run), 2)
    assert "# C8" in str(w[0].message)


def test_what_was_never_written_is_refused_before_other_ranks_are_called() -> None:
    def run(rank: int) -> None:
        x = torch.ones(4, device="cuda") if rank else torch.empty(4, device="cuda")
        dist.all_reduce(x)  # M5

    with pytest.raises(SpawnException) as failed:
        on_ranks(_in_a_group(run), 2)
    assert list(failed.value.errors) == [0]
    assert "[M5] 4 of 4 elements" in str(failed.value)
    aborted = str(failed.value).partition("rank 1 aborted")[2]
    assert "# M5" in aborted, "rank 1 waits in the collective, and has got nothing"


def test_counters_on_the_host_are_counted_on_every_rank_without_numbers() -> None:
    def run(rank: int) -> list[float]:
        steps = [torch.zeros(()) for _ in range(2)]
        for _ in range(3):
            torch._foreach_add_(steps, 1.0)
            steps[0] += 1
        return [each.item() for each in steps]

    assert on_ranks(run, 2, data=False) == [[6.0, 3.0]] * 2


def test_the_future_of_several_collectives_lets_the_stream_wait() -> None:
    def coalesced(rank: int) -> list[float]:
        import torch.distributed as dist

        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", rank=rank, world_size=2, init_method="tcp://x:1")
        a, b = torch.ones(4, device="cuda"), torch.ones(4, device="cuda")
        with dist._coalescing_manager(device=torch.device("cuda", rank), async_ops=True) as group:
            dist.all_reduce(a)
            dist.all_reduce(b)
        group.works[0].get_future().wait()
        a.add_(1)
        dist.destroy_process_group()
        return [a[0].item(), b[0].item()]

    assert on_ranks(coalesced, 2) == [[3.0, 2.0], [3.0, 2.0]]
