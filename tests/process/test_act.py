"""The one way to touch memory: what is checked, what is noted, what a refused call leaves."""

from typing import Any

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.process.access import AccessError
from kernbench.ranks.spawn_errors import SpawnException
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.command import Command
from kernbench.testing import Kernbench


def test_a_stream_made_later_cannot_overtake_a_copy_between_devices(ctx: RuntimeContext) -> None:
    a = torch.ones(4, device="cuda:2")
    b = torch.zeros(4, device="cuda:3")
    b.copy_(a)
    with pytest.raises(AccessError, match="M10"), torch.cuda.stream(torch.cuda.Stream(2)):
        a.zero_()
    assert b.tolist() == [1.0] * 4


@pytest.mark.parametrize("eager_limit", [0, 1_000_000])
def test_a_buffered_send_still_reads_its_tensor(kernbench: Kernbench, eager_limit: int) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(4, device="cuda")
        if rank == 0:
            work = dist.isend(x, 1)
            x.zero_()
            assert work is not None
            work.wait()
        else:
            dist.recv(x, 0)

    with pytest.raises(SpawnException) as caught:
        kernbench.spawn(worker, nprocs=2, eager_limit=eager_limit)
    assert isinstance(caught.value.errors[0], AccessError)


def test_a_buffered_send_occupies_its_device_until_it_is_received(kernbench: Kernbench) -> None:
    seen: list[int] = []

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(1 << 10, device="cuda")
        if rank == 0:
            before = torch.cuda.memory_allocated()
            work = dist.isend(x, 1)
            seen.append(torch.cuda.memory_allocated() - before)
            assert work is not None
            work.wait()
        else:
            dist.recv(x, 0)
        torch.cuda.synchronize()

    kernbench.spawn(worker, nprocs=2, eager_limit=1 << 20)
    assert seen == [4096]


@pytest.mark.parametrize("halves", [False, True])
def test_copies_of_one_stream_use_pinned_memory_in_its_order(
    ctx: RuntimeContext, halves: bool
) -> None:
    d, e = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")
    p = torch.zeros(4, device="cpu").pin_memory()

    def copy() -> None:
        if halves:
            p[:2].copy_(d[:2], non_blocking=True)
            p[2:].copy_(d[2:], non_blocking=True)
        else:
            p.copy_(d, non_blocking=True)

    copy()
    d.add_(1)
    copy()
    e.copy_(p, non_blocking=True)
    copy()
    torch.cuda.synchronize()
    assert e.tolist() == p.tolist() == [2.0] * 4


@pytest.mark.parametrize("halves", [False, True])
def test_pinned_memory_waits_for_the_host_and_for_other_streams(
    ctx: RuntimeContext, halves: bool
) -> None:
    d, e = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")
    p = torch.zeros(4, device="cpu").pin_memory()
    torch.cuda.synchronize()
    if halves:
        p[:2].copy_(d[:2], non_blocking=True)
        p[2:].copy_(d[2:], non_blocking=True)
    else:
        p.copy_(d, non_blocking=True)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for target, source in ((e, p), (p, e)):
            with pytest.raises(AccessError) as caught:
                target.copy_(source, non_blocking=True)
            assert caught.value.code == "M10"
    for use, code in ((p.tolist, "C15"), (p.zero_, "C14")):
        with pytest.raises(AccessError) as caught:
            use()
        assert caught.value.code == code
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        e.copy_(p, non_blocking=True)
    side.synchronize()
    assert p.tolist() == e.tolist() == [1.0] * 4


def test_an_operation_in_place_writes(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(1024, device="cuda")
        work = dist.all_reduce(x, async_op=True)
        if rank == 0:
            x[10:20].add_(1)
        assert work is not None
        work.wait()

    with pytest.raises(SpawnException) as caught:
        kernbench.spawn(worker, nprocs=2)
    error = caught.value.errors[0]
    assert isinstance(error, AccessError)
    assert error.code == "C14"
    assert "tensor [10] torch.float32, bytes 40..80 of 4096: write after write" in str(error)


def test_what_is_complete_keeps_no_bytes(ctx: RuntimeContext) -> None:
    hosts = [torch.ones(1 << 16, device="cpu") for _ in range(3)]
    for host in hosts:
        host.cuda()
    results = [x.cuda() + 1 for x in hosts]
    torch.cuda.synchronize()
    kept: set[Any] = set()
    for tensor in (*hosts, *results):
        for *_, command in (*tensor.memory.writes, *tensor.memory.reads):
            assert isinstance(command, Command)
            kept.add(type(command.action).__name__)
    assert kept <= {"_Over"}
    assert ctx.engine.devices[0].hbm.allocated == len(results) * (4 << 16)


def test_a_used_up_budget_calls_no_other_rank(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(4, device="cuda")
        if rank == 0:
            for _ in range(8):
                x += 1
        dist.all_reduce(x)

    with pytest.raises(SpawnException) as caught:
        kernbench.spawn(worker, nprocs=2, step_budget=9)
    assert set(caught.value.errors) == {0}
    assert caught.value.codes == ("K5",)
