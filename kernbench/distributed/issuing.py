"""Issues a rank's part of a collective."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from kernbench.ccl.operations import OPERATIONS
from kernbench.distributed.checks import check_library, check_type
from kernbench.distributed.comm_debug import EVERYWHERE, count
from kernbench.distributed.joints import joint_of
from kernbench.distributed.libraries import PARTIAL
from kernbench.distributed.signatures import Signature, on_hosts
from kernbench.distributed.works import Work
from kernbench.errors import CallSite
from kernbench.kernels.host_calls import Issue
from kernbench.memory import HOST_SIP, View
from kernbench.process.act import Block, Entered, Span, act
from kernbench.process.process import Process
from kernbench.ranks.groups import ProcessGroup
from kernbench.ranks.meeting import Call, CollectiveMismatchError, Exchange, Role
from kernbench.ranks.world import World, world_of
from kernbench.sim_engine.command import Command, Stream
from kernbench.sim_engine.op_log import Together, TogetherArgs
from kernbench.tensors.nodes import goes_back
from kernbench.tensors.running import wait_for
from kernbench.tensors.tensor import Tensor

_MOST_WORKS: Final = 256
"""Handles of a rank before those are dropped that the rank has waited for; a power of 2."""


def follow(stream: Stream, current: Stream) -> None:
    """Puts the next commands of a stream behind all commands that the current stream holds now."""
    news = current.tail is not None and stream.seen.get(current, 0) < current.count
    if news or current.waits:
        if current.tail is not None:
            stream.waits.append(current.tail)
        # Also the events that the current stream's next command would have waited for.
        stream.waits.extend(current.waits)
        stream.learn({**current.seen, current: current.count})


def issue(
    process: Process,
    group: ProcessGroup,
    what: Signature,
    sources: Sequence[Block],
    targets: Sequence[Block],
    *,
    async_op: bool = False,
    mail: Any = None,
    site: CallSite | None = None,
    role: Role | None = None,
) -> tuple[Command, Exchange | None]:
    """Puts the calling rank's part of a collective in its stream.

    The host waits only for blocks on the host, unless `async_op` is set.

    Args:
        group: Process group of the collective.
        what: Signature of the call.
        sources: Blocks that the rank gives, in order; tensors of this package or of another one.
        targets: Blocks that receive the rank's results, in order; may be the sources.
        async_op: Whether the command goes to the communication stream of the group, behind all
            commands that the current stream holds now; otherwise it goes to the current stream.
        mail: Value that the other ranks find in the exchange, beside the simulated bytes.
        site: Where the user called the collective; None: to be found.
        role: Why the collective runs, if the user did not call it directly.

    Returns:
        The rank's command, and what the ranks share; None while the call is only noted, to be made
        later.

    Raises:
        AccessError: If a command on a block is under way that nobody has waited for.
        CollectiveMismatchError: If the call of another rank differs (C2-C7, C11).
    """
    on_host = (targets or sources)[0].memory.sip < 0
    if on_host:
        check_library(process, group, what.name, "cpu")
        what = on_hosts(what)
        stream = process.side_stream(f"gloo {group.name}", HOST_SIP)
    else:
        if process.rank not in group.last:
            check_library(process, group, what.name, "cuda")
        sip = process.ctx.devices[process.rank]  # as `home_of`
        stream = current = process.current_stream(sip)
        if async_op:
            stream = communication_stream(process, group, sip)
            follow(stream, current)
    if what.dtype in PARTIAL:
        check_type(
            process, group, what.name, what.operation, "cpu" if on_host else "cuda", what.dtype
        )
    site = site or process.call_site()
    if process.giving is not None:
        process.giving(what.name, stream, sources, targets)
    posted = Posted(group, what, sources, targets, async_op, mail, site, role)
    command, exchange = put(process, posted, stream, "hosted" if on_host else None)
    if EVERYWHERE:
        count(process, what.counted or what.kind, group.name, what.nbytes)
    if on_host and not async_op:
        wait_for(process, command)
    return command, exchange


def met(issued: tuple[Command, Exchange | None]) -> tuple[Command, Exchange]:
    """Returns what `issue` has returned for a call with a value for other ranks.

    Such a call is never only noted: a capture refuses it.
    """
    command, exchange = issued
    assert exchange is not None, "the call was made"
    return command, exchange


class Posted(NamedTuple):
    """A rank's part of a collective, as it is put in a stream.

    Attributes:
        group: Process group of the collective.
        what: Signature of the call.
        sources: Blocks that the rank gives, in order.
        targets: Blocks that receive the rank's results, in order; may be the sources.
        async_op: Whether the command goes to the communication stream of the group.
        mail: Value that the other ranks find in the exchange.
        site: Where the user called the collective.
        role: Why the collective runs.
    """

    group: ProcessGroup
    what: Signature
    sources: Sequence[Block]
    targets: Sequence[Block]
    async_op: bool
    mail: Any
    site: CallSite | None
    role: Role | None


def put(
    process: Process, posted: Posted, stream: Stream, how: Issue | None = None
) -> tuple[Command, Exchange | None]:
    """Puts a rank's part of a collective in a stream; does not wait.

    Args:
        posted: The call.
        stream: Stream of the command.
        how: What the host calls; None: a collective between devices.

    Returns:
        The rank's command, and what the ranks share; None while the call is only noted.

    Raises:
        AccessError: If a command on a block is under way that nobody has waited for.
        CollectiveMismatchError: If the call of another rank differs (C2-C7, C11).
    """
    group, what, sources, targets, async_op, mail, site, role = posted
    rank, on_host = process.rank, how == "hosted"
    entered: list[Exchange] = []

    def enter() -> Entered:
        """Joins the rank's call with the calls of other ranks."""
        gives = _views(sources, what)
        takes = gives if sources is targets else _views(targets, what)
        if process.host.tape is not None:  # the last call may move bytes of the host at once
            joined = Joined(group, what, gives, takes, async_op, mail, role)
            noted: Entered | None = process.host.tape.together(joined, posted)
            if noted is not None:
                return noted
        found = join(process, group, what, gives, takes, site, mail=mail, role=role)
        assert isinstance(found.part, Exchange)
        entered.append(found.part)
        last = group.last.get(rank)
        if last is not None and not on_host and last.stream is not stream:
            # A communicator runs one operation at a time, whatever the streams are.
            stream.waits.append(last.done)
        return found

    command = act(
        process,
        what.command,
        "collective",
        stream,
        enter,
        reads=() if sources is targets else sources if len(sources) < 2 else _joined(sources),
        writes=targets if len(targets) < 2 else _joined(targets),
        site=site,
        issue=how,
    )
    if not entered:
        return command, None
    (exchange,) = entered
    if not on_host:
        group.last[rank] = command
    world = world_of(process)
    if world.eager is not None:
        world.eager.note(process, command, exchange)
    if what.splits is not None and len(exchange.calls) == len(group.callers):
        name_algorithm(exchange)
    return command, exchange


