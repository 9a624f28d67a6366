"""The life of a command: wait, acquire, hold, apply, record. One place, nowhere else."""

from collections import deque
from collections.abc import Callable
from typing import Final, get_args

from kernbench.des import EventLoop, Fifo, Owner
from kernbench.errors import KernbenchError, UsageError, site_fact
from kernbench.hw.device import Device
from kernbench.hw.library import libraries_of
from kernbench.hw.network import Network
from kernbench.sim_engine.command import Command
from kernbench.sim_engine.data_executor import DataExecutor, Effect
from kernbench.sim_engine.dials import Detail, Fidelity
from kernbench.sim_engine.op_log import OpLog, Record
from kernbench.topology import Topology

_RANK_OWNERS: Final = 1 << 32
_COMMAND_OWNERS: Final = 1 << 48


class GraphEngine:
    """Runs commands on the devices of a machine.

    Args:
        topology_obj: The machine, from `load_topology(...).topology_obj`.
        enable_data: Whether tensors hold bytes; without them everything is timed and nothing is
            computed.
        fidelity: `tile` times every tile command, `kernel` takes plans and memos that are proved
            equal to it, `functional` takes no simulated time.
        record: How much the log keeps.
        shadow: Whether what caches answer is found anew the slow way, too, and compared; a
            difference raises `ShadowError`.

    Attributes:
        loop: The clock.
        network: Links between SIPs and cubes.
        op_log: What has happened.
        executor: Applies data effects.
    """

    def __init__(
        self,
        topology_obj: Topology,
        enable_data: bool = True,
        *,
        fidelity: Fidelity = "kernel",
        record: Detail = "summary",
        shadow: bool = False,
    ) -> None:
        for name, value, known in (
            ("topology_obj", type(topology_obj), (Topology,)),
            ("fidelity", fidelity, get_args(Fidelity)),
            ("record", record, get_args(Detail)),
        ):
            if value not in known:
                raise UsageError(f"GraphEngine({name}=): expected one of {known}, got {value!r}")
        self.topology: Final = topology_obj
        self.fidelity: Final[Fidelity] = fidelity
        self.shadow: Final = shadow
        self.timed: Final = fidelity != "functional"
        self.loop: Final = EventLoop()
        self.network: Final = Network(topology_obj, self.loop)
        self.op_log: Final = OpLog(record)
        self.executor: Final = DataExecutor(enabled=enable_data)
        self._devices: dict[int, Device] = {}
        self._libraries: Final = libraries_of(topology_obj)
        self._ready: deque[tuple[Command, int]] = deque()
        self._beginning = False

    @property
    def dispatch_ps(self) -> int:
        """Host time that issuing a command takes, in picoseconds."""
        return self.topology.machine.system.host.dispatch if self.timed else 0

    @property
    def enable_data(self) -> bool:
        """Whether tensors hold bytes."""
        return self.executor.enabled

    def device(self, sip: int) -> Device:
        """Returns the state of a SIP."""
        device = self._devices.get(sip)
        if device is None:
            device = self._devices[sip] = Device(sip, self.topology, self._libraries)
        return device

    def rank_owner(self, rank: int) -> Owner:
        """Returns the owner of what a rank's host does; main's is rank -1."""
        return self.loop.owner(_RANK_OWNERS + rank + 1)

    def command_owner(self, rank: int, part: int = 0) -> Owner:
        """Returns the owner of what a rank's commands do, or a numbered part of them."""
        return self.loop.owner(_COMMAND_OWNERS + (part << 32) + rank + 1)

    def submit(self, command: Command) -> None:
        """Takes a command; it begins as soon as everything that it waits for is settled.

        Does not wait, unless the launch queue is full.
        """
        stream = command.stream
        start, unsettled = command.issued, 0
        tail, stream.tail = stream.tail, command.done
        if tail is not None:
            time = tail.time
            if time is None or command.after:
                command.after = (tail, *command.after)
            elif time > start:
                start = time
        for event in command.after:
            time = event.time
            if time is None:
                unsettled += 1
            elif time > start:
                start = time
        if unsettled:
            turn = _Turn(self, command, start, unsettled)
            for event in command.after:
                if event.time is None:
                    event.when_settled(turn)
        else:
            command.after = ()
            command.work.begin(command, start)
        command.host.launched(command.done)

    def begin(self, command: Command, start: int) -> None:
        """Lets a command begin: everything that it waits for is settled."""
        # A loop, not recursion: a thousand commands may wait for one another in a chain.
        if self._beginning:
            self._ready.append((command, start))
            return
        self._beginning = True
        try:
            command.work.begin(command, start)
            while self._ready:
                command, start = self._ready.popleft()
                command.work.begin(command, start)
        finally:
            self._beginning = False

    def fail(self, command: Command, error: BaseException) -> None:
        """Notes a fault of the device: later commands of the stream have no effect.

        The issuing host raises it at its next blocking point.
        """
        if isinstance(error, KernbenchError):
            error.add_fact(site_fact(command.site, f"{command.name} was issued at"))
        command.stream.faulted = True
        command.host.faults.append(error)

    def complete(self, command: Command, start: int, end: int, effect: Effect | None) -> None:
        """Ends a command at `end`: applies its effect, records it, lets its followers go."""
        stream, executor = command.stream, self.executor
        if executor.enabled and not stream.faulted:
            try:
                executor.apply(effect)
            except KernbenchError as error:
                self.fail(command, error)
        log = self.op_log
        log.total(command.host.rank, command.category, end - start)
        if log.full:
            log.add(
                Record(
                    command.name,
                    command.category,
                    command.host.rank,
                    stream.name,
                    command.issued,
                    start,
                    end,
                    command.site,
                    command.args or {},
                    ranges=command.ranges,
                )
            )
        # Who holds the event holds no longer what the command worked on.
        done = command.done
        done.label, command.part = command.name, None
        done.settle(end)


