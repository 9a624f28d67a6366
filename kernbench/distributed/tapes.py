"""What one rank does, noted for ranks that do the same (ADR 0038).

Two ranks run the program: the leader, whose steps are repeated by followers, and a witness. A
`Tape` notes the steps of one of them; the `Pair` compares the steps of both, in order.
"""

import sys
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, NamedTuple

from kernbench.des import Event
from kernbench.distributed.group_making import new_group
from kernbench.distributed.issuing import Joined
from kernbench.distributed.steps import Called, Did, Issued, Made, Step, Took, Waited
from kernbench.errors import KernbenchError, UnsupportedError, call_site, site_fact
from kernbench.hw.device import Device
from kernbench.memory import NotedAllocator, View
from kernbench.process.process import Process
from kernbench.ranks.groups import ProcessGroup
from kernbench.ranks.world import world_of
from kernbench.sim_engine.command import Command, Stream
from kernbench.sim_engine.engine import Hold
from kernbench.sim_engine.op_log import Awaited

WAY_OUT: Final = "run without --same-ranks (RunSpec.same_ranks): then every rank runs the program"

WORLD: Final = -1
"""Number of the batch that the group of all ranks stands for."""

_ENGINES: Final = ("compute", "to_device", "to_host")


class RanksDifferError(KernbenchError, RuntimeError):
    """Ranks of which the user has said that they do the same do different things."""


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


class Pair:
    """Compares what the leader and the witness do, step by step.

    Args:
        names: Names of both ranks.

    Attributes:
        names: Names of both ranks.
        alone: Whether there is no witness.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names: Final = tuple(names)
        self.alone: Final = len(names) == 1
        self._open: Final[tuple[deque[Step], deque[Step]]] = (deque(), deque())
        self._ended = [False, False]
        self._difference: RanksDifferError | None = None  # found while another error was raised

    def add(self, side: int, step: Step) -> None:
        """Compares a step with that of the other rank, once both are there.

        Args:
            side: 0 for the leader, 1 for the witness.
            step: The rank's next step.

        Raises:
            RanksDifferError: If the ranks do different things.
        """
        if self.alone:
            return
        if self._difference is not None:
            self._tell(self._difference)
            return
        mine, others = self._open[side], self._open[1 - side]
        if others:
            other = others.popleft()
            if step.terms != other.terms:
                self._tell(self._differ(*((step, other) if side == 0 else (other, step))))
        elif self._ended[1 - side]:
            self._tell(self._differ(*((step, None) if side == 0 else (None, step))))
        else:
            mine.append(step)

    def end(self, side: int) -> None:
        """Notes that a rank has returned.

        Args:
            side: 0 for the leader, 1 for the witness.

        Raises:
            RanksDifferError: If the other rank did more.
        """
        self._ended[side] = True
        if self._difference is not None:
            raise self._difference
        others = self._open[1 - side]
        if others:
            raise self._differ(*((None, others[0]) if side == 0 else (others[0], None)))

    def _tell(self, difference: RanksDifferError) -> None:
        """Raises a difference; while another error ends a block, after that one.

        A rank that has failed leaves its ranges, which the other does not.
        """
        if sys.exception() is None:
            raise difference
        self._difference = difference

    def _differ(self, leader: Step | None, witness: Step | None) -> RanksDifferError:
        facts = [
            f"{name} returned" if step is None else site_fact(step.site, f"{name} {step} at")
            for name, step in zip(self.names, (leader, witness), strict=True)
        ]
        return RanksDifferError(
            f"{' and '.join(self.names)} do not do the same",
            facts,
            hint=f"{WAY_OUT}; sizes that the number of ranks does not divide differ, too",
        )


class Tape:
    """Notes what one rank does; a `sim_engine.host.Tape`.

    Args:
        process: The rank.
        pair: Compares the steps with those of another rank.
        side: 0 for the leader, 1 for the witness.
        followers: How many ranks will repeat the steps.

    Attributes:
        batches: Groups that were made together.
    """

    def __init__(self, process: Process, pair: Pair, side: int, followers: int = 0) -> None:
        self._process: Final = process
        self._pair: Final = pair
        self._side: Final = side
        self._clock = self._began = process.host.clock
        self._page = Page()
        self._kept: Final = side == 0 and followers > 0
        self._first: Page | None = self._page if self._kept else None
        self._followers = followers
        self._streams: Final[dict[Stream, int]] = {}
        self._numbers: Final[dict[Event, int]] = {}
        self._alone: Final[dict[Stream, Event]] = {}  # the last command, if nobody else has it
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

    def _spent(self) -> int:
        clock = self._process.host.clock
        spent, self._clock = clock - self._clock, clock
        return spent

    def _add(self, step: Step) -> None:
        self._pair.add(self._side, step)
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
        self._followers -= 1
        if not self._followers:
            self._first = None
        return page

    # What a host does, see `sim_engine.host.Tape`

    def stream(self, stream: Stream, kind: str) -> None:
        """See `sim_engine.host.Tape`."""
        self._streams[stream] = len(self._streams)
        self._add(Made(self._spent(), call_site(), kind))

    def together(self, joined: Joined) -> None:
        """See `sim_engine.host.Tape`."""
        self._joined = joined

    def submit(self, command: Command) -> None:
        """See `sim_engine.host.Tape`.

        Raises:
            RanksDifferError: If another rank does something else.
            UnsupportedError: If the command depends on the rank.
        """
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
            last = self._alone.pop(stream, None)
            outdated = 0 if last is None else self._numbers.pop(last)
            self._add(
                Issued(
                    spent,
                    command.site,
                    number,
                    command.name,
                    command.category,
                    self._streams[stream],
                    self._engines[action.resource],
                    action.duration,
                    action.latency,
                    after,
                    dispatch,
                    command.args,
                    command.ranges,
                    outdated,
                )
            )
            if command.category != "event":
                self._alone[stream] = command.done
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
        if what.hosted:
            gives = [view.snapshot() for view in joined.gives]
            takes = gives if joined.takes is joined.gives else _copies(joined.takes)
            joined = joined._replace(gives=gives, takes=takes)
            given = b"".join(view.read().tobytes() for view in gives if _has_bytes(view))
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

    def _number_of(self, event: Event) -> int:
        number = self._numbers.get(event)
        if number is None:
            raise self._refused("a wait for something that is no command of the rank")
        return number

    def wait(self, event: Event, awaited: Awaited) -> None:
        """See `sim_engine.host.Tape`: a wait for numbers is none of followers, who have none."""
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
        self._pair.end(self._side)
        self._page.more.settle(0)

    def close(self) -> None:
        """Notes no more, also after an error."""
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
