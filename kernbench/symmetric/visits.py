"""Kernels that meet while they run: by words of symmetric memory that one changes and others poll.

Numbers are computed at the launch, one rank after the other (ADR 0037), so a program that polls
parks its rank until another one has changed something. What happened in which order is noted; the
time follows from it once all kernels that met have begun on their devices.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final
from weakref import WeakKeyDictionary

from kernbench.des import Event, Fifo
from kernbench.process.process import Process
from kernbench.ranks.polls import Poll
from kernbench.ranks.world import World, world_of
from kernbench.sim_engine.command import Command
from kernbench.sim_engine.engine import GraphEngine, Hold
from kernbench.symmetric.barriers import wait_for_call
from kernbench.symmetric.links import Move, Reach, latency, peers_of
from kernbench.symmetric.orders import FLAGS
from kernbench.symmetric.programs import Programs
from kernbench.symmetric.regions import Block
from kernbench.ttir.memory import Allocation
from kernbench.ttir.races import Access

_ORDER: Final = count()


class Board:
    """Tells ranks of one spawn that something in symmetric memory has changed."""

    def __init__(self) -> None:
        self._changed = Event("a change")

    def touch(self) -> None:
        """Wakes all who poll."""
        changed, self._changed = self._changed, Event("a change")
        changed.settle(0)

    def wait(self, process: Process, label: object) -> None:
        """Parks a rank until something changes; takes no simulated time.

        Args:
            process: The rank.
            label: What it polls, for reports.
        """
        wait_for_call(process, self._changed, label)


_BOARDS: Final[WeakKeyDictionary[Any, Board]] = WeakKeyDictionary()


def board_of(process: Process) -> Board:
    """Returns where ranks of a process's spawn learn of changes."""
    world: World = world_of(process)
    assert world.group is not None, "ranks share memory"
    return _BOARDS.setdefault(world.group, Board())


@dataclass(eq=False, slots=True)
class Put:
    """Words that a program, or a command of a stream, has changed.

    Attributes:
        visit: The kernel; None of another command.
        time: When they have changed where they are, in picoseconds; None while unknown.
        event: Of another command: its end.
    """

    visit: "Visit | None" = None
    time: int | None = None
    event: Event | None = None

    def known(self) -> int | None:
        """Returns when it happened; None while unknown."""
        return self.event.time if self.event is not None else self.time


@dataclass(eq=False, slots=True)
class _Touch:
    """An operation of a program on words by which kernels wait for each other.

    Attributes:
        program: Number of the program.
        done: How many bytes it had moved by then.
        sip: Device of the words.
        looked: Whether the program waits for what it finds there.
        fences: Whether all that it has written before comes first.
        seen: What others have put there, and it has not seen before.
        put: What it changes.
        order: Its place among all that was noted.
    """

    program: int
    done: int
    sip: int
    looked: bool
    fences: bool
    seen: list[Put]
    put: Put | None
    order: int = field(default_factory=lambda: next(_ORDER))


