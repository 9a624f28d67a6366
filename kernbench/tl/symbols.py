"""Index tiles as formulas: affine blocks of integers, and the boxes that bounds cut out of them.

Sums of `arange`, `program_id` and strides stay formulas, so that a block of pointers is one strided
window on its tensor, and a mask of bounds is a part of the window. Other index tiles have values
instead of a formula.
"""

from collections.abc import Callable, Sequence
from functools import partial
from operator import add
from typing import Any, Final, NamedTuple

import numpy as np

from kernbench.caches import cached
from kernbench.memory import DType, dtypes

Shape = tuple[int, ...]

_ENDS: Final = {dtypes.int32: 1 << 31, dtypes.int64: 1 << 40}
"""Numbers of a formula lie in `-end..end-1`: all that int32 has; int64 wraps around far beyond."""


@cached("tl.shapes")
def _broadcast_shapes(a: Shape, b: Shape) -> Shape:
    return np.broadcast_shapes(a, b)


def broadcast(a: Shape, b: Shape) -> Shape:
    """Returns the common shape of two tiles.

    Raises:
        ValueError: If the shapes do not broadcast.
    """
    if a == b or not b:
        return a
    return b if not a else _broadcast_shapes(a, b)


class Affine(NamedTuple):
    """Integers `base + sum(index[axis] * strides[axis])`; axes of extent 1 have a stride of 0.

    The type is int32 or int64.
    """

    base: int
    shape: Shape
    strides: Shape
    dtype: DType = dtypes.int32

    @property
    def uniform(self) -> bool:
        """Whether all elements are the same."""
        return not self.strides or not any(self.strides)

    def values(self) -> np.ndarray[Any, Any]:
        """Returns the elements."""
        values = np.full((1,) * len(self.shape), self.base, np.int64)
        for axis, (extent, stride) in enumerate(zip(self.shape, self.strides, strict=True)):
            steps = np.arange(extent) * stride
            values = values + steps.reshape([-1 if a == axis else 1 for a in range(values.ndim)])
        return values.astype(self.dtype.numpy, copy=False)

    def expand(self, key: Sequence[Any]) -> "Affine":
        """Returns the block with an axis of extent 1 for each None of a key."""
        shape, strides = _insert(self.shape, key, 1), _insert(self.strides, key, 0)
        return _affine((self.base, shape, strides, self.dtype))

    def broadcast(self, shape: Shape) -> "Affine":
        """Returns the block broadcast to a larger shape."""
        if shape == self.shape:
            return self
        strides = (0,) * (len(shape) - len(self.strides)) + self.strides
        return _affine((self.base, shape, strides, self.dtype))

    def to(self, dtype: DType) -> "Affine | None":
        """Returns the block with another type; None if that has no formula."""
        if dtype is self.dtype:
            return self
        return _checked(self._replace(dtype=dtype)) if dtype in _ENDS else None

    def bounds(self) -> tuple[int, int]:
        """Returns the smallest and the largest element of a block that is not empty."""
        low = high = self.base
        for axis, stride in enumerate(self.strides):
            if stride < 0:
                low += (self.shape[axis] - 1) * stride
            elif stride:
                high += (self.shape[axis] - 1) * stride
        return low, high


_affine: Final[Callable[[tuple[int, Shape, Shape, DType]], Affine]] = partial(tuple.__new__, Affine)
"""Makes a block of its fields without a call of Python, since index arithmetic makes many."""


class Box(NamedTuple):
    """Truth values that are true inside of a rectangle, a half-open range on each axis."""

    shape: Shape
    ranges: tuple[tuple[int, int], ...]

    @property
    def dtype(self) -> DType:
        """Element type."""
        return dtypes.bool_

    def values(self) -> np.ndarray[Any, Any]:
        """Returns the elements."""
        values = np.zeros(self.shape, np.bool_)
        values[self.slices()] = True
        return values

    def slices(self) -> tuple[slice, ...]:
        """Returns the index of the true elements."""
        return tuple([slice(low, high) for low, high in self.ranges])

    def expand(self, key: Sequence[Any]) -> "Box":
        """Returns the box with an axis of extent 1 for each None of a key."""
        return Box(_insert(self.shape, key, 1), _insert(self.ranges, key, (0, 1)))

    def broadcast(self, shape: Shape) -> "Box":
        """Returns the box broadcast to a larger shape."""
        if shape == self.shape:
            return self
        missing = len(shape) - len(self.shape)
        ranges = [(0, extent) for extent in shape[:missing]]
        for extent, old, (low, high) in zip(shape[missing:], self.shape, self.ranges, strict=True):
            ranges.append((low, high) if extent == old else (0, extent * (high - low)))
        return Box(shape, tuple(ranges))


Symbol = Affine | Box


def _insert(values: Any, key: Sequence[Any], filler: Any) -> Any:
    rest = iter(values)
    found = [filler if entry is None else next(rest) for entry in key]
    return (*found, *rest)


