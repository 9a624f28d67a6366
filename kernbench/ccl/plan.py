"""A collective as data: what every rank exchanges, step by step, as arrays over ranks.

An algorithm is recorded by running it once with an array of all ranks in place of its rank, or, if
it branches on its rank, once for each. It sees no values, so its control flow cannot depend on any.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import numpy as np

from kernbench.errors import KernbenchError, call_site, site_fact

if TYPE_CHECKING:
    from kernbench.tl import Program
    from kernbench.tl.tile import Pointer

Combine = Literal["reduce", "copy"]
Ints = np.ndarray[Any, np.dtype[np.int64]]

NOTHING: Final = -1
"""Chunk of a step in which a rank does not send, or does not receive."""


class Comm(Protocol):
    """What an algorithm sees of its collective.

    Attributes:
        rank: This rank inside the group; an array of all ranks while the algorithm is recorded.
        world_size: Ranks in the group. The buffer is cut into as many chunks, numbered from 0.
    """

    rank: Any
    world_size: int

    @property
    def tl(self) -> "Program":
        """The tile program of this rank, for algorithms that do more than exchange chunks.

        An algorithm that uses it cannot be recorded; it always runs live.
        """
        ...

    @property
    def buffer(self) -> "Pointer":
        """The rank's buffer, for algorithms that use `tl`."""
        ...

    def exchange(
        self, *, send: Any, to: Any, receive: Any, source: Any, combine: Combine = "copy"
    ) -> None:
        """Sends a chunk to a rank while receiving one from another. May wait.

        Args:
            send: Number of the chunk that leaves; `NOTHING` to only receive.
            to: Rank that gets it.
            receive: Number of the chunk that arrives; `NOTHING` to only send.
            source: Rank that it comes from.
            combine: Whether what arrives is added to what is there or replaces it.
        """
        ...


Algorithm = Callable[[Comm], None]


