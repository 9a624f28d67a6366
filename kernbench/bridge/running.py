"""Runs ranks that use the real PyTorch."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch.multiprocessing

from kernbench.bridge.base import states
from kernbench.bridge.base.here import HERE, Rank
from kernbench.bridge.distributed.opened_stores import OPENED
from kernbench.bridge.distributed.replicas import Replicas
from kernbench.bridge.operations.direct import DirectMode
from kernbench.bridge.operations.fake_mode import FakeMode
from kernbench.bridge.operations.shape_mode import ShapeMode, Shapes
from kernbench.bridge.programs.children import without_devices
from kernbench.bridge.programs.patches import patched
from kernbench.bridge.tensors.hazards import Hazards
from kernbench.bridge.tensors.storages import STORAGES
from kernbench.des import Killed
from kernbench.des.threads import ThreadPool
from kernbench.errors import UsageError, libraries_passed_over, not_simulated
from kernbench.flight_recorder.files import FlightRecords
from kernbench.following.same_ranks import SameRanks
from kernbench.isolation import per_rank
from kernbench.isolation.children import forks_end
from kernbench.isolation.endings import ProcessEnded, at_end
from kernbench.isolation.library_state import LibraryState
from kernbench.isolation.made_up import MADE_UP
from kernbench.isolation.modules import Modules
from kernbench.isolation.packing import Packed, packed
from kernbench.isolation.per_rank import PerRank, own_process
from kernbench.isolation.processes import SpawnedProcesses
from kernbench.isolation.replaced import Patch, WhenImported
from kernbench.process.process import Process, current_process
from kernbench.ranks.spawn_errors import RankAborted
from kernbench.runtime_api.multiprocessing import check_first, spawn_on
from kernbench.triton.registering import compiling


@contextlib.contextmanager
def bridged(
    *,
    data: bool,
    fake: bool = False,
    same_ranks: bool = False,
    witnesses: Sequence[int] | None = None,
    ranks_per_node: int | None = None,
    script: Callable[[], ModuleType] | None = None,
    folders: Sequence[Path] = (),
    flight_folder: Path | None = None,
    check_replicas: bool = False,
) -> Iterator["Run"]:
    """Lets programs of PyTorch run on the current context until the end of the block.

    Args:
        data: Whether tensors have numbers.
        fake: Whether a value that is read is 0 if there are none; otherwise that is an error.
            `isolation.made_up.MADE_UP` counts such reads.
        same_ranks: Whether ranks do the same, so that some of them run the program and the others
            repeat what the first one does; only without numbers.
        witnesses: With `same_ranks`, which ranks run it beside the first one; None for the last.
        ranks_per_node: Number of ranks, and so of devices, of each node; None for all.
        script: Runs the program's file as a module, once for each rank that it spawns; None: ranks
            share the function that they run, and its arguments.
        folders: Where the program's modules are, which each rank imports for itself.
        flight_folder: Where the files of PyTorch's flight recorder go at the end of ranks, however
            they end; None for none.
        check_replicas: Whether the parameters of DDP's replicas are compared; only with numbers.
    """
    process = current_process()
    local = ranks_per_node or len(process.ctx.devices)
    modules = Modules(folders) if folders else None
    libraries = LibraryState(states.LISTED)
    run = Run(
        process,
        data=data,
        fake=fake,
        same_ranks=same_ranks,
        witnesses=witnesses,
        local=local,
        script=script,
        modules=modules,
        libraries=libraries,
        flights=None if flight_folder is None else FlightRecords(flight_folder),
        replicas=Replicas() if check_replicas else None,
    )
    MADE_UP.clear()
    with (
        libraries_passed_over(),
        compiling(),
        own_process(run.table, states.settle, modules, libraries) as run.begun,
        patched(run.spawn, _patches(run, process.ctx.spec.seed), libraries.importing),
    ):
        libraries.begin()
        try:
            yield run
        finally:
            STORAGES.clear()
            OPENED.clear()


def _patches(run: "Run", seed: int) -> Iterator[Patch | WhenImported]:
    yield from per_rank.patches(seed)
    if run.replicas is not None:
        yield from run.replicas.patches()


class Run:
    """A run of a program of PyTorch.

    Args:
        data: Whether tensors have numbers.
        fake: Whether a value that is read is 0 if there are none; otherwise that is an error.
        same_ranks: As of `bridged`.
        witnesses: As of `bridged`.
        local: Number of ranks, and so of devices, of each node.
        script: As of `bridged`.
        modules: The program's modules.
        flights: Notes what ranks call together; None if nobody asks.
        replicas: Compares DDP's replicas; None if nobody asks.

    Attributes:
        replicas: Compares DDP's replicas; None if nobody asks.
        shapes: What is known of operations without numbers.
        unknown: Operations without a cost of their own, of all ranks: how often, and their time in
            picoseconds.
        made_up: Reads of values that are not there.
        table: What programs set for a process.
        begun: What there was of it when the run began.
    """

    def __init__(
        self,
        process: Process,
        *,
        data: bool,
        fake: bool,
        same_ranks: bool,
        witnesses: Sequence[int] | None,
        local: int,
        script: Callable[[], ModuleType] | None,
        modules: Modules | None,
        libraries: LibraryState,
        flights: FlightRecords | None,
        replicas: Replicas | None,
    ) -> None:
        self.replicas: Final = replicas
        self.shapes: Final = Shapes()
        self.unknown: Final[dict[str, list[int]]] = {}
        self.made_up: Final = MADE_UP
        self.table: Final = states.of_process(process.ctx.spec.seed)
        self.begun: list[Any] = []
        self._process: Final = process
        self._data: Final = data
        self._fake: Final = fake
        self._same_ranks: Final = same_ranks
        self._witnesses: Final = witnesses
        self._same: SameRanks | None = None
        self._local: Final = local
        self._script: Final = script
        self._modules: Final = modules
        self._libraries: Final = libraries
        self._flights: Final = flights

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
            self.run(partial(_as_new_process, self._script, packed((fn, args), torch)), (), nprocs)
        return None

    def run(self, fn: Callable[..., Any], args: tuple[Any, ...], nprocs: int) -> None:
        """Calls a function in each rank, which all share it and its arguments.

        Args:
            fn: Called with the rank and the arguments.

        Raises:
            SpawnException: If a rank failed.
            UsageError: If a rank that is named to run the program is not there.
        """
        __tracebackhide__ = True
        check_first(current_process())  # before what is each rank's own takes the others' place
        loop = self._process.engine.loop
        loop.clamps_late = True
        same = SameRanks(nprocs, self._witnesses, self._process) if self._same_ranks else None
        self._same = same
        if self.replicas is not None:
            self.replicas.begin()
        light = () if same is None else same.followers
        own = PerRank(self.table, self.begun, self._modules, self._libraries, light)
        with self._flying(nprocs), ThreadPool() as carriers, own.swapping(loop):
            spawn_on(carriers, partial(self._rank_main, fn), args, nprocs, light)

    @contextlib.contextmanager
    def _flying(self, ranks: int) -> Iterator[None]:
        """Writes what ranks have called together, however they end."""
        if self._flights is None:
            yield
            return
        self._flights.begin(ranks)
        try:
            yield
        except BaseException:
            try:
                self._flights.write()
            except UsageError as error:  # hides no failure
                print(f"kernbench: {error}", file=sys.stderr)
            raise
        self._flights.write()

    def _rank_main(self, fn: Callable[..., Any], number: int, *args: Any) -> None:
        process, same = current_process(), self._same
        if same is not None and number in same.followers:
            same.follow(process)
            return
        with self._as_rank(process) as rank, self._noting(rank), self._watching(rank):
            if same is None:
                fn(number, *args)
            else:
                try:
                    with same.noting(process, rank.sip) as rank.tape:
                        fn(number, *args)
                finally:
                    rank.tape = None

    def _watching(self, rank: Rank) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self.replicas is None else self.replicas.of_rank(rank)

    @contextlib.contextmanager
    def _noting(self, rank: Rank) -> Iterator[None]:
        """Notes what a rank calls together with others, if somebody asks for it."""
        if self._flights is None:
            yield
            return
        flight = rank.flight = self._flights.of(rank.process)
        try:
            yield
        except RankAborted:
            flight.stopped = True
            raise
        finally:
            self._flights.ended()

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
        data: Whether tensors have numbers.
        fake: Whether a value that is read is 0 if there are none; otherwise that is an error.
        local: Number of ranks of each node.
        shapes: What is known of operations without numbers; None: nothing.
    """
    number = max(process.rank, 0)
    rank = Rank(process, number % local, process.ctx.devices[number], local, data=data, fake=fake)
    rank.hazards = Hazards(rank)
    rank.outside = partial(without_devices, process.name)
    if data:
        rank.mode = DirectMode(rank)
    else:
        rank.mode = (FakeMode if fake else ShapeMode)(rank, shapes or Shapes())
    HERE.rank = rank
    try:
        with states.THREAD.kept(), rank.mode:
            try:
                with forks_end(rank):
                    yield rank
            except (RankAborted, Killed, KeyboardInterrupt):
                raise  # the others, or the user, end it
            except ProcessEnded:
                at_end(rank)
                raise
            except BaseException:
                _finish(rank)
                raise
            else:
                _finish(rank)
            finally:
                if rank.turns is not None:
                    rank.turns.close()
    finally:
        HERE.rank = None
        _forget_backward()


def _finish(rank: Rank) -> None:
    """Does what Python does at the end of a process."""
    if rank.turns is not None:
        rank.turns.finish()
    at_end(rank)


def _forget_backward() -> None:
    """Lets go of what a backward pass that failed in this thread has left undone.

    C++ keeps it for the thread, and would let it go at the thread's end: after Python's part of the
    thread, for which others wait. It needs the interpreter's lock, and if that has ended meanwhile,
    the process is aborted. The next backward pass of the thread drops it first, so here is one.
    """
    with torch.inference_mode(False), torch.enable_grad():
        torch.zeros((), device="cpu", requires_grad=True).backward()


def _as_new_process(script: Callable[[], ModuleType], work: Packed, number: int) -> None:
    """Runs the program's file as a spawned process does, and then the function that it spawned."""
    sys.modules["__main__"] = sys.modules["__mp_main__"] = script()
    fn, args = work.unpacked()
    fn(number, *args)
