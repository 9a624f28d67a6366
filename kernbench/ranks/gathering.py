"""Numbers the calls of ranks and compares the k-th call of each; raises mismatches."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar

from kernbench.caches import Table
from kernbench.errors import CallSite, Fact, Involved, site_fact
from kernbench.process.process import Process
from kernbench.ranks.departures import departure
from kernbench.ranks.meeting import Amount, Call, CollectiveMismatchError, Meeting, Splits
from kernbench.ranks.ranges import folded

HOST_SUFFIX: Final = " on cpu"
"""Suffix of the name of an operation on tensors of the host."""

_DEVICE_HINT: Final = (
    "all ranks give tensors on the host, or all on devices: move one with .cuda() or .cpu() first; "
    "or the order of calls differs"
)

_MOST_AMOUNTS: Final = 8
"""Most amounts that a report lists."""

_FITTING: Final[Table[tuple[int, int], Mapping[int, Splits | None]]] = Table("ranks.fitting")
"""Splits of exchanges that fitted, by rank in the group, which keep the `id` their own; by the `id`
of the first call's and that call's rank. To compare each call with all before it is ranks squared.
"""


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """What is known about the ranks of a spawn when some of them are missing.

    Attributes:
        exited: Processes whose function has ended, by rank.
        exit_sites: Where the function of a rank returned, by rank.
        left: Where a rank destroyed all groups, by rank; ranks that may use groups are left out.
        groups: Every group of the spawn.
        stuck: What reports say about a rank that waits elsewhere for ever, by rank.
        places: Where a rank waits now, by rank; ranks that do not wait are left out.
    """

    exited: Mapping[int, Process]
    exit_sites: Mapping[int, CallSite]
    left: Mapping[int, CallSite | None]
    groups: Iterable["Gathering[Any]"]
    stuck: Mapping[int, str]
    places: Mapping[int, CallSite]


M = TypeVar("M", bound=Meeting)


class Gathering(Generic[M]):
    """Ranks that meet: the k-th call of each rank belongs to the k-th calls of all others.

    Attributes:
        name: Name in reports.
        ranks: Global ranks; a rank's place is its rank in the group.
        callers: Those of them that call: all, or of each class of ranks the one that runs.
        open: Meetings in which some ranks have not called, by sequence number.
        history: The latest call of a rank, by global rank.
    """

    mismatch: ClassVar[type[CollectiveMismatchError]] = CollectiveMismatchError
    advice: ClassVar[str] = "every rank of a group calls the same collectives in the same order"

    def __init__(
        self, name: str, ranks: Sequence[int], callers: tuple[int, ...] | None = None
    ) -> None:
        self.name: Final = name
        self.ranks: Final = tuple(ranks)
        self.callers: Final = self.ranks if callers is None else callers
        self.open: dict[int, M] = {}
        self.history: dict[int, Call] = {}
        self._places: Final = {rank: place for place, rank in enumerate(self.ranks)}
        self._numbers: dict[int, int] = dict.fromkeys(self.callers, 0)

    def __contains__(self, rank: object) -> bool:
        return rank in self._places

    def place(self, rank: int) -> int:
        """Returns the rank inside the group of a global rank.

        Raises:
            KeyError: If the rank is not a member.
        """
        return self._places[rank]

    def number(self, rank: int) -> int:
        """Returns the sequence number of a rank's latest call."""
        return self._numbers[rank]

    def title(self, what: str, number: int) -> str:
        """Returns the name of a meeting in reports."""
        return f"{what} #{number} of group {self.name}"

    def _begin(self, title: str, number: int) -> M:
        """Returns a new meeting in which no rank has called."""
        raise NotImplementedError

    def enter(self, call: Call) -> M:
        """Adds a rank's next call to its meeting and returns the meeting; does not wait.

        Args:
            call: The rank's call.

        Raises:
            CollectiveMismatchError: If the rank's call disagrees with the call of another rank.
        """
        rank = call.rank
        number = self._numbers[rank] = self._numbers[rank] + 1
        self.history[rank] = call
        call.number = number
        meeting = self.open.get(number)
        if meeting is None:
            title = self.title(call.operation, number)
            meeting = self.open[number] = self._begin(title, number)
        calls = meeting.calls
        calls[rank] = call
        first = meeting.first
        if first is None:
            meeting.first = call
            if call.splits is not None:
                meeting.fitting = _FITTING.get((id(call.splits), self._places[rank]))
        elif (
            call.terms is not first.terms  # mostly the same object, from one cached signature
            or call.operation != first.operation
            or call.splits is not None
            or meeting.errors
        ):
            self._compare(meeting, first, call)
        if len(calls) == len(self.callers):
            del self.open[number]
            if call.splits is not None and meeting.fitting is None and not meeting.errors:
                start = meeting.first or call
                key = id(start.splits), self._places[start.rank]
                _FITTING.keep(key, {self._places[at]: calls[at].splits for at in calls})
        return meeting

    def _compare(self, meeting: Meeting, first: Call, call: Call) -> None:
        if first.operation != call.operation:
            calls = meeting.calls.values()
            if len({each.operation.removesuffix(HOST_SUFFIX) for each in calls}) == 1:
                raise self._differ(meeting, "C2", "device", _DEVICE_HINT)
            raise self._differ(meeting, "C2", "collective", None)
        for expected, got in zip(first.terms, call.terms, strict=True):
            if expected is not got and expected.value != got.value:
                hint = expected.hint and expected.hint(expected.value, got.value)
                raise self._differ(meeting, expected.code, expected.what, hint)
        # This call agrees with the first one; the call of another rank may not.
        known = meeting.errors[0] if meeting.errors else None
        if known is not None and known.differing:
            raise self._differ(meeting, known.code, known.differing, known.hint)
        if call.splits is not None:
            unfit = self._unfit(meeting, call, call.splits)
            if unfit or (known is not None and known.unfit):
                raise self._splits_differ(meeting, known, unfit, call.splits.unit)
        if known is not None:
            raise self._refuse(meeting, known.code, known.summary, known.hint)

    def _unfit(self, meeting: Meeting, call: Call, mine: Splits) -> list[Amount]:
        """Returns the amounts of a call that do not fit those of earlier calls."""
        me = self._places[call.rank]
        if meeting.fitting is not None:
            if meeting.fitting.get(me) is mine:
                return []
            meeting.fitting = None
        sends, receives, places, unfit = mine.sends, mine.receives, self._places, []
        for rank, other in meeting.calls.items():  # each call with all before it: ranks squared
            theirs, them = other.splits, places[rank]
            if theirs is None or (
                theirs.sends[me] == receives[them] and sends[them] == theirs.receives[me]
            ):
                continue
            if other is call or other.operation != call.operation:
                continue
            if theirs.sends[me] != receives[them]:
                sent, expected = theirs.sends[me], receives[them]
                unfit.append(Amount(other.rank, call.rank, sent, expected))
            if sends[them] != theirs.receives[me]:
                sent, expected = sends[them], theirs.receives[me]
                unfit.append(Amount(call.rank, other.rank, sent, expected))
        return unfit

    def _splits_differ(
        self,
        meeting: Meeting,
        known: CollectiveMismatchError | None,
        unfit: list[Amount],
        unit: str,
    ) -> CollectiveMismatchError:
        """Returns the error of uneven splits, and makes earlier errors say the same (C11)."""
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
        named = {rank for amount in first for rank in (amount.sender, amount.receiver)}
        error = self._refuse(meeting, "C11", summary, hint, lines, named)
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
                else:  # the first says what the first two ranks gave
                    error.hint = known.hint
        return error

    def _refuse(
        self,
        meeting: Meeting,
        code: str,
        summary: str,
        hint: str | None,
        lines: Sequence[str] = (),
        named: Collection[int] = (),
    ) -> CollectiveMismatchError:
        error = self.mismatch(summary, (), hint=hint or self.advice, code=code)
        meeting.errors.append(error)
        facts = (*lines, *meeting.grouped(named))
        for known in meeting.errors:
            # Errors that other ranks' calls raised earlier did not know of this call.
            known.facts = facts
        return error

    def _subject(self, meeting: Meeting) -> str:
        """Returns the name in reports of a meeting whose ranks disagree."""
        return self.title("collective", meeting.number)

    def missing(self, meeting: Meeting, known: Whereabouts) -> CollectiveMismatchError:
        """Returns the error of a collective that some ranks never call (C1).

        Args:
            meeting: The collective.
            known: Which ranks have returned, and which wait elsewhere for ever.
        """
        waiting = sorted(meeting.calls)
        absent = meeting.absent()
        never = [rank for rank in absent if rank in known.exited or rank in known.stuck]
        coming = [rank for rank in absent if rank not in never]
        first = meeting.calls[waiting[0]]
        facts: list[str] = [Fact(f"waiting {fact}", fact.involved) for fact in meeting.grouped()]
        facts += [self._whereabouts(rank, known) for rank in never]
        at: dict[CallSite | None, list[int]] = {}
        for rank in coming:
            at.setdefault(known.places.get(rank), []).append(rank)
        for site, ranks in at.items():
            where = "" if site is None else f", {site_fact(site)}"
            facts.append(f"on the way: {folded(ranks)}{where}")
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
            hint="every rank of a group must call the collective; look for a branch on the rank, "
            "or a loop with fewer turns",
            code="C1",
        )

    def _destroyed_at(self, rank: int, known: Whereabouts) -> CallSite | None:
        """Returns where a rank destroyed what waits for it; None if it did not."""
        return known.left.get(rank)

    def _whereabouts(self, rank: int, known: Whereabouts) -> Fact:
        """Returns what a missing rank did last, and where it is now."""
        site, state = known.exit_sites.get(rank), known.stuck.get(rank, "")
        if rank in known.exited:
            state = departure(site, self._destroyed_at(rank, known))
        last = self.history.get(rank)
        done = Involved(rank, "", site, None, None) if last is None else last.involved()
        if last is not None:
            said = f"its last collective was #{self._numbers[rank]}, {last.fact(f'rank {rank}')}"
        else:
            said = "it called none"
            groups = known.groups if rank in known.exited else ()
            calls = [(g.history[rank], g) for g in groups if rank in g.history]
            if calls:
                latest, group = max(calls, key=lambda found: found[0].time)
                said += f", and last of all #{group.number(rank)} of group {group.name}, "
                said += latest.fact(f"rank {rank}")
        return Fact(f"missing rank {rank} {state}; {said}", [done])
