"""Issues commands: checks the blocks, submits the command, notes which command touched them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from kernbench.des import Beside, Event, Fifo
from kernbench.errors import CallSite, KernbenchError, site_fact
from kernbench.kernels.host_calls import Issue
from kernbench.memory import HOST_SIP, UninitialisedReadError, View
from kernbench.process.access import Guard
from kernbench.process.process import Part, Process, StepBudgetError
from kernbench.sim_engine.command import Action, Command, Stream
from kernbench.sim_engine.data_executor import Effect
from kernbench.sim_engine.engine import Hold
from kernbench.sim_engine.op_log import Category
from kernbench.sim_engine.row import Row


class Block(Protocol):
    """Elements that a command reads or writes: a tensor of this package, or of another one.

    The window has the element type, the shape, and the bytes in place.
    """

    @property
    def memory(self) -> Guard:
        """Guard of the bytes: it knows their owner, their device and the accesses under way."""
        ...

    @property
    def window(self) -> View:
        """The elements inside the memory."""
        ...


class Span(NamedTuple):
    """A block that is no tensor, such as several tensors that are neighbours in memory."""

    memory: Guard
    window: View


class HostWrite(NamedTuple):
    """What a host has written itself, as a `memory.storage.Writer`."""

    name: str
    site: CallSite | None


class Entered(NamedTuple):
    """The action of a rank's command in a collective or a message.

    Attributes:
        action: Action of the command.
        part: The collective or message; None for a command of this rank alone.
        args: Arguments of the command in the log.
    """

    action: Action
    part: Part | None
    args: Mapping[str, Any] | None


def act(
    process: Process,
    name: str,
    category: Category,
    stream: Stream,
    action: Action | Callable[[], Entered],
    *,
    reads: Sequence[Block] = (),
    writes: Sequence[Block] = (),
    site: CallSite | None = None,
    args: Mapping[str, Any] | None = None,
    asking: Stream | None = None,
    new_version: bool = True,
    issue: Issue | None = None,
) -> Command:
    """Issues a command that touches memory; waits only if the launch queue is full.

    Every command of a program goes this way. The blocks are checked first: a call that is refused
    because of a block has called no other rank. Accesses to a block on another device than the
    command's are ordered by that device's current stream; accesses to a block on the host by the
    command's own stream, as two copies of one stream into one pinned buffer are.

    Args:
        process: The rank, or main, that issues the command.
        name: Name of the command in traces and errors.
        category: Kind of work.
        stream: Stream of the command.
        action: What the command does; or a function that is called after the check of the blocks,
            joins the call with those of other ranks, and returns what the command does.
        reads: Blocks that the command reads.
        writes: Blocks that the command writes.
        site: Where the user asked for the command; None: to be found.
        args: Arguments of the command in the log; None if `action` is a function that returns them.
        asking: The user's current stream, if the command goes to a stream of its own. Commands for
            which that stream has waited then count as waited for.
        new_version: Whether writing makes a new version of a block, which autograd notices.
        issue: What the host calls, which decides how long issuing takes; None: what the category
            says.

    Raises:
        OwnershipError: If a block belongs to another rank (M14).
        AccessError: If a command on a block is under way that nobody has waited for.
        StepBudgetError: If the rank has issued as many commands as the run allows (K5).
    """
    sip, line = stream.sip, asking or stream
    at_home = category != "copy"  # only copies touch what is elsewhere
    # What is written comes first: an operation in place reads, too, and its mistake is the write.
    for block in writes:
        memory = block.memory
        pending = memory.writes
        if (
            (pending and not (at_home and len(pending) == 1 and pending[0][0] is line))
            or memory.reads
            or memory.owner is not process
        ):
            home = memory.sip
            at = line if home in (sip, HOST_SIP) else process.current_stream(home)
            memory.check(process, at, block.window, "wrote")
    for block in reads:
        memory = block.memory
        pending = memory.writes
        # Nearly always the block is the process's own, last written in this very stream or never.
        if memory.owner is process and (
            not pending or (at_home and len(pending) == 1 and pending[0][0] is line)
        ):
            continue
        home = memory.sip
        at = line if home in (sip, HOST_SIP) else process.current_stream(home)
        memory.check(process, at, block.window, "read")
    host = process.host
    site = site or process.call_site()
    if host.issued == process.budget:
        raise StepBudgetError(process.name, site)
    part = None
    if callable(action):
        assert args is None, "what the function returns says it"
        action, part, args = action()
    dispatch = process.dispatches[issue or category]
    if category == "compute" and issue != "replayed":  # of a graph, which is one call
        dispatch += called(process, name)
    host.clock += dispatch
    if not process.noted:
        process.note_frame()
    command = Command(name, category, host, stream, action, site, args, dispatch)
    command.ranges = process.ranges
    if part is not None:
        command.part = part
        part.issued(process, command)
    if host.tape is None:
        process.engine.submit(command)
    else:
        host.tape.submit(command, reads, writes)
    number = command.number
    for block in writes:
        memory = block.memory
        if memory.writes or memory.reads:
            memory.wrote(stream, number, block.window, command, new_version)
        else:  # as `Guard.wrote`, without a call: nearly every command fills a new block
            memory.version += new_version
            memory.buffer.writer = command
            memory.writes = [(stream, number, block.window, command)]
    # A device runs these in the order of its one stream, so nobody can overtake a reader.
    in_turn = category in {"compute", "kernel"} and sip >= 0
    if not in_turn or process.engine.devices[sip].compute.shared:
        for block in reads:
            block.memory.read(stream, number, block.window, command)
    return command


def called(process: Process, name: str) -> int:
    """Returns what the host takes for an operation more than for one in a loop of its own.

    A loop of so many operations is known by as many in a row of which each came so many before.

    Args:
        process: The rank, or main, that calls it.
        name: Its kernel.

    Returns:
        Picoseconds; see `EagerSpec.among`, `loop` and `library`.
    """
    calls = process.calls
    own = calls.library.get(name, 0)
    if not calls.among:
        return own
    lately, runs, at_hand = process.lately, process.runs, False
    if name in lately:
        for place, earlier in enumerate(lately):  # the last one first
            if earlier == name:
                runs[place] += 1
                at_hand = at_hand or runs[place] > place
            else:
                runs[place] = 0
    else:
        runs[:] = [0] * len(runs)
    lately.insert(0, name)
    if len(lately) > calls.loop:
        lately.pop()
    elif len(runs) < len(lately):
        runs.append(0)
    return own if at_hand else own + calls.among


class Alone:
    """Issues commands that hold a resource for a known time, and whose blocks nobody guards.

    A fast path for PyTorch operations, which are many and need no memory guard: `act` without
    blocks. Nearly always everything before the command has a known time, and nobody keeps records:
    then the command is over at once, in simulated time that may lie ahead.

    Args:
        process: The rank, or main, that issues the commands.
        category: Kind of work.
        resource: What the commands hold.
    """

    __slots__ = ("_category", "_dispatch", "_engine", "_host", "_key", "_process", "_resource")

    def __init__(self, process: Process, category: Category, resource: Fifo) -> None:
        self._process: Final = process
        self._engine: Final = process.engine
        self._host: Final = process.host
        self._category: Final[Category] = category
        self._dispatch: Final = process.dispatches[category]
        self._key: Final = process.host.rank, category
        self._resource: Final = resource

    def issue(self, name: str, stream: Stream, duration: int, dispatch: int | None = None) -> None:
        """Issues a command; waits only if the launch queue is full.

        Args:
            name: Name of the command in traces and errors.
            stream: Stream of the command.
            duration: How long it takes, in picoseconds.
            dispatch: Host time in picoseconds, of a rank that does what another one did; None: to
                be found out.

        Raises:
            StepBudgetError: If the rank has issued as many commands as the run allows (K5).
        """
        process, engine, host, resource = self._process, self._engine, self._host, self._resource
        log = engine.op_log
        if log.full or host.issued == process.budget or not process.noted or host.tape is not None:
            hold = Hold(engine, resource, duration, None)
            act(process, name, self._category, stream, hold)
            return
        if dispatch is None:
            dispatch = self._dispatch + called(process, name)
        host.clock = start = host.clock + dispatch
        tail = stream.tail
        if tail is not None:
            time = tail.time
            if time is None:
                self._queue(name, stream, duration, start, tail, dispatch)
                return
            if time > start:
                start = time
        if stream.waits or resource.timely or not engine.timed:
            self._submit(name, stream, duration, dispatch)
            return
        if resource.free > start:
            start = resource.free
        end = resource.free = start + duration
        if resource.holds is not None and type(duration) is not Beside:
            resource.holds.add(start, end)
        total = log.totals.get(self._key)
        if total is None:
            log.total(*self._key, duration)
        else:
            total.count += 1
            total.busy_ps += duration
        stream.tail = done = Event(name)
        done.time = end
        stream.count += 1
        host.issued += 1
        host.launched(done)

    def _queue(
        self, name: str, stream: Stream, duration: int, issued: int, tail: Event, dispatch: int
    ) -> None:
        """Issues a command behind one whose time is unknown, such as a collective.

        Many such commands follow one collective: one command stands for all that wait alike.
        """
        host, first = self._host, tail.label
        row = first.action if isinstance(first, Command) else None
        if (
            isinstance(first, Command)
            and isinstance(row, Row)
            and row.resource is self._resource
            and not (stream.waits or row.resource.timely)
            and first.category == self._category
            and first.ranges is self._process.ranges
        ):
            stream.tail = done = Event(first)
            row.more.append((done, name, issued, duration))
            stream.count += 1
            host.issued += 1
            host.launched(done)
        else:
            self._submit(name, stream, duration, dispatch)

    def _submit(self, name: str, stream: Stream, duration: int, dispatch: int) -> None:
        engine, resource = self._engine, self._resource
        action = (
            Row(engine, resource, duration) if engine.timed else Hold(engine, resource, 0, None)
        )
        # Nothing can go wrong in it, so nobody asks which line has issued it.
        command = Command(name, self._category, self._host, stream, action, None, None, dispatch)
        command.ranges = self._process.ranges
        engine.submit(command)


def act_at_once(
    process: Process,
    name: str,
    effect: Effect | None,
    *,
    reads: Sequence[Block] = (),
    writes: Sequence[Block] = (),
    site: CallSite | None = None,
) -> None:
    """Lets the host touch memory itself, at once; takes no simulated time.

    Args:
        process: The rank, or main, whose host touches the memory.
        name: Name of the operation in errors.
        effect: Function that changes the bytes; None if there are no bytes to change.
        reads: Blocks that `effect` reads.
        writes: Blocks that `effect` writes.
        site: Where the user called the operation; None: to be found.

    Raises:
        OwnershipError: If a block belongs to another rank (M14).
        AccessError: If a command on a block is under way that nobody has waited for.
        KernbenchError: If `effect` raises it; the place of the call is added.
    """
    for block in writes:
        block.memory.check(process, None, block.window, "wrote")
    for block in reads:
        block.memory.check(process, None, block.window, "read")
    try:
        process.engine.executor.apply(effect)
    except KernbenchError as error:
        if isinstance(error, UninitialisedReadError):
            error.tell_writer()
        error.add_fact(site_fact(site or process.call_site(), f"{name} was called at"))
        raise
    for block in writes:
        memory = block.memory
        memory.version += 1
        if memory.buffer.unwritten is not None:
            memory.buffer.writer = HostWrite(name, site or process.call_site())
