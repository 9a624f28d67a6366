"""The ranks of a context while a spawn runs, their groups, and their unfinished operations."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kernbench.caches import Table
from kernbench.errors import CallSite, site_fact
from kernbench.process.process import Process
from kernbench.ranks.eager_log import EagerLog
from kernbench.ranks.gathering import Whereabouts
from kernbench.ranks.group_creation import Creation, Creations, Row, Rows
from kernbench.ranks.groups import ProcessGroup
from kernbench.ranks.meeting import Call, CollectiveMismatchError, Meeting, Term
from kernbench.ranks.ranges import folded, runs
from kernbench.ranks.spawn_state import SpawnState
from kernbench.ranks.transfers import Mailbox
from kernbench.sim_engine.command import Command
from kernbench.sim_engine.engine import OVER


class GroupLeakWarning(UserWarning):
    """Process groups are made and not destroyed (C17)."""


class Split(NamedTuple):
    """How a group is split, as its ranks give it.

    Attributes:
        given: The argument; a tuple of tuples, if ranks can share the rest.
        parts: Global ranks of each part.
        terms: What the calls of all ranks must agree on.
        text: The call in reports.
    """

    given: Sequence[Sequence[int]]
    parts: Sequence[tuple[int, ...]]
    terms: tuple[Term, ...]
    text: str


def _splits() -> Table[tuple[int, str, str | None], Split]:
    return Table("distributed.splits")


@dataclass(slots=True, eq=False)
class World(SpawnState):
    """The ranks of a context while a spawn runs, their groups, and their unfinished operations.

    Attributes:
        group: The group of all ranks; None while no spawn runs.
        groups: Process groups by name. A group stays while some rank has not destroyed it, or while
            a collective in it lacks a rank.
        held: Groups that a rank may use, by rank, then by name.
        outside: Groups that a rank has made without being a member, by rank.
        creations: Places where ranks meet to make groups, by what the groups are made from.
        on_choice: Called with a line of text when an operation, size and group gets an algorithm.
        announced: Choices of an algorithm that `on_choice` has been told.
        warned: Whether a rank has been warned that it holds many groups.
        mailboxes: Places where sends and receives meet, by group, destination and tag.
        mailboxes_of: The same, by group and destination.
        eager: Log of what ranks did together; None unless some messages are sent without their
            receive.
        unwaited: Asynchronous commands that a rank has not waited for, by rank, then by handle.
        splits: Splits of groups, by the `id` of what a rank gave, the group and its description.
    """

    group: ProcessGroup | None = None
    groups: dict[str, ProcessGroup] = field(default_factory=dict)
    held: dict[int, dict[str, ProcessGroup]] = field(default_factory=dict)
    outside: dict[int, list[ProcessGroup]] = field(default_factory=dict)
    creations: dict[Any, Creations] = field(default_factory=dict)
    on_choice: Callable[[str], None] | None = None
    announced: set[tuple[Any, ...]] = field(default_factory=set)
    warned: bool = False
    mailboxes: dict[tuple[str, int, int], Mailbox] = field(default_factory=dict)
    mailboxes_of: dict[tuple[str, int], list[Mailbox]] = field(default_factory=dict)
    eager: EagerLog | None = None
    unwaited: dict[int, dict[object, Command]] = field(default_factory=dict)
    splits: Table[tuple[int, str, str | None], Split] = field(default_factory=_splits)

    def __post_init__(self) -> None:
        if self.size:
            self.group = self.new_group("WORLD", range(self.size))
            self.groups[self.group.name] = self.group

    def new_group(
        self, name: str, ranks: Sequence[int], desc: str = "undefined", backend: str | None = None
    ) -> ProcessGroup:
        """Returns a new group, in which those ranks call that run the program.

        Args:
            name: See `ProcessGroup`.
            ranks: Global ranks.
            desc: See `ProcessGroup`.
            backend: See `ProcessGroup`.
        """
        return ProcessGroup(name, ranks, desc, backend, self.callers_of(ranks))

    def callers_of(self, ranks: Sequence[int]) -> tuple[int, ...] | None:
        """Returns which of some ranks run the program; None for all of them."""
        return None if self.partition is None else self.partition.callers_of(ranks)

    def end(self) -> None:
        """Lets go of whatever refers back to the world: the spawn is over."""
        SpawnState.end(self)
        for box in self.mailboxes.values():
            box.end()

    def whereabouts(self, stuck: dict[int, str], places: dict[int, CallSite]) -> Whereabouts:
        """Returns what is known about missing ranks.

        Args:
            stuck: By rank, what reports say about a rank that waits for ever.
            places: Where a rank waits now, by rank.
        """
        return Whereabouts(
            self.exited, self.exit_sites, self.departed(), self.groups.values(), stuck, places
        )

    def leaks(self) -> GroupLeakWarning | None:
        """Returns a warning about groups that ranks have not destroyed (C17); None without any.

        The group of all ranks does not count: programs often leave it to the end of their process.
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
"""Most places that a warning lists."""


