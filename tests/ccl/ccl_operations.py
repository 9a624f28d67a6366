"""A small model of collectives: programs of exchanges run over first-in-first-out queues, no clock.

It shares no code with the package beyond what an operation is, so that it can say what an algorithm
computes, what it sends, and whether its ranks can wait for each other forever.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np

from kernbench.ccl.collective import Collective
from kernbench.ccl.config import Chosen
from kernbench.ccl.model import CollectiveModel
from kernbench.ccl.operations import OPERATIONS, Operation, Reduction
from kernbench.ccl.prepared import CollectiveShape
from kernbench.errors import call_site
from kernbench.memory import DType, Storage, View, dtypes
from kernbench.sim_engine.command import Command, Stream
from kernbench.sim_engine.dials import Fidelity
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.host import Host
from kernbench.topology import Topology

Values = np.ndarray[Any, Any]
Algorithm = Callable[[Any], None]

_DONE: Final = object()


class DeadlockError(AssertionError):
    """No rank can go on."""


@dataclass(frozen=True)
class Case:
    """One collective.

    Attributes:
        operation: Its name.
        ranks: Ranks.
        sizes: Elements of each block; of `all_to_all`, a row for each sender.
        root: Rank.
        grid: Extents; one row by default.
        channels: Shares that run at the same time.
        slot: Elements of the largest message.
        n_slots: Messages that may be unread between two ranks.
        align: Chunks begin at multiples of this many elements.
    """

    operation: str
    ranks: int
    sizes: tuple[Any, ...]
    root: int = 0
    grid: tuple[int, ...] = ()
    channels: int = 1
    slot: int = 1 << 30
    n_slots: int = 2
    align: int = 1

    @property
    def what(self) -> Operation:
        return OPERATIONS[self.operation]

    def blocks(self, rank: int) -> list[int]:
        """Returns the elements of every block of a rank."""
        rows = self.what.sizes(self.sizes, self.ranks)
        return [int(size) for size in rows[rank if len(rows) > 1 else 0]]


def even(operation: str, ranks: int, size: int, **more: Any) -> Case:
    """Returns a collective whose blocks are all as large."""
    kind = OPERATIONS[operation].blocks
    row = (size,) * (1 if kind == "one" else ranks)
    return Case(operation, ranks, (row,) * ranks if kind == "pairs" else row, **more)


def uneven(operation: str, ranks: int, size: int, **more: Any) -> Case:
    """Returns a collective whose blocks differ, some of them empty."""
    case = even(operation, ranks, size, **more)
    if case.what.blocks == "one":
        return case
    rows = [
        tuple((7 * a + 5 * b) * size // 11 % (size + 1) for b in range(ranks)) for a in range(ranks)
    ]
    return replace(case, sizes=tuple(rows) if case.what.blocks == "pairs" else rows[-1])


@dataclass
class Exchange:
    send: int
    to: int
    receive: int
    source: int
    combine: str
    span: int


class Program:
    """The `Comm` of one rank that writes down what it is asked for."""

    def __init__(self, case: Case, rank: int, channel: int) -> None:
        self.rank = rank
        self.world_size = case.ranks
        self.root = case.root
        self.grid = case.grid or (case.ranks,)
        self.channel = channel
        largest = max(max(case.blocks(rank)) for rank in range(case.ranks))
        share = -(-largest // case.channels)
        self.messages = max(1, -(-share // (case.slot // case.align * case.align or case.slot)))
        self.parts = case.ranks if case.what.blocks == "one" else 1
        self.scratch = 0
        self.turns = self.together = 1
        self.exchanges: list[Exchange] = []

    def cut(self, parts: int, scratch: int = 0, *, turns: int = 1, together: int = 1) -> None:
        assert not self.exchanges
        assert parts % (turns * together) == 0
        self.parts, self.scratch, self.turns, self.together = parts, scratch, turns, together

    def exchange(
        self,
        *,
        send: Any,
        to: Any,
        receive: Any,
        source: Any,
        combine: str = "copy",
        span: Any = 1,
    ) -> None:
        step = Exchange(int(send), int(to), int(receive), int(source), combine, int(span))
        n = self.world_size
        assert step.send < 0 or 0 <= step.to < n
        assert step.receive < 0 or 0 <= step.source < n
        assert (step.to == self.rank) == (step.source == self.rank) or min(
            step.send, step.receive
        ) < 0
        if step.send >= 0 or step.receive >= 0:
            self.exchanges.append(step)


class Wires:
    """The messages between all ranks."""

    def __init__(self, n_slots: int) -> None:
        self.moves = 0
        self._queues: dict[tuple[int, int], deque[Values]] = {}
        self._n_slots = n_slots

    def post(self, sender: int, receiver: int, values: Values) -> bool:
        """Sends a message if there is a slot for it."""
        queue = self._queues.setdefault((sender, receiver), deque())
        if len(queue) == self._n_slots:
            return False
        queue.append(values)
        self.moves += 1
        return True

    def take(self, sender: int, receiver: int) -> Values | None:
        """Receives a message if there is one."""
        queue = self._queues.get((sender, receiver))
        if not queue:
            return None
        self.moves += 1
        return queue.popleft()

    @property
    def empty(self) -> bool:
        return not any(self._queues.values())


class Rank:
    """A rank of one channel while it runs.

    Attributes:
        flat: Its buffer: all blocks and scratch.
        sent: Elements that it has sent so far.
    """

    def __init__(self, case: Case, program: Program, flat: Values) -> None:
        self.flat = flat
        self.sent = 0
        self._case = case
        self._program = program
        sizes = case.blocks(program.rank)
        sizes += sizes[:1] * program.scratch
        self._begins = np.cumsum([0, *sizes]).tolist()

    def pieces(self, first: int, span: int) -> list[slice]:
        """Returns the place of each message of some chunks."""
        if first < 0:
            return []
        case, program = self._case, self._program
        full, places = 0, []
        for chunk in range(first, first + span):
            block, part = divmod(chunk, program.parts)
            begin, size = self._begins[block], self._begins[block + 1] - self._begins[block]
            share = _up(-(-size // case.channels), case.align)
            low, high = (min((program.channel + i) * share, size) for i in (0, 1))
            turns, together = program.turns, program.together
            number, place = divmod(part, together)
            number, turn = divmod(number, turns)
            group = _up(-(-(high - low) * turns * together // program.parts), case.align)
            each, window = (_up(-(-group // count), case.align) for count in (together, turns))
            ends = [
                max(turn * window, min((place + i) * each, (turn + 1) * window)) for i in (0, 1)
            ]
            ends = [min(end, group) for end in ends]
            full += ends[1] - ends[0]
            places.append([begin + min(low + number * group + end, high) for end in ends])
        assert all(a[1] == b[0] for a, b in pairwise(places)), "a span is one piece of memory"
        low, high = places[0][0], places[-1][1]
        return [
            slice(min(low + k * case.slot, high), min(low + (k + 1) * case.slot, high))
            for k in range(-(-full // case.slot))
        ]

    def run(self, wires: Wires, combine: Callable[..., Any]) -> Iterator[None]:
        """Does what the program says; yields while it waits."""
        case, rank = self._case, self._program.rank

        def take(place: slice, values: Values, how: str) -> None:
            assert self.flat[place].shape == values.shape, "messages match in size"
            self.flat[place] = combine(self.flat[place], values) if how == "reduce" else values

        for step in self._program.exchanges:
            out, into = self.pieces(step.send, step.span), self.pieces(step.receive, step.span)
            if out and step.to == rank:
                for leaving, there in zip(out, into, strict=True):
                    take(there, self.flat[leaving].copy(), step.combine)
                continue
            ahead = min(case.n_slots - 1, len(out))
            for turn in range(max(len(out), len(into) + ahead)):
                if turn < len(out):
                    values = self.flat[out[turn]].copy()
                    while not wires.post(rank, step.to, values):
                        yield
                    self.sent += len(values)
                if 0 <= turn - ahead < len(into):
                    while (arrived := wires.take(step.source, rank)) is None:
                        yield
                    take(into[turn - ahead], arrived, step.combine)


@dataclass
class Result:
    """What a collective left.

    Attributes:
        taken: What each rank ends with.
        sent: Elements that each rank sent to others.
        exchanges: Most exchanges of any rank.
    """

    taken: list[Values]
    sent: list[int]
    exchanges: int


def execute(
    algorithm: Algorithm,
    case: Case,
    given: Sequence[Values],
    combine: Callable[..., Any] = np.add,
    poison: Any = None,
) -> Result:
    """Runs an algorithm.

    Args:
        algorithm: Its function.
        case: What to run.
        given: What each rank gives, flat.
        combine: Adds two arrays.
        poison: What is in a buffer before; nothing that anybody may use.

    Raises:
        DeadlockError: If no rank can go on.
    """
    n, what = case.ranks, case.what
    programs = [
        [Program(case, rank, channel) for rank in range(n)] for channel in range(case.channels)
    ]
    for program in (program for channel in programs for program in channel):
        algorithm(program)
    scratch = programs[0][0].scratch
    flats = []
    for rank in range(n):
        sizes = case.blocks(rank)
        begins = np.cumsum([0, *sizes]).tolist()
        flat = np.empty(sum(sizes) + scratch * sizes[0], given[rank].dtype)
        flat.fill(poison if poison is not None else flat.dtype.type(77))
        blocks = what.given(rank, n, case.root)
        if blocks:
            flat[begins[blocks.start] : begins[blocks.stop]] = given[rank]
        kept = what.kept(rank, n)
        if kept is not None:
            source, target = (slice(begins[b], begins[b + 1]) for b in kept)
            flat[target] = flat[source]
        flats.append(flat)
    sent, longest = [0] * n, 0
    for channel in programs:
        assert len({(program.parts, program.scratch) for program in channel}) == 1
        wires = Wires(case.n_slots)
        ranks = [Rank(case, program, flats[program.rank]) for program in channel]
        _drive([rank.run(wires, combine) for rank in ranks], wires)
        assert wires.empty, "every message is received"
        sent = [a + rank.sent for a, rank in zip(sent, ranks, strict=True)]
        longest = max(longest, *(len(program.exchanges) for program in channel))
    taken = []
    for rank, flat in enumerate(flats):
        blocks = what.taken(rank, n, case.root)
        begins = np.cumsum([0, *case.blocks(rank)]).tolist()
        taken.append(flat[begins[blocks.start] : begins[blocks.stop]] if blocks else flat[:0])
    return Result(taken, sent, longest)


def _drive(runs: Sequence[Iterator[None]], wires: Wires) -> None:
    waiting = list(runs)
    while waiting:
        moves, ranks = wires.moves, len(waiting)
        waiting = [run for run in waiting if next(run, _DONE) is not _DONE]
        if len(waiting) == ranks and wires.moves == moves:
            raise DeadlockError(f"{ranks} ranks wait for each other")


def _up(size: int, align: int) -> int:
    return -(-size // align) * align


def draw(case: Case, dtype: Any = np.int64, seed: int = 0) -> list[Values]:
    """Returns what each rank gives."""
    rng = np.random.default_rng(seed)
    given = []
    for rank in range(case.ranks):
        sizes = case.blocks(rank)
        count = sum(sizes[block] for block in case.what.given(rank, case.ranks, case.root))
        drawn = rng.integers(-50, 50, count) if dtype == np.int64 else rng.standard_normal(count)
        given.append(drawn.astype(dtype))
    return given


def expected(case: Case, given: Sequence[Values]) -> list[Values]:
    """Returns what each rank ends with, sums in the order of ranks."""
    n, what = case.ranks, case.what
    if what.blocks == "pairs":
        cuts = [np.split(flat, np.cumsum(case.blocks(r)[:n])[:-1]) for r, flat in enumerate(given)]
        return [np.concatenate([cuts[source][r] for source in range(n)]) for r in range(n)]
    whole = np.sum(given, axis=0) if what.reduces else np.concatenate(given)
    ends = np.cumsum([0, *case.blocks(0)])
    taken = []
    for rank in range(n):
        blocks = what.taken(rank, n, case.root)
        taken.append(whole[ends[blocks.start] : ends[blocks.stop]] if blocks else whole[:0])
    return taken


# The same through the engine


@dataclass
class Outcome:
    """What the engine made of a collective.

    Attributes:
        ends: When each rank was done.
        taken: What each rank ended with, as bytes of the element type.
    """

    ends: list[int]
    taken: list[Values]

    @property
    def time(self) -> int:
        return max(self.ends)


def simulate(
    topology: Topology,
    chosen: Chosen,
    case: Case,
    given: Sequence[Values] | None = None,
    *,
    dtype: DType = dtypes.float32,
    fidelity: Fidelity = "kernel",
    starts: Sequence[int] = (),
    sips: Sequence[int] | None = None,
) -> Outcome:
    """Runs a collective on a machine; without `given` it has no data.

    `case` says what to do: its slots, channels and alignment are those of `chosen`.
    """
    engine = GraphEngine(topology, given is not None, fidelity=fidelity)
    model = CollectiveModel(engine)
    issued = issue(model, chosen, case, given, dtype=dtype, starts=starts, sips=sips)
    engine.loop.run()
    ends = issued.ends
    assert None not in ends
    taken = [target.array().copy() for target in issued.targets] if given is not None else []
    return Outcome([end for end in ends if end is not None], taken)


@dataclass
class Issued:
    """A collective that all ranks have issued.

    Attributes:
        commands: The command of each rank.
        targets: What each rank ends with.
        memory: Holds the buffers.
    """

    commands: list[Command]
    targets: list[View]
    memory: list[Storage]

    @property
    def ends(self) -> list[int | None]:
        """When each rank is done."""
        return [command.done.time for command in self.commands]


def issue(
    model: CollectiveModel,
    chosen: Chosen,
    case: Case,
    given: Sequence[Values] | None = None,
    *,
    dtype: DType = dtypes.float32,
    starts: Sequence[int] = (),
    sips: Sequence[int] | None = None,
) -> Issued:
    """Issues a collective on an engine that does not run yet."""
    engine = model.engine
    places = list(range(case.ranks) if sips is None else sips)
    reduction = Reduction("sum", "add") if case.what.reduces else None
    blocks = [tuple(row) if case.what.blocks == "pairs" else row for row in case.sizes]
    shape = CollectiveShape(chosen, case.operation, tuple(places), tuple(blocks), dtype, case.root)
    collective = Collective(model, model.prepare(shape), reduction)
    issued = Issued([], [], [])
    for rank in range(case.ranks):
        sizes = case.blocks(rank)
        sip = places[rank]
        host = Host(engine.loop, sip, engine.rank_owner(sip), starts[rank] if starts else 0, 64)
        stream = Stream("s", sip)

        def view(blocks: range, sizes: list[int] = sizes, rank: int = rank) -> View:
            count = sum(sizes[block] for block in blocks)
            nbytes = max(count * dtype.itemsize, 1)
            storage = Storage(engine.devices[places[rank]].hbm, nbytes, "x", call_site())
            issued.memory.append(storage)
            if given is not None:
                storage.buffer.poison(dtypes.uint8)
            return View(storage.buffer, dtype, (count,), (1,), 0)

        source = view(case.what.given(rank, case.ranks, case.root))
        target = view(case.what.taken(rank, case.ranks, case.root))
        if given is not None and source.shape[0]:
            source.write()[...] = given[rank].astype(dtype.numpy)
        issued.targets.append(target)
        work = collective.join(rank, [source], [target])
        command = Command(case.operation, "collective", host, stream, work, site=call_site())
        issued.commands.append(command)
        engine.submit(command)
    return issued
