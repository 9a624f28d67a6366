"""What ranks do together, while they come: each rank's call, and what all calls must agree on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from kernbench.errors import CallSite, Fact, Involved, KernbenchError, site_fact
from kernbench.process.process import Process
from kernbench.process.recent_calls import Entry
from kernbench.ranks.joint import Joint
from kernbench.sim_engine.command import Command
from kernbench.units import format_time


class Amount(NamedTuple):
    """What a rank sends to another one, which expects another number of units."""

    sender: int
    receiver: int
    sent: int
    expected: int

    def text(self, unit: str) -> str:
        """Returns both sides of it, in units such as `row`."""
        return (
            f"rank {self.sender} sends {self.sent} {unit}{'' if self.sent == 1 else 's'} to rank "
            f"{self.receiver}; rank {self.receiver} expects {self.expected} from rank {self.sender}"
        )


class CollectiveMismatchError(KernbenchError, RuntimeError):
    """The ranks of a group did not call the same collective (C1-C5, C7, C11).

    Attributes:
        differing: What they differ in; empty if the summary says it in other words.
        unfit: The first of the amounts that two ranks do not agree on (C11).
        unfit_count: How many of them there are.
    """

    differing: str = ""
    unfit: Sequence[Amount] = ()
    unfit_count: int = 0


@dataclass(frozen=True, slots=True)
class Term:
    """Something that the calls of all ranks must agree on.

    Attributes:
        code: Of the mistake if they do not.
        what: Its name in reports, such as `dtype`.
        value: Compared with `==`.
        hint: Told instead of the general one if they differ.
    """

    code: str
    what: str
    value: object
    hint: Callable[[object, object], str | None] | None = None


@dataclass(frozen=True, slots=True)
class Splits:
    """How much a rank sends to each rank of its group, and how much it expects from each.

    Attributes:
        sends: By rank in the group.
        receives: By rank in the group.
        unit: What is counted: `row` or `element`.
    """

    sends: tuple[int, ...]
    receives: tuple[int, ...]
    unit: str


class Role(NamedTuple):
    """Why a collective runs that the user did not call directly, such as a DDP bucket.

    Attributes:
        name: Behind the call in reports, such as `of DistributedDataParallel's bucket 0`.
        hint: Told instead of the general one if other ranks never come.
    """

    name: str
    hint: str


@dataclass(slots=True, eq=False)
class Call:
    """One rank's call of something that other ranks must call too.

    Attributes:
        rank: Global rank.
        operation: Name, such as `all_reduce`.
        terms: What the others must agree on besides the name, the most telling first.
        text: The call as reports show it, such as `all_reduce([4], torch.float32, sum)`.
        site: Where the user called it.
        time: Host time of the call, in picoseconds.
        command: What waits in the rank's stream; None until issued, and if nothing is.
        splits: What must fit between each two ranks; None if there is no such thing.
        hint: Told instead of the general one if others never come.
        number: Which of the rank's calls where it meets others, or of its messages in the group.
    """

    rank: int
    operation: str
    terms: tuple[Term, ...]
    text: str
    site: CallSite | None
    time: int
    command: Command | None = None
    splits: Splits | None = None
    hint: str = ""
    number: int = 0

    def fact(self, label: str) -> Fact:
        """Returns a line of a report."""
        text = f"{label}: {self.text} at {format_time(self.time)}, {site_fact(self.site)}"
        return Fact(text, [self.involved()])

    def involved(self) -> Involved:
        """Returns what reports say as plain values."""
        return Involved(self.rank, self.text, self.site, self.number, self.time)


@dataclass(slots=True, eq=False)
class Meeting:
    """Calls of several ranks that belong together, while the ranks come.

    Attributes:
        title: What reports call it, such as `all_reduce #7 of group WORLD`.
        number: Sequence number in the group, from 1.
        members: Global ranks that must come.
        calls: By global rank, the calls of those whose host has come.
        first: The first of them, with which the others must agree.
        errors: Those raised about it; each later one completes the lists of the earlier ones.
    """

    title: str
    number: int
    members: tuple[int, ...]
    calls: dict[int, Call] = field(default_factory=dict)
    first: Call | None = None
    errors: list[CollectiveMismatchError] = field(default_factory=list)

    def absent(self) -> list[int]:
        """Returns the ranks that have not called."""
        return [rank for rank in self.members if rank not in self.calls]

    def grouped(self) -> list[Fact]:
        """Returns a line for each different call, with the ranks that made it."""
        alike: dict[tuple[str, object], list[Call]] = {}
        for rank in sorted(self.calls):
            call = self.calls[rank]
            where = str(call.site) if call.site is not None else ""
            alike.setdefault((call.text, where), []).append(call)
        return [
            Fact(calls[0].fact(folded([c.rank for c in calls])), [c.involved() for c in calls])
            for calls in alike.values()
        ]


class Needs(NamedTuple):
    """What must happen before a rank that is held up can go on.

    Attributes:
        of: Ranks that must call, and commands whose turn must come, or that must be over.
        every: Whether all of this must happen; else any of it is enough.
    """

    of: Sequence[int | Command]
    every: bool = True


@dataclass(slots=True, eq=False)
class Exchange(Meeting):
    """What several ranks do together by one command each: a collective or a message.

    Attributes:
        joint: What the ranks share; None until the first of them has made it.
        args: What the log keeps of each rank's part, if that is the same for all.
        mail: By global rank, values that travel beside the simulated bytes.
    """

    is_message: ClassVar[bool] = False

    joint: Joint | None = None
    args: Mapping[str, Any] | None = None
    mail: dict[int, Any] = field(default_factory=dict)

    def issued(self, process: Process, command: Command) -> None:
        """See `process.Part`."""
        call = self.calls[process.rank]
        call.command = command
        joined = process.joined
        while joined and joined[0].done.time is not None:
            joined.popleft()
        joined.append(command)
        process.recent.append(
            Entry(self.title, call.text, command.site, command.issued, command.done)
        )

    def told(self, command: Command, how: str) -> Fact:
        """See `process.Part`."""
        call = self.calls[command.host.rank]
        group = (command.args or {}).get("group", "")
        title = f"{command.name} #{call.number} of group {group}"
        text = f"{title} {how} at {format_time(call.time)}, {site_fact(call.site)}"
        return Fact(text, [call.involved()])

    def missing(self) -> list[int | Command]:
        """Returns the ranks that have not called, and the commands whose turn has not come."""
        calls = self.calls.values()
        waiting = [call.command for call in calls if call.command is not None]
        return [
            *self.absent(),
            *(command for command in waiting if command.part is self and not command.begun),
        ]

    def needs(self, rank: int, *, settled: bool) -> Needs | None:
        """Returns what a rank that is held up by it waits for; None: for all that is missing.

        Args:
            rank: Global rank.
            settled: Whether nothing is left to happen, so that it cannot be under way.
        """
        assert self.joint is not None
        places = self.joint.needs(self.members.index(rank))
        if places is None:
            return None
        missing = self.missing()
        needed = {self.members[place] for place in places}
        surely = [item for item in missing if _rank_of(item) in needed]
        if surely:
            return Needs(surely)
        # Some of its ranks are done before others come; which ones is the algorithm's matter.
        return Needs(missing, settled or not missing)

    def view(self, call: Call) -> Fact:
        """Returns a line of a report that says what the rank of a call waits in."""
        fact = call.fact(self.title)
        return Fact(f"rank {call.rank} waits in {fact}", fact.involved)

    def place(self, call: Call) -> str:
        """Returns what a report calls it where a call of it is one of several that wait."""
        del call
        return self.title

    def hop(self, rank: int, other: int) -> str:
        """Returns what a report calls it in a circle of waits.

        Args:
            rank: Who waits in it.
            other: Which rank comes next in the circle.
        """
        del rank, other
        return self.title


def _rank_of(item: int | Command) -> int:
    return item.host.rank if isinstance(item, Command) else item


def folded(ranks: Sequence[int]) -> str:
    """Returns `rank 3`, or `ranks 0-2, 5`."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {runs(ranks, ', ')}"


def runs(ranks: Sequence[int], separator: str) -> str:
    """Returns `0-2,5`."""
    found: list[list[int]] = []
    for rank in ranks:
        if found and found[-1][-1] == rank - 1:
            found[-1] = [found[-1][0], rank]
        else:
            found.append([rank])
    return separator.join("-".join(str(end) for end in run) for run in found)
