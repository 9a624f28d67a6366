"""RMS norms, which CUDA computes in one kernel."""

from typing import Final

import torch

from kernbench.cuda_on_cpu.table import Tensors, all_wide, implements, wide

_ATEN: Final = torch.ops.aten


def _statistics(input: torch.Tensor, normalized_shape: list[int]) -> tuple[list[int], list[int]]:
    """Returns the dimensions of a norm, and the shape of what it keeps of each row."""
    count = len(normalized_shape)
    axes = list(range(input.dim() - count, input.dim()))
    return axes, [*input.shape[: input.dim() - count], *[1] * count]


@implements("_fused_rms_norm")
def _fused_rms_norm(
    input: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None,
    eps: float | None,
) -> Tensors:
    axes, _ = _statistics(input, normalized_shape)
    given = wide(input)
    epsilon = torch.finfo(given.dtype).eps if eps is None else eps
    scale = (given.pow(2).mean(axes, keepdim=True) + epsilon).rsqrt()
    out = given * scale
    if weight is not None:
        out = out * weight
    return out.to(input.dtype).contiguous(), scale


@implements("_fused_rms_norm", "Meta")
def _fused_rms_norm_shapes(
    input: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None,
    eps: float | None,
) -> Tensors:
    del weight, eps
    _, shape = _statistics(input, normalized_shape)
    kind = torch.float64 if input.dtype is torch.float64 else torch.float32
    out = _ATEN.empty_like(input, memory_format=torch.contiguous_format)
    return out, _ATEN.empty.memory_format(shape, dtype=kind, device="meta")


@implements("_fused_rms_norm_backward")
def _fused_rms_norm_backward(
    grad_out: torch.Tensor,
    input: torch.Tensor,
    normalized_shape: list[int],
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    output_mask: list[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    axes, _ = _statistics(input, normalized_shape)
    grad, given, factor = all_wide(grad_out, input, weight)
    normed = given * rstd
    above = grad if factor is None else grad * factor
    slope, of_weight = None, None
    if output_mask[0]:
        mean = (above * normed).mean(axes, keepdim=True)
        slope = ((above - normed * mean) * rstd).to(input.dtype)
    if output_mask[1] and weight is not None:
        rows = list(range(input.dim() - len(normalized_shape)))
        products = grad * normed
        of_weight = (products.sum(rows) if rows else products).to(weight.dtype)
    return slope, of_weight
