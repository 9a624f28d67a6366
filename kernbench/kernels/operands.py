"""How operands of kernels lie in memory, and what kernels do to find their elements."""

from collections.abc import Iterable
from math import prod
from typing import NamedTuple, Protocol

from kernbench.hw.library import Library
from kernbench.memory import DType
from kernbench.memory.windows import has_no_gaps


class Operand(Protocol):
    """A tensor as a kernel sees it; `memory.View` is one, and so is `Layout`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent of each dimension."""
        ...

    @property
    def strides(self) -> tuple[int, ...]:
        """Step of each dimension, in elements."""
        ...

    @property
    def dtype(self) -> DType:
        """Element type."""
        ...


class Layout(NamedTuple):
    """An operand of a tensor that kernbench does not hold itself.

    Attributes:
        shape: Extent of each dimension.
        strides: Step of each dimension, in elements; 0 where elements repeat.
        dtype: Element type.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType


def numel(operand: Operand) -> int:
    """Returns the number of elements; those that repeat count, too."""
    return prod(operand.shape)


def bytes_of(operand: Operand) -> int:
    """Returns the bytes that a kernel moves to read or write an operand once.

    An element that an expanded tensor repeats counts once.
    """
    if 0 in operand.shape:
        return 0
    extents = zip(operand.shape, operand.strides, strict=True)
    return prod([size for size, stride in extents if stride]) * operand.dtype.itemsize


def total_bytes(operands: Iterable[Operand]) -> int:
    """Returns the bytes that a kernel moves to read or write some operands once each."""
    return sum([bytes_of(operand) for operand in operands])


def is_contiguous(operand: Operand) -> bool:
    """Returns whether the elements lie in row-major order without gaps."""
    return has_no_gaps(operand.shape, operand.strides)


def is_dense(operand: Operand) -> bool:
    """Returns whether the elements lie without gaps, in any order of the dimensions."""
    order = sorted(zip(operand.strides, operand.shape, strict=True), reverse=True)
    return has_no_gaps(tuple([size for _, size in order]), tuple([step for step, _ in order]))


def finding(library: Library, source: Operand, target: Operand) -> int:
    """Returns the operations that finding an operand's element takes, for each of the result.

    CUDA's elementwise kernels read an operand in vectors if its layout is that of the result. Else
    they compute the address of each element (the kernel `indexed` of the machine's file, or
    `broadcast` of an operand whose elements repeat, `broadcast_planes` if it has one for each plane
    of a channel). If neighbours in the result are not neighbours
    in the operand, most bytes of each memory access are not used (`scattered`).

    Args:
        source: The operand, on the device.
        target: The result.
    """
    if source.shape == target.shape and source.strides == target.strides:
        return 0 if is_dense(target) else library.kernel("indexed").element
    repeats = bytes_of(source) < numel(target) * source.dtype.itemsize
    indexed = library.kernel("broadcast" if repeats else "indexed").element
    if not source.shape:
        return indexed
    if repeats and _is_of_planes(source, target):
        return library.kernel("broadcast_planes").element
    count = numel(source)
    if count == numel(target) and (count <= 1 or (is_contiguous(source) and is_contiguous(target))):
        return 0
    if len(source.shape) == len(target.shape):
        extents = zip(target.shape, target.strides, source.strides, strict=True)
        for size, stride, other in extents:
            if size > 1 and stride == 1:
                return indexed if other <= 1 else library.kernel("scattered").element
    return indexed


def _is_of_planes(source: Operand, target: Operand) -> bool:
    """Returns whether an operand repeats both for what lies around its elements and within them."""
    if len(source.shape) != len(target.shape):
        return False
    runs: list[bool] = []
    for size, step in zip(target.shape, source.strides, strict=True):
        if size > 1 and (not runs or runs[-1] != (step == 0)):
            runs.append(step == 0)
    return len(runs) > 2 and runs[-1]


def is_channels_last(operand: Operand) -> bool:
    """Returns whether an image's channels are what lies closest, as PyTorch finds it from strides.

    Of shapes that lie so in both ways, strides of a row-major tensor count as row-major
    (`is_channels_last_strides_2d` in PyTorch's c10/core/MemoryFormat.h).
    """
    rank = len(operand.shape)
    if rank not in (4, 5) or operand.strides[1] == 0:
        return False
    least = 0
    for axis in (1, *range(rank - 1, 1, -1), 0):
        size, stride = operand.shape[axis], operand.strides[axis]
        if size == 0 or stride < least or (axis == 0 and least == operand.strides[1]):
            return False
        least = stride * max(size, 1)
    return True


def channels_last(operand: Operand) -> Layout:
    """Returns how an image would lie with its channels closest."""
    _, channels, *extents = operand.shape
    strides, step = [], channels
    for extent in reversed(extents):
        strides.append(step)
        step *= extent
    return Layout(operand.shape, (step, 1, *reversed(strides)), operand.dtype)


def row_major(operand: Operand) -> Layout:
    """Returns how an operand would lie row after row."""
    strides, step = [], 1
    for extent in reversed(operand.shape):
        strides.append(step)
        step *= extent
    return Layout(operand.shape, tuple(reversed(strides)), operand.dtype)
