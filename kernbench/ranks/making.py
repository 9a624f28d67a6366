"""How a rank meets the other ranks that make the same process groups."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from kernbench.process.process import Process
from kernbench.ranks.creations import Creations
from kernbench.ranks.meeting import Call, CollectiveMismatchError, Meeting
from kernbench.ranks.ranges import runs
from kernbench.ranks.world import world_of
from kernbench.sim_engine.engine import OVER


def meet(
    process: Process,
    key: Hashable,
    among: Sequence[int],
    call: Call,
    make: Callable[[int], Any],
) -> tuple[Any, Meeting]:
    """Joins a rank's call with the calls of other ranks that make the same groups; does not wait.

    Args:
        process: The calling rank.
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
    if process.heard is not None:
        process.heard(meeting, (), OVER)
    if len(meeting.calls) == 1 and any(rank in world.exited for rank in meeting.absent()):
        world.review()
    made = make(number) if meeting.made is None else meeting.made
    meeting.made = made if meeting.absent() else None  # groups refer to their meeting
    return made, meeting
