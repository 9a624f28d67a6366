"""Drawn programs: each is timed as if every rank had run it, if some of the ranks repeat it."""

from collections.abc import Sequence
from typing import Any

from examples import examples
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

import kernbench
import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.distributed import group_lifetime
from kernbench.following.followers import Follower
from kernbench.following.same_ranks import SameRanks
from kernbench.following.tapes import WORLD, Tape
from kernbench.process.process import current_process
from kernbench.runtime_api import ranges

RANKS = 4
STREAMS = 3
EVENTS = 2

Step = tuple[Any, ...]

_STREAM = st.integers(0, STREAMS - 1)
_EVENT = st.integers(0, EVENTS - 1)
_GROUP = st.sampled_from(["world", "rows", "columns"])
_SIZE = st.sampled_from([4, 1000, 1 << 16, 1 << 20])
_STEPS = st.one_of(
    st.tuples(st.just("compute"), _STREAM, _SIZE),
    st.tuples(st.just("in place"), _STREAM),
    st.tuples(st.just("record"), _EVENT, _STREAM),
    st.tuples(st.just("wait event"), _EVENT, _STREAM),
    st.tuples(st.just("wait stream"), _STREAM, _STREAM),
    st.tuples(st.just("host waits"), st.sampled_from(["event", "stream", "device"]), _EVENT),
    st.tuples(
        st.just("collective"),
        st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier"]),
        _GROUP,
        _STREAM,
        _SIZE,
    ),
    st.tuples(st.just("begin"), st.sampled_from(["all_reduce", "gather"]), _GROUP, _STREAM, _SIZE),
    st.tuples(st.just("end"), _STREAM),
    st.tuples(st.just("prefetch"), st.integers(1, 4), _GROUP, _SIZE),
    st.tuples(st.just("range")),
    st.tuples(st.just("new group")),
)


class _Program:
    """Runs drawn steps in a rank; with a tape, as the bridge notes what it does itself."""

    def __init__(self, rank: int, tape: Tape | None) -> None:
        self._tape = tape
        self._rank = rank
        self._did(_begin, shown="nccl")
        dist.init_process_group("nccl")
        self._groups = {
            "world": None,
            "rows": self._own([[0, 1], [2, 3]]),
            "columns": self._own([[0, 2], [1, 3]]),
        }
        others = [torch.cuda.Stream() for _ in range(STREAMS - 1)]
        self._streams = [torch.cuda.current_stream(), *others]
        self._events = [torch.cuda.Event() for _ in range(EVENTS)]
        self._own_of = []
        for stream in self._streams:
            with torch.cuda.stream(stream):
                self._own_of.append(torch.ones(4096, device="cuda"))
        self._works: list[Any] = []

    def _did(self, function: Any, *args: Any, shown: Any) -> None:
        if self._tape is not None:
            self._tape.did(function, *args, shown=shown)

    def _own(self, members: Sequence[list[int]]) -> Any:
        """Makes all groups of a dimension; returns the caller's."""
        make = dist.new_group if self._tape is None else self._tape.new_group
        made = [make(ranks) for ranks in members]
        return next(
            group for group, ranks in zip(made, members, strict=True) if self._rank in ranks
        )

    def run(self, steps: Sequence[Step]) -> None:
        for name, *rest in steps:
            getattr(self, f"_{name.replace(' ', '_')}")(*rest)
        while self._works:
            self._end(0)
        for key in ("rows", "columns", "world"):
            self._destroy(self._groups[key])

    def _destroy(self, group: Any) -> None:
        if self._tape is not None:
            batch = self._tape.batch_of(group)
            self._tape.did(_end_again, batch, shown=batch)
        dist.destroy_process_group(group)

    def _compute(self, stream: int, size: int) -> None:
        with torch.cuda.stream(self._streams[stream]):
            (torch.ones(size, device="cuda") * 2).view(2, -1).sum()

    def _in_place(self, stream: int) -> None:
        with torch.cuda.stream(self._streams[stream]):
            self._own_of[stream][:100].add_(1)

    def _record(self, event: int, stream: int) -> None:
        self._events[event].record(self._streams[stream])

    def _wait_event(self, event: int, stream: int) -> None:
        self._streams[stream].wait_event(self._events[event])

    def _wait_stream(self, stream: int, other: int) -> None:
        self._streams[stream].wait_stream(self._streams[other])

    def _host_waits(self, what: str, number: int) -> None:
        if what == "event":
            self._events[number].synchronize()
        elif what == "stream":
            self._streams[number].synchronize()
        else:
            torch.cuda.synchronize()

    def _collective(self, name: str, group: str, stream: int, size: int) -> None:
        with torch.cuda.stream(self._streams[stream]):
            self._call(name, self._groups[group], size, async_op=False)

    def _begin(self, name: str, group: str, stream: int, size: int) -> None:
        with torch.cuda.stream(self._streams[stream]):
            called = "all_reduce" if name == "all_reduce" else "all_gather"
            self._works.append(self._call(called, self._groups[group], size, async_op=True))

    def _end(self, stream: int) -> None:
        if self._works:
            with torch.cuda.stream(self._streams[stream]):
                work, tensors = self._works.pop(0)
                work.wait()
                tensors[-1] * 2

    def _call(self, name: str, group: Any, size: int, *, async_op: bool) -> Any:
        x, ranks = torch.ones(size, device="cuda"), dist.get_world_size(group)
        if name == "all_reduce":
            return dist.all_reduce(x, group=group, async_op=async_op), (x,)
        if name == "broadcast":
            return dist.broadcast(x, group_src=0, group=group), (x,)
        if name == "barrier":
            return dist.barrier(group), ()
        whole = torch.empty(size * ranks, device="cuda")
        if name == "all_gather":
            work = dist.all_gather_into_tensor(whole, x, group=group, async_op=async_op)
            return work, (x, whole)
        whole.fill_(1)
        return dist.reduce_scatter_tensor(x, whole, group=group), (x, whole)

    def _prefetch(self, layers: int, group: str, size: int) -> None:
        """Gathers the next layer while this one computes, as FSDP does, and reduces behind it."""
        key = self._groups[group]
        gathered = [self._call("all_gather", key, size, async_op=True)]
        reduced = []
        for layer in range(layers):
            if layer + 1 < layers:
                gathered.append(self._call("all_gather", key, size, async_op=True))
            work, (_, whole) = gathered[layer]
            work.wait()
            gradient = whole * 2
            part = torch.empty(size, device="cuda")
            work = dist.reduce_scatter_tensor(part, gradient, group=key, async_op=True)
            reduced.append((work, part, gradient))
        for work, part, _ in reduced:
            work.wait()
            part.mul_(0.5)

    def _range(self) -> None:
        process = current_process()
        ranges.enter(process, "drawn")
        self._compute(0, 4)
        ranges.leave(process)

    def _new_group(self) -> None:
        group = self._own([[0, 3], [1, 2]])
        self._call("all_reduce", group, 1000, async_op=False)
        self._destroy(group)


