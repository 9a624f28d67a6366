"""Kernels that write each element of a tensor elsewhere, maybe as another type."""

from collections.abc import Sequence

from kernbench.hw.library import Library
from kernbench.kernels import pointwise
from kernbench.kernels.operands import (
    Layout,
    Operand,
    bytes_of,
    finding,
    is_contiguous,
    numel,
    row_major,
    total_bytes,
)
from kernbench.kernels.traffic import streamed_ps
from kernbench.memory import dtypes

_NARROWED = (dtypes.bfloat16, dtypes.float16)
"""Types to which PyTorch has a kernel of its own that casts float32 in vectors."""


def duration_ps(library: Library, source: Operand, target: Operand) -> int:
    """Returns the picoseconds of a copy: reads the source once, writes the target once.

    float32 to a 16-bit type is a kernel that works in vectors; other casts compute the place of
    each element.

    Args:
        source: What it reads.
        target: What it writes.
    """
    price, indexed = library.kernel("copy"), library.kernel("indexed").element
    operations = price.element
    plain = is_contiguous(source) and is_contiguous(target)
    if not (plain and numel(source) == numel(target)):
        operations = max(operations, finding(library, source, target))
        if not is_contiguous(target) and finding(library, target, target):
            operations = max(operations, indexed)
    vectors = source.dtype is dtypes.float32 and target.dtype in _NARROWED
    if source.dtype is not target.dtype and not vectors:
        operations = max(operations, indexed)
    nbytes = bytes_of(source) + bytes_of(target)
    return streamed_ps(library, price, nbytes, operations * numel(target))


def streamed_copy_ps(
    library: Library, kernel: str, reads: Sequence[Operand], writes: Sequence[Operand]
) -> int:
    """Returns the picoseconds of a kernel that moves pieces between tensors in vectors.

    Args:
        kernel: Name of the kernel: `cat` or `split`.
        reads: What it reads.
        writes: What it writes.
    """
    price = library.kernel(kernel)
    return streamed_ps(library, price, total_bytes(reads) + total_bytes(writes), price.element)


def indexed_copy_ps(library: Library, reads: Sequence[Operand], target: Operand) -> int:
    """Returns the picoseconds of a copy that computes the place of each element.

    Args:
        reads: What it reads.
        target: What it writes, maybe as another type.
    """
    indexed = library.kernel("indexed").element
    nbytes = total_bytes(reads) + bytes_of(target)
    return streamed_ps(library, library.kernel("copy"), nbytes, indexed * numel(target))


def repeated_ps(library: Library, source: Operand, target: Operand) -> int:
    """Returns the picoseconds of a copy that writes each element several times, as `repeat` does.

    Both are seen with a dimension of the repetitions before each one: there the source has steps
    of 0 (`repeat` in PyTorch's aten/src/ATen/native/TensorShape.cpp).

    Args:
        source: What it reads.
        target: What it writes, with at least as many dimensions.
    """
    missing = len(target.shape) - len(source.shape)
    old, steps = (1,) * missing + tuple(source.shape), (0,) * missing + tuple(source.strides)
    shape: list[int] = []
    read: list[int] = []
    written: list[int] = []
    for size, extent, step, stride in zip(old, target.shape, steps, target.strides, strict=True):
        if size and extent > size:
            shape.append(extent // size)
            read.append(0)
            written.append(size * stride)
        shape.append(size)
        read.append(step)
        written.append(stride)
    seen = Layout(tuple(shape), tuple(read), source.dtype)
    return duration_ps(library, seen, Layout(seen.shape, tuple(written), target.dtype))


def interleaved_ps(library: Library, source: Operand, target: Operand, dim: int | None) -> int:
    """Returns the picoseconds of a copy that writes each slice several times in a row.

    Args:
        source: What it reads.
        target: What it writes.
        dim: The dimension of the slices; None for all elements.
    """
    place = len(source.shape) if dim is None else dim + 1
    times = numel(target) // max(1, numel(source))
    shape = (*source.shape[:place], times, *source.shape[place:])
    seen = Layout(shape, (*source.strides[:place], 0, *source.strides[place:]), source.dtype)
    return duration_ps(library, seen, row_major(seen))


def rolled_ps(library: Library, source: Operand, target: Operand, times: int) -> int:
    """Returns the picoseconds of `roll`: a kernel for each dimension, which computes all places.

    Source: `roll_common` in PyTorch's aten/src/ATen/native/TensorTransformations.h.

    Args:
        source: What it reads.
        target: What it writes.
        times: How many dimensions are shifted.
    """
    price = library.kernel("roll")
    nbytes = bytes_of(source) + bytes_of(target)
    return max(1, times) * streamed_ps(library, price, nbytes, price.element * numel(target))


def placed_ps(library: Library, source: Operand, part: Operand, whole: Operand) -> int:
    """Returns the picoseconds of writing a tensor into a part of zeros, as gradients of views do.

    Source: `slice_backward`, `select_backward` and `diagonal_backward` in PyTorch's
    aten/src/ATen/native/TensorShape.cpp.

    Args:
        source: What is written.
        part: Where it is written.
        whole: What has zeros elsewhere.
    """
    zeros: int = pointwise.fill_ps(library, "fill", [whole])
    return zeros + duration_ps(library, source, part)


def padded_ps(library: Library, source: Operand, target: Operand) -> int:
    """Returns the picoseconds of `constant_pad_nd`: a fill and a copy, or the copy of a part.

    Source: PyTorch's aten/src/ATen/native/PadNd.cpp.

    Args:
        source: What it reads, of which negative paddings leave a part.
        target: What it writes.
    """
    shape = tuple([min(pair) for pair in zip(source.shape, target.shape, strict=True)])
    read, part = (Layout(shape, each.strides, each.dtype) for each in (source, target))
    if shape == tuple(target.shape):
        return duration_ps(library, read, part)
    return placed_ps(library, read, part, target)
