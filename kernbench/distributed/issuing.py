"""The way of every collective from its call into the rank's stream."""

from collections.abc import Sequence
from typing import Any, Final

from kernbench.ccl.collective import Collective, Joining
from kernbench.ccl.jams import Jam
from kernbench.ccl.prepared import Prepared, Shape
from kernbench.distributed.checks import check_library
from kernbench.distributed.comm_debug import count
from kernbench.distributed.groups import home_of
from kernbench.distributed.signatures import Signature, on_hosts
from kernbench.distributed.works import Work
from kernbench.errors import CallSite
from kernbench.memory import View
from kernbench.process.act import Block, Entered, Span, act
from kernbench.process.process import Process
from kernbench.ranks.groups import ProcessGroup
from kernbench.ranks.hosted import HOST, HostCollective
from kernbench.ranks.joint import Joint
from kernbench.ranks.meeting import Call, CollectiveMismatchError, Exchange, Role
from kernbench.ranks.world import world_of
from kernbench.sim_engine.command import Command, Stream
from kernbench.tensors.running import wait_for
from kernbench.tensors.tensor import Tensor
from kernbench.units import format_bytes

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
    sources: Sequence[Block],
    targets: Sequence[Block],
    *,
    async_op: bool = False,
    mail: Any = None,
    site: CallSite | None = None,
    role: Role | None = None,
) -> tuple[Command, Exchange]:
    """Puts the calling rank's part of a collective in its stream.

    The host waits only for blocks on the host, unless `async_op` is set.

    Args:
        process: Who calls.
        group: Which ranks.
        what: What the call is.
        sources: Blocks that the rank gives, in order; tensors, or those of another library.
        targets: Blocks that it takes, in order; may be the sources.
        async_op: Whether it goes to the communication stream of the group, behind what the
            current stream holds now; else it has its place in the current stream.
        mail: What the other ranks find in the exchange, beside the simulated bytes.
        site: Where the user called it; None: to be found.
        role: Why it runs, if the user has not called it directly.

    Raises:
        AccessError: If a command on a block is under way that nobody has waited for.
        CollectiveMismatchError: If another rank calls something else.
    """
    on_host = (targets or sources)[0].memory.sip < 0
    if on_host:
        check_library(process, group, what.name, "cpu")
        what = on_hosts(what)
        stream = process.side_stream(f"gloo {group.name}", HOST)
    else:
        sip = home_of(process)
        stream = current = process.current_stream(sip)
        if async_op:
            stream = communication_stream(process, group, sip)
            follow(stream, current)
    entry = _Entry(process, group, what, stream, site or process.call_site(), mail, role)
    entry.give_and_take(sources, targets)
    command = act(
        process,
        what.name,
        "collective",
        stream,
        None,
        enter=entry,
        reads=() if sources is targets else _joined(sources),
        writes=_joined(targets),
        site=entry.site,
    )
    exchange = entry.exchange
    if not on_host:
        group.last[process.rank] = command
    eager = world_of(process).eager
    if eager is not None:
        eager.note(process, command, exchange)
    if what.splits is not None and len(exchange.calls) == len(group.ranks):
        _settle(exchange, what)
    count(process, what.counted or what.kind, group.name, what.nbytes)
    if on_host and not async_op:
        wait_for(process, command)
    return command, exchange


class _Entry:
    """The entry of a rank's command into a collective, once its blocks are found to be free.

    Args:
        process: The rank.
        group: Which ranks.
        what: What the call is.
        stream: Where the command goes.
        site: Where the user called it.
        mail: What the other ranks find in the exchange.
        role: Why it runs, if the user has not called it directly.

    Attributes:
        exchange: Where it has entered.
        site: Where the user called it.
    """

    __slots__ = (
        "_given", "_group", "_mail", "_process", "_role", "_stream", "_taken", "_what", "exchange",
        "site",
    )  # fmt: skip

    exchange: Exchange

    def __init__(
        self,
        process: Process,
        group: ProcessGroup,
        what: Signature,
        stream: Stream,
        site: CallSite | None,
        mail: Any,
        role: Role | None,
    ) -> None:
        self._process = process
        self._group = group
        self._what = what
        self._stream = stream
        self._mail = mail
        self._role = role
        self._given: Sequence[View] = ()
        self._taken: Sequence[View] = ()
        self.site = site

    def give_and_take(self, sources: Sequence[Block], targets: Sequence[Block]) -> None:
        """Sets what the rank gives and takes; complex numbers travel as their parts."""
        self._given = [block.window for block in sources]
        self._taken = self._given if sources is targets else [block.window for block in targets]
        if self._what.dtype.is_complex:
            self._given = [view.parts() for view in self._given]
            self._taken = [view.parts() for view in self._taken]

    def __call__(self) -> Entered:
        """Calls the other ranks."""
        process, group, what = self._process, self._group, self._what
        rank, now = process.rank, process.host.clock
        call = Call(rank, what.kind, what.terms, what.text, self.site, now, None, what.splits)
        if self._role is not None:
            call.text, call.hint = f"{what.text} {self._role.name}", self._role.hint
        exchange = self.exchange = _meet(process, group, what, call)
        if self._mail is not None:
            exchange.mail[rank] = self._mail
        joint = exchange.joint
        assert joint is not None
        sends = [count * what.row for count in what.splits.sends] if what.splits else ()
        work = joint.join(group.place(rank), self._given, self._taken, sends)
        last = group.last.get(rank)
        if last is not None and not what.hosted and last.stream is not self._stream:
            # A communicator runs one operation at a time, whatever the streams.
            self._stream.waits.append(last.done)
        return Entered(work, exchange, exchange.args or _args(exchange, joint, group, what))


