"""Between partners at distances that are powers of two, with parts that halve or double.

As few bytes as a ring in `log N` steps each way, for networks on which distance costs little
(Rabenseifner, "Optimization of collective reduction operations", 2004; Thakur, Rabenseifner and
Gropp, "Optimization of collective communication operations in MPICH", 2005).

Only a power of two can take part. Of `N` ranks, the `N - P` beyond the largest power `P` pair up
with a neighbour: ranks `2 i` and `2 i + 1` for `i < N - P`. The even one works for both, the odd
one waits for the result. Those that work are numbered as actors.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kernbench.ccl.algorithms.steps import only
from kernbench.ccl.plan import NOTHING, Combine, Comm


class _Part(NamedTuple):
    """Chunks, blocks or actors in a row; arrays over ranks while all are recorded at once.

    Attributes:
        start: The first.
        count: How many.
    """

    start: Any
    count: Any

    def split(self, first: Any) -> "tuple[_Part, _Part]":
        """Returns the first ones, and the others."""
        return _Part(self.start, first), _Part(self.start + first, self.count - first)


def all_reduce(comm: Comm) -> None:
    """Reduces the buffers of all ranks; every rank ends with bitwise the same result.

    `2 log P` steps, in which a rank sends `2 (P - 1) / P` of the buffer. If `N` is no power of two,
    three more: pairs exchange halves and add, the odd rank returns its half, and gets the result.
    In these an even rank sends `3 / 2` of the buffer, an odd one all of it. May wait.
    """
    team = _Team(comm)
    chunks = _Part(0, team.power)
    comm.cut(chunks.count)
    team.fold(chunks)
    # The largest parts go to the nearest ranks, since any rank may get any chunk.
    halves = list(team.halves(nearest_first=True))
    for partner, kept, given in halves:
        team.trade(partner, given, kept, "reduce")
    for partner, kept, given in reversed(halves):
        team.trade(partner, kept, given, "copy")
    team.to_odd(chunks)


def reduce_scatter(comm: Comm) -> None:
    """Reduces every block; each rank ends with its own.

    `log P` steps, in which a rank sends `N - 1` blocks. If `N` is no power of two, an even rank of
    a pair keeps both blocks, having folded all of them as in an all-reduce, and sends the odd one
    its block in the end. May wait.
    """
    team = _Team(comm)
    team.fold(_Part(0, comm.world_size))
    for partner, kept, given in team.halves(nearest_first=False):
        team.trade(partner, team.blocks(given), team.blocks(kept), "reduce")
    team.to_odd(team.odd_block)


def all_gather(comm: Comm) -> None:
    """Gives the block of each rank to all.

    `log P` steps, in which a rank sends `N - 1` blocks. If `N` is no power of two, an even rank of
    a pair gets the odd one's block first, and sends it the `N - 1` others in the end. May wait.
    """
    team = _Team(comm)
    team.to_even(team.odd_block)
    for partner, kept, given in reversed(list(team.halves(nearest_first=False))):
        team.trade(partner, team.blocks(kept), team.blocks(given), "copy")
    before, others = _Part(0, comm.world_size).split(team.odd_block.start)
    team.to_odd(before)
    team.to_odd(others.split(1)[1])


@dataclass(frozen=True)
class _Team:
    """Which ranks act for others, as one rank sees it, or as arrays over all ranks.

    Attributes:
        comm: The collective.
    """

    comm: Comm

    @property
    def power(self) -> int:
        """Number of actors, the largest power of two."""
        return 1 << (self.comm.world_size.bit_length() - 1)

    @property
    def pairs(self) -> int:
        """Number of actors that work for two ranks; they are the first."""
        return self.comm.world_size - self.power

    @property
    def actor(self) -> Any:
        """This rank's number among the actors, or that of the actor that works for it."""
        if not self.pairs:
            return self.comm.rank
        return self.comm.rank - np.minimum(self.pairs, (self.comm.rank + 1) // 2)

    def first(self, actor: Any) -> Any:
        """Returns the rank of an actor, which is the first of the ranks for which it acts."""
        return actor + np.minimum(actor, self.pairs) if self.pairs else actor

    def blocks(self, actors: _Part) -> _Part:
        """Returns the ranks for which some actors act."""
        first = self.first(actors.start)
        return _Part(first, self.first(actors.start + actors.count) - first)

    def halves(self, *, nearest_first: bool) -> Iterator[tuple[Any, _Part, _Part]]:
        """Yields each partner, what this actor keeps of its part, and what the partner does.

        The part begins as one for every actor; an actor ends in charge of a single one: in order
        of actors if the farthest partners come first.
        """
        start, half = 0, self.power // 2
        distances = [1 << bit for bit in range(self.power.bit_length() - 1)]
        for distance in distances if nearest_first else reversed(distances):
            upper = self.actor // distance % 2  # whether it goes on with the upper half
            kept, given = start + half * upper, start + half * (1 - upper)
            yield self.first(self.actor ^ distance), _Part(kept, half), _Part(given, half)
            start, half = kept, half // 2

    def trade(self, partner: Any, send: _Part, receive: _Part, combine: Combine) -> None:
        """Lets actors exchange chunks with their partners. May wait."""
        acts = np.logical_not(self._is_odd) if self.pairs else True
        self._trade(acts, partner, send, receive, combine)

    def fold(self, chunks: _Part) -> None:
        """Adds the chunks of both ranks of a pair at the even rank. May wait."""
        if not self.pairs:
            return
        low, high = chunks.split(chunks.count // 2)
        # An even rank sends the higher half, and gets the lower one.
        upper = low.count * self._is_even
        send = _Part(upper, np.where(self._is_even, high.count, low.count))
        receive = _Part(low.count - upper, np.where(self._is_even, low.count, high.count))
        self._trade(self._is_even | self._is_odd, self._other, send, receive, "reduce")
        self.to_even(high)

    def to_even(self, chunks: _Part) -> None:
        """Sends chunks from the odd rank of a pair to the even rank. May wait."""
        if self.pairs:
            self._exchange(self._other, self._is_odd, chunks, self._is_even, chunks, "copy")

    def to_odd(self, chunks: _Part) -> None:
        """Sends chunks from the even rank of a pair to the odd rank. May wait."""
        if self.pairs:
            self._exchange(self._other, self._is_even, chunks, self._is_odd, chunks, "copy")

    @property
    def odd_block(self) -> _Part:
        """Block of the odd rank of this rank's pair."""
        return _Part(self.comm.rank | 1, 1)

    @property
    def _is_even(self) -> Any:
        return (self.comm.rank < 2 * self.pairs) & (self.comm.rank % 2 == 0)

    @property
    def _is_odd(self) -> Any:
        return (self.comm.rank < 2 * self.pairs) & (self.comm.rank % 2 == 1)

    @property
    def _other(self) -> Any:
        return self.comm.rank ^ 1

    def _trade(self, those: Any, peer: Any, send: _Part, receive: _Part, combine: Combine) -> None:
        """Exchanges chunks, also of unequal numbers, on ranks that do it."""
        both = np.minimum(send.count, receive.count)
        for leaving, arriving in zip(send.split(both), receive.split(both), strict=True):
            self._exchange(peer, those, leaving, those, arriving, combine)

    def _exchange(
        self, peer: Any, sends: Any, send: _Part, receives: Any, receive: _Part, combine: Combine
    ) -> None:
        """Sends chunks on some ranks, receives on some; nothing where there are none."""
        leaving = only(sends & np.greater(send.count, 0), send.start)
        arriving = only(receives & np.greater(receive.count, 0), receive.start)
        counts = np.maximum(sends * send.count, receives * receive.count)
        busy = np.maximum(leaving, arriving) != NOTHING
        if not np.any(busy):
            return
        alike = np.ndim(counts) == 0 and bool(np.all(busy))
        exchange = {
            "send": leaving,
            "to": peer * busy,
            "receive": arriving,
            "source": peer * busy,
            "span": int(counts) if alike else np.where(busy, counts, 1),
        }
        if np.ndim(self.comm.rank) == 0:
            exchange = {name: int(value) for name, value in exchange.items()}
        self.comm.exchange(**exchange, combine=combine)
