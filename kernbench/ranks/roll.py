"""The roll of a spawn: how many ranks there are, which have left, and who is told of faults."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, cast

from kernbench.errors import CallSite
from kernbench.process.process import Process, Session
from kernbench.ranks.schedules import Schedule


def _nothing() -> None:
    pass


def _unsuspected(process: Process) -> None:
    del process


def _nobody(ranks: Iterable[int], error: BaseException) -> None:
    del ranks, error


@dataclass(slots=True, eq=False)
class Roll:
    """The ranks of a context while a spawn runs, apart from what they do together.

    Attributes:
        size: How many ranks; 0 while nothing is spawned.
        site: Where they were spawned.
        exited: Ranks whose function has ended.
        exit_sites: By rank, where its function returned.
        backend: By rank, what `init_process_group` was given.
        left: By rank, where it called `destroy_process_group()`.
        schedule: Says what receives from any source take, and notes what hosts read; None: each
            takes the first message to come.
        awaited: By rank, how many messages lack its side; None: anybody's.
        rank_by_greenlet: Which rank a running stack belongs to.
        suspect: Looks whether a rank that is held up closes a circle of waits.
        review: Looks, at the end of the instant, for what can never complete.
        blame: Says that ranks have failed with an error.
    """

    size: int = 0
    site: CallSite | None = None
    exited: dict[int, Process] = field(default_factory=dict)
    exit_sites: dict[int, CallSite] = field(default_factory=dict)
    backend: dict[int, str] = field(default_factory=dict)
    left: dict[int, CallSite | None] = field(default_factory=dict)
    schedule: Schedule | None = None
    awaited: dict[int | None, int] = field(default_factory=dict)
    rank_by_greenlet: dict[object, int] = field(default_factory=dict)
    suspect: Callable[[Process], None] = _unsuspected
    review: Callable[[], None] = _nothing
    blame: Callable[[Iterable[int], BaseException], None] = _nobody


class RankSession(Session, Protocol):
    """A session whose ranks do things together."""

    @property
    def world(self) -> Roll:
        """The ranks that run now."""
        ...


def roll_of(process: Process) -> Roll:
    """Returns the roll of the spawn that a process belongs to."""
    return cast(RankSession, process.ctx).world
