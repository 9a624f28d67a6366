"""Losses of `torch.nn.functional`."""

from typing import Literal

from kernbench.autograd.class_loss import ClassLoss
from kernbench.autograd.comparisons import SQUARE, Comparison, Loss
from kernbench.errors import OptionError, UnsupportedError, call_site, site_fact, warn_at_call
from kernbench.memory import dtypes
from kernbench.operations.elementwise import broadcast, check_complex, layout
from kernbench.operations.fused import kernel
from kernbench.operations.reductions import log_softmax
from kernbench.operations.unary import refuse_integer
from kernbench.tensors.errors import TensorError, refuse
from kernbench.tensors.nodes import edge_of
from kernbench.tensors.operands import read_in_cpp
from kernbench.tensors.promotion import result_type
from kernbench.tensors.tensor import Tensor

read_in_cpp(__name__)

__all__ = ["cross_entropy", "mse_loss", "nll_loss"]

Reduction = Literal["none", "mean", "sum"]


def check_reduction(reduction: str) -> None:
    """Checks how a loss is reduced.

    Raises:
        OptionError: If it is none of `none`, `mean` and `sum`.
    """
    if reduction not in {"none", "mean", "sum"}:
        raise OptionError(
            f"{reduction} is not a valid value for reduction",
            [site_fact(call_site())],
            hint="'none', 'mean' or 'sum'",
        )


def reduced(loss: Tensor, reduction: str) -> Tensor:
    """Returns the loss of each element, or their mean or sum."""
    check_reduction(reduction)
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" else loss.sum()


