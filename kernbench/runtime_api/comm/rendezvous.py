"""Where ranks meet: what each of them called, what all must agree on, and who has not come."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from kernbench.errors import CallSite, Fact, Involved, KernbenchError, site_fact
from kernbench.runtime_api.called import called
from kernbench.runtime_api.process import current_process
from kernbench.units import format_time

if TYPE_CHECKING:
    from kernbench.ccl.prepared import Prepared
    from kernbench.runtime_api.process import Process
    from kernbench.sim_engine.command import Command


class CollectiveMismatchError(KernbenchError, RuntimeError):
    """The ranks of a group did not call the same collective (C1-C5, C7, C11).

    Attributes:
        differing: What they differ in; empty if the summary says it in other words.
        unfit: The first of the amounts that two ranks do not agree on (C11).
        unfit_count: How many of them there are.
    """

    differing: str = ""
    unfit: "Sequence[_Amount]" = ()
    unfit_count: int = 0


class GroupError(KernbenchError, RuntimeError, ValueError):
    """A process group was used where it cannot be (C7, C8, C17, C18).

    PyTorch raises `RuntimeError` for some of these and `ValueError` for others.
    """


class _Amount(NamedTuple):
    """What a rank sends to another one, which expects another number of units."""

    sender: int
    receiver: int
    sent: int
    expected: int

    def text(self, unit: str) -> str:
        return (
            f"rank {self.sender} sends {self.sent} {unit}{'' if self.sent == 1 else 's'} to rank "
            f"{self.receiver}; rank {self.receiver} expects {self.expected} from rank {self.sender}"
        )


ON_HOST: Final = " on cpu"
"""Ends the name of an operation on tensors of the host."""

_DEVICE_HINT: Final = (
    "all ranks give tensors on the host, or all on devices: move one with .cuda() or .cpu() first; "
    "or the order of calls differs"
)

_MOST_AMOUNTS: Final = 8
"""Amounts that a report lists."""


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
    """What a collective is for that the user has not called by its name.

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
    command: "Command | None" = None
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
    """One thing that several ranks do together, while they come.

    Attributes:
        title: What reports call it, such as `all_reduce #7 of group WORLD`.
        number: Sequence number in the group, from 1.
        members: Global ranks that must come.
        calls: By global rank, the calls of those whose host has come.
        first: The first of them, with which the others must agree.
        shared: What the ranks have in common, made by the first one; of a collective it knows
            whose streams have `arrived`.
        args: What the log keeps of each rank's part.
        mail: By global rank, values that travel beside the simulated bytes.
        errors: Those raised about it; each later one completes the lists of the earlier ones.
    """

    title: str
    number: int
    members: tuple[int, ...]
    calls: dict[int, Call] = field(default_factory=dict)
    first: Call | None = None
    shared: Any = None
    args: Mapping[str, Any] | None = None
    mail: dict[int, Any] = field(default_factory=dict)
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


