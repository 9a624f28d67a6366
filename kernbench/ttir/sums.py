"""Tiles of whole numbers and addresses as sums of small parts, and tiles that programs share.

The values of all programs of a launch are one array `[programs or 1, *tile]`, in which an axis has
the extent 1 as long as all elements along it agree. A sum of a column and a row, such as the
addresses of a tile of a matrix, is kept as its parts: `BM + BN` numbers, not `BM x BN`.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np

from kernbench.ttir.arithmetic import Array

_LIMITS: Final = {np.dtype(kind): np.iinfo(kind) for kind in (np.int32, np.int64)}


class Sum:
    """A sum of arrays, no two of which vary along the same axes alone.

    Args:
        parts: At least two arrays of int32, or of int64, of one rank.

    Attributes:
        parts: See above.
    """

    __slots__ = ("__dict__", "parts")

    def __init__(self, parts: Sequence[Array]) -> None:
        self.parts: Final = tuple(parts)

    @cached_property
    def array(self) -> Array:
        """The sum, element by element."""
        total = self.parts[0]
        for part in self.parts[1:]:
            total = total + part
        return total

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """What no element is below, and what none is above."""
        low = sum(int(part.min()) for part in self.parts)
        return low, sum(int(part.max()) for part in self.parts)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        found: np.dtype[Any] = self.parts[0].dtype
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the sum."""
        return np.broadcast_shapes(*(part.shape for part in self.parts))

    def each(self, function: Callable[[Array], Array]) -> "Value":
        """Returns the sum of what a function, linear or a change of shape, makes of the parts."""
        return summed(function(part) for part in self.parts)


class Shared:
    """Tiles of which several programs have the same, such as those of the factors of a product.

    Args:
        tiles: The tiles, `[tiles, *tile]`.
        places: Which of them each program has, `[programs]`.

    Attributes:
        tiles: See above, as for `places`.
    """

    __slots__ = ("__dict__", "places", "tiles")

    def __init__(self, tiles: Array, places: Array) -> None:
        self.tiles: Final = tiles
        self.places: Final = places

    @cached_property
    def array(self) -> Array:
        """The tile of every program."""
        return self.tiles[self.places]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        found: np.dtype[Any] = self.tiles.dtype
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tiles of all programs."""
        return len(self.places), *self.tiles.shape[1:]

    def each(self, function: Callable[[Array], Array]) -> "Shared":
        """Returns what a function, which leaves the first axis as it is, makes of the tiles."""
        return Shared(function(self.tiles), self.places)


Value = Array | Sum | Shared
"""A tile of every program: all values, parts whose sum they are, or those that programs share."""


def plain(value: Value) -> Array:
    """Returns all values."""
    return value if isinstance(value, np.ndarray) else value.array


def parts_of(value: Value) -> Sequence[Array]:
    """Returns the parts; the value itself if it has none."""
    return value.parts if isinstance(value, Sum) else (plain(value),)


def summed(parts: Iterable[Array]) -> Value:
    """Returns a sum, with those parts added that together are no larger than one of them."""
    kept: list[Array] = []
    for part in parts:
        for place, other in enumerate(kept):
            shape = np.broadcast_shapes(part.shape, other.shape)
            if shape in (part.shape, other.shape):
                kept[place] = other + part
                break
        else:
            kept.append(part)
    return kept[0] if len(kept) == 1 else Sum(kept)


def added(a: Value, b: Value) -> Value:
    """Returns a sum; as an array where an element may be past the end of its type, and wraps."""
    found = summed((*parts_of(a), *parts_of(b)))
    return _wrapping(found, a, b, np.add) if isinstance(found, Sum) else found


def subtracted(a: Value, b: Value) -> Value:
    """Returns a difference, as `added`."""
    found = summed((*parts_of(a), *(-part for part in parts_of(b))))
    return _wrapping(found, a, b, np.subtract) if isinstance(found, Sum) else found


def multiplied(a: Value, b: Value) -> Value:
    """Returns a product; of a sum and one number for each program, as a sum."""
    if isinstance(b, Sum):
        a, b = b, a
    if isinstance(a, Sum) and isinstance(b, np.ndarray) and all(axis == 1 for axis in b.shape[1:]):
        most = max(abs(int(b.min())), abs(int(b.max())), 1)
        limits = _LIMITS[a.dtype]
        if all(max(-int(p.min()), int(p.max())) * most <= limits.max for p in a.parts):
            found = a.each(lambda part: part * b)
            if not isinstance(found, Sum):
                return found
            low, high = found.bounds
            if limits.min <= low and high <= limits.max:
                return found
    return plain(a) * plain(b)


def _wrapping(found: Sum, a: Value, b: Value, function: Callable[..., Array]) -> Value:
    limits = _LIMITS.get(found.dtype)
    if limits is None:
        return function(plain(a), plain(b))
    low, high = found.bounds
    if limits.min <= low and high <= limits.max:
        return found
    return function(plain(a), plain(b))
