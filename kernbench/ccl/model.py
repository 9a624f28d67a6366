"""State that all collectives of an engine share."""

from typing import Final, Protocol

from kernbench.caches import Table, cached
from kernbench.ccl import company
from kernbench.ccl.channel import ChannelPlan, Timing, Together, together
from kernbench.ccl.config import Chosen
from kernbench.ccl.cycles import Cycles
from kernbench.ccl.machine import Machine
from kernbench.ccl.plan import Algorithm
from kernbench.ccl.prepared import CollectiveShape, Prepared
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import Topology


class Choose(Protocol):
    """Returns the algorithm of an operation; see `Choices.choose`."""

    def __call__(
        self,
        operation: str,
        nbytes: int,
        sips: tuple[int, ...],
        ranks: int | None = None,
        *,
        one_way: bool = False,
    ) -> Chosen:
        """See the class."""
        ...


class Kept:
    """What was found out about collectives of a machine, for every engine of an equal one.

    Attributes:
        together: `channel.together`; the answers asked for last are kept. Starts are relative to
            the first one: alone on their links, ranks do the same whenever they begin.
        companies: What became of collectives that met others of their group.
    """

    def __init__(self, topology: Topology) -> None:
        self._machine: Final = Machine(topology)
        self._prepare: Final = cached("ccl.shapes")(self._make)
        self.together: Final = cached("ccl.patterns")(together)
        self.companies: Final[company.Kept] = Table("ccl.companies")

    def prepare(self, shape: CollectiveShape) -> Prepared:
        """Returns what is known of collectives of a shape; the shapes used last are kept."""
        chosen = shape.chosen
        # A module may be loaded anew, and reports say where the file has its values.
        places = chosen.slots_at, chosen.queue.slot_size_at
        return self._prepare(shape, chosen.algorithm(shape.operation), places)

    def _make(
        self, shape: CollectiveShape, _program: Algorithm, _places: tuple[str, str]
    ) -> Prepared:
        return Prepared(self._machine, shape)


@cached("ccl.machines")
def kept_of(topology: Topology) -> Kept:
    """Returns what is kept of a machine; of equal machines, the same object."""
    return Kept(topology)


class CollectiveModel:
    """State that collectives of one engine share: everything that does not depend on time.

    Args:
        choose: Returns the algorithm of an operation; None if every collective names its own.
        counted: Whether the calls of the event loop are counted, also those that a collective makes
            on a loop of its own.

    Attributes:
        engine: The engine.
        together: See `Kept`.
        prepare: See `Kept`.
        cycles: Skips repetitions of all replays on the network.
        companies: Know what becomes of collectives of a group that meet each other.
    """

    def __init__(
        self, engine: GraphEngine, choose: Choose | None = None, *, counted: bool = False
    ) -> None:
        self.engine: Final = engine
        self._choose: Final = choose
        kept = kept_of(engine.topology)
        self._kept: Final = kept.together
        self.together: Final[Together] = self._counted if counted else kept.together
        self.prepare: Final = kept.prepare
        self.cycles: Final = Cycles(engine.network, shadow=engine.shadow)
        # Where calls are counted, they must not depend on what has met before.
        met = Table("ccl.companies") if counted else kept.companies
        self.companies: Final = company.Companies(
            engine.loop, engine.network.claims, met, shadow=engine.shadow
        )

    def _counted(self, prepared: ChannelPlan, skews: tuple[int, ...], trace: bool) -> Timing:
        if prepared.apart:
            return together(prepared, skews, trace, self.engine.loop)
        return self._kept(prepared, skews, trace)

    def choose(
        self,
        operation: str,
        nbytes: int,
        sips: tuple[int, ...],
        ranks: int | None = None,
        *,
        one_way: bool = False,
    ) -> Chosen:
        """Returns the algorithm of an operation.

        Args:
            operation: A key of `OPERATIONS`.
            nbytes: Size of its data, as nccl-tests counts it.
            sips: Device of each rank that takes part.
            ranks: Ranks of the group in which two ranks exchange a message, see `Choices.choose`.
            one_way: Whether a message has channels that only send, or only receive.

        Raises:
            UsageError: If no algorithm implements the operation.
        """
        assert self._choose is not None, "made without a way to choose"
        return self._choose(operation, nbytes, sips, ranks, one_way=one_way)
