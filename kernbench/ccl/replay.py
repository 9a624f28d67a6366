"""Times a plan rank by rank, over queues.

The times equal those of a live run to the picosecond, because the same methods book the same
engines in the same order; tests hold the two equal (ADR 0005).
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Final

import numpy as np

from kernbench.ccl.costs import Span, StepCosts
from kernbench.ccl.cycles import LONG, MANY, Cycles, Walk
from kernbench.ccl.layout import Layout
from kernbench.ccl.plan import NOTHING, Exchange, Plan
from kernbench.ccl.runs import Run, Runs
from kernbench.des import Owner
from kernbench.hw.pe import PeTimeline, later
from kernbench.hw.queue import Message, Queue, Sender

Wait = Callable[[Callable[[], None]], None]

NEVER: Final = 1 << 62
"""More turns than there are."""


class Replay:
    """Times a plan rank by rank over queues; other activities may share the links.

    Args:
        layout: Cuts of the buffers.
        costs: Costs of pieces, by rank; all with one size of pieces and one kind of queues.
        queues: Queues by (sender, receiver).
        senders: Makes the sending engine of a rank for shared links; None if no link is shared.
        finish: Called with each rank and the time at which the rank is done, in picoseconds.
        runs: Turns of the exchanges, to keep them for the next replay; None to find them anew.
        cycles: Returns what skips repetitions, called if so much is sent that these are looked for;
            None to replay every message.
        trace: Whether the messages are kept for `spans`.
        spend: Called with turns that were replayed without a loop, which would count its calls.

    Attributes:
        queues: Queues by (sender, receiver).
        walks: Ranks that are under way.
        busy: Queues that are used now, or were used lately.
        trace: Whether the messages are kept for `spans`.
        ready: Ranks that can go on.
        watched: Whether so much is sent that repetitions are looked for.
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
        runs: Runs | None = None,
        cycles: Callable[[], Cycles] | None = None,
        trace: bool = False,
        spend: Callable[[int], None] | None = None,
    ) -> None:
        self._plan: Final = plan
        self._spend: Final = spend
        self._layout: Final = layout
        self._costs: Final = costs
        self._piece: Final = costs[0].piece
        self.queues: Final = queues
        self._senders: Final = senders
        self._finish: Final = finish
        most = layout.most_messages(plan.widest, self._piece)
        self.watched: Final = cycles is not None and (most >= LONG or most * len(plan.send) >= MANY)
        self._cycles: Final = cycles() if cycles is not None and self.watched else None
        self._sent: list[tuple[int, Exchange, Message, Message]] = []
        self.trace: Final = trace
        self._runs: Final = (
            Runs(layout, self._piece, costs[0].queue.n_slots) if runs is None else runs
        )
        self.walks: Final[dict[int, Walk]] = {}
        self.busy: Final[dict[tuple[int, int], Queue]] = {}
        self.ready: Final[deque[Walk]] = deque()
        self._driving = False

    def start(self, rank: int, time: int) -> None:
        """Lets a rank begin at `time`, in picoseconds. Does not wait."""
        pe = PeTimeline(time, self._costs[rank].issue, later)
        sender = None if self._senders is None else self._senders(rank, pe)
        walk = self.walks[rank] = Walk(rank, pe, sender, self._plan.of(rank))
        walk.program = self._run(walk)
        self._resume(walk)

    def _resume(self, walk: Walk) -> None:
        # A loop, not recursion: one message may let a long chain of ranks go on.
        self.ready.append(walk)
        if self._driving:
            return
        self._driving = True
        cycles = self._cycles
        while self.ready:
            walk = self.ready.popleft()
            wait = next(walk.program, None)
            if wait is not None:
                wait(partial(self._resume, walk))
            if cycles is not None and cycles.due:
                cycles.look(self)
        self._driving = False

    def _run(self, walk: Walk) -> Generator[Wait]:
        rank, pe, steps, sender = walk.rank, walk.pe, walk.steps, walk.sender
        costs, piece = self._costs[rank], self._piece
        times_of, issue, cycles = costs.times, pe.issue, self._cycles
        while walk.step < len(steps):
            step = steps[walk.step]
            if step.send != NOTHING and step.to == rank:
                for count, messages in self._layout.sizes_of(rank, step.send, step.span, piece):
                    for _ in range(messages):
                        costs.move(pe, times_of(count), reduce=step.combine == "reduce")
                pe.fence()
                walk.step += 1
                continue
            queue, source = self._between(rank, step)
            reduce = step.combine == "reduce"
            walk.first = walk.last = None
            replayed = 0
            parts = self.runs_of(rank, step)
            least = NEVER if cycles is None else self._least(parts, len(steps))
            for walk.run, (out, into, turns) in enumerate(parts):
                walk.turns = walk.left = turns
                watch = cycles if turns >= least else None
                while walk.left:
                    if watch is not None:
                        watch.turn(walk)
                    walk.left -= 1
                    replayed += 1
                    if out is not None:
                        walk.ready = costs.load(pe, times_of(out))
                        issue()
                        while queue.credit is None:
                            walk.waits = 1
                            yield queue.call_on_credit
                        queue.take_credit(pe)
                        message = Message(out * costs.itemsize)
                        queue.post(pe, walk.ready, message, sender)
                        walk.last = message
                        if walk.first is None:
                            walk.first = message
                    if into is not None:
                        times = times_of(into)
                        walk.local = costs.load(pe, times) if reduce else None
                        issue()
                        while (arrival := source.arrival) is None:
                            walk.waits = 2
                            yield source.call_on_message
                        message = source.messages.popleft()
                        there = pe.receive(arrival, times.copy, costs.slot_latency)
                        message.received = there
                        source.release(there)
                        costs.store(pe, times, walk.local, there)
            pe.fence()
            if self._spend is not None:
                self._spend(replayed)
            if self.trace and walk.first is not None and walk.last is not None:
                self._sent.append((rank, step, walk.first, walk.last))
            walk.step += 1
        while sender is not None and not sender.idle:
            walk.waits = 3
            yield sender.call_when_idle
        del self.walks[rank]
        self._finish(rank, later(pe.clock, pe.send_free))

    def leave(self) -> None:
        """Ends the search for repetitions, which refers back to the replay."""
        if self._cycles is not None:
            self._cycles.leave(self)

    def _between(self, rank: int, step: Exchange) -> tuple[Queue, Queue]:
        """Returns the queue to the receiver and the queue from the sender, or one for both."""
        there, here = (rank, step.to), (step.source, rank)
        if step.send == NOTHING:
            there = here
        elif step.receive == NOTHING:
            here = there
        queues = self.queues
        if self.watched:
            self.busy[there], self.busy[here] = queues[there], queues[here]
        return queues[there], queues[here]

    def _least(self, parts: Sequence[Run], steps: int) -> int:
        """Returns how many turns a run of an exchange has at least if repetitions are looked for.

        Args:
            parts: All runs of the exchange.
            steps: Exchanges of the rank.
        """
        longest = max((turns for _, _, turns in parts), default=0)
        return min(LONG, longest) if longest * steps >= MANY else LONG

    def runs_of(self, rank: int, step: Exchange) -> tuple[Run, ...]:
        """Returns the turns of an exchange of a rank."""
        return self._runs.of(rank, step.send, step.receive, step.span)

    def repeated(self, rank: int, before: int, now: int) -> int:
        """Returns how many exchanges of a rank, from one on, are as those from an earlier one on.

        Args:
            before: Number of the earlier one.
            now: Number of the later one.
        """
        columns = self._plan.columns(rank)
        later = columns.at(slice(now, None))
        count = len(later.send)
        then = columns.at(slice(before, before + count))
        other = (then.to != later.to) | (then.source != later.source)
        other |= then.reduce != later.reduce
        for one, another in ((then.send, later.send), (then.receive, later.receive)):
            some = another != NOTHING
            other |= (one != NOTHING) != some
            # Of chunks that there are; of others, it does not matter what is compared.
            sizes = (
                self._layout.sizes_along(rank, np.maximum(chunks, 0), spans, self._piece)
                for chunks, spans in ((one, then.span), (another, later.span))
            )
            for size, its in zip(*sizes, strict=True):
                other |= some & (size != its)
        return int(other.argmax()) if other.any() else count

    def owner_of(self, rank: int) -> Owner:
        """Returns the owner of a rank's messages over shared links."""
        sender = self.walks[rank].sender
        assert sender is not None
        return sender.owner

    def _elements(self, rank: int, step: Exchange) -> int:
        begin, end = self._layout.extent(rank, step.send, step.span)
        return end - begin

    def spans(self) -> list[Span]:
        """Returns the sent messages; call it once every rank is done."""
        return [
            Span(
                rank,
                step.to,
                self._elements(rank, step),
                first.sent,
                last.injected,
                first.arrival or 0,
                last.received,
            )
            for rank, step, first, last in self._sent
        ]
