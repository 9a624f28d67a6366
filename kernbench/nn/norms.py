"""Norms over other dimensions than the last: `batch_norm` and `group_norm`."""

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from kernbench.errors import OptionError, call_site, site_fact
from kernbench.kernels.prices import WITH_STATISTICS
from kernbench.memory import Array
from kernbench.operations.fused import kernel, widened
from kernbench.tensors.errors import TensorError
from kernbench.tensors.operands import read_in_cpp
from kernbench.tensors.tensor import Tensor

read_in_cpp(__name__)

__all__ = ["batch_norm", "group_norm"]


def normalised(
    name: str,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    axes: Sequence[int],
    eps: float,
    beside: tuple[Sequence[Tensor], Callable[[], None]] | None = None,
) -> Tensor:
    """Returns values with mean 0 and variance 1 along some dimensions, times and plus: one kernel.

    Args:
        name: Name of the operation, which has a derivative.
        weight: Factors that broadcast to the input; None for 1.
        bias: Summands that broadcast to the input; None for 0.
        axes: The dimensions.
        eps: Number added to the variance.
        beside: Further tensors that the kernel writes, and the function that writes them.
    """
    along = tuple(axes)

    def compute(x: Array, w: Array | None, b: Array | None) -> Array:
        if not x.size:
            return x
        gap = x - np.mean(x, axis=along, keepdims=True)
        gap /= np.sqrt(np.mean(gap * gap, axis=along, keepdims=True) + x.dtype.type(eps))
        if w is not None:
            gap = gap * w
        result: Array = gap if b is None else gap + b
        return result

    operands = (input, weight, bias)
    shape, dtype = input.window.shape, input.dtype
    return kernel(name, compute, operands, shape, dtype, beside=beside, axes=along, eps=eps)


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalises groups of channels to mean 0 and variance 1, then applies `weight` and `bias`.

    Args:
        input: Tensor of shape `[N, C, ...]`.
        num_groups: Number of groups that the channels are divided into.
        weight: Factors of shape `[C]`; None for 1.
        bias: Summands of shape `[C]`; None for 0.
        eps: Number added to the variance.

    Raises:
        OptionError: If there is one value only in each group.
        TensorError: If the shapes do not fit.
    """
    shape = input.window.shape
    if len(shape) < 2:
        raise TensorError(
            f"Expected at least 2 dimensions for input tensor but received {len(shape)}",
            [site_fact(call_site())],
        )
    if num_groups <= 0 or shape[1] % num_groups:
        raise TensorError(
            f"Expected number of channels in input to be divisible by num_groups, but got input of "
            f"shape {list(shape)} and num_groups={num_groups}",
            [site_fact(call_site())],
        )
    check_values(shape, prod(shape) // (num_groups or 1))
    _check_channels("group_norm", shape[1], weight=weight, bias=bias)
    parts = (num_groups, shape[1] // num_groups)
    grouped = input.reshape(shape[0], *parts, *shape[2:])
    ones = (1,) * (len(shape) - 2)
    scale, shift = (
        None if each is None else each.reshape(*parts, *ones) for each in (weight, bias)
    )
    axes = range(2, len(shape) + 1)
    return normalised("group_norm", grouped, scale, shift, axes, eps).reshape(shape)


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalises each channel to mean 0 and variance 1, then applies `weight` and `bias`.

    While training, the same kernel takes the statistics of the input and moves the running ones.

    Args:
        input: Tensor of shape `[N, C, ...]`.
        running_mean: Means of shape `[C]`, used unless training, moved while training; None while
            training for none.
        running_var: Variances of shape `[C]`, used and moved likewise.
        weight: Factors of shape `[C]`; None for 1.
        bias: Summands of shape `[C]`; None for 0.
        training: Whether to use the statistics of the input.
        momentum: Share of the input's statistics in the new running ones.
        eps: Number added to the variance.

    Raises:
        OptionError: If there is one value a channel while training.
        TensorError: If the shapes do not fit, or running statistics are needed and missing.
    """
    shape = input.window.shape
    if len(shape) < 2:
        raise TensorError(
            f"batch_norm: expected an input of at least 2 dimensions, got shape {list(shape)}",
            [site_fact(call_site())],
        )
    channels, count = shape[1], prod(shape) // (shape[1] or 1)
    if training:
        check_values(shape, count)
    given = {"running_mean": running_mean, "running_var": running_var}
    _check_channels("batch_norm", channels, weight=weight, bias=bias, **given)
    form = (channels, *(1,) * (len(shape) - 2))
    scale, shift = (None if each is None else each.reshape(form) for each in (weight, bias))
    if not training:
        if running_mean is None or running_var is None:
            raise TensorError(
                "batch_norm: expected running_mean and running_var to be defined when "
                "training=False",
                [site_fact(call_site())],
            )
        return _with_statistics(
            input, running_mean.reshape(form), running_var.reshape(form), scale, shift, eps
        )
    axes = (0, *range(2, len(shape)))
    beside = None
    if running_mean is not None and running_var is not None:
        beside = _moving(input, running_mean, running_var, axes, momentum, count)
    return normalised("batch_norm", input, scale, shift, axes, eps, beside)


def check_values(shape: tuple[int, ...], count: int) -> None:
    """Checks that there is something to normalise.

    Raises:
        OptionError: If there is one value only in each channel or group.
    """
    if count == 1:
        raise OptionError(
            f"Expected more than 1 value per channel when training, got input size {list(shape)}",
            [site_fact(call_site())],
        )


def _check_channels(name: str, channels: int, **tensors: Tensor | None) -> None:
    for what, each in tensors.items():
        if each is not None and each.window.shape != (channels,):
            raise TensorError(
                f"{name}: {what} should contain {channels} elements not {each.window.numel}",
                [site_fact(call_site()), f"its shape is {list(each.window.shape)}"],
            )


def _moving(
    input: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    axes: tuple[int, ...],
    momentum: float,
    count: int,
) -> tuple[Sequence[Tensor], Callable[[], None]]:
    """Returns running statistics, and a function that moves them towards those of the input."""
    source, centre, size = input.window, running_mean.window, running_var.window

    def move() -> None:
        x = widened(source)
        found = (np.mean(x, axis=axes), np.var(x, axis=axes) * (count / max(count - 1, 1)))
        for view, new in zip((centre, size), found, strict=True):
            view.store(widened(view) * (1 - momentum) + new * momentum)

    return (running_mean, running_var), move


def _with_statistics(
    input: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    def compute(x: Array, w: Array | None, b: Array | None, centre: Array, size: Array) -> Array:
        factor = 1 / np.sqrt(size + size.dtype.type(eps))
        result: Array = (x - centre) * (factor if w is None else factor * w)
        return result if b is None else np.asarray(result + b)

    return kernel(
        "batch_norm_elemt",
        compute,
        (input, weight, bias, mean, var),
        input.window.shape,
        input.dtype,
        price=WITH_STATISTICS,
        mean=mean,
        var=var,
        eps=eps,
    )
