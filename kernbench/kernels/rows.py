"""Kernels that go through the rows of a tensor: norms, softmax, sums, scans."""

from collections.abc import Sequence
from math import prod
from typing import Final

from kernbench.hw.library import Library
from kernbench.kernels import indexing, pointwise
from kernbench.kernels.operands import (
    Layout,
    Operand,
    bytes_of,
    numel,
    row_major,
    total_bytes,
)
from kernbench.kernels.traffic import by_rows, streamed_ps
from kernbench.memory import dtypes

_DIVIDED: Final = "arg_extreme"
"""Kernel of reductions that divide few rows among blocks, as sums do."""

_BLOCKS: Final = 4
"""Blocks of an SM for which a reduction divides its rows: 2048 threads, 512 in a block.

Source: `setReduceConfig` in PyTorch's aten/src/ATen/native/cuda/Reduce.cuh.
"""

_SOFTMAX: Final = ("softmax", "log_softmax")
_OF_WARPS, _OF_REGISTERS = 2048, 9 * 1024
"""Columns up to which a warp has a row of a softmax, and those up to which a block of 1024 threads
has it in at most 9 registers each.

Source: `host_softmax` in PyTorch's aten/src/ATen/native/cuda/SoftMax.cu.
"""


def duration_ps(
    library: Library, kernel: str, reads: Sequence[Operand], writes: Sequence[Operand]
) -> int:
    """Returns the picoseconds of a kernel that reads its operands and writes its results once.

    Rows are those of the first operand. Up to `beyond` columns of the kernel, a row costs nothing
    beside its bytes: a warp computes it; else a block does. A softmax is another kernel for each
    of three lengths of rows. The greatest of all elements is found as their sum is.

    Args:
        kernel: Name of the kernel, such as `softmax_backward`.
        reads: What it reads.
        writes: What it writes.
    """
    if kernel == _DIVIDED and writes and numel(writes[0]) == 1:
        return sum_ps(library, reads[0], (), writes)
    shape = reads[0].shape
    columns = max(1, shape[-1] if shape else 1)
    rows = prod(shape) // columns
    if kernel in _SOFTMAX and columns <= _OF_REGISTERS:
        kernel = f"{kernel}_{'warps' if columns <= _OF_WARPS else 'registers'}"
    price = library.kernel(kernel)
    operations = price.element * rows * columns
    nbytes = total_bytes(reads) + total_bytes(writes)
    if columns > price.beyond:
        operations = max(operations, price.row * rows)
        blocks = max(rows, _BLOCKS * library.num_pes) if kernel == _DIVIDED else rows
        nbytes = by_rows(price, nbytes, blocks)
    return streamed_ps(library, price, nbytes, operations)


def safe_softmax_ps(library: Library, given: Operand, out: Operand) -> int:
    """Returns the picoseconds of a softmax whose rows of -inf become 0.

    The softmax, two numbers, which elements are -inf, in which rows all are, and the choice
    (`_safe_softmax` in PyTorch's aten/src/ATen/native/SoftMax.cpp).

    Args:
        given: What it reads.
        out: What it writes.
    """
    found = duration_ps(library, "softmax", [given], [out]) + 2 * library.elementwise(0, 0)
    masked = row_major(Layout(out.shape, out.strides, dtypes.bool_))
    whole = row_major(Layout((*out.shape[:-1], 1), out.strides, dtypes.bool_))
    found += pointwise.duration_ps(library, "pointwise", [given], [masked])
    found += sum_ps(library, masked, (-1,), [whole])
    return found + pointwise.duration_ps(library, "pointwise", [whole, out], [out])


def sum_ps(library: Library, given: Operand, axes: Sequence[int], writes: Sequence[Operand]) -> int:
    """Returns the picoseconds of a reduction: a sum, a mean, an extreme value, a norm.

    It reads all elements. If what lies closest is added, it is `row_sum`, or `split_sum` if what is
    added is not one piece, such as planes of an image's channel. Else it is `column_sum`: a block
    adds some columns, so up to `beyond` rows take `row` each, and more are divided. Sums of more
    elements than `beyond` of `large_sum` go through memory once more.

    Args:
        given: What it reads.
        axes: Dimensions that are reduced; empty for all.
        writes: What it writes.
    """
    count, added = numel(given), _pieces(given, axes)
    along_rows = not axes or len(given.shape) < 2 or added[-1]
    kernel = "row_sum" if along_rows else "column_sum"
    price = library.kernel("split_sum" if along_rows and len(added) > 2 else kernel)
    large = library.kernel("large_sum")
    launches = large.launches if count > large.beyond else price.launches
    nbytes = bytes_of(given) + total_bytes(writes)
    operations = price.element * count
    if not along_rows and writes:
        summed = count // max(1, numel(writes[0]))
        operations = max(operations, price.row * min(summed, price.beyond))
    elif along_rows and axes:
        rows = count // max(1, given.shape[-1])
        nbytes = by_rows(price, nbytes, max(rows, _BLOCKS * library.num_pes))
    return streamed_ps(library, price, nbytes, operations, launches=launches)


def _pieces(given: Operand, axes: Sequence[int]) -> list[bool]:
    """Returns whether neighbouring dimensions are added, from those that lie farthest.

    Dimensions that are one piece of memory and are all added, or all not, count as one.
    """
    rank = len(given.shape)
    wanted = {axis % rank for axis in axes} if rank else set()
    order = sorted(range(rank), key=lambda axis: -given.strides[axis])
    found: list[bool] = []
    for axis in order:
        if given.shape[axis] > 1 and (not found or found[-1] != (axis in wanted)):
            found.append(axis in wanted)
    return found or [True]


def nll_ps(library: Library, log_probabilities: Operand, labels: Operand) -> int:
    """Returns the picoseconds of `nll_loss`: reads one element of each row, in one block.

    Labels of images have blocks of their own.

    Args:
        log_probabilities: The rows.
        labels: Which element of each row is read.
    """
    if len(labels.shape) > 1:
        return indexing.nll_of_images_ps(library, "nll_loss2d", labels)
    price, count = library.kernel("nll_loss"), numel(labels)
    nbytes = bytes_of(labels) + count * log_probabilities.dtype.itemsize
    return streamed_ps(library, price, nbytes, price.row * count)
