"""Ranks that repeat what another rank does: all times are as if each had run the program."""

import contextlib
import gc
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.des import Event
from kernbench.distributed import group_lifetime
from kernbench.errors import UnsupportedError, UsageError
from kernbench.following.followers import Follower
from kernbench.following.same_ranks import SameRanks
from kernbench.following.tapes import WORLD, Page, Tape
from kernbench.following.witnesses import RanksDifferError, witnesses_of
from kernbench.process.process import current_process
from kernbench.ranks.spawn_errors import SpawnException
from kernbench.run_spec import RunSpec
from kernbench.runtime_api import ranges
from kernbench.runtime_api.context import RuntimeContext
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


def _end(tape: Tape | None, *groups: Any) -> None:
    for group in groups:
        if tape is not None:
            batch = tape.batch_of(group)
            tape.did(_end_again, batch, shown=batch)
        dist.destroy_process_group(group)


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
    _end(tape, half, None)


def _on_hosts(rank: int, tape: Tape | None) -> None:
    del rank
    if tape is not None:
        tape.did(_begin_again, "gloo", shown="gloo")
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(3, device="cpu"))
    dist.broadcast(torch.ones(3, device="cpu"), src=0)
    dist.barrier()


def _to_each(rank: int, tape: Tape | None) -> None:
    del rank
    _begin(tape)
    taken = torch.empty(8, device="cuda")
    dist.all_to_all_single(taken, torch.ones(8, device="cuda"), [2] * 4, [2] * 4)
    make = dist.new_group if tape is None else tape.new_group
    # All of them call, so it is the same group; without a tape its name would tell.
    everyone = make([0, 1, 2, 3], use_local_synchronization=tape is not None)
    dist.all_reduce(taken, group=everyone)
    _end(tape, everyone, None)


def _objects(rank: int, tape: Tape | None) -> None:
    _begin(tape)
    half = _halves(tape)
    found: list[Any] = [None] * 4
    dist.all_gather_object(found, {"alike": 1})
    assert found == [{"alike": 1}] * 4
    dist.all_gather_object(found[:2], "of a half", group=half)
    _end(tape, half, None)


def _objects_of_hosts(rank: int, tape: Tape | None) -> None:
    if tape is not None:
        tape.did(_begin_again, "gloo", shown="gloo")
    dist.init_process_group("gloo")
    for root in (0, 3):
        given: list[Any] = [root, "of one"] if rank == root else [None, None]
        dist.broadcast_object_list(given, src=root)
        assert given == [root, "of one"]
    whole: list[Any] | None = [None] * 4 if rank == 0 else None
    dist.gather_object("alike", whole, dst=0)
    assert whole in (None, ["alike"] * 4)
    taken: list[Any] = [None]
    dist.scatter_object_list(taken, [*"abcd"] if rank == 0 else None, src=0)
    assert taken == ["abcd"[rank]]


def _times(
    kernbench: Kernbench,
    program: Program,
    *,
    same: bool,
    ranks: int = 4,
    witnesses: tuple[int, ...] = (3,),
    **fields: Any,
) -> Any:
    """Runs a program in all ranks, or in rank 0 and witnesses; returns all that was noted."""
    runs = SameRanks(ranks, witnesses)

    def worker(rank: int) -> None:
        process = current_process()
        if not same:
            program(rank, None)
        elif rank in runs.followers:
            runs.follow(process)
        else:
            with runs.noting(process, process.ctx.devices[rank]) as tape:
                program(rank, tape)

    fields = {"record": "full", **fields}
    ctx = kernbench.spawn(worker, nprocs=ranks, data=False, **fields)
    log = ctx.engine.op_log
    records = sorted(
        repr((one.name, one.rank, one.track, one.issued, one.start, one.end, one.args, one.ranges))
        for one in log.records
    )
    return records, sorted(map(repr, log.waits)), ctx.engine.loop.late_calls


@pytest.mark.parametrize("witnesses", [(3,), (3, 1), (2, 3, 1)])
@pytest.mark.parametrize("program", [_works, _on_hosts, _to_each, _objects, _objects_of_hosts])
def test_times_are_as_if_every_rank_had_run_the_program(
    kernbench: Kernbench, program: Program, witnesses: tuple[int, ...]
) -> None:
    each = _times(kernbench, program, same=False)
    assert each[0]
    assert _times(kernbench, program, same=True, witnesses=witnesses) == each


