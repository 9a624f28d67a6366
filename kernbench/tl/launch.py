"""Launching a grid of programs on the PEs of one device."""

import functools
import inspect
from collections.abc import Callable, Hashable, Sequence
from types import FunctionType, ModuleType
from typing import Any, Final, Protocol

from kernbench.des import DeadlockError, EventLoop, Fifo, Task
from kernbench.errors import KernbenchError, UnsupportedError, call_site, site_fact
from kernbench.hw.network import Network
from kernbench.hw.pe import PeCosts, PeTimeline, later
from kernbench.hw.queue import Queue, QueueSpec, Sender
from kernbench.memory import DType, Space
from kernbench.sim_engine.command import Command
from kernbench.sim_engine.engine import GraphEngine, Hold
from kernbench.sim_engine.op_log import Record
from kernbench.tl.language import constexpr
from kernbench.tl.program import Program, Trace
from kernbench.units import Bytes


class LaunchError(KernbenchError):
    """A grid or arguments that the kernel cannot be launched with (K1, K3)."""


class KernelDeadlockError(KernbenchError):
    """The programs of a kernel wait for each other for ever (K7)."""


class Launcher(Protocol):
    """Whoever turns a launch into a command: the runtime of the calling rank."""

    def launch(self, kernel: "Kernel", grid: tuple[int, ...], arguments: dict[str, Any]) -> None:
        """Issues the launch on the current stream."""
        ...


def _nobody() -> None:
    return None


find_launcher: Callable[[], Launcher | None] = _nobody
"""Finds the runtime of the calling code; the runtime room puts its own in place."""


