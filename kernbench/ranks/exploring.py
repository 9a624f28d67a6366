"""Running a program under several schedules, and telling where its result depends on them (P8).

See ADR 0018.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from kernbench.errors import KernbenchError, UsageError, call_site_of, site_fact
from kernbench.ranks.ranges import folded
from kernbench.ranks.schedules import Match, Schedule
from kernbench.ranks.spawn_errors import SpawnException, text_of
from kernbench.ranks.world import World

_DIGITS: Final = 12
"""Digits of a hash that a report shows."""

_LEAST: Final = 2
"""Least schedules to try: one alone is compared with none."""


class ScheduleError(KernbenchError):
    """The result of a program depends on what a receive from any source takes (P8)."""


class Explored(NamedTuple):
    """How many schedules were tried, all with the same result.

    Attributes:
        number: Number of schedules that were tried.
        complete: Whether there are no other schedules.
    """

    number: int
    complete: bool


class _Run(NamedTuple):
    """A run under a schedule, and how it ended."""

    schedule: Schedule
    outcome: tuple[str, ...]


def choose_late(world: World) -> bool:
    """Lets one delayed receive from any source take a message, now that no other event is left.

    Returns:
        Whether there was such a receive, so that the loop can go on.
    """
    schedule = world.schedule
    if schedule is None or not schedule.late:
        return False
    return any(box.choose_late(schedule) for _, box in sorted(world.mailboxes.items()))


def explore(
    attempt: Callable[[Schedule], object], most: int, again: Callable[[str], str], called: str
) -> Explored:
    """Runs a program under several schedules.

    In the first run, each receive from any source takes the message that comes first. If this run
    fails, or has no such receive, it is the only run. In the other runs such receives wait until
    nothing else is left to happen, and take every candidate in turn. Two runs have the same result
    if the hosts of their ranks read the same values, in whatever order, and if they end in the same
    way.

    Args:
        attempt: Runs the program in a fresh context with the given schedule; a returned value that
            is true is a part of the result.
        most: Number of schedules to try, at least 2.
        again: Returns how a user runs the schedule of a given name again, for a hint.
        called: What the user calls `most`, for an error.

    Raises:
        UsageError: If `most` is another value.
        ScheduleError: If two schedules have different results (P8).
        Exception: If the first attempt raises it.
    """
    __tracebackhide__ = True  # pytest then shows the user's worker
    if isinstance(most, bool) or not isinstance(most, int) or most < _LEAST:
        raise UsageError(f"{called}: expected a number of schedules from {_LEAST}, got {most!r}")
    plain = Schedule()
    first = _Run(plain, returned(attempt(plain)))
    count = 1
    picks: tuple[int, ...] | None = (1,) if plain.matches else None
    while picks is not None:
        if count == most:
            return Explored(count, complete=False)
        run = _late(attempt, picks)
        count += 1
        if run.outcome != first.outcome or run.schedule.data != plain.data:
            raise _differ(first, run, again(run.schedule.name))
        picks = run.schedule.following()
    return Explored(count, complete=True)


def _late(attempt: Callable[[Schedule], object], picks: tuple[int, ...]) -> _Run:
    schedule = Schedule(picks)
    try:
        outcome = returned(attempt(schedule))
    except Exception as error:
        outcome = ends_of(error)
    return _Run(schedule, outcome)


def returned(value: object) -> tuple[str, ...]:
    """Returns what reports say of a program that has returned a value; nothing if it is false."""
    return (f"the program returns {value}",) if value else ()


def ends_of(error: Exception) -> tuple[str, ...]:
    """Returns how each failed rank ended, without times, which differ between runs."""
    if isinstance(error, SpawnException):
        failed = sorted(error.errors.items())
        return tuple([f"rank {rank} failed: {_end(cause)}" for rank, cause in failed])
    return (f"the program failed: {_end(error)}",)


def _end(error: BaseException) -> str:
    what = type(error).__name__
    if isinstance(error, KernbenchError):
        what += f" [{error.code}]" if error.code else ""
    elif text := text_of(error):
        what += f": {text.splitlines()[0]}"
    site = call_site_of(error)
    return what if site is None else f"{what}, {site_fact(site)}"


def _differ(first: _Run, second: _Run, again: str) -> ScheduleError:
    one, other = _parting(first.schedule, second.schedule)
    match = one or other
    facts = []
    if match is None:
        facts.append("every receive takes the same message; only when they come differs")
    else:
        facts.append(match.call)
    for run, taken in ((first, one), (second, other)):
        takes = "" if taken is None else f" takes that of rank {taken.source}"
        if taken is not None and len(taken.candidates) > 1:
            takes += f" of those of {folded(taken.candidates)}"
        ends = "; ".join(run.outcome) or "all ranks return"
        facts.append(
            f"schedule {run.schedule.name}{takes}: hosts read data {run.schedule.data[:_DIGITS]}, "
            f"{ends}"
        )
    return ScheduleError(
        "the result depends on which message a receive from any source takes",
        facts,
        hint="name the source, or use what comes in a way that no order changes; "
        f"{again} runs the second one again",
        code="P8",
    )


def _parting(first: Schedule, second: Schedule) -> tuple[Match | None, Match | None]:
    """Returns the first two matches, one of each schedule, that differ; None for a missing one."""
    before: dict[int, list[Match]] = {}
    for match in first.matches:
        before.setdefault(match.rank, []).append(match)
    turns: dict[int, int] = {}
    for match in second.matches:
        turn = turns[match.rank] = turns.get(match.rank, -1) + 1
        known = before.get(match.rank, [])[turn : turn + 1]
        if not known or known[0].source != match.source:
            return (known[0] if known else None), match
    return None, None
