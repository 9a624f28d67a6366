"""`multiprocessing.Process`: what a main program starts becomes the ranks of a spawn.

What a rank starts is a process of this computer, which has no device.

Programs take the class from `multiprocessing`, from a library that passes it on, such as
`torch.multiprocessing`, or from a context of either. Pools, managers and executors take it, too:
for them it stays Python's own.
"""

import functools
import inspect
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import context, queues
from types import ModuleType
from typing import Any, ClassVar, Final

from kernbench.errors import not_simulated
from kernbench.isolation.children import Work
from kernbench.isolation.here import HERE, this_rank
from kernbench.isolation.replaced import Patch
from kernbench.isolation.turns import pass_on, turns_of
from kernbench.process.process import MAIN
from kernbench.ranks.watchdog import hands_on
from kernbench.runtime_api.processes import Process, run_started

hands_on(__name__)

_PRIVATE: Final = ("_Popen", "_after_fork")

_LIBRARIES: Final = frozenset(("multiprocessing", "concurrent"))


class RankProcess(Process):
    """A rank that the main program starts; see `Process`.

    Attributes:
        real: The class of Python that it stands for.
        spawn: Stands for `torch.multiprocessing.spawn`.
    """

    _beside: Any
    real: ClassVar[Any]
    spawn: ClassVar[Callable[..., None]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Returns a process of Python if a library of Python needs one."""
        caller: str = sys._getframe(1).f_globals.get("__name__", "")
        if HERE.rank is None or caller.partition(".")[0] in _LIBRARIES:
            return cls.real(*args, **kwargs)
        process = super().__new__(cls)
        process._beside = None
        return process

    @property
    def pid(self) -> int | None:
        """Number of this process, in which ranks run, or of its own; None before the start."""
        if self._beside is not None:
            number: int | None = self._beside.pid
            return number
        return os.getpid() if self._started else None

    def start(self) -> None:
        """Makes the process the next rank; in a rank, starts a process without a device."""
        rank = HERE.rank
        if rank is None or rank.process.rank == MAIN or self._started:
            super().start()
            return
        real: Any = self.real
        work = Work(_work(self), rank.outside)
        self._beside = real(target=work, name=self.name, daemon=self.daemon or None)
        self._started = True
        self._beside.start()
        self.name = self._beside.name

    def join(self, timeout: float | None = None) -> None:
        """Waits for the end of the process; see `Process`.

        Args:
            timeout: Seconds of this computer, for a process that a rank has started.
        """
        __tracebackhide__ = True
        if self._beside is None:
            super().join(timeout)
            return
        turns = turns_of(this_rank())
        if turns.until(lambda: self._beside.exitcode is not None, timeout):
            self._beside.join()

    def is_alive(self) -> bool:
        """Returns whether a process of a rank runs; see `Process`."""
        __tracebackhide__ = True
        if self._beside is None:
            return super().is_alive()
        pass_on()
        alive: bool = self._beside.is_alive()
        return alive

    @property
    def exitcode(self) -> int | None:
        """Exit code of the process, None before its end; see `Process`."""
        __tracebackhide__ = True
        if self._beside is None:
            return super().exitcode
        pass_on()
        code: int | None = self._beside.exitcode
        return code

    @property
    def sentinel(self) -> int:
        """What becomes ready when a process ends that a rank has started.

        Raises:
            UnsupportedError: Of a rank.
        """
        if self._beside is None:
            raise not_simulated("Process.sentinel", "join() waits for all ranks")
        number: int = self._beside.sentinel
        return number

    def terminate(self) -> None:
        """Ends a process that a rank has started; refused for ranks."""
        if self._beside is None:
            super().terminate()
        else:
            self._beside.terminate()

    def kill(self) -> None:
        """Kills a process that a rank has started; refused for ranks."""
        if self._beside is None:
            super().terminate()
        else:
            self._beside.kill()

    def close(self) -> None:
        """Frees what the process holds."""
        if self._beside is not None:
            self._beside.close()

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


def patches(spawn: Callable[..., None], *more: ModuleType) -> Iterator[Patch]:
    """Yields what is replaced of `multiprocessing`.

    Args:
        spawn: Stands for `torch.multiprocessing.spawn`.
        more: Modules that pass the class on.
    """
    owners = (
        context.SpawnContext,
        context.ForkContext,
        context.ForkServerContext,
        context.DefaultContext,
        multiprocessing,
        *more,
    )
    for owner in owners:
        real: Any = vars(owner)["Process"]
        # Python starts a process of no context by private names of this class.
        content = {name: inspect.getattr_static(real, name) for name in _PRIVATE}
        content |= {"real": real, "spawn": staticmethod(spawn)}
        yield Patch(owner, "Process", type("Process", (RankProcess,), content))
    for queue in (queues.Queue, queues.SimpleQueue):
        yield Patch(queue, "get", _getting(queue.get))
