"""Ranks of a spawn: bound, aborted, reported, and gone afterwards."""

# ruff: noqa: E501 - texts as users see them

import functools
import gc
import json
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import greenlet
import pytest
from report_text import failure, relative, views

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import tl
from kernbench.des import ThreadPool, current_carrier
from kernbench.errors import KernbenchError, OperandError
from kernbench.ranks.spawn_errors import RankAborted
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.multiprocessing import SpawnException, _drain_pending, spawn_on
from kernbench.testing import Kernbench
from kernbench.tl.launch import jit


def _usable(ctx: RuntimeContext) -> None:
    """A context is as good as new."""
    assert ctx.worker_waits == []
    assert ctx.engine.loop.idle
    sums: list[float] = []

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.full((3,), float(rank), device="cuda")
        dist.all_reduce(x)
        sums.append(x[0].item())

    ctx.multiprocessing.spawn(worker, nprocs=3)
    assert sums == [3.0, 3.0, 3.0]


def test_ranks_are_bound_to_their_carriers_before_init(kernbench: Kernbench) -> None:
    seen = {}

    def worker(rank: int, ctx: RuntimeContext) -> None:
        assert ctx.distributed._rank_by_greenlet[current_carrier()] == rank
        assert dist.get_rank() == rank
        assert torch.cuda.current_device() == rank
        assert dist.get_world_size() == 5
        seen[rank] = current_carrier()

    ctx = kernbench.context()
    ctx.multiprocessing.spawn(worker, args=(ctx,), nprocs=5)
    assert len(set(seen.values())) == 5
    assert ctx.distributed._rank_by_greenlet == {}


def test_all_reduce_sums_over_unequal_ranks(kernbench: Kernbench) -> None:
    """Skewed ranks, and an in-place change right after: nobody sees the later value."""
    got: dict[int, list[float]] = {}

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.full((2,), float(rank + 1), device="cuda")
        for _ in range(3 * rank):
            x = x * 1.0
        dist.all_reduce(x)
        if rank == 0:
            x *= 2
        got[rank] = x.tolist()

    kernbench.spawn(worker, nprocs=3)
    assert got == {0: [12.0, 12.0], 1: [6.0, 6.0], 2: [6.0, 6.0]}


