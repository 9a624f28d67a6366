"""A collective as data: what every rank exchanges, step by step, as arrays over ranks.

An algorithm is recorded by running it once with an array of all ranks in place of its rank, or once
for each rank if it branches on its rank. An algorithm sees no values, so its control flow cannot
depend on values.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from types import FunctionType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    NamedTuple,
    NoReturn,
    Protocol,
    overload,
    runtime_checkable,
)

import numpy as np

from kernbench.caches import cached
from kernbench.ccl.circles import circles_of, distinct, gather
from kernbench.ccl.columns import Around, Column, Turns
from kernbench.ccl.layout import Cuts
from kernbench.ccl.operations import OPERATIONS, Ints
from kernbench.config.near import did_you_mean
from kernbench.errors import KernbenchError, call_site, site_fact

if TYPE_CHECKING:
    from kernbench.tl import Program
    from kernbench.tl.tile import Pointer

Combine = Literal["reduce", "copy"]

NOTHING: Final = -1
"""Chunk of an exchange in which a rank does not send, or does not receive."""

_MANY: Final = 1 << 20
"""Entries of a plan (steps times ranks) from which on steps are made when somebody looks."""


class Comm(Protocol):
    """What an algorithm sees of its collective.

    The buffer consists of the operation's blocks (see `Operation`), each cut into chunks that are
    numbered through all blocks.

    Attributes:
        rank: This rank inside the group; an array of all ranks while the algorithm is recorded.
        world_size: Ranks in the group.
        root: Rank inside the group; 0 if the operation has none.
        grid: Extents, fastest first, of the grid that the ranks form; `(world_size,)` for no grid.
        channel: Number of the share of each block on which this run of the algorithm works; runs
            for other shares go on at the same time on other PEs.
    """

    rank: Any
    world_size: int
    root: int
    grid: tuple[int, ...]
    channel: int

    @property
    def messages(self) -> int:
        """How many full messages the largest block of this channel takes; at least 1."""
        ...

    @property
    def tl(self) -> "Program":
        """The tile program of this rank, for algorithms that do more than exchange chunks.

        An algorithm that uses `tl` cannot be recorded; it always runs live.
        """
        ...

    @property
    def buffer(self) -> "Pointer":
        """The rank's buffer, for algorithms that use `tl`."""
        ...

    def cut(self, parts: int, scratch: int = 0, *, turns: int = 1, together: int = 1) -> None:
        """Sets the number of chunks of each block; before any exchange, at most once.

        Without a call, a single block is cut into as many chunks as there are ranks, and the blocks
        of other operations are one chunk each.

        An algorithm that is repeated for parts of chunks says how often. Chunks in a row are then
        a group, which turns share in order: a turn has what lies in its share of each chunk, which
        may be nothing. Chunks of a group in a turn have numbers in a row, and lie in a row.

        Args:
            parts: Chunks of a block, those of all turns.
            scratch: Number of scratch blocks behind the operation's blocks, each as large as the
                first block.
            turns: How often an algorithm is repeated for parts of chunks.
            together: Chunks of a group.
        """
        ...

    def exchange(
        self,
        *,
        send: Any,
        to: Any,
        receive: Any,
        source: Any,
        combine: Combine = "copy",
        span: Any = 1,
    ) -> None:
        """Sends chunks to a rank while receiving chunks from another. May wait.

        Messages between two ranks match first in, first out, and must be equally large. A rank that
        sends to itself and receives from itself moves a chunk to another place of its buffer.

        Args:
            send: First chunk that leaves; `NOTHING` to only receive.
            to: Rank that gets the chunks that leave.
            receive: First chunk that arrives; `NOTHING` to only send.
            source: Rank that sends the chunks that arrive.
            combine: `reduce` adds arriving values to present ones, `copy` replaces them.
            span: Number of chunks in a row that leave, and that arrive.
        """
        ...


PARTS: Final = tuple(
    sorted({name for name in (*vars(Comm), *Comm.__annotations__) if not name.startswith("_")})
)
"""Names that an algorithm can use of its `Comm`."""

Algorithm = Callable[[Comm], None]


