"""`torch.multiprocessing.Process`: what a main program starts becomes the ranks of a spawn.

PyTorch has these names from Python's `multiprocessing`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from kernbench.errors import KernbenchError, OptionError, UnsupportedError, call_site, site_fact
from kernbench.process.process import MAIN, RankLocal, current_process
from kernbench.ranks.spawn_errors import SpawnException
from kernbench.runtime_api.multiprocessing import spawn

__all__ = ["Process", "get_start_method", "set_start_method"]

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})

_METHODS: Final = ("spawn", "fork", "forkserver")


class Process:
    """A rank that the main program starts; the r-th that is started is rank r.

    Processes run together once main waits for one of them, or ends. If a rank fails, the call that
    waits raises `SpawnException`, where Python would print a traceback and set `exitcode`.

    Args:
        group: Must be None.
        target: Function that runs as the rank.
        name: Name of the process; by default `Process-` and a number.
        args: Arguments of `target`.
        kwargs: Named arguments of `target`.
        daemon: Whether main does not wait for it at its end; if main waits for none, none runs.

    Attributes:
        name: Name of the process.
        daemon: See `daemon` above.
    """

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] = _NONE,
        *,
        daemon: bool | None = None,
    ) -> None:
        if group is not None:
            raise OptionError("Process(group=): expected None", [site_fact(call_site())])
        self._target = target
        self._args = tuple(args)
        self._kwargs = dict(kwargs)
        self._started = False
        self.name = name
        self.daemon = bool(daemon)
        self._code: int | None = None
        self._was_looked_at = False

    def run(self) -> None:
        """Calls the target, as the rank; a class of one's own may do something else."""
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def start(self) -> None:
        """Makes the process the next rank.

        Raises:
            KernbenchError: If it was started before, or inside of a rank (C19).
        """
        process = current_process()
        if process.rank != MAIN:
            raise KernbenchError(
                f"Process.start() inside rank {process.rank}",
                [site_fact(call_site())],
                hint="start all ranks from main",
                code="C19",
            )
        if self._started:
            raise KernbenchError("Process.start() was called twice", [site_fact(call_site())])
        self._started = True
        waiting = _STARTED.of(process)
        waiting.append(self)
        self.name = self.name or f"Process-{len(waiting)}"

    def join(self, timeout: float | None = None) -> None:
        """Runs all processes that are started, to their end.

        Args:
            timeout: Ignored by design: wall time says nothing of simulated processes.

        Raises:
            KernbenchError: If the process was not started.
            SpawnException: If a rank failed.
        """
        __tracebackhide__ = True
        del timeout
        if not self._started:
            raise KernbenchError(
                "Process.join() before start()",
                [site_fact(call_site())],
                hint="call start() first",
            )
        run_started()

    def is_alive(self) -> bool:
        """Returns False for a process that was started, after it has run as in `join`."""
        __tracebackhide__ = True
        if self._started:
            run_started()
        return False

    @property
    def exitcode(self) -> int | None:
        """0 after the process has ended, 1 if it failed; None before.

        The first look after the start finds the process running. A program that looks again waits
        for its end, so all processes that are started run, as in `join`.
        """
        __tracebackhide__ = True
        if self._started and self._code is None and current_process().rank == MAIN:
            if self._was_looked_at:
                run_started()
            self._was_looked_at = True
        return self._code

    @classmethod
    def _run_all(cls, started: Sequence["Process"]) -> None:
        """Runs processes as the ranks of one spawn.

        Args:
            started: The processes, by rank.
        """
        __tracebackhide__ = True
        spawn(_run_one, args=(started,), nprocs=len(started))

    def close(self) -> None:
        """Frees what the process holds: nothing."""

    def terminate(self) -> None:
        """Refuses: ranks end by themselves.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError("Process.terminate() is not simulated", [site_fact(call_site())])

    kill = terminate


_STARTED: Final[RankLocal[list[Process]]] = RankLocal("started processes", lambda _: [])


def run_started(*, at_end: bool = False) -> None:
    """Runs the processes that main has started and that have not run, as the ranks of one spawn.

    Args:
        at_end: Whether main ends, so that daemons alone do not run.

    Raises:
        KernbenchError: Inside of a rank (C19).
        SpawnException: If a rank failed.
    """
    __tracebackhide__ = True
    main = current_process()
    if main.rank != MAIN:
        if at_end:
            return
        raise KernbenchError(
            f"rank {main.rank} waits for a process that main has started",
            [site_fact(call_site())],
            hint="wait on main",
            code="C19",
        )
    started = list(_STARTED.of(main))
    _STARTED.forget(main)
    if not started or (at_end and all(each.daemon for each in started)):
        return
    try:
        started[0]._run_all(started)
    except SpawnException as error:
        for rank, each in enumerate(started):
            each._code = 1 if rank in error.errors or rank in error.aborted else 0
        raise
    for each in started:
        each._code = 0


def _run_one(rank: int, started: Sequence[Process]) -> None:
    started[rank].run()


def set_start_method(method: str | None, force: bool = False) -> None:
    """Takes what Python takes; all ranks are tasks of this process, however they are started.

    Args:
        method: `spawn`, `fork`, `forkserver` or None.
        force: Ignored by design: nothing is set that could be set twice.

    Raises:
        OptionError: For another method.
    """
    del force
    if method is not None and method not in _METHODS:
        raise OptionError(
            f"set_start_method({method!r}): expected one of {', '.join(_METHODS)}",
            [site_fact(call_site())],
        )


def get_start_method(allow_none: bool = False) -> str:
    """Returns `spawn`: as there, ranks share no environment with main.

    Args:
        allow_none: Ignored by design: there always is a method.
    """
    del allow_none
    return "spawn"
