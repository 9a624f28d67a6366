"""Cross entropy of logits whose vocabulary is shared by ranks."""

from typing import Any

import kernbench.torch as torch
from kernbench.extend import guard
from kernbench.tp.primitives import CrossEntropySaved, cross_entropy_bwd, cross_entropy_fwd
from kernbench.tp.utils import Group, group_of

__all__ = ["vocab_parallel_cross_entropy"]


class _VocabParallelCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, target: torch.Tensor, label_smoothing: float, group: Group
    ) -> torch.Tensor:
        loss, saved = cross_entropy_fwd(logits, target, label_smoothing, group)
        ctx.save_for_backward(*saved[:5])
        ctx.rest = saved[5:]
        return loss

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        saved = CrossEntropySaved(*ctx.saved_tensors, *ctx.rest)
        return cross_entropy_bwd(saved, grad), None, None, None


def vocab_parallel_cross_entropy(
    vocab_parallel_logits: torch.Tensor,
    target: torch.Tensor,
    label_smoothing: float = 0.0,
    tp_group: Group | None = None,
) -> torch.Tensor:
    """Returns the loss of each token, the same bits on all ranks; does not wait.

    With smoothing the target keeps `1 - label_smoothing`, and the rest goes to all other classes
    of the whole vocabulary evenly.

    A negative target, such as -100 or -1, names no class: it marks a token that the caller's
    `loss_mask` leaves out. As in Megatron-Core its loss is not 0 but what the target's logit would
    be taken from: the logarithm of the sum of all exponentials, each over the largest; its gradient
    is that of a class with a probability of 0. Both vanish where the mask is 0.

    Beside the logits, forward and backward take at most 1.5 times their bytes in float32, the
    gradient that backward returns included, and some numbers for each token.

    Args:
        vocab_parallel_logits: `[s, b, V/tp]`, the calling rank's part of the vocabulary.
        target: `[s, b]`, ids of the whole vocabulary, or negative numbers.
        label_smoothing: From 0 up to 1, without it.
        tp_group: Which ranks share the vocabulary; by default the tensor-parallel group.

    Returns:
        `[s, b]`, float32 or wider.

    Raises:
        ParallelAssertionError: If the smoothing is out of range, or shapes do not fit.
        IndexOutOfBoundsError: If a target lies above the vocabulary (M1); found when the kernel
            runs.
    """
    group = group_of(tp_group)
    loss: torch.Tensor = _VocabParallelCrossEntropy.apply(
        vocab_parallel_logits, target, label_smoothing, group
    )
    return loss


guard(globals())