class Joined(NamedTuple):
    """What a rank calls together with others: what `issue` was given, for ranks that do the same.

    Attributes:
        group: Process group of the collective.
        what: Signature of the call.
        gives: Views that the rank gives, in order.
        takes: Views that receive the rank's results, in order; may be those of `gives`.
        async_op: Whether the command goes to the communication stream of the group.
        mail: Value that the other ranks find in the exchange.
        role: Why the collective runs, if the user did not call it directly.
    """

    group: ProcessGroup
    what: Signature
    gives: Sequence[View]
    takes: Sequence[View]
    async_op: bool
    mail: Any
    role: Role | None


def join(
    process: Process,
    group: ProcessGroup,
    what: Signature,
    gives: Sequence[View],
    takes: Sequence[View],
    site: CallSite | None,
    *,
    mail: Any = None,
    role: Role | None = None,
) -> Entered:
    """Joins a rank's call of a collective with the calls of other ranks; issues nothing.

    Args:
        group: Process group of the collective.
        what: Signature of the call.
        gives: Views that the rank gives, in order.
        takes: Views that receive the rank's results, in order; may be those of `gives`.
        site: Where the user called the collective.
        mail: Value that the other ranks find in the exchange, beside the simulated bytes.
        role: Why the collective runs, if the user did not call it directly.

    Returns:
        What the rank's command does, and what the ranks share.

    Raises:
        CollectiveMismatchError: If the call of another rank differs (C2-C7, C11).
    """
    session: Any = process.ctx  # as `world_of`: every collective comes here
    world: World = session.world
    rank, now = process.rank, process.host.clock
    call = Call(rank, what.kind, what.terms, what.text, site, now, None, what.splits)
    if role is not None:
        call.text, call.hint = f"{what.text} {role.name}", role.hint
    try:
        exchange = group.enter(call)
    except CollectiveMismatchError as error:
        world.blame(group.open[group.number(rank)].calls, error)
        raise
    joint = exchange.joint
    if joint is None:
        joint = exchange.joint = joint_of(process, group, what, (*gives, *takes))
    first = len(exchange.calls) == 1
    if first and world.exited and not world.exited.keys().isdisjoint(exchange.absent()):
        # A rank that returns later looks for open meetings itself.
        world.review()
    if mail is not None:
        exchange.mail[rank] = mail
    action = joint.join(group.place(rank), gives, takes, what.sends)
    if process.heard is not None:
        action = process.heard(exchange, gives, action)
    return Entered(action, exchange, exchange.args or _args(process, exchange, group, what))


