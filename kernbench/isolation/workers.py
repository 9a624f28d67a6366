"""Worker processes that a library has beside a rank: their work is done in the rank's thread.

Each has its own clock, its own generators, and its own handlers. What a worker takes is what it
sleeps: code of the host takes no simulated time.
"""

import contextlib
import os
import random
import signal
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Final

import numpy as np

from kernbench.isolation.endings import as_child
from kernbench.isolation.here import this_rank
from kernbench.isolation.states import State, States


def _of(module: ModuleType, get: str, put: str) -> State:
    """Returns the state of a module's generator; each rank has its own functions of the module."""
    return State(
        module.__name__,
        lambda: getattr(module, get)(),  # noqa: PLW0108 - it may be replaced
        lambda value: getattr(module, put)(value),  # noqa: PLW0108
        alone=True,
    )


GENERATORS: Final = (
    _of(random, "getstate", "setstate"),
    _of(np.random, "get_state", "set_state"),
)
"""Generators of Python and NumPy."""


class Worker:
    """What a worker process has for itself.

    Args:
        generators: Generators of a process.
        seed: Seeds them, in the worker.

    Attributes:
        clock: Its time, in picoseconds.
    """

    def __init__(self, generators: States, seed: Callable[[], object]) -> None:
        self.clock = this_rank().process.host.clock
        self._generators: Final = generators
        with generators.kept():
            seed()
            self._own = generators.values()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """A block whose code runs in the worker."""
        rank = this_rank()
        with self._generators.kept():
            self._generators.put(self._own)
            rank.aside = self.clock
            try:
                with as_child(rank):
                    yield
            finally:
                self.clock, rank.aside = rank.aside, None
                self._own = self._generators.values()


def how_it_ended(stop: SystemExit) -> str:
    """Returns how a worker has ended that has ended itself, as the end of a sentence about it."""
    code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    worker = f"(pid {os.getpid()})"
    if code < 0:
        return f"{worker} is killed by signal: {signal.strsignal(-code)}. "
    return f"{worker} exited unexpectedly with exit code {code}."
