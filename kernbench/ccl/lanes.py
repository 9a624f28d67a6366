"""Times all ranks of a plan at once, on arrays over ranks.

The plan's ranks go in step over links of their own. The times equal those of a live run to the
picosecond, because the same methods book the same engines in the same order; tests hold the two
equal (ADR 0005).
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple
from functools import cached_property, partial
from itertools import chain, pairwise, repeat
from typing import Any, Final, TypeVar

import numpy as np

from kernbench.caches import cached
from kernbench.ccl.circles import distinct
from kernbench.ccl.costs import PieceTimes, Span, StepCosts
from kernbench.ccl.layout import Layout
from kernbench.ccl.operations import Ints
from kernbench.ccl.plan import Plan
from kernbench.hw.path import FarHops, FarTimes, HopTimes, Path, stack, transmit
from kernbench.hw.pe import PeTimeline

T = TypeVar("T")
Bools = np.ndarray[Any, np.dtype[np.bool_]]

_Leaving = tuple[PieceTimes, list[HopTimes], FarTimes | None]
"""Times of the pieces that leave: on the engines, on each near hop, on the far hops."""

_FEW: Final = 4
"""Hops of few ranks that are not worth arrays over hops."""


class _Lanes:
    """All ranks in a stage of a plan: a `PeTimeline` of arrays, and the queues to their peers.

    Args:
        plan: The stage.
        layout: Cuts of the buffers.
        costs: Costs of pieces.
        paths: Path from each rank to its receiver; one for all if they take as long.
        pe: Engines of all ranks.
        before: The latest stage with the same receivers, whose queues these are.
        moved: Whether there is one lane, which tells of all: it gets what others get from it.
    """

    def __init__(
        self,
        plan: Plan,
        layout: Layout,
        costs: StepCosts,
        paths: Sequence[Path],
        pe: PeTimeline[Ints],
        before: "_Lanes | None",
        *,
        moved: bool,
    ) -> None:
        self.pe: Final = pe
        self._to: Final = np.zeros_like(plan.to[0]) if moved else plan.to[0]
        self._source: Final = np.zeros_like(self._to) if moved else plan.source[0]
        self._costs: Final = costs
        self._paths: Final = paths
        hops, far = _near(paths)
        none = np.zeros(len(self._to), np.int64)
        self._long: Final = np.array(far, np.int64)
        self._far: Final = FarHops([paths[rank] for rank in far], hops) if far else None
        self._latencies: Final = [
            _alike(
                np.array([path.hops[hop].latency if hop < len(path.hops) else 0 for path in paths])
            )
            for hop in range(hops)
        ]
        self._free: list[Ints] = [none] * (hops - 1)
        self._credits: deque[Ints] = deque([none] * costs.queue.n_slots)
        self._credit_delay: Final = _alike(
            np.array([path.credit_delay(costs.queue.credit_size) for path in paths])
        )
        self._arrivals: deque[Ints] = deque()
        self._first_sent: Ints | None = None
        self._first_arrival = none
        if before is not None:
            self._free, self._credits = before._free, before._credits
            if self._far is not None and before._far is not None:
                self._far.free = before._far.free
        span = int(plan.span[0, 0])
        begins, ends = layout.begins[0], layout.begins[0] + layout.sizes[0]
        self.sizes: Final = ends[span - 1 :] - begins[: len(begins) - span + 1]
        self._messages: Final = layout.messages(0, 0, span, costs.piece)
        used = np.full(len(self.sizes), span == 1)
        if span > 1:
            used[plan.send] = used[plan.receive] = True
        kinds = distinct(self.sizes[used])
        self.even: Final = len(kinds) == 1
        self._kind_of: Final = np.searchsorted(kinds, self.sizes).astype(np.int16)
        self._kinds: Final[list[int]] = kinds.tolist()
        self._full: Final = {count // costs.piece for count in self._kinds}
        self._hops: Final = cached("ccl.hops")(self._stacked)
        self._beyond: Final = cached("ccl.hops")(self._beyond_stacked)

    @cached_property
    def before(self) -> Ints | None:
        """By rank, who sends to it, if nothing but its place tells a rank from that one.

        None if something else does, such as other links, or chunks of another size.
        """
        if not self.even or self._far is not None or len(self._source) == 1:
            return None
        costs, last = self._costs, max(self._messages - 1, 0)
        counts = {self._counts(number)[0] for number in (0, last)}
        delays = [*self._latencies, self._credit_delay, costs.issue, costs.poll_interval]
        delays += [costs.memory_latency, costs.slot_latency]
        for count in counts:
            delays += astuple(costs.times(count))
            delays += chain(*map(astuple, self._hops(count)))
        return self._source if all(map(_is_one, delays)) else None

    def step(self, send: Ints | None, receive: Ints | None, reduce: bool) -> None:
        """Takes all ranks through one step of the plan, in the order of `turns`.

        Args:
            send: Kind of each rank's chunks that leave; None if all chunks are of one size.
            receive: The same of the chunks that arrive.
            reduce: Whether arriving values are added to present ones.
        """
        pieces = self._messages
        ahead = min(self._costs.queue.n_slots - 1, pieces)
        sends, receives = self._among(send), self._among(receive)
        changes = {0, pieces, *self._full, *(count + 1 for count in self._full)}
        edges = sorted(
            edge
            for edge in changes | {change + ahead for change in changes}
            if edge <= pieces + ahead
        )
        for begin, end in pairwise(edges):
            self._run(
                self._leaving(sends, begin) if begin < pieces else None,
                self._engines(receives, begin - ahead) if begin >= ahead else None,
                reduce,
                end - begin,
            )
        self.pe.fence()

    def kinds(self, chunks: Ints) -> Ints | None:
        """Returns the number of the size of each rank's chunks; None if there is but one size."""
        return None if self.even else self._kind_of.take(chunks)

    def _among(self, kinds: Ints | None) -> list[Bools]:
        """Returns the ranks whose chunks have each size but the smallest."""
        if kinds is None:
            return []
        return [np.equal(kinds, kind) for kind in range(1, len(self._kinds))]

    def spans(self, send: Ints) -> list[Span]:
        """Returns the messages of the step just taken."""
        first_sent, self._first_sent = self._first_sent, None
        if first_sent is None:
            return []
        received = self.pe.receive_free + self._costs.slot_latency
        return [
            Span(
                rank,
                to,
                int(self.sizes[send[rank]]),
                int(first_sent[rank]),
                int(self.pe.send_free[rank]),
                int(self._first_arrival[to]),
                int(received[to]),
            )
            for rank, to in enumerate(self._to.tolist())
        ]

    def _run(self, out: _Leaving | None, into: PieceTimes | None, reduce: bool, turns: int) -> None:
        """Takes several turns whose pieces all have the same sizes.

        The recurrences only add and take maxima. Once every time has advanced by the same amount
        over some turns, every further repetition of these turns advances them by that amount again,
        so the repetitions are skipped. In integers this is exact. The number of turns is found as
        Brent finds cycles ("An improved Monte Carlo factorization algorithm", 1980): each mark is
        kept twice as long as the one before.

        Args:
            out: Times of the pieces that leave; None if nothing is sent.
            into: Times of the pieces that arrive; None if nothing is received.
            reduce: Whether pieces that arrive are added.
            turns: Number of turns.
        """
        left, age, patience = turns, 0, 1
        mark: Ints | None = None
        while left:
            if left > age + 1 and out is not None and into is not None:
                state = self.state()
                if mark is not None:
                    by = _advance(mark, state)
                    if by is not None:
                        self.shift(left // age * by)
                        left %= age
                        continue
                if mark is None or age == patience:
                    mark, age, patience = state, 0, 2 * patience
            age += 1
            if out is not None:
                self._send(*out)
            if into is not None:
                self._receive(into, reduce)
            left -= 1

    def _send(self, out: PieceTimes, hops: Sequence[HopTimes], beyond: FarTimes | None) -> None:
        pe, costs = self.pe, self._costs
        ready = costs.load(pe, out)
        pe.issue()
        pe.wait_until(self._polled(self._credits.popleft()))
        onward = None if beyond is None else partial(self._onward, beyond)
        there = transmit(pe, ready, hops, self._latencies, self._free, np.maximum, onward)
        # Slots are in the memory of the receiver.
        self._arrivals.append(there[self._source] + costs.slot_latency + costs.queue.notice)
        if self._first_sent is None:
            self._first_sent = pe.send_free - hops[0].full
            self._first_arrival = self._arrivals[-1]

    def _onward(self, beyond: FarTimes, start: Ints, end: Ints) -> Ints:
        """Takes the messages of long paths over their far hops; returns all arrivals."""
        arrival: Ints = end + self._latencies[-1]
        if self._far is not None:
            arrival[self._long] = self._far.pass_on(beyond, start[self._long], end[self._long])
        return arrival

    def _receive(self, into: PieceTimes, reduce: bool) -> None:
        pe, costs = self.pe, self._costs
        local = costs.load(pe, into) if reduce else None
        pe.issue()
        ready = pe.receive(self._arrivals.popleft(), into.copy, costs.slot_latency)
        self._credits.append(ready[self._to] + self._credit_delay)
        costs.store(pe, into, local, ready)

    def _polled(self, credit: Ints) -> Ints:
        if self._costs.queue.backpressure == "sleep":
            return credit
        interval = self._costs.poll_interval
        late = np.maximum(credit - self.pe.clock, 0)
        rounded: Ints = self.pe.clock + -(-late // interval) * interval
        return rounded

    def _leaving(self, among: list[Bools], number: int) -> _Leaving:
        """Returns the times of a piece that each rank sends; see `_engines`."""
        counts = self._counts(number)
        if len(set(counts)) == 1:
            hops, beyond = self._hops(counts[0]), self._beyond(counts[0])
            return self._costs.times(counts[0]), hops, beyond
        stacked = zip(*map(self._hops, counts), strict=True)
        ways = [_each(HopTimes, among, hop, ("full", "head", "tail")) for hop in stacked]
        far = [times for count in counts if (times := self._beyond(count)) is not None]
        long = [mask[self._long][:, None] for mask in among] if far else []
        beyond = _each(FarTimes, long, far, ("full", "starts", "ends")) if far else None
        return self._engines(among, number), ways, beyond

    def _engines(self, among: list[Bools], number: int) -> PieceTimes:
        """Returns the times of a piece for the engines of each rank.

        Args:
            among: Ranks whose chunks have each size but the smallest.
            number: Number of the piece in its chunk.
        """
        counts = self._counts(number)
        if len(set(counts)) == 1:
            return self._costs.times(counts[0])
        times = [self._costs.times(count) for count in counts]
        return _each(PieceTimes, among, times, ("port", "dma", "copy", "math"))

    def _counts(self, number: int) -> list[int]:
        """Returns the elements of a piece, given its number in its chunk, by size of the chunk."""
        piece = self._costs.piece
        return [min(max(size - number * piece, 0), piece) for size in self._kinds]

    def _stacked(self, count: int) -> list[HopTimes]:
        """Returns the times of a message of `count` elements for each rank, hop by hop."""
        nbytes = self._costs.queue.on_links(count * self._costs.itemsize)
        near = len(self._latencies)
        hops = stack([path.times(nbytes)[:near] for path in self._paths])
        return [HopTimes(*map(_alike, (hop.full, hop.head, hop.tail))) for hop in hops]

    def _beyond_stacked(self, count: int) -> FarTimes | None:
        """Returns the times of a message of `count` elements on the far hops."""
        if self._far is None:
            return None
        return self._far.times(self._costs.queue.on_links(count * self._costs.itemsize))

    def state(self) -> Ints:
        """Returns every time that later steps depend on, each at least the program's clock."""
        # A time before the program's clock acts like the clock, because later steps only take the
        # maximum of both.
        times = np.array([*self.pe.state(), *self._free, *self._credits, *self._arrivals])
        state: Ints = np.maximum(times, self.pe.clock)
        if self._far is not None:
            later = np.maximum(self._far.free, self.pe.clock[self._long, None])
            state = np.concatenate([state.reshape(-1), later.reshape(-1)])
        return state

    def shift(self, by: int) -> None:
        """Moves every time by the same number of picoseconds."""
        self.pe.shift(by)
        self._free = [free + by for free in self._free]
        if self._far is not None:
            self._far.free = self._far.free + by
        self._credits = deque(credit + by for credit in self._credits)
        self._arrivals = deque(arrival + by for arrival in self._arrivals)

    def skip(self, turns: int, by: int) -> None:
        """Moves every time by the same number of picoseconds.

        Args:
            turns: How often each rank gets the times of the rank that sends to it before.
        """
        if turns:
            self._turn(turns)
        self.shift(by)

    def _turn(self, times: int) -> None:
        before, moved = self._source, np.arange(len(self._source))
        while times:
            if times & 1:
                moved = before[moved]
            before, times = before[before], times >> 1
        self.pe.take(moved)
        self._free = [free[moved] for free in self._free]
        self._credits = deque(credit[moved] for credit in self._credits)
        self._arrivals = deque(arrival[moved] for arrival in self._arrivals)


def _near(paths: Sequence[Path]) -> tuple[int, list[int]]:
    """Returns how many hops are timed one by one, and the ranks whose paths have more hops.

    A hop of many ranks is one step on arrays over ranks; the hops of few ranks, such as of the one
    that closes a ring the long way round, are one step on arrays over hops.
    """
    lengths = np.array([len(path.hops) for path in paths])
    hops = int(np.sort(lengths)[(3 * len(paths) - 1) // 4])
    far = np.flatnonzero(lengths > hops).tolist()
    return (int(lengths.max()), []) if lengths.max() <= hops + _FEW else (hops, far)


def _alike(times: Ints) -> Ints | int:
    """Returns a number in place of an array that holds no other."""
    first = int(times[0])
    return first if (times == first).all() else times


def _is_one(times: Ints | int) -> bool:
    """Returns whether times are a number, or hold no other than their first."""
    return not isinstance(times, np.ndarray) or bool((times == times[0]).all())


def _each(
    make: Callable[..., T], among: Sequence[Bools], times: Sequence[T], names: Sequence[str]
) -> T:
    """Returns the times of each rank, given those of each kind of rank.

    Args:
        make: Makes times from their parts.
        among: The ranks of each kind but the first.
        times: Times of each kind.
        names: Names of the parts.
    """
    parts = []
    for name in names:
        chosen, *others = (getattr(one, name) for one in times)
        for mask, value in zip(among, others, strict=True):
            if isinstance(chosen, np.ndarray) or isinstance(value, np.ndarray) or value != chosen:
                chosen = np.where(mask, value, chosen)
        parts.append(chosen)
    return make(*parts)


def _advance(before: Ints, after: Ints) -> int | None:
    """Returns by how much every time has advanced; None if the amounts differ."""
    advance = after - before
    by = int(advance.flat[0])
    return by if (advance == by).all() else None


def paths_by(path: Callable[[int, int], Path]) -> Callable[[Ints], Sequence[Path]]:
    """Returns what `vectorised` takes, given the path between two ranks."""
    return lambda to: [path(rank, other) for rank, other in enumerate(to.tolist())]


def vectorised(
    plan: Plan,
    layout: Layout,
    costs: StepCosts,
    paths: Callable[[Ints], Sequence[Path]],
    starts: Sequence[int],
    *,
    trace: bool = False,
    moved: bool = False,
) -> tuple[list[int], list[Span]]:
    """Times a plan in stages whose ranks go in step over links that nobody else uses.

    Args:
        layout: Cuts of the buffers: the same on all ranks, into chunks of one nominal size.
        costs: Costs of pieces; arrays over ranks if PEs differ.
        paths: Returns the path from each rank to its receiver, given the receivers; one for all if
            they take as long.
        starts: When each rank begins, in picoseconds.
        trace: Whether to return the messages.
        moved: Whether the plan and all else is that of one rank, which tells of all: it gets what
            others get from it.

    Returns:
        When each rank is done, in picoseconds, and the messages; no messages without `trace`.
    """
    pe = PeTimeline(np.array(starts, np.int64), costs.issue, np.maximum)
    spans: list[Span] = []
    to: dict[bytes, _Lanes] = {}
    for stage in plan.stages:
        receivers = stage.to[0]
        key = receivers.tobytes()
        lanes = to[key] = _Lanes(
            stage, layout, costs, paths(receivers), pe, to.get(key), moved=moved
        )
        _stage(stage, lanes, spans if trace else None)
    return np.maximum(pe.clock, pe.send_free).tolist(), spans


def _stage(plan: Plan, lanes: _Lanes, spans: list[Span] | None) -> None:
    """Takes all ranks through a stage of a plan, and adds its messages to the others.

    A step that moves every time by one amount does so again, as in `_Lanes._run`. So does one after
    which each rank is where the rank that sends to it was before, by one amount later, if nothing
    tells the two apart: what a late rank has put off goes round the ring, a rank a step.
    """
    kind, by, pending = b"", None, 0
    clock: Ints = lanes.pe.clock
    state: Ints | None = None
    turning, turns = False, 0
    before = lanes.before if spans is None else None
    # If all chunks have one size, it does not matter which ones they are.
    chunks: Iterable[Any] = zip(plan.send, plan.receive, strict=True)
    if lanes.even and spans is None:
        chunks = repeat((plan.send[0], plan.receive[0]))
    for (send, receive), reduce in zip(chunks, plan.reduce[:, 0].tolist(), strict=False):
        earlier = kind
        kind = bytes((reduce,))
        leaving, arriving = lanes.kinds(send), lanes.kinds(receive)
        if leaving is not None and arriving is not None:
            kind += leaving.tobytes() + arriving.tobytes()
        if kind == earlier and by is not None and spans is None:
            pending, turns = pending + by, turns + turning
            continue
        if pending:
            lanes.skip(turns, pending)
            pending, turns, clock, state = 0, 0, lanes.pe.clock, None
        lanes.step(leaving, arriving, bool(reduce))
        if spans is not None:
            spans += lanes.spans(send)
        # If the clocks alone did not advance by one amount, the whole state did not either.
        last, clock = clock, lanes.pe.clock
        turning, by = False, _advance(last, clock)
        if by is None and before is not None:
            turning, by = True, _advance(last[before], clock)
        if by is None:
            state = None
            continue
        old, state = state, lanes.state()
        if old is not None and turning:
            old = old[:, before]
        by = None if old is None else _advance(old, state)
    if pending:
        lanes.skip(turns, pending)
