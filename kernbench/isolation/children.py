"""Processes of this computer that a rank starts: they have no device.

A rank may start processes that write files or compute on the host, such as those of a checkpoint.
A fork begins with all that the rank has, so it leaves the simulation first.
"""

import contextlib
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Final

from kernbench.des.carrier import here
from kernbench.isolation.here import HERE, Rank
from kernbench.isolation.replaced import Patch
from kernbench.process.process import MAIN
from kernbench.ranks.environments import Environments


def _forked() -> None:
    """Takes a fork of a rank out of the simulation, in which it has neither device nor hub."""
    global _is_fork  # noqa: PLW0603
    rank = HERE.rank
    if rank is None:
        return
    _is_fork = True
    environment = dict(os.environ)
    HERE.rank = here.carrier = None
    own: Any = os.environ
    if isinstance(own, Environments):
        os.environ = own.of_main  # type: ignore[assignment]  # noqa: B003
    os.environ.clear()
    os.environ.update(environment)
    rank.outside()


_is_fork = False
"""Whether this process is the fork of a rank."""

os.register_at_fork(after_in_child=_forked)


@contextlib.contextmanager
def forks_end(rank: Rank) -> Iterator[None]:
    """Ends the process of a fork that comes back out of its rank's code, where nobody waits for it.

    Args:
        rank: The rank, whose code runs in the block.
    """
    code = 0
    try:
        yield
    except BaseException as error:
        if os.getpid() == rank.pid:
            raise
        code = 1
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        else:
            traceback.print_exception(error)
    if os.getpid() != rank.pid:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


class Work:
    """What a process does that a rank starts.

    Args:
        run: The program's function, without arguments.
        outside: As of the rank that starts it.
    """

    def __init__(self, run: Callable[[], object], outside: Callable[[], object]) -> None:
        self._run: Final = run
        self._outside: Final = outside
        self._environment: Final = dict(os.environ)

    def __call__(self) -> None:
        """Runs, in the process."""
        if not _is_fork:  # a fork is outside by now
            os.environ.update(self._environment)
            self._outside()
        self._run()


def _with_environment(real: Callable[..., None]) -> Callable[..., None]:
    """Returns what starts a program, which inherits the environment of its rank."""

    @wraps(real)
    def init(process: Any, *args: Any, **options: Any) -> None:
        rank = HERE.rank
        in_rank = rank is not None and rank.process.rank != MAIN
        if in_rank and len(args) <= _ENV and options.get("env") is None:
            options["env"] = dict(os.environ)
        real(process, *args, **options)

    return init


_ENV: Final = 10
"""Place of the environment among the arguments of `Popen`."""


def patches() -> Iterator[Patch]:
    """Yields what is replaced of `subprocess`."""
    yield Patch(subprocess.Popen, "__init__", _with_environment(subprocess.Popen.__init__))
