"""A process, that is one rank or main: its host, its current device, its streams."""

import weakref
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextvars import ContextVar
from threading import get_ident
from types import FrameType
from typing import Any, Final, Generic, Protocol, TypeVar

from kernbench.caches import Table
from kernbench.des import Event, Task, current_task
from kernbench.errors import (
    CallSite,
    Fact,
    KernbenchError,
    call_site,
    site_fact,
)
from kernbench.memory import Allocator, Space, View
from kernbench.process import types
from kernbench.process.last_frame import last_frame
from kernbench.process.recent_calls import RECENT, RecentCall
from kernbench.process.types import CPU, Device
from kernbench.routing import Routing
from kernbench.run_spec import RunSpec
from kernbench.sim_engine.command import Action, Command, Stream
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.host import READS, Host, Read
from kernbench.sim_engine.op_log import Awaited, Wait
from kernbench.tl.program import Program
from kernbench.tl.recording import Recording

MAIN: Final = -1
"""Rank that stands for the code outside of workers."""

T = TypeVar("T")


class Session(Protocol):
    """The part of a context that its processes use.

    Rooms above this one extend the protocol, such as `ranks.spawn_state.RankSession`.
    """

    @property
    def engine(self) -> GraphEngine:
        """Engine that runs the commands."""
        ...

    @property
    def devices(self) -> Sequence[int]:
        """SIPs that ranks may use; rank r has the r-th entry."""
        ...

    @property
    def places(self) -> Mapping[int, int]:
        """Place in `devices` of each SIP that ranks may use."""
        ...

    @property
    def spec(self) -> RunSpec:
        """Specification of the run, with all its dials."""
        ...

    @property
    def routing(self) -> Routing | None:
        """Says which experts tokens choose; None for what the program computes."""
        ...

    @property
    def main(self) -> "Process":
        """The process of code outside of workers."""
        ...

    @property
    def recordings(self) -> Table[Hashable, Recording]:
        """Recorded launches of kernels, by everything on which their commands depend."""
        ...

    @property
    def worker_waits(self) -> list[Event]:
        """Events that workers wait for now."""
        ...

    def rank_of_device(self, sip: int) -> int | None:
        """Returns the rank that a SIP belongs to while a spawn runs; None if it is free."""
        ...


class Part(Protocol):
    """A collective or a message, in which each rank has one command."""

    def issued(self, process: "Process", command: Command) -> None:
        """Called with a rank's command before the command is submitted."""
        ...

    def told(self, command: Command, how: str) -> Fact:
        """Returns the line of a report that tells when and where a rank made the call.

        Args:
            command: The rank's command.
            how: What became of the call, such as `was issued`.
        """
        ...


class RankLocal(Generic[T]):
    """A variable of which each rank, and main, has a value of its own.

    Ranks share one interpreter, so all of them would share a global variable.

    Args:
        name: Name of the variable for people who inspect a process.
        make: Makes the first value of a process.
        outlives: Whether a rank's value stays after its spawn, for a look at what it left behind.

    Attributes:
        name: Name of the variable.
        outlives: As above.
    """

    __slots__ = ("_make", "name", "outlives")

    def __init__(
        self, name: str, make: "Callable[[Process], T]", *, outlives: bool = False
    ) -> None:
        self.name: Final = name
        self.outlives: Final = outlives
        self._make: Final = make

    def __repr__(self) -> str:
        return f"<rank-local {self.name}>"

    def of(self, process: "Process") -> T:
        """Returns the value of a process."""
        values = process.locals
        value: T
        if self in values:
            value = values[self]
        else:
            value = values[self] = self._make(process)
        return value

    def set(self, process: "Process", value: T) -> None:
        """Changes the value of a process."""
        process.locals[self] = value

    def forget(self, process: "Process") -> None:
        """Drops the value of a process; the next access makes a first value again."""
        process.locals.pop(self, None)


class NoContextError(KernbenchError):
    """A function of `torch` was called without a simulated machine to run it on."""


class StepBudgetError(KernbenchError):
    """A rank has issued more commands than the context allows."""

    def __init__(self, name: str, site: CallSite | None) -> None:
        super().__init__(
            f"{name} has used up its step budget",
            [site_fact(site, "the last command was issued at")],
            hint="look for a loop that does not end, or raise --step-budget or step_budget=",
            code="K5",
        )


