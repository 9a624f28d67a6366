"""Which queries see which keys: bands around diagonals, of rows that are neighbours."""

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np

from kernbench.attention.rows import Rows, Segment
from kernbench.caches import cached


class Mask(NamedTuple):
    """Which keys of its own sequence a query sees, by their positions.

    Attributes:
        left: How many keys before its own position; None for all.
        right: How many behind it; None for all, 0 for a causal mask.
    """

    left: int | None = None
    right: int | None = None


EVERYTHING = Mask()
CAUSAL = Mask(right=0)


class Band(NamedTuple):
    """Neighbouring rows of queries and of keys. Query i sees keys `i + first` to `i + stop - 1`.

    Both count from the band's own first row. Each query sees a key, and each key is seen.

    Attributes:
        query: First row.
        queries: How many rows.
        key: First row.
        keys: How many rows.
        first: The diagonal on which the band begins.
        stop: The diagonal before which it ends.
    """

    query: int
    queries: int
    key: int
    keys: int
    first: int
    stop: int

    def seen(self) -> int:
        """Returns how many pairs of a query and a key see each other."""
        i = np.arange(self.queries)
        stops = np.minimum(i + self.stop, self.keys)
        return int(np.sum(stops - np.maximum(i + self.first, 0)))


Bands: TypeAlias = tuple[Band, ...]


@cached("attention.bands")
def bands(queries: Rows, keys: Rows, mask: Mask) -> Bands:
    """Returns what the tokens of some rows see of the tokens of others.

    Each pair of a query and a key that it sees is in one band.

    Args:
        queries: Rows of queries.
        keys: Rows of keys and values.
        mask: What a query sees of its own sequence; it sees nothing of others.
    """
    by_sequence: dict[int, list[Segment]] = {}
    for key in keys:
        by_sequence.setdefault(key.sequence, []).append(key)
    found = (
        _band(query, key, mask) for query in queries for key in by_sequence.get(query.sequence, ())
    )
    return tuple(each for each in found if each is not None)


def _band(query: Segment, key: Segment, mask: Mask) -> Band | None:
    n, m = query.length, key.length
    diagonal = query.position - key.position
    # Beyond these, a bound says nothing.
    first = 1 - n if mask.left is None else max(diagonal - mask.left, 1 - n)
    stop = m if mask.right is None else min(diagonal + mask.right + 1, m)
    # Rows at either end that see nothing are left out.
    top, bottom = max(0, 1 - stop), min(n, m - first)
    if top >= bottom:
        return None
    left, right = max(0, top + first), min(m, bottom - 1 + stop)
    if left >= right or first >= stop:
        return None
    moved = top - left
    return Band(
        query.row + top, bottom - top, key.row + left, right - left, first + moved, stop + moved
    )


class Tile(NamedTuple):
    """A part of a band that is computed at once.

    Attributes:
        queries: Its rows.
        keys: Its rows.
        first: As in `Band`, of the tile's own rows.
        stop: As in `Band`.
        whole: Whether all pairs see each other.
    """

    queries: slice
    keys: slice
    first: int
    stop: int
    whole: bool


def tiles(band: Band, rows: int, columns: int) -> Iterator[Tile]:
    """Yields the tiles of a band in which something is seen: queries by queries, keys in order.

    Args:
        rows: Queries of a tile.
        columns: Keys of a tile.
    """
    for top in range(0, band.queries, rows):
        n = min(rows, band.queries - top)
        begin = max(0, top + band.first) // columns * columns
        end = min(band.keys, top + n - 1 + band.stop)
        for left in range(begin, end, columns):
            m = min(columns, band.keys - left)
            # Beyond these, a bound says nothing; so tiles that are alike have the same ones.
            first, stop = max(band.first + top - left, 1 - n), min(band.stop + top - left, m)
            yield Tile(
                slice(band.query + top, band.query + top + n),
                slice(band.key + left, band.key + left + m),
                first,
                stop,
                whole=(first, stop) == (1 - n, m),
            )


@cached("attention.masks")
def hidden(
    queries: int, keys: int, first: int, stop: int
) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """Returns for each query and key of a tile whether the key is not seen, `[queries, keys]`.

    Args:
        queries: Rows of the tile.
        keys: Rows of the tile.
        first: As in `Tile`.
        stop: As in `Tile`.
    """
    diagonals = np.arange(keys)[None, :] - np.arange(queries)[:, None]
    return (diagonals < first) | (diagonals >= stop)
