"""Ranks that repeat what another rank does: all times are as if each had run the program."""

import contextlib
import gc
from collections.abc import Callable
from typing import Any

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.distributed import group_lifetime
from kernbench.distributed.followers import Follower
from kernbench.distributed.tapes import WORLD, Page, Pair, RanksDifferError, Tape
from kernbench.errors import UnsupportedError
from kernbench.process.process import current_process
from kernbench.ranks.spawn_errors import SpawnException
from kernbench.runtime_api import ranges
from kernbench.testing import Kernbench

Program = Callable[[int, Tape | None], None]


def _begin(tape: Tape | None) -> None:
    if tape is not None:
        tape.did(_begin_again, "nccl", shown="nccl")
    dist.init_process_group("nccl")


def _begin_again(follower: Any, backend: str) -> None:
    del follower
    group_lifetime.init_process_group(backend)


def _end_again(follower: Follower, batch: int) -> None:
    group_lifetime.destroy_process_group(None if batch == WORLD else follower.group(batch))


def _halves(tape: Tape | None) -> Any:
    """Returns the caller's half of four ranks; all ranks make both."""
    make = dist.new_group if tape is None else tape.new_group
    groups = [make([0, 1]), make([2, 3])]
    return next(one for one in groups if one != dist.GroupMember.NON_GROUP_MEMBER)


def _works(rank: int, tape: Tape | None) -> None:
    del rank
    _begin(tape)
    half = _halves(tape)
    x = torch.ones(1000, device="cuda")
    side = torch.cuda.Stream()
    ready = torch.cuda.Event()
    process = current_process()
    ranges.enter(process, "part")
    for _ in range(3):
        y = x * 2
        work = dist.all_reduce(y, group=half, async_op=True)
        ready.record()
        with torch.cuda.stream(side):
            side.wait_event(ready)
            z = x + 1
        assert work is not None
        work.wait()
        torch.cuda.current_stream().wait_stream(side)
        (y + z).sum()
        dist.all_reduce(z)
        torch.cuda.synchronize()
    ranges.leave(process)
    dist.barrier()
    dist.broadcast(y, src=0)
    process.synchronize()
    for group in (half, None):
        if tape is not None:
            batch = tape.batch_of(group)
            tape.did(_end_again, batch, shown=batch)
        dist.destroy_process_group(group)


def _on_hosts(rank: int, tape: Tape | None) -> None:
    del rank
    if tape is not None:
        tape.did(_begin_again, "gloo", shown="gloo")
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(3))
    dist.broadcast(torch.ones(3), src=0)
    dist.barrier()


def _times(
    kernbench: Kernbench, program: Program, *, same: bool, ranks: int = 4, **fields: Any
) -> Any:
    """Runs a program in all ranks, or in the first and the last one; returns all that was noted."""
    pair = Pair(["rank 0", f"rank {ranks - 1}"])
    leader: list[Tape] = []

    def worker(rank: int) -> None:
        process = current_process()
        if not same:
            program(rank, None)
        elif rank in {0, ranks - 1}:
            tape = process.host.tape = Tape(process, pair, 1 if rank else 0, ranks - 2)
            leader.append(tape)
            try:
                program(rank, tape)
                tape.end()
            finally:
                tape.close()
                process.host.tape = None
        else:
            Follower(process, leader[0]).run()

    ctx = kernbench.spawn(worker, nprocs=ranks, data=False, record="full", **fields)
    log = ctx.engine.op_log
    records = sorted(
        repr((one.name, one.rank, one.track, one.issued, one.start, one.end, one.args, one.ranges))
        for one in log.records
    )
    return records, sorted(map(repr, log.waits)), ctx.engine.loop.late_calls


@pytest.mark.parametrize("program", [_works, _on_hosts])
def test_times_are_as_if_every_rank_had_run_the_program(
    kernbench: Kernbench, program: Program
) -> None:
    each = _times(kernbench, program, same=False)
    assert each[0]
    assert _times(kernbench, program, same=True) == each


def _refusal(kernbench: Kernbench, program: Program) -> str:
    with pytest.raises(SpawnException) as caught:
        _times(kernbench, program, same=True)
    return str(caught.value)


def _one_multiplies(rank: int, tape: Tape | None) -> None:
    del tape
    x = torch.ones(10, device="cuda")
    x * 2 if rank == 0 else x.exp()


def test_ranks_that_do_other_things_are_told_with_their_lines(kernbench: Kernbench) -> None:
    report = _refusal(kernbench, _one_multiplies)
    assert "rank 0 and rank 3 do not do the same" in report
    assert "rank 0 issued aten::mul" in report
    assert "rank 3 issued aten::exp" in report
    assert report.count("x * 2 if rank == 0 else x.exp()") >= 2
    assert "run without --same-ranks" in report


