"""The way of every collective from its call into the rank's stream."""

from collections.abc import Sequence
from typing import Any, Final

from kernbench.ccl.collective import Collective, Joining
from kernbench.ccl.prepared import Prepared, Shape
from kernbench.distributed.checks import check_library
from kernbench.distributed.comm_debug import count
from kernbench.distributed.groups import home_of
from kernbench.distributed.signatures import Signature, on_hosts
from kernbench.distributed.works import Work
from kernbench.errors import CallSite
from kernbench.memory import View
from kernbench.process.process import Process
from kernbench.ranks.groups import ProcessGroup
from kernbench.ranks.hosted import ALGORITHM, HOST, HostCollective
from kernbench.ranks.meeting import Call, CollectiveMismatchError, Meeting, Role
from kernbench.ranks.world import world_of
from kernbench.sim_engine.command import Command, Stream
from kernbench.tensors.access import check_access
from kernbench.tensors.new import alias
from kernbench.tensors.running import wait_for
from kernbench.tensors.tensor import Tensor
from kernbench.units import format_bytes

_MOST_PREPARED: Final = 256
"""Signatures of a group that are kept with what is known of them before all are forgotten."""

_MOST_WORKS: Final = 256
"""Handles of a rank that are kept before those that are waited for are forgotten: a power of 2."""


def follow(stream: Stream, current: Stream) -> None:
    """Puts what comes next in a stream behind what another one holds now."""
    news = current.tail is not None and stream.seen.get(current, 0) < current.count
    if news or current.waits:
        if current.tail is not None:
            stream.waits.append(current.tail)
        # Also what only the next command of the current stream would have waited for.
        stream.waits.extend(current.waits)
        stream.learn({**current.seen, current: current.count})


def issue(
    process: Process,
    group: ProcessGroup,
    what: Signature,
    sources: Sequence[Tensor],
    targets: Sequence[Tensor],
    *,
    async_op: bool = False,
    mail: Any = None,
    site: CallSite | None = None,
    role: Role | None = None,
) -> tuple[Command, Meeting]:
    """Puts the calling rank's part of a collective in its stream. The host does not wait.

    Args:
        process: Who calls.
        group: Which ranks.
        what: What the call is.
        sources: Blocks that the rank gives, in order.
        targets: Blocks that it takes, in order; may be the sources.
        async_op: Whether it goes to the communication stream of the group, behind what the
            current stream holds now; else it has its place in the current stream.
        mail: What the other ranks find in the meeting, beside the simulated bytes.
        site: Where the user called it; None: to be found.
        role: What it is for, if the user has not called it by its name.

    Raises:
        AccessError: If an operation on a tensor is under way that nobody has waited for.
        CollectiveMismatchError: If another rank calls something else.
    """
    if (targets or sources)[0].device.index is None:
        return _issue_on_host(process, group, what, sources, targets, async_op, mail, role)
    rank, sip = process.rank, home_of(process)
    stream = current = process.current_stream(sip)
    if async_op:
        stream = communication_stream(process, group, sip)
        follow(stream, current)
    written = targets if len(targets) < 2 else _joined(targets)
    read: Sequence[Tensor] = ()
    if sources is not targets:
        read = sources if len(sources) < 2 else _joined(sources)
    for tensor in written:
        check_access(process, tensor, stream, "wrote")
    for tensor in read:
        check_access(process, tensor, stream, "read")
    site = site or process.call_site()
    call = Call(rank, what.kind, what.terms, what.text, site, process.host.clock, None, what.splits)
    if role is not None:
        call.text, call.hint = f"{what.text} {role.name}", role.hint
    meeting = _meet(process, group, what, call)
    if mail is not None:
        meeting.mail[rank] = mail
    given = _windows(sources)
    taken = given if targets is sources else _windows(targets)
    if what.dtype.is_complex:
        given = [view.parts() for view in given]
        taken = [view.parts() for view in taken]
    work = meeting.shared.join(group.place(rank), given, taken)
    last = group.last.get(rank)
    if last is not None and last.stream is not stream:
        # A communicator runs one operation at a time, whatever the streams.
        stream.waits.append(last.done)
    args = meeting.args
    if args is None:
        args = _args(meeting, group, what)
    command = process.issue(
        what.name, "collective", stream, work, site=site, args=args, part=meeting
    )
    group.last[rank] = command
    eager = world_of(process).eager
    if eager is not None:
        eager.note(process, command, meeting)
    if what.splits is not None and len(meeting.calls) == len(group.ranks):
        meeting.shared.settle(meeting)
    for tensor in read:
        tensor.memory.read(command, tensor.window)
    for tensor in written:
        tensor.memory.wrote(command, tensor.window)
    count(process, what.counted or what.kind, group.name, what.nbytes)
    return command, meeting


