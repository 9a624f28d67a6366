"""Where the ranks of a world make process groups: all of them the same ones, in the same order."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from kernbench.runtime_api.comm.rendezvous import (
    Call,
    CollectiveMismatchError,
    Gathering,
    Meeting,
    folded,
    runs,
)
from kernbench.runtime_api.process import Process


class GroupMismatchError(CollectiveMismatchError):
    """The ranks of a world did not make the same process groups (C9)."""


class Creations(Gathering):
    """The process groups that ranks make: the k-th one of each is the k-th one of all (C9)."""

    mismatch = GroupMismatchError
    advice = (
        "every rank makes the same groups in the same order, also those that it is not a member of"
    )

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


def meet(
    process: Process,
    key: Hashable,
    among: Sequence[int],
    call: Call,
    make: Callable[[int], Any],
) -> tuple[Any, Meeting]:
    """Takes a rank's call to where the others make the same groups.

    Args:
        process: Who calls.
        key: Where: calls with different keys have nothing to do with each other.
        among: Ranks that must call.
        call: What it calls.
        make: Makes the groups, from the number of the meeting.

    Returns:
        What `make` returned for the first rank that came, and the meeting.
    """
    world = process.ctx.world
    place = world.creations.get(key)
    if place is None:
        name = "the world" if len(among) == world.size else f"ranks {runs(among, ',')}"
        place = world.creations[key] = Creations(name, among)
    number = place.number(process.rank) + 1
    try:
        meeting = place.enter(call, lambda: make(number))
    except CollectiveMismatchError as error:
        world.blame(place.open[number].calls, error)
        raise
    if len(meeting.calls) == 1 and any(rank in world.exited for rank in meeting.absent()):
        world.review()
    return meeting.shared, meeting