class Visit:
    """One kernel on one rank, while it runs beside those of others; a `ttir.memory.Beside`.

    Args:
        process: The rank.
        blocks: Symmetric memory among what it may touch, by the address of its first byte.
        name: Name of the kernel.
        grid: Extents of its launch.
    """

    def __init__(
        self,
        process: Process,
        blocks: dict[int, Block],
        name: str = "a kernel",
        grid: tuple[int, int, int] = (1, 1, 1),
    ) -> None:
        self.sip: Final = process.ctx.devices[process.rank]
        self._process: Final = process
        self._board: Final = board_of(process)
        self._blocks: Final = blocks
        self._programs: Final = Programs(process, blocks, name, grid)
        self.accessed: Final = self._programs.accessed
        self.end: Final = self._programs.end
        self._program = self._base = self._done = 0
        self._totals: Final[dict[int, int]] = {}
        self._records: list[_Touch] = []
        self._seen: set[Put] = set()
        self._last = ""
        self.price = 0
        self.began: Final = Event("the begin of a kernel that others wait for")
        self.ended: Final = Event("the end of a kernel that waits for others")
        self.works_at = 0

    @property
    def met(self) -> bool:
        """Whether it has noted anything."""
        return bool(self._records)

    # What the executor tells

    def begin(self, program: int, touched: int) -> None:
        """See `Beside`."""
        self._totals[self._program] = touched - self._base
        self._program, self._base, self._done = program, touched, 0
        self._programs.begin()

    def turned(
        self,
        allocation: Allocation,
        offsets: Any,
        changed: Any,
        touched: int,
        *,
        looked: bool,
        fences: bool = False,
        by: Access | None = None,
    ) -> None:
        """See `Beside`."""
        words = offsets.tolist()
        if by is not None:
            self._programs.turned(allocation, offsets, changed, by, looked=looked)
        if looked and words:
            self._last = f"it looks at byte {words[0]} of {allocation.label}"
        block = self._blocks.get(allocation.start)
        if block is None:
            return
        puts = dict.fromkeys(block.puts[word] for word in words if looked and word in block.puts)
        seen = [put for put in puts if put.visit is not self and put not in self._seen]
        self._seen.update(seen)
        mine = [word for word, one in zip(words, changed.tolist(), strict=True) if one]
        put = Put(self) if mine else None
        if put is not None or seen:
            program, done = self._program, touched - self._base
            self._records.append(_Touch(program, done, block.sip, looked, fences, seen, put))
        if put is not None:
            block.puts.update(dict.fromkeys(mine, put))
            self._board.touch()

    def wait(self, told: Callable[[], Sequence[str]]) -> None:
        """See `Beside`."""
        self._board.wait(self._process, Poll(self._process.rank, (*told(), self._last)))

    def moves(self, allocations: Iterable[Allocation]) -> list[Move]:
        """Returns what goes over links for what programs have loaded and stored."""
        found = []
        for one in allocations:
            block = self._blocks.get(one.start)
            if block is not None:
                found += block.moves(self.sip, one.loaded, writes=False)
                found += block.moves(self.sip, one.stored, writes=True)
        return found

    # Its time

    def settle(self) -> None:
        """Works out when it ends, once all kernels that it met have begun."""
        near = self._near()
        for visit in near:
            if visit.began.time is None:
                visit.began.when_settled(lambda _: self.settle())
                return
        for event in self._events(near):
            if event.time is None:
                event.when_settled(lambda _: self.settle())
                return
        if self.ended.time is None:
            _work_out(near)

    def _near(self) -> "list[Visit]":
        """Returns this kernel and all whose times it depends on, and are not known."""
        near: dict[Visit, None] = {self: None}
        stack = [self]
        while stack:
            for record in stack.pop()._records:
                for put in record.seen:
                    if put.visit is not None and put.time is None and put.visit not in near:
                        near[put.visit] = None
                        stack.append(put.visit)
        return list(near)

    @staticmethod
    def _events(visits: "Iterable[Visit]") -> list[Event]:
        seen = [put for one in visits for record in one._records for put in record.seen]
        return [put.event for put in seen if put.event is not None]

    def work_out(self, record: _Touch, start: int) -> int:
        """Returns when the program goes on after an operation on words, and dates its change.

        Where it looks, it waits for the way there and back, and sees no word sooner than that can
        have come. A word that it only writes leaves, and the program goes on.

        Args:
            record: The operation; all that it has seen is dated.
            start: When the program came to it, in picoseconds.
        """
        engine = self._process.engine
        way = latency(engine, record.sip, self.sip)
        peers = peers_of(engine, self.sip)
        leaves = start + (peers.fence if record.fences else 0)
        changes = leaves + way
        if record.looked:
            for put in record.seen:
                moment = put.known()
                assert moment is not None
                changes = max(changes, moment)
            changes += peers.atomic
        if record.put is not None:
            record.put.time = changes
        return changes + way if record.looked else leaves