@runtime_checkable
class Renumbered(Protocol):
    """An algorithm that is another one with its ranks numbered anew, and so is its plan."""

    @property
    def algorithm(self) -> Algorithm:
        """The other algorithm."""
        ...

    def seen(self, setting: "Setting") -> "Setting":
        """Returns what the other algorithm sees of a setting."""
        ...

    def renumbered(self, plan: "Plan") -> "Plan | None":
        """Returns the plan of the other one with ranks numbered anew; None if it cannot be."""
        ...


@dataclass(frozen=True, slots=True)
class Setting:
    """All that an algorithm can see besides its rank.

    Attributes:
        operation: Name of the operation.
        world_size: Ranks in the group.
        root: Root inside the group; 0 if the operation has none.
        grid: Extents, fastest first, of the grid that the ranks form.
        channel: Number of the share of each block.
        channels: Number of shares of each block.
        messages: Number of full messages that the largest block takes; at least 1.
        of_chunks: Whether channels share each chunk, and not each block.
    """

    operation: str
    world_size: int
    root: int
    grid: tuple[int, ...]
    channel: int = 0
    channels: int = 1
    messages: int = 1
    of_chunks: bool = False

    @property
    def default_parts(self) -> int:
        """Chunks of a block if the algorithm does not call `cut`."""
        return self.world_size if OPERATIONS[self.operation].blocks == "one" else 1


@dataclass(frozen=True, slots=True)
class Exchange:
    """One step of one rank; see `Comm.exchange`."""

    send: int
    to: int
    receive: int
    source: int
    combine: Combine
    span: int


@dataclass(frozen=True, eq=False)
class Plan:
    """All exchanges of a collective; arrays have shape `[steps, ranks]`.

    Attributes:
        cuts: How the blocks are cut.
        send: First chunk that leaves, or `NOTHING`.
        to: Rank that gets the chunks that leave.
        receive: First chunk that arrives, or `NOTHING`.
        source: Rank that sends the chunks that arrive.
        reduce: Whether arriving values are added to present ones.
        span: Number of chunks that leave, and that arrive.
        turned: Whether every rank is known to do what rank 0 does, moved round the ring of all
            ranks: its peers are as many places further, and it sends where rank 0 does.
    """

    cuts: Cuts
    send: Ints
    to: Ints
    receive: Ints
    source: Ints
    reduce: np.ndarray[Any, np.dtype[np.bool_]]
    span: Ints
    turned: bool = False

    @property
    def parts(self) -> int:
        """Chunks of a block."""
        return self.cuts.parts

    @property
    def world_size(self) -> int:
        """Ranks that take part."""
        return int(self.send.shape[1])

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """Every (sender, receiver) of messages once, in order."""
        n = self.world_size
        if self.in_stages:
            rows = [stage.to[0].tolist() for stage in self.stages]
            return sorted({pair for row in rows for pair in enumerate(row)})
        steps, ranks = np.nonzero(self.send != NOTHING)
        to = self.to[steps, ranks].astype(np.int64)
        found = distinct((ranks * n + to)[to != ranks])
        return [divmod(pair, n) for pair in found.tolist()]

    @cached_property
    def widest(self) -> int:
        """Most chunks that leave or arrive in one exchange."""
        span = self.span[:1] if len(self.span) and _constant(self.span) else self.span
        return int(span.max(initial=1))

    def of(self, rank: int) -> Sequence[Exchange]:
        """Returns the steps of one rank."""
        if self.send.size >= _MANY:
            return Steps(self.columns(rank))
        steps = self._steps.get(rank)
        if steps is None:
            steps = self._steps[rank] = list(Steps(self.columns(rank)))
        return steps

    @cached_property
    def _steps(self) -> dict[int, list[Exchange]]:
        return {}

    def columns(self, rank: int) -> "Columns":
        """Returns the arrays of one rank, without the steps in which it does nothing."""
        columns = Columns(*(getattr(self, name)[:, rank] for name in TABLES))
        active = (columns.send != NOTHING) | (columns.receive != NOTHING)
        return columns if active.all() else columns.at(active)

    @cached_property
    def in_step(self) -> bool:
        """Whether all ranks always send one chunk to one peer, receive one, and combine alike."""
        return self.steady and bool((self.span[0] == 1).all())

    @cached_property
    def steady(self) -> bool:
        """Whether all ranks always send to one peer, receive from one, and combine alike.

        All messages have equally many chunks.
        """
        return bool(
            len(self.send)
            and _constant(self.to)
            and _constant(self.source)
            and _constant(self.span)
            and (self.span[0] == self.span[0, 0]).all()
            and (self.to[0] != np.arange(self.world_size)).all()
            and _least(self.send) > NOTHING
            and _least(self.receive) > NOTHING
            and (self.reduce.strides[1] == 0 or (self.reduce == self.reduce[:, :1]).all())
            and (self.source[0, self.to[0]] == np.arange(self.world_size)).all()
        )

    @cached_property
    def stages(self) -> "list[Plan]":
        """The plan in parts, in each of which no rank changes its peers or the chunks at once."""
        tables = [table for table in (self.to, self.source, self.span) if not _constant(table)]
        borders = [
            step
            for step in range(1, len(self.send) if tables else 1)
            if any((table[step] != table[step - 1]).any() for table in tables)
        ]
        if not borders:
            return [self]
        return [
            replace(self, **{name: getattr(self, name)[low:high] for name in TABLES})
            for low, high in pairwise([0, *borders, len(self.send)])
        ]

    @cached_property
    def in_stages(self) -> bool:
        """Whether each of the stages is steady."""
        return all(stage.steady for stage in self.stages)

    @cached_property
    def aligned(self) -> bool:
        """Whether everything that is sent in a step is received in the same step."""
        if self.in_stages:
            return True
        ranks = np.arange(self.world_size)
        for send, to, receive, source, span in zip(
            self.send, self.to, self.receive, self.source, self.span, strict=True
        ):
            sends = send != NOTHING
            receivers = to[sends]
            if (
                len(distinct(receivers)) != len(receivers)
                or (receive != NOTHING).sum() != len(receivers)
                or (source[receivers] != ranks[sends]).any()
                or (receive[receivers] == NOTHING).any()
                or (span[receivers] != span[sends]).any()
            ):
                return False
        return True

    @cached_property
    def gathers(self) -> bool:
        """Whether no rank of a plan in stages can be done before every rank has begun."""
        found = [(len(stage.send), *circles_of(stage.source[0].tolist())) for stage in self.stages]
        # Behind fewer steps ranks learn of some of their circle, too, but that is not counted.
        return gather([circle for steps, circle, longest in found if steps >= longest - 1])