def _made(group: ProcessGroup) -> str:
    assert group.birth is not None
    first = next(iter(group.birth.calls.values()))
    return site_fact(first.site, "made at")


def world_of(process: Process) -> World:
    """Returns the ranks of the spawn that a process belongs to."""
    session: Any = process.ctx  # a `RankSession`; a call of `cast` would take as long as the rest
    world: World = session.world
    return world


def meet(
    process: Process,
    key: Hashable,
    among: Sequence[int],
    call: Call,
    make: Callable[[int], Any],
) -> tuple[Any, Meeting]:
    """Joins a rank's call with the calls of other ranks that make the same groups; does not wait.

    Args:
        key: Identifies what the groups are made from; calls with different keys never meet.
        among: Global ranks that must call.
        call: The rank's call.
        make: Makes the groups from the number of the meeting; called for the first rank only.

    Returns:
        The result of `make`, and the meeting.

    Raises:
        CollectiveMismatchError: If another rank makes other groups (C9).
    """
    world = world_of(process)
    place = _place(world, key, among)
    number = place.number(process.rank) + 1
    try:
        meeting = place.enter(call)
    except CollectiveMismatchError as error:
        world.blame(place.open[number].calls, error)
        raise
    if process.heard is not None:
        process.heard(meeting, (), OVER)
    _review(world, meeting)
    made = make(number) if meeting.made is None else meeting.made
    # Groups refer to their meeting. Each member calls once: no look for those who have not.
    meeting.made = made if len(meeting.calls) < len(meeting.members) else None
    return made, meeting


def meet_in_row(
    process: Process,
    key: Hashable,
    among: Sequence[int],
    call: Call,
    row: Row,
    make: Callable[[Sequence[Creation]], list[Any]],
) -> Rows | None:
    """Does what `meet` does for each group of a row, at once; None if it must be one by one.

    Args:
        key: See `meet`.
        among: See `meet`.
        call: The rank's call of the last group.
        row: The groups.
        make: Makes the groups from their meetings; called for the first rank only.
    """
    if process.heard is not None:
        return None
    world = world_of(process)
    rows = _place(world, key, among).enter_row(call, row, make)
    if rows is not None:
        _review(world, rows.meetings[0])
    return rows


def _place(world: World, key: Hashable, among: Sequence[int]) -> Creations:
    place = world.creations.get(key)
    if place is None:
        name = "the world" if len(among) == world.size else f"ranks {runs(among, ',')}"
        place = world.creations[key] = Creations(name, among, world.callers_of(among))
    return place


def _review(world: World, meeting: Meeting) -> None:
    """Looks for ranks that have returned, once the first rank has come to a meeting."""
    exited = world.exited.keys()
    if exited and len(meeting.calls) == 1 and not exited.isdisjoint(meeting.absent()):
        world.review()
