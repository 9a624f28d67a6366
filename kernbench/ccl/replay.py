"""Times a plan rank by rank, over queues.

The times equal those of a live run to the picosecond, because the same methods book the same
engines in the same order; tests hold the two equal (ADR 0005).
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Final

from kernbench.ccl.costs import Span, StepCosts
from kernbench.ccl.layout import Layout, turns
from kernbench.ccl.plan import NOTHING, Exchange, Plan
from kernbench.hw.pe import PeTimeline, later
from kernbench.hw.queue import Message, Queue, Sender

Wait = Callable[[Callable[[], None]], None]


class Replay:
    """Times a plan rank by rank over queues; other activities may share the links.

    Args:
        plan: The plan.
        layout: Cuts of the buffers.
        costs: Costs of pieces, by rank; all with one size of pieces and one kind of queues.
        queues: Queues by (sender, receiver).
        senders: Makes the sending engine of a rank for shared links; None if no link is shared.
        finish: Called with each rank and the time at which the rank is done, in picoseconds.
        trace: Whether the messages are kept for `spans`.
    """

    def __init__(
        self,
        plan: Plan,
        layout: Layout,
        costs: Sequence[StepCosts],
        queues: dict[tuple[int, int], Queue],
        senders: Callable[[int, PeTimeline[int]], Sender] | None,
        finish: Callable[[int, int], None],
        *,
        trace: bool = False,
    ) -> None:
        self._plan: Final = plan
        self._layout: Final = layout
        self._costs: Final = costs
        self._piece: Final = costs[0].piece
        self._n_slots: Final = costs[0].queue.n_slots
        self._queues: Final = queues
        self._senders: Final = senders
        self._finish: Final = finish
        self._sent: list[tuple[int, Exchange, Message, Message]] = []
        self._trace: Final = trace
        self._known: dict[tuple[int, int, int], list[int]] = {}
        self._ready: deque[Generator[Wait]] = deque()
        self._driving = False

    def start(self, rank: int, time: int) -> None:
        """Lets a rank begin at `time`, in picoseconds. Does not wait."""
        pe = PeTimeline(time, self._costs[rank].issue, later)
        sender = None if self._senders is None else self._senders(rank, pe)
        self._resume(self._run(rank, pe, sender))

    def _resume(self, program: Generator[Wait]) -> None:
        # A loop, not recursion: one message may let a long chain of ranks go on.
        self._ready.append(program)
        if self._driving:
            return
        self._driving = True
        while self._ready:
            program = self._ready.popleft()
            wait = next(program, None)
            if wait is not None:
                wait(partial(self._resume, program))
        self._driving = False

    def _run(self, rank: int, pe: PeTimeline[int], sender: Sender | None) -> Generator[Wait]:
        costs = self._costs[rank]
        for step in self._plan.of(rank):
            out = self._counts(rank, step.send, step.span)
            into = self._counts(rank, step.receive, step.span)
            if step.send != NOTHING and step.to == rank:
                _move(pe, costs, out, step.combine == "reduce")
                pe.fence()
                continue
            sent: list[Message] = []
            queue = self._queues.get((rank, step.to))
            for leaving, arriving in turns(len(out), len(into), self._n_slots):
                if leaving is not None:
                    assert queue is not None
                    yield from self._send(pe, costs, queue, out[leaving], sender, sent)
                if arriving is not None:
                    yield from self._receive(pe, rank, step, into[arriving])
            pe.fence()
            if sent:
                self._sent.append((rank, step, sent[0], sent[-1]))
        while sender is not None and not sender.idle:
            yield sender.call_when_idle
        self._finish(rank, later(pe.clock, pe.send_free))

    def _counts(self, rank: int, chunk: int, span: int) -> list[int]:
        """Returns the elements of each message of some chunks."""
        if chunk == NOTHING:
            return []
        key = (rank if not self._layout.alike else 0, chunk, span)
        counts = self._known.get(key)
        if counts is None:
            pieces = self._layout.pieces(rank, chunk, span, self._piece)
            counts = self._known[key] = [count for _, count in pieces]
        return counts

    def _send(
        self,
        pe: PeTimeline[int],
        costs: StepCosts,
        queue: Queue,
        count: int,
        sender: Sender | None,
        sent: list[Message],
    ) -> Generator[Wait]:
        ready = costs.load(pe, costs.times(count))
        pe.issue()
        while queue.credit is None:
            yield queue.call_on_credit
        queue.take_credit(pe)
        message = Message(count * costs.itemsize)
        queue.post(pe, ready, message, sender)
        if self._trace:
            sent.append(message)

    def _receive(
        self, pe: PeTimeline[int], rank: int, step: Exchange, count: int
    ) -> Generator[Wait]:
        costs = self._costs[rank]
        times = costs.times(count)
        local = costs.load(pe, times) if step.combine == "reduce" else None
        pe.issue()
        queue = self._queues[step.source, rank]
        while (arrival := queue.arrival) is None:
            yield queue.call_on_message
        message = queue.messages.popleft()
        ready = pe.receive(arrival, times.copy, costs.slot_latency)
        message.received = ready
        queue.release(ready)
        costs.store(pe, times, local, ready)

    def spans(self) -> list[Span]:
        """Returns the sent messages; call it once every rank is done."""
        return [
            Span(
                rank,
                step.to,
                sum(self._counts(rank, step.send, step.span)),
                first.sent,
                last.injected,
                first.arrival or 0,
                last.received,
            )
            for rank, step, first, last in self._sent
        ]


def _move(pe: PeTimeline[int], costs: StepCosts, counts: list[int], reduce: bool) -> None:
    for count in counts:
        costs.move(pe, costs.times(count), reduce=reduce)
