"""Kernels that write each element of a tensor elsewhere, maybe as another type."""

from collections.abc import Sequence

from kernbench.hw.library import Library
from kernbench.kernels.operands import (
    Operand,
    bytes_of,
    finding,
    is_contiguous,
    numel,
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
