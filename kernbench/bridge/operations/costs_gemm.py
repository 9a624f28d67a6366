"""Products of matrices and convolutions, as one launch each of CUDA's libraries."""

from math import prod
from typing import Any, Final

import torch

from kernbench.bridge.operations.costs_traffic import Formula, bytes_of, streamed_ps
from kernbench.bridge.tensors.storages import DTYPES
from kernbench.hw.library import Library

_ATEN: Final = torch.ops.aten

precision_of: Final = torch._C._get_fp32_precision_getter
"""How float32 is multiplied, by backend and kind of operation, whoever has set it and how.

The getters of the older switches raise once a program has set the newer ones.
"""

_TF32: Final = "tf32"


def product_ps(
    library: Library,
    dtype: torch.dtype,
    sizes: tuple[int, int, int, int],
    nbytes: int,
    *,
    tf32: bool = False,
) -> int:
    """Returns the picoseconds of a batch of products of m x k and k x n, in one launch.

    Args:
        library: Of the device.
        dtype: Type of the operands.
        sizes: Batch, m, n and k.
        nbytes: Bytes of all operands and results.
        tf32: Whether float32 may be multiplied as TF32.
    """
    batch, m, n, k = sizes
    name = _names.get(dtype, "")
    if tf32 and dtype is torch.float32 and library.multiplies("tf32"):
        name = "tf32"
    if batch * m * n * k:
        if name in library.tiles:
            return library.matmul(name, m, n, k, nbytes, batch)
        if min(m, n) > 1 and library.multiplies(name):
            return library.matmul(name, m, n, k, nbytes, batch)
    return library.elementwise(nbytes, batch * m * n * k)


_names: Final = {dtype: kind.machine_name for dtype, kind in DTYPES.items()}
"""What machine files call the types of PyTorch."""


def matmul(first: int, *, turned: bool = False) -> Formula:
    """Returns the time of a product whose result may have a bias: an epilogue, whose bytes count.

    Leading dimensions are a batch if the right operand has them, else rows of the left one.

    Args:
        first: Place of the left operand among the arguments; the right one follows.
        turned: Whether the right operand is `[n, k]`.
    """
    last = -2 if turned else -1

    def duration(library: Library, args: Any, kwargs: Any, out: Any) -> int:
        left, right = args[first], args[first + 1]
        kind, shape = left.dtype, right.shape
        columns = shape[last] if len(shape) > 1 else 1
        batch = prod(shape[:-2]) if len(shape) > 2 else 1
        nbytes = bytes_of(left) + bytes_of(right) + bytes_of(out)
        if len(args) > 2:
            nbytes += bytes_of(args[:first]) + bytes_of(args[first + 2 :])
        if kwargs:
            nbytes += bytes_of([value for key, value in kwargs.items() if key != "out"])
        sizes = batch, out.numel() // max(1, batch * columns), columns, left.shape[-1]
        tf32 = kind is torch.float32 and precision_of("cuda", "matmul") == _TF32
        return product_ps(library, kind, sizes, nbytes, tf32=tf32)

    return duration


def _grouped(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    """One launch multiplies groups of rows, each with a matrix of its own."""
    del kwargs
    left, right = args[0], args[1]
    nbytes = bytes_of(args) + bytes_of(out)
    if left.dim() == right.dim() == 2:  # sums over groups of columns
        sizes = 1, left.shape[0], right.shape[1], left.shape[1]
    else:
        sizes = 1, out.numel() // max(1, right.shape[-1]), right.shape[-1], left.shape[-1]
    return product_ps(library, left.dtype, sizes, nbytes)


def _convolution_sizes(
    given: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, transposed: bool, groups: int
) -> tuple[int, int, int, int]:
    """Returns the sizes of the product that a convolution is: its kernels' implicit GEMM."""
    inner = prod(weight.shape[1:]) if not transposed else weight.shape[0] // groups
    moved = given if transposed else out
    rows = moved.shape[0] * prod(moved.shape[2:])
    columns = weight.shape[0] // groups if not transposed else prod(weight.shape[1:])
    return groups, rows, columns, inner


def precision() -> tuple[str, str]:
    """Returns the switches on which times depend: of products, and of convolutions."""
    return precision_of("cuda", "matmul"), precision_of("cuda", "conv")


def _allows_tf32_in_convolutions() -> bool:
    return bool(precision_of("cuda", "conv") == _TF32)


def _convolution(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    del kwargs
    given, weight, transposed, groups = args[0], args[1], args[6], args[8]
    sizes = _convolution_sizes(given, weight, out, transposed, groups)
    nbytes = bytes_of(args[:3]) + bytes_of(out)
    return product_ps(library, given.dtype, sizes, nbytes, tf32=_allows_tf32_in_convolutions())


def _convolution_backward(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    """A product for the input's gradient, one for the weight's, and a sum for the bias's."""
    del kwargs
    grad, given, weight = args[:3]
    transposed, groups, wanted = args[7], args[9], args[10]
    batch, m, n, k = _convolution_sizes(given, weight, grad, transposed, groups)
    tf32 = _allows_tf32_in_convolutions()
    duration = 0
    if wanted[0]:
        nbytes = bytes_of(grad) + bytes_of(weight) + bytes_of(out[0])
        duration += product_ps(library, grad.dtype, (batch, m, k, n), nbytes, tf32=tf32)
    if wanted[1]:
        nbytes = bytes_of(grad) + bytes_of(given) + bytes_of(out[1])
        duration += product_ps(library, grad.dtype, (batch, n, k, m), nbytes, tf32=tf32)
    if wanted[2]:
        duration += streamed_ps(library, bytes_of(grad) + bytes_of(out[2]), grad.numel())
    return duration


CONVOLUTIONS: Final = frozenset((_ATEN.convolution, _ATEN.convolution_backward))

FORMULAS: Final[dict[Any, Formula]] = {
    _ATEN.mm: matmul(0),
    _ATEN.bmm: matmul(0),
    _ATEN.mv: matmul(0),
    _ATEN.dot: matmul(0),
    _ATEN.matmul: matmul(0),
    _ATEN.addmm: matmul(1),
    _ATEN.addmm_: matmul(1),
    _ATEN.addmv: matmul(1),
    _ATEN._addmm_activation: matmul(1),
    _ATEN.baddbmm: matmul(1),
    _ATEN.baddbmm_: matmul(1),
    _ATEN.linear: matmul(0, turned=True),
    _ATEN._scaled_mm: matmul(0),
    _ATEN._int_mm: matmul(0),
    _ATEN._grouped_mm: _grouped,
    _ATEN._scaled_grouped_mm: _grouped,
    _ATEN.convolution: _convolution,
    _ATEN.convolution_backward: _convolution_backward,
}
"""Times of products, by operation."""
