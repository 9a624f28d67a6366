"""The guard against code that never yields (K5): the only place that looks at a clock of the host.

One daemon thread for the whole process, started with the first run or spawn, wakes many times per
limit and looks whose code is running. It adds up how long a user's own code has run since the last
simulated step; the time that this package takes, for the recording of a launch or the timing of a
collective, does not count. It raises `NoProgressError` in the thread of the simulation when that is
too long. Code that catches it and goes on, or that never comes to its next line, can be stopped by
nothing but the end of the process. The owner of the process may set `last_resort` for that; without
it the error is raised again and again.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import dropwhile
from types import CodeType, FrameType
from typing import Any, Final

from kernbench.des import EventLoop, ThreadCarrier, is_outermost, raise_in
from kernbench.errors import CallSite, KernbenchError, is_of_python, is_passed_over, site_fact
from kernbench.run_spec import RunSpec

SECONDS: Final = RunSpec().watchdog_s
"""Default limit, in seconds of wall time."""

_LOOKS: Final = 64
"""Number of looks of the thread during one limit."""

_MOST_PAUSES: Final = 2
"""Most pauses between looks that one look counts: a thread that wakes late has not looked."""

_LEAST_PAUSE_S: Final = 0.001
"""Shortest time between two looks, so that a short limit leaves time for the simulation."""

_IDLE_S: Final = 7.5
"""Seconds between two looks while nothing is simulated."""

_LIBRARIES: Final = sys.stdlib_module_names | {"numpy", "ml_dtypes", "networkx", "yaml", "greenlet"}
"""Packages whose frames run for whoever has called them: a user, or this package."""

_DEBUGGERS: Final = frozenset({"bdb", "pdb", "pydevd", "_pydevd_bundle", "debugpy"})
"""Packages under whose prompt somebody thinks, which is no loop without end."""

_GRACE_S: Final = 1.0
"""Seconds that stopped code may take, at least, before it counts as code that goes on."""

_HAND_ON: Final[set[str]] = set()
"""Modules of this package whose functions only call what the user means."""

last_resort: Callable[[KernbenchError, BaseException | None], None] | None = None
"""Ends the process; called, in any thread, with the error to print and the interrupt, if any."""


class NoProgressError(KernbenchError):
    """Nothing was simulated for too long while a rank or a kernel was running (K5)."""

    def __init__(self) -> None:
        # The interpreter makes it in the middle of a user's code, without arguments.
        allowed = _watch.allowed if _watch is not None else SECONDS
        super().__init__(
            f"code ran on past the watchdog's {allowed:g} s of wall time without a simulated step",
            hint="look for a loop that never waits; --watchdog or watchdog_s= sets the limit",
            code="K5",
        )

    def explain(self, name: str) -> None:
        """Adds which code was running, and where; called after the error has been caught.

        Args:
            name: Name of the rank, or of main, for the report.
        """
        self.add_fact(f"where {name} was, innermost call last:")
        found, traceback = [], self.__traceback__
        while traceback is not None:
            found.append((traceback.tb_frame, traceback.tb_lasti))
            traceback = traceback.tb_next
        for fact in _told(found):
            self.add_fact(fact)


class NobodyMovesError(NoProgressError):
    """All threads of a rank wait, and nothing else is under way (K5).

    Args:
        allowed: Seconds of wall time for which they have waited.
        others: The threads of the rank but the one that raises it, as `get_ident` gives them.
    """

    def __init__(self, allowed: float, others: Iterable[int]) -> None:
        KernbenchError.__init__(
            self,
            f"nobody has moved for the watchdog's {allowed:g} s of wall time: all threads wait",
            hint="look for what a thread waits for that no other brings; --watchdog or watchdog_s= "
            "sets the limit",
            code="K5",
        )
        frames = sys._current_frames()
        for thread in others:
            self.add_fact("where another thread of the rank is, innermost call last:")
            for fact in _told(_of_stack(frames.get(thread))):
                self.add_fact(fact)


def check_stillness(seconds: float, others: Iterable[int]) -> None:
    """Raises an error if nobody has moved for the limit of what is watched.

    A process that this one has started may still bring what is waited for, so then nothing is
    raised.

    Args:
        seconds: Wall time for which nobody could go on.
        others: The threads of the rank that waits but the calling one.

    Raises:
        NobodyMovesError: If that is so.
    """
    limit = 0.0 if _watch is None else _watch.limit
    if limit and seconds >= limit and not _has_children():
        raise NobodyMovesError(limit, others)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def hands_on(module: str) -> None:
    """Notes a module of this package whose functions only call what the user means.

    Args:
        module: Its `__name__`.
    """
    _HAND_ON.add(module)


def is_ours(frame: FrameType) -> bool:
    """Returns whether a frame belongs to this package."""
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0] == "kernbench"


@dataclass(slots=True, eq=False)
class Watch:
    """What is watched while it runs: main, or the ranks of a spawn.

    Attributes:
        loop: Event loop of the simulation; None while main has none yet.
        hub: Thread that drives it.
        limit: Seconds that a user's code may run without a simulated step; 0 for no limit.
        raised: Whether the code that runs now was told to stop.
        ranks: How many ranks there are. Once one was stopped, the run has failed, and all others
            together have as long as that one had.
        outer: What is watched again after it.
        starter: The function that runs main; None for ranks, whose stacks are their own.
        allowed: The limit at the beginning, for reports.
    """

    loop: EventLoop | None
    hub: int
    limit: float
    raised: bool = False
    ranks: int = 1
    outer: "Watch | None" = None
    starter: CodeType | None = None
    allowed: float = field(init=False)
    _failed: bool = False
    _spent: float = 0.0
    _last: float = 0.0
    _before: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        self.allowed = self.limit

    @property
    def thread(self) -> int:
        """Thread whose code runs now: the one that drives the simulation, or a rank's own."""
        return (self.loop and self.loop.thread) or self.hub

    @property
    def name(self) -> str:
        """Who runs now, for reports."""
        task = None if self.loop is None else self.loop.current
        return "main" if task is None else task.name

    @property
    def pause(self) -> float:
        """Seconds between two looks."""
        return max(self.limit / _LOOKS, _LEAST_PAUSE_S)

    def runs(self, frame: FrameType | None) -> bool:
        """Returns whether what is watched runs: an interrupt may have kept a watch from its end.

        Args:
            frame: Innermost frame of `thread`.
        """
        if self.starter is None:
            return self.loop is not None and self.loop.current is not None
        while frame is not None and frame.f_code is not self.starter:
            frame = frame.f_back
        return frame is not None

    def look(self, now: float, *, users: bool) -> bool:
        """Adds the time since the last look if a user's code has run meanwhile.

        Args:
            now: Seconds on any clock.
            users: Whether a user's own code is running at this moment.

        Returns:
            Whether the user's code has run for too long; the time is then counted anew.
        """
        last, self._last = self._last, now
        seen = self._seen()
        if seen != self._before:
            if self.raised and not self._failed:
                self._failed = True
                self.limit /= self.ranks
            self._before, self._spent, self.raised = seen, 0.0, False
            return False
        if users:
            self._spent += min(now - last, _MOST_PAUSES * self.pause)
        over = users and self._spent >= (max(self.limit, _GRACE_S) if self.raised else self.limit)
        if over:
            self._spent = 0.0
        return over

    def start_anew(self) -> None:
        """Forgets the time that was counted, as something was simulated meanwhile."""
        self._spent = 0.0

    def _seen(self) -> tuple[Any, ...]:
        """Returns a value that changes with every simulated step."""
        loop = self.loop
        if loop is None:
            return ()
        task = loop.current
        host = getattr(None if task is None else task.subject, "host", None)
        return (
            loop.now,
            loop.steps(),
            id(task),
            None if task is None else task.clock,
            None if host is None else host.clock,
        )