class Kernel:
    """A function of the kernel language; `kernel[grid](*args)` launches it, as in Triton.

    Attributes:
        function: What `jit` was applied to.
        constants: Names of its `tl.constexpr` parameters.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        functools.update_wrapper(self, function)
        self.function: Final = function
        self.signature: Final = inspect.signature(function)
        self.constants: Final = frozenset(
            name
            for name, parameter in self.signature.parameters.items()
            if parameter.annotation is constexpr or parameter.annotation == "tl.constexpr"
        )

    def environment(self) -> Hashable | None:
        """Returns the values that the function finds outside of itself; None if not all are plain.

        What a launch does depends on them as on its arguments.
        """
        return _environment(self.function, set())

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.__name__

    def __call__(self, *_: Any, **__: Any) -> None:
        """Refuses: a kernel needs a grid."""
        raise LaunchError(
            f"kernel {self.name} was called like a function",
            [site_fact(call_site())],
            hint=f"launch it on a grid: {self.name}[(programs,)](...)",
            code="K3",
        )

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            arguments = self._bind(args, kwargs)
            extents = self._extents(grid(arguments) if callable(grid) else grid)
            launcher = find_launcher()
            if launcher is None:
                raise UnsupportedError(
                    f"kernel {self.name} was launched outside of a running context",
                    [site_fact(call_site())],
                    hint="launch it from a worker, or inside `with RuntimeContext(...)`",
                )
            launcher.launch(self, extents, arguments)

        return launch

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise LaunchError(
                f"kernel {self.name}: {error}",
                [site_fact(call_site()), f"signature: {self.name}{self.signature}"],
                code="K3",
            ) from None
        bound.apply_defaults()
        return bound.arguments

    def _extents(self, grid: Any) -> tuple[int, ...]:
        extents = (grid,) if isinstance(grid, int) else tuple(grid)
        whole = all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in extents)
        if not 1 <= len(extents) <= 3 or not whole:
            raise LaunchError(
                f"kernel {self.name}: a grid has one to three positive extents; got {extents}",
                [site_fact(call_site())],
                code="K1",
            )
        return extents


_PLAIN: Final = (int, float, str, bytes, bool, type(None), type, ModuleType, DType)


def _environment(function: Callable[..., Any], seen: set[object]) -> Hashable | None:
    seen.add(function)
    outside = inspect.getclosurevars(function)
    values: list[Hashable] = [function.__code__]
    for name, found in sorted({**outside.globals, **outside.nonlocals}.items()):
        value = found.function if isinstance(found, Kernel) else found
        if isinstance(value, FunctionType):
            if value.__module__.startswith("kernbench.") or value in seen:
                continue
            inner = _environment(value, seen)
            if inner is None:
                return None
            values.append((name, inner))
        elif isinstance(value, _PLAIN):
            values.append((name, type(value), value))
        else:
            return None
    return tuple(values)


def jit(function: Callable[..., None]) -> Kernel:
    """Makes a function of the kernel language launchable."""
    return Kernel(function)


class KernelWork:
    """The work of a launch: programs in the order of their index, dealt out to the PEs in turn.

    The whole device is the kernel's alone, so its programs run on a loop of their own, starting at
    zero, and the launch holds the device for as long as they took.

    Args:
        engine: The engine.
        sip: Index of the device.
        kernel: What runs.
        grid: Extents.
        arguments: By parameter name; tensors are `Pointer`s.
        queues: How queues between its programs are built.
        memo: Durations of earlier launches, by `memo_key`; used unless every tile is timed.
        memo_key: Everything that the duration depends on; None if that cannot be told.
    """

    def __init__(
        self,
        engine: GraphEngine,
        sip: int,
        kernel: Kernel,
        grid: tuple[int, ...],
        arguments: dict[str, Any],
        queues: QueueSpec,
        memo: dict[Any, int],
        memo_key: Any,
    ) -> None:
        self._engine = engine
        self._sip = sip
        self._kernel = kernel
        self._grid = grid
        self._arguments = arguments
        self._queues = queues
        self._memo = memo
        self._memo_key = memo_key

    def begin(self, command: Command, start: int) -> None:
        """See `Work`."""
        engine = self._engine
        if command.stream.faulted:
            Hold(engine, None, 0, None).begin(command, start)
            return
        duration = self._memo.get(self._memo_key) if engine.fidelity == "kernel" else None
        if duration is None or engine.enable_data:
            # With data the programs run in any case, for what they compute.
            try:
                run = _Run(self._engine, self._sip, self._kernel, self._grid, self._queues)
                run.run(self._arguments)
            except Exception as error:
                engine.fail(command, error)
                Hold(engine, None, 0, None).begin(command, start)
                return
            duration = run.duration
            if not run.varied and self._memo_key is not None:
                self._memo[self._memo_key] = duration
            self._log(command, start, run)
        device = engine.device(self._sip)
        launch = device.spec.sip.launch
        Hold(engine, device.compute, launch + duration, None).begin(command, start)

    def _log(self, command: Command, start: int, run: "_Run") -> None:
        log = self._engine.op_log
        if not log.full or not self._engine.timed:
            return
        start += self._engine.device(self._sip).spec.sip.launch
        for pe, (name, category, track, begin, end, flow, args) in run.spans:
            log.add(
                Record(
                    name,
                    category,
                    command.host.rank,
                    f"pe{pe}.{track}",
                    command.issued,
                    start + begin,
                    start + end,
                    command.site,
                    args,
                    flow,
                    command.ranges,
                )
            )


class _Run:
    """One execution of a grid on a loop of its own."""

    def __init__(
        self,
        engine: GraphEngine,
        sip: int,
        kernel: Kernel,
        grid: tuple[int, ...],
        queues: QueueSpec,
    ) -> None:
        self._engine = engine
        self._sip = sip
        self._kernel = kernel
        self._grid = grid
        self._spec = queues
        self._loop = EventLoop()
        self._network = Network(engine.topology, self._loop)
        system = engine.topology.machine.system
        self._costs = PeCosts(system.sip.pe, system.sip.cube)
        self._ports: dict[int, Fifo] = {}
        self._queues: dict[tuple[int, int], Queue] = {}
        self.duration = 0
        self.varied = False
        self.spans: list[tuple[int, tuple[Any, ...]]] = []

    def run(self, arguments: dict[str, Any]) -> None:
        """Runs every program to its end."""
        total = 1
        for extent in self._grid:
            total *= extent
        pes = self._engine.topology.num_pes
        used = min(total, pes)
        per_cube = self._engine.topology.machine.system.sip.cube.pes
        if used > 1:
            for cube in range(-(-used // per_cube)):
                self._ports[cube] = Fifo(shared=True)
        tasks = [
            self._loop.start(
                self._programs,
                pe,
                range(pe, total, used),
                arguments,
                total if total <= pes else 0,
                owner=self._loop.owner(pe + 1),
                name=f"{self._kernel.name} on PE {pe}",
            )
            for pe in range(used)
        ]
        waits: Sequence[tuple[Task, object]] = ()
        try:
            self._loop.run()
        except DeadlockError as deadlock:
            waits = deadlock.waits
        # Whoever failed comes first: others may wait for what it would have sent.
        failed = [task.error for task in tasks if task.error is not None]
        stop = SystemExit("kernel aborted")
        for task, _ in waits:
            task.interrupt(stop)
        if failed:
            raise failed[0]
        if waits:
            raise KernelDeadlockError(
                f"the programs of {self._kernel.name} wait for each other",
                [*(f"{task.name} waits for {reason}" for task, reason in waits), *self._full()],
                hint="every send needs a receive, and n_slots messages fit between them",
                code="K7",
            )

    def _programs(
        self, pe: int, pids: Sequence[int], arguments: dict[str, Any], peers: int
    ) -> None:
        engine = self._engine
        per_cube = engine.topology.machine.system.sip.cube.pes
        timeline = PeTimeline(0, self._costs.pe.issue, later)
        task = self._loop.current
        assert task is not None
        owner = self._loop.owner(pe + 1)
        for pid in pids:
            program = Program(
                task,
                timeline,
                self._costs,
                ids=_unravel(pid, self._grid),
                grid=self._grid,
                port=self._ports.get(pe // per_cube),
                channels=_Channels(self._queue, pid, peers) if peers else None,
                sender=Sender(self._network, timeline, owner),
                data=engine.enable_data,
                trace=self._tracer(pe) if engine.op_log.full else None,
                flows=engine.op_log.new_flow if engine.op_log.full else None,
            )
            task.subject = program
            self._kernel.function(**arguments)
            program.drain()
            timeline.wait_until(program.end)
            self.varied = self.varied or program.data_dependent or program.communicated
        self.duration = max(self.duration, timeline.clock)

    def _tracer(self, pe: int) -> Trace:
        return lambda *span: self.spans.append((pe, span))

    def _full(self) -> list[str]:
        """Returns a line for each queue whose sender waits for a credit, by program."""
        return [
            f"queue {sender}->{receiver} full {queue.spec.n_slots}/{queue.spec.n_slots}"
            for (sender, receiver), queue in sorted(self._queues.items())
            if queue.starved
        ]

    def _queue(self, sender: int, receiver: int) -> Queue:
        queue = self._queues.get((sender, receiver))
        if queue is None:
            topology = self._engine.topology
            nodes = [topology.pe_node(self._sip, pe) for pe in (sender, receiver)]
            path = self._network.path(
                nodes[0], nodes[1], self._costs.pe.dma, self._spec.vc_chunk_size
            )
            latency = self._costs.memory(self._spec.space).latency
            queue = Queue(path, self._spec, self._costs.pe.poll_interval, latency)
            self._queues[sender, receiver] = queue
        return queue


class _Channels:
    """The queues of one program, by the index of its peer."""

    def __init__(self, queue: Callable[[int, int], Queue], pid: int, peers: int) -> None:
        self.peers = peers
        self._queue = queue
        self._pid = pid

    def outgoing(self, peer: int) -> Queue:
        return self._queue(self._pid, peer)

    def incoming(self, peer: int) -> Queue:
        return self._queue(peer, self._pid)


def _unravel(pid: int, grid: tuple[int, ...]) -> tuple[int, ...]:
    ids = []
    for extent in grid:
        pid, index = divmod(pid, extent)
        ids.append(index)
    return tuple(ids)


DEFAULT_QUEUES: Final = QueueSpec(Space.TCM, "sleep", 4, Bytes(4096), Bytes(256), Bytes(16))
"""Queues between the programs of a kernel."""
