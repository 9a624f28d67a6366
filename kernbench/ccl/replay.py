"""When each rank of a plan is done, rank by rank over queues.

Equal to the live run to the picosecond, because it books the same engines with the same methods in
the same order; tests hold it to that (ADR 0005).
"""

from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import Final

from kernbench.ccl.costs import Span, StepCosts
from kernbench.ccl.plan import NOTHING, Chunks, Exchange, Plan
from kernbench.hw.pe import PeTimeline, later
from kernbench.hw.queue import Message, Queue, Sender

Wait = Callable[[Callable[[], None]], None]


class Replay:
    """Times a plan rank by rank over queues; the links may be shared with anybody.

    Args:
        plan: What to time.
        chunks: How the buffer is cut.
        costs: Costs of its pieces.
        queues: By (sender, receiver).
        senders: Makes each rank's sending engine when links are shared; None when no link is.
        finish: Called with each rank and the time at which it is done.
        trace: Whether `spans` will be asked for.
    """

    def __init__(
        self,
        plan: Plan,
        chunks: Chunks,
        costs: StepCosts,
        queues: dict[tuple[int, int], Queue],
        senders: Callable[[int, PeTimeline[int]], Sender] | None,
        finish: Callable[[int, int], None],
        *,
        trace: bool = False,
    ) -> None:
        self._plan: Final = plan
        self._chunks: Final = chunks
        self._costs: Final = costs
        self._queues: Final = queues
        self._senders: Final = senders
        self._finish: Final = finish
        self._counts: Final = [
            [
                chunks.piece(chunk, piece, costs.piece)[1]
                for piece in range(chunks.pieces(costs.piece))
            ]
            for chunk in range(chunks.parts)
        ]
        self._sent: list[tuple[int, Exchange, Message, Message]] = []
        self._trace: Final = trace
        self._ready: deque[Generator[Wait]] = deque()
        self._driving = False

    def start(self, rank: int, time: int) -> None:
        """Lets a rank begin at `time`."""
        pe = PeTimeline(time, self._costs.pe.pe.issue, later)
        sender = None if self._senders is None else self._senders(rank, pe)
        self._resume(self._run(rank, pe, sender))

    def _resume(self, program: Generator[Wait]) -> None:
        # A loop, not recursion: a message that is known may set off any number of ranks.
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
        turns = list(self._chunks.turns(self._costs.piece, self._costs.queue.n_slots))
        for step in self._plan.of(rank):
            sent: list[Message] = []
            for leaving, arriving in turns:
                if step.send != NOTHING and leaving is not None:
                    yield from self._send(pe, rank, step, leaving, sender, sent)
                if step.receive != NOTHING and arriving is not None:
                    yield from self._receive(pe, rank, step, arriving)
            pe.fence()
            if sent:
                self._sent.append((rank, step, sent[0], sent[-1]))
        while sender is not None and not sender.idle:
            yield sender.call_when_idle
        self._finish(rank, later(pe.clock, pe.send_free))

    def _send(
        self,
        pe: PeTimeline[int],
        rank: int,
        step: Exchange,
        piece: int,
        sender: Sender | None,
        sent: list[Message],
    ) -> Generator[Wait]:
        costs = self._costs
        count = self._counts[step.send][piece]
        ready = costs.load(pe, costs.times(count))
        pe.issue()
        queue = self._queues[rank, step.to]
        while queue.credit is None:
            yield queue.call_on_credit
        queue.take_credit(pe)
        message = Message(count * costs.itemsize)
        queue.post(pe, ready, message, sender)
        if self._trace:
            sent.append(message)

    def _receive(
        self, pe: PeTimeline[int], rank: int, step: Exchange, piece: int
    ) -> Generator[Wait]:
        costs = self._costs
        times = costs.times(self._counts[step.receive][piece])
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
        """Returns what was sent, once every rank is done."""
        return [
            Span(
                rank,
                step.to,
                self._chunks.size(step.send),
                first.sent,
                last.injected,
                first.arrival or 0,
                last.received,
            )
            for rank, step, first, last in self._sent
        ]
