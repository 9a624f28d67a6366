"""Meetings of ranks: the call of each rank, and the terms on which all calls must agree."""

from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple

from kernbench.errors import CallSite, Fact, Involved, KernbenchError, site_fact
from kernbench.process.process import Process
from kernbench.ranks.folding import fold, shape_of
from kernbench.ranks.joint import Joint
from kernbench.ranks.ranges import folded
from kernbench.sim_engine.command import Command
from kernbench.units import format_span, format_time

_MOST_CALLS: Final = 8
"""Most different calls of one meeting that a report lists."""

NUMBER: Final = "\0"
"""Placeholder for the sequence numbers of calls."""


class Amount(NamedTuple):
    """Units that a rank sends to another rank, which expects a different number of units."""

    sender: int
    receiver: int
    sent: int
    expected: int

    def text(self, unit: str) -> str:
        """Returns a sentence with both numbers, counted in a unit such as `row`."""
        return (
            f"rank {self.sender} sends {self.sent} {unit}{'' if self.sent == 1 else 's'} to rank "
            f"{self.receiver}; rank {self.receiver} expects {self.expected} from rank {self.sender}"
        )


class CollectiveMismatchError(KernbenchError, RuntimeError):
    """The ranks of a group did not call the same collective (C1-C5, C7, C11).

    Attributes:
        differing: Name of the term in which the calls differ, such as `dtype`; empty if the summary
            says it in other words.
        unfit: The first few amounts on which two ranks disagree (C11).
        unfit_count: Number of all such amounts.
    """

    differing: str = ""
    unfit: Sequence[Amount] = ()
    unfit_count: int = 0


@dataclass(frozen=True, slots=True)
class Term:
    """Something that the calls of all ranks must agree on.

    Attributes:
        code: Code of the mistake if the calls disagree, such as `C4`.
        what: Name of the term in reports, such as `dtype`.
        value: The value in one call; values are compared with `==`.
        hint: Makes the hint of the report from the expected and the given value; where it returns
            None, or is None, the report has the general hint.
    """

    code: str
    what: str
    value: object
    hint: Callable[[object, object], str | None] | None = None


@dataclass(frozen=True, slots=True)
class Splits:
    """How much a rank sends to each rank of its group, and how much it expects from each.

    Attributes:
        sends: Units that go to each rank, by rank in the group.
        receives: Units that come from each rank, by rank in the group.
        unit: The unit of the counts: `row` or `element`.
    """

    sends: tuple[int, ...]
    receives: tuple[int, ...]
    unit: str


class Role(NamedTuple):
    """Why a collective runs that the user did not call directly, such as a DDP bucket.

    Attributes:
        name: Text behind the call in reports, such as `of DistributedDataParallel's bucket 0`.
        hint: Hint, in place of the general one, if other ranks never make the call.
    """

    name: str
    hint: str


@dataclass(slots=True, eq=False)
class Call:
    """One rank's call of something that other ranks must call too.

    Attributes:
        rank: Global rank.
        operation: Name, such as `all_reduce`.
        terms: Values on which all calls must agree besides the name, the most telling first.
        text: The call as reports show it, such as `all_reduce([4], torch.float32, sum)`.
        site: Where the user called it.
        time: Host time of the call, in picoseconds.
        command: The rank's command in its stream; None before it is issued, and for a call that
            issues none.
        splits: Amounts that must fit between each two ranks; None for a call without such amounts.
        hint: Hint, in place of the general one, if other ranks never make the call.
        number: Sequence number of the call among the rank's collectives in the group; for a
            message, among the rank's messages in the group.
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
        """Returns the line of a report that tells, after a label, the call, its time and place."""
        text = f"{label}: {self.text} at {format_time(self.time)}, {site_fact(self.site)}"
        return Fact(text, [self.involved()])

    def involved(self) -> Involved:
        """Returns the content of the report's line as plain values."""
        return Involved(self.rank, self.text, self.site, self.number, self.time)


@dataclass(slots=True, eq=False)
class Meeting:
    """Calls of several ranks that belong together, from the first call on.

    Attributes:
        title: Name in reports, such as `all_reduce #7 of group WORLD`.
        number: Sequence number in the group, from 1.
        members: Global ranks that must call.
        calls: Calls that hosts have made so far, by global rank.
        first: The earliest call, with which all later calls must agree; None before that call.
        errors: Errors raised about the meeting; a later error completes the lists of earlier ones.
        fitting: By rank in the group, splits that are known to fit, and that all calls so far have;
            None if there are none.
    """

    title: str
    number: int
    members: tuple[int, ...]
    calls: dict[int, Call] = field(default_factory=dict)
    first: Call | None = None
    errors: list[CollectiveMismatchError] = field(default_factory=list)
    fitting: Mapping[int, Splits | None] | None = None

    def absent(self) -> list[int]:
        """Returns the global ranks that have not called."""
        return [rank for rank in self.members if rank not in self.calls]

    def grouped(self, named: Collection[int] = ()) -> list[Fact]:
        """Returns a line for each different call, with the ranks that made it.

        If there are many, calls that differ in their own rank only, as by `src=rank`, are one line.

        Args:
            named: Ranks whose calls are always shown: the report names them.
        """
        alike: dict[tuple[str, str], list[int]] = {}
        for rank in sorted(self.calls):
            call = self.calls[rank]
            where = str(call.site) if call.site is not None else ""
            alike.setdefault((call.text, where), []).append(rank)
        if len(alike) <= _MOST_CALLS:
            return [self._line(ranks, text) for (text, _), ranks in alike.items()]
        shapes: dict[tuple[str, str], dict[int, str]] = {}
        for (text, where), ranks in alike.items():
            texts = shapes.setdefault((shape_of(text), where), {})
            texts |= dict.fromkeys(ranks, text)
        told = [form for texts in shapes.values() for form in fold(texts, most=None)]
        # The call of one rank alone is the one that is looked for; most ranks' call is beside it.
        makers: Counter[str] = Counter()
        for form in told:
            makers[form.text] += len(form.ranks)
        told.sort(
            key=lambda form: (
                not any(rank in named for rank in form.ranks),
                makers[form.text],
                form.ranks,
            )
        )
        left = told[_MOST_CALLS:]
        if left and makers[left[-1].text] > makers[told[0].text]:
            left = told[_MOST_CALLS - 1 : -1]
        shown = sorted([form for form in told if form not in left], key=lambda form: form.ranks)
        lines = [self._line(form.ranks, form.text) for form in shown]
        if left:
            others = sorted(rank for form in left for rank in form.ranks)
            involved = [self.calls[rank].involved() for rank in others]
            lines.append(Fact(f"{folded(others)}: {len(left)} more calls", involved))
        return lines

    def _line(self, ranks: Sequence[int], text: str) -> Fact:
        calls = [self.calls[rank] for rank in ranks]
        when = format_span([call.time for call in calls])
        return Fact(
            f"{folded(ranks)}: {text} at {when}, {site_fact(calls[0].site)}",
            [call.involved() for call in calls],
        )