def _issue_on_host(
    process: Process,
    group: ProcessGroup,
    what: Signature,
    sources: Sequence[Tensor],
    targets: Sequence[Tensor],
    async_op: bool,
    mail: Any,
    role: Role | None,
) -> tuple[Command, Meeting]:
    """Does what `issue` does with tensors on the host, which waits unless `async_op` is set."""
    check_library(process, group, what.name, "cpu")
    what = on_hosts(what)
    rank, world = process.rank, world_of(process)
    stream = process.side_stream(f"gloo {group.name}", HOST)
    written = _joined(targets)
    read = () if sources is targets else _joined(sources)
    for tensor in written:
        check_access(process, tensor, stream, "wrote")
    for tensor in read:
        check_access(process, tensor, stream, "read")
    site, splits = process.call_site(), what.splits
    call = Call(rank, what.kind, what.terms, what.text, site, process.host.clock, None, splits)
    if role is not None:
        call.text, call.hint = f"{what.text} {role.name}", role.hint
    meeting = _meet(process, group, what, call)
    if mail is not None:
        meeting.mail[rank] = mail
    work = meeting.shared.join(
        group.place(rank),
        [tensor.window.parts() for tensor in sources],
        [tensor.window.parts() for tensor in targets],
        () if splits is None else [count * what.row for count in splits.sends],
    )
    args = {
        "group": group.name,
        "sequence": meeting.number,
        "bytes": what.nbytes,
        "dtype": what.dtype.name,
        "algorithm": ALGORITHM,
    }
    command = process.issue(
        what.name, "collective", stream, work, site=site, args=args, part=meeting
    )
    if world.eager is not None:
        world.eager.note(process, command, meeting)
    for tensor in read:
        tensor.memory.read(command, tensor.window)
    for tensor in written:
        tensor.memory.wrote(command, tensor.window)
    count(process, what.counted, group.name, what.nbytes)
    if not async_op:
        wait_for(process, command)
    return command, meeting


def _windows(tensors: Sequence[Tensor]) -> Sequence[View]:
    if len(tensors) == 1:
        return (tensors[0].window,)
    return [tensor.window for tensor in tensors]


