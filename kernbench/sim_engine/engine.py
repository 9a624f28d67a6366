"""The life of a command: wait, acquire, hold, apply, record. One place, nowhere else."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, get_args

from kernbench.des import EventLoop, Fifo, Holds, Owner, order
from kernbench.errors import KernbenchError, UsageError, site_fact
from kernbench.hw.device import Device
from kernbench.hw.explained import explained_libraries_of
from kernbench.hw.library import libraries_of
from kernbench.hw.network import Network
from kernbench.hw.warmed import plain_of
from kernbench.kernels.host_calls import NO_TIME, HostCalls, host_calls
from kernbench.memory import UninitialisedReadError, keep_freed_pages
from kernbench.sim_engine.command import Command
from kernbench.sim_engine.data_executor import DataExecutor, Effect
from kernbench.sim_engine.dials import Detail, Fidelity
from kernbench.sim_engine.op_log import OpLog, Record
from kernbench.topology import Topology


class Devices(dict[int, Device]):
    """The devices of a machine by SIP, each made when it is first asked for.

    Args:
        loop: The loop of commands that take time; None if they take none.
        note: Told of each change of HBM, see `NotedAllocator`; None if nobody asks. Whoever asks
            keeps every record, too: then durations are `hw.explained.Explained`.
    """

    def __init__(
        self,
        topology: Topology,
        loop: EventLoop | None,
        note: Callable[[int, int], None] | None = None,
    ) -> None:
        super().__init__()
        self._topology = topology
        self._loop = loop
        self._note = note
        self._libraries = (libraries_of if note is None else explained_libraries_of)(topology)

    def __missing__(self, sip: int) -> Device:
        device = self[sip] = Device(sip, self._topology, self._libraries, self._note)
        overlap = device.sip.overlap
        if overlap is not None and self._loop is not None:
            device.compute.holds = Holds(self._loop, overlap.notice)
        return device


class CommandOwners(dict[tuple[int, int], Owner]):
    """Owners of events of commands by rank and part, each made when it is first asked for.

    Args:
        loop: The clock, in picoseconds.
    """

    def __init__(self, loop: EventLoop) -> None:
        super().__init__()
        self._loop = loop

    def __missing__(self, key: tuple[int, int]) -> Owner:
        owner = self[key] = self._loop.owner(order.command_of(*key))
        return owner


class GraphEngine:
    """Runs commands on the devices of a machine.

    Args:
        topology_obj: The machine, from `load_topology(...).topology_obj`.
        enable_data: Whether tensors hold bytes; without bytes every command is timed and none is
            computed.
        fidelity: `tile` times every tile command; `kernel` uses plans and memos that are proved to
            give the same times; `functional` takes no simulated time.
        record: How much the log keeps.
        shadow: Whether what caches answer is found anew the slow way, too, and compared; a
            difference raises `ShadowError`.
        moves_at_call: Whether the bytes of collectives and messages, of tensors of another library,
            move when the last rank has called, if there are any; see `ranks.at_call`. Needs
            `enable_data` off.

    Attributes:
        topology: The machine.
        fidelity: How closely time is simulated.
        timed: Whether commands take simulated time.
        loop: The clock, in picoseconds.
        command_owners: What `command_owner` returns, by its arguments.
        network: Links between SIPs and cubes.
        devices: State of each SIP.
        overlaps: Whether kernels delay collectives and messages, on some SIP at least.
        op_log: Log of everything that has happened.
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
        moves_at_call: bool = False,
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
        assert not (moves_at_call and enable_data), "bytes move once"
        self.moves_at_call: Final = moves_at_call
        self.timed: Final = fidelity != "functional"
        self.loop: Final = EventLoop()
        self.command_owners: Final = CommandOwners(self.loop)
        self.network: Final = Network(topology_obj, self.loop)
        self.op_log: Final = OpLog(record)
        if enable_data:
            keep_freed_pages()
        self.executor: Final = DataExecutor(enabled=enable_data)
        note = self.op_log.add_memory if record == "full" else None
        kinds = topology_obj.machine.system.kinds
        self.overlaps: Final = self.timed and any(sip.overlap is not None for sip in kinds)
        self.devices: Final = Devices(topology_obj, self.loop if self.timed else None, note)
        self._calls: Final[dict[bool, HostCalls]] = {}
        self._ready: deque[tuple[Command, int]] = deque()
        self._beginning = False

    @property
    def dispatch_ps(self) -> int:
        """Host time that issuing a command takes unless the machine says otherwise; picoseconds."""
        return self.topology.machine.system.host.dispatch if self.timed else 0

    def host_calls(self, *, beside: bool) -> HostCalls:
        """Returns what the calls of a rank take on its host.

        Args:
            beside: Whether other ranks of the program run on the same host.
        """
        found = self._calls.get(beside)
        if found is None:
            host = self.topology.machine.system.host
            found = host_calls(host, beside=beside) if self.timed else NO_TIME
            self._calls[beside] = found
        return found

    @property
    def enable_data(self) -> bool:
        """Whether tensors hold bytes."""
        return self.executor.enabled

    def rank_owner(self, rank: int) -> Owner:
        """Returns the owner of events of a rank's host; -1 stands for main."""
        return self.loop.owner(order.rank_of(rank))

    def command_owner(self, rank: int, part: int = 0) -> Owner:
        """Returns the owner of events of a rank's commands.

        Args:
            rank: Global rank; -1 for main.
            part: Number of a part of the command, such as a channel of a collective.
        """
        return self.command_owners[rank, part]

    def submit(self, command: Command) -> None:
        """Takes a command; it begins as soon as every event that it waits for is settled.

        Waits only if the launch queue of the host is full.
        """
        self.enqueue(command)
        command.host.launched(command.done)

    def enqueue(self, command: Command) -> None:
        """Does what `submit` does, for a command that takes no place in the host's launch queue."""
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
            # Nearly always the predecessor in the stream, which needs no counter.
            turn: Callable[[int], None] = (
                partial(self.begin, command, start)
                if unsettled == 1
                else _Turn(self, command, start, unsettled)
            )
            for event in command.after:
                if event.time is None:
                    event.when_settled(turn)
        else:
            command.after = ()
            command.action.begin(command, start)

    def begin(self, command: Command, start: int, time: int = 0) -> None:
        """Lets a command begin whose awaited events are all settled.

        Args:
            start: When the last of these events happened, in picoseconds.
            time: When another of them happened; the later moment counts.
        """
        if time > start:
            start = time
        # A loop, not recursion: a thousand commands may wait for one another in a chain.
        if self._beginning:
            self._ready.append((command, start))
            return
        self._beginning = True
        try:
            command.action.begin(command, start)
            while self._ready:
                command, start = self._ready.popleft()
                command.action.begin(command, start)
        finally:
            self._beginning = False

    def give_way(self, command: Command, start: int, begin: Callable[[Command, int], None]) -> None:
        """Lets a collective or message begin once no kernel holds all PEs of its device (ADR 0047).

        A kernel that begins less than the device's notice after it comes first, too. So the loop is
        at `start` and the notice when this is known, and `begin` gets a time that lies so far back.

        Args:
            start: When the command may begin, in picoseconds.
            begin: Called with the command and when it begins, in picoseconds.
        """
        sip, loop = command.stream.sip, self.loop
        holds = self.devices[sip].compute.holds if self.overlaps and sip >= 0 else None
        if holds is None:
            begin(command, start)
            return
        start = max(start, loop.now)
        owner = self.command_owner(command.host.rank)
        loop.at(start + holds.notice, owner, _enter, command, start, holds, begin)

    def notice(self, sip: int) -> int:
        """Returns how far back a time may lie that `give_way` gives, in picoseconds."""
        holds = self.devices[sip].compute.holds if self.overlaps and sip >= 0 else None
        return 0 if holds is None else holds.notice

    def fail(self, command: Command, error: BaseException) -> None:
        """Notes a fault of the device: later commands of the stream have no effect.

        The issuing host raises the error at its next blocking point.

        Args:
            command: The command that failed.
            error: The fault; a `KernbenchError` gets the line that issued the command.
        """
        if isinstance(error, UninitialisedReadError):
            tell_writer(error, command)
        if isinstance(error, KernbenchError):
            error.add_fact(site_fact(command.site, f"{command.name} was issued at"))
        command.stream.faulted = True
        command.host.faults.append(error)

    def complete(self, command: Command, start: int, end: int, effect: Effect | None) -> None:
        """Ends a command: applies its effect, records it, and settles its completion.

        An error of the effect becomes a fault of the device, see `fail`.

        Args:
            start: When the command began, in picoseconds.
            end: When the command ends, in picoseconds.
            effect: Changes the command's bytes; None for a command without data.
        """
        stream = command.stream
        executor = self.executor
        if effect is not None and executor.enabled and not stream.faulted:
            try:
                executor.apply(effect)
            except KernbenchError as error:
                self.fail(command, error)
        log = self.op_log
        total = log.totals.get((command.host.rank, command.category))
        if total is None:
            log.total(command.host.rank, command.category, end - start)
        else:  # as `OpLog.total`, without a call: every command comes here
            total.count += 1
            total.busy_ps += end - start
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
                    dispatch=command.took,
                    price=getattr(command.action, "price", None),
                )
            )
        # Whoever holds the event or the command does not hold what the command worked on.
        done = command.done
        done.label, command.part = command.name, None
        command.action = OVER
        done.settle(end)