def arange(start: int, end: int) -> Affine:
    """Returns the integers `start..end-1`."""
    extent = max(end - start, 0)
    return Affine(start, (extent,), (1 if extent > 1 else 0,))


def constant(value: int, dtype: DType = dtypes.int32) -> Affine | None:
    """Returns a block of a single integer; None if it is too large for a formula of its type."""
    end = _ENDS[dtype]
    return _affine((value, (), (), dtype)) if -end <= value < end else None


def _quotient(a: int, b: int) -> int:
    """Divides and rounds towards zero, as C and Triton do."""
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def combine(name: str, a: Affine, b: Affine) -> Symbol | None:
    """Returns the formula of a function of two affine blocks; None if there is no formula.

    There is none if a number of the result lies outside of the result's type, and so wraps around.

    Args:
        name: `floor_divide` or `remainder`, which work as in C, or the name of a numpy ufunc.
        a: First operand.
        b: Second operand; the result has the wider type of the two.

    Raises:
        ValueError: If the shapes do not broadcast.
    """
    if a.dtype is not b.dtype:
        a, b = a._replace(dtype=dtypes.int64), b._replace(dtype=dtypes.int64)
    if name == "add":
        return _checked(_sum(a, b, a.dtype))
    if name == "subtract":
        return _checked(_sum(a, _scaled(b, -1), a.dtype))
    if name == "multiply":
        if b.uniform:
            return _checked(_scaled(a.broadcast(broadcast(a.shape, b.shape)), b.base))
        if a.uniform:
            return _checked(_scaled(b.broadcast(broadcast(a.shape, b.shape)), a.base))
        return None
    if not a.shape and not b.shape:
        if name == "floor_divide" and b.base:
            return constant(_quotient(a.base, b.base), a.dtype)
        if name == "remainder" and b.base:
            return constant(a.base - b.base * _quotient(a.base, b.base), a.dtype)
        return None
    if name in _SWAPPED:
        if b.uniform:
            return _compared(name, a.broadcast(broadcast(a.shape, b.shape)), b.base)
        if a.uniform:
            return _compared(_SWAPPED[name], b.broadcast(broadcast(a.shape, b.shape)), a.base)
    return None


_SWAPPED: Final = {
    "less": "greater",
    "less_equal": "greater_equal",
    "greater": "less",
    "greater_equal": "less_equal",
}


def _checked(block: Affine) -> Affine | None:
    """Returns the block if its type holds all of its numbers; else None."""
    low = high = block.base
    if block.shape:
        low, high = block.bounds()
    end = _ENDS[block.dtype]
    return block if -end <= low and high < end else None


def moved(offsets: Affine, by: Affine) -> Affine | None:
    """Returns the sum of two blocks as offsets of pointers, which are int64.

    Raises:
        ValueError: If the shapes do not broadcast.
    """
    return _checked(_sum(offsets, by, dtypes.int64))


def _scaled(block: Affine, by: int) -> Affine:
    strides = tuple([stride * by for stride in block.strides])
    return _affine((block.base * by, block.shape, strides, block.dtype))


def _sum(a: Affine, b: Affine, dtype: DType) -> Affine:
    base = a.base + b.base
    if not b.shape:
        return _affine((base, a.shape, a.strides, dtype))
    if not a.shape:
        return _affine((base, b.shape, b.strides, dtype))
    left, right = a.strides, b.strides
    missing = len(right) - len(left)
    if missing:
        left, right = (0,) * missing + left, (0,) * -missing + right
    strides = tuple(map(add, left, right))
    return _affine((base, broadcast(a.shape, b.shape), strides, dtype))


def _compared(name: str, block: Affine, bound: int) -> Box | None:
    """Compares a block with a number; None if the elements differ along several axes.

    Along a single axis the elements are sorted, so the true ones are a range.
    """
    moving = [axis for axis, stride in enumerate(block.strides) if stride]
    if len(moving) > 1:
        return None
    if name in {"less_equal", "greater"}:
        bound += 1
    below = name in {"less", "less_equal"}
    ranges = [(0, extent) for extent in block.shape]
    if not moving:
        if (block.base < bound) != below:
            ranges[0] = (0, 0)
        return Box(block.shape, tuple(ranges))
    (axis,) = moving
    extent, stride = block.shape[axis], block.strides[axis]
    if stride > 0:
        cut = -((block.base - bound) // stride)
    else:
        cut, below = (block.base - bound) // -stride + 1, not below
    cut = min(max(cut, 0), extent)
    ranges[axis] = (0, cut) if below else (cut, extent)
    return Box(block.shape, tuple(ranges))


def intersection(a: Box, b: Box) -> Box:
    """Returns the box where both boxes are true.

    Raises:
        ValueError: If the shapes do not broadcast.
    """
    shape = broadcast(a.shape, b.shape)
    ranges = []
    for (low, high), (other_low, other_high) in zip(
        a.broadcast(shape).ranges, b.broadcast(shape).ranges, strict=True
    ):
        first = max(low, other_low)
        ranges.append((first, max(first, min(high, other_high))))
    return Box(shape, tuple(ranges))