_watch: Watch | None = None
_wake: Final = threading.Condition()
_thread: threading.Thread | None = None


@contextmanager
def over_main(limit: float) -> Iterator[Watch]:
    """Watches main, which runs in the block, while no ranks do; its loop may be noted later.

    Args:
        limit: Seconds of wall time without progress; 0 for no limit.
    """
    starter = sys._getframe(2).f_code  # around this generator, and the `with` that drives it
    watch = _begin(Watch(None, threading.get_ident(), limit, starter=starter))
    try:
        yield watch
    except NoProgressError as error:
        error.explain("main")
        raise
    finally:
        end(watch)


def begin(loop: EventLoop, limit: float) -> Watch:
    """Watches the ranks of a simulation that the calling thread is about to drive.

    Args:
        loop: Event loop of the simulation.
        limit: Seconds of wall time without progress; 0 for no limit.
    """
    return _begin(Watch(loop, threading.get_ident(), limit, ranks=max(1, len(loop.tasks()))))


def _begin(watch: Watch) -> Watch:
    global _watch, _thread  # noqa: PLW0603 - one thread watches for the whole process
    waits = _watch.limit if _watch is not None and _watch.limit else SECONDS
    watch.outer, _watch = _watch, watch
    if not watch.limit:
        return watch
    ThreadCarrier.stuck = _interrupted
    if _thread is None:
        _thread = threading.Thread(target=_look_around, name="kernbench watchdog", daemon=True)
        _thread.start()
    elif watch.limit < waits:
        with _wake:
            _wake.notify()
    return watch


