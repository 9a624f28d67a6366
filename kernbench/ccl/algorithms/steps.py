"""Steps that several algorithms share."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from kernbench.ccl.plan import NOTHING, Combine, Comm


def only(condition: Any, chunk: Any) -> Any:
    """Returns the chunk on ranks where the condition holds, elsewhere `NOTHING`.

    It replaces a branch on the rank in algorithms that are recorded for all ranks at once.
    """
    return condition * (chunk - NOTHING) + NOTHING


def pipeline(messages: int, hops: int) -> int:
    """Returns the number of chunks in which ranks best pass a block along a line.

    `k` chunks need `k + hops` turns of `messages / k` messages each. If waiting costs as much in
    every turn as one message, the best `k` is the root of `hops * messages`. Beyond eight times the
    hops, more chunks gain less than an eighth and only make plans long.

    Args:
        messages: Full messages that the block takes.
        hops: Number of ranks on the way that pass the block on.
    """
    hops = max(hops, 0)
    return max(1, min(math.isqrt(hops * messages), messages, 8 * hops))


Trade = tuple[Any, Any, Any, Any]
"""Chunk to send, its receiver, chunk to receive, its sender."""


def swap(
    comm: Comm, trades: Sequence[Trade], combine: Combine = "copy", *, span: int = 1, at_once: bool
) -> None:
    """Trades chunks with several ranks; may wait.

    Args:
        comm: The collective.
        trades: Trades of this rank, in order; the first trades of all ranks fit each other, so do
            the second ones, and so on.
        combine: `reduce` adds arriving values to present ones, `copy` replaces them.
        span: Number of chunks in a row.
        at_once: Whether to send everything before receiving anything, so that a single wait is
            enough. Only where each trade is a single message to another rank: that always finds a
            slot, while ranks that wait for more of them before they receive would wait forever.
    """
    for send, to, receive, source in trades:
        if at_once:
            comm.exchange(send=send, to=to, receive=NOTHING, source=source, span=span)
        else:
            comm.exchange(
                send=send, to=to, receive=receive, source=source, combine=combine, span=span
            )
    for _, _, receive, source in trades if at_once else ():
        comm.exchange(
            send=NOTHING, to=source, receive=receive, source=source, combine=combine, span=span
        )


def turns_of(comm: Comm, others: int) -> Iterator[int]:
    """Yields 1 to `others`, the distances to all other ranks of a line, in a channel's order.

    Each channel begins with another distance, so that as many channels as a rank has links of its
    own to others keep all of these links busy all the time: a Latin square.

    Args:
        comm: The collective, which says which channel this is.
        others: Ranks of the line but this one.
    """
    for turn in range(others):
        yield (comm.channel + turn) % others + 1


@dataclass(frozen=True)
class Line:
    """The ranks of a grid that differ from this one in a single coordinate.

    Attributes:
        comm: The collective.
        extent: Number of ranks on the line.
        stride: Difference between the ranks of neighbours.
    """

    comm: Comm
    extent: int
    stride: int

    @property
    def place(self) -> Any:
        """This rank's coordinate."""
        return self.comm.rank // self.stride % self.extent

    def rank(self, place: Any) -> Any:
        """Returns the rank at a coordinate; coordinates wrap around."""
        return self.comm.rank + (place % self.extent - self.place) * self.stride


def lines(comm: Comm) -> list[Line]:
    """Returns the lines through this rank, one for each dimension of the grid, fastest first."""
    strides = [math.prod(comm.grid[:d]) for d in range(len(comm.grid))]
    return [Line(comm, extent, stride) for extent, stride in zip(comm.grid, strides, strict=True)]


Pieces = Callable[[Any], Sequence[Any]]
"""What each coordinate of a line is in charge of: the first chunks of some spans."""


