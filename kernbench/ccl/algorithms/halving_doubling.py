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

from kernbench.ccl.plan import NOTHING, Combine, Comm


def all_reduce(comm: Comm) -> None:
    """Reduces the buffers of all ranks; every rank ends with bitwise the same result.

    `2 log P` steps, in which a rank sends `2 (P - 1) / P` of the buffer. If `N` is no power of two,
    three more: pairs exchange halves and add, the odd rank returns its half, and gets the result.
    In these an even rank sends `3 / 2` of the buffer, an odd one all of it. May wait.
    """
    team = _Team(comm)
    chunks = range(team.power)
    comm.cut(len(chunks))
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
    team.fold(range(comm.world_size))
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
    team.to_odd(range(team.odd_block.start))
    team.to_odd(range(team.odd_block.stop, comm.world_size))


@dataclass(frozen=True)
class _Team:
    """Which ranks act for others, as one rank sees it.

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
    def actor(self) -> int | None:
        """This rank's number among the actors; None if another rank acts for it."""
        rank: int = self.comm.rank
        if rank >= 2 * self.pairs:
            return rank - self.pairs
        return None if rank % 2 else rank // 2

    def first(self, actor: int) -> int:
        """Returns the rank of an actor, which is the first of the ranks for which it acts."""
        return 2 * actor if actor < self.pairs else actor + self.pairs

    def blocks(self, actors: range) -> range:
        """Returns the ranks for which some actors act."""
        return range(self.first(actors.start), self.first(actors.stop))

    def halves(self, *, nearest_first: bool) -> Iterator[tuple[int, range, range]]:
        """Yields each partner, what this actor keeps of its part, and what the partner does.

        The part begins as one for every actor; an actor ends in charge of a single one: in order
        of actors if the farthest partners come first.
        """
        if self.actor is None:
            return
        part = range(self.power)
        distances = [1 << bit for bit in range(self.power.bit_length() - 1)]
        for distance in distances if nearest_first else reversed(distances):
            low, high = part[: len(part) // 2], part[len(part) // 2 :]
            kept, given = (high, low) if self.actor & distance else (low, high)
            yield self.first(self.actor ^ distance), kept, given
            part = kept

    def trade(self, partner: int, send: range, receive: range, combine: Combine) -> None:
        """Exchanges chunks with a partner. May wait."""
        both = min(len(send), len(receive))
        self._exchange(partner, send[:both], receive[:both], combine)
        self._exchange(partner, send[both:], receive[both:], combine)

    def fold(self, chunks: range) -> None:
        """Adds the chunks of both ranks of a pair at the even rank. May wait."""
        low, high = chunks[: len(chunks) // 2], chunks[len(chunks) // 2 :]
        if self._is_even:
            self.trade(self._other, high, low, "reduce")
        elif self._is_odd:
            self.trade(self._other, low, high, "reduce")
        self.to_even(high)

    def to_even(self, chunks: range) -> None:
        """Sends chunks from the odd rank of a pair to the even rank. May wait."""
        if self._is_even:
            self._exchange(self._other, range(0), chunks, "copy")
        elif self._is_odd:
            self._exchange(self._other, chunks, range(0), "copy")

    def to_odd(self, chunks: range) -> None:
        """Sends chunks from the even rank of a pair to the odd rank. May wait."""
        if self._is_even:
            self._exchange(self._other, chunks, range(0), "copy")
        elif self._is_odd:
            self._exchange(self._other, range(0), chunks, "copy")

    @property
    def odd_block(self) -> range:
        """Block of the odd rank of this rank's pair."""
        return range(self.comm.rank | 1, (self.comm.rank | 1) + 1)

    @property
    def _is_even(self) -> bool:
        return bool(self.comm.rank < 2 * self.pairs and self.comm.rank % 2 == 0)

    @property
    def _is_odd(self) -> bool:
        return bool(self.comm.rank < 2 * self.pairs and self.comm.rank % 2)

    @property
    def _other(self) -> int:
        return int(self.comm.rank ^ 1)

    def _exchange(self, peer: int, send: range, receive: range, combine: Combine) -> None:
        """Sends, receives, or does both for ranges of equal length; nothing for empty ranges."""
        if send or receive:
            self.comm.exchange(
                send=send.start if send else NOTHING,
                to=peer,
                receive=receive.start if receive else NOTHING,
                source=peer,
                combine=combine,
                span=max(len(send), len(receive)),
            )
