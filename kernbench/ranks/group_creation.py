"""Creation of process groups: all ranks of a world make the same groups in the same order."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernbench.ranks.gathering import Gathering
from kernbench.ranks.meeting import CollectiveMismatchError, Meeting
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


class Creations(Gathering[Creation]):
    """Meetings in which ranks make groups: the k-th of each rank is the k-th of all ranks (C9)."""

    mismatch = GroupMismatchError
    advice = (
        "every rank makes the same groups in the same order, also those that it is not a member of"
    )

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
