"""Losses of `torch.nn.functional` that compare element by element."""

from typing import Literal

from kernbench.autograd import comparisons, curves
from kernbench.errors import OptionError, call_site, site_fact, warn_at_call
from kernbench.nn.activations import bent
from kernbench.nn.losses import Reduction, check_reduction, compared, paired, reduced
from kernbench.operations.elementwise import elementwise
from kernbench.tensors.errors import refuse
from kernbench.tensors.operands import read_in_cpp
from kernbench.tensors.tensor import Tensor

read_in_cpp(__name__)

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "smooth_l1_loss",
]


def l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: None = None,
    reduce: None = None,
    reduction: Reduction = "mean",
    weight: None = None,
) -> Tensor:
    """Returns the absolute differences, or their mean or sum; if shapes differ, it warns.

    Args:
        target: Values to compare with.
        size_average: Must be None: PyTorch's old name for `reduction`.
        reduce: Must be None: PyTorch's old name for `reduction`.
        reduction: `none`, `mean` or `sum`.
        weight: Must be None.

    Raises:
        TensorError: If the shapes do not broadcast.
        UnsupportedError: If an argument that must be None is not.
    """
    refuse("l1_loss", size_average=size_average, reduce=reduce, weight=weight)
    input, target = paired("l1_loss", input, target)
    return reduced((input - target).abs(), reduction)


def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: None = None,
    reduce: None = None,
    reduction: Reduction = "mean",
    beta: float = 1.0,
) -> Tensor:
    """Returns half the squares over `beta` of small differences, absolute ones less half of it.

    Args:
        target: Values to compare with.
        size_average: Must be None: PyTorch's old name for `reduction`.
        reduce: Must be None: PyTorch's old name for `reduction`.
        reduction: `none`, `mean` or `sum`.
        beta: Difference from which on the loss grows evenly.

    Raises:
        OptionError: If `beta` is negative.
        TensorError: If the shapes do not broadcast.
        UnsupportedError: If an argument that must be None is not.
    """
    refuse("smooth_l1_loss", size_average=size_average, reduce=reduce)
    if beta < 0:
        raise OptionError(
            "smooth_l1_loss does not support negative values for beta.", [site_fact(call_site())]
        )
    if beta == 0:
        return l1_loss(input, target, reduction=reduction)
    input, target = paired("smooth_l1_loss", input, target)
    return compared("smooth_l1_loss", comparisons.smooth_l1(beta), input, target, reduction)


def huber_loss(
    input: Tensor,
    target: Tensor,
    reduction: Reduction = "mean",
    delta: float = 1.0,
    weight: None = None,
) -> Tensor:
    """Returns half the squares of small differences, and `delta` times large ones less half of it.

    Args:
        target: Values to compare with.
        reduction: `none`, `mean` or `sum`.
        delta: Difference from which on the loss grows evenly.
        weight: Must be None.

    Raises:
        OptionError: If `delta` is not above 0.
        TensorError: If the shapes do not broadcast.
        UnsupportedError: For `weight`.
    """
    refuse("huber_loss", weight=weight)
    if delta <= 0:
        raise OptionError(
            "huber_loss does not support non-positive values for delta.", [site_fact(call_site())]
        )
    input, target = paired("huber_loss", input, target)
    return compared("huber_loss", comparisons.huber(delta), input, target, reduction)


def binary_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: None = None,
    reduce: None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """Returns the cross entropy of probabilities of two classes.

    Logarithms are bounded by -100 from below, as in PyTorch.

    Args:
        input: Probabilities from 0 to 1. PyTorch fails on the device for others; here they give
            nan.
        target: Probabilities of the class, of the same shape.
        weight: Factors that broadcast to the shape; None for 1.
        size_average: Must be None: PyTorch's old name for `reduction`.
        reduce: Must be None: PyTorch's old name for `reduction`.
        reduction: `none`, `mean` or `sum`.

    Raises:
        OptionError: If the shapes differ.
        UnsupportedError: If an argument that must be None is not.
    """
    refuse("binary_cross_entropy", size_average=size_average, reduce=reduce)
    check_reduction(reduction)
    _check_shapes("binary_cross_entropy", input, target)
    name, comparison = "binary_cross_entropy", comparisons.ENTROPY
    if weight is None:
        return compared(name, comparison, input, target, reduction)
    return reduced(compared(name, comparison, input, target, "none") * weight, reduction)


def _check_shapes(name: str, input: Tensor, target: Tensor) -> None:
    if input.window.shape != target.window.shape:
        raise OptionError(
            f"{name}: target size ({target.shape}) must be the same as input size ({input.shape})",
            [site_fact(call_site())],
        )


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: None = None,
    reduce: None = None,
    reduction: Reduction = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """Returns the cross entropy of the sigmoid of logits, without overflow.

    Args:
        input: Logits.
        target: Probabilities of the class, of the same shape.
        weight: Factors that broadcast to the shape; None for 1.
        size_average: Must be None: PyTorch's old name for `reduction`.
        reduce: Must be None: PyTorch's old name for `reduction`.
        reduction: `none`, `mean` or `sum`.
        pos_weight: Factors of the class, which broadcast to the shape; None for 1.

    Raises:
        OptionError: If the shapes differ.
        UnsupportedError: If an argument that must be None is not.
    """
    name = "binary_cross_entropy_with_logits"
    refuse(name, size_average=size_average, reduce=reduce)
    check_reduction(reduction)
    _check_shapes(name, input, target)
    if weight is None and pos_weight is None:
        return compared(name, comparisons.LOGITS, input, target, reduction)
    logs = bent("log_sigmoid_forward", curves.LOG_SIGMOID, input)
    if pos_weight is not None:
        logs = logs * ((pos_weight - 1) * target + 1)
    loss = (1 - target) * input - logs
    return reduced(loss if weight is None else loss * weight, reduction)


def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: None = None,
    reduce: None = None,
    reduction: Literal["none", "mean", "sum", "batchmean"] = "mean",
    log_target: bool = False,
) -> Tensor:
    """Returns the divergence of Kullback and Leibler from a distribution.

    Args:
        input: Logarithms of probabilities.
        target: Probabilities of the distribution; shapes broadcast.
        size_average: Must be None: PyTorch's old name for `reduction`.
        reduce: Must be None: PyTorch's old name for `reduction`.
        reduction: `none`, `mean`, `sum`, or `batchmean`, the sum over the extent of the first
            dimension; `mean` warns, as in PyTorch, since it divides by the classes too.
        log_target: Whether `target` has logarithms.

    Raises:
        OptionError: If `reduction` is none of these.
        UnsupportedError: If an argument that must be None is not.
    """
    refuse("kl_div", size_average=size_average, reduce=reduce)
    whole: Reduction = "sum" if reduction == "batchmean" else reduction
    check_reduction(whole)
    if log_target:
        loss = target.exp() * (target - input)
    else:
        loss = elementwise("aten::xlogy", curves.xlogy, target, target) - target * input
    if reduction == "mean":
        warn_at_call(
            "kl_div: reduction 'mean' divides by the batch size and by the number of classes; "
            "'batchmean' divides by the batch size only, as the definition does"
        )
    found, shape = reduced(loss, whole), input.window.shape
    return found / shape[0] if reduction == "batchmean" and shape else found