class Gathering:
    """Ranks that do things together: the k-th call of each is the k-th call of all.

    Attributes:
        name: For reports.
        ranks: Global ranks; a rank's place is its rank in the group.
        open: Meetings that not all ranks have come to, by number.
        history: By global rank, its latest call.
    """

    mismatch: ClassVar[type[CollectiveMismatchError]] = CollectiveMismatchError
    advice: ClassVar[str] = "every rank of a group calls the same collectives in the same order"

    def __init__(self, name: str, ranks: Sequence[int]) -> None:
        self.name: Final = name
        self.ranks: Final = tuple(ranks)
        self.open: dict[int, Meeting] = {}
        self.history: dict[int, Call] = {}
        self._places: Final = {rank: place for place, rank in enumerate(self.ranks)}
        self._numbers: dict[int, int] = dict.fromkeys(self.ranks, 0)

    def __contains__(self, rank: object) -> bool:
        return rank in self._places

    def place(self, rank: int) -> int:
        """Returns the rank inside the group of a global rank.

        Raises:
            KeyError: If it is not a member.
        """
        return self._places[rank]

    def number(self, rank: int) -> int:
        """Returns the sequence number of a rank's latest call."""
        return self._numbers[rank]

    def title(self, what: str, number: int) -> str:
        """Returns what reports call a meeting."""
        return f"{what} #{number} of group {self.name}"

    def enter(self, call: Call, make: Callable[..., Any], *arguments: object) -> Meeting:
        """Takes a rank's next call to where the others are; does not wait.

        Args:
            call: What the rank called.
            make: Makes what the ranks will share; called for the first of them.
            arguments: What it is called with.

        Raises:
            CollectiveMismatchError: If another rank called something else.
        """
        rank = call.rank
        number = self._numbers[rank] = self._numbers[rank] + 1
        self.history[rank] = call
        call.number = number
        meeting = self.open.get(number)
        if meeting is None:
            title = self.title(call.operation, number)
            meeting = self.open[number] = Meeting(title, number, self.ranks)
        calls = meeting.calls
        calls[rank] = call
        first = meeting.first
        if first is None:
            meeting.first = call
        elif (
            call.terms is not first.terms  # mostly those of one signature
            or call.operation != first.operation
            or call.splits is not None
            or meeting.errors
        ):
            self._compare(meeting, first, call)
        if meeting.shared is None:
            meeting.shared = make(*arguments)
        if len(calls) == len(self.ranks):
            del self.open[number]
        return meeting

    def _compare(self, meeting: Meeting, first: Call, call: Call) -> None:
        if first.operation != call.operation:
            calls = meeting.calls.values()
            if len({each.operation.removesuffix(ON_HOST) for each in calls}) == 1:
                raise self._differ(meeting, "C2", "device", _DEVICE_HINT)
            raise self._differ(meeting, "C2", "collective", None)
        for expected, got in zip(first.terms, call.terms, strict=True):
            if expected.value != got.value:
                hint = expected.hint and expected.hint(expected.value, got.value)
                raise self._differ(meeting, expected.code, expected.what, hint)
        # It agrees with the first call; another rank may not.
        known = meeting.errors[0] if meeting.errors else None
        if known is not None and known.differing:
            raise self._differ(meeting, known.code, known.differing, known.hint)
        if call.splits is not None:
            unfit = self._unfit(meeting, call, call.splits)
            if unfit or (known is not None and known.unfit):
                raise self._splits_differ(meeting, known, unfit, call.splits.unit)
        if known is not None:
            raise self._refuse(meeting, known.code, known.summary, known.hint)

    def _unfit(self, meeting: Meeting, call: Call, mine: Splits) -> list[_Amount]:
        """Returns what a call exchanges with the earlier ones that does not fit theirs."""
        me = self._places[call.rank]
        unfit = []
        for other in meeting.calls.values():
            theirs, them = other.splits, self._places[other.rank]
            if other is call or other.operation != call.operation or theirs is None:
                continue
            if theirs.sends[me] != mine.receives[them]:
                sent, expected = theirs.sends[me], mine.receives[them]
                unfit.append(_Amount(other.rank, call.rank, sent, expected))
            if mine.sends[them] != theirs.receives[me]:
                sent, expected = mine.sends[them], theirs.receives[me]
                unfit.append(_Amount(call.rank, other.rank, sent, expected))
        return unfit

    def _splits_differ(
        self,
        meeting: Meeting,
        known: CollectiveMismatchError | None,
        unfit: list[_Amount],
        unit: str,
    ) -> CollectiveMismatchError:
        """Returns the error of uneven splits, and lets the earlier ones say the same (C11)."""
        count = len(unfit)
        if known is not None:
            unfit, count = [*known.unfit, *unfit], known.unfit_count + count
        first = sorted(unfit)[:_MOST_AMOUNTS]
        lines = [amount.text(unit) for amount in first]
        summary = f"{meeting.title}: {lines.pop()}"
        if count > 1:
            lines = [amount.text(unit) for amount in first]
            summary = f"{meeting.title}: ranks do not expect what others send, {count} times"
        if count > len(first):
            lines.append(f"and {count - len(first)} more")
        hint = "what rank i sends to rank j is what rank j expects from rank i"
        error = self._refuse(meeting, "C11", summary, hint, lines)
        for told in meeting.errors:
            if told.code == "C11":
                told.summary, told.unfit, told.unfit_count = summary, first, count
        return error

    def _differ(
        self, meeting: Meeting, code: str, differing: str, hint: str | None
    ) -> CollectiveMismatchError:
        summary = f"{self._subject(meeting)}: {folded(sorted(meeting.calls))} differ in {differing}"
        error = self._refuse(meeting, code, summary, hint)
        error.differing = differing
        for known in meeting.errors:
            if known.code == code:
                known.summary, known.differing = summary, differing
                if code == "C2":
                    known.hint = error.hint
        return error

    def _refuse(
        self,
        meeting: Meeting,
        code: str,
        summary: str,
        hint: str | None,
        lines: Sequence[str] = (),
    ) -> CollectiveMismatchError:
        error = self.mismatch(summary, (), hint=hint or self.advice, code=code)
        meeting.errors.append(error)
        facts = (*lines, *meeting.grouped())
        for known in meeting.errors:
            # What was raised at another rank's call did not know of this one.
            known.facts = facts
        return error

    def _subject(self, meeting: Meeting) -> str:
        """Returns what reports call a meeting whose ranks disagree."""
        return self.title("collective", meeting.number)

    def missing(
        self, meeting: Meeting, exited: "Mapping[int, Process]", stuck: Mapping[int, str]
    ) -> CollectiveMismatchError:
        """Returns the error of a collective that some ranks never call (C1).

        Args:
            meeting: What they miss.
            exited: Ranks that have returned.
            stuck: Ranks that wait elsewhere for ever, with what reports say of that.
        """
        waiting = sorted(meeting.calls)
        absent = meeting.absent()
        never = [rank for rank in absent if rank in exited or rank in stuck]
        coming = [rank for rank in absent if rank not in exited and rank not in stuck]
        first = meeting.calls[waiting[0]]
        facts: list[str] = [Fact(f"waiting {fact}", fact.involved) for fact in meeting.grouped()]
        facts += [self._whereabouts(rank, exited.get(rank), stuck.get(rank, "")) for rank in never]
        if coming:
            facts.append(f"on the way: {folded(coming)}")
        title = self.title(first.operation, meeting.number)
        error = self._missing(title, waiting, never, facts)
        error.hint = first.hint or error.hint
        return error

    def _missing(
        self, title: str, waiting: Sequence[int], never: Sequence[int], facts: Sequence[str]
    ) -> CollectiveMismatchError:
        return self.mismatch(
            f"{title}: {folded(waiting)} {'wait' if len(waiting) > 1 else 'waits'} for "
            f"{folded(never)}",
            facts,
            hint="every rank of a group must call the collective; look for a branch on the rank",
            code="C1",
        )

    def _whereabouts(self, rank: int, exited: "Process | None", state: str) -> Fact:
        """Returns what a rank that is missed did last, and where it is now."""
        site = None if exited is None else exited.ctx.world.exit_sites.get(rank)
        if exited is not None:
            state = "returned" if site is None else f"returned {site_fact(site)}"
        last = self.history.get(rank)
        done = Involved(rank, "", site, None, None) if last is None else last.involved()
        if last is not None:
            said = f"its last collective was #{self._numbers[rank]}, {last.fact(f'rank {rank}')}"
        else:
            said = "it called none"
            groups = [] if exited is None else exited.ctx.world.groups.values()
            calls = [(g.history[rank], g) for g in groups if rank in g.history]
            if calls:
                latest, group = max(calls, key=lambda found: found[0].time)
                said += f", and last of all #{group.number(rank)} of group {group.name}, "
                said += latest.fact(f"rank {rank}")
        return Fact(f"missing rank {rank} {state}; {said}", [done])


