"""Runs ranks that use the real PyTorch."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch.multiprocessing

from kernbench.bridge import per_rank
from kernbench.bridge.here import HERE, Rank
from kernbench.bridge.library_state import LibraryState
from kernbench.bridge.operations.shape_mode import ShapeMode, Shapes
from kernbench.bridge.operations.timing import TimeMode
from kernbench.bridge.packing import Packed, packed
from kernbench.bridge.patches import patched
from kernbench.bridge.per_rank import Modules, PerRank, own_process
from kernbench.bridge.processes import SpawnedProcesses
from kernbench.bridge.refused import not_simulated
from kernbench.bridge.same_ranks import SameRanks
from kernbench.bridge.tensors.hazards import Hazards
from kernbench.bridge.tensors.no_numbers import MADE_UP
from kernbench.bridge.tensors.storages import STORAGES
from kernbench.des.threads import ThreadPool
from kernbench.errors import libraries_passed_over
from kernbench.process.process import Process, current_process
from kernbench.runtime_api.multiprocessing import spawn_on


@contextlib.contextmanager
def bridged(
    *,
    data: bool,
    fake: bool = False,
    same_ranks: bool = False,
    ranks_per_node: int | None = None,
    script: Callable[[], ModuleType] | None = None,
    folders: Sequence[Path] = (),
) -> Iterator["Run"]:
    """Lets programs of PyTorch run on the current context until the end of the block.

    Args:
        data: Whether tensors have numbers.
        fake: Whether a value that is read is 0 if there are none; otherwise that is an error.
            `no_numbers.MADE_UP` counts such reads.
        same_ranks: Whether ranks do the same, so that two of them run the program and the others
            repeat what the first one does; only without numbers.
        ranks_per_node: Number of ranks, and so of devices, of each node; None for all.
        script: Runs the program's file as a module, once for each rank that it spawns; None: ranks
            share the function that they run, and its arguments.
        folders: Where the program's modules are, which each rank imports for itself.
    """
    process = current_process()
    local = ranks_per_node or len(process.ctx.devices)
    modules = Modules(folders) if folders else None
    libraries = LibraryState()
    run = Run(
        process,
        data=data,
        fake=fake,
        same_ranks=same_ranks,
        local=local,
        script=script,
        modules=modules,
        libraries=libraries,
    )
    MADE_UP.clear()
    with (
        libraries_passed_over(),
        own_process(modules, libraries),
        patched(run.spawn, per_rank.patches(process.ctx.spec.seed)),
    ):
        try:
            yield run
        finally:
            STORAGES.clear()


class Run:
    """A run of a program of PyTorch.

    Args:
        process: The process of code outside of ranks.
        data: Whether tensors have numbers.
        fake: Whether a value that is read is 0 if there are none; otherwise that is an error.
        same_ranks: As of `bridged`.
        local: Number of ranks, and so of devices, of each node.
        script: As of `bridged`.
        modules: The program's modules.
        libraries: State of libraries.

    Attributes:
        shapes: What is known of operations without numbers.
        unknown: Operations without a cost of their own, of all ranks: how often, and their time in
            picoseconds.
        made_up: Reads of values that are not there.
    """

    def __init__(
        self,
        process: Process,
        *,
        data: bool,
        fake: bool,
        same_ranks: bool,
        local: int,
        script: Callable[[], ModuleType] | None,
        modules: Modules | None,
        libraries: LibraryState,
    ) -> None:
        self.shapes: Final = Shapes()
        self.unknown: Final[dict[str, list[int]]] = {}
        self.made_up: Final = MADE_UP
        self._process: Final = process
        self._data: Final = data
        self._fake: Final = fake
        self._same_ranks: Final = same_ranks
        self._same: SameRanks | None = None
        self._local: Final = local
        self._script: Final = script
        self._modules: Final = modules
        self._libraries: Final = libraries

    @contextlib.contextmanager
    def main(self) -> Iterator[Rank]:
        """Lets the program outside of ranks use the first device."""
        with self._as_rank(self._process) as rank:
            yield rank

    def spawn(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
    ) -> SpawnedProcesses | None:
        """`torch.multiprocessing.spawn`.

        Args:
            fn: Function that runs as each rank: `fn(rank, *args)`.
            args: Further arguments of PyTorch.
            nprocs: Number of ranks.
            join: Whether to wait for the ranks; otherwise they run when the program waits for what
                is returned.
            daemon: Whether the end of the program ends ranks for which nobody waits.
            start_method: Must be `spawn`.

        Raises:
            UnsupportedError: For another `start_method`.
            SpawnException: If a rank failed.
        """
        __tracebackhide__ = True
        if start_method != "spawn":
            raise not_simulated(f"start_method={start_method!r}", "ranks start as by `spawn`")
        if not join:
            spawned = [
                torch.multiprocessing.Process(target=fn, args=(rank, *args), daemon=daemon)
                for rank in range(nprocs)
            ]
            for process in spawned:
                process.start()
            return SpawnedProcesses(spawned)
        if self._script is None:
            self.run(fn, args, nprocs)
        else:
            self.run(partial(_as_new_process, self._script, packed((fn, args))), (), nprocs)
        return None

    def run(self, fn: Callable[..., Any], args: tuple[Any, ...], nprocs: int) -> None:
        """Calls a function in each rank, which all share it and its arguments.

        Args:
            fn: Called with the rank and the arguments.
            args: The arguments.
            nprocs: Number of ranks.

        Raises:
            SpawnException: If a rank failed.
        """
        __tracebackhide__ = True
        loop = self._process.engine.loop
        loop.clamps_late = True
        same = self._same = SameRanks(nprocs) if self._same_ranks else None
        light = () if same is None else same.followers
        own = PerRank(self._process.ctx.spec.seed, self._modules, self._libraries, light)
        with ThreadPool() as carriers, own.swapping(loop):
            spawn_on(carriers, partial(self._rank_main, fn), args, nprocs, light)

    def _rank_main(self, fn: Callable[..., Any], number: int, *args: Any) -> None:
        process, same = current_process(), self._same
        if same is not None and number in same.followers:
            same.follow(process)
            return
        with self._as_rank(process) as rank:
            if same is None:
                fn(number, *args)
            else:
                with same.noting(rank):
                    fn(number, *args)

    @contextlib.contextmanager
    def _as_rank(self, process: Process) -> Iterator[Rank]:
        with as_rank(
            process, data=self._data, local=self._local, fake=self._fake, shapes=self.shapes
        ) as rank:
            try:
                yield rank
            finally:
                weight = 1 if self._same is None else self._same.weight(process.rank)
                for name, (times, ps) in rank.mode.unknown.items():
                    entry = self.unknown.setdefault(name, [0, 0])
                    entry[0] += times * weight
                    entry[1] += ps * weight


@contextlib.contextmanager
def as_rank(
    process: Process, *, data: bool, local: int, fake: bool = False, shapes: Shapes | None = None
) -> Iterator[Rank]:
    """Makes a process the one whose code of PyTorch runs in this thread.

    Args:
        process: The process.
        data: Whether tensors have numbers.
        fake: Whether a value that is read is 0 if there are none; otherwise that is an error.
        local: Number of ranks of each node.
        shapes: What is known of operations without numbers; None: nothing.
    """
    number = max(process.rank, 0)
    rank = Rank(process, number % local, process.ctx.devices[number], local, data=data, fake=fake)
    rank.hazards = Hazards(rank)
    rank.mode = TimeMode(rank) if data else ShapeMode(rank, shapes or Shapes())
    HERE.rank = rank
    try:
        with rank.mode:
            yield rank
    finally:
        HERE.rank = None


def _as_new_process(script: Callable[[], ModuleType], work: Packed, number: int) -> None:
    """Runs the program's file as a spawned process does, and then the function that it spawned."""
    sys.modules["__main__"] = sys.modules["__mp_main__"] = script()
    fn, args = work.unpacked()
    fn(number, *args)
