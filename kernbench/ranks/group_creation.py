"""Creation of process groups: all ranks of a world make the same groups in the same order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernbench.ranks.gathering import Gathering
from kernbench.ranks.meeting import Call, CollectiveMismatchError, Meeting, Term
from kernbench.ranks.ranges import folded


class GroupMismatchError(CollectiveMismatchError):
    """The ranks of a world did not make the same process groups (C9)."""


@dataclass(slots=True, eq=False)
class Creation(Meeting):
    """Calls that make process groups.

    Attributes:
        made: Groups that the first rank has made for all ranks; None before.
    """

    made: Any = None


@dataclass(frozen=True, eq=False)
class Row:
    """Groups without a common rank, which ranks make one after another.

    Attributes:
        members: Global ranks of each group.
        place: By global rank, which of the groups holds it.
        terms: For each group, what calls must agree on, and the call in reports.
    """

    members: Sequence[tuple[int, ...]]
    place: dict[int, int]
    terms: Sequence[tuple[tuple[Term, ...], str]]


@dataclass(slots=True, eq=False)
class Rows:
    """The calls of ranks that make a row of groups: one for each rank, not one for each group.

    Attributes:
        row: The groups.
        meetings: The meeting of each group. Until they are told apart, all have the same `calls`,
            which are those of the last group.
        made: The groups as objects.
        calls: The calls so far, by global rank.
    """

    row: Row
    meetings: list[Creation]
    made: list[Any]
    calls: dict[int, Call] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """Sequence number of the last meeting."""
        return self.meetings[-1].number


class Creations(Gathering[Creation]):
    """Meetings in which ranks make groups: the k-th of each rank is the k-th of all ranks (C9)."""

    mismatch = GroupMismatchError
    advice = (
        "every rank makes the same groups in the same order, also those that it is not a member of"
    )

    def __init__(
        self, name: str, ranks: Sequence[int], callers: tuple[int, ...] | None = None
    ) -> None:
        super().__init__(name, ranks, callers)
        self._rows: dict[int, Rows] = {}  # those that not all ranks have made, by first number
        self._latest = 0

    def enter(self, call: Call) -> Creation:
        """See `Gathering`."""
        number = self._numbers[call.rank] + 1
        for first, rows in list(self._rows.items()):
            if first <= number <= rows.last:
                self._tell_apart(first)
        self._latest = max(self._latest, number)
        return super().enter(call)

    def enter_row(
        self, call: Call, row: Row, make: Callable[[Sequence[Creation]], list[Any]]
    ) -> Rows | None:
        """Adds a rank's next calls to the meetings of a row of groups; does not wait.

        Args:
            call: The rank's call of the last group.
            row: The groups.
            make: Makes the groups; called for the first rank only.

        Returns:
            The row; None, with nothing added, if the ranks before did not all make the same row
            from the same call on.
        """
        rank, count = call.rank, len(row.members)
        first = self._numbers[rank] + 1
        rows = self._rows.get(first)
        if rows is None:
            if self._latest >= first:
                return None
            numbers = range(first, first + count)
            title = self.title
            begun = [self._begin(title(call.operation, number), number) for number in numbers]
            rows = self._rows[first] = Rows(row, begun, make(begun))
            for meeting in begun:
                meeting.calls = rows.calls
            self._latest = rows.last
        elif rows.row is not row:
            return None
        call.number = self._numbers[rank] = rows.last
        rows.calls[rank] = self.history[rank] = call
        if len(rows.calls) == len(self.callers):
            del self._rows[first]
        return rows

    def tell_apart(self) -> None:
        """Gives each meeting its own calls: somebody looks at meetings one by one."""
        for first in list(self._rows):
            self._tell_apart(first)

    def _tell_apart(self, first: int) -> None:
        rows = self._rows.pop(first)
        for meeting, group, (terms, text) in zip(
            rows.meetings, rows.made, rows.row.terms, strict=True
        ):
            meeting.calls = {
                rank: Call(
                    rank, call.operation, terms, text, call.site, call.time, number=meeting.number
                )
                for rank, call in rows.calls.items()
            }
            meeting.first = next(iter(meeting.calls.values()))
            meeting.made = {group.ranks: group}
            self.open[meeting.number] = meeting

    def ahead_of(self, rank: int) -> bool:
        """Returns whether some rank has made a call that a member has not."""
        if not (self._rows or self.open):
            return False
        latest = max([rows.last for rows in self._rows.values()], default=0)
        if self.open:
            latest = max(latest, next(reversed(self.open)))
        return rank in self and latest > self.number(rank)

    def _begin(self, title: str, number: int) -> Creation:
        return Creation(title, number, self.callers)

    def title(self, what: str, number: int) -> str:
        """See `Gathering`."""
        return f"{what} #{number} of {self.name}"

    def _subject(self, meeting: Meeting) -> str:
        return meeting.title

    def _missing(
        self, title: str, waiting: Sequence[int], never: Sequence[int], facts: Sequence[str]
    ) -> CollectiveMismatchError:
        return self.mismatch(
            f"{title}: {folded(waiting)} called it, {folded(never)} did not",
            facts,
            hint=self.advice,
            code="C9",
        )
