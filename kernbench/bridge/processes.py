"""`multiprocessing.Process`: what a main program starts becomes the ranks of a spawn.

Programs take the class from `torch.multiprocessing`, from `multiprocessing`, or from a context of
either. Pools, managers and executors take it, too: for them it stays Python's own.
"""

import functools
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import context, queues
from typing import Any, ClassVar, Final

import torch.multiprocessing

from kernbench.bridge.here import HERE
from kernbench.bridge.replaced import Patch
from kernbench.process.process import MAIN
from kernbench.runtime_api.processes import Process, run_started

_LIBRARIES: Final = frozenset(("multiprocessing", "concurrent"))


class RankProcess(Process):
    """A rank that the main program starts; see `Process`.

    Attributes:
        real: The class of Python that it stands for.
        spawn: Stands for `torch.multiprocessing.spawn`.
    """

    real: ClassVar[Any]
    spawn: ClassVar[Callable[..., None]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Returns a process of Python if a library of Python needs one."""
        caller: str = sys._getframe(1).f_globals.get("__name__", "")
        if HERE.rank is None or caller.partition(".")[0] in _LIBRARIES:
            return cls.real(*args, **kwargs)
        return super().__new__(cls)

    @property
    def pid(self) -> int | None:
        """Number of this process, in which ranks run; None before the start."""
        return os.getpid() if self._started else None

    @classmethod
    def _run_all(cls, started: Sequence[Process]) -> None:
        """See `Process`.

        Args:
            started: The processes, by rank.
        """
        cls.spawn(_run_one, ([_work(each) for each in started],), len(started))


def _work(process: Process) -> Callable[[], object]:
    """Returns what a process does, so that it can be pickled."""
    if "real" not in vars(type(process)):  # a class of the program
        return process.run
    if process._target is None:
        return _nothing
    return functools.partial(process._target, *process._args, **process._kwargs)


def _nothing() -> None:
    pass


def _run_one(rank: int, work: list[Callable[[], object]]) -> None:
    work[rank]()


class SpawnedProcesses:
    """What `torch.multiprocessing.spawn(join=False)` returns.

    Args:
        processes: The processes, which have started.
    """

    def __init__(self, processes: list[Any]) -> None:
        self.processes: Final = processes

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Runs all processes, to their end.

        Args:
            timeout: Ignored by design: wall time says nothing of simulated processes.
            grace_period: Ignored by design, too.

        Returns:
            True: all have ended.

        Raises:
            SpawnException: If one failed.
        """
        __tracebackhide__ = True
        del timeout, grace_period
        run_started()
        return True

    def pids(self) -> list[int]:
        """Returns the numbers of the processes."""
        return [process.pid for process in self.processes]


def _getting(real: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what takes an object out of a queue, which processes that are started may put."""

    @functools.wraps(real)
    def get(*args: Any, **options: Any) -> Any:
        rank = HERE.rank
        if rank is not None and rank.process.rank == MAIN:
            run_started()
        return real(*args, **options)

    return get


def patches(spawn: Callable[..., None]) -> Iterator[Patch]:
    """Yields what is replaced of `multiprocessing`.

    Args:
        spawn: Stands for `torch.multiprocessing.spawn`.
    """
    owners = (
        context.SpawnContext,
        context.ForkContext,
        context.ForkServerContext,
        context.DefaultContext,
        multiprocessing,
        torch.multiprocessing,
    )
    for owner in owners:
        real: Any = vars(owner)["Process"]
        content = {"real": real, "spawn": staticmethod(spawn)}
        yield Patch(owner, "Process", type("Process", (RankProcess,), content))
    for queue in (queues.Queue, queues.SimpleQueue):
        yield Patch(queue, "get", _getting(queue.get))
