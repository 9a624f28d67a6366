"""Issues commands: checks the blocks, submits the command, notes which command touched them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from kernbench.errors import CallSite, KernbenchError, site_fact
from kernbench.memory import HOST_SIP, UninitialisedReadError, View
from kernbench.process.access import Guard
from kernbench.process.process import Part, Process, StepBudgetError
from kernbench.sim_engine.command import Action, Command, Issue, Stream
from kernbench.sim_engine.data_executor import Effect
from kernbench.sim_engine.op_log import Category


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
    for block in reads:
        memory = block.memory
        pending = memory.writes
        # Nearly always the block is the process's own, last written in this very stream or never.
        if memory.owner is process and (
            not pending or (at_home and len(pending) == 1 and pending[0][0].stream is line)
        ):
            continue
        home = memory.sip
        at = line if home in (sip, HOST_SIP) else process.current_stream(home)
        memory.check(process, at, block.window, "read")
    for block in writes:
        memory = block.memory
        pending = memory.writes
        if (
            (pending and not (at_home and len(pending) == 1 and pending[0][0].stream is line))
            or memory.reads
            or memory.owner is not process
        ):
            home = memory.sip
            at = line if home in (sip, HOST_SIP) else process.current_stream(home)
            memory.check(process, at, block.window, "wrote")
    host = process.host
    site = site or process.call_site()
    if host.issued == process.budget:
        raise StepBudgetError(process.name, site)
    part = None
    if callable(action):
        assert args is None, "what the function returns says it"
        action, part, args = action()
    dispatch = process.dispatches[issue or category]
    host.clock += dispatch
    if not process.noted:
        process.note_frame()
    command = Command(name, category, host, stream, action, site, args, dispatch)
    command.ranges = process.ranges
    if part is not None:
        command.part = part
        part.issued(process, command)
    process.engine.submit(command)
    for block in writes:
        memory = block.memory
        if memory.writes:
            memory.wrote(command, block.window, new_version)
        else:  # as `Guard.wrote`, without a call: nearly every command fills a new block
            memory.version += new_version
            memory.buffer.writer = command
            memory.writes = [(command, block.window)]
    # A device runs these in the order of its one stream, so nobody can overtake a reader.
    in_turn = category in {"compute", "kernel"} and sip >= 0
    if not in_turn or process.engine.devices[sip].compute.shared:
        for block in reads:
            block.memory.read(command, block.window)
    return command


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
    for block in reads:
        block.memory.check(process, None, block.window, "read")
    for block in writes:
        block.memory.check(process, None, block.window, "wrote")
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
