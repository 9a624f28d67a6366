"""Products of matrices and convolutions: what each operation multiplies."""

from itertools import pairwise
from math import prod
from typing import Any, Final

import torch

from kernbench.bridge.base.here import HERE
from kernbench.bridge.operations.costs_operands import Formula, layout, layouts, operands_of
from kernbench.hw.library import Library
from kernbench.kernels import convolutions, products
from kernbench.kernels.operands import total_bytes
from kernbench.kernels.products import Sizes

_ATEN: Final = torch.ops.aten

precision_of: Final = torch._C._get_fp32_precision_getter
"""How float32 is multiplied, by backend and kind of operation, whoever has set it and how.

The getters of the older switches raise once a program has set the newer ones.
"""

_TF32: Final = "tf32"


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
        shape = right.shape
        columns = shape[last] if len(shape) > 1 else 1
        batch = prod(shape[:-2]) if len(shape) > 2 else 1
        nbytes = total_bytes(operands_of(args, kwargs)) + total_bytes(layouts(out))
        rows = out.numel() // max(1, batch * columns)
        sizes = Sizes(batch, rows, columns, left.shape[-1])
        tf32 = precision_of("cuda", "matmul") == _TF32
        lie = layout(left), layout(right), layout(out)
        return products.duration_ps(library, lie[0].dtype, sizes, nbytes, tf32=tf32, operands=lie)

    return duration


def _grouped(ends: int) -> Formula:
    """Returns the time of a product of each group of rows, or of columns, in one launch."""

    def duration(library: Library, args: Any, kwargs: Any, out: Any) -> int:
        left, right = args[0], args[1]
        offs = kwargs.get("offs") if kwargs else None
        if offs is None and len(args) > ends:
            offs = args[ends]
        m, k, n = left.shape[-2], left.shape[-1], right.shape[-1]
        if offs is None:  # a batch
            sizes = [Sizes(1, m, n, k)] * left.shape[0]
        elif left.dim() == right.dim():  # groups of what is summed over
            sizes = [Sizes(1, m, n, each) for each in _groups(offs, k)]
        elif left.dim() == 2:
            sizes = [Sizes(1, each, n, k) for each in _groups(offs, m)]
        else:
            sizes = [Sizes(1, m, each, k) for each in _groups(offs, n)]
        nbytes = total_bytes(operands_of(args, kwargs)) + total_bytes(layouts(out))
        return products.grouped_ps(library, layout(left).dtype, sizes, nbytes)

    return duration


def _groups(ends: torch.Tensor, total: int) -> list[int]:
    """Returns the extents of groups; where their ends are not known, as even as they can be."""
    rank, count, known = HERE.rank, max(1, ends.numel()), None
    if rank is None or rank.data:
        known = ends
    elif rank.numbers is not None:
        known = rank.numbers.of(ends)
    if known is None:
        return [total * (place + 1) // count - total * place // count for place in range(count)]
    stops = known.tolist()
    return [max(0, end - begin) for begin, end in pairwise([0, *stops])]


def precision() -> tuple[str, str]:
    """Returns the switches on which times depend: of products, and of convolutions."""
    return precision_of("cuda", "matmul"), precision_of("cuda", "conv")


def _allows_tf32_in_convolutions() -> bool:
    return bool(precision_of("cuda", "conv") == _TF32)


def _steps(given: Any, weight: torch.Tensor) -> tuple[int, ...]:
    return (given,) * (weight.dim() - 2) if isinstance(given, int) else tuple(given)


def _convolution(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    del kwargs
    given, weight, bias, stride = args[:4]
    transposed, groups = args[6], args[8]
    read, made = layout(given), layout(out)
    image, result = (made, read) if transposed else (read, made)
    steps, tf32 = _steps(stride, weight), _allows_tf32_in_convolutions()
    found = convolutions.Convolution(image, layout(weight), result, steps, groups, tf32, transposed)
    return convolutions.forward_ps(library, found, None if bias is None else layout(bias))


def _convolution_backward(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    del kwargs
    grad, given, weight, stride = layout(args[0]), layout(args[1]), args[2], args[4]
    transposed, groups = args[7], args[9]
    image, result = (grad, given) if transposed else (given, grad)
    steps, tf32 = _steps(stride, weight), _allows_tf32_in_convolutions()
    data, of_weight, of_bias = args[10]
    return convolutions.backward_ps(
        library,
        convolutions.Convolution(image, layout(weight), result, steps, groups, tf32, transposed),
        data=data,
        weight=of_weight,
        bias=layout(out[2]) if of_bias else None,
    )


OF_VALUES: Final = frozenset((_ATEN._grouped_mm, _ATEN._scaled_grouped_mm))
"""Operations whose time depends on values."""

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
    _ATEN._grouped_mm: _grouped(2),
    _ATEN._scaled_grouped_mm: _grouped(4),
    _ATEN.convolution: _convolution,
    _ATEN.convolution_backward: _convolution_backward,
}
"""Times of products, by operation."""
