"""Collectives whose ranks wait for each other for ever: how many slots would let them end (K7)."""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, Self

from kernbench.ccl.config import Chosen
from kernbench.des import DeadlockError
from kernbench.hw.pe import PeCosts
from kernbench.memory import View
from kernbench.sim_engine.command import Action, Command, Stream
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.host import Host

MOST_SLOTS: Final = 64
"""Largest number of slots that is tried."""

_MOST_MESSAGES: Final = 4_000
"""A collective of more messages is not run again, because its report would come late."""


class Jam(NamedTuple):
    """A collective that does not end although all ranks have arrived.

    Attributes:
        chosen: Algorithm and queues of the collective.
        full: Queues whose sender waits for a credit: channel, sender, receiver.
        least: Smallest `n_slots` with which the collective ends; None if no number helps, 0 if
            unknown.
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
        """Number of ranks that take part."""
        ...

    @property
    def engine(self) -> GraphEngine:
        """Engine that runs the collective."""
        ...

    @property
    def pes(self) -> Sequence[PeCosts]:
        """Costs of each rank's PE."""
        ...

    @property
    def messages(self) -> int:
        """Estimated number of messages; callers decide by it whether a repetition is affordable."""
        ...

    def again(self, engine: GraphEngine, n_slots: int) -> Self:
        """Returns the same collective on another engine, over queues of another length."""
        ...

    def join(
        self, place: int, gives: Sequence[View], takes: Sequence[View], sends: Sequence[int] = ()
    ) -> Action:
        """Returns the work of one rank's command.

        Args:
            place: Rank inside the group.
            gives: Views of the blocks that the rank gives, in order.
            takes: Views of the blocks that the rank takes, in order.
            sends: Elements that go to each rank, where only the rank itself knows them.
        """
        ...


def least_slots(collective: Repeatable) -> int | None:
    """Returns the smallest `n_slots` with which a collective ends, by running it again.

    The place where tiles wait depends on neither times nor values. So a run without data on an idle
    machine tells whether a number of slots is enough. A larger number is enough, too.

    Args:
        collective: The collective.

    Returns:
        The number of slots; None if no number up to `MOST_SLOTS` that fits into memory is enough; 0
        if the collective has too many messages to run it again.
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