def _settle(exchange: Exchange, what: Signature) -> None:
    """Tells what ranks share what each of them sends to each other: every rank has called."""
    joint, calls = exchange.joint, [exchange.calls[rank] for rank in exchange.members]
    assert joint is not None
    sent = [call.splits.sends for call in calls if call.splits is not None]
    joint.settle([[count * what.row for count in sends] for sends in sent])
    for call in calls:
        if call.command is not None and isinstance(call.command.args, dict):
            call.command.args["algorithm"] = joint.algorithm


def _joined(blocks: Sequence[Block]) -> Sequence[Block]:
    """Returns contiguous blocks, those that lie one behind the other as one.

    Lists are often the chunks of one tensor; who may touch what is looked up piece by piece.
    """
    if len(blocks) < 2:
        return blocks
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


def _meet(process: Process, group: ProcessGroup, what: Signature, call: Call) -> Exchange:
    world = world_of(process)
    try:
        exchange = group.enter(call)
    except CollectiveMismatchError as error:
        world.blame(group.open[group.number(call.rank)].calls, error)
        raise
    if exchange.joint is None:
        exchange.joint = _make(process, group, what)
    if len(exchange.calls) == 1 and any(rank in world.exited for rank in exchange.absent()):
        # Ranks that return later look for what is open by themselves.
        world.review()
    return exchange


def _args(exchange: Exchange, joint: Joint, group: ProcessGroup, what: Signature) -> dict[str, Any]:
    """Returns what the log keeps of a rank's part: the same for all, unless sizes differ."""
    args = {
        "group": group.name,
        "sequence": exchange.number,
        "bytes": what.nbytes,
        "dtype": what.dtype.name,
    }
    if joint.algorithm:
        args["algorithm"] = joint.algorithm
    if what.splits is None:
        exchange.args = args
    return args


def _make(process: Process, group: ProcessGroup, what: Signature) -> Joint:
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
        prepared = _prepare(process, group, what, what.nbytes, what.sizes)
        group.prepared.keep(what, prepared)
    return Collective(process.ctx.collectives, prepared, what.reduction, line=group)


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
        self._parts: dict[int, _Late] = {}
        self._collective: Collective | None = None
        self.arrived: set[int] = set()

    @property
    def algorithm(self) -> str:
        """Name of the algorithm; empty until every rank has called."""
        return "" if self._collective is None else self._collective.algorithm

    def join(
        self, place: int, gives: Sequence[View], takes: Sequence[View], sends: Sequence[int] = ()
    ) -> _Late:
        """Returns what the command of one rank of the group does.

        Args:
            place: Rank inside the group.
            gives: What the rank gives, in order.
            takes: Where what it takes goes, in order.
            sends: Elements that go to each rank; `settle` gets those of all ranks.
        """
        assert len(sends) == len(self._group.ranks)
        part = self._parts[place] = _Late(self.arrived, place, gives, takes)
        return part

    def needs(self, place: int) -> None:
        """Returns None: a rank needs all."""

    def jam(self) -> Jam | None:
        """Returns why it does not end though all have come."""
        return None if self._collective is None else self._collective.jam()

    def settle(self, sends: Sequence[Sequence[int]]) -> None:
        """Makes the collective of what ranks send: every rank has called and issued its part.

        Args:
            sends: By rank inside the group, elements that go to each rank.
        """
        process, what = self._process, self._what
        sizes = tuple(map(tuple, sends))
        taken = [sum(column) for column in zip(*sizes, strict=True)]
        largest = max(*(sum(row) for row in sizes), *taken) * what.wire.itemsize
        prepared = _prepare(process, self._group, what, largest, sizes)
        collective = self._collective = Collective(
            process.ctx.collectives, prepared, line=self._group
        )
        now = process.engine.loop.now
        for part in self._parts.values():
            part.settle(collective, now)