class Columns(NamedTuple):
    """What one rank exchanges, as arrays over steps; see `Plan`."""

    send: np.ndarray[Any, Any]
    to: np.ndarray[Any, Any]
    receive: np.ndarray[Any, Any]
    source: np.ndarray[Any, Any]
    reduce: np.ndarray[Any, Any]
    span: np.ndarray[Any, Any]

    def at(self, steps: Any) -> "Columns":
        """Returns some of the steps.

        Args:
            steps: A slice, or whether to take each of them.
        """
        return Columns(*(column[steps] for column in self))


TABLES: Final = Columns._fields
"""The arrays of a plan."""


class Steps(Sequence[Exchange]):
    """The steps of one rank, each made when somebody looks at it."""

    def __init__(self, columns: Columns) -> None:
        self._columns: Final = columns

    def __len__(self) -> int:
        return len(self._columns.send)

    @overload
    def __getitem__(self, number: int) -> Exchange: ...

    @overload
    def __getitem__(self, number: slice) -> "Steps": ...

    def __getitem__(self, number: int | slice) -> "Exchange | Steps":
        if isinstance(number, slice):
            return Steps(self._columns.at(number))
        return _exchange(*(column[number].item() for column in self._columns))

    def __iter__(self) -> Iterator[Exchange]:
        return map(_exchange, *(column.tolist() for column in self._columns))


def _exchange(send: int, to: int, receive: int, source: int, reduce: bool, span: int) -> Exchange:
    return Exchange(send, to, receive, source, "reduce" if reduce else "copy", span)


def _least(rows: Ints) -> int:
    """Returns the smallest number of a table."""
    if abs(rows.strides[0]) == abs(rows.strides[1]):
        # Each row is the one before moved by a rank, so the first row and the ends of all have all.
        return int(min(rows[0].min(), rows[:, 0].min(), rows[:, -1].min()))
    return int(rows.min())


def _constant(rows: Ints) -> bool:
    return rows.strides[0] == 0 or bool((rows == rows[0]).all())


class AlgorithmError(KernbenchError):
    """An algorithm asks for an exchange that does not exist."""


class RefusedError(Exception):
    """An algorithm cannot be used for a group: its program raised, or its messages do not match."""