def _begin(follower: Any) -> None:
    del follower
    group_lifetime.init_process_group("nccl")


def _end_again(follower: Follower, batch: int) -> None:
    group_lifetime.destroy_process_group(None if batch == WORLD else follower.group(batch))


def _until_last_block(changes: Sequence[Any], sip: int) -> list[tuple[int, int]]:
    """Returns changes of a device's memory; what is given back after the last line is nobody's."""
    own = [(change.time, change.nbytes) for change in changes if change.sip == sip]
    last = max(number for number, (_, nbytes) in enumerate(own) if nbytes > 0)
    return own[: last + 1]


def _run(steps: Sequence[Step], witnesses: Sequence[int] | None) -> Any:
    """Returns all that was noted of a run in all ranks, or in rank 0 and witnesses."""
    runs = SameRanks(RANKS, witnesses)

    def worker(rank: int) -> None:
        process = current_process()
        process.engine.loop.clamps_late = True  # as the bridge lets it
        if witnesses is None:
            _Program(rank, None).run(steps)
        elif rank in runs.followers:
            runs.follow(process)
        else:
            with runs.noting(process, process.ctx.devices[rank]) as tape:
                _Program(rank, tape).run(steps)

    ctx = kernbench.spawn(worker, nprocs=RANKS, data=False, record="full")
    log = ctx.engine.op_log
    records = sorted(
        repr((one.name, one.rank, one.track, one.issued, one.start, one.end, one.args, one.ranges))
        for one in log.records
    )
    memory = [_until_last_block(log.memory, sip) for sip in range(RANKS)]
    clocks = [process.host.clock for process in ctx.processes]
    late = ctx.engine.loop.late_calls
    return late, (records, sorted(map(repr, log.waits)), clocks, memory, log.totals)


# A group's last collective, whose time the leader knew before its host was there.
@example(steps=[("begin", "gather", "columns", 2, 1 << 16), ("new group",)], witnesses=(3, 2, 1))
@settings(max_examples=examples(30))
@given(
    steps=st.lists(_STEPS, min_size=1, max_size=25),
    witnesses=st.sampled_from([(), (3,), (1,), (2, 1), (3, 2, 1)]),
)
def test_a_drawn_program_is_timed_as_if_every_rank_had_run_it(
    steps: list[Step], witnesses: tuple[int, ...]
) -> None:
    never, each = _run(steps, None)
    assert never == 0
    late, same = _run(steps, witnesses)
    event("late" if late else "in time")
    if not late:
        for mine, others in zip(same, each, strict=True):
            assert mine == others


def test_a_follower_that_comes_too_late_is_counted() -> None:
    steps = [("begin", "all_reduce", "world", 1, 1 << 20), ("new group",), ("range",)]
    assert _run(steps, None)[0] == 0
    assert _run(steps, (1,))[0] > 0
