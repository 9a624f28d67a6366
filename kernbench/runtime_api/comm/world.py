"""The ranks of a context while a spawn runs, their process groups, and what they have started."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kernbench.errors import CallSite, site_fact
from kernbench.runtime_api.comm.creations import Creations
from kernbench.runtime_api.comm.rendezvous import ProcessGroup, folded
from kernbench.runtime_api.process import Process

if TYPE_CHECKING:
    from kernbench.runtime_api.comm.schedules import Schedule
    from kernbench.runtime_api.comm.transfers import Mailbox
    from kernbench.runtime_api.comm.works import Work
    from kernbench.runtime_api.ranks.eager import EagerLog


class GroupLeakWarning(UserWarning):
    """Process groups are made and not destroyed (C17)."""


def _nothing() -> None:
    pass


def _unsuspected(process: Process) -> None:
    del process


def _nobody(ranks: Iterable[int], error: BaseException) -> None:
    del ranks, error


@dataclass(slots=True, eq=False)
class World:
    """The ranks of a context while a spawn runs.

    Attributes:
        size: How many; 0 while nothing is spawned.
        site: Where they were spawned.
        group: All of them.
        exited: Ranks whose function has ended.
        exit_sites: By rank, where its function returned.
        backend: By rank, what `init_process_group` was given.
        left: By rank, where it called `destroy_process_group()`.
        groups: By name, every process group that some rank has not destroyed, or missed a call in.
        held: By rank, by name, the groups that it may use.
        outside: By rank, groups that it has made and is not a member of.
        creations: By what they are made from, where ranks meet that make groups.
        announced: Choices of an algorithm that `on_choice` was told.
        warned: Whether a rank was told that it holds many groups.
        mailboxes: By group, destination and tag, where sends and receives meet.
        eager: What ranks did together, if some messages are sent without their receive.
        schedule: Says what receives from any source take, and notes it; None: the first to come.
        awaited: By rank, how many messages lack its side; None: anybody's.
        works: By rank, the asynchronous operations that it has issued and not waited for.
        rank_by_greenlet: Which rank a running stack belongs to.
        suspect: Looks, likewise, whether a rank that is held up closes a circle of waits.
        review: Looks, at the end of the instant, for what can never complete.
        blame: Says that ranks have failed with an error.
    """

    size: int = 0
    group: ProcessGroup | None = None
    exited: dict[int, Process] = field(default_factory=dict)
    exit_sites: dict[int, CallSite] = field(default_factory=dict)
    backend: dict[int, str] = field(default_factory=dict)
    left: dict[int, CallSite | None] = field(default_factory=dict)
    groups: dict[str, ProcessGroup] = field(default_factory=dict)
    held: dict[int, dict[str, ProcessGroup]] = field(default_factory=dict)
    outside: dict[int, list[ProcessGroup]] = field(default_factory=dict)
    creations: dict[Any, Creations] = field(default_factory=dict)
    announced: set[tuple[Any, ...]] = field(default_factory=set)
    warned: bool = False
    mailboxes: dict[tuple[str, int, int], "Mailbox"] = field(default_factory=dict)
    eager: "EagerLog | None" = None
    schedule: "Schedule | None" = None
    awaited: dict[int | None, int] = field(default_factory=dict)
    works: dict[int, dict["Work", None]] = field(default_factory=dict)
    rank_by_greenlet: dict[object, int] = field(default_factory=dict)
    site: CallSite | None = None
    review: Callable[[], None] = _nothing
    suspect: Callable[[Process], None] = _unsuspected
    blame: Callable[[Iterable[int], BaseException], None] = _nobody

    def __post_init__(self) -> None:
        if self.group is not None:
            self.groups[self.group.name] = self.group

    def leaks(self) -> GroupLeakWarning | None:
        """Returns a warning of groups that nobody will destroy any more (C17); None if all are.

        That of all ranks does not count: programs often leave it to the end of their process.
        """
        places: dict[str, list[str]] = {}
        holders: dict[str, set[int]] = {}
        for group in self.groups.values():
            ranks = [rank for rank, held in self.held.items() if group.name in held]
            if group is not self.group and ranks:
                place = _made(group)
                places.setdefault(place, []).append(group.name)
                holders.setdefault(place, set()).update(ranks)
        if not places:
            return None
        count = sum(map(len, places.values()))
        lines = [f"[C17] process groups were made and not destroyed: {count}"]
        for place, names in list(places.items())[:_SHOWN]:
            which = f"group {names[0]}"
            if len(names) > 1:
                which = f"{len(names)} groups such as {names[0]}"
            lines.append(f"{which}, held by {folded(sorted(holders[place]))}, {place}")
        if len(places) > _SHOWN:
            lines.append(f"and {sum(map(len, list(places.values())[_SHOWN:]))} more")
        lines.append(
            "hint: call destroy_process_group() before a rank returns; without a group it destroys "
            "all groups of the rank, also those that a library made"
        )
        return GroupLeakWarning("\n  ".join(lines))


_SHOWN: Final = 8
"""Places that a warning lists."""


def _made(group: ProcessGroup) -> str:
    assert group.birth is not None
    first = next(iter(group.birth.calls.values()))
    return site_fact(first.site, "made at")