def _enter(
    command: Command, start: int, holds: Holds, begin: Callable[[Command, int], None]
) -> None:
    begin(command, holds.room(start))


def tell_writer(error: UninitialisedReadError, reader: Command) -> None:
    """Adds to an error which command has written before the one that reads.

    The host runs ahead, so the latest writer may have been issued after the reader; then nothing is
    added.
    """
    writer = error.writer
    if (
        not isinstance(writer, Command)
        or writer.issued < reader.issued
        or (writer.stream is reader.stream and writer.number < reader.number)
    ):
        error.tell_writer()


class _Over:
    """What a command does that is complete: nothing any more."""

    def begin(self, command: Command, start: int) -> None:
        """Refuses to begin."""
        raise AssertionError(f"{command.name} begins again at {start} ps")


OVER: Final = _Over()


class _Turn:
    """When a command can begin: after every event that it waits for.

    Args:
        start: When the last of the settled events happened, in picoseconds.
        unsettled: Number of events that are not settled yet.
    """

    __slots__ = ("_command", "_engine", "_start", "_unsettled")

    def __init__(self, engine: GraphEngine, command: Command, start: int, unsettled: int) -> None:
        self._engine = engine
        self._command = command
        self._start = start
        self._unsettled = unsettled

    def __call__(self, time: int) -> None:
        """Notes that one more event happened, at `time`."""
        if time > self._start:
            self._start = time
        self._unsettled -= 1
        if not self._unsettled:
            self._engine.begin(self._command, self._start)


