"""What one rank does, noted for ranks that do the same (ADR 0038).

The leader, whose steps are repeated by followers, and its witnesses run the program. A `Tape`
notes the steps of one of them; a `Pair` compares those of the leader with those of a witness.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from kernbench.ccl.operations import OPERATIONS
from kernbench.des import Event
from kernbench.distributed.group_making import new_group
from kernbench.distributed.issuing import Joined, Posted
from kernbench.distributed.signatures import Signature
from kernbench.errors import UnsupportedError, call_site, site_fact
from kernbench.following.steps import Called, Did, Issued, Made, Step, Took, Waited
from kernbench.following.witnesses import WAY_OUT, Pair
from kernbench.hw.device import Device
from kernbench.memory import NotedAllocator, View
from kernbench.process.act import Block
from kernbench.process.process import Process
from kernbench.ranks.groups import ProcessGroup
from kernbench.ranks.world import world_of
from kernbench.sim_engine.command import Command, Stream
from kernbench.sim_engine.engine import Hold
from kernbench.sim_engine.op_log import Awaited

WORLD: Final = -1
"""Number of the batch that the group of all ranks stands for."""

_ENGINES: Final = ("compute", "to_device", "to_host")


class Page:
    """Steps that followers may repeat once `more` is settled, and the page after them.

    Attributes:
        steps: The steps.
        more: Settles when the page is whole.
        next: The page after it; None behind the last one.
    """

    __slots__ = ("more", "next", "steps")

    def __init__(self) -> None:
        self.steps: list[Step | Took] = []
        self.more: Final = Event("the leader's next step")
        self.next: Page | None = None


class Batch(NamedTuple):
    """Groups that were made in a row, of equal size and without a common rank: a mesh's dimension.

    Attributes:
        first: Number of the call that made the first one.
        members: Global ranks of each.
    """

    first: int
    members: list[tuple[int, ...]]


class Tape:
    """Notes what one rank does; a `sim_engine.host.Tape`.

    Args:
        pairs: Compare the steps with those of other ranks: of a leader one for each witness.
        side: 0 for the leader, 1 for a witness.
        followers: Global ranks that will repeat the steps.

    Attributes:
        batches: Groups that were made together.
    """

    def __init__(
        self, process: Process, pairs: Sequence[Pair], side: int, followers: Collection[int] = ()
    ) -> None:
        self._process: Final = process
        self._pairs: Final = tuple(pairs)
        self._side: Final = side
        self._clock = self._began = process.host.clock
        self._page = Page()
        self._kept: Final = side == 0 and len(followers) > 0
        self._first: Page | None = self._page if self._kept else None
        self._followers: Final = followers
        self._unread = len(followers)
        self._streams: Final[dict[Stream, int]] = {}
        # Of commands for which the program can still wait; others are gone, and their numbers, too.
        self._numbers: Final[WeakKeyDictionary[Event, int]] = WeakKeyDictionary()
        self._count = 0
        self._joined: Joined | None = None
        self.batches: Final[list[Batch]] = []
        self._batch_of: Final[dict[ProcessGroup, int]] = {}
        self._made = 0
        device = process.engine.devices[process.ctx.devices[process.rank]]
        self._engines: Final = _engines(device)
        self._hbm: Final = device.hbm
        if isinstance(device.hbm, NotedAllocator) and self._kept:
            self._note: Final = device.hbm.note
            device.hbm.note = self._took

    later = False
    """See `sim_engine.host.Tape`."""

    def _spent(self) -> int:
        clock = self._process.host.clock
        spent, self._clock = clock - self._clock, clock
        return spent

    def _add(self, step: Step) -> None:
        for pair in self._pairs:
            pair.add(self._side, step)
        if self._kept:
            self._page.steps.append(step)

    def _took(self, sip: int, nbytes: int) -> None:
        self._note(sip, nbytes)
        self._page.steps.append(Took(self._process.host.clock - self._clock, nbytes))

    def _refused(self, what: str) -> UnsupportedError:
        return UnsupportedError(
            f"{what} on {self._process.name}, with ranks that do the same",
            [site_fact(call_site())],
            hint=WAY_OUT,
        )

    def first(self) -> Page:
        """Returns the first page, once to each follower: pages that all have read are freed."""
        page = self._first
        assert page is not None, "each follower asks once"
        self._unread -= 1
        if not self._unread:
            self._first = None
        return page

    # What a host does, see `sim_engine.host.Tape`

    def stream(self, stream: Stream, kind: str) -> None:
        """See `sim_engine.host.Tape`."""
        self._streams[stream] = len(self._streams)
        self._add(Made(self._spent(), call_site(), kind))

    def together(self, joined: Joined, _: Posted) -> None:
        """See `sim_engine.host.Tape`; keeps what tensors of the host have now."""
        if joined.what.hosted:
            gives = _copies(joined.gives)
            takes = gives if joined.takes is joined.gives else _copies(joined.takes)
            joined = joined._replace(gives=gives, takes=takes)
        self._joined = joined

    def submit(
        self, command: Command, reads: Sequence[Block] = (), writes: Sequence[Block] = ()
    ) -> None:
        """See `sim_engine.host.Tape`.

        Raises:
            RanksDifferError: If another rank does something else.
            UnsupportedError: If the command depends on the rank.
        """
        del reads, writes
        stream = command.stream
        joined, self._joined = self._joined, None
        after = tuple(self._number_of(event) for event in command.after)
        spent, number = self._spent(), self._count + 1
        dispatch = command.dispatch or 0
        if command.part is not None:
            if joined is None:
                raise self._refused(f"{command.name}, a message to or from one rank,")
            self._add(self._called(command, joined, spent, number, after, dispatch))
        else:
            action = command.action
            if (
                not isinstance(action, Hold)
                or stream not in self._streams
                or action.resource not in self._engines
            ):
                raise self._refused(f"{command.name}, a command of its own kind,")
            self._add(
                Issued(
                    spent,
                    command.site,
                    number,
                    command.name,
                    command.category,
                    self._streams[stream],
                    self._engines[action.resource],
                    action.price,
                    action.latency,
                    after,
                    dispatch,
                    command.args,
                    command.ranges,
                )
            )
        self._count = number
        self._numbers[command.done] = number
        process = self._process
        process.engine.submit(command)
        self._clock = process.host.clock

    def _called(
        self,
        command: Command,
        joined: Joined,
        spent: int,
        number: int,
        after: tuple[int, ...],
        dispatch: int,
    ) -> Called:
        group, what, given = joined.group, joined.what, b""
        self._check_root(group, what)
        if what.hosted:
            given = b"".join(view.read().tobytes() for view in joined.gives if _has_bytes(view))
        process = self._process
        current = process.current_stream(process.ctx.devices[process.rank])
        batch = WORLD if group is world_of(process).group else self._batch_of.get(group)
        if batch is None:
            raise self._refused(f"{what.name} in group {group.name}, of which only its ranks know,")
        place, stream = group.place(process.rank), self._streams[current]
        return Called(
            spent,
            command.site,
            number,
            joined,
            batch,
            place,
            stream,
            after,
            dispatch,
            command.ranges,
            given,
        )

    def _check_root(self, group: ProcessGroup, what: Signature) -> None:
        """Refuses values of the program that only a rank has, or gets, that does not run it."""
        values = OPERATIONS[what.operation].rooted and (what.of_objects or what.hosted)
        if values and self._side == 0:
            root = group.ranks[what.root]
            if root in self._followers:
                raise self._refused(
                    f"{what.text}, whose root rank {root} repeats what rank 0 does,"
                )

    def _number_of(self, event: Event) -> int:
        number = self._numbers.get(event)
        if number is None:
            raise self._refused("a wait for something that is no command of the rank")
        return number

    def wait(self, event: Event, awaited: Awaited) -> None:
        """See `sim_engine.host.Tape`. Followers have no values, so they skip waits for values."""
        number = self._numbers.get(event, 0)
        self._began = self._process.host.clock
        if number:
            self._add(Waited(self._spent(), None, number, awaited))

    def waited(self, event: Event) -> None:
        """See `sim_engine.host.Tape`.

        Raises:
            UnsupportedError: If it took time to wait for something that is no command of the rank.
        """
        clock = self._process.host.clock
        if event in self._numbers:
            self._clock = clock
        elif clock != self._began:
            raise self._refused("a wait for something that is no command of the rank")

    def draws(self, again: Any, named: object) -> bool:
        """See `sim_engine.host.Tape`."""
        del again, named
        return False

    def look(self) -> None:
        """See `sim_engine.host.Tape`.

        Raises:
            UnsupportedError: Always.
        """
        raise self._refused("a look whether the device is done (query, is_completed)")

    def flush(self) -> None:
        """See `sim_engine.host.Tape`."""
        if self._page.steps:
            whole, self._page = self._page, Page()
            whole.next = self._page
            whole.more.settle(0)

    # What a program does by functions of this package that every rank calls for itself

    def did(self, function: Callable[..., Any], *args: Any, shown: Hashable = None) -> None:
        """Notes that a function is about to be called, which followers call, too.

        Args:
            function: Called by a follower as `function(follower, *args)`.
            args: Further arguments.
            shown: What both ranks must agree on, beside the function's name.
        """
        self._add(Did(self._spent(), call_site(), function, args, shown, -1))

    def new_group(self, ranks: list[int], **options: Any) -> Any:
        """Does what `group_making.new_group` does, and notes it.

        Args:
            ranks: Global ranks of the members.
            options: Further arguments of `new_group`, by name.

        Raises:
            UnsupportedError: If only members call the function.
        """
        members = tuple(ranks)
        size = world_of(self._process).size
        if options.get("use_local_synchronization"):
            if len(members) < size:
                raise self._refused("new_group(use_local_synchronization=True)")
            options["use_local_synchronization"] = False
        batch = self.batches[-1] if self.batches else None
        fits = (
            batch is not None
            and len(batch.members[-1]) == len(members)
            and not any(set(known) & set(members) for known in batch.members)
        )
        if batch is None or not fits:
            batch = Batch(self._made, [])
            self.batches.append(batch)
        batch.members.append(members)
        shown = (members, tuple(sorted((key, str(value)) for key, value in options.items())))
        given = members, options
        self._add(Did(self._spent(), call_site(), _new_group, given, shown, self._made))
        self._made += 1
        group = new_group(list(members), **options)
        if isinstance(group, ProcessGroup):
            self._batch_of[group] = len(self.batches) - 1
        return group

    def batch_of(self, group: ProcessGroup | None) -> int:
        """Returns the number of the batch of a group.

        Args:
            group: The group; None for that of all ranks.
        """
        if group is None or group is world_of(self._process).group:
            return WORLD
        return self._batch_of[group]

    def end(self) -> None:
        """Notes that the rank has returned."""
        for pair in self._pairs:
            pair.end(self._side)
        self._page.more.settle(0)

    def close(self) -> None:
        """Stops recording, also after an error."""
        if isinstance(self._hbm, NotedAllocator) and self._kept:
            self._hbm.note = self._note


def _new_group(follower: object, members: tuple[int, ...], options: dict[str, Any]) -> Any:
    del follower
    return new_group(list(members), **options)


def _copies(views: Sequence[View]) -> list[View]:
    return [view.snapshot() for view in views]


def _has_bytes(view: View) -> bool:
    return view.buffer.data is not None


def _engines(device: Device) -> dict[Any, str | None]:
    return {None: None, **{getattr(device, name): name for name in _ENGINES}}