def test_async_all_reduce_overlaps_and_orders_the_stream(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(1 << 16, device="cuda")
        y = torch.ones(1 << 16, device="cuda")
        work = dist.all_reduce(x, async_op=True)
        assert work is not None
        assert not work.is_completed()
        y = y + 1
        work.wait()
        z = x + y
        assert z[0].item() == 8 + 2
        assert work.is_completed()

    kernbench.spawn(worker)


def test_reading_before_wait_is_an_error(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(4, device="cuda")
        work = dist.all_reduce(x, async_op=True)
        if rank == 1:
            x.numpy()
        assert work is not None
        work.wait()

    with pytest.raises(SpawnException) as caught:
        kernbench.spawn(worker, nprocs=2)
    assert list(caught.value.errors) == [1]
    error = caught.value.errors[1]
    assert isinstance(error, KernbenchError)
    assert error.code == "C15"
    assert "all_reduce" in str(error)
    assert "x.numpy()" in str(error)


def test_a_failing_rank_aborts_its_siblings_at_their_wait(kernbench: Kernbench) -> None:
    ended: list[int] = []
    aborted: list[type[BaseException]] = []

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        try:
            if rank == 2:
                raise ValueError("boom")
            x = torch.ones(1, device="cuda")
            dist.all_reduce(x)
            x.item()
        except SystemExit as stop:
            aborted.append(type(stop))
            raise
        finally:
            ended.append(rank)

    ctx = kernbench.context()
    with pytest.raises(SpawnException) as caught:
        ctx.multiprocessing.spawn(worker, nprocs=4)
    assert list(caught.value.errors) == [2]
    assert isinstance(caught.value.errors[2], ValueError)
    assert caught.value.__cause__ is caught.value.errors[2]
    assert sorted(ended) == [0, 1, 2, 3]
    assert aborted == [RankAborted] * 3
    assert "x.item()" in str(caught.value)
    _usable(ctx)


@jit
def _one_too_far(x: Any) -> None:
    tl.store(x + tl.arange(0, 8), 1.0)


def _user_lines(error: BaseException) -> list[str]:
    """Returns the source lines of the frames of a traceback that are in this file."""
    entries = traceback.extract_tb(error.__traceback__)
    return [entry.line or "" for entry in entries if entry.filename == __file__]


def test_a_fault_of_a_kernel_is_raised_at_the_read_that_waits_for_it(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x = torch.ones(4, device="cuda")
        _one_too_far[(1,)](x)
        x.mul_(2)
        x.tolist()
        x.mul_(3)

    ctx = kernbench.context()
    with pytest.raises(SpawnException) as caught:
        ctx.multiprocessing.spawn(worker, nprocs=1)
    assert _user_lines(caught.value.errors[0]) == [
        "x.tolist()",
        "tl.store(x + tl.arange(0, 8), 1.0)",
    ]
    kernel = _one_too_far.function.__code__.co_firstlineno - worker.__code__.co_firstlineno + 2
    expected = f"""\
rank 0 failed
rank 0: OutOfBoundsError: [M2] tl.store out of bounds of tensor [4] torch.float32
  at FILE+{kernel}: tl.store(x + tl.arange(0, 8), 1.0)
  program (0,) of grid (1,)
  shape (4,), strides (1,): valid offsets 0..3
  first bad offset 4 (sip0.hbm+0x10); 4 of 8 lanes
  allocated at FILE+1: x = torch.ones(4, device="cuda")
  _one_too_far was issued at FILE+2: _one_too_far[(1,)](x)
  hint: mask the lanes beyond the end: tl.store(ptr + offs, value, mask=offs < n)
replay: seed 0, schedule 0"""
    assert relative(str(caught.value), worker) == expected
    _usable(ctx)


def test_several_root_causes_are_all_reported(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        if rank != 1:
            raise RuntimeError(f"rank {rank} is broken")
        torch.ones(1, device="cuda").item()

    with pytest.raises(SpawnException) as caught:
        kernbench.spawn(worker, nprocs=4)
    assert sorted(caught.value.errors) == [0, 2, 3]


@pytest.mark.parametrize(("code", "fails"), [(0, False), (None, False), (3, True), ("no", True)])
def test_sys_exit_of_a_user_is_told_apart(kernbench: Kernbench, code: Any, fails: bool) -> None:
    def worker(rank: int) -> None:
        if rank == 1:
            sys.exit(code)

    if not fails:
        kernbench.spawn(worker, nprocs=2)
        return
    with pytest.raises(SpawnException) as caught:
        kernbench.spawn(worker, nprocs=2)
    stop = caught.value.errors[1]
    assert isinstance(stop, SystemExit)
    assert not isinstance(stop, RankAborted)
    assert stop.code == code


def test_keyboard_interrupt_goes_to_main(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        if rank == 1:
            raise KeyboardInterrupt
        torch.ones(1, device="cuda").item()

    ctx = kernbench.context()
    with pytest.raises(KeyboardInterrupt):
        ctx.multiprocessing.spawn(worker, nprocs=3)
    _usable(ctx)


def test_an_abort_that_is_swallowed_for_ever_is_reported(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        if rank == 0:
            raise ValueError("boom")
        while True:
            try:
                x = torch.ones(1, device="cuda")
                dist.all_reduce(x)
                x.item()
            except BaseException:
                continue

    ctx = kernbench.context()
    with pytest.raises(SpawnException) as caught:
        ctx.multiprocessing.spawn(worker, nprocs=2)
    assert isinstance(caught.value.errors[0], ValueError)
    assert relative(str(caught.value.errors[1]), worker) == (
        """[R4] rank 1 caught its abort 1000 times and waited again
  caught last by FILE+9: except BaseException:
  raised at FILE+6: x = torch.ones(1, device="cuda")
  hint: let SystemExit through: rank 1 is aborted because another rank failed"""
    )
    _usable(ctx)


def test_more_ranks_than_sips_says_both(kernbench: Kernbench) -> None:
    with pytest.raises(KernbenchError, match="9 ranks on a machine with 8 SIPs"):
        kernbench.spawn(lambda rank: None, nprocs=9)


def test_more_ranks_than_named_sips_says_who_names_them() -> None:
    context = RuntimeContext(RunSpec(devices=(3, 5)))
    with pytest.raises(KernbenchError) as caught:
        context.multiprocessing.spawn(lambda rank: None, nprocs=3)
    said = str(caught.value)
    assert said.startswith("spawn of 3 ranks on 2 of 8 SIPs, which --devices (devices=) names\n")
    assert said.endswith("  hint: spawn fewer ranks, or name more SIPs")


@pytest.mark.parametrize("nprocs", [0, -1, 2.0, True, "2"])
def test_the_number_of_ranks_is_checked(kernbench: Kernbench, nprocs: Any) -> None:
    with pytest.raises(KernbenchError, match="positive number of ranks"):
        kernbench.spawn(lambda rank: None, nprocs=nprocs)


def test_a_spawn_inside_a_rank_is_refused(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        if rank == 1:
            torch.multiprocessing.spawn(worker, nprocs=1)

    with kernbench.context(), pytest.raises(SpawnException) as caught:
        torch.multiprocessing.spawn(worker, nprocs=2)
    assert list(caught.value.errors) == [1]
    assert relative(str(caught.value.errors[1]), worker) == (
        """[C19] spawn was called inside rank 1 of another spawn
  at FILE+2: torch.multiprocessing.spawn(worker, nprocs=1)
  the outer spawn is at FILE+5: torch.multiprocessing.spawn(worker, nprocs=2)
  hint: spawn once, and let the ranks branch"""
    )


def test_a_spawn_on_main_during_a_spawn_is_refused(kernbench: Kernbench) -> None:
    """As code of the hub might do it, such as the destructor of a tensor."""
    ctx = kernbench.context()
    loop = ctx.engine.loop

    def worker(rank: int) -> None:
        loop.at(loop.now, loop.owner(0), ctx.multiprocessing.spawn, print)
        torch.cuda.current_stream().query()

    with pytest.raises(KernbenchError, match="spawn was called during another spawn"):
        ctx.multiprocessing.spawn(worker, nprocs=2)
    _usable(ctx)


def test_work_that_nobody_waits_for_is_a_leak(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        dist.all_reduce(torch.ones(1, device="cuda"), async_op=True)

    assert views(kernbench, worker, 2) == {
        (0,): """\
LeakError: [C13] rank 0 returned without waiting for 1 operation
  all_reduce #1 of group WORLD issued at 2 us, at FILE+2: dist.all_reduce(torch.ones(1, device="cuda"), async_op=True)
  hint: keep the work that each of these calls returned, and call its wait()""",
        (1,): """\
LeakError: [C13] rank 1 returned without waiting for 1 operation
  all_reduce #1 of group WORLD issued at 2 us, at FILE+2: dist.all_reduce(torch.ones(1, device="cuda"), async_op=True)
  hint: keep the work that each of these calls returned, and call its wait()""",
    }


def test_many_works_from_one_line_are_counted(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(1, device="cuda")
        for _ in range(3):
            work = dist.all_reduce(x, async_op=True)
        if rank:
            assert work is not None
            work.wait()

    assert views(kernbench, worker, 2) == {
        (0,): """\
LeakError: [C13] rank 0 returned without waiting for 3 operations
  3 times, first all_reduce #1 of group WORLD issued at 2 us, at FILE+4: work = dist.all_reduce(x, async_op=True)
  hint: keep the work that each of these calls returned, and call its wait()""",
    }


def test_wait_returns_at_once_when_done_and_parks_otherwise(kernbench: Kernbench) -> None:
    pending: list[int] = []

    def worker(rank: int, ctx: RuntimeContext) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(1, device="cuda")
        work = dist.all_reduce(x, async_op=True)
        assert work is not None
        if rank == 1:
            pending.append(len(ctx.worker_waits))
        ctx.wait(work)
        before = ctx.engine.loop.now
        ctx.wait(work)
        assert ctx.engine.loop.now == before
        work.wait()
        assert x.item() == 2

    ctx = kernbench.context()
    ctx.multiprocessing.spawn(worker, args=(ctx,), nprocs=2)
    assert pending == [1]
    assert ctx.worker_waits == []
    _drain_pending(ctx)


def test_wait_takes_handles_only(kernbench: Kernbench) -> None:
    with pytest.raises(KernbenchError, match="takes a handle"):
        kernbench.context().wait(42)


def test_two_contexts_do_not_see_each_other(kernbench: Kernbench) -> None:
    first, second = kernbench.context("sip8"), kernbench.context("torus4x4")
    assert first.cuda.device_count() == 8
    assert second.cuda.device_count() == 16
    with first:
        assert torch.cuda.device_count() == 8
        assert second.cuda.device_count() == 16
        assert torch.cuda.device_count() == 8


def test_main_waits_for_what_it_issued_before_ranks_start(kernbench: Kernbench) -> None:
    ctx = kernbench.context()
    starts: list[int] = []
    with ctx:
        x = torch.ones((1 << 20,), device="cuda:1")
        x.mul_(2)

        def worker(rank: int) -> None:
            starts.append(ctx.processes is not None and ctx.engine.loop.now)

        ctx.multiprocessing.spawn(worker, nprocs=2)
        assert min(starts) > 0
        assert x[0].item() == 2.0


def test_every_way_of_waiting_counts(kernbench: Kernbench) -> None:
    def worker(rank: int, ctx: RuntimeContext, how: str) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(4, device="cuda")
        work = dist.all_reduce(x, async_op=True)
        assert work is not None
        if how == "ctx":
            ctx.wait(work)
        elif how == "synchronize":
            torch.cuda.synchronize()
        else:
            work.wait()
        assert x.tolist() == [2.0] * 4

    for how in ("ctx", "synchronize", "work"):
        ctx = kernbench.context()
        ctx.multiprocessing.spawn(worker, args=(ctx, how), nprocs=2)


def test_a_worker_that_runs_nothing_is_refused(kernbench: Kernbench) -> None:
    def worker(rank: int) -> Any:
        yield rank

    async def later(rank: int) -> None: ...

    async def each(rank: int) -> Any:
        yield rank

    for function in (worker, later, each):
        with pytest.raises(SpawnException, match="a generator or a coroutine"):
            kernbench.spawn(function, nprocs=1)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda spawn: spawn(None, nprocs=2), "'fn' must be a function, which each rank calls"),
        (lambda spawn: spawn(3, nprocs=2), "'fn' must be a function, which each rank calls; got 3"),
        (lambda spawn: spawn(print, args=3, nprocs=2), "'args' must be a tuple; got 3"),
    ],
)
def test_what_no_rank_can_call_is_refused_at_once(
    kernbench: Kernbench, call: Callable[[Any], object], said: str
) -> None:
    with pytest.raises(OperandError) as caught:
        call(kernbench.spawn)
    assert caught.value.summary.startswith(f"spawn(): argument {said}")
    assert caught.value.facts[0].startswith(f"at {__file__}:")


def test_a_failed_spawn_keeps_no_tensors(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(1 << 20, device="cuda")
        if rank == 1:
            raise ValueError
        dist.all_reduce(x)
        x.item()

    ctx = kernbench.context()
    with pytest.raises(SpawnException):
        ctx.multiprocessing.spawn(worker, nprocs=2)
    gc.collect()
    assert [ctx.cuda.memory_allocated(sip) for sip in range(2)] == [0, 0]


def test_a_rank_that_copies_to_another_device_is_refused(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        torch.ones(4, device="cuda").to("cuda:3")

    with pytest.raises(SpawnException, match="simulated on main only"):
        kernbench.spawn(worker, nprocs=2)


def test_the_names_of_another_context_are_refused_in_a_rank(kernbench: Kernbench) -> None:
    other = kernbench.context("torus4x4")

    def worker(rank: int) -> None:
        other.ones(2)

    with pytest.raises(SpawnException, match="uses the names of another"):
        kernbench.spawn(worker, nprocs=1)


def test_errors_come_in_the_order_in_which_ranks_failed(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x = torch.ones(1, device="cuda")
        for _ in range(5 - rank):
            x.mul_(1)
        raise ValueError(rank // 2)

    failed = failure(kernbench, worker, 4)
    assert list(failed.errors) == [3, 2, 1, 0]
    assert failed.__cause__ is failed.errors[0]
    assert relative(str(failed), worker) == (
        """ranks 0-3 failed
ranks 2-3: ValueError: 1
  at 6 us to 8 us, at FILE+4: raise ValueError(rank // 2)
ranks 0-1: ValueError: 0
  at 10 us to 12 us, at FILE+4: raise ValueError(rank // 2)
replay: seed 0, schedule 0"""
    )


def test_a_failure_as_plain_values(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        if rank == 0:
            raise KeyError("k")
        if rank == 1:
            sys.exit(3)
        dist.init_process_group("nccl")
        dist.recv(torch.ones(1, device="cuda"), 7)

    document = failure(kernbench, worker, 3, seed=5).as_json()
    assert json.loads(relative(json.dumps(document), worker)) == {
        "class": "SpawnException",
        "errors": {
            "0": {
                "class": "KeyError",
                "code": "",
                "summary": "'k'",
                "at": {"site": "FILE+2", "source": 'raise KeyError("k")'},
            },
            "1": {
                "class": "SystemExit",
                "code": "",
                "summary": "3",
                "at": {"site": "FILE+4", "source": "sys.exit(3)"},
            },
            "2": {
                "class": "PeerError",
                "code": "P9",
                "summary": "rank 2 called recv(src=7): there is no such rank",
                "facts": [
                    "message #1 of group WORLD at 2 us, "
                    'at FILE+6: dist.recv(torch.ones(1, device="cuda"), 7)',
                    "expected 0..2, numbered globally",
                ],
                "hint": "src= takes global ranks, group_src= ranks in the group",
                "ranks": [
                    {
                        "rank": 2,
                        "call": "recv",
                        "site": {
                            "file": __file__,
                            "line": worker.__code__.co_firstlineno + 6,
                            "source": 'dist.recv(torch.ones(1, device="cuda"), 7)',
                        },
                        "sequence": 1,
                        "time_ps": 2_000_000,
                    }
                ],
                "at": {
                    "site": "FILE+6",
                    "source": 'dist.recv(torch.ones(1, device="cuda"), 7)',
                },
            },
        },
        "aborted": {},
        "replay": {"seed": 5, "schedule": "0"},
    }


def test_sys_exit_0_is_a_return(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(1, device="cuda")
        if rank == 1:
            sys.exit(0)
        dist.all_reduce(x)

    assert views(kernbench, worker, 3) == {
        (0, 2): """\
CollectiveMismatchError: [C1] all_reduce #1 of group WORLD: ranks 0, 2 wait for rank 1
  waiting ranks 0, 2: all_reduce([1], torch.float32, sum) at 2 us, at FILE+5: dist.all_reduce(x)
  missing rank 1 returned at FILE+4: sys.exit(0); it called none
  hint: every rank of a group must call the collective; look for a branch on the rank, or a loop with fewer turns""",
    }


def test_a_rank_that_is_aborted_after_sys_exit_0_has_not_failed(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(1, device="cuda")
        if rank == 1:
            dist.all_reduce(x)
            sys.exit(0)
        raise ValueError("boom")

    expected = """\
rank 0 failed
rank 0: ValueError: boom
  at 2 us, at FILE+6: raise ValueError("boom")
rank 1 aborted at 4 us, after the worker had returned at FILE+5: sys.exit(0)
replay: seed 0, schedule 0"""
    assert relative(str(failure(kernbench, worker, 2)), worker) == expected


def test_a_rank_that_has_issued_nothing_returned_from_its_function(kernbench: Kernbench) -> None:
    def worker(rank: int, skip: int) -> None:
        if rank == skip:
            return
        dist.init_process_group("nccl")
        dist.all_reduce(torch.ones(1, device="cuda"))

    failed = failure(kernbench, functools.partial(worker, skip=1), 2)
    assert "missing rank 1 returned at FILE+0: def worker(" in relative(str(failed), worker)
    with pytest.raises(SpawnException) as caught:
        kernbench.spawn(worker, args=(0,), nprocs=2)
    assert "missing rank 0 returned at FILE+0: def worker(" in relative(str(caught.value), worker)


def test_a_deep_recursion_is_an_error_of_its_rank(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        if rank == 1:
            worker(rank)

    failed = failure(kernbench, worker, 2)
    assert isinstance(failed.errors[1], RecursionError)
    assert "the calls were " in str(failed)
    assert "rank 1: RecursionError: maximum recursion depth exceeded" in str(failed)


@pytest.mark.greenlets_only("nothing can be thrown into a thread that waits")
def test_a_rank_that_is_killed_from_outside(kernbench: Kernbench) -> None:
    stacks: dict[int, greenlet.greenlet] = {}
    ended: list[int] = []

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        stacks[rank] = greenlet.getcurrent()
        x = torch.ones(1, device="cuda")
        if rank == 1:
            stacks[0].throw()
            ended.append(rank)
        dist.all_reduce(x)
        try:
            x.tolist()
        finally:
            ended.append(-rank)

    ctx = kernbench.context()
    with pytest.raises(SpawnException) as caught:
        ctx.multiprocessing.spawn(worker, nprocs=3)
    assert list(caught.value.errors) == [0]
    assert ended == [0, 1, -1, -2]
    assert relative(str(caught.value), worker) == (
        """rank 0 failed
rank 0: RankKilledError: [R6] rank 0 was ended by GreenletExit, which kernbench did not throw
  at 6 us, at FILE+9: x.tolist()
ranks 1-2 aborted at 6 us, at FILE+9: x.tolist()
replay: seed 0, schedule 0"""
    )
    _usable(ctx)


def test_a_rank_that_raises_greenlet_exit(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        if rank == 0:
            raise greenlet.GreenletExit

    assert views(kernbench, worker, 2) == {
        (0,): """\
RankKilledError: [R6] rank 0 was ended by GreenletExit, which kernbench did not throw
  at 0 ps, at FILE+2: raise greenlet.GreenletExit""",
    }


def test_ranks_that_wait_again_while_they_are_aborted(kernbench: Kernbench) -> None:
    ended: list[int] = []

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(1, device="cuda")
        if rank == 0:
            raise ValueError
        try:
            dist.all_reduce(x)
            x.tolist()
        finally:
            try:
                x.tolist()
            finally:
                ended.append(rank)

    ctx = kernbench.context()
    with pytest.raises(SpawnException) as caught:
        ctx.multiprocessing.spawn(worker, nprocs=3)
    assert list(caught.value.errors) == [0]
    assert ended == [1, 2]
    _usable(ctx)


def test_a_keyboard_interrupt_stops_at_once_and_a_second_one_forces(kernbench: Kernbench) -> None:
    ran: list[str] = []

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(1, device="cuda")
        dist.all_reduce(x)
        if rank == 1:
            raise KeyboardInterrupt
        try:
            x.tolist()
            ran.append("after")
        finally:
            ran.append(f"finally {rank}")
            if rank == 2:
                raise KeyboardInterrupt

    ctx = kernbench.context()
    with pytest.raises(KeyboardInterrupt):
        ctx.multiprocessing.spawn(worker, nprocs=4)
    # Rank 3 had not begun to wait when rank 1 was interrupted.
    assert ran == ["finally 0"]
    _usable(ctx)


def test_code_that_never_yields_is_stopped(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x = torch.ones(1, device="cuda")
        if rank == 1:
            while True:
                pass
        x.tolist()

    found = views(kernbench, worker, 2, watchdog_s=0.1)
    # Either line of the loop may run at that moment.
    assert {
        ranks: text.replace("+4: pass", "+3: while True:") for ranks, text in found.items()
    } == {
        (1,): """\
NoProgressError: [K5] code ran on past the watchdog's 0.1 s of wall time without a simulated step
  where rank 1 was, innermost call last:
    worker at FILE+3: while True:
  hint: look for a loop that never waits; --watchdog or watchdog_s= sets the limit""",
    }


def test_a_step_budget_ends_a_loop_at_the_same_command_each_time(kernbench: Kernbench) -> None:
    counts: list[int] = []

    def worker(rank: int) -> None:
        x = torch.ones(1, device="cuda")
        count = 1
        while rank:
            x.mul_(1)
            count += 1
            counts[:] = [count]

    assert views(kernbench, worker, 2, step_budget=100) == {
        (1,): """\
StepBudgetError: [K5] rank 1 has used up its step budget
  the last command was issued at FILE+4: x.mul_(1)
  hint: look for a loop that does not end, or raise --step-budget or step_budget=""",
    }
    assert counts == [100]


def test_a_run_after_a_failed_one_is_timed_as_before_it(kernbench: Kernbench) -> None:
    def good(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(1 << 14, device="cuda")
        dist.broadcast(x, src=2)
        torch.cuda.synchronize()
        dist.destroy_process_group()

    def bad(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(1 << 14, device="cuda")
        dist.all_to_all_single(torch.empty_like(x), x)
        if rank == 1:
            raise ValueError("on the way")
        torch.cuda.synchronize()

    for machine in ("fattree64", "torus4x4"):
        times = []
        with kernbench.context(machine) as ctx:
            for worker in (good, bad, good):
                begin = ctx.main.host.clock
                if worker is bad:
                    with pytest.raises(SpawnException):
                        ctx.multiprocessing.spawn(worker, nprocs=8)
                else:
                    ctx.multiprocessing.spawn(worker, nprocs=8)
                    times.append(ctx.main.host.clock - begin)
        assert times[0] == times[1]


def test_a_worker_that_does_not_take_what_it_is_given(kernbench: Kernbench) -> None:
    def worker(rank: int, x: int) -> None: ...

    def calls(rank: int) -> None:
        worker(rank)  # type: ignore[call-arg]

    args: tuple[int, ...]
    for args, given in (((), "the rank alone"), ((1, 2), "the rank and 2 of args")):
        with pytest.raises(SpawnException) as caught:
            kernbench.spawn(worker, args=args, nprocs=2)
        assert set(caught.value.errors) == {0, 1}
        error = caught.value.errors[1]
        assert isinstance(error, KernbenchError)
        assert isinstance(error, TypeError)
        assert "spawn cannot call worker(rank: int, x: int) -> None: " in error.summary
        assert "test_spawn.py" in error.facts[0]
        assert error.facts[1] == f"it is called with {given}"
        assert "calls worker(rank, *args)" in error.hint
    with pytest.raises(SpawnException) as caught:
        kernbench.spawn(calls, nprocs=1)
    assert type(caught.value.errors[0]) is TypeError


def test_a_spawn_may_bring_the_threads_that_its_ranks_run_on(kernbench: Kernbench) -> None:
    @jit
    def double(x: tl.Pointer) -> None:
        tl.store(x, tl.load(x) * 2)

    def worker(rank: int, sums: dict[int, float], threads: set[int]) -> None:
        dist.init_process_group("nccl")
        threads.add(threading.get_ident())
        x = torch.full((1,), rank + 1.0, device="cuda")
        double[(1,)](x)
        dist.all_reduce(x)
        sums[rank] = x.item()

    ctx = kernbench.context()
    usual, before = ctx.engine.loop.carriers, set(threading.enumerate())
    sums: dict[int, float] = {}
    threads: set[int] = set()
    with ThreadPool() as pool:
        for _ in range(2):
            spawn_on(pool, worker, (sums, threads), nprocs=3)
        assert ctx.engine.loop.carriers is usual
        with pytest.raises(SpawnException, match="rank 1: ZeroDivisionError"):
            spawn_on(pool, lambda rank: 1 / (rank - 1), nprocs=3)
    assert sums == dict.fromkeys(range(3), 12.0)
    assert len(threads) == 3
    assert threading.get_ident() not in threads
    assert ctx.engine.loop.carriers is usual
    assert set(threading.enumerate()) == before
    _usable(ctx)
