"""Times a plan rank by rank, over queues.

The times equal those of a live run to the picosecond, because the same methods book the same
engines in the same order; tests hold the two equal (ADR 0005).
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Final

from kernbench.ccl.costs import Span, StepCosts
from kernbench.ccl.cycles import LONG, MANY, Cycles, Walk
from kernbench.ccl.layout import Layout
from kernbench.ccl.plan import NOTHING, Exchange, Plan
from kernbench.ccl.runs import Run, Sizes, runs
from kernbench.des import Owner
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
        cycles: Skips what repeats itself; None to replay every message.
        trace: Whether the messages are kept for `spans`.

    Attributes:
        queues: Queues by (sender, receiver).
        walks: Ranks that are under way.
        busy: Queues that are used now, or were used lately.
        trace: Whether the messages are kept for `spans`.
        ready: Ranks that can go on.
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
        cycles: Cycles | None = None,
        trace: bool = False,
    ) -> None:
        self._plan: Final = plan
        self._layout: Final = layout
        self._costs: Final = costs
        self._piece: Final = costs[0].piece
        self._n_slots: Final = costs[0].queue.n_slots
        self.queues: Final = queues
        self._senders: Final = senders
        self._finish: Final = finish
        self._cycles: Final = cycles
        self._sent: list[tuple[int, Exchange, Message, Message]] = []
        self.trace: Final = trace
        self._known: dict[tuple[int, int, int], Sizes] = {}
        self._runs: dict[tuple[Sizes, Sizes], tuple[Run, ...]] = {}
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
        costs = self._costs[rank]
        times_of, issue, cycles = costs.times, pe.issue, self._cycles
        while walk.step < len(steps):
            step = steps[walk.step]
            if step.send != NOTHING and step.to == rank:
                for count, messages in self._sizes(rank, step.send, step.span):
                    for _ in range(messages):
                        costs.move(pe, times_of(count), reduce=step.combine == "reduce")
                pe.fence()
                walk.step += 1
                continue
            queue, source = self._between(rank, step)
            reduce = step.combine == "reduce"
            walk.first = walk.last = None
            turns_of_step = self.runs_of(rank, step)
            longest = max((turns for _, _, turns in turns_of_step), default=0)
            watched = min(LONG, longest) if longest * len(steps) >= MANY else LONG
            for walk.run, (out, into, turns) in enumerate(turns_of_step):
                walk.turns = walk.left = turns
                watch = cycles if turns >= watched else None
                while walk.left:
                    if watch is not None:
                        watch.turn(walk)
                    walk.left -= 1
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
        pairs = []
        if step.send != NOTHING:
            pairs.append((rank, step.to))
        if step.receive != NOTHING:
            pairs.append((step.source, rank))
        for pair in pairs:
            self.busy[pair] = self.queues[pair]
        return self.queues[pairs[0]], self.queues[pairs[-1]]

    def runs_of(self, rank: int, step: Exchange) -> tuple[Run, ...]:
        """Returns the turns of an exchange of a rank."""
        out = self._sizes(rank, step.send, step.span)
        into = self._sizes(rank, step.receive, step.span)
        found = self._runs.get((out, into))
        if found is None:
            found = self._runs[out, into] = runs(out, into, self._n_slots)
        return found

    def _sizes(self, rank: int, chunk: int, span: int) -> Sizes:
        """Returns the elements of the messages of some chunks."""
        if chunk == NOTHING:
            return ()
        key = (rank if not self._layout.alike else 0, chunk, span)
        sizes = self._known.get(key)
        if sizes is None:
            sizes = self._known[key] = self._layout.sizes_of(rank, chunk, span, self._piece)
        return sizes

    def owner_of(self, rank: int) -> Owner:
        """Returns the owner of a rank's messages over shared links."""
        sender = self.walks[rank].sender
        assert sender is not None
        return sender.owner

    def spans(self) -> list[Span]:
        """Returns the sent messages; call it once every rank is done."""
        return [
            Span(
                rank,
                step.to,
                sum(count * many for count, many in self._sizes(rank, step.send, step.span)),
                first.sent,
                last.injected,
                first.arrival or 0,
                last.received,
            )
            for rank, step, first, last in self._sent
        ]
