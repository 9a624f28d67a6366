"""`time` in ranks: a program that measures itself, or sleeps, does so in simulated time.

Python's own library and the packages that all ranks share wait for real processes and files, so for
them real time passes. `timeit` measures for the program, and so does what uses it, such as
`torch.utils.benchmark`.
"""

import functools
import sys
import time
import timeit
from collections.abc import Callable, Iterator
from typing import Any, Final

from kernbench.isolation.belonging import SYSTEM
from kernbench.isolation.here import HERE, Rank
from kernbench.isolation.replaced import Patch
from kernbench.isolation.turns import pass_on, turns_here
from kernbench.units import PS_PER_S

_REAL_TIME: Final = sys.stdlib_module_names | SYSTEM
"""Packages whose code reads the clocks of this computer."""

_CLOCKS: Final = ("time", "perf_counter", "monotonic")

_NS_PER_S: Final = 10**9


def _asking() -> Rank | None:
    """Returns the rank if the program, two frames further out, asks; None if a library does."""
    rank = HERE.rank
    if rank is None:
        return None
    caller: str = sys._getframe(2).f_globals.get("__name__", "")
    return None if caller.partition(".")[0] in _REAL_TIME else rank


def _is_of_python() -> bool:
    """Returns whether the caller, two frames further out, is of Python's own library."""
    caller: str = sys._getframe(2).f_globals.get("__name__", "")
    return caller.partition(".")[0] in sys.stdlib_module_names


def _shown_ps(rank: Rank) -> int:
    """Returns the time of a rank's host in picoseconds."""
    return rank.process.host.clock if rank.aside is None else rank.aside


def _clock(real: Callable[[], Any], origin_ns: int, *, whole: bool) -> Callable[[], Any]:
    """Returns a clock that shows a rank the time of its host.

    Args:
        real: The clock of this computer.
        origin_ns: What it shows when simulated time is 0.
        whole: Whether it shows whole nanoseconds, and not seconds.
    """

    @functools.wraps(real)
    def clock() -> Any:
        rank = _asking()
        if rank is None:
            return real()
        if whole:
            return origin_ns + _shown_ps(rank) * _NS_PER_S // PS_PER_S
        return origin_ns / _NS_PER_S + _shown_ps(rank) / PS_PER_S

    return clock


def _sleep(real: Callable[[float], None]) -> Callable[[float], None]:
    @functools.wraps(real)
    def sleep(seconds: float) -> None:
        rank, turns = _asking(), turns_here()
        if rank is None and turns is not None and seconds > 0 and _is_of_python():
            turns.until(lambda: False, seconds)
        elif rank is None or seconds < 0:
            real(seconds)  # which refuses what is below 0
        elif rank.aside is not None:
            rank.aside += round(seconds * PS_PER_S)
        else:
            rank.process.host.sleep(round(seconds * PS_PER_S))
            pass_on()

    return sleep


def _stopwatch() -> float:
    """What `timeit` measures by, in seconds."""
    rank = HERE.rank
    return time.perf_counter() if rank is None else _shown_ps(rank) / PS_PER_S


def _timing(init: Callable[..., None], real: Callable[[], float]) -> Callable[..., None]:
    """Returns how a `timeit.Timer` begins that nobody gave a clock: by that of a rank."""

    @functools.wraps(init)
    def begins(
        self: timeit.Timer,
        stmt: Any = "pass",
        setup: Any = "pass",
        timer: Callable[[], float] = real,
        globals: dict[str, Any] | None = None,
    ) -> None:
        init(self, stmt, setup, _stopwatch if timer is real else timer, globals)

    return begins


def patches() -> Iterator[Patch]:
    """Yields what is replaced of `time` and `timeit`."""
    yield Patch(timeit.Timer, "__init__", _timing(timeit.Timer.__init__, timeit.default_timer))
    yield Patch(timeit, "default_timer", _stopwatch)
    for name in _CLOCKS:
        # As on a computer that has just been switched on, but for the date.
        origin_ns = time.time_ns() if name == "time" else 0
        whole = f"{name}_ns"
        yield Patch(time, name, _clock(getattr(time, name), origin_ns, whole=False))
        yield Patch(time, whole, _clock(getattr(time, whole), origin_ns, whole=True))
    yield Patch(time, "sleep", _sleep(time.sleep))