class ProcessGroup(Gathering):
    """`torch.distributed.ProcessGroup`: ranks that call collectives together.

    Args:
        name: Unique while a spawn runs; that of all ranks is `WORLD`.
        ranks: Global ranks; a rank's place is its rank in the group.
        desc: What the user says that it is for.
        backend: Which library it stands for; None: that of `init_process_group`.

    Attributes:
        last: By global rank, its latest operation on a device.
        messages: By global rank, how many it has sent and received, or begun to.
        birth: Where ranks met to make it; None for all ranks.
        destroyed: By global rank, where it gave the group up.
        sips: Device of each rank; empty until the first collective.
        prepared: What is known of a collective beforehand, by its `Signature`. All else that it
            depends on is the group's, and the context's in which the group lives.
    """

    def __init__(
        self,
        name: str,
        ranks: Sequence[int],
        desc: str = "undefined",
        backend: str | None = None,
    ) -> None:
        super().__init__(name, ranks)
        self.desc: Final = desc
        self.backend: Final = backend
        self.last: dict[int, Command] = {}
        self.messages: dict[int, int] = {}
        self.birth: Meeting | None = None
        self.destroyed: dict[int, CallSite | None] = {}
        self.sips: tuple[int, ...] = ()
        self.prepared: dict[object, Prepared] = {}

    @property
    def group_name(self) -> str:
        """Its name, as PyTorch calls it."""
        return self.name

    @property
    def group_desc(self) -> str:
        """What it is for, as PyTorch calls it."""
        return self.desc

    def size(self) -> int:
        """Returns the number of ranks.

        Raises:
            GroupError: If the calling rank has destroyed the group (C18).
        """
        self._check_not_destroyed("size")
        return len(self.ranks)

    def rank(self) -> int:
        """Returns the calling rank's rank in the group; -1 if it is not a member.

        Raises:
            GroupError: If it has destroyed the group (C18).
        """
        self._check_not_destroyed("rank")
        return self._places.get(current_process().rank, -1)

    def _check_not_destroyed(self, name: str) -> None:
        process = current_process()
        world, rank = process.ctx.world, process.rank
        if rank in self.destroyed:
            site = self.destroyed[rank]
        elif self is world.group and rank in world.left and rank not in world.backend:
            site = world.left[rank]
        else:
            return
        raise GroupError(
            f"rank {rank} called {name} on group {self.name}, which it has destroyed",
            [called(process, name, self), site_fact(site, "destroyed at"), self.made(rank)],
            hint="ask before destroy_process_group()",
            code="C18",
        )

    def __repr__(self) -> str:
        return f"<group {self.name} of {len(self.ranks)} ranks>"

    def made(self, rank: int) -> str:
        """Returns a fact that says where a group was made: by this rank, if it made it."""
        if self.birth is None:
            return f"group {self.name} is that of all ranks"
        call = self.birth.calls.get(rank) or next(iter(self.birth.calls.values()))
        return site_fact(call.site, f"group {self.name} was made by rank {call.rank} at")

    def _whereabouts(self, rank: int, exited: "Process | None", state: str) -> Fact:
        said = super()._whereabouts(rank, exited, state)
        if self.birth is not None and rank not in self.birth.calls:
            text = f"{said}; it has not called {self.birth.title}, which makes this group"
            return Fact(text, said.involved)
        return said


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