def paired(name: str, input: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Returns two tensors of one shape, which warns if they are broadcast.

    Args:
        name: Name of the loss, for the warning.
        target: Values to compare with.
    """
    if input.window.shape == target.window.shape:
        return input, target
    warn_at_call(
        f"{name}: a target of shape {list(target.window.shape)} is broadcast with an input "
        f"of shape {list(input.window.shape)}: give both the same shape"
    )
    # PyTorch promotes the types of the broadcast tensors, where no single value counts less.
    shape = broadcast(name, [input.window.shape, target.window.shape])
    return input.expand(shape), target.expand(shape)


def mse_loss(
    input: Tensor,
    target: Tensor,
    size_average: None = None,
    reduce: None = None,
    reduction: Reduction = "mean",
    weight: None = None,
) -> Tensor:
    """Returns the squared differences, or their mean or sum.

    If the shapes differ, the call warns and broadcasts.

    Args:
        target: Values to compare with.
        size_average: Must be None: PyTorch's old name for `reduction`.
        reduce: Must be None: PyTorch's old name for `reduction`.
        reduction: `none`, `mean` or `sum`.
        weight: Must be None.

    Raises:
        TensorError: If the shapes do not broadcast.
        ComplexError: For complex numbers, as in PyTorch.
        UnsupportedError: If an argument that must be None is not.
    """
    refuse("mse_loss", size_average=size_average, reduce=reduce, weight=weight)
    input, target = paired("mse_loss", input, target)
    return compared("mse_loss", SQUARE, input, target, reduction)


def compared(
    name: str,
    comparison: Comparison,
    input: Tensor,
    target: Tensor,
    reduction: str,
) -> Tensor:
    """Returns a loss of each pair of elements, or their mean or sum, as one kernel.

    Args:
        name: Name of the loss, which has formulas.
        comparison: The loss of a pair.
        target: Values to compare with, of the same shape.
        reduction: `none`, `mean` or `sum`.

    Raises:
        TensorError: For integers, as in PyTorch.
        ComplexError: For complex numbers, as in PyTorch.
    """
    check_reduction(reduction)
    dtype = result_type((input, target))
    refuse_integer(name, dtype)
    if dtype.is_complex:
        check_complex(name, dtype, frozenset())
    shape = input.window.shape if reduction == "none" else ()
    loss = Loss(comparison, reduction)
    strides = layout(shape, (input, target)) if reduction == "none" else None
    operands = (input, target)
    return kernel(name, loss.value, operands, shape, dtype, strides=strides, loss=loss)


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: None = None,
    ignore_index: int = -100,
    reduce: None = None,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Returns the cross entropy between logits and classes, as in `torch`.

    Two kernels; a share that is spread over all classes takes several more.

    Args:
        input: Logits of shape `[classes]`, `[N, classes]` or `[N, classes, ...]`.
        target: Classes, of the input's shape without `classes`; or probabilities, of the input's
            shape.
        weight: Factor of each class, `[classes]`; None for 1.
        size_average: Must be None: PyTorch's old name for `reduction`.
        ignore_index: Class whose targets do not count.
        reduce: Must be None: PyTorch's old name for `reduction`.
        reduction: `none`, `sum` or `mean`; `mean` divides by the weights of the targets that count.
        label_smoothing: Share of the target that is spread over all classes, from 0 to 1.

    Raises:
        TensorError: If the shapes do not fit, or `label_smoothing` is out of range.
        IndexOutOfBoundsError: If a class does not exist (M1); found when the kernel runs.
        UnsupportedError: If an argument that must be None is not, or `weight` needs a gradient.
    """
    refuse("cross_entropy", size_average=size_average, reduce=reduce)
    check_reduction(reduction)
    if not 0 <= label_smoothing <= 1:
        raise TensorError(
            f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}",
            [site_fact(call_site())],
        )
    place = 1 if len(input.window.shape) > 1 else 0
    logs = log_softmax(input, place)
    if not target.dtype.is_floating_point:
        loss = _class_loss(logs, target, weight, ignore_index, reduction)
        if not label_smoothing:
            return loss
        spread = _spread(logs, target, weight, ignore_index, reduction)
        share = label_smoothing / max(input.window.shape[place], 1)
        return loss * (1 - label_smoothing) + spread * share
    if target.window.shape != input.window.shape:
        raise TensorError(
            f"cross_entropy: probabilities of shape {list(target.window.shape)} for an input of "
            f"shape {list(input.window.shape)}",
            [site_fact(call_site())],
        )
    classes = input.window.shape[place]
    soft = target
    if label_smoothing:
        soft = target * (1 - label_smoothing) + label_smoothing / max(classes, 1)
    if weight is not None:
        soft = soft * weight.reshape(classes, *(1,) * (len(input.window.shape) - 1 - place))
    loss = soft * logs
    if reduction == "none":
        return -loss.sum(place)
    total = -loss.sum()
    if reduction == "sum":
        return total
    # As in PyTorch, the mean over nothing is nan.
    return total / (float(loss.window.numel // classes) if classes else 0.0)


def _spread(
    logs: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str
) -> Tensor:
    """Returns the loss of all classes alike, by the kernels of PyTorch."""
    place = 1 if len(logs.window.shape) > 1 else 0
    if weight is not None:
        form = (-1, *(1,) * (len(logs.window.shape) - 1 - place))
        logs = logs * weight.reshape(form)
    ignored = target == ignore_index
    loss = (-logs.sum(place)).masked_fill_(ignored, 0)
    if reduction != "mean":
        return loss if reduction == "none" else loss.sum()
    counts = ~ignored
    if weight is None:
        return loss.sum() / counts.sum()
    chosen = weight.index_select(0, target.long().masked_fill(ignored, 0).flatten())
    return loss.sum() / chosen.masked_fill_(ignored.flatten(), 0).sum()


def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: None = None,
    ignore_index: int = -100,
    reduce: None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """Returns minus the log-probability of each target's class, as `torch.nn.functional.nll_loss`.

    Args:
        input: Logarithms of probabilities, of shape `[classes]`, `[N, classes]` or `[N, classes,
            ...]`.
        target: Classes, of the input's shape without `classes`.
        weight: Factor of each class, `[classes]`; None for 1.
        size_average: Must be None: PyTorch's old name for `reduction`.
        ignore_index: Class whose targets do not count.
        reduce: Must be None: PyTorch's old name for `reduction`.
        reduction: `none`, `sum` or `mean`; `mean` divides by the weights of the targets that count.

    Raises:
        TensorError: If the shapes do not fit.
        IndexOutOfBoundsError: If a class does not exist (M1); found when the kernel runs.
        UnsupportedError: If an argument that must be None is not, or `weight` needs a gradient.
    """
    refuse("nll_loss", size_average=size_average, reduce=reduce)
    check_reduction(reduction)
    return _class_loss(input, target, weight, ignore_index, reduction)


def _class_loss(
    logs: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
) -> Tensor:
    if target.window.dtype not in {dtypes.int64, dtypes.uint8}:
        raise TensorError(
            f"cross_entropy: expected a target of torch.int64 or torch.uint8, got "
            f"{target.window.dtype}",
            [site_fact(call_site())],
            hint="target.long() converts classes",
        )
    shape = logs.window.shape
    place = 1 if len(shape) > 1 else 0
    expected = (*shape[:place], *shape[place + 1 :])
    if target.window.shape != expected:
        raise TensorError(
            f"cross_entropy: target of shape {list(target.window.shape)} for an input of shape "
            f"{list(shape)}",
            [site_fact(call_site()), f"expected {list(expected)}"],
        )
    classes = shape[place]
    if weight is not None and weight.window.shape != (classes,):
        raise TensorError(
            f"weight tensor should be defined either for all {classes} classes or no classes but "
            f"got weight tensor of shape: {list(weight.window.shape)}",
            [site_fact(call_site())],
        )
    if weight is not None and edge_of(weight) is not None:
        raise UnsupportedError(
            "cross_entropy: the gradient of the weights of classes is not simulated, as in PyTorch",
            [site_fact(call_site())],
        )
    law = ClassLoss(classes, place, ignore_index, reduction)
    out = expected if reduction == "none" else ()
    name = "nll_loss" if len(shape) <= 2 else "nll_loss2d"
    return kernel(name, law.loss, (logs, target, weight), out, logs.dtype, law=law)
