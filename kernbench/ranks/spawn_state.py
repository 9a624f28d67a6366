"""The state of a spawn: how many ranks there are, which have left, and who listens for faults."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from kernbench.classes.partition import Partition
from kernbench.classes.splits import Met
from kernbench.errors import CallSite
from kernbench.process.process import Process, Session
from kernbench.ranks.schedules import Schedule

if TYPE_CHECKING:
    from kernbench.ccl.model import CollectiveModel


def _nothing() -> None:
    pass


def _unsuspected(process: Process) -> None:
    del process


def _nobody(ranks: Iterable[int], error: BaseException) -> None:
    del ranks, error


@dataclass(slots=True, eq=False)
class SpawnState:
    """State of a spawn's ranks, without their groups, collectives and messages.

    Attributes:
        size: Number of ranks; 0 while no spawn runs.
        partition: Classes of ranks, of each of which one runs; None: every rank runs.
        site: Where the user called spawn.
        alike: Senders, receivers and algorithms of messages that are alike for all ranks of their
            classes.
        met: Groups and messages that are alike.
        exited: Processes whose function has ended, by rank.
        exit_sites: Where the function of a rank returned, by rank.
        backend: Backend that `init_process_group` was given, by rank.
        left: Where a rank called `destroy_process_group()`, by rank.
        schedule: Decides which message each receive from any source takes, and notes what hosts
            read; None: each receive takes the first message to arrive.
        awaited: Number of messages that lack the side of a rank, by rank; under None the receives
            from any source that lack a sender.
        rank_by_carrier: Rank of each running stack.
        suspect: Looks, at the end of the instant, whether a blocked rank closes a cycle of waits.
        review: Looks, at the end of the instant, for operations that can never complete.
        blame: Marks ranks as failed, given their global ranks and the error.
    """

    size: int = 0
    site: CallSite | None = None
    partition: Partition | None = None
    alike: set[tuple[int, int, str]] = field(default_factory=set)
    met: Met = field(default_factory=Met)
    exited: dict[int, Process] = field(default_factory=dict)
    exit_sites: dict[int, CallSite] = field(default_factory=dict)
    backend: dict[int, str] = field(default_factory=dict)
    left: dict[int, CallSite | None] = field(default_factory=dict)
    schedule: Schedule | None = None
    awaited: dict[int | None, int] = field(default_factory=dict)
    rank_by_carrier: dict[object, int] = field(default_factory=dict)
    suspect: Callable[[Process], None] = _unsuspected
    review: Callable[[], None] = _nothing
    blame: Callable[[Iterable[int], BaseException], None] = _nobody

    def departed(self) -> dict[int, CallSite | None]:
        """Returns where ranks have destroyed all groups, by rank, if they made none afterwards."""
        return {rank: site for rank, site in self.left.items() if rank not in self.backend}

    def end(self) -> None:
        """Drops references to stacks and listeners after the spawn."""
        self.rank_by_carrier.clear()
        self.suspect, self.review, self.blame = _unsuspected, _nothing, _nobody


class RankSession(Session, Protocol):
    """A session whose ranks run collectives and send messages."""

    @property
    def world(self) -> SpawnState:
        """The ranks that run now."""
        ...

    @property
    def collectives(self) -> "CollectiveModel":
        """State that all collectives of the context share."""
        ...


def spawn_state_of(process: Process) -> SpawnState:
    """Returns the state of the spawn that a process belongs to."""
    session: Any = process.ctx  # a `RankSession`
    state: SpawnState = session.world
    return state


def collectives_of(process: Process) -> "CollectiveModel":
    """Returns the state that all collectives of a process's context share."""
    session: Any = process.ctx  # a `RankSession`
    model: CollectiveModel = session.collectives
    return model
