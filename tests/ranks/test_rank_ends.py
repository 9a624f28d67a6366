"""How ranks end (R1 to R10): the full text of the failure of their spawn.

R4 and R6 are errors of kernbench's own, in `test_spawn`; so is R7.
"""

import re
import sys
from typing import Any

import pytest
from report_text import failure, relative

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import tl
from kernbench.cli.failures import Exit, failed
from kernbench.runtime_api.context import RuntimeContext
from kernbench.testing import Kernbench
from kernbench.testing.leaks import leftovers


def _sum(rank: int) -> Any:
    dist.init_process_group("nccl")
    x = torch.full((4,), float(rank), device="cuda")
    dist.all_reduce(x)
    return x


def test_r1_siblings_are_aborted_where_they_wait(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        if rank == 2:
            raise ValueError("boom")
        x = _sum(rank)
        if rank == 3:
            torch.cuda.synchronize()
        x.tolist()

    assert relative(str(failure(kernbench, worker, 4)), worker) == (
        """rank 2 failed
rank 2: ValueError: boom
  at 0 ps, at FILE+2: raise ValueError("boom")
ranks 0-1 aborted at 6 us, at FILE+6: x.tolist()
rank 3 aborted at 4 us, at FILE+5: torch.cuda.synchronize()
replay: seed 0, schedule 0"""
    )


def test_r2_ranks_that_fail_alike_are_told_once(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        if rank < 7:
            raise ValueError("the same")
        raise KeyError(rank)

    assert relative(str(failure(kernbench, worker, 8)), worker) == (
        """ranks 0-7 failed
ranks 0-6: ValueError: the same
  at 0 ps, at FILE+2: raise ValueError("the same")
rank 7: KeyError: 7
  at 0 ps, at FILE+3: raise KeyError(rank)
replay: seed 0, schedule 0"""
    )


def test_r3_an_exit_with_a_number_is_an_error_of_its_rank(
    kernbench: Kernbench, capsys: pytest.CaptureFixture[str]
) -> None:
    def worker(rank: int) -> None:
        if rank == 1:
            sys.exit(3)
        _sum(rank).tolist()

    error = failure(kernbench, worker, 2)
    assert relative(str(error), worker) == (
        """rank 1 failed
rank 1: SystemExit: 3
  at 0 ps, at FILE+2: sys.exit(3)
rank 0 aborted at 6 us, at FILE+3: _sum(rank).tolist()
replay: seed 0, schedule 0"""
    )
    assert failed(error) == Exit.FAILED
    assert "rank 1 failed at 0 ps:" in capsys.readouterr().err


def test_r5_an_interrupt_is_told_with_the_places_of_all_ranks(
    kernbench: Kernbench, capsys: pytest.CaptureFixture[str]
) -> None:
    def worker(rank: int) -> None:
        if rank == 1:
            raise KeyboardInterrupt
        _sum(rank).tolist()

    with pytest.raises(KeyboardInterrupt) as caught:
        kernbench.spawn(worker, nprocs=2)
    assert failed(caught.value) == 130
    out, err = capsys.readouterr()
    assert not out
    call = "all_reduce([4], torch.float32, sum)"
    assert [re.sub(r"at /.*?: ", "at FILE: ", line) for line in err.splitlines()] == [
        "interrupted at 6 us of simulated time",
        f"  rank 0 waits in {call} at 2 us, at FILE: dist.all_reduce(x)",
        "  rank 1 runs at 0 ps, at FILE: raise KeyboardInterrupt",
    ]


@tl.jit
def _one_too_far(x: Any) -> None:
    tl.store(x + tl.arange(0, 8), 1.0)


def test_r8_a_fault_of_a_kernel_is_that_of_the_rank_that_launched_it(kernbench: Kernbench) -> None:
    """Though others are the first to wait for what comes behind it."""

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(4, device="cuda")
        if rank == 1:
            _one_too_far[(1,)](x)
        dist.all_reduce(x)
        if rank == 1:
            for _ in range(100):
                torch.ones(1, device="cuda")
        x.tolist()

    kernel = _one_too_far.function.__code__.co_firstlineno - worker.__code__.co_firstlineno + 2
    assert relative(str(failure(kernbench, worker, 3)), worker) == (
        f"""rank 1 failed
rank 1: OutOfBoundsError: [M2] tl.store out of bounds of tensor [4] torch.float32
  at FILE+{kernel}: tl.store(x + tl.arange(0, 8), 1.0)
  program (0,) of grid (1,)
  shape (4,), strides (1,): valid offsets 0..3
  first bad offset 4 (sip1.hbm+0x10); 4 of 8 lanes
  allocated at FILE+2: x = torch.ones(4, device="cuda")
  _one_too_far was issued at FILE+4: _one_too_far[(1,)](x)
  hint: mask the lanes beyond the end: tl.store(ptr + offs, value, mask=offs < n)
replay: seed 0, schedule 0"""
    )


@pytest.mark.parametrize("how", ["returns", "raises", "exits", "waits", "leaks", "interrupts"])
def test_r9_nothing_is_left_however_ranks_end(kernbench: Kernbench, how: str) -> None:
    def worker(rank: int) -> None:
        x = _sum(rank)
        group = dist.new_group([0, 1])
        if rank == 0:
            if how == "raises":
                raise ValueError
            if how == "exits":
                sys.exit(1)
            if how == "waits":
                dist.recv(x, 1)
            if how == "leaks":
                dist.all_reduce(x, group=group, async_op=True)
            if how == "interrupts":
                raise KeyboardInterrupt
        x.tolist()
        dist.destroy_process_group()

    def usable(ctx: RuntimeContext) -> None:
        assert leftovers(ctx) == []
        assert ctx.world.groups == {}
        assert all(process.task is None and process.frame is None for process in ctx.processes)

    ctx = kernbench.context()
    for _ in range(2):
        if how == "returns":
            ctx.multiprocessing.spawn(worker, nprocs=2)
        else:
            with pytest.raises((Exception, KeyboardInterrupt)):
                ctx.multiprocessing.spawn(worker, nprocs=2)
        usable(ctx)
    sums: list[float] = []
    ctx.multiprocessing.spawn(lambda rank: sums.append(_sum(rank)[0].item()), nprocs=3)
    assert sums == [3.0] * 3
    usable(ctx)


def test_r10_an_error_whose_text_fails_is_not_lost(
    kernbench: Kernbench, capsys: pytest.CaptureFixture[str]
) -> None:
    class UnprintableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def worker(rank: int) -> None:
        if rank == 1:
            raise UnprintableError

    error = failure(kernbench, worker, 2)
    assert relative(str(error), worker) == (
        """rank 1 failed
rank 1: UnprintableError: <its text could not be made>
  at 0 ps, at FILE+2: raise UnprintableError
replay: seed 0, schedule 0"""
    )
    assert error.as_json()["errors"]["1"]["summary"] == "<its text could not be made>"
    assert failed(error) == Exit.FAILED
    assert "UnprintableError" in capsys.readouterr().err


def test_what_an_aborted_rank_still_issues_begins_when_it_is_aborted(kernbench: Kernbench) -> None:
    """Its local time is that of its wait, behind the loop; two streams share its engines."""

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(4, device="cuda")
        side = torch.cuda.Stream()
        if rank == 1:
            for _ in range(50):
                x.add_(1)
            torch.cuda.synchronize()
            raise ValueError("boom")
        try:
            dist.all_reduce(x)
            torch.cuda.synchronize()
        finally:
            with torch.cuda.stream(side):
                y = torch.ones(4, device="cuda")
                dist.all_reduce(y)
                y.add_(1)

    error = failure(kernbench, worker, 3)
    assert list(error.errors) == [1]
    assert sorted(error.aborted) == [0, 2]