def _work_out(visits: Sequence[Visit]) -> None:
    """Works out the times of kernels that met, and of what they have put.

    Each program takes its kernel's time for all that it moves, a part of it for each part, and what
    its operations on words take beside.
    """
    at: dict[tuple[Visit, int], tuple[int, int]] = {}
    first: dict[Visit, int] = {}
    records = [(record.order, visit, record) for visit in visits for record in visit._records]
    for _, visit, record in sorted(records, key=lambda entry: entry[0]):
        key = visit, record.program
        assert visit.began.time is not None
        time, done = at.get(key, (visit.began.time, 0))
        time += visit.price * (record.done - done) // max(1, visit._totals[record.program])
        time = visit.work_out(record, time)
        if record.seen and not record.done:
            first[visit] = max(first.get(visit, 0), time)
        at[key] = time, record.done
    ends: dict[Visit, int] = {}
    for (visit, program), (time, done) in at.items():
        total = visit._totals[program]
        left = visit.price * (total - done) // total if total else visit.price
        ends[visit] = max(ends.get(visit, 0), time + left)
    for visit in visits:
        visit._records, visit._seen = [], set()
        assert visit.began.time is not None
        visit.works_at = first.get(visit, visit.began.time)
        visit.ended.settle(ends.get(visit, visit.began.time + visit.price))


_FLAG: Final = 4
"""Bytes between words that kernels poll."""


def wrote(process: Process, written: Iterable[tuple[Block, int, int]], done: Event) -> None:
    """Notes that an operation of a rank has written symmetric memory; wakes who polls.

    Args:
        process: The rank.
        written: The blocks, each with the first byte and the one after the last.
        done: The end of the command, the last one of the rank's current stream.
    """
    put, stream = Put(event=done), process.current_stream(process.ctx.devices[process.rank])
    for block, low, high in written:
        if high - low <= FLAGS:
            flags = range(low, high, _FLAG)
            block.puts.update(dict.fromkeys(flags, put))
            block.order.tell(flags, process, stream)
    board_of(process).touch()


def action_of(
    engine: GraphEngine,
    resource: Fifo | None,
    price: int,
    visit: Visit | None,
    moves: Sequence[Move],
) -> Hold:
    """Returns what a kernel does that has run.

    Args:
        resource: What it holds of its device; None for what copies beside kernels.
        price: How long it takes by itself, in picoseconds.
        visit: What it has noted; None if it can touch no symmetric memory.
        moves: What goes over links.
    """
    if visit is not None and visit.met:
        return Meet(engine, resource, price, moves, visit)
    return Reach(engine, resource, price, moves) if moves else Hold(engine, resource, price, None)


class Meet(Reach):
    """Action of a kernel that meets others while it runs.

    Args:
        resource: What it holds of its device.
        duration: How long it would take by itself, in picoseconds.
        moves: What goes over links.
        visit: What it has noted.
    """

    __slots__ = ("_visit",)

    def __init__(
        self,
        engine: GraphEngine,
        resource: Fifo | None,
        duration: int,
        moves: Sequence[Move],
        visit: Visit,
    ) -> None:
        super().__init__(engine, resource, duration, moves)
        self._visit: Final = visit

    def held(self, command: Command, begin: int, end: int) -> None:
        """See `Hold`: sends its bytes once it has met those for whom it waits first."""
        visit, engine = self._visit, self._engine
        alone = [alone_ps(engine, move) for move in self._moves] if engine.timed else []
        visit.price = max(end - begin, *alone, 0)

        def known(last: int) -> None:
            self.reach(command, begin, visit.works_at, max(end, last))

        visit.ended.when_settled(known)
        visit.began.settle(begin)
        visit.settle()


def alone_ps(engine: GraphEngine, move: Move) -> int:
    """Returns how long bytes are on their way while nobody else uses the links, in picoseconds."""
    route = engine.topology.sip_route(move.source, move.destination)
    rate = min((link.bandwidth for link in route), key=lambda each: each.per_second)
    return latency(engine, move.source, move.destination) * (1 + move.asked) + rate.duration_ps(
        move.nbytes
    )
