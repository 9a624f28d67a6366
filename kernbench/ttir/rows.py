"""Tiles of addresses as rows whose elements lie at even distances, and masks of them."""

from math import prod
from typing import Final, NamedTuple

import numpy as np

from kernbench.ttir.arithmetic import Array
from kernbench.ttir.sums import Sum, Value, parts_of


class Rows(NamedTuple):
    """A tile whose last axis is regular.

    Attributes:
        starts: Addresses of the first elements; the last axis has the extent 1.
        length: Extent of the last axis.
        step: Bytes from one element to the next.
    """

    starts: Array
    length: int
    step: int


def shortened(mask: Array | None) -> Array | None:
    """Returns a mask, or None if it has all lanes."""
    return None if mask is None or mask.all() else mask


def once(numbers: Array) -> Array:
    """Returns the different ones of some numbers, in order.

    As `numpy.unique`, whose first call imports numpy's masked arrays: a tenth of a first launch.
    """
    ordered = np.sort(numbers, axis=None)
    kept = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=kept[1:])
    found: Array = ordered[kept]
    return found


def leading(mask: Array, length: int) -> int:
    """Returns how many lanes at the front of every row a mask has; 0 if it has any others."""
    if mask.shape[-1] != length or mask.size != length:
        return 0
    count = int(np.count_nonzero(mask))
    return count if mask.reshape(-1)[:count].all() else 0


def joint_shape(*arrays: Array) -> tuple[int, ...]:
    """Returns the shape that arrays have together."""
    return np.broadcast_shapes(*(array.shape for array in arrays))


def spread(array: Array, shape: tuple[int, ...]) -> Array:
    """Returns an array whose axes have the tile's extents; that of the programs stays."""
    return np.broadcast_to(array, (array.shape[0], *shape))


def rows_of(address: Value, shape: tuple[int, ...]) -> Rows | None:
    """Returns addresses as rows; None if elements along the last axis are not evenly spaced."""
    if not shape or shape[-1] < 2:
        return None
    length = shape[-1]
    others: list[Array] = []
    along: Array | None = None
    for part in parts_of(address):
        if part.shape[-1] == 1:
            others.append(part)
        elif along is not None:
            return rows_of(address.array, shape) if isinstance(address, Sum) else None
        else:
            along = part
    if along is None:
        return None
    step = int(along.flat[1] - along.flat[0])
    if step == 0 or (along[..., 1:] - along[..., :-1] != step).any():
        return None
    starts = along[..., :1]
    for part in others:
        starts = starts + part
    return Rows(np.broadcast_to(starts, (starts.shape[0], *shape[:-1], 1)), length, step)


_LARGE: Final = 512
"""Least elements of a tile that programs share; the search costs more than smaller ones save."""

_SHARING: Final = 4
"""Least programs that share tiles."""


def distinct(
    rows: Rows, shape: tuple[int, ...], *others: Array | None
) -> tuple[Rows, Array] | None:
    """Returns rows of which no two programs have the same, and which of them each program has.

    Args:
        shape: Shape of a tile.
        others: Masks and the like, in which programs may differ, too.

    Returns:
        None if most programs have rows of their own.
    """
    count = len(rows.starts)
    if count < _SHARING or prod(shape) < _LARGE:
        return None
    if any(each is not None and len(each) > 1 for each in others):
        return None
    starts = rows.starts.reshape(count, -1)
    _, first, places = np.unique(starts[:, 0], return_index=True, return_inverse=True)
    if 2 * len(first) > count or (starts != starts[first][places]).any():
        return None
    return rows._replace(starts=rows.starts[first]), places