def _views(blocks: Sequence[Block], what: Signature) -> Sequence[View]:
    """Returns the windows of blocks; complex numbers travel as their parts."""
    if what.dtype.is_complex:
        return [block.window.parts() for block in blocks]
    return (blocks[0].window,) if len(blocks) == 1 else [block.window for block in blocks]


def name_algorithm(exchange: Exchange) -> None:
    """Tells the log the algorithm of an exchange that has one only since all ranks have called."""
    assert exchange.joint is not None
    for call in exchange.calls.values():
        if call.command is not None and isinstance(call.command.args, dict):
            call.command.args["algorithm"] = exchange.joint.algorithm


def _joined(blocks: Sequence[Block]) -> Sequence[Block]:
    """Returns contiguous blocks, with neighbours in memory joined.

    Lists are often the chunks of one tensor, and each block costs a check of its own.
    """
    found: list[Block] = []
    begin = end = 0
    for block in blocks:
        view = block.window
        same = found and found[-1].memory is block.memory and found[-1].window.dtype is view.dtype
        if same and view.offset == end:
            end += view.numel
            whole = View(view.buffer, view.dtype, (end - begin,), (1,), begin)
            found[-1] = Span(block.memory, whole)
        else:
            begin, end = view.offset, view.offset + view.numel
            found.append(block)
    return found


def run(
    process: Process,
    group: ProcessGroup,
    what: Signature,
    sources: Sequence[Tensor],
    targets: Sequence[Tensor],
    async_op: bool,
    site: CallSite | None = None,
    role: Role | None = None,
) -> Work | None:
    """Does what `issue` does for tensors; returns the `Work` if the operation is asynchronous.

    Args:
        group: Process group of the collective.
        what: Signature of the call.
        sources: Tensors that the rank gives, in order.
        targets: Tensors that receive the rank's results, in order; may be the sources.
        async_op: Whether the operation is asynchronous.
        site: Where the user called the collective; None: to be found.
        role: Why the collective runs, if the user did not call it directly.
    """
    command, _ = issue(
        process, group, what, sources, targets, async_op=async_op, site=site, role=role
    )
    return handle(process, command, targets) if async_op else None


def handle(
    process: Process,
    command: Command,
    outputs: Sequence[Tensor],
    *,
    blocks_host: bool = False,
) -> Work:
    """Returns the `Work` of an asynchronous operation; the rank must wait for it (C13).

    Args:
        process: The rank that issued the operation.
        command: The operation's command.
        outputs: Tensors that the operation writes.
        blocks_host: Whether `Work.wait` makes the host wait too, as for a barrier.
    """
    work = Work(process, command, outputs, blocks_host=blocks_host)
    works = world_of(process).unwaited.setdefault(process.rank, {})
    works[work] = command
    if len(works) >= _MOST_WORKS and len(works) & (len(works) - 1) == 0:
        for other in [other for other, command in works.items() if process.knows(command)]:
            del works[other]
    return work


def communication_stream(process: Process, group: ProcessGroup, sip: int) -> Stream:
    """Returns the stream of a group's asynchronous collectives on the calling rank.

    Args:
        group: Process group of the collectives.
        sip: The rank's device.
    """
    if group is world_of(process).group:
        return process.communication_stream(sip)
    return process.side_stream(f"communication {sip} {group.name}", sip)


def _args(
    process: Process, exchange: Exchange, group: ProcessGroup, what: Signature
) -> dict[str, Any]:
    """Returns the log entries of a rank's command: the same for all ranks, unless sizes differ."""
    args = {
        "group": group.name,
        "sequence": exchange.number,
        "bytes": what.nbytes,
        "dtype": what.dtype.name,
    }
    if exchange.joint is not None and exchange.joint.algorithm:
        args["algorithm"] = exchange.joint.algorithm
    if process.engine.op_log.full:
        args = TogetherArgs(args, _together(group, what, goes_back(process)))
    if what.splits is None:
        exchange.args = args
    return args


def _together(group: ProcessGroup, what: Signature, backward: bool) -> Together:
    if what.splits is not None:
        gives, takes = (what.row * sum(of) for of in (what.splits.sends, what.splits.receives))
    else:
        operation, elements = OPERATIONS[what.operation], what.nbytes // what.dtype.itemsize
        gives, takes = (
            elements // len(group.ranks) if share == "own" else elements
            for share in (operation.gives, operation.takes)
        )
    return Together(what.operation, group.ranks, group.desc, gives, takes, backward)
