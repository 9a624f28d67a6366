"""The way of a rank to where all ranks make the same process groups."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from kernbench.process.process import Process
from kernbench.ranks.creations import Creations
from kernbench.ranks.meeting import Call, CollectiveMismatchError, Meeting, runs
from kernbench.ranks.world import world_of


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
    world = world_of(process)
    place = world.creations.get(key)
    if place is None:
        name = "the world" if len(among) == world.size else f"ranks {runs(among, ',')}"
        place = world.creations[key] = Creations(name, among)
    number = place.number(process.rank) + 1
    try:
        meeting = place.enter(call)
    except CollectiveMismatchError as error:
        world.blame(place.open[number].calls, error)
        raise
    if len(meeting.calls) == 1 and any(rank in world.exited for rank in meeting.absent()):
        world.review()
    if meeting.made is None:
        meeting.made = make(number)
    return meeting.made, meeting