def _one_does_more(rank: int, tape: Tape | None) -> None:
    del tape
    x = torch.ones(10, device="cuda")
    if rank == 0:
        x.exp()


def test_a_rank_that_returns_earlier_is_told(kernbench: Kernbench) -> None:
    report = _refusal(kernbench, _one_does_more)
    assert "rank 0 issued aten::exp" in report
    assert "rank 3 returned" in report


def _one_does_less(rank: int, tape: Tape | None) -> None:
    del tape
    x = torch.ones(10, device="cuda")
    if rank:
        x.exp()


def test_a_rank_that_does_more_is_told(kernbench: Kernbench) -> None:
    report = _refusal(kernbench, _one_does_less)
    assert "rank 0 returned" in report
    assert "rank 3 issued aten::exp" in report


def _sends(rank: int, tape: Tape | None) -> None:
    _begin(tape)
    dist.isend(torch.ones(1, device="cuda"), 3 - rank)


def _looks(rank: int, tape: Tape | None) -> None:
    del rank, tape
    torch.cuda.current_stream().query()


def _other_bytes(rank: int, tape: Tape | None) -> None:
    _begin(tape)
    found: list[Any] = [None] * 4
    dist.all_gather_object(found, f"rank {rank}")


def _only_members(rank: int, tape: Tape | None) -> None:
    _begin(tape)
    assert tape is not None
    tape.new_group([rank, (rank + 1) % 4], use_local_synchronization=True)


def _overlapping(rank: int, tape: Tape | None) -> None:
    _begin(tape)
    assert tape is not None
    del rank
    both = tape.new_group([0, 3])
    dist.all_reduce(torch.ones(1, device="cuda"), group=both)


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (_sends, "isend, a message to or from one rank, on each of ranks 0, 3"),
        (_looks, "a look whether the device is done (query, is_completed) on each of ranks 0, 3"),
        (_other_bytes, "rank 0 and rank 3 do not do the same"),
        (_only_members, "new_group(use_local_synchronization=True) on each of ranks 0, 3"),
        (_overlapping, "each of ranks 1-2 is in none of the groups"),
    ],
)
def test_what_depends_on_the_rank_is_refused_by_name(
    kernbench: Kernbench, program: Program, told: str
) -> None:
    report = _refusal(kernbench, program)
    assert told in report
    assert "run without --same-ranks" in report


def test_pages_that_all_have_read_are_freed(kernbench: Kernbench) -> None:
    left: list[int] = []

    def program(rank: int, tape: Tape | None) -> None:
        x = torch.ones(10, device="cuda")
        for _ in range(50):
            (x * 2).sum()
            torch.cuda.synchronize()
        if rank == 0:
            gc.collect()
            left.append(sum(type(one) is Page for one in gc.get_objects()))

    _times(kernbench, program, same=True)
    assert left[0] < 10


def test_the_error_of_a_rank_comes_before_what_it_does_otherwise(kernbench: Kernbench) -> None:
    def fails(rank: int, tape: Tape | None) -> None:
        del tape
        process = current_process()
        ranges.enter(process, "part")
        try:
            if rank == 3:
                raise ValueError("its own")
            torch.ones(10, device="cuda")
        finally:
            ranges.leave(process)

    def goes_on(rank: int, tape: Tape | None) -> None:
        with contextlib.suppress(ValueError):
            fails(rank, tape)
        torch.ones(10, device="cuda")

    with pytest.raises(SpawnException, match="ValueError: its own"):
        _times(kernbench, fails, same=True)
    with pytest.raises(SpawnException, match="do not do the same"):
        _times(kernbench, goes_on, same=True)


def test_the_limit_of_simulated_time_holds_for_a_rank_that_others_repeat(
    kernbench: Kernbench,
) -> None:
    turns = 0

    def program(rank: int, tape: Tape | None) -> None:
        nonlocal turns
        del tape
        x = torch.ones(10, device="cuda")
        for _ in range(3000):
            turns += rank == 0
            x = x * 2

    with pytest.raises(SpawnException, match="K10"):
        _times(kernbench, program, same=True, max_time_ps=10**9)
    assert 0 < turns < 3000


def test_errors_are_of_kinds_that_programs_know() -> None:
    assert issubclass(RanksDifferError, RuntimeError)
    assert issubclass(UnsupportedError, NotImplementedError)
    assert WORLD < 0