class NotAPlanError(Exception):
    """The algorithm did something that only a live run can do."""


class Cutting:
    """How an algorithm cuts its blocks, and whether its exchanges fit the cuts.

    Attributes:
        cuts: How the blocks are cut.
    """

    def __init__(self, setting: Setting) -> None:
        self.cuts = Cuts(setting.default_parts)
        self._setting: Final = setting
        self._blocks: Final = OPERATIONS[setting.operation].count(setting.world_size)
        self._used = False

    @property
    def last_chunk(self) -> int:
        """The highest number of a chunk."""
        return (self._blocks + self.cuts.scratch) * self.cuts.parts - 1

    @property
    def dtype(self) -> Any:
        """The smallest type that holds every rank and every chunk: plans of rings are large."""
        return np.int16 if max(self.last_chunk, self._setting.world_size) < 1 << 15 else np.int32

    def cut(self, cuts: Cuts) -> None:
        """See `Comm.cut`.

        Raises:
            AlgorithmError: If an exchange or a cut came before, or a number is no valid count.
        """
        parts, scratch, turns, together = cuts
        if self._used or min(parts, turns, together) < 1 or scratch < 0 or cuts.groups < 1:
            raise AlgorithmError(
                f"cut(parts={parts}, scratch={scratch}, turns={turns}, together={together})",
                [
                    site_fact(call_site()),
                    "expected at least one part, no negative scratch, and nothing before it",
                    "expected at least one turn of at least one chunk, and parts for whole groups",
                ],
            )
        self.cuts = Cuts(*map(int, cuts))
        self._used = True

    def check(
        self, rank: Any, send: Any, to: Any, receive: Any, source: Any, combine: str, span: Any
    ) -> None:
        """Checks the arguments of `Comm.exchange`, numbers or arrays over ranks.

        Args:
            rank: Whose exchange it is.
            send: First chunk that leaves; `NOTHING` to only receive.
            to: Rank that gets the chunks that leave.
            receive: First chunk that arrives; `NOTHING` to only send.
            source: Rank that sends the chunks that arrive.
            combine: `reduce` or `copy`.
            span: Number of chunks in a row that leave, and that arrive.

        Raises:
            AlgorithmError: If a chunk, a rank or the way to combine does not exist, or a rank has
                an exchange with itself that moves nothing.
        """
        self._used = True
        last_chunk, last = self.last_chunk, self._setting.world_size - 1
        # The usual valid cases are checked first: rings of thousands have millions of exchanges.
        if (
            isinstance(span, int)
            and (span == 1 or (span > 1 and self._in_blocks(send, receive, span)))
            and _within(send, last_chunk, NOTHING)
            and _within(receive, last_chunk, NOTHING)
            and _within(to, last)
            and _within(source, last)
            and combine in {"reduce", "copy"}
            and not _some(_itself(rank, to))
            and not _some(_itself(rank, source))
        ):
            return

        def got() -> str:
            return f"got send={send}, to={to}, receive={receive}, source={source} on rank {rank}"

        expected = []
        if combine not in {"reduce", "copy"}:
            expected.append(f"combine='reduce' or 'copy', got {combine!r}")
        many = not (isinstance(span, int) and span == 1)
        if many and np.less(span, 1).any():
            expected.append(f"span= a positive number of chunks; got {span}")
        for name, chunk, peer_name, peer in (
            ("send", send, "to", to),
            ("receive", receive, "source", source),
        ):
            end = np.where(np.equal(chunk, NOTHING), NOTHING, chunk + span - 1) if many else chunk
            if np.less(chunk, NOTHING).any() or np.greater(end, last_chunk).any():
                expected.append(f"{name}= a chunk from 0 to {last_chunk}, or NOTHING; got {chunk}")
            elif many and self._setting.channels > 1 and _differ(end, chunk, self.cuts.parts):
                expected.append(f"{name}= chunks of one block, as there are several channels")
            if ((np.less(peer, 0) | np.greater(peer, last)) & np.not_equal(chunk, NOTHING)).any():
                expected.append(f"{peer_name}= a rank from 0 to {last}; got {peer}")
        leaves = np.not_equal(send, NOTHING) & _itself(rank, to)
        arrives = np.not_equal(receive, NOTHING) & _itself(rank, source)
        for alone, name, other in (
            (leaves & ~arrives, "to", "a chunk to receive from"),
            (arrives & ~leaves, "source", "a chunk to send to"),
        ):
            if alone.any():
                moves = f"{other} the rank itself, too, which moves a chunk"
                expected.append(f"{name}= another rank; or {moves}; {got()}")
        if (leaves & arrives & np.equal(send, receive)).any():
            expected.append(f"receive= another place for the chunk that the rank moves; {got()}")
        if expected:
            site = call_site()
            raise AlgorithmError(f"exchange: expected {'; '.join(expected)}", [site_fact(site)])

    def _in_blocks(self, send: Any, receive: Any, span: int) -> bool:
        """Returns whether chunks in a row are known to be there, and, if it matters, of one block.

        What is known of blocks is that of numbers, not of arrays.
        """
        if self._setting.channels == 1 and not isinstance(send, int):
            return all(np.max(chunk) + span - 1 <= self.last_chunk for chunk in (send, receive))
        parts = self.cuts.parts
        return all(
            isinstance(chunk, int) and (chunk == NOTHING or chunk % parts + span <= parts)
            for chunk in (send, receive)
        )


