"""State of a Python process that each rank believes its own; one rank's stands at a time."""

import builtins
import contextlib
import copy
import importlib
import logging
import random
import sys
import warnings
from collections.abc import Callable, Collection, Iterator
from types import ModuleType
from typing import Any, Final

import numpy as np
import torch

from kernbench.bridge.base import states
from kernbench.bridge.base.here import HERE
from kernbench.bridge.base.replaced import Patch
from kernbench.des import EventLoop, Task
from kernbench.isolation.library_state import LibraryState
from kernbench.isolation.modules import Modules
from kernbench.isolation.warned import Warned
from kernbench.process.process import Process, RankLocal

_SEED: Final = 67280421310721
"""Seed of a generator of PyTorch in a process that has seeded none."""

_NOISE: Final = ("Attempted to get default timeout for nccl backend",)
"""Beginnings of warnings of PyTorch about this computer that say nothing about the simulated one.
"""


_KEPT_BY_THREADS: Final = "torch.distributed.tensor._dispatch"
"""A logger that C++ keeps for each thread and lets go at the thread's end without the lock of the
interpreter (pytorch#180081). It must not be the last to do so: the logger of a rank would be freed
then, which ends the interpreter. One made outside of ranks is every rank's, and is never freed."""


_MODULES: Final = vars(importlib.import_module("torch.nn.modules.module"))
_OPTIMIZERS: Final = vars(importlib.import_module("torch.optim.optimizer"))
"""Where PyTorch keeps hooks of all modules and of all optimizers of a process."""

_FULL: Final = "_global_is_full_backward_hook"


def _hooks() -> list[dict[str, Any]]:
    return [
        {name: value for name, value in kept.items() if name.startswith("_global_")}
        for kept in (_MODULES, _OPTIMIZERS)
    ]


class _State:
    """What stands for one rank while it runs."""

    __slots__ = (
        "argv",
        "finding",
        "handlers",
        "hooks",
        "level",
        "loggers",
        "main",
        "modules",
        "output",
        "printing",
        "rng",
        "set",
    )

    def __init__(self, rng: torch.Tensor, loggers: dict[str, Any]) -> None:
        self.rng = rng
        self.argv = list(sys.argv)
        self.finding = (sys.path, sys.meta_path, sys.path_hooks)
        self.printing = builtins.print
        self.handlers = list(logging.root.handlers)
        self.level = logging.root.level
        self.loggers = loggers
        self.hooks = _hooks()
        self.output = (sys.stdout, sys.stderr)
        self.set: list[Any] = []
        self.modules: dict[str, ModuleType] = {}
        self.main = sys.modules["__main__"]


class PerRank:
    """Lets the state of the process be that of the rank that runs.

    Args:
        seed: Says with PyTorch's default where a rank's generator starts.
        begun: What of `states.PROCESS` a rank begins with.
        modules: Modules that are imported once for each rank; None: none.
        libraries: State of libraries.
        without: Ranks that run no code of the program, and need no state.
    """

    def __init__(
        self,
        seed: int,
        begun: list[Any],
        modules: Modules | None,
        libraries: LibraryState,
        without: Collection[int] = (),
    ) -> None:
        self._first: Final = torch.Generator().manual_seed(_SEED + seed).get_state()
        self._begun: Final = begun
        self._modules: Final = modules
        self._libraries: Final = libraries
        self._without: Final = without
        self._states: Final[dict[int, _State]] = {}
        self._warned: Final = Warned(self._own_modules)
        self._rank = -1  # whose state stands; -1: that of code outside of ranks
        logging.getLogger(_KEPT_BY_THREADS)

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
            left = self._states[self._rank] = self._new()
        self._warned.leave(self._rank)
        self._keep(left)
        self._rank = rank
        state = self._states.get(rank)
        if state is None:
            outside = self._states[-1]
            state = self._states[rank] = self._new()
            state.argv, state.printing = list(outside.argv), outside.printing
            path, finders, hooks = outside.finding
            state.finding = (list(path), list(finders), list(hooks))
            state.handlers, state.level = list(outside.handlers), outside.level
            state.loggers, state.main = dict(outside.loggers), outside.main
            state.output, state.set = outside.output, states.copied(self._begun)
            state.hooks = [
                {name: copy.copy(value) for name, value in kept.items()} for kept in outside.hooks
            ]
        self._libraries.leave()
        self._put(state, left.set)
        self._warned.enter(rank)
        self._libraries.let_stand(rank)

    def _new(self) -> _State:
        return _State(self._first, logging.Logger.manager.loggerDict)

    def _keep(self, state: _State) -> None:
        state.rng = torch.default_generator.get_state()
        state.argv = sys.argv
        state.finding = (sys.path, sys.meta_path, sys.path_hooks)
        state.printing = builtins.print
        state.handlers, state.level = logging.root.handlers, logging.root.level
        state.loggers = logging.Logger.manager.loggerDict
        state.main = sys.modules["__main__"]
        state.output = (sys.stdout, sys.stderr)
        state.set = states.values()
        state.hooks[0][_FULL] = _MODULES[_FULL]  # the others are dicts, which stay the same objects
        if self._modules is not None:
            state.modules = self._modules.take()

    def _put(self, state: _State, now: list[Any]) -> None:
        torch.default_generator.set_state(state.rng)
        sys.argv = state.argv
        builtins.print = state.printing  # programs replace it in ranks that should be quiet
        logging.root.handlers = state.handlers
        if logging.root.level != state.level:
            logging.root.setLevel(state.level)
        logging.Logger.manager.loggerDict = state.loggers
        sys.modules["__main__"] = state.main
        sys.stdout, sys.stderr = state.output
        states.swap(now, state.set)
        _MODULES.update(state.hooks[0])
        _OPTIMIZERS.update(state.hooks[1])
        if self._modules is not None:
            self._modules.put(state.modules)
        sys.path, sys.meta_path, sys.path_hooks = state.finding


@contextlib.contextmanager
def own_process(modules: Modules | None, libraries: LibraryState) -> Iterator[list[Any]]:
    """Restores at the end of the block what programs change of the process.

    Args:
        modules: Modules that are imported once for each rank; None: none.
        libraries: State of libraries.

    Yields:
        What of `states.PROCESS` ranks begin with.
    """
    rng = torch.default_generator.get_state()
    finders: list[Any] = [libraries] if modules is None else [modules, libraries]
    with warnings.catch_warnings(), states.kept(states.PROCESS):
        torch.set_num_threads(1)  # several only fight over the cores, and change the rounding
        for noise in _NOISE:
            warnings.filterwarnings("ignore", noise)
        sys.meta_path[:0] = finders
        try:
            yield states.copied(states.values())
        finally:
            for finder in finders:
                sys.meta_path.remove(finder)
            torch.default_generator.set_state(rng)


def patches(seed: int) -> Iterator[Patch]:
    """Yields what lets `random` and `numpy.random` draw from generators of the rank.

    A rank's generators start at numbers that follow from the seed and the rank; those of a real
    process start anywhere.

    Args:
        seed: Of the run.
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


def _of_rank(real: Callable[..., Any], generators: "RankLocal[Any]", name: str) -> Any:
    def draw(*args: Any, **options: Any) -> Any:
        rank = HERE.rank
        if rank is None:
            return real(*args, **options)
        return getattr(generators.of(rank.process), name)(*args, **options)

    draw.__name__ = name
    draw.__doc__ = real.__doc__
    return draw