@pytest.mark.parametrize(
    ("change", "report"),
    [
        ("link: {bandwidth: 5 GB/s, latency: 3 us}", None),
        ("sip: {launch: 30 us}", "--same-ranks: rank 2 has sip5, which is not as sip0 of rank 0"),
    ],
)
def test_ranks_that_repeat_have_sips_as_the_first_one_has(
    kernbench: Kernbench, change: str, report: str | None
) -> None:
    """A link of its own is simulated for each rank; what kernels take is repeated."""
    fields: dict[str, Any] = {
        "devices": (0, 1, 5, 7),
        "overrides": (f"system.sips.changed=[{{which: [5], {change}}}]",),
    }
    context = RuntimeContext(RunSpec(data=False, **fields))
    main = context.main
    if report is not None:
        with pytest.raises(UsageError, match=report):
            SameRanks(4, None, main)
        SameRanks(2, None, main)
        return
    SameRanks(4, None, main)
    assert _times(kernbench, _works, same=True, **fields) == _times(
        kernbench, _works, same=False, **fields
    )


def _products_beside(rank: int, tape: Tape | None) -> None:
    del rank
    _begin(tape)
    a = torch.empty(4096, 4096, device="cuda", dtype=torch.bfloat16)
    for _ in range(2):
        works = []
        for _ in range(3):
            a @ a
            works.append(dist.all_reduce(torch.empty(1 << 23, device="cuda"), async_op=True))
            a @ a
            a + a
        for work in works:
            assert work is not None
            work.wait()
        torch.cuda.synchronize()
    _end(tape, None)


@pytest.mark.parametrize("record", ["full", "summary"])
def test_collectives_beside_kernels_take_as_long(kernbench: Kernbench, record: str) -> None:
    def times(*, same: bool, overrides: Sequence[str] = ()) -> Any:
        runs = SameRanks(4, (3,))
        clocks: list[int] = []

        def worker(rank: int) -> None:
            process = current_process()
            if not same:
                _products_beside(rank, None)
            elif rank in runs.followers:
                runs.follow(process)
            else:
                with runs.noting(process, process.ctx.devices[rank]) as tape:
                    _products_beside(rank, tape)
            clocks.append(process.host.clock)

        kernbench.spawn(
            worker,
            nprocs=4,
            data=False,
            topology="h200x8",
            record=record,
            overrides=overrides,
        )
        return sorted(clocks)

    each = times(same=False)
    assert times(same=True) == each
    assert times(same=False, overrides=["system.sip.overlap=null"]) != each


def _replays(rank: int, tape: Tape | None) -> None:
    del rank
    _begin(tape)
    x, graph = torch.zeros(1 << 20, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(6):
            x.add_(1)
        dist.all_reduce(x)
        x.mul_(2)
    for _ in range(3):
        graph.replay()
    x.add_(1)
    torch.cuda.synchronize()
    _end(tape, None)


def test_a_graph_takes_one_place_in_the_launch_queue_of_each_rank(kernbench: Kernbench) -> None:
    queue = ["system.host.launch_queue=4"]
    each = _times(kernbench, _replays, same=False, overrides=queue)
    assert _times(kernbench, _replays, same=True, overrides=queue) == each


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


def _third_multiplies(rank: int, tape: Tape | None) -> None:
    del tape
    x = torch.ones(10, device="cuda")
    x * 2 if rank == 2 else x.exp()


def test_a_witness_sees_what_the_last_rank_does_not(kernbench: Kernbench) -> None:
    _times(kernbench, _third_multiplies, same=True)  # nobody compares rank 2
    with pytest.raises(SpawnException) as caught:
        _times(kernbench, _third_multiplies, same=True, witnesses=(3, 2))
    report = str(caught.value)
    assert "rank 0 and rank 2 do not do the same" in report
    assert "rank 2 issued aten::mul" in report


def test_the_last_rank_is_the_witness_unless_others_are_named() -> None:
    assert [witnesses_of(None, ranks) for ranks in (1, 2, 8)] == [(), (1,), (7,)]
    assert witnesses_of((3, 1), 4) == (3, 1)
    with pytest.raises(UsageError, match="--witnesses 3,4,9: of 4 ranks none is 4, 9") as caught:
        witnesses_of((3, 4, 9), 4)
    assert caught.value.hint == "expected some of 1-3; rank 0 always runs the program"
    with pytest.raises(UsageError, match="of 1 rank none is 1"):
        witnesses_of((1,), 1)


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


def _broadcasts_objects(rank: int, tape: Tape | None) -> None:
    _begin(tape)
    dist.broadcast_object_list(["of one"] if rank == 2 else [None], src=2)


def _scatters_objects(rank: int, tape: Tape | None) -> None:
    _begin(tape)
    dist.scatter_object_list([None], [*"abcd"] if rank == 1 else None, src=1)


def _gathers_objects(rank: int, tape: Tape | None) -> None:
    _begin(tape)
    dist.gather_object("alike", [None] * 4 if rank == 2 else None, dst=2)


def _broadcasts_from_each_half(rank: int, tape: Tape | None) -> None:
    if tape is not None:
        tape.did(_begin_again, "gloo", shown="gloo")
    dist.init_process_group("gloo")
    dist.broadcast(torch.ones(3, device="cpu"), group_src=1, group=_halves(tape))


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (_broadcasts_objects, "broadcast_object_list([1], torch.int64, src=2), whose root rank 2"),
        (_scatters_objects, "scatter_object_list([1], torch.int64, src=1), whose root rank 1"),
        (_gathers_objects, "dst=2), whose root rank 2 repeats what rank 0 does, on rank 0"),
        (_broadcasts_from_each_half, "whose root rank 1 repeats what rank 0 does, on rank 0"),
    ],
)
def test_objects_of_a_root_that_repeats_are_refused_by_name(
    kernbench: Kernbench, program: Program, told: str
) -> None:
    report = _refusal(kernbench, program)
    assert told in report
    assert "run without --same-ranks" in report
    assert "KeyError" not in report
    assert "dist." in report  # the user's line