def _within(numbers: Any, last: int, first: int = 0) -> bool:
    if isinstance(numbers, Around):
        return numbers.wrapped and numbers.ranks - 1 <= last
    if isinstance(numbers, np.ndarray):
        return bool(numbers.min() >= first and numbers.max() <= last)
    return bool(first <= numbers <= last)


def _itself(rank: Any, peer: Any) -> Any:
    """Returns whether a peer is the rank itself, for one rank or for all."""
    if isinstance(rank, Around):
        if isinstance(peer, Around):
            return peer.places == rank.places
        rank = np.arange(rank.ranks)
    return rank == peer if type(rank) is type(peer) is int else np.equal(rank, peer)


def _some(alike: Any) -> bool:
    return alike if isinstance(alike, bool) else bool(alike.any())


def _differ(first: Any, last: Any, parts: int) -> bool:
    return bool(np.not_equal(first // parts, last // parts).any())


class CommBase:
    """What errors of Python say of a `Comm`: the name that an algorithm knows it by."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, method in vars(cls).items():
            if isinstance(method, FunctionType) and not name.startswith("_"):
                method.__qualname__ = f"comm.{name}"

    def __getattr__(self, name: str) -> NoReturn:
        hint = did_you_mean(name, PARTS) or f"it has {', '.join(PARTS)}"
        raise AttributeError(f"comm has no {name}; {hint}")


class Recorder(CommBase):
    """Writes down what an algorithm exchanges, for one rank or an array of ranks.

    Args:
        rank: One rank, or an array of all ranks.
        setting: Everything else that the algorithm can see.
        asked: Gets the number of messages when the algorithm asks for that number.
    """

    def __init__(self, rank: Any, setting: Setting, asked: set[int]) -> None:
        self.rank = rank
        self.world_size = setting.world_size
        self.root = setting.root
        self.grid = setting.grid
        self.channel = setting.channel
        self.cutting = Cutting(setting)
        self.steps: Final = [Column(setting.world_size) for _ in range(6)]
        self.count = 0
        self.turned = True  # see `Plan`, of what was recorded so far
        self._plain: list[tuple[Any, ...]] = []
        self._messages = setting.messages
        self._asked = asked

    @property
    def messages(self) -> int:
        """See `Comm`."""
        self._asked.add(self._messages)
        return self._messages

    @property
    def tl(self) -> "Program":
        """See `Comm`; only a live run has it.

        Raises:
            NotAPlanError: Always.
        """
        raise NotAPlanError

    @property
    def buffer(self) -> "Pointer":
        """See `Comm`; only a live run has it.

        Raises:
            NotAPlanError: Always.
        """
        raise NotAPlanError

    def cut(self, parts: int, scratch: int = 0, *, turns: int = 1, together: int = 1) -> None:
        """See `Comm`."""
        self.cutting.cut(Cuts(parts, scratch, turns, together))

    def exchange(
        self,
        *,
        send: Any,
        to: Any,
        receive: Any,
        source: Any,
        combine: Combine = "copy",
        span: Any = 1,
    ) -> None:
        """Writes down an exchange, see `Comm`."""
        if (
            type(send) is type(to) is type(receive) is type(source) is Around
            and type(span) is int
            and span == 1
            and self._plain
            and send.wrapped
            and to.wrapped
            and receive.wrapped
            and source.wrapped
            and to.places
            and source.places
            and combine in {"reduce", "copy"}
        ):
            # As the one before, which was checked: only the places are others.
            self._plain.append((send, to, receive, source, combine == "reduce", span))
            self.count += 1
            return
        if isinstance(send, Turns):
            self._turn(send, to, receive, source, combine)
            return
        self.cutting.check(self.rank, send, to, receive, source, combine, span)
        if type(send) is type(to) is type(receive) is type(source) is Around and span == 1:
            self._plain.append((send, to, receive, source, combine == "reduce", span))
            self.count += 1
            return
        self.write()
        peers_move = type(to) is type(source) is Around
        alike = all(type(value) in {int, Around} for value in (send, receive, span))
        self.turned = self.turned and peers_move and alike
        # Copies, since an array may be changed in place where a number would be replaced.
        step = (send, to, receive, source, combine == "reduce", span)
        for column, value in zip(self.steps, step, strict=True):
            many = isinstance(value, np.ndarray)
            column.append(value.astype(self.cutting.dtype) if many else value)
        self.count += 1

    def _turn(
        self, send: Turns, to: Around, receive: Turns, source: Around, combine: Combine
    ) -> None:
        """Records several steps in a row at once; they differ in their chunks only."""
        self.cutting.check(self.rank, send.first, to, receive.first, source, combine, 1)
        self.write()
        count = len(send.places)
        after, before = (Turns(peer, np.full(count, peer.places)) for peer in (to, source))
        for column, turns in zip(self.steps[:4], (send, after, receive, before), strict=True):
            column.turn(turns)
        for column, value in zip(self.steps[4:], (combine == "reduce", 1), strict=True):
            column.repeat(value, count)
        self.count += count

    def write(self) -> None:
        """Writes down the steps round the ring that were only noted."""
        if self._plain:
            for column, values in zip(self.steps, zip(*self._plain, strict=True), strict=True):
                column.extend(values)
            self._plain.clear()


class Recording(NamedTuple):
    """The outcome of recording an algorithm.

    Attributes:
        plan: Exchanges of all ranks; None if the algorithm must run live.
        asked: Whether the algorithm asked for the number of messages; the plan holds only for this
            number then.
    """

    plan: Plan | None
    asked: bool


@cached("ccl.plans")
def record(algorithm: Algorithm, setting: Setting) -> Recording:
    """Runs an algorithm to find its exchanges; results are kept.

    Args:
        setting: Everything that the algorithm can see besides its rank.
    """
    asked: set[int] = set()
    plan = _record(algorithm, setting, asked)
    return Recording(plan, bool(asked))


def _record(algorithm: Algorithm, setting: Setting, asked: set[int]) -> Plan | None:
    moved = False
    other: object = algorithm
    if isinstance(other, Renumbered):
        found = record(other.algorithm, other.seen(setting))
        if found.asked:
            asked.add(setting.messages)
        plan = None if found.plan is None else other.renumbered(found.plan)
        if plan is not None or found.plan is None:
            return plan
    try:
        recorder = _record_around(algorithm, setting, asked)
        moved = recorder is not None and recorder.turned
        recorder = recorder or _record_together(algorithm, setting, asked)
        if recorder is not None:
            number = recorder.cutting.dtype
            types = (number, number, number, number, np.bool_, number)
            table = [column.table(kind) for column, kind in zip(recorder.steps, types, strict=True)]
        else:
            recorder, table = _record_each(algorithm, setting, asked)
    except NotAPlanError:
        return None
    return replace(Plan(recorder.cutting.cuts, *table), turned=moved)


def _record_around(algorithm: Algorithm, setting: Setting, asked: set[int]) -> Recorder | None:
    """Records all ranks of an algorithm for rings at once, as places round the ring.

    It takes a step for each step, not for each step and rank. None if the algorithm does with its
    rank what only numbers can do.
    """
    return _record_all(algorithm, Recorder(Around(setting.world_size), setting, asked))


def _record_together(algorithm: Algorithm, setting: Setting, asked: set[int]) -> Recorder | None:
    """Records all ranks at once; None if the algorithm needs a number for its rank."""
    n = setting.world_size
    ranks = np.arange(n)
    ranks.flags.writeable = False
    everyone = _record_all(algorithm, Recorder(ranks, setting, asked))
    if everyone is None or not all(column.fits for column in everyone.steps):
        return None
    # Changing an array in place changes it under all its names: compare with single ranks.
    for rank in {0, n - 1}:
        alone = Recorder(rank, setting, asked)
        algorithm(alone)
        if _done(everyone, rank) != _done(alone, 0):
            return None
    return everyone


def _done(recorder: Recorder, rank: int) -> list[tuple[Any, ...]]:
    """Returns what a rank exchanges, without the steps in which it does nothing."""
    steps = zip(*(column.of(rank) for column in recorder.steps), strict=True)
    return [step for step in steps if step[0] != NOTHING or step[2] != NOTHING]


def _record_all(algorithm: Algorithm, everyone: Recorder) -> Recorder | None:
    """Records ranks at once; None if the algorithm cannot do without a number for its rank."""
    try:
        algorithm(everyone)
    except NotAPlanError:
        raise
    except Exception:
        return None  # an error of the algorithm itself comes again when it runs with a number
    everyone.write()
    return everyone


def _record_each(
    algorithm: Algorithm, setting: Setting, asked: set[int]
) -> tuple[Recorder, list[Ints]]:
    recorders = [Recorder(rank, setting, asked) for rank in range(setting.world_size)]
    for recorder in recorders:
        algorithm(recorder)
    cuts = [recorder.cutting.cuts for recorder in recorders]
    if len(set(cuts)) > 1:
        raise AlgorithmError(
            "the ranks cut their blocks differently",
            [f"rank {rank}: {each}" for rank, each in enumerate(cuts)],
        )
    length = max(recorder.count for recorder in recorders)
    idle = (NOTHING, 0, NOTHING, 0, False, 1)
    tables = [np.full((length, setting.world_size), number, np.int64) for number in idle]
    for rank, recorder in enumerate(recorders):
        for table, column in zip(tables, recorder.steps, strict=True):
            table[: recorder.count, rank] = column.of(0)
    tables[4] = tables[4] != 0
    return recorders[0], tables


def turned(algorithm: Algorithm) -> Algorithm:
    """Marks an algorithm in which every rank does what rank 0 does, moved round the grid.

    With the ranks as places of a grid that is closed to a torus: the peers of a rank are as many
    places further along each dimension as those of rank 0, and it sends, receives and combines
    where rank 0 does, as many chunks. Which chunks these are may follow from the rank in any way.
    """
    vars(algorithm)["turned"] = True
    return algorithm


@cached("ccl.formulas")
def formula_of(algorithm: Algorithm, setting: Setting) -> Plan | None:
    """Returns what rank 0 exchanges, as arrays of shape `[steps, 1]`, if it tells it of all ranks.

    Args:
        algorithm: If it is `turned`, its plan of all ranks is not made.
        setting: Everything that the algorithm can see besides its rank.

    Returns:
        The plan of rank 0; of an algorithm round a ring, the plan of all ranks, which is `turned`
        and no larger. None if ranks differ.
    """
    if len(setting.grid) == 1:
        plan = plan_of(algorithm, setting)
        return plan if plan is not None and plan.turned else None
    if not vars(algorithm).get("turned"):
        return None
    recorder = Recorder(0, setting, set())
    algorithm(recorder)
    number = recorder.cutting.dtype
    send, to, receive, source, reduce, span = (
        np.array(column.of(0), number)[:, None] for column in recorder.steps
    )
    cuts = recorder.cutting.cuts
    return Plan(cuts, send, to, receive, source, reduce != 0, span, turned=True)


def plan_of(algorithm: Algorithm, setting: Setting) -> Plan | None:
    """Returns the plan of an algorithm; None if the algorithm must run live.

    Plans are kept.

    Args:
        setting: Everything that the algorithm can see besides its rank.
    """
    if setting.of_chunks:
        return record(algorithm, setting).plan  # of a file, which depends on both
    # Most algorithms do not ask for the number of messages, and send single chunks, which lie in
    # one block with any number of channels: one plan serves every number of both.
    found = record(algorithm, replace(setting, messages=1, channels=1))
    if found.asked:
        found = record(algorithm, replace(setting, channels=1))
    if setting.channels > 1 and (found.plan is None or found.plan.widest > 1):
        found = record(algorithm, setting if found.asked else replace(setting, messages=1))
    return found.plan
