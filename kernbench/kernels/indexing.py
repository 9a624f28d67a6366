"""Kernels that find elements by indices: look-ups, scatters, embeddings, sorts."""

from collections.abc import Sequence
from math import prod
from typing import Final

from kernbench.hw.library import Library
from kernbench.kernels import pointwise
from kernbench.kernels.operands import Operand, bytes_of, numel, total_bytes
from kernbench.kernels.traffic import alone_ps, streamed_ps

_VECTOR: Final = 16
"""Bytes that a thread reads at once."""

_SECTOR: Final = 32
"""Bytes that the memory moves for one element."""

_OF_BLOCK: Final = 1024 * 128
"""Pixels of an image for each block of `nll_loss2d`, which has 1024 threads: an image of fewer has
one.

Source: `nll_loss2d_forward_out_cuda_template` in PyTorch's aten/src/ATen/native/cuda/NLLLoss2d.cu.
"""


def gather_ps(library: Library, indices: Sequence[Operand], writes: Sequence[Operand]) -> int:
    """Returns the picoseconds of a look-up: reads the elements that are looked up, and the indices.

    One index that stands for whole vectors of 16 bytes has a block of its own, as in `select_ps`.

    Args:
        indices: What it reads beside these elements.
        writes: What it writes.
    """
    price = library.kernel("indexed")
    nbytes = 2 * total_bytes(writes) + total_bytes(indices)
    operations = price.element * sum(map(numel, writes))
    if len(indices) == 1 and writes:
        given = indices[0]
        pairs = zip(given.shape, given.strides, strict=True)
        slices = prod([size for size, step in pairs if step or size == 1])
        if (bytes_of(writes[0]) // max(1, slices)) % _VECTOR == 0:
            operations = max(operations, library.kernel("embedding").row * slices)
    return streamed_ps(library, library.kernel("gather"), nbytes, operations)


def kernel_of(name: str) -> str:
    """Returns the kernel of the machine's file by which an operator writes to places.

    Args:
        name: Name of the operator, such as `scatter_add_`; those that do not add are `indexed`.
    """
    return next((kernel for kernel in _ADDING if name.startswith(kernel)), "indexed")


_ADDING: Final = ("index_add", "scatter_add")


def select_ps(library: Library, indices: Operand, out: Operand) -> int:
    """Returns the picoseconds of a look-up of slices.

    Rows of whole vectors of 16 bytes are read as an embedding reads them
    (`vectorized_gather_kernel` in PyTorch's aten/src/ATen/native/cuda/IndexKernel.cu).

    Args:
        indices: Which slices.
        out: What it writes.
    """
    row = bytes_of(out) // max(1, numel(indices))
    if row % _VECTOR == 0:
        return embedding_ps(library, indices, out)
    return gather_ps(library, [indices], [out])


def scatter_ps(
    library: Library,
    target: Operand,
    moved: Sequence[Operand],
    copied: Sequence[Operand] = (),
    *,
    count: int | None = None,
    kernel: str = "indexed",
) -> int:
    """Returns the picoseconds of writing elements of a source to places of a target.

    A target that is written in place is read and written at these places alone; else it is copied
    before.

    Args:
        target: What is written to.
        moved: Indices and source.
        copied: The target and the result, if these are two; else empty.
        count: How many elements are written; by default as many as the longest of `moved` has.
        kernel: What it does for each of them, from `kernel_of`.
    """
    gather = library.kernel("gather")
    if count is None:
        count = max(map(numel, moved), default=0)
    nbytes = 2 * count * target.dtype.itemsize + total_bytes(moved)
    copy = streamed_ps(library, gather, total_bytes(copied)) if copied else 0
    operations = library.kernel(kernel).element * count
    return copy + streamed_ps(library, gather, nbytes, operations)


def accumulate_ps(
    library: Library,
    target: Operand,
    indices: Sequence[Operand],
    values: Operand,
    copied: Sequence[Operand] = (),
) -> int:
    """Returns the picoseconds of adding elements of a source to places that may be the same.

    The places are sorted, and those that are equal are added one after another.

    Args:
        target: What is written to.
        indices: The places.
        values: What is added.
        copied: The target and the result, if these are two; else empty.
    """
    price, count = library.kernel("accumulate"), numel(values)
    copy = streamed_ps(library, library.kernel("gather"), total_bytes(copied)) if copied else 0
    nbytes = 3 * count * target.dtype.itemsize + total_bytes(indices)
    places = max(map(numel, indices), default=count)
    spread = count if len(indices) > 1 and places < count else places
    return copy + streamed_ps(library, price, nbytes, price.row * spread + price.element * count)


def embedding_ps(library: Library, indices: Operand, out: Operand) -> int:
    """Returns the picoseconds of an embedding: reads the rows that are looked up, not the table.

    However short, each row has a block.

    Args:
        indices: Which rows.
        out: What it writes.
    """
    price = library.kernel("embedding")
    nbytes = 2 * bytes_of(out) + bytes_of(indices)
    operations = max(price.element * numel(out), price.row * numel(indices))
    return streamed_ps(library, price, nbytes, operations)


def embedding_backward_ps(library: Library, grad: Operand, indices: Operand, out: Operand) -> int:
    """Returns the picoseconds of an embedding's gradient.

    Zeros of the whole table, then each row of the gradient is added to its place: as they come for
    up to `beyond` indices of `embedding_backward`, else sorted by index
    (`embedding_dense_backward_cuda` in PyTorch's aten/src/ATen/native/cuda/Embedding.cu).

    Args:
        grad: Gradient of the result.
        indices: Which rows.
        out: Gradient of the table.
    """
    zeros = pointwise.fill_ps(library, "fill", [out])
    price = library.kernel("embedding_backward")
    nbytes = 3 * bytes_of(grad) + bytes_of(indices)
    if numel(indices) <= price.beyond:
        operations = library.kernel("indexed").element * numel(grad)
        return zeros + streamed_ps(library, library.kernel("gather"), nbytes, operations)
    return zeros + streamed_ps(library, price, nbytes, price.element * numel(grad))


def nll_of_images_ps(library: Library, kernel: str, labels: Operand) -> int:
    """Returns the picoseconds of `nll_loss2d` or its gradient: few blocks go through an image.

    Args:
        kernel: `nll_loss2d` or `nll_loss2d_backward`.
        labels: `[batch, *extents]`.
    """
    price, plane = library.kernel(kernel), prod(labels.shape[1:])
    turns = plane // max(1, plane // _OF_BLOCK)
    nbytes = bytes_of(labels) + numel(labels) * _SECTOR
    return alone_ps(library, price, nbytes, numel(labels), turns)


def nll_backward_ps(library: Library, labels: Operand, out: Operand) -> int:
    """Returns the picoseconds of the gradient of `nll_loss`: zeros, then one element of each row.

    Labels of images: few blocks for each, as in `rows.nll_ps`.

    Args:
        labels: Which element of each row is written.
        out: The gradient.
    """
    zeros = pointwise.fill_ps(library, "fill", [out])
    if len(labels.shape) > 1:
        return zeros + nll_of_images_ps(library, "nll_loss2d_backward", labels)
    price = library.kernel("nll_loss_backward")
    return zeros + streamed_ps(library, price, bytes_of(labels), price.row * numel(labels))


def bag_ps(library: Library, table: Operand, indices: Operand, out: Operand) -> int:
    """Returns the picoseconds of bags of embeddings: reads the rows that are looked up.

    Args:
        table: The rows.
        indices: Which rows.
        out: A row for each bag.
    """
    price = library.kernel("embedding_bag")
    read = numel(indices) * table.shape[-1] * table.dtype.itemsize
    return streamed_ps(library, price, read + bytes_of(indices) + bytes_of(out))


def bag_backward_ps(library: Library, grad: Operand, indices: Operand, out: Operand) -> int:
    """Returns the picoseconds of the dense gradient of bags of embeddings.

    Zeros of the whole table, then the indices are sorted and the rows of each added; up to `beyond`
    indices are sorted in one block, in a third of the launches.

    Args:
        grad: Gradient of the result, a row for each bag.
        indices: Which rows.
        out: Gradient of the table.
    """
    zeros = pointwise.fill_ps(library, "fill", [out])
    price, count = library.kernel("embedding_bag_backward"), numel(indices)
    launches = price.launches if count > price.beyond else max(1, price.launches // 3)
    elements = count * out.shape[-1]
    nbytes = 3 * elements * grad.dtype.itemsize + bytes_of(indices)
    return zeros + streamed_ps(library, price, nbytes, price.element * elements, launches=launches)


def sort_ps(library: Library, given: Operand, writes: Sequence[Operand]) -> int:
    """Returns the picoseconds of a sort.

    Radix sort reads and writes keys and places once for each 8 bits of the key, `element`
    operations each; rows of up to `beyond` keys are sorted in one launch.

    Args:
        given: The keys.
        writes: Sorted keys and their places.
    """
    price = library.kernel("sort")
    passes = max(2, given.dtype.itemsize)
    nbytes = passes * (bytes_of(given) + total_bytes(writes))
    columns = given.shape[-1] if given.shape else 1
    launches = price.launches + (4 * passes if columns > price.beyond else 0)
    operations = price.element * passes * numel(given)
    return streamed_ps(library, price, nbytes, operations, launches=launches)


def top_ps(library: Library, given: Operand, writes: Sequence[Operand]) -> int:
    """Returns the picoseconds of `topk`.

    Radix selection reads the keys once for each 8 bits, `element` operations each, and twice to
    gather. Rows of up to `beyond` keys are a block each, with `row` operations a key.

    Args:
        given: The keys.
        writes: Largest keys and their places.
    """
    price = library.kernel("topk")
    passes = given.dtype.itemsize + 2
    nbytes = passes * bytes_of(given) + total_bytes(writes)
    if given.shape and given.shape[-1] <= price.beyond:
        return streamed_ps(library, price, nbytes, price.row * numel(given))
    launches = price.launches + 2 * passes
    operations = price.element * given.dtype.itemsize * numel(given)
    return streamed_ps(library, price, nbytes, operations, launches=launches)
