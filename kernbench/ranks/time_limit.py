"""The limit of simulated time (K10)."""

from collections.abc import Callable, Sequence

from kernbench.errors import call_site, site_fact
from kernbench.process.process import Process
from kernbench.ranks.rank_status import rank_status
from kernbench.ranks.verdicts import RankDeadlockError, Verdict
from kernbench.ranks.world import World
from kernbench.units import format_time


class TimeLimitError(RankDeadlockError):
    """A run has passed its limit of simulated time (K10)."""


_HINT = "look for a loop that does not end; --max-time or max_time_ps= sets the limit"


def _summary(limit_ps: int) -> str:
    return f"the run passed {format_time(limit_ps)} of simulated time"


def on_main(limit_ps: int) -> Callable[[], None]:
    """Returns what raises when main passes the limit.

    Args:
        limit_ps: The limit in picoseconds.
    """

    def passed() -> None:
        raise TimeLimitError(_summary(limit_ps), [site_fact(call_site())], hint=_HINT, code="K10")

    return passed


def on_ranks(limit_ps: int, world: World, processes: Sequence[Process]) -> Callable[[], None]:
    """Returns what blames all ranks when one of them, or the machine, passes the limit.

    It raises in a rank that runs, and returns outside of ranks.

    Args:
        limit_ps: The limit in picoseconds.
        processes: Their processes, by rank.
    """

    def passed() -> None:
        facts = rank_status(world, processes)
        verdict = Verdict("K10", _summary(limit_ps), _HINT, facts=facts, error=TimeLimitError)
        verdict.views = {process.rank: "" for process in processes if process.alive}
        current = processes[0].engine.loop.current
        running = [p.rank for p in processes if current is not None and p.task is current]
        verdict.pronounce(world, running[0] if running else None)

    return passed
