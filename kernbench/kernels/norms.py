"""Norms of images: batch norms, as cuDNN and PyTorch compute them, and group norms."""

from collections.abc import Sequence
from math import prod

from kernbench.hw.library import Library
from kernbench.kernels.operands import Operand, bytes_of, is_channels_last, numel
from kernbench.kernels.traffic import alone_ps, by_rows, streamed_ps
from kernbench.memory import dtypes


def _is_last(given: Operand) -> bool:
    return len(given.shape) < 3 or is_channels_last(given)


def batch_norm_ps(library: Library, given: Operand, *, training: bool = True) -> int:
    """Returns the picoseconds of a batch norm.

    bfloat16 is PyTorch's own: a kernel for the statistics, one that updates the running ones, one
    that applies them. All other types are one kernel of cuDNN. Row after row, a block reads a
    channel.

    Args:
        given: Its input.
        training: Whether it computes statistics.
    """
    nbytes, count = 2 * bytes_of(given), numel(given)
    channels = given.shape[1] if len(given.shape) > 1 else 1
    planes = given.shape[0] * channels if not _is_last(given) else 0
    apply = library.kernel("batch_norm_apply")
    if not training:
        work = max(apply.element * count, apply.row * planes)
        return streamed_ps(library, apply, nbytes, work)
    own = given.dtype is dtypes.bfloat16
    if _is_last(given):
        price = library.kernel("batch_norm_own_last" if own else "batch_norm_last")
        return streamed_ps(library, price, nbytes, price.element * count)
    columns = count // max(1, channels)
    if not own:
        return alone_ps(library, library.kernel("batch_norm"), nbytes, count, columns)
    found = alone_ps(library, library.kernel("batch_norm_stats"), nbytes // 2, count, columns)
    work = max(apply.element * count, apply.row * planes)
    return found + streamed_ps(library, apply, nbytes, work)


def batch_norm_backward_ps(library: Library, given: Operand) -> int:
    """Returns the picoseconds of a batch norm's gradients.

    Args:
        given: Its input.
    """
    own = given.dtype is dtypes.bfloat16
    nbytes, count = 3 * bytes_of(given), numel(given)
    if _is_last(given):
        price = library.kernel(
            "batch_norm_own_last_backward" if own else "batch_norm_last_backward"
        )
        return streamed_ps(library, price, nbytes, price.element * count)
    price = library.kernel("batch_norm_own_backward" if own else "batch_norm_backward")
    return alone_ps(library, price, nbytes, count, count // max(1, given.shape[1]))


def group_norm_ps(library: Library, given: Operand, groups: int) -> int:
    """Returns the picoseconds of a group norm: moments, parameters of each plane, applied.

    A block finds the moments of a group (`RowwiseMomentsCUDAKernel` in PyTorch's
    aten/src/ATen/native/cuda/group_norm_kernel.cu), so that few large groups leave PEs idle.

    Args:
        given: Its input.
        groups: Groups of channels of an image.
    """
    price = library.kernel("group_norm")
    work = price.element * numel(given) + price.row * prod(given.shape[:2])
    rows = max(1, given.shape[0] * groups)
    work = max(work, _alone(library, "group_norm_moments", given, rows, tensors=2))
    return streamed_ps(library, price, 3 * bytes_of(given), work)


def _alone(library: Library, kernel: str, given: Operand, rows: int, *, tensors: int) -> int:
    """Returns the operations of blocks that add a row each, an element after another.

    They wait for each: for the L2, or for the HBM if all tensors of this size do not fit the L2.
    """
    far = tensors * bytes_of(given) > library.sram_bytes
    price = library.kernel(f"{kernel}_far" if far else kernel)
    return price.alone * (numel(given) // rows) * library.num_pes


def group_norm_backward_ps(
    library: Library, given: Operand, *, data: bool = True, weights: bool = True
) -> int:
    """Returns the picoseconds of a group norm's gradients.

    Args:
        given: Its input.
        data: Whether the gradient of the input is wanted.
        weights: Whether gradients of weight and bias are wanted: a thread adds the batch.
    """
    price = library.kernel("group_norm_backward")
    planes = max(1, prod(given.shape[:2]))
    work = price.element * numel(given) + price.row * planes
    work = max(work, _alone(library, "group_norm_gradients", given, planes, tensors=3))
    nbytes = bytes_of(given) * (5 if data else 2)
    found = streamed_ps(library, price, nbytes, work)
    if weights:
        found += alone_ps(library, library.kernel("group_norm_weights"), 0, 0, given.shape[0])
    return found


def layer_norm_ps(library: Library, reads: Sequence[Operand], given: Operand, columns: int) -> int:
    """Returns the picoseconds of a layer norm: all bytes, and what a row takes beside.

    Args:
        reads: What it reads and writes.
        given: Its input.
        columns: Elements that are normalised together.
    """
    price = library.kernel("layer_norm")
    rows = numel(given) // max(1, columns)
    work = price.row * rows
    streamed = streamed_ps(library, price, by_rows(price, sum(map(bytes_of, reads)), rows))
    return streamed + library.elementwise(0, work) - library.elementwise(0, 0)


def layer_norm_backward_ps(
    library: Library, moved: Sequence[Operand], given: Operand, columns: int, *, weights: bool
) -> int:
    """Returns the picoseconds of a layer norm's gradients.

    The weights' gradients are a kernel of their own, in which a block adds some columns of all
    rows; of more rows than `beyond`, several blocks add them.

    Args:
        moved: What it reads and writes.
        given: Its input.
        columns: Elements that are normalised together.
        weights: Whether gradients of weight and bias are wanted.
    """
    price, rows = library.kernel("layer_norm_backward"), numel(given) // max(1, columns)
    found = streamed_ps(library, price, by_rows(price, sum(map(bytes_of, moved)), rows))
    found += library.elementwise(0, price.row * rows) - library.elementwise(0, 0)
    if not weights:
        return found
    price = library.kernel("layer_norm_weights")
    work = price.row * rows if not price.beyond or rows <= price.beyond else 1
    return found + streamed_ps(library, price, 2 * bytes_of(given), work)
