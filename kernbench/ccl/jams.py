"""Collectives whose ranks wait for each other for ever: how many slots would let them end (K7)."""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, Self

from kernbench.ccl.config import Chosen
from kernbench.des import DeadlockError
from kernbench.hw.pe import PeCosts
from kernbench.memory import View
from kernbench.sim_engine.command import Command, Stream, Work
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.host import Host

MOST_SLOTS: Final = 64
"""More are not looked for."""

_MOST_MESSAGES: Final = 4_000
"""A collective of more messages is not run again: the report would be late."""


class Jam(NamedTuple):
    """A collective that all ranks have come to, and that does not end.

    Attributes:
        chosen: Its algorithm and queues.
        full: Queues whose sender waits for a credit: channel, sender, receiver.
        least: The smallest `n_slots` with which it ends; None if none does, 0 if unknown.
    """

    chosen: Chosen
    full: Sequence[tuple[int, int, int]]
    least: int | None


class Repeatable(Protocol):
    """A collective that can be run again over queues of other lengths."""

    @property
    def chosen(self) -> Chosen:
        """The algorithm and its queues."""
        ...

    @property
    def ranks(self) -> int:
        """How many ranks take part."""
        ...

    @property
    def engine(self) -> GraphEngine:
        """Runs it."""
        ...

    @property
    def pes(self) -> Sequence[PeCosts]:
        """Costs of each rank's PE."""
        ...

    @property
    def messages(self) -> int:
        """Estimated number of messages; says whether running it again is affordable."""
        ...

    def again(self, engine: GraphEngine, n_slots: int) -> Self:
        """Returns the same collective on an engine of its own, over queues of other lengths."""
        ...

    def join(
        self, place: int, gives: Sequence[View], takes: Sequence[View], sends: Sequence[int] = ()
    ) -> Work:
        """Returns what the command of one rank does."""
        ...


def least_slots(collective: Repeatable) -> int | None:
    """Returns the smallest `n_slots` with which a collective ends, by running it again.

    Where tiles wait does not depend on times or values, so a run from the same start on an idle
    machine, without data, tells it. What ends with some slots ends with more.

    Returns:
        None if no number of slots that fits into memory, up to `MOST_SLOTS`, is enough; 0 if it
        takes too long to find out.
    """
    if collective.messages > _MOST_MESSAGES:
        return 0
    queue = collective.chosen.queue
    capacity = min(pe.memory(queue.space).capacity for pe in collective.pes)
    low, high = queue.n_slots, min(MOST_SLOTS, capacity // queue.slot_size)
    if high <= low or not _ends(collective, high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if _ends(collective, middle):
            high = middle
        else:
            low = middle
    return high


def _ends(collective: Repeatable, n_slots: int) -> bool:
    """Returns whether a collective ends if its queues have so many slots."""
    old = collective.engine
    engine = GraphEngine(old.topology, enable_data=False, fidelity=old.fidelity)
    again = collective.again(engine, n_slots)
    commands = []
    for rank in range(again.ranks):
        host = Host(engine.loop, rank, engine.rank_owner(rank), 0, 1)
        work = again.join(rank, [], [])
        commands.append(Command("again", "collective", host, Stream("again", rank), work))
        engine.submit(commands[-1])
    try:
        engine.loop.run()
    except DeadlockError as deadlock:
        stop = SystemExit("waits for ever")
        for task, _ in deadlock.waits:
            task.interrupt(stop)
        engine.loop.abandon()
    return all(one.done.time is not None and not one.stream.faulted for one in commands)