def test_a_root_that_repeats_in_another_group_is_refused(kernbench: Kernbench) -> None:
    with pytest.raises(SpawnException) as caught:
        _times(kernbench, _broadcasts_from_each_half, same=True, witnesses=(1,))
    report = str(caught.value)
    assert "with the root rank 3, which repeats what another does" in report
    assert report.count("dist.broadcast(torch.ones(3") == 2


def _unknown_group(rank: int, tape: Tape | None) -> None:
    del rank
    _begin(tape)
    dist.all_reduce(torch.ones(1, device="cuda"), group=dist.new_group([0, 1, 2, 3]))


def _recorded_before() -> torch.cuda.Event:
    """Returns an event of which no tape knows."""
    host, recorded = current_process().host, torch.cuda.Event()
    tape, host.tape = host.tape, None
    torch.ones(1 << 20, device="cuda")
    recorded.record()
    host.tape = tape
    return recorded


def _lets_a_stream_wait(rank: int, tape: Tape | None) -> None:
    del rank, tape
    side = torch.cuda.Stream()
    _recorded_before().wait(side)
    with torch.cuda.stream(side):
        torch.ones(1, device="cuda")


def _waits_for_it(rank: int, tape: Tape | None) -> None:
    del rank, tape
    _recorded_before().synchronize()


def _one_waits(rank: int, tape: Tape | None) -> None:
    del tape
    torch.ones(1, device="cuda")
    if rank == 3:
        torch.cuda.synchronize()
    torch.ones(1, device="cuda")


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (_unknown_group, "all_reduce in group G1"),
        (_lets_a_stream_wait, "a wait for something that is no command of the rank"),
        (_waits_for_it, "a wait for something that is no command of the rank"),
        (_one_waits, "rank 3 waited for its command 1"),
        (_sends, "send, a message to or from one rank, on each of ranks 0, 3"),
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


def _alive(kind: type) -> int:
    gc.collect()
    return sum(type(one) is kind for one in gc.get_objects())


def test_notes_of_a_long_run_do_not_grow(kernbench: Kernbench) -> None:
    noted: list[int] = []

    def program(rank: int, tape: Tape | None) -> None:
        _begin(tape)
        half = _halves(tape)
        side = torch.cuda.Stream()
        first, last = torch.cuda.Event(), torch.cuda.Event()
        first.record()
        x, y, z = (torch.ones(10, device="cuda") for _ in range(3))
        for number in range(600):
            last.record()
            side.wait_event(last)
            with torch.cuda.stream(side):
                works = [
                    dist.all_reduce(y, group=half, async_op=True),
                    dist.all_reduce(z, async_op=True),
                ]
            for work in works:
                assert work is not None
                work.wait()
            x * 2
            torch.cuda.current_stream().wait_stream(side)
            if number % 3 == 0:
                torch.cuda.synchronize()
            if rank == 3 and number in {299, 599}:
                noted.append(_alive(Event))
        first.wait(side)  # it is known as long as the program has it
        _end(tape, half, None)

    _times(kernbench, program, same=True, record="summary")
    half_way, at_the_end = noted
    assert at_the_end <= 1.05 * half_way
