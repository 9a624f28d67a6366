"""Losses of sequences whose places nobody knows."""

from collections.abc import Callable
from typing import Any, Final

import torch

from kernbench.cuda_on_cpu.table import implements

_ATEN: Final = torch.ops.aten


@implements("_ctc_loss_backward", "Meta")
@implements("_ctc_loss_backward.Tensor", "Meta")
def _ctc_loss_backward_shape(grad: torch.Tensor, log_probs: torch.Tensor, *_: Any) -> torch.Tensor:
    return _ATEN.empty_like(log_probs)


def ctc_loss(real: Callable[..., Any], is_ours: Callable[[Any], bool]) -> Callable[..., Any]:
    """Returns `ctc_loss` with the mean over sequences where these are, as on CUDA.

    Lengths on the host are copied to the device then. Source: `ctc_loss` in PyTorch's
    aten/src/ATen/native/LossCTC.cpp.

    Args:
        real: PyTorch's function.
        is_ours: Says whether a tensor is on a simulated device.
    """

    def ctc_loss(
        log_probs: Any,
        targets: Any,
        input_lengths: Any,
        target_lengths: Any,
        blank: int = 0,
        reduction: int = 1,
        zero_infinity: bool = False,
    ) -> Any:
        given = log_probs, targets, input_lengths, target_lengths, blank
        if reduction != 1 or not is_ours(log_probs):
            return real(*given, reduction, zero_infinity)
        losses = real(*given, 0, zero_infinity)
        lengths = torch.as_tensor(target_lengths).clamp_min(1)
        return (losses / lengths.to(losses.device, losses.dtype)).mean()

    return ctc_loss