@dataclass(frozen=True, slots=True)
class Chunks:
    """A buffer cut into chunks; the last ones are shorter, or empty, if it does not divide.

    Attributes:
        count: Elements of the buffer.
        parts: How many chunks.
        align: Chunks begin at multiples of this many elements.
    """

    count: int
    parts: int
    align: int

    @property
    def nominal(self) -> int:
        """Elements of a full chunk.

        Every chunk travels in as many messages as a full one, if need be empty ones, so that both
        sides know their number without asking.
        """
        even = -(-self.count // self.parts)
        return -(-even // self.align) * self.align

    def begin(self, index: int) -> int:
        """Returns the first element of a chunk."""
        return min(index * self.nominal, self.count)

    def size(self, index: int) -> int:
        """Returns the number of elements of a chunk; of `NOTHING`: 0."""
        return 0 if index == NOTHING else self.begin(index + 1) - self.begin(index)

    def pieces(self, size: int) -> int:
        """Returns in how many messages of at most `size` elements a chunk travels."""
        return -(-self.nominal // size)

    def turns(self, size: int, n_slots: int) -> Iterator[tuple[int | None, int | None]]:
        """Yields which piece leaves and which arrives, turn by turn, None for neither.

        Sending runs ahead of receiving by all slots but one. With that one, a rank always receives
        before it needs the credit that its receiver gives for receiving, so a ring cannot jam.
        """
        pieces = self.pieces(size)
        ahead = min(n_slots - 1, pieces)
        for turn in range(pieces + ahead):
            yield (turn if turn < pieces else None, turn - ahead if turn >= ahead else None)

    def piece(self, index: int, piece: int, size: int) -> tuple[int, int]:
        """Returns the first element and the number of elements of one message of a chunk."""
        begin = min(self.begin(index) + piece * size, self.begin(index + 1))
        return begin, min(size, self.begin(index + 1) - begin)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One step of one rank; see `Comm.exchange`."""

    send: int
    to: int
    receive: int
    source: int
    combine: Combine


@dataclass(frozen=True, eq=False)
class Plan:
    """What all ranks of a collective do; arrays are indexed by step, then rank.

    Attributes:
        send: Chunk that leaves, or `NOTHING`.
        to: Its receiver.
        receive: Chunk that arrives, or `NOTHING`.
        source: Its sender.
        reduce: Whether what arrives is added to what is there.
    """

    send: Ints
    to: Ints
    receive: Ints
    source: Ints
    reduce: np.ndarray[Any, np.dtype[np.bool_]]

    @property
    def world_size(self) -> int:
        """Ranks that take part."""
        return int(self.send.shape[1])

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """Every (sender, receiver) once, in order."""
        steps, ranks = np.nonzero(self.send != NOTHING)
        found = np.unique(ranks * self.world_size + self.to[steps, ranks])
        return [(int(pair) // self.world_size, int(pair) % self.world_size) for pair in found]

    def of(self, rank: int) -> list[Exchange]:
        """Returns the steps of one rank."""
        columns = (
            self.send[:, rank].tolist(),
            self.to[:, rank].tolist(),
            self.receive[:, rank].tolist(),
            self.source[:, rank].tolist(),
            self.reduce[:, rank].tolist(),
        )
        return [
            Exchange(send, to, receive, source, "reduce" if reduce else "copy")
            for send, to, receive, source, reduce in zip(*columns, strict=True)
            if send != NOTHING or receive != NOTHING
        ]

    @cached_property
    def in_step(self) -> bool:
        """Whether all ranks always send to one peer, receive from one peer and combine alike."""
        return bool(
            len(self.send)
            and (self.send != NOTHING).all()
            and (self.receive != NOTHING).all()
            and (self.to == self.to[0]).all()
            and (self.source == self.source[0]).all()
            and (self.reduce == self.reduce[:, :1]).all()
        )

    @cached_property
    def gathers(self) -> bool:
        """Whether no rank can be done before every rank has begun."""
        n = self.world_size
        if self.in_step:
            reached, rank = 1, int(self.source[0, 0])
            while rank != 0:
                reached, rank = reached + 1, int(self.source[0, rank])
            return reached == n and len(self.send) >= n - 1
        begun = [1 << rank for rank in range(n)]  # by rank, a bit for each that must have begun
        for receive, source in zip(self.receive, self.source, strict=True):
            before = list(begun)
            for rank in np.flatnonzero(receive != NOTHING).tolist():
                begun[rank] |= before[source[rank]]
        return all(ranks == (1 << n) - 1 for ranks in begun)

    def aligned(self) -> bool:
        """Whether what a rank sends in a step is received in the same step."""
        ranks = np.arange(self.world_size)
        for send, to, receive, source in zip(
            self.send, self.to, self.receive, self.source, strict=True
        ):
            active = send != NOTHING
            receivers = to[active]
            if len(np.unique(receivers)) != len(receivers):
                return False
            if (receive != NOTHING).sum() != len(receivers):
                return False
            if (source[receivers] != ranks[active]).any() or (receive[receivers] == NOTHING).any():
                return False
        return True


class AlgorithmError(KernbenchError):
    """An algorithm asks for an exchange that does not exist."""


def check_exchange(
    world_size: int, send: Any, to: Any, receive: Any, source: Any, combine: Combine
) -> None:
    """Checks the arguments of `Comm.exchange`, numbers or arrays over ranks.

    Raises:
        AlgorithmError: If a chunk, a rank or the way to combine does not exist.
    """
    expected = []
    if combine not in {"reduce", "copy"}:
        expected.append(f"combine='reduce' or 'copy', got {combine!r}")
    last = world_size - 1
    for name, chunk, peer_name, peer in (
        ("send", send, "to", to),
        ("receive", receive, "source", source),
    ):
        if _beyond(chunk, NOTHING, last).any():
            expected.append(f"{name}= a chunk from 0 to {last}, or NOTHING; got {chunk}")
        if (_beyond(peer, 0, last) & np.not_equal(chunk, NOTHING)).any():
            expected.append(f"{peer_name}= a rank from 0 to {last}; got {peer}")
    if expected:
        site = call_site()
        raise AlgorithmError(f"exchange: expected {'; '.join(expected)}", [site_fact(site)])


def _beyond(numbers: Any, first: int, last: int) -> Any:
    return np.logical_or(np.less(numbers, first), np.greater(numbers, last))


class NotAPlanError(Exception):
    """The algorithm did something that only a live run can do."""


class _Recorder:
    """Writes down what an algorithm exchanges, for one rank or an array of ranks."""

    def __init__(self, rank: Any, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self.steps: list[tuple[Any, ...]] = []

    @property
    def tl(self) -> "Program":
        raise NotAPlanError

    @property
    def buffer(self) -> "Pointer":
        raise NotAPlanError

    def exchange(
        self, *, send: Any, to: Any, receive: Any, source: Any, combine: Combine = "copy"
    ) -> None:
        check_exchange(self.world_size, send, to, receive, source, combine)
        # Copies, since an array may be changed in place where a number would be replaced.
        step = [np.copy(v) if isinstance(v, np.ndarray) else v for v in (send, to, receive, source)]
        self.steps.append((*step, combine == "reduce"))


def record(algorithm: Algorithm, world_size: int) -> Plan | None:
    """Returns the plan of an algorithm; None if only a live run can tell what it does."""
    try:
        columns = _record_together(algorithm, world_size)
        if columns is None:
            columns = _record_each(algorithm, world_size)
    except NotAPlanError:
        return None
    table = np.array(columns, np.int64).reshape(len(columns), 5, world_size)
    plan = Plan(table[:, 0], table[:, 1], table[:, 2], table[:, 3], table[:, 4].astype(np.bool_))
    return plan if plan.aligned() else None


def _record_together(algorithm: Algorithm, world_size: int) -> list[np.ndarray[Any, Any]] | None:
    """Returns the steps of all ranks at once; None if the algorithm needs a rank to be a number."""
    ranks = np.arange(world_size)
    ranks.flags.writeable = False
    everyone = _Recorder(ranks, world_size)
    try:
        algorithm(everyone)
        columns = [
            np.stack([np.broadcast_to(column, world_size) for column in step])
            for step in everyone.steps
        ]
    except NotAPlanError:
        raise
    except Exception:
        return None  # a mistake of the algorithm's own shows again, with a number for a rank
    # What is done in place to an array shows in every name for it: compare with single ranks.
    for rank in {0, world_size - 1}:
        alone = _Recorder(rank, world_size)
        algorithm(alone)
        if [tuple(int(v) for v in step) for step in alone.steps] != [
            tuple(column[:, rank].tolist()) for column in columns
        ]:
            return None
    return columns


def _record_each(algorithm: Algorithm, world_size: int) -> list[np.ndarray[Any, Any]]:
    recorders = [_Recorder(rank, world_size) for rank in range(world_size)]
    for recorder in recorders:
        algorithm(recorder)
    length = max(len(recorder.steps) for recorder in recorders)
    idle = (NOTHING, 0, NOTHING, 0, False)
    rows = [recorder.steps + [idle] * (length - len(recorder.steps)) for recorder in recorders]
    return list(np.array(rows, np.int64).transpose(1, 2, 0)) if length else []