class Needs(NamedTuple):
    """What must happen before a blocked rank can go on.

    Attributes:
        of: Global ranks that must call, and commands that must begin or end.
        every: Whether all entries of `of` are needed; otherwise any one of them is enough.
    """

    of: Sequence[int | Command]
    every: bool = True


@dataclass(slots=True, eq=False)
class Exchange(Meeting):
    """A meeting in which each rank has one command: a collective or a message.

    Attributes:
        joint: State that the ranks share; None until the first rank has made it.
        args: Log entries that are the same for all ranks' commands; None if they differ.
        mail: Values that travel beside the simulated bytes, by the global rank that gave them.
        line: Stands for the group, whose collectives run one after another on each rank; None for
            a message.
        ranks: Global ranks by place, if ranks that call stand for others; else those of `members`.
        known: What `Process.meets` notes of each rank's command.
    """

    is_message: ClassVar[bool] = False

    joint: Joint | None = None
    args: Mapping[str, Any] | None = None
    mail: dict[int, Any] = field(default_factory=dict)
    line: Hashable = None
    ranks: Sequence[int] = ()
    known: list[Any] | None = None

    def issued(self, process: Process, command: Command) -> None:
        """See `process.Part`."""
        call = self.calls[process.rank]
        call.command = command
        if process.meets is not None:
            process.meets(self, process, command)
        process.latest = command
        # What the host calls and what the device does of a group are lines of their own.
        key = None if self.line is None else (self.line, command.stream.sip)
        joined = process.joined.get(key)
        if joined is None:
            joined = process.joined[key] = deque()
        while joined and joined[0].done.time is not None:
            joined.popleft()
        joined.append(command)
        if process.frame is not None:  # it may have come nearer to its end
            process.note_frame()
        process.recent.append((self.title, call.text, command.site, command.issued, command.done))

    def end(self) -> None:
        """Lets go of what refers back to the exchange: the spawn is over."""
        self.errors.clear()
        if self.joint is not None:
            self.joint.drop()
            self.joint = None

    def told(self, command: Command, how: str) -> Fact:
        """See `process.Part`."""
        call = self.calls[command.host.rank]
        group = (command.args or {}).get("group", "")
        title = f"{command.name} #{call.number} of group {group}"
        text = f"{title} {how} at {format_time(call.time)}, {site_fact(call.site)}"
        return Fact(text, [call.involved()])

    def missing(self) -> list[int | Command]:
        """Returns the ranks that have not called, and the commands that have not begun."""
        calls = self.calls.values()
        waiting = [call.command for call in calls if call.command is not None]
        return [
            *self.absent(),
            *(command for command in waiting if command.part is self and not command.begun),
        ]

    def needs(self, rank: int, *, settled: bool) -> Needs | None:
        """Returns what a rank needs that waits in the exchange; None if it needs all of `missing`.

        Args:
            rank: Global rank of the waiting rank.
            settled: Whether the loop has no events left, so that the exchange is not under way.
        """
        assert self.joint is not None
        ranks = self.ranks or self.members
        places = self.joint.needs(ranks.index(rank))
        if places is None:
            return None
        missing = self.missing()
        needed = {ranks[place] for place in places}
        surely = [item for item in missing if _rank_of(item) in needed]
        if surely:
            return Needs(surely)
        # Some ranks may end before others arrive; which ones, the algorithm decides.
        return Needs(missing, settled or not missing)

    def view(self, call: Call) -> Fact:
        """Returns the line of a report that says that the rank of a call waits in the exchange."""
        fact = call.fact(self.title)
        return Fact(f"rank {call.rank} waits in {fact}", fact.involved)

    def place(self, call: Call) -> str:
        """Returns the exchange's name in a report's list of places where ranks wait.

        `NUMBER` stands for the number of the call, in which ranks at one place may differ.
        """
        del call
        return self.title

    def hop(self, rank: int, other: int) -> str:
        """Returns the exchange's name in a report's line that shows a cycle of waits.

        Args:
            rank: Global rank that waits in the exchange.
            other: Global rank that comes next in the cycle.
        """
        del rank, other
        return self.title


def _rank_of(item: int | Command) -> int:
    return item.host.rank if isinstance(item, Command) else item
