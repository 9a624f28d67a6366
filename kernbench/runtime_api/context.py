"""`RuntimeContext`: a simulated machine that stands in the place of `torch`."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from kernbench.caches import Table
from kernbench.ccl.model import CollectiveModel
from kernbench.ccl.tuner import Choices
from kernbench.classes.partition import Partition
from kernbench.classes.roles import Role
from kernbench.classes.splits import Splits
from kernbench.config.near import did_you_mean
from kernbench.des import Event
from kernbench.errors import KernbenchError, UsageError, call_site, site_fact
from kernbench.operations import cuda
from kernbench.process import flight_record as flight
from kernbench.process import process as processes
from kernbench.process.process import MAIN, Process, current_process, host_time
from kernbench.process.types import DeviceSelector
from kernbench.ranks import livelock, time_limit
from kernbench.ranks.hash_seeds import Calls
from kernbench.ranks.schedules import Schedule
from kernbench.ranks.world import World
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.collapsing import check_collapse
from kernbench.runtime_api.engines import check_engine, make_engine, spec_of
from kernbench.runtime_api.processes import run_started
from kernbench.runtime_api.shared import Shared
from kernbench.sim_engine.command import Command
from kernbench.sim_engine.engine import GraphEngine
from kernbench.tensors.kernels import current_launcher
from kernbench.tensors.running import wait_for
from kernbench.tl import launch as launches
from kernbench.tl.recording import Recording
from kernbench.units import format_time

if TYPE_CHECKING:
    from kernbench.runtime_api.model_memory import Build, ModelMemory
    from kernbench.runtime_api.namespace import Namespace

T = TypeVar("T")


class Progress(Protocol):
    """Yields items, and shows how many are done; see `RuntimeContext.progress`."""

    def __call__(self, items: Sequence[Any], description: str, *, alike: bool) -> Iterable[Any]:
        """See `RuntimeContext.progress`."""
        ...


class RuntimeContext:
    """A simulated machine with the names of PyTorch on it.

    `ctx.zeros`, `ctx.cuda`, `ctx.distributed` and so on stand for `torch.zeros` and so on; they act
    on the rank that calls, or on main. A context may be used as a context manager, but need not be.

    Args:
        spec: Specification of the run. By default it is that of `engine`, or without an engine a
            `RunSpec` with default values. With an engine, the machine as YAML gives it may stand
            here (`topology_obj.spec`), which must be the engine's.
        engine: Engine on a machine that the caller has made. The specification then names no
            machine, see `engines.spec_of`. By default an engine is made from the specification.
        target_device: SIPs that ranks may use; by default those of the specification.
        correlation_id: Name of the context in its text and in flight records; by default the name
            of the specification.
        quiet: Whether benches should print nothing.
        progress: Shows on the terminal how far a bench has gone through a sequence.
        schedule: Schedule with the picks of the specification, for one context only; it notes which
            messages receives from any source take, and what hosts read. By default a schedule is
            made if the specification has picks.
        calls: Notes what ranks call together; None if nobody asks.
        splits: With `collapse`, the classes that earlier attempts of the run have split, see
            `kernbench.classes.splits.until_stable`; None at the first attempt.

    Raises:
        UsageError: If the machine cannot be made or lacks one of the devices, or if the engine or
            the schedule differs from the specification.

    Attributes:
        shared: What the context shares with its processes.
        main: The process of code outside of workers.
        correlation_id: Name of the context.
        argv: The arguments of the specification, as a list.
        quiet: Whether benches should print nothing.
        results: Documents of plain values that benches leave for `--json`.
        flight_folder: Where programs of PyTorch leave the files of PyTorch's flight recorder; None
            for no files.
    """

    def __init__(
        self,
        spec: RunSpec | Mapping[str, Any] | None = None,
        *,
        engine: GraphEngine | None = None,
        target_device: DeviceSelector | None = None,
        correlation_id: str | None = None,
        quiet: bool = False,
        progress: Progress | None = None,
        schedule: Schedule | None = None,
        calls: Calls | None = None,
        splits: Splits | None = None,
    ) -> None:
        spec = _specification(spec, engine, target_device)
        if engine is None:
            engine = make_engine(spec)
        else:
            check_engine(engine, spec)
        if schedule is None and spec.schedule is not None:
            schedule = Schedule(spec.schedule)
        _check_schedule(spec, schedule)
        check_collapse(spec)
        engine.loop.limit = spec.max_time_ps or None
        engine.loop.on_limit = time_limit.on_main(spec.max_time_ps)
        self.shared: Final = Shared(
            spec, engine, schedule, calls, Splits() if splits is None else splits
        )
        self.correlation_id: Final = spec.name if correlation_id is None else correlation_id
        self.argv: Final = list(spec.arguments)
        self.quiet: Final = quiet
        self.results: Final[list[dict[str, Any]]] = []
        self.flight_folder: Path | None = None
        self._progress: Final = progress
        self.main: Final = Process(self.shared, engine, MAIN, self.devices[0], 0)
        self.shared.set_main(self.main)
        self.main.host.fruitless = livelock.on_main(self.main)
        if engine.op_log.full:
            engine.op_log.host_time = partial(host_time, self.main.host)
        self._bound: Namespace | None = None
        processes.made(self.main)
        launches.find_launcher = current_launcher

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
            if error is None and not self.engine.loop.unsettled:
                run_started(at_end=True)
                self.main.synchronize()
        finally:
            processes.leave(self.main)

    def __getattr__(self, name: str) -> Any:
        if (name.startswith("__") and name != "__version__") or name == "_bound":
            raise AttributeError(name)
        try:
            return getattr(self._bound or self._names(), name)
        except AttributeError:
            from kernbench.runtime_api.missing import in_pytorch

            if in_pytorch(f"torch.{name}"):  # what to do instead is told
                raise
            hint = did_you_mean(name, [each for each in dir(self) if not each.startswith("_")])
            told = f"neither a context nor PyTorch has {name}"
            raise AttributeError(f"{told}; {hint}" if hint else told) from None

    def _names(self) -> "Namespace":
        if self._bound is None:
            # Programs of PyTorch itself never ask, and these names are a quarter of the package.
            from kernbench.runtime_api.namespace import Namespace, root

            self._bound = Namespace(self.main, root())
        return self._bound

    def __repr__(self) -> str:
        machine = self.engine.topology.name
        ranks = f", {len(self.processes)} ranks" if self.processes else ""
        named = f"context {self.correlation_id}" if self.correlation_id else "context"
        return f"<{named} of {machine}{ranks}, at {format_time(self.engine.loop.now)}>"

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._names())})

    @property
    def spec(self) -> RunSpec:
        """Specification of the run."""
        return self.shared.spec

    @property
    def engine(self) -> GraphEngine:
        """Engine that runs the commands."""
        return self.shared.engine

    @property
    def devices(self) -> Sequence[int]:
        """SIPs that ranks may use; rank r has the r-th."""
        return self.shared.devices

    @property
    def places(self) -> Mapping[int, int]:
        """Place in `devices` of each SIP that ranks may use."""
        return self.shared.places

    @property
    def world(self) -> World:
        """The ranks while a spawn runs."""
        return self.shared.world

    @property
    def processes(self) -> list[Process]:
        """The ranks of the last spawn."""
        return self.main.ranks

    @property
    def worker_waits(self) -> list[Event]:
        """Events that workers wait for now; empty after a spawn, failed or not."""
        return self.shared.worker_waits

    _pending_worker_waits = worker_waits

    @property
    def schedule(self) -> Schedule | None:
        """Decides which message each receive from any source takes; None: the first to come."""
        return self.shared.schedule

    @property
    def calls(self) -> Calls | None:
        """Notes what ranks call together; None if nobody asks."""
        return self.shared.calls

    @property
    def recordings(self) -> Table[Hashable, Recording]:
        """Launches of kernels recorded on machines equal to this one, see `KernelWork`."""
        return self.shared.recordings

    @property
    def on_choice(self) -> Callable[[str], None] | None:
        """Called with a line of text when a choice of an algorithm is made for the first time.

        The line is such as `all_reduce 1 MiB, 8 ranks of WORLD: ring (auto)`; one for each
        operation, size and group.
        """
        return self.shared.on_choice

    @on_choice.setter
    def on_choice(self, told: Callable[[str], None] | None) -> None:
        self.shared.on_choice = told

    @property
    def roles(self) -> Role | None:
        """Returns the role of a rank; ranks of one role run the same program.

        A program that is run with `--collapse exact` sets it before it spawns, such as
        `ctx.roles = lambda rank: f"stage {rank // 8}"`. None: all ranks run the same program.
        """
        return self.shared.roles

    @roles.setter
    def roles(self, role: Role | None) -> None:
        self.shared.roles = role

    @property
    def leaves_routing(self) -> bool:
        """Whether a routing was named, and nothing has asked for it so far."""
        return self.spec.routing is not None and not self.shared.asks_routing

    @property
    def collapsed(self) -> Sequence[Partition]:
        """Classes of the ranks of each spawn that was collapsed."""
        return self.shared.collapsed

    @property
    def splits(self) -> Splits:
        """Classes that earlier attempts of the run have split."""
        return self.shared.splits

    @property
    def collectives(self) -> CollectiveModel:
        """State that all collectives of the context share."""
        return self.shared.collectives

    @property
    def choices(self) -> Choices:
        """Which algorithm each operation uses."""
        return self.shared.choices

    def progress(self, items: Sequence[T], description: str, *, alike: bool = False) -> Iterable[T]:
        """Returns the items one by one, and shows on a terminal how many are left.

        Args:
            description: What one of them is called, such as `step`.
            alike: Whether each of them takes about as long as any other; then the time that is
                left is shown, too.
        """
        return items if self._progress is None else self._progress(items, description, alike=alike)

    def check_model_fits(
        self, build: "Build", nprocs: int, *, accumulates: bool = False
    ) -> "list[ModelMemory]":
        """Refuses a model that does not fit its devices, before it runs.

        Args:
            build: Called with each rank; returns the rank's model, and its optimiser or None.
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
            engine: Engine of the new context.
        """
        spec = replace(spec_of(engine, self.spec), schedule=None)
        return RuntimeContext(spec, engine=engine, quiet=True)

    def flight_record(self) -> dict[str, Any]:
        """Returns the latest actions of every rank of the last spawn, as plain values for JSON."""
        return {
            "run": self.correlation_id,
            **flight.record(self.processes, self.engine.loop.now),
        }

    def rank_of_device(self, sip: int) -> int | None:
        """Returns the rank that uses a SIP while a spawn runs; None if the SIP is free."""
        return self.shared.rank_of_device(sip)

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


def _specification(spec: object, engine: object, target_device: DeviceSelector | None) -> RunSpec:
    """Returns the specification of a context, from what its maker gives."""
    if not isinstance(engine, GraphEngine | None):
        raise UsageError(
            f"RuntimeContext(engine=): expected a GraphEngine, got {type(engine).__name__}"
        )
    if isinstance(spec, Mapping):
        if engine is None or spec != engine.topology.spec:
            raise UsageError(
                "RuntimeContext(spec=): expected a RunSpec, or the machine of the engine as YAML "
                "gives it",
                ["there is no engine" if engine is None else "got another machine"],
                hint="RuntimeContext(engine=engine, spec=engine.topology.spec)",
            )
        spec = None
    if spec is None:
        spec = RunSpec() if engine is None else spec_of(engine)
    if not isinstance(spec, RunSpec):
        raise UsageError(
            f"RuntimeContext(spec): expected a RunSpec, got {type(spec).__name__}",
            hint="an engine goes by its name, RuntimeContext(engine=engine); the machine as YAML "
            "gives it is engine.topology.spec",
        )
    if target_device is None:
        return spec
    if not isinstance(target_device, DeviceSelector):
        raise UsageError(
            "RuntimeContext(target_device=): expected a DeviceSelector, got "
            f"{type(target_device).__name__}"
        )
    which = target_device.which
    wanted = replace(spec, devices=(which,) if isinstance(which, int) else which)
    if spec.devices not in ("all", wanted.devices):
        raise UsageError(
            "RuntimeContext(spec, target_device=): expected the same devices in both",
            [f"got {spec.devices} in the specification, {wanted.devices} in target_device"],
        )
    return wanted


def _check_schedule(spec: RunSpec, schedule: Schedule | None) -> None:
    if schedule is not None and schedule.picks != spec.schedule:
        raise UsageError(
            "RuntimeContext(spec, schedule=): expected the same picks in both",
            [f"got {spec.schedule} in the specification, {schedule.picks} in the schedule"],
        )
