"""State of a Python process that each rank believes its own; one rank's stands at a time."""

import builtins
import contextlib
import logging
import random
import sys
import warnings
from collections.abc import Callable, Collection, Iterator
from types import ModuleType
from typing import Any, Final

import numpy as np

from kernbench.des import EventLoop, Task
from kernbench.isolation.here import HERE
from kernbench.isolation.library_state import LibraryState
from kernbench.isolation.modules import Modules
from kernbench.isolation.replaced import Patch
from kernbench.isolation.states import States
from kernbench.isolation.warned import Warned
from kernbench.process.process import Process, RankLocal
from kernbench.ranks.watchdog import hands_on

hands_on(__name__)


class _State:
    """What stands for one rank while it runs."""

    __slots__ = (
        "argv",
        "finding",
        "handlers",
        "level",
        "loggers",
        "main",
        "modules",
        "output",
        "printing",
        "set",
    )

    def __init__(self) -> None:
        self.argv = list(sys.argv)
        self.finding = (sys.path, sys.meta_path, sys.path_hooks)
        self.printing = builtins.print
        self.handlers = list(logging.root.handlers)
        self.level = logging.root.level
        self.loggers = logging.Logger.manager.loggerDict
        self.output = (sys.stdout, sys.stderr)
        self.set: list[Any] = []
        self.modules: dict[str, ModuleType] = {}
        self.main = sys.modules["__main__"]


class PerRank:
    """Lets the state of the process be that of the rank that runs.

    Args:
        table: What programs set for a process.
        begun: What there was of it when the run began.
        modules: Modules that are imported once for each rank; None: none.
        without: Ranks that run no code of the program, and need no state.
    """

    def __init__(
        self,
        table: States,
        begun: list[Any],
        modules: Modules | None,
        libraries: LibraryState,
        without: Collection[int] = (),
    ) -> None:
        self._table: Final = table
        self._begun: Final = begun
        self._modules: Final = modules
        self._libraries: Final = libraries
        self._without: Final = without
        self._states: Final[dict[int, _State]] = {}
        self._warned: Final = Warned(self._own_modules)
        self._rank = -1  # whose state stands; -1: that of code outside of ranks

    @contextlib.contextmanager
    def swapping(self, loop: EventLoop) -> Iterator[None]:
        """Swaps the state until the end of the block, when that of code outside of ranks stands.

        Args:
            loop: Runs the ranks.
        """
        before, output = loop.on_resume, (sys.stdout, sys.stderr)
        loop.on_resume = self._resumed
        try:
            with self._warned.watching():
                yield
        finally:
            loop.on_resume = before
            self._let_stand(-1)
            self._libraries.forget_ranks()
            sys.stdout, sys.stderr = output  # those that stood for them while ranks ran are closed
            self._states.clear()

    def _own_modules(self) -> Collection[str]:
        names = set() if self._modules is None else self._modules.names
        return {"__main__", *names}

    def _resumed(self, task: Task) -> None:
        subject = task.subject
        if (
            isinstance(subject, Process)
            and subject.rank != self._rank
            and subject.rank not in self._without
        ):
            self._let_stand(subject.rank)

    def _let_stand(self, rank: int) -> None:
        if rank == self._rank:
            return
        left = self._states.get(self._rank)
        if left is None:
            left = self._states[self._rank] = _State()
        self._warned.leave(self._rank)
        self._keep(left)
        self._rank = rank
        state = self._states.get(rank)
        if state is None:
            outside = self._states[-1]
            state = self._states[rank] = _State()
            state.argv, state.printing = list(outside.argv), outside.printing
            path, finders, hooks = outside.finding
            state.finding = (list(path), list(finders), list(hooks))
            state.handlers, state.level = list(outside.handlers), outside.level
            state.loggers, state.main = dict(outside.loggers), outside.main
            state.output, state.set = outside.output, self._table.begun(self._begun)
        self._libraries.leave()
        self._put(state, left.set)
        self._warned.enter(rank)
        self._libraries.let_stand(rank)

    def _keep(self, state: _State) -> None:
        state.argv = sys.argv
        state.finding = (sys.path, sys.meta_path, sys.path_hooks)
        state.printing = builtins.print
        state.handlers, state.level = logging.root.handlers, logging.root.level
        state.loggers = logging.Logger.manager.loggerDict
        state.main = sys.modules["__main__"]
        state.output = (sys.stdout, sys.stderr)
        state.set = self._table.values()
        if self._modules is not None:
            state.modules = self._modules.take()

    def _put(self, state: _State, now: list[Any]) -> None:
        sys.argv = state.argv
        builtins.print = state.printing  # programs replace it in ranks that should be quiet
        logging.root.handlers = state.handlers
        if logging.root.level != state.level:
            logging.root.setLevel(state.level)
        logging.Logger.manager.loggerDict = state.loggers
        sys.modules["__main__"] = state.main
        sys.stdout, sys.stderr = state.output
        self._table.swap(now, state.set)
        if self._modules is not None:
            self._modules.put(state.modules)
        sys.path, sys.meta_path, sys.path_hooks = state.finding


@contextlib.contextmanager
def own_process(
    table: States,
    settle: Callable[[], object],
    modules: Modules | None,
    libraries: LibraryState,
) -> Iterator[list[Any]]:
    """Restores at the end of the block what programs change of the process.

    Args:
        table: What programs set for a process.
        settle: Sets what main and all ranks begin with.
        modules: Modules that are imported once for each rank; None: none.

    Yields:
        What there is of `table`.
    """
    finders: list[Any] = [libraries] if modules is None else [modules, libraries]
    with warnings.catch_warnings(), table.kept():
        settle()
        sys.meta_path[:0] = finders
        try:
            yield table.begun(table.values())
        finally:
            for finder in finders:
                sys.meta_path.remove(finder)
            libraries.end()


_NUMPY_FUNCTIONS: Final = {"seed": "seed", "sample": "random_sample", "ranf": "random_sample"}
"""Functions of `numpy.random` that are no methods of its generator, and the methods they call."""


def patches(seed: int) -> Iterator[Patch]:
    """Yields what lets `random` and `numpy.random` draw from generators of the rank.

    A rank's generators start at numbers that follow from the seed and the rank; those of a real
    process start anywhere.
    """

    def start(process: Process) -> int:
        return seed * 1_000_003 + process.rank + 1

    plain: RankLocal[Any] = RankLocal("random", lambda process: random.Random(start(process)))
    numpy: RankLocal[Any] = RankLocal(
        "numpy.random", lambda process: np.random.RandomState(start(process) % (1 << 32))
    )
    for module, generators, real in (
        (random, plain, random._inst),
        (np.random, numpy, np.random.mtrand._rand),
    ):
        for name, value in list(vars(module).items()):
            if getattr(value, "__self__", None) is real:
                yield Patch(module, name, _of_rank(value, generators, name))
    for name, method in _NUMPY_FUNCTIONS.items():
        yield Patch(np.random, name, _of_rank(getattr(np.random, name), numpy, method))


def _of_rank(real: Callable[..., Any], generators: "RankLocal[Any]", name: str) -> Any:
    def draw(*args: Any, **options: Any) -> Any:
        rank = HERE.rank
        if rank is None:
            return real(*args, **options)
        return getattr(generators.of(rank.process), name)(*args, **options)

    draw.__name__ = name
    draw.__doc__ = real.__doc__
    return draw
