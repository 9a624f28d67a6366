"""Which tokens the rows of a tensor are that ranks share, and what they see of each other."""

from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from kernbench import extend
from kernbench.caches import cached


class Sequences(NamedTuple):
    """Sequences that the ranks share in a zigzag, of queries or of keys.

    Attributes:
        used: Tokens of each sequence.
        room: Rows of memory of each sequence, of all ranks together; its tokens come first.
        packed: Whether they lie one behind the other, and not each in a batch element of its own.
        tail: Rows of each rank behind its last sequence; they are no tokens.
    """

    used: tuple[int, ...]
    room: tuple[int, ...]
    packed: bool
    tail: int = 0

    def rows(self, parts: int, part: int) -> tuple[extend.Rows, ...]:
        """Returns the tokens of one of `parts` ranks: of all batch elements, or of each."""
        if self.packed:
            return (extend.share(_sums(self.used), _sums(self.room), parts, part),)
        each = [
            extend.share((0, used), (0, room), parts, part)
            for used, room in zip(self.used, self.room, strict=True)
        ]
        return tuple(each if len(set(self.used)) > 1 else each[:1])

    def local(self, parts: int) -> int:
        """Returns how many rows a rank has in a batch element."""
        rooms = self.room if self.packed else self.room[:1]
        return sum(rooms) // parts + self.tail

    def masked(self, parts: int, part: int) -> int:
        """Returns how many rows of a rank, in all batch elements, are no tokens."""
        rows = self.rows(parts, part)
        tokens = sum(each.length for every in rows for each in every)
        batch = 1 if self.packed else len(self.room)
        return batch * self.local(parts) - tokens * (batch // len(rows))

    def within(self, parts: int) -> "Sequences":
        """Returns the sequences that neighbouring ranks have together, as one of `parts`.

        What neighbours hold is one part of a zigzag among fewer parts; so among them it is a zigzag
        of shorter sequences, which they can put in order.
        """
        room = tuple(each // parts for each in self.room)
        return self._replace(used=room, room=room)

    def chunk_of(self, segment: extend.Segment, parts: int) -> int:
        """Returns 0 for tokens of a rank's first chunk, 1 for those of its second one."""
        room = self.room[segment.sequence if self.packed else 0]
        return 0 if parts == 1 else int(segment.position >= room // 2)


def _sums(lengths: tuple[int, ...]) -> tuple[int, ...]:
    return (0, *accumulate(lengths))


class Sight(NamedTuple):
    """What some rows see of others, in the fewest neighbouring rows that hold all of it.

    Attributes:
        patterns: Bands of all batch elements, or of each; their rows count from the first ones.
        query: First row of queries.
        queries: How many.
        key: First row of keys.
        keys: How many.
    """

    patterns: tuple[extend.Bands, ...]
    query: int
    queries: int
    key: int
    keys: int


@cached("cp.sights")
def seen(
    queries: Sequences, keys: Sequences, mask: extend.Mask, parts: int, rank: int, owner: int
) -> tuple[extend.Bands, ...]:
    """Returns what a rank's queries see of the keys of another one.

    Args:
        queries: Sequences of the queries.
        keys: Sequences of the keys.
        mask: What a query sees of its own sequence.
        parts: How many ranks share both.
        rank: Whose queries.
        owner: Whose keys.
    """
    return _patterns(queries.rows(parts, rank), keys.rows(parts, owner), mask)


@cached("cp.sights")
def seen_by_chunk(
    queries: Sequences, keys: Sequences, mask: extend.Mask, parts: int, rank: int, chunk: int
) -> tuple[extend.Bands, ...]:
    """Returns what the queries of one of a rank's chunks see of all keys, in their own order.

    Args:
        queries: Sequences of the queries.
        keys: Sequences of the keys.
        mask: What a query sees of its own sequence.
        parts: How many ranks share both.
        rank: Whose queries.
        chunk: 0 for the first chunk of each sequence that the rank has, 1 for the second.
    """
    rows = tuple(
        tuple(each for each in every if queries.chunk_of(each, parts) == chunk)
        for every in queries.rows(parts, rank)
    )
    return _patterns(rows, keys.rows(1, 0), mask)


def _patterns(
    queries: tuple[extend.Rows, ...], keys: tuple[extend.Rows, ...], mask: extend.Mask
) -> tuple[extend.Bands, ...]:
    batch = max(len(queries), len(keys))
    if len(queries) < batch:
        queries *= batch
    if len(keys) < batch:
        keys *= batch
    return tuple(extend.bands(q, k, mask) for q, k in zip(queries, keys, strict=True))


@cached("cp.sights")
def sight(patterns: tuple[extend.Bands, ...]) -> Sight | None:
    """Returns patterns in the fewest rows; None if nothing is seen."""
    every = [band for pattern in patterns for band in pattern]
    if not every:
        return None
    query, key = min(band.query for band in every), min(band.key for band in every)
    moved = tuple(
        tuple(band._replace(query=band.query - query, key=band.key - key) for band in pattern)
        for pattern in patterns
    )
    return Sight(
        moved,
        query,
        max(band.query + band.queries for band in every) - query,
        key,
        max(band.key + band.keys for band in every) - key,
    )


@cached("cp.orders")
def places(sequences: Sequences, parts: int) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Returns for each row of whole sequences where it is in the rows of rank 0, 1, ...

    Args:
        sequences: What the ranks share; rows without a token are put in order, too, and the ranks'
            tails come last.
        parts: How many ranks.
    """
    rows = sequences.local(parts)
    full = sequences._replace(used=sequences.room)
    starts = _sums(sequences.room)
    found = np.empty(rows * parts, np.intp)
    for part in range(parts):
        here = part * rows
        for each in full.rows(parts, part)[0]:
            start = each.position + (starts[each.sequence] if sequences.packed else 0)
            found[start : start + each.length] = np.arange(each.length) + here + each.row
        stop = rows * parts - (parts - part - 1) * sequences.tail
        found[stop - sequences.tail : stop] = np.arange(here + rows - sequences.tail, here + rows)
    return found