class Process:
    """Stands for one operating-system process of a real run.

    Attributes:
        ctx: What the processes of a context share.
        engine: Engine of that context.
        rank: Global rank; -1 for main.
        ranks: On main, the processes of the last spawn.
        host: The host thread, with its clock.
        memory: Allocator of the process's host memory.
        device_index: Index of the current SIP.
        default_device: Device that the program has set for tensors made without `device=`; None if
            it has set none, and `usual_device` counts.
        default_devices: Values of `default_device` to return to after each `with torch.device`.
        usual_device: The host, or None for the current SIP.
        strict: Whether devices are kept apart as in PyTorch, see `RunSpec.default_device`.
        seen: Number of the last command that the host has waited for, by stream.
        alive: Whether the rank's function is still running.
        locals: The process's values of `RankLocal` variables.
        joined: Commands of the rank in collectives and messages, by the line that each is in, the
            oldest first; those at the front may be complete. See `ranks.meeting.Exchange.line`.
        latest: The latest of all these commands.
        recent: The rank's latest calls of collectives and messages.
        heard: Called with each meeting of ranks that the rank joins (a collective, a message, a
            creation of groups), with the views that it gives, and with what its command does;
            returns what the command does instead. None if nobody listens.
        giving: Called with the name of each collective that the rank is about to join, its stream,
            and the blocks that it reads and writes; may refuse it. None if nobody looks.
        frame: Frame whose return tells where the rank has left, see `last_frame`; None on main,
            before its first command, and after it returned.
        noted: Whether `frame` has been looked for.
        meets: Called with each command in which the rank meets others, and with what they share
            (a `ranks.Exchange`), before the command is submitted; None if nobody listens.
        inference: Whether the process is in `inference_mode`; see `tensors.grad_modes`.
        calls: Host times of the rank's calls.
        dispatches: Of these, what each call takes to issue its command, in picoseconds.
        budget: Number of commands that the rank may issue; None without a limit.
        issued_at_read: Number of commands issued at the last read of the host.
        ranges: Names of the ranges that the process is in, the outermost first; see
            `runtime_api.ranges`.
        stopped: Where the rank was when it was about to be aborted, for the flight record.
        site: Where the user called a function that issues many operations, such as `backward`;
            None: each operation looks for its own call.
    """

    __slots__ = (
        "__weakref__",
        "_current",
        "_default",
        "_side_streams",
        "_streams",
        "alive",
        "budget",
        "calls",
        "ctx",
        "default_device",
        "default_devices",
        "device_index",
        "dispatches",
        "engine",
        "frame",
        "giving",
        "heard",
        "host",
        "inference",
        "issued_at_read",
        "joined",
        "lately",
        "latest",
        "locals",
        "meets",
        "memory",
        "noted",
        "ranges",
        "rank",
        "ranks",
        "recent",
        "runs",
        "seen",
        "site",
        "stopped",
        "strict",
        "task",
        "usual_device",
    )

    def __init__(
        self,
        ctx: Session,
        engine: GraphEngine,
        rank: int,
        device: int,
        clock: int,
        *,
        beside: bool = False,
    ) -> None:
        spec = engine.topology.machine.system.host
        self.ctx: Final = ctx
        self.engine: Final = engine
        self.rank: Final = rank
        self.ranks: list[Process] = []
        self.host: Final = Host(
            engine.loop, rank, engine.rank_owner(rank), clock, spec.launch_queue
        )
        self.memory: Final = Allocator(Space.HOST, rank, 0, None)
        self.device_index = device
        self.strict: Final = ctx.spec.default_device == "cpu"
        self.usual_device: Final = CPU if self.strict or rank == MAIN else None
        self.default_device: Device | None = None
        self.default_devices: tuple[Device | None, ...] = ()
        self.seen: dict[Stream, int] = {}
        self.alive = True
        self.locals: dict[RankLocal[Any], Any] = {}
        self.stopped: dict[str, Any] | None = None
        self._side_streams: dict[tuple[str, int], Stream] = {}
        self.joined: dict[Hashable, deque[Command]] = {}
        self.latest: Command | None = None
        self.recent: deque[RecentCall] = deque(maxlen=RECENT)
        self.heard: Callable[[object, Sequence[View], Action], Action] | None = None
        self.giving: Callable[[str, Stream, Sequence[Any], Sequence[Any]], None] | None = None
        self.meets: Callable[[Any, Process, Command], None] | None = None
        self.frame: FrameType | None = None
        self.noted = rank == MAIN  # main has no function
        self.budget: int | None = None
        self.issued_at_read = 0
        self.ranges: tuple[str, ...] = ()
        self.site: CallSite | None = None
        self.inference = False
        self.task: Task | None = None
        self.calls: Final = engine.host_calls(beside=beside)
        self.lately: Final[list[str]] = []
        self.runs: Final[list[int]] = []
        self.dispatches: Final = self.calls.issues
        self._default: dict[int, Stream] = {}
        self._current: dict[int, Stream] = {}
        self._streams: list[Stream] = []

    @property
    def name(self) -> str:
        """Name in reports: `main`, or `rank` and a number."""
        return "main" if self.rank == MAIN else f"rank {self.rank}"

    # Streams

    def default_stream(self, sip: int) -> Stream:
        """Returns the stream to which a device's commands go unless the user sets another one."""
        stream = self._default.get(sip)
        if stream is None:
            stream = self._default[sip] = self._new(f"stream {sip}", sip)
            if self.host.tape is not None:
                self.host.tape.stream(stream, "default")
        return stream

    def current_stream(self, sip: int) -> Stream:
        """Returns the stream to which a device's commands go now."""
        stream = self._current.get(sip)
        if stream is None:
            stream = self._current[sip] = self.default_stream(sip)
        return stream

    def set_stream(self, stream: Stream) -> None:
        """Makes a stream the current one of its device.

        Raises:
            KernbenchError: If the stream belongs to another process (M14).
        """
        if stream not in self._streams:
            raise KernbenchError(
                f"{self.name} uses a stream of another rank ({stream.name})",
                [site_fact(call_site())],
                hint="make the stream in the worker that uses it",
                code="M14",
            )
        self._current[stream.sip] = stream

    def make_current(self, stream: Stream) -> None:
        """Does what `set_stream` does, for any stream that the process has commands on."""
        self._current[stream.sip] = stream

    def new_stream(self, sip: int) -> Stream:
        """Returns a new stream; from now on several streams share the device."""
        self.engine.devices[sip].share(self.engine.loop)
        self.default_stream(sip)  # which comes first, whatever was issued before
        stream = self._new(f"stream {sip}.{len(self.computing_streams(sip))}", sip)
        if self.host.tape is not None:
            self.host.tape.stream(stream, "new")
        return stream

    def communication_stream(self, sip: int) -> Stream:
        """Returns the stream of asynchronous collectives, which shares no engine with the rest."""
        return self.side_stream(f"communication {sip}", sip)

    def side_stream(self, name: str, sip: int) -> Stream:
        """Returns the stream of this name, for work that holds no engine of the rest.

        Args:
            name: Name for users; unique among the streams of a device.
            sip: Index of the device; -1 for the host.
        """
        stream = self._side_streams.get((name, sip))
        if stream is None:
            stream = self._side_streams[name, sip] = self._new(name, sip)
            if sip >= 0:
                self.engine.devices[sip].go_beside(self.engine.loop)
        return stream

    def _new(self, name: str, sip: int) -> Stream:
        stream = Stream(name, sip)
        self._streams.append(stream)
        return stream

    def streams(self, sip: int | None = None) -> list[Stream]:
        """Returns the streams used so far, of one device or all."""
        return [stream for stream in self._streams if sip is None or stream.sip == sip]

    def computing_streams(self, sip: int) -> list[Stream]:
        """Returns the streams of a device that a program can make the current one."""
        aside = set(self._side_streams.values())
        return [stream for stream in self.streams(sip) if stream not in aside]

    # Issuing and waiting

    def note_frame(self) -> None:
        """Remembers the frame that tells, once the rank has left, where it returned."""
        self.noted = True
        self.frame = last_frame(self.frame)

    def call_site(self) -> CallSite | None:
        """Returns where the user called the running function of this package, which calls this."""
        return self.site or call_site(3)

    def call_theirs(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls a user's function, whose operations have call sites of their own."""
        site, self.site = self.site, None
        try:
            return function(*args)
        finally:
            self.site = site

    def wait_stream(self, stream: Stream, awaited: Awaited = "stream") -> None:
        """Waits until all commands issued to a stream so far are done.

        Args:
            awaited: What the user waits for, for traces.
        """
        if stream.tail is not None or stream.waits:
            number = stream.count
            seen = dict(stream.seen)
            # Also the events that the stream's next command would have waited for.
            for event in (stream.tail, *stream.waits):
                if event is not None:
                    self.wait(event, awaited)
            self.learn({**seen, stream: number})

    def synchronize(self, sip: int | None = None) -> None:
        """Waits until all commands issued to a device, or to all devices, so far are done."""
        for stream in self.streams(sip):
            self.wait_stream(stream, "device" if stream.sip >= 0 else "host")

    def wait(self, event: Event, awaited: Awaited = "host") -> None:
        """Waits for an event: parks in a worker, drives the loop on main.

        Args:
            awaited: What the user waits for, for traces.
        """
        waits, began, tape = self.ctx.worker_waits, self.host.clock, self.host.tape
        if tape is not None:
            tape.wait(event, awaited)
        if event.time is None and self.task is not None:
            waits.append(event)
            try:
                self.host.wait(event)
            finally:
                waits.remove(event)
        else:
            self.host.wait(event)
        if self.host.clock > began and self.engine.op_log.full and awaited != "host":
            self.engine.op_log.add_wait(Wait(self.rank, awaited, began, self.host.clock))
        if tape is not None:
            tape.waited(event)

    def learn(self, seen: Mapping[Stream, int]) -> None:
        """Notes that the host has waited for commands, given the last number of each stream."""
        for stream, number in seen.items():
            if number > self.seen.get(stream, 0):
                self.seen[stream] = number

    def ordered(self, stream: Stream, line: Stream, number: int) -> bool:
        """Returns whether a command ends before the next command of a stream begins.

        Args:
            line: Stream of the command; what another process does is that process's business.
            number: Number of the command.
        """
        return (
            line is stream
            or stream.seen.get(line, 0) >= number
            or self.seen.get(line, 0) >= number
            or line not in self._streams
        )

    def have_read(self, what: Callable[[], Read | None]) -> None:
        """Notes that the host has read a value in memory; tells it now and then, see `Host`.

        Args:
            what: Returns what was read; None if that need not be the same the next time.

        Raises:
            LivelockError: If the rank reads the same values for ever, and nothing else is left to
                happen (K6).
        """
        host = self.host
        host.reads += 1
        if host.reads < READS:
            return
        issued, self.issued_at_read = host.issued - self.issued_at_read, host.issued
        host.have_read(what() if issued == host.copies_read else None)

    def knows(self, command: Command) -> bool:
        """Returns whether the host, or another stream of the process, has waited for a command."""
        line, number = command.stream, command.number
        return self.seen.get(line, 0) >= number or any(
            stream.seen.get(line, 0) >= number for stream in self._streams
        )

    def sip_of(self, device: Device) -> int:
        """Returns the SIP that a `cuda` device means here.

        Raises:
            KernbenchError: If the context has no such device.
        """
        index = self.device_index if device.index is None else device.index
        if index not in self.ctx.places:
            raise KernbenchError(
                f"{self.name} asks for cuda:{index}, which does not exist",
                [site_fact(call_site()), f"the context has devices {_folded(self.ctx.devices)}"],
            )
        return index


def _folded(indices: Sequence[int]) -> str:
    if len(indices) > 2 and list(indices) == list(range(indices[0], indices[-1] + 1)):
        return f"{indices[0]}..{indices[-1]}"
    return ", ".join(map(str, indices))


ENTERED: Final[ContextVar[tuple[Process, ...]]] = ContextVar("entered contexts", default=())
"""Main processes of the contexts that are entered, the innermost last; each thread has its own."""

_MADE: Final[ContextVar["weakref.ref[Process] | None"]] = ContextVar("latest context", default=None)
"""Main process of the latest context of this thread, for code that enters no context."""

_latest: "weakref.ref[Process] | None" = None
"""Main process of the latest context of any thread, for a thread that has made none."""


def made(process: Process) -> None:
    """Notes the main process of a new context."""
    global _latest  # noqa: PLW0603 - a thread that has made no context uses the latest of all
    _latest = weakref.ref(process)
    _MADE.set(_latest)


def enter(process: Process) -> None:
    """Makes a main process the one that code outside of workers runs on, in this thread."""
    ENTERED.set((*ENTERED.get(), process))


def leave(process: Process) -> None:
    """Undoes the latest `enter` of this process."""
    entered = ENTERED.get()
    last = len(entered) - 1 - entered[::-1].index(process)
    ENTERED.set(entered[:last] + entered[last + 1 :])


def host_time(main: Host) -> int:
    """Returns the time of the host whose code runs, in simulated picoseconds.

    Args:
        main: The host of code outside of workers.
    """
    task = current_task()
    subject = None if task is None else task.subject
    return subject.host.clock if isinstance(subject, Process) else main.clock


def current_process() -> Process:
    """Returns the process of the calling code: its rank's, or main's.

    Raises:
        NoContextError: Outside of any context.
        KernbenchError: From inside a kernel, which has no host (C20); or in a thread beside the
            one that simulates on the context (R12).
    """
    task = current_task()
    if task is not None:
        subject = task.subject
        if isinstance(subject, Process):
            return subject
        if isinstance(subject, Program):
            raise KernbenchError(
                "a function of the host was called from inside a kernel",
                [site_fact(call_site())],
                hint="a kernel uses kernbench.tl only; compute host values before the launch",
                code="C20",
            )
    entered = ENTERED.get()
    main = entered[-1] if entered else _latest_main()
    driver = main.engine.loop.driver
    if driver is not None and driver != get_ident():
        raise KernbenchError(
            "a thread uses a context while another thread simulates on it",
            [site_fact(call_site())],
            hint="ranks are tasks of one thread: call kernbench in the rank itself, and give each "
            "thread that spawns ranks a context of its own",
            code="R12",
        )
    return main


def _latest_main() -> Process:
    for made in (_MADE.get(), _latest):
        process = None if made is None else made()
        if process is not None:
            return process
    raise NoContextError(
        "no simulated machine is running here",
        [site_fact(call_site())],
        hint="run this file with `kernbench run`, or inside `with kernbench.context():`",
    )


types.find_process = current_process