class Hold:
    """Action that holds one resource for a time known beforehand.

    Args:
        resource: Resource to hold; None for work that contends with no other work.
        duration: How long the resource is held, in picoseconds.
        effect: Changes bytes at completion; None for no change.
        latency: Time from the release of the resource until the work is complete, in picoseconds.

    Attributes:
        resource: As above.
        price: As above, with what it consists of if every record is kept; 0 if commands take no
            time.
        duration: The same without what it consists of.
        latency: As above; 0 if commands take no time.
    """

    __slots__ = ("_effect", "_engine", "duration", "latency", "price", "resource")

    def __init__(
        self,
        engine: GraphEngine,
        resource: Fifo | None,
        duration: int,
        effect: Callable[[], None] | None,
        latency: int = 0,
    ) -> None:
        self._engine = engine
        self.resource = resource
        self.price = duration if engine.timed else 0
        self.duration = self.price if type(self.price) is int else plain_of(self.price)
        self.latency = latency if engine.timed else 0
        self._effect = effect

    def last(self, price: int) -> None:
        """Lets it take another time from now on, if commands take any; see `price`."""
        if self._engine.timed:
            self.price, self.duration = price, plain_of(price)

    def begin(self, command: Command, start: int) -> None:
        """See `Action`."""
        resource, duration, engine = self.resource, self.duration, self._engine
        if resource is None:
            self.held(command, start, start + duration)
            return
        if resource.timely:
            owner, now = engine.command_owner(command.host.rank), engine.loop.now
            if start < now:
                start = now  # an aborted rank, which goes on at the time of its last wait
            engine.loop.at(start, owner, self._hold, command, start, resource)
            return
        end = resource.reserve(start, duration)
        self.held(command, end - duration, end)

    def _hold(self, command: Command, start: int, resource: Fifo) -> None:
        """Holds a resource in the order of time: now is its turn."""
        begin = max(start, resource.free)
        end = resource.reserve(start, self.duration)
        self.held(command, begin, end)

    def held(self, command: Command, begin: int, end: int) -> None:
        """Ends a command whose time on the resource is known.

        Args:
            begin: When it got the resource, in picoseconds.
            end: When it gives the resource back, in picoseconds.
        """
        self._engine.complete(command, begin, end + self.latency, self._effect)
