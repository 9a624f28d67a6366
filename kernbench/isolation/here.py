"""The rank, or the main program, whose code runs in this thread."""

import os
import threading
from collections.abc import Callable
from typing import Any, Final

from kernbench.process.process import Process


class Rank:
    """What a rank, or main, has of a process of its own.

    Libraries that are simulated derive from it, and say what else a rank has.

    Args:
        process: The simulated process.

    Attributes:
        process: The simulated process.
        pid: Number of the process of this computer in which it was made; that of a fork is another.
        aside: The clock of the worker whose work is done; None outside of it.
        turns: Which of its threads runs, once it has started some; None before.
        outside: Called in a process of this computer that the rank has started, as it begins: takes
            its devices from it. It can be pickled.
    """

    __slots__ = ("aside", "outside", "pid", "process", "turns")

    def __init__(self, process: Process) -> None:
        self.process: Final = process
        self.pid: Final = os.getpid()
        self.aside: int | None = None
        self.turns: Any = None
        self.outside: Callable[[], object] = _nothing

    def enter_thread(self) -> None:
        """Prepares the calling thread, which the rank has started, for the rank's code."""

    def leave_thread(self) -> None:
        """Undoes what `enter_thread` has done."""


def _nothing() -> None:
    pass


class _Here(threading.local):
    rank: Rank | None = None


HERE: Final = _Here()
"""Of the running thread: `rank`, which is None outside of simulated processes."""


def this_rank() -> Rank:
    """Returns the rank, or main, whose code runs here.

    Raises:
        AssertionError: Outside of a simulated process.
    """
    rank = HERE.rank
    assert rank is not None, "no simulated process runs in this thread"
    return rank
