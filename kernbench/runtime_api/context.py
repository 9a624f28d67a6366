"""`RuntimeContext`: a simulated machine that stands in the place of `torch`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kernbench.ccl.model import CollectiveModel
from kernbench.ccl.tuner import Choices
from kernbench.des import Event
from kernbench.errors import KernbenchError, call_site, site_fact
from kernbench.operations import cuda
from kernbench.process import flight_record as flight
from kernbench.process import process as processes
from kernbench.process.process import MAIN, Process, current_process
from kernbench.process.types import DeviceSelector
from kernbench.ranks import watchdog
from kernbench.ranks.schedules import Schedule
from kernbench.ranks.world import World
from kernbench.runtime_api.namespace import Namespace, root
from kernbench.sim_engine.command import Command
from kernbench.sim_engine.engine import GraphEngine
from kernbench.tensors.kernels import current_launcher
from kernbench.tensors.running import wait_for
from kernbench.tl import launch as launches

if TYPE_CHECKING:
    from kernbench.runtime_api.model_memory import Build, ModelMemory
    from kernbench.tl.recording import Recording

T = TypeVar("T")


class RuntimeContext:
    """A simulated machine with the names of PyTorch on it.

    `ctx.zeros`, `ctx.cuda`, `ctx.distributed` and so on stand for `torch.zeros` and so on; they act
    on the rank that calls, or on main. A context may be used as a context manager, but need not be.

    Args:
        engine: Runs the commands.
        target_device: SIPs that ranks may use; all by default.
        correlation_id: Name of the run; `kernbench run` passes the bench's name, for `--json`.
        spec: The machine as YAML gives it; by default the engine's own.
        seed: Seed of every rank's default generator.
        argv: Arguments that a bench finds in `ctx.argv`.
        ccl_file: The `ccl.yaml`; by default the working directory's, else the shipped one.
        ccl_overrides: Texts `dotted.field=value` that change fields of the `ccl.yaml`.
        quiet: Whether benches should print nothing.
        eager_limit: Largest message in bytes, between tensors on devices, whose send does not wait
            for its receive, as in some libraries. 0 finds every deadlock that such buffering hides.
        watchdog_s: Seconds of wall time without any simulated step after which the running code is
            stopped (K5); 0 for never.
        step_budget: Most commands that a rank may issue in a spawn; 0 for any number.
        progress: Shows the progress of a bench through a sequence; None shows nothing.
        schedule: Decides which message each any-source receive takes, and records what hosts read;
            a schedule serves one context only. None: each such receive takes the message that comes
            first.

    Attributes:
        engine: Runs the commands.
        devices: SIPs that ranks may use; rank r has the r-th.
        world: The ranks while a spawn runs.
        main: The process of code outside of workers.
        argv: Arguments of the bench.
        spec: The machine as YAML gives it.
        quiet: Whether benches should print nothing.
        results: Documents of plain values that benches leave for `--json`.
        processes: The ranks of the last spawn.
        recordings: Recorded launches of kernels, by everything on which their commands depend.
        on_choice: Called with a line such as `all_reduce 1 MiB, 8 ranks of WORLD: ring (auto)` when
            the algorithm for an operation, size and group is chosen for the first time.
        group_limit: Most process groups that a rank may hold, besides that of all ranks.
    """

    def __init__(
        self,
        *,
        engine: GraphEngine,
        target_device: DeviceSelector = DeviceSelector("all"),  # noqa: B008 - frozen
        correlation_id: str = "",
        spec: Mapping[str, Any] | None = None,
        seed: int = 0,
        argv: Sequence[str] = (),
        ccl_file: Path | None = None,
        ccl_overrides: Sequence[str] = (),
        quiet: bool = False,
        eager_limit: int = 0,
        watchdog_s: float = watchdog.SECONDS,
        step_budget: int = 0,
        progress: Callable[[Sequence[Any], str], Iterable[Any]] | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        self.engine: Final = engine
        self.target_device: Final = target_device
        self.correlation_id: Final = correlation_id
        self.spec: Final = engine.topology.spec if spec is None else spec
        self.seed: Final = seed
        self.argv: Final = list(argv)
        self.quiet: Final = quiet
        self.results: Final[list[dict[str, Any]]] = []
        self.eager_limit: Final = eager_limit
        self.watchdog_s: Final = watchdog_s
        self.step_budget: Final = step_budget
        self.schedule: Final = schedule
        self._progress: Final = progress
        self.devices: Final = target_device.indices(engine.topology.world_size)
        self.world = World(schedule=schedule)
        self.processes: list[Process] = []
        self.main: Final = Process(self, engine, MAIN, self.devices[0], 0)
        self.worker_waits: list[Event] = []
        self._ccl_file: Final = ccl_file
        self._ccl_overrides: Final = tuple(ccl_overrides)
        self._names: Final = Namespace(self, root())
        processes.made(self.main)
        launches.find_launcher = current_launcher
        self.recordings: Final[dict[Any, Recording]] = {}
        self.on_choice: Callable[[str], None] | None = None
        self.group_limit = 128

    def __enter__(self) -> "RuntimeContext":
        processes.enter(self.main)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.main.synchronize()
        finally:
            processes.leave(self.main)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_names":
            raise AttributeError(name)
        return getattr(self._names, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._names)})

    @cached_property
    def collectives(self) -> CollectiveModel:
        """State that all collectives of the context share."""
        return CollectiveModel(self.engine, self.choices.choose)

    @cached_property
    def choices(self) -> Choices:
        """Choices of an algorithm for each operation."""
        return Choices(self._ccl_file, self._ccl_overrides, self.engine.topology)

    def progress(self, items: Sequence[T], description: str) -> Iterable[T]:
        """Returns the items one by one, and shows on a terminal how many are left."""
        return items if self._progress is None else self._progress(items, description)

    def check_model_fits(
        self, build: "Build", nprocs: int, *, accumulates: bool = False
    ) -> "list[ModelMemory]":
        """Refuses a model that does not fit its devices, before it runs.

        Args:
            build: Called with each rank; returns the rank's model, and its optimiser or None.
            nprocs: Number of ranks.
            accumulates: Whether gradients of several backward passes add up, see
                `model_memory.model_memory`.

        Returns:
            What each rank needs, by rank.

        Raises:
            OutOfMemoryError: If the model does not fit (M7); the error names ranks, tensors and
                bytes.
            SpawnException: If `build` fails.
        """
        from kernbench.runtime_api.model_memory import check_model_fits

        return check_model_fits(self, build, nprocs, accumulates=accumulates)

    def twin(self, engine: GraphEngine) -> "RuntimeContext":
        """Returns a context with the same devices, seed and arguments that prints nothing.

        Args:
            engine: Runs the commands of the new context.
        """
        return RuntimeContext(
            engine=engine,
            target_device=self.target_device,
            seed=self.seed,
            argv=self.argv,
            quiet=True,
            watchdog_s=self.watchdog_s,
        )

    def flight_record(self) -> dict[str, Any]:
        """Returns the latest actions of every rank of the last spawn, as plain values for JSON."""
        return flight.record(self.processes, self.engine.loop.now)

    def rank_of_device(self, sip: int) -> int | None:
        """Returns the rank that uses a SIP while a spawn runs; None if the SIP is free."""
        if sip in self.devices[: self.world.size]:
            return self.devices.index(sip)
        return None

    def wait(self, handle: Any) -> None:
        """Waits, on the host, until `handle` is done.

        The call returns at once if `handle` is done already. Otherwise it parks the rank, or drives
        the loop on main.

        Args:
            handle: A `Work`, a command, or a `cuda.Event`.

        Raises:
            KernbenchError: If `handle` is none of these.
        """
        process = current_process()
        command = handle if isinstance(handle, Command) else getattr(handle, "command", None)
        if isinstance(handle, Event):
            process.wait(handle)
        elif isinstance(command, Command):
            wait_for(process, command)
        elif isinstance(handle, cuda.Event):
            handle.synchronize()
        else:
            raise KernbenchError(
                f"ctx.wait takes a handle that somebody issued; got {type(handle).__name__}",
                [site_fact(call_site())],
            )