def end(watch: Watch) -> None:
    """Ends a watch; the one around it goes on, and counts anew."""
    global _watch  # noqa: PLW0603
    if _watch is watch:
        _watch = watch.outer
        if _watch is not None:
            _watch.start_anew()
        return
    inner = _watch  # that of another thread
    while inner is not None and inner.outer is not watch:
        inner = inner.outer
    if inner is not None:
        inner.outer = watch.outer


def patience(limit: float) -> Callable[[], float]:
    """Returns a check that tells, from now on, whether a user's loop has run too long.

    For loops that this package runs itself, such as those of a kernel: the thread does not count
    its time. The loop asks, and gets the limit in seconds once it has passed it, else 0. The time
    is that of the calling thread's processor, so that no busy host stops a loop.

    Args:
        limit: Seconds that it may take; 0 for no limit.
    """
    begin = time.thread_time()
    return lambda: limit if limit and time.thread_time() - begin >= limit else 0.0


def _look_around() -> None:
    pause = 0.0  # the limit of the first simulation may be short
    while True:
        with _wake:
            _wake.wait(pause)
        pause = _look()


def _look() -> float:
    """Looks once at the simulation that is watched; returns the seconds until the next look.

    A function of its own: while the thread waits, it holds no simulation.
    """
    watch = _watch
    if watch is None or not watch.limit:
        return _IDLE_S
    thread = watch.thread
    frame = sys._current_frames().get(thread)
    if watch.look(time.monotonic(), users=watch.runs(frame) and users_code_runs(frame)):
        if watch.raised and last_resort is not None:
            text = (
                f"{{}} was stopped after {watch.limit:g} s of wall time without a simulated step, "
                "and goes on"
            )
            hint = (
                "let NoProgressError through, and do not block on what is outside of the simulation"
            )
            last_resort(_cannot_stop(watch, text, hint, "K5"), None)
        # While this thread holds the interpreter, the other cannot leave the frame just seen.
        raise_in(thread, NoProgressError)
        watch.raised = True
    return watch.pause


def _interrupted(interrupt: BaseException) -> None:
    """Ends the process, if its owner wants it, while code that was interrupted goes on."""
    if _watch is not None and _watch.limit and last_resort is not None:
        text = "interrupted: {} is in a call that does not return"
        last_resort(_cannot_stop(_watch, text), interrupt)


def _cannot_stop(watch: Watch, text: str, hint: str = "", code: str = "") -> KernbenchError:
    """Returns the error about code that was stopped and did not come back.

    Args:
        watch: What is watched.
        text: What has happened, with a place for the name of the rank.
        code: Code of the mistake.
    """
    name, frame = watch.name, sys._current_frames().get(watch.thread)
    return KernbenchError(
        f"{text.format(name)}; the process ends",
        [f"{name} is running, innermost call last:", *_told(_of_stack(frame, watch.starter))],
        hint=hint,
        code=code,
    )


def _of_stack(
    frame: FrameType | None, starter: CodeType | None = None
) -> list[tuple[FrameType, int]]:
    """Returns the frames of a stack, and which instruction each runs, the innermost one last.

    Args:
        frame: The innermost frame.
        starter: The function that runs main; None for ranks.
    """
    found: list[tuple[FrameType, int]] = []
    while frame and not is_outermost(frame) and frame.f_code is not starter:
        found.insert(0, (frame, frame.f_lasti))
        frame = frame.f_back
    return found


def _told(found: list[tuple[FrameType, int]]) -> list[str]:
    """Returns the lines of frames, but those of this package, and of libraries if there are others.

    Args:
        found: Frames, and which instruction each runs, the innermost one last.
    """
    others = [each for each in found if not is_ours(each[0])]
    # What imports a program; a thread may run nothing but functions of Python.
    others = list(dropwhile(lambda each: is_of_python(each[0]), others)) or others
    own = [each for each in others if not is_passed_over(each[0])]
    return [
        site_fact(CallSite(frame.f_code, lasti), f"  {frame.f_code.co_name} at")
        for frame, lasti in own or others
    ]


def users_code_runs(frame: FrameType | None) -> bool:
    """Returns whether a stack runs a user's code, which may be stopped, and not this package's.

    Libraries such as numpy work for both, so their frames count for whoever has called them.

    A stack of libraries alone is that of a thread that a user has given a library's function.

    Args:
        frame: Innermost frame of the stack; None if the thread has ended.
    """
    runs = frame is not None
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        package = name.partition(".")[0]
        if package in _DEBUGGERS:
            return False
        if package not in _LIBRARIES and name not in _HAND_ON and not is_passed_over(frame):
            return bool(package != "kernbench")
        frame = frame.f_back
    return runs