def _joined(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Returns contiguous tensors, those that lie one behind the other as one.

    Lists are often the chunks of one tensor; who may touch what is looked up piece by piece.
    """
    found: list[Tensor] = []
    begin = end = 0
    for tensor in tensors:
        view = tensor.window
        same = found and found[-1].memory is tensor.memory and found[-1].dtype is view.dtype
        if same and view.offset == end:
            end += view.numel
            found[-1] = alias(tensor, (end - begin,), (1,), begin)
        else:
            begin, end = view.offset, view.offset + view.numel
            found.append(tensor)
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
    """Does what `issue` does, and returns the `Work` of an asynchronous operation."""
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
    """Returns the `Work` of an asynchronous operation, and remembers it until it is waited for."""
    work = Work(process, command, outputs, blocks_host=blocks_host)
    works = world_of(process).unwaited.setdefault(process.rank, {})
    works[work] = command
    if len(works) >= _MOST_WORKS and len(works) & (len(works) - 1) == 0:
        for other in [other for other, command in works.items() if process.knows(command)]:
            del works[other]
    return work


def communication_stream(process: Process, group: ProcessGroup, sip: int) -> Stream:
    """Returns the stream of a group's asynchronous collectives on the calling rank."""
    if group is world_of(process).group:
        return process.communication_stream(sip)
    return process.side_stream(f"communication {sip} {group.name}", sip)


def _meet(process: Process, group: ProcessGroup, what: Signature, call: Call) -> Meeting:
    world = world_of(process)
    try:
        meeting = group.enter(call, _make, process, group, what)
    except CollectiveMismatchError as error:
        world.blame(group.open[group.number(call.rank)].calls, error)
        raise
    if len(meeting.calls) == 1 and any(rank in world.exited for rank in meeting.absent()):
        # Ranks that return later look for what is open by themselves.
        world.review()
    return meeting


def _args(meeting: Meeting, group: ProcessGroup, what: Signature) -> dict[str, Any]:
    """Returns what the log keeps of a rank's part: the same for all, unless sizes differ."""
    args = {
        "group": group.name,
        "sequence": meeting.number,
        "bytes": what.nbytes,
        "dtype": what.dtype.name,
    }
    if what.splits is None:
        args["algorithm"] = meeting.shared.chosen.name
        meeting.args = args
    return args


def _make(
    process: Process, group: ProcessGroup, what: Signature
) -> "Collective | _Pairwise | HostCollective":
    if not group.sips:
        group.sips = tuple([process.ctx.devices[rank] for rank in group.ranks])
    if what.hosted:
        return HostCollective(
            process.engine,
            what.operation,
            len(group.ranks),
            what.sizes or (),
            what.nbytes,
            what.wire,
            what.reduction,
            what.root,
        )
    check_library(process, group, what.name, "cuda")
    if what.sizes is None:
        return _Pairwise(process, group, what)
    prepared = group.prepared.get(what)
    if prepared is None:
        if len(group.prepared) >= _MOST_PREPARED:
            group.prepared.clear()
        prepared = group.prepared[what] = _prepare(process, group, what, what.nbytes, what.sizes)
    return Collective(prepared, what.reduction, line=group)


def _prepare(
    process: Process, group: ProcessGroup, what: Signature, nbytes: int, sizes: tuple[Any, ...]
) -> Prepared:
    """Chooses an algorithm, tells who wants to know, and returns what is known beforehand."""
    operation, world = what.operation, world_of(process)
    collectives = process.ctx.collectives
    chosen = collectives.choose(operation, nbytes, group.sips)
    if world.on_choice is not None:
        key = (operation, nbytes, group.name, chosen.name)
        if key not in world.announced:
            world.announced.add(key)
            world.on_choice(
                f"{operation} {format_bytes(nbytes)}, {len(group.ranks)} ranks of {group.name}: "
                f"{chosen.name}{' (auto)' if chosen.auto else ''}"
            )
    shape = Shape(chosen, operation, group.sips, sizes, what.wire, what.root)
    return collectives.prepare(shape)


class _Late:
    """The work of a rank in a collective that is made once every rank has called.

    Until then nobody knows how much goes between two other ranks.
    """

    __slots__ = ("_arrived", "_begun", "_joining", "_place", "_sources", "_targets")

    def __init__(
        self, arrived: set[int], place: int, sources: Sequence[View], targets: Sequence[View]
    ) -> None:
        self._arrived = arrived
        self._place = place
        self._sources = sources
        self._targets = targets
        self._begun: tuple[Command, int] | None = None
        self._joining: Joining | None = None

    def begin(self, command: Command, start: int) -> None:
        """See `Work`."""
        self._arrived.add(self._place)
        if self._joining is None:
            self._begun = (command, start)
        else:
            self._joining.begin(command, start)

    def settle(self, collective: Collective, now: int) -> None:
        """Goes on with the collective, not before now."""
        self._joining = collective.join(self._place, self._sources, self._targets)
        if self._begun is not None:
            command, start = self._begun
            self._joining.begin(command, max(start, now))


class _Pairwise:
    """What stands for an `all_to_all` until every rank has said what it sends to each other.

    Attributes:
        arrived: Ranks, inside the group, whose stream has come to it.
    """

    def __init__(self, process: Process, group: ProcessGroup, what: Signature) -> None:
        self._process = process
        self._group = group
        self._what = what
        self._parts: list[_Late] = []
        self.arrived: set[int] = set()

    def join(self, place: int, sources: Sequence[View], targets: Sequence[View]) -> _Late:
        """Returns the work of one rank of the group."""
        part = _Late(self.arrived, place, sources, targets)
        self._parts.append(part)
        return part

    def settle(self, meeting: Meeting) -> None:
        """Makes the collective: every rank has called and issued its part."""
        process, what = self._process, self._what
        calls = [meeting.calls[rank] for rank in self._group.ranks]
        sizes = tuple(
            [
                tuple([count * what.row for count in call.splits.sends])
                for call in calls
                if call.splits is not None
            ]
        )
        taken = [sum(column) for column in zip(*sizes, strict=True)]
        largest = max(*(sum(row) for row in sizes), *taken) * what.wire.itemsize
        prepared = _prepare(process, self._group, what, largest, sizes)
        collective = Collective(prepared, line=self._group)
        for call in calls:
            if call.command is not None and isinstance(call.command.args, dict):
                call.command.args["algorithm"] = collective.chosen.name
        now = process.engine.loop.now
        for part in self._parts:
            part.settle(collective, now)
