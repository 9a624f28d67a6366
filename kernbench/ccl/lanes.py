"""Times all ranks of a plan at once, on arrays over ranks.

The plan's ranks go in step over links of their own. The times equal those of a live run to the
picosecond, because the same methods book the same engines in the same order; tests hold the two
equal (ADR 0005).
"""

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from kernbench.caches import cached
from kernbench.ccl.costs import PieceTimes, Span, StepCosts
from kernbench.ccl.layout import Layout
from kernbench.ccl.operations import Ints
from kernbench.ccl.plan import Plan, distinct
from kernbench.hw.path import HopTimes, Path, stack, transmit
from kernbench.hw.pe import PeTimeline


class _Lanes:
    """All ranks of a plan in step: a `PeTimeline` of arrays, and their queues."""

    def __init__(
        self, plan: Plan, layout: Layout, costs: StepCosts, paths: Sequence[Path], starts: Ints
    ) -> None:
        self.pe: Final[PeTimeline[Ints]] = PeTimeline(starts, costs.issue, np.maximum)
        self._to: Final = plan.to[0]
        self._source: Final = plan.source[0]
        self._costs: Final = costs
        self._paths: Final = paths
        hops = max(len(path.hops) for path in paths)
        none = np.zeros(len(paths), np.int64)
        self._latencies: Final = [
            np.array([path.hops[hop].latency if hop < len(path.hops) else 0 for path in paths])
            for hop in range(hops)
        ]
        self._free: list[Ints] = [none] * (hops - 1)
        self._credits: deque[Ints] = deque([none] * costs.queue.n_slots)
        self._credit_delay: Final = np.array(
            [path.credit_delay(costs.queue.credit_size) for path in paths]
        )
        self._arrivals: deque[Ints] = deque()
        self._first_sent: Ints | None = None
        self._first_arrival = none
        self.sizes: Final = layout.sizes[0]
        self.even: Final = bool((self.sizes == self.sizes[0]).all())
        self._messages: Final = layout.messages(0, 0, 1, costs.piece)
        self._full: Final = {count // costs.piece for count in self.sizes.tolist()}
        self._hops: Final = cached("ccl.hops")(self._stacked)

    def step(self, send: Ints, receive: Ints, reduce: bool) -> None:
        """Takes all ranks through one step of the plan, in the order of `turns`."""
        size = self._costs.piece
        pieces = self._messages
        ahead = min(self._costs.queue.n_slots - 1, pieces)
        sends: Ints | int
        receives: Ints | int
        if self.even:
            sends = receives = int(self.sizes[0])
        else:
            sends, receives = self.sizes[send], self.sizes[receive]
        changes = {0, pieces, *self._full, *(count + 1 for count in self._full)}
        edges = sorted(
            edge
            for edge in changes | {change + ahead for change in changes}
            if edge <= pieces + ahead
        )
        for begin, end in pairwise(edges):
            self._run(
                sends - begin * size if begin < pieces else None,
                receives - (begin - ahead) * size if begin >= ahead else None,
                reduce,
                end - begin,
            )
        self.pe.fence()

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

    def _run(
        self, sends: Ints | int | None, receives: Ints | int | None, reduce: bool, turns: int
    ) -> None:
        """Takes several turns whose pieces all have the same sizes.

        The recurrences only add and take maxima. Once every time has advanced by the same amount
        over some turns, every further repetition of these turns advances them by that amount again,
        so the repetitions are skipped. In integers this is exact. The number of turns is found as
        Brent finds cycles ("An improved Monte Carlo factorization algorithm", 1980): each mark is
        kept twice as long as the one before.

        Args:
            sends: Elements left to send at the first turn, for each rank; None if nothing is sent.
            receives: Elements left to receive at the first turn, for each rank; None if nothing is
                received.
            reduce: Whether pieces that arrive are added.
            turns: Number of turns.
        """
        out = into = None
        if sends is not None:
            out = self._costs_of(sends)
        if receives is not None:
            into, _ = self._costs_of(receives)
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

    def _send(self, out: PieceTimes, hops: Sequence[HopTimes]) -> None:
        pe, costs = self.pe, self._costs
        ready = costs.load(pe, out)
        pe.issue()
        pe.wait_until(self._polled(self._credits.popleft()))
        there = transmit(pe, ready, hops, self._latencies, self._free, np.maximum)
        # Slots are in the memory of the receiver.
        self._arrivals.append(there[self._source] + costs.slot_latency + costs.queue.notice)
        if self._first_sent is None:
            self._first_sent = pe.send_free - hops[0].full
            self._first_arrival = self._arrivals[-1]

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

    def _costs_of(self, left: Ints | int) -> tuple[PieceTimes, list[HopTimes]]:
        """Returns the times of the next piece for each rank, given the elements left to it."""
        if isinstance(left, int):
            count = min(max(left, 0), self._costs.piece)
            return self._costs.times(count), self._hops(count)
        counts = self._counts(left)
        return self._engine_times(*counts), self._hop_times(*counts)

    def _counts(self, left: Ints) -> tuple[Ints, list[int]]:
        """Returns the elements of each rank's next piece, and the different numbers among them."""
        counts = np.clip(left, 0, self._costs.piece)
        return counts, distinct(counts).tolist()

    def _engine_times(self, counts: Ints, kinds: list[int]) -> PieceTimes:
        times = {kind: self._costs.times(kind) for kind in kinds}
        return PieceTimes(
            _by_kind(counts, {kind: piece.port for kind, piece in times.items()}),
            _by_kind(counts, {kind: piece.dma for kind, piece in times.items()}),
            _by_kind(counts, {kind: piece.copy for kind, piece in times.items()}),
            _by_kind(counts, {kind: piece.math for kind, piece in times.items()}),
        )

    def _hop_times(self, counts: Ints, kinds: list[int]) -> list[HopTimes]:
        stacked = {kind: self._hops(kind) for kind in kinds}
        return [
            HopTimes(
                _by_kind(counts, {kind: hops[hop].full for kind, hops in stacked.items()}),
                _by_kind(counts, {kind: hops[hop].head for kind, hops in stacked.items()}),
                _by_kind(counts, {kind: hops[hop].tail for kind, hops in stacked.items()}),
            )
            for hop in range(len(self._latencies))
        ]

    def _stacked(self, count: int) -> list[HopTimes]:
        """Returns the times of a message of `count` elements for each rank, hop by hop."""
        nbytes = self._costs.queue.on_links(count * self._costs.itemsize)
        return stack([path.times(nbytes) for path in self._paths])

    def state(self) -> Ints:
        """Returns every time that later steps depend on, each at least the program's clock."""
        # A time before the program's clock acts like the clock, because later steps only take the
        # maximum of both.
        times = np.array([*self.pe.state(), *self._free, *self._credits, *self._arrivals])
        state: Ints = np.maximum(times, self.pe.clock)
        return state

    def shift(self, by: int) -> None:
        """Moves every time by the same number of picoseconds."""
        self.pe.shift(by)
        self._free = [free + by for free in self._free]
        self._credits = deque(credit + by for credit in self._credits)
        self._arrivals = deque(arrival + by for arrival in self._arrivals)


def _by_kind(counts: Ints, values: Mapping[int, Any]) -> Any:
    """Returns the value of each count; ranks have few different counts."""
    (_, chosen), *others = values.items()
    for count, value in others:
        chosen = np.where(counts == count, value, chosen)
    return chosen


def _advance(before: Ints, after: Ints) -> int | None:
    """Returns by how much every time has advanced; None if the amounts differ."""
    advance = after - before
    by = int(advance[0, 0])
    return by if (advance == by).all() else None


def vectorised(
    plan: Plan,
    layout: Layout,
    costs: StepCosts,
    paths: Sequence[Path],
    starts: Sequence[int],
    *,
    trace: bool = False,
) -> tuple[list[int], list[Span]]:
    """Times a plan whose ranks go in step over links that nobody else uses.

    Args:
        plan: The plan.
        layout: Cuts of the buffers: the same on all ranks, into chunks of one nominal size.
        costs: Costs of pieces; arrays over ranks if PEs differ.
        paths: Path from each rank to its receiver.
        starts: When each rank begins, in picoseconds.
        trace: Whether to return the messages.

    Returns:
        When each rank is done, in picoseconds, and the messages; no messages without `trace`.
    """
    lanes = _Lanes(plan, layout, costs, paths, np.array(starts, np.int64))
    spans: list[Span] = []
    kind, by, pending = b"", None, 0
    clock: Ints = lanes.pe.clock
    state: Ints | None = None
    for send, receive, reduce in zip(plan.send, plan.receive, plan.reduce[:, 0], strict=True):
        before = kind
        kind = bytes(reduce)
        if not lanes.even:
            kind += lanes.sizes[[send, receive]].tobytes()
        if kind == before and by is not None and not trace:
            # As in `_Lanes._run`: a step that moved every time by one amount does so again.
            pending += by
            continue
        if pending:
            lanes.shift(pending)
            pending, clock, state = 0, lanes.pe.clock, None
        lanes.step(send, receive, bool(reduce))
        if trace:
            spans += lanes.spans(send)
        # If the clocks alone did not advance by one amount, the whole state did not either.
        last, clock = clock, lanes.pe.clock
        by = _advance(last[None], clock[None])
        if by is None:
            state = None
            continue
        old, state = state, lanes.state()
        by = None if old is None else _advance(old, state)
    ends = np.maximum(lanes.pe.clock, lanes.pe.send_free) + pending
    return ends.tolist(), spans
