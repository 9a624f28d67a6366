"""Collectives whose ranks wait for each other for ever: how many slots would let them end (K7)."""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, Self

from kernbench.ccl.config import Chosen
from kernbench.des import DeadlockError
from kernbench.hw import queue
from kernbench.hw.pe import PeCosts
from kernbench.memory import View
from kernbench.sim_engine.command import Action, Command, Stream
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.host import Host

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

    A run without data on an idle machine tells whether a number of slots is enough.

    Returns:
        The number of slots; None if no number that is tried is enough; 0 if the collective has too
        many messages to run it again.
    """
    if collective.messages > _MOST_MESSAGES:
        return 0
    spec = collective.chosen.queue
    capacity = min(pe.memory(spec.space).capacity for pe in collective.pes)
    most = capacity // spec.slot_size
    return queue.least_slots(spec.n_slots, most, lambda n_slots: _ends(collective, n_slots))


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
