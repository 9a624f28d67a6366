"""Kernels that make each element of a result from the elements at its place."""

from collections.abc import Sequence

from kernbench.hw.library import Library
from kernbench.kernels.operands import (
    Operand,
    finding,
    is_contiguous,
    numel,
    total_bytes,
)
from kernbench.kernels.traffic import streamed_ps
from kernbench.memory import DType


def duration_ps(
    library: Library, kernel: str, reads: Sequence[Operand], writes: Sequence[Operand]
) -> int:
    """Returns the picoseconds of an elementwise kernel.

    Each operand is read once, and each result written once, also in place and with `out=`.
    Operands that lie otherwise than the result, or mix floating-point types, cost operations.

    Args:
        kernel: Name of the kernel, such as `gelu`; one that the machine's file does not have is
            `pointwise`.
        reads: What it reads on the device.
        writes: What it writes, at least one.
    """
    price = library.kernel(kernel)
    target = writes[0]
    operations = price.element
    kind: DType | None = None
    for operand in reads:
        operations = max(operations, finding(library, operand, target))
        dtype = operand.dtype
        if dtype.is_floating_point and dtype is not kind and operand.shape:
            if kind is not None:
                operations = max(operations, library.kernel("indexed").element)
            kind = dtype
    if not is_contiguous(target) and finding(library, target, target):
        operations = max(operations, library.kernel("indexed").element)
    nbytes = total_bytes(reads) + total_bytes(writes)
    return streamed_ps(library, price, nbytes, operations * numel(target))


def fill_ps(library: Library, kernel: str, writes: Sequence[Operand]) -> int:
    """Returns the picoseconds of a kernel that writes without reading.

    Args:
        kernel: Name of the kernel: `fill`, or a distribution such as `normal`.
        writes: What it writes; may be nothing.
    """
    price = library.kernel(kernel)
    if not writes:
        return streamed_ps(library, price, 0)
    target = writes[0]
    step = 0 if is_contiguous(target) else finding(library, target, target)
    operations = max(price.element, step) * numel(target)
    return streamed_ps(library, price, total_bytes(writes), operations)
