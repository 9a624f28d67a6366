"""Ranks that repeat what rank 0 does: everything is as if each had run the program."""

from collections.abc import Callable
from typing import Any

import pytest

import kernbench
from kernbench.errors import UsageError
from kernbench.ranks.spawn_errors import SpawnException

pytestmark = pytest.mark.torch


def _run(worker: Callable[..., Any], ranks: int, *, same: bool, **fields: Any) -> Any:
    pytest.importorskip("torch")
    fields = {"data": False, "record": "full", **fields}
    return kernbench.torchrun_spawn(worker, nprocs=ranks, same_ranks=same, **fields)


def _began(rank: int) -> Any:
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    return dist


def _ddp(rank: int) -> tuple[float, int]:
    import torch

    dist = _began(rank)
    layers = [torch.nn.Linear(64, 64) for _ in range(4)]
    model = torch.nn.Sequential(*layers).cuda()
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.02)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        begin.record()
        ddp(torch.ones(16, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        end.record()
        torch.cuda.synchronize()
    dist.barrier()
    dist.destroy_process_group()
    return begin.elapsed_time(end), torch.cuda.max_memory_allocated()


def _fsdp2(rank: int) -> tuple[float, int]:
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    dist = _began(rank)
    with torch.device("meta"):
        model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(3)])
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    model.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(2):
        begin.record()
        model(torch.ones(64, 256, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        end.record()
        torch.cuda.synchronize()
    dist.destroy_process_group()
    return begin.elapsed_time(end), torch.cuda.max_memory_allocated()


def _sharded_both_ways(rank: int) -> Any:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    dist = _began(rank)
    mesh = init_device_mesh("cuda", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128, bias=False),
        torch.nn.ReLU(),
        torch.nn.Linear(128, 64, bias=False),
    ).cuda()
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in range(2):
        loss = model(torch.ones(8, 64, device="cuda")).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.all_reduce(loss.detach(), group=mesh["tp"].get_group())
    dist.destroy_process_group(mesh["tp"].get_group())
    dist.destroy_process_group()
    return torch.cuda.max_memory_allocated()


def _until_last_block(changes: list[Any], sip: int) -> list[Any]:
    """Returns the changes of a device's memory until the last block is taken.

    What is given back after the program's last line is not repeated.
    """
    own = [change for change in changes if change.sip == sip]
    last = max(number for number, change in enumerate(own) if change.nbytes > 0)
    return own[: last + 1]


def _one_sends_more(rank: int) -> None:
    import torch

    dist = _began(rank)
    dist.all_reduce(torch.ones(4 if rank else 8, device="cuda"))


def test_the_first_difference_is_told_with_both_lines() -> None:
    with pytest.raises(SpawnException) as caught:
        _run(_one_sends_more, 4, same=True)
    report = str(caught.value)
    assert "rank 0 and rank 3 do not do the same" in report
    assert report.count("torch.ones(4 if rank else 8") >= 2
    assert "run without --same-ranks" in report


def _one_between_sends_more(rank: int) -> None:
    import torch

    dist = _began(rank)
    torch.ones(1 << 20 if rank == 2 else 4, device="cuda")
    dist.all_reduce(torch.ones(4, device="cuda"))


def test_a_rank_between_is_compared_if_it_is_named() -> None:
    _run(_one_between_sends_more, 4, same=True)
    with pytest.raises(SpawnException, match="rank 0 and rank 2 do not do the same"):
        _run(_one_between_sends_more, 4, same=True, witnesses=(2,))


def test_witnesses_must_be_there() -> None:
    with pytest.raises(UsageError, match="--witnesses 4: of 4 ranks none is 4"):
        _run(_ddp, 4, same=True, witnesses=[4])
    with pytest.raises(UsageError, match="--witnesses without --same-ranks"):
        _run(_ddp, 4, same=False, witnesses=[3])


def test_ranks_of_several_kinds_of_sips_cannot_be_the_same() -> None:
    """One of a slow SIP would be timed as fast as rank 0."""
    slow = ("system.sips.changed=[{which: [2], sip: {launch: 30 us}}]",)
    with pytest.raises(UsageError, match=r"rank 2 has sip2, .* \(system.sips.changed\)"):
        _run(_ddp, 4, same=True, overrides=slow)


def test_ranks_with_numbers_cannot_be_the_same() -> None:
    with pytest.raises(UsageError, match="each have their own"):
        _run(_ddp, 4, same=True, data=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("worker", "ranks", "witnesses"),
    [
        (_ddp, 4, None),
        (_fsdp2, 4, None),
        (_fsdp2, 4, (2, 1)),
        (_sharded_both_ways, 8, None),
        (_fsdp2, 2, None),
        (_ddp, 1, None),
    ],
)
def test_all_is_as_if_every_rank_had_run_the_program(
    worker: Callable[..., Any], ranks: int, witnesses: tuple[int, ...] | None
) -> None:
    each = _run(worker, ranks, same=False)
    same = _run(worker, ranks, same=True, witnesses=witnesses)

    assert same.document == each.document
    assert same.document["late_events"] == 0
    assert same.returned[0] == each.returned[0]
    logs = [run.context.engine.op_log for run in (each, same)]
    for kind in ("records", "waits"):
        mine, theirs = (sorted(map(repr, getattr(log, kind))) for log in logs)
        assert theirs == mine, kind
    for sip in range(ranks):
        mine, theirs = (_until_last_block(log.memory, sip) for log in logs)
        assert theirs == mine
    assert logs[0].totals == logs[1].totals
    peaks = [
        [run.context.engine.devices[sip].hbm.peak for sip in range(ranks)] for run in (each, same)
    ]
    assert peaks[0] == peaks[1]
