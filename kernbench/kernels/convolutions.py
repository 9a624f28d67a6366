"""Convolutions, as the product that their kernels compute (implicit GEMM)."""

from collections.abc import Sequence
from math import prod

from kernbench.hw.library import Library
from kernbench.kernels import products
from kernbench.kernels.operands import Operand, bytes_of, numel, total_bytes
from kernbench.kernels.products import Sizes
from kernbench.kernels.traffic import streamed_ps


def sizes_of(
    given: Operand, weight: Operand, out: Operand, *, transposed: bool, groups: int
) -> Sizes:
    """Returns the sizes of the product that a convolution is.

    Args:
        given: Its input, `[batch, channels, *extents]`.
        out: Its result.
        transposed: Whether it is a transposed one.
        groups: Into how many groups its channels are divided.
    """
    shape = weight.shape
    inner = prod(shape[1:]) if not transposed else shape[0] // groups
    moved = (given if transposed else out).shape
    columns = shape[0] // groups if not transposed else prod(shape[1:])
    return Sizes(groups, moved[0] * prod(moved[2:]), columns, inner)


def forward_ps(
    library: Library, reads: Sequence[Operand], out: Operand, sizes: Sizes, *, tf32: bool
) -> int:
    """Returns the picoseconds of a convolution.

    Args:
        reads: Input, weight, and bias if there is one.
        out: Its result.
        sizes: What is multiplied, see `sizes_of`.
        tf32: Whether float32 may be multiplied as TF32.
    """
    nbytes = total_bytes(reads) + bytes_of(out)
    return products.duration_ps(library, reads[0].dtype, sizes, nbytes, tf32=tf32)


def backward_ps(
    library: Library,
    operands: tuple[Operand, Operand, Operand],
    grads: tuple[Operand | None, Operand | None, Operand | None],
    sizes: Sizes,
    *,
    tf32: bool,
) -> int:
    """Returns the picoseconds of a convolution's gradients: two products, and a sum for the bias.

    Args:
        operands: Gradient of the result, input and weight.
        grads: Gradients of input, weight and bias; None for those that nobody wants.
        sizes: What the convolution multiplies, see `sizes_of`.
        tf32: Whether float32 may be multiplied as TF32.
    """
    grad, given, weight = operands
    of_given, of_weight, of_bias = grads
    batch, m, n, k = sizes
    found = 0
    if of_given is not None:
        nbytes = total_bytes((grad, weight, of_given))
        turned = Sizes(batch, m, k, n)
        found += products.duration_ps(library, grad.dtype, turned, nbytes, tf32=tf32)
    if of_weight is not None:
        nbytes = total_bytes((grad, given, of_weight))
        turned = Sizes(batch, n, k, m)
        found += products.duration_ps(library, grad.dtype, turned, nbytes, tf32=tf32)
    if of_bias is not None:
        price = library.kernel("pointwise")
        found += streamed_ps(library, price, total_bytes((grad, of_bias)), numel(grad))
    return found