class _Turn:
    """When a command can begin: after everything that it waits for.

    Args:
        engine: The engine.
        command: The command.
        start: When what is settled already is over, in picoseconds.
        unsettled: Events that are not settled yet.
    """

    __slots__ = ("_command", "_engine", "_start", "_unsettled")

    def __init__(self, engine: GraphEngine, command: Command, start: int, unsettled: int) -> None:
        self._engine = engine
        self._command = command
        self._start = start
        self._unsettled = unsettled

    def __call__(self, time: int) -> None:
        """Notes that one more of them is over at `time`."""
        if time > self._start:
            self._start = time
        self._unsettled -= 1
        if not self._unsettled:
            self._engine.begin(self._command, self._start)


class Hold:
    """Work that holds one resource for a time known beforehand.

    Args:
        engine: The engine.
        resource: What is held; None for work that nobody else is in the way of.
        duration: How long, in picoseconds.
        effect: What it does to bytes.
        latency: Time after the resource is free again until the work is complete.
    """

    __slots__ = ("_duration", "_effect", "_engine", "_latency", "_resource")

    def __init__(
        self,
        engine: GraphEngine,
        resource: Fifo | None,
        duration: int,
        effect: Callable[[], None] | None,
        latency: int = 0,
    ) -> None:
        self._engine = engine
        self._resource = resource
        self._duration = duration if engine.timed else 0
        self._latency = latency if engine.timed else 0
        self._effect = effect

    def begin(self, command: Command, start: int) -> None:
        """See `Work`."""
        resource = self._resource
        if resource is not None and resource.shared:
            engine = self._engine
            engine.loop.at(
                start, engine.command_owner(command.host.rank), self._hold, command, start
            )
        else:
            self._hold(command, start)

    def _hold(self, command: Command, start: int) -> None:
        resource, duration = self._resource, self._duration
        end = start + duration if resource is None else resource.reserve(start, duration)
        self._engine.complete(command, end - duration, end + self._latency, self._effect)
