"""Losses that compare element by element: a kernel for each element, and one that adds.

Source: aten/src/ATen/native/{Loss,BinaryOps}.cpp and cuda/Loss.cu of PyTorch, in which a mean or a
sum is `mean` or `sum` of a tensor that has the loss of each pair.
"""

from collections.abc import Sequence

from kernbench.hw.library import Library
from kernbench.kernels import pointwise, rows
from kernbench.kernels.operands import Operand, row_major


def loss_ps(
    library: Library,
    reads: Sequence[Operand],
    writes: Sequence[Operand],
    kernels: Sequence[int],
) -> int:
    """Returns the picoseconds of a loss, of each pair of elements or reduced.

    Args:
        reads: Input and target, and factors if there are some.
        writes: The loss.
        kernels: How many operands each kernel before the reduction reads.
    """
    each = row_major(reads[0])
    more = [each] * max(0, max(kernels) - len(reads))
    given = [*reads, *more]
    found = sum([pointwise.duration_ps(library, "pointwise", given[:n], [each]) for n in kernels])
    if writes[0].shape == each.shape:
        return found
    return found + rows.sum_ps(library, each, (), writes)