@dataclass(frozen=True)
class Stage:
    """A reduce-scatter along a line, or the all-gather that undoes it.

    Attributes:
        line: Ranks that take part.
        pieces: Chunks with which each rank of the line ends (or begins).
        span: Number of chunks of each piece.
        share: Number of pieces in a block.
    """

    line: Line
    pieces: Pieces
    span: int = 1
    share: int = 1

    def ring_reduce_scatter(self, on: int) -> None:
        """Reduces round the line; each rank sends to the neighbour `on` further. May wait.

        Args:
            on: 1 or -1.
        """
        place = self.line.place
        for step in range(self.line.extent - 1):
            sent, received = place - on * (step + 1), place - on * (step + 2)
            for trade in self._trades(sent, place + on, received, place - on):
                swap(self.line.comm, [trade], "reduce", span=self.span, at_once=False)

    def ring_all_gather(self, on: int) -> None:
        """Gathers round the line; each rank sends to the neighbour `on` further. May wait.

        Args:
            on: 1 or -1.
        """
        place = self.line.place
        for step in range(self.line.extent - 1):
            sent, received = place - on * step, place - on * (step + 1)
            for trade in self._trades(sent, place + on, received, place - on):
                swap(self.line.comm, [trade], span=self.span, at_once=False)

    def direct_reduce_scatter(self) -> None:
        """Reduces: each rank sends every piece straight to the piece's owner. May wait."""
        place = self.line.place
        trades = [
            trade
            for shift in turns_of(self.line.comm, self.line.extent - 1)
            for trade in self._trades(place + shift, place + shift, place, place - shift)
        ]
        swap(self.line.comm, trades, "reduce", span=self.span, at_once=self._fits_slots)

    def direct_all_gather(self) -> None:
        """Gathers: each rank sends its piece straight to all others. May wait."""
        place = self.line.place
        trades = [
            trade
            for shift in turns_of(self.line.comm, self.line.extent - 1)
            for trade in self._trades(place, place + shift, place - shift, place - shift)
        ]
        swap(self.line.comm, trades, span=self.span, at_once=self._fits_slots)

    @property
    def _fits_slots(self) -> bool:
        """Whether a rank sends a single message to each other rank."""
        return self.line.comm.messages <= self.share and len(self.pieces(self.line.place)) == 1

    def _trades(self, sent: Any, to: Any, received: Any, source: Any) -> Iterator[Trade]:
        line = self.line
        leaving, arriving = self.pieces(sent % line.extent), self.pieces(received % line.extent)
        for send, receive in zip(leaving, arriving, strict=True):
            yield send, line.rank(to), receive, line.rank(source)


def everybody(comm: Comm, share: int = 1) -> Stage:
    """Returns a stage of all ranks, each in charge of the chunk (or block) of its own number.

    Args:
        comm: The collective.
        share: How many chunks a block is cut into.
    """
    return Stage(Line(comm, comm.world_size, 1), lambda place: [place], share=share)


def stages_of_one_block(comm: Comm, order: Sequence[Line]) -> list[Stage]:
    """Returns a stage for each line, in which each rank's part of the block becomes smaller.

    The block has as many chunks as there are ranks. Along the first line it is dealt out in spans
    of chunks, along the second each of these in smaller ones, until every rank is in charge of one
    chunk.
    """
    stages = []
    first: Any = 0
    span = comm.world_size
    for line in order:
        span //= line.extent
        pieces = partial(_span_at, first, span)
        stages.append(Stage(line, pieces, span, comm.world_size // span))
        first = first + line.place * span
    return stages


def stages_of_rank_blocks(order: Sequence[Line]) -> list[Stage]:
    """Returns a stage for each line, after all of which each rank is in charge of its own block.

    Before a line's turn, a rank is also in charge of the blocks of all ranks that it reaches along
    that line and later ones. They do not lie side by side, so each travels by itself.
    """
    stages = []
    for done, line in enumerate(order, 1):
        later = order[done:]
        away = [
            sum((at - other.place) * other.stride for at, other in zip(places, later, strict=True))
            for places in product(*(range(other.extent) for other in later))
        ]
        stages.append(Stage(line, partial(_blocks_at, line, away)))
    return stages


def _span_at(first: Any, span: int, place: Any) -> list[Any]:
    return [first + place * span]


def _blocks_at(line: Line, away: Sequence[Any], place: Any) -> list[Any]:
    return [line.rank(place) + distance for distance in away]
