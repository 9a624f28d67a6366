"""The parts of `SyncBatchNorm`; without numbers, the same functions give the shapes."""

from typing import Final

import torch

from kernbench.cuda_on_cpu.table import implements, wide

_CHANNELS: Final = 1
Pair = tuple[torch.Tensor, torch.Tensor]


def _axes(tensor: torch.Tensor) -> list[int]:
    return [axis for axis in range(tensor.dim()) if axis != _CHANNELS]


def _along(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Returns one value for each channel in a shape that fits a tensor's."""
    return values.reshape([-1 if axis == _CHANNELS else 1 for axis in range(like.dim())])


@implements("batch_norm_stats", "CPU", "Meta")
def _stats(input: torch.Tensor, eps: float) -> Pair:
    """Mean and reciprocal deviation of each channel."""
    given, axes = wide(input), _axes(input)
    mean = given.mean(axes)
    variance = (given - _along(mean, given)).pow(2).mean(axes)
    return mean, (variance + eps).rsqrt()


@implements("batch_norm_gather_stats_with_counts", "CPU", "Meta")
def _gather_stats(
    input: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    counts: torch.Tensor,
) -> Pair:
    """Mean and reciprocal deviation over all ranks, of which each gives its own."""
    del input
    each = wide(counts).reshape(-1, 1)
    total = each.sum()
    whole = (mean * each).sum(0) / total
    squares = ((invstd.pow(-2) - eps + (mean - whole).pow(2)) * each).sum(0)
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_(whole * momentum)
    if running_var is not None:
        running_var.mul_(1 - momentum).add_(squares / (total - 1) * momentum)
    return whole, (squares / total + eps).rsqrt()


@implements("batch_norm_elemt", "CPU", "Meta")
def _normed(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """The input with the given mean and deviation, scaled and moved."""
    del eps  # it is in the deviation
    out = (wide(input) - _along(mean, input)) * _along(invstd, input)
    if weight is not None:
        out = out * _along(weight, input)
    if bias is not None:
        out = out + _along(bias, input)
    return out.to(input.dtype)


@implements("batch_norm_backward_reduce", "CPU", "Meta")
def _reduced(
    grad_out: torch.Tensor,
    input: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: torch.Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[torch.Tensor | None, ...]:
    """Sums of each channel that the gradients need, and those of weight and bias."""
    grad, axes = wide(grad_out), _axes(input)
    plain = grad.sum(axes)
    centred = (grad * (wide(input) - _along(mean, input))).sum(axes)
    kind = input.dtype if weight is None else weight.dtype
    return (
        plain if input_g else None,
        centred if input_g else None,
        (centred * invstd).to(kind) if weight_g else None,
        plain.to(kind) if bias_g else None,
    )


@implements("batch_norm_backward_elemt", "CPU", "Meta")
def _slope(
    grad_out: torch.Tensor,
    input: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: torch.Tensor | None,
    sum_dy: torch.Tensor,
    sum_dy_xmu: torch.Tensor,
    count: torch.Tensor,
) -> torch.Tensor:
    """Gradient of the input, from the sums over all ranks."""
    total = count.sum()
    centred = (wide(input) - _along(mean, input)) * _along(
        sum_dy_xmu / total * invstd.pow(2), input
    )
    slope = wide(grad_out) - _along(sum_dy / total, input) - centred
    factor = invstd if weight is None else invstd * weight
    return (slope * _along(factor, input)).to(input.dtype)
