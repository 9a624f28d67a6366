"""What the ranks of a collective share; the first of them makes it."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from kernbench import ccl
from kernbench.ccl.operations import OPERATIONS
from kernbench.classes.partition import WAY_OUT, NotAlikeError, Standing
from kernbench.distributed.signatures import Signature
from kernbench.errors import UsageError
from kernbench.memory import View
from kernbench.process.process import Process
from kernbench.ranks.at_call import Called, at_call
from kernbench.ranks.groups import ProcessGroup
from kernbench.ranks.hosted import HostCollective, HostExchange, take
from kernbench.ranks.joint import Joint
from kernbench.ranks.spawn_state import collectives_of
from kernbench.ranks.standing import check_choice, check_group, standing_of
from kernbench.ranks.world import world_of
from kernbench.sim_engine.command import Command
from kernbench.units import format_bytes

if TYPE_CHECKING:
    from kernbench.ccl.collective import Collective
    from kernbench.ccl.jams import Jam
    from kernbench.ccl.joining import Joining
    from kernbench.ccl.prepared import Prepared


def joint_of(
    process: Process, group: ProcessGroup, what: Signature, views: Sequence[View]
) -> Joint:
    """Returns what the ranks of a collective share.

    Args:
        process: The first rank that joins.
        what: The collective.
        views: What the first rank gives and takes.
    """
    joint, engine = _make(process, group, what), process.engine
    return at_call(joint, engine, len(group.ranks), views, partial(_move, joint, what))


def _move(joint: Joint, what: Signature, calls: Mapping[int, Called]) -> None:
    """Moves the bytes of a collective, in the order and rounding of its algorithm if it has one."""
    if isinstance(joint, ccl.Collective):
        joint.deliver(calls)
        return
    operation = OPERATIONS[what.operation]
    exchange = HostExchange(operation, what.wire, what.sizes or (), what.reduction, what.root)
    outputs = exchange.evaluate(calls)
    for place, call in calls.items():
        take(call.targets, outputs[place])


def _standing(process: Process, group: ProcessGroup, what: Signature) -> Standing | None:
    """Returns who stands for whom in a collective; None if every rank joins itself.

    Raises:
        NotAlikeError: If it is one in which no rank can stand for another.
    """
    standing = standing_of(process, group)
    if standing is None:
        return None
    if what.hosted:
        way = "give tensors on devices"
    elif what.splits is not None and len({*what.splits.sends, *what.splits.receives}) > 1:
        way = "send equally much to each rank"
    else:
        return standing
    raise NotAlikeError(
        f"{what.text}, of {group}, in which ranks stand for others", hint=f"{way}, or {WAY_OUT}"
    )


def _make(process: Process, group: ProcessGroup, what: Signature) -> Joint:
    standing = _standing(process, group, what)
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
    if what.sizes is None:
        return _Pairwise(process, group, what, standing)
    prepared = group.prepared.get(what)
    if prepared is None:
        prepared = _prepare(process, group, what, what.nbytes, what.sizes)
        check_group(process, group, prepared)
        group.prepared.keep(what, prepared)
    return ccl.Collective(collectives_of(process), prepared, what.reduction, group, standing)


def _prepare(
    process: Process, group: ProcessGroup, what: Signature, nbytes: int, sizes: tuple[Any, ...]
) -> "Prepared":
    """Chooses an algorithm, announces the choice, and returns the prepared collective."""
    operation, world = what.operation, world_of(process)
    collectives = collectives_of(process)
    chosen = collectives.choose(operation, nbytes, group.sips)
    check_choice(process, group, operation, nbytes, chosen)
    if world.on_choice is not None:
        key = (operation, nbytes, group.name, chosen.name)
        if key not in world.announced:
            world.announced.add(key)
            world.on_choice(
                f"{operation} {format_bytes(nbytes)}, {len(group.ranks)} ranks of {group.name}: "
                f"{chosen.name}{' (auto)' if chosen.auto else ''}"
            )
    shape = ccl.CollectiveShape(chosen, operation, group.sips, sizes, what.wire, what.root)
    return collectives.prepare(shape)


class _Late:
    """The work of a rank in a collective that is made after the last rank's call.

    Before that call a rank does not know how much other ranks send to each other.
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
        """See `Action`."""
        self._arrived.add(self._place)
        if self._joining is None:
            self._begun = (command, start)
        else:
            self._joining.begin(command, start)

    def settle(self, collective: "Collective", now: int) -> None:
        """Joins the collective, from `now` on; `now` is the loop's time in picoseconds."""
        self._joining = collective.join(self._place, self._sources, self._targets)
        if self._begun is not None:
            command, start = self._begun
            self._joining.begin(command, max(start, now))


class _Pairwise:
    """Stands for an `all_to_all` until every rank has given its sizes.

    Args:
        standing: See `Collective`.

    Attributes:
        arrived: Ranks inside the group whose stream has reached the collective.
    """

    def __init__(
        self, process: Process, group: ProcessGroup, what: Signature, standing: Standing | None
    ) -> None:
        self._standing = standing
        self._process = process
        self._group = group
        self._what = what
        self._parts: dict[int, _Late] = {}
        self._sends: dict[int, tuple[int, ...]] = {}
        self._collective: Collective | None = None
        self.arrived: set[int] = set()

    @property
    def algorithm(self) -> str:
        """Name of the algorithm; empty until every rank has called."""
        return "" if self._collective is None else self._collective.algorithm

    def join(
        self, place: int, gives: Sequence[View], takes: Sequence[View], sends: Sequence[int] = ()
    ) -> _Late:
        """Returns the work of one rank's command.

        Args:
            place: Rank inside the group.
            gives: Views that the rank gives, in order.
            takes: Views that receive the rank's results, in order.
            sends: Elements that go to each rank.
        """
        part = self._parts[place] = _Late(self.arrived, place, gives, takes)
        standing = self._standing
        for other in (place,) if standing is None else standing.places[place]:
            self._sends[other] = tuple(sends)
        if len(self._parts) == len(self._group.callers):
            self._settle()
        return part

    def needs(self, place: int) -> None:
        """Returns None: a rank needs all other ranks."""

    def jam(self) -> "Jam | None":
        """Returns why the collective does not end although all ranks have arrived."""
        return None if self._collective is None else self._collective.jam()

    def drop(self) -> None:
        """Lets go of its ranks, which will not complete."""
        self._parts.clear()
        if self._collective is not None:
            self._collective.drop()

    def _settle(self) -> None:
        """Makes the collective: every rank has said what it sends."""
        process, what = self._process, self._what
        sizes = tuple([self._sends[place] for place in range(len(self._sends))])
        taken = [sum(column) for column in zip(*sizes, strict=True)]
        largest = max(*(sum(row) for row in sizes), *taken) * what.wire.itemsize
        try:
            prepared = _prepare(process, self._group, what, largest, sizes)
            check_group(process, self._group, prepared)
        except UsageError as error:  # the others, whose calls have returned, wait for it
            world_of(process).blame(self._group.callers, error)
            raise
        collective = self._collective = ccl.Collective(
            collectives_of(process), prepared, line=self._group, standing=self._standing
        )
        now = process.engine.loop.now
        for part in self._parts.values():
            part.settle(collective, now)
