"""Elementwise operations, fills, copies, and gradients of views: which kernel each is."""

from typing import Any, Final

import torch

from kernbench.bridge.operations.costs_operands import Formula, layout, layouts, priced
from kernbench.bridge.tensors.operands import tensors_in
from kernbench.hw.library import Library
from kernbench.kernels import copies, losses
from kernbench.kernels.operands import Layout
from kernbench.kernels.prices import POINTWISE, PRICES


def by_name(name: str) -> Formula:
    """Returns the time of an operation as its name says; of most names, an elementwise one."""
    return priced(PRICES.get(name) or PRICES.get(name.removesuffix("_"), POINTWISE))


def copying(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    """Returns the time of a copy.

    Args:
        args: The source; of `copy_`, the target and the source.
        kwargs: Not looked at: what they ask for shows in the result.
        out: The target.
    """
    del kwargs
    source = args[1] if len(args) > 1 and isinstance(args[1], torch.Tensor) else args[0]
    return copies.duration_ps(library, layout(source), layout(next(tensors_in(out))))


def _of_part(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    """The gradient of a slice, an element of a dimension, or a diagonal: the dimensions differ."""
    del kwargs
    grad, whole = layout(args[0]), layout(out)
    steps = list(whole.strides)
    if len(args) == 6:
        steps[args[2]] *= args[5]
    elif len(args) == 5:
        first, second = (dim % len(steps) for dim in args[3:])
        steps.append(steps[first] + steps[second])
        steps = [step for dim, step in enumerate(steps) if dim not in (first, second)]
    else:
        del steps[args[2]]
    part = Layout(grad.shape, tuple(steps), whole.dtype)
    return copies.placed_ps(library, grad, part, whole)


def _of_logits(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    """Cross entropy of logits; factors of the class take two kernels, and one more with them."""
    del kwargs
    weight, of_class = (*args[2:4], None, None)[:2]
    kernels = [1, 1, 2, 2]
    if of_class is not None:
        kernels += [1, 1, 2]
    if weight is not None:
        kernels.append(2)
    return losses.loss_ps(library, layouts(args[:2]), layouts(out), kernels)


_ATEN: Final = torch.ops.aten

FORMULAS: Final[dict[Any, Formula]] = {
    **dict.fromkeys(
        (_ATEN.slice_backward, _ATEN.select_backward, _ATEN.diagonal_backward), _of_part
    ),
    _ATEN.binary_cross_entropy_with_logits: _of_logits,
}
"""Times of losses and of gradients of views, by operation."""
