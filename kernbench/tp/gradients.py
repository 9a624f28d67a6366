"""What is left to do with the gradients of a model in shards before its optimiser sees them.

Megatron-Core does it in `finalize_model_grads` and in the clipping of its optimisers.
"""

from collections.abc import Iterable

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.extend import guard
from kernbench.tp.utils import Group, group_of, size_of


def param_is_not_tensor_parallel_duplicate(
    param: torch.Tensor, tp_group: Group | None = None
) -> bool:
    """Returns whether a parameter counts on the calling rank where it must count once.

    Args:
        param: A shard, marked `tensor_model_parallel`, counts on every rank; what all ranks hold
            counts on the first one.
        tp_group: Who shares; by default the tensor-parallel group.
    """
    return getattr(param, "tensor_model_parallel", False) or dist.get_rank(group_of(tp_group)) == 0


def finalize_model_grads(model: torch.nn.Module, tp_group: Group | None = None) -> None:
    """Sums the gradients of which sequence parallelism leaves a part on each rank.

    These are of parameters that all ranks hold and that were applied to a rank's own rows: those
    marked `sequence_parallel`. They travel together, in one all-reduce a type. The host waits for
    nothing.

    Args:
        model: Called on all ranks of the group, after a backward pass.
        tp_group: Who shares the rows; by default the tensor-parallel group.
    """
    group = group_of(tp_group)
    if size_of(group) == 1:
        return
    by_type: dict[torch.dtype, list[torch.Tensor]] = {}
    for parameter in model.parameters():
        if getattr(parameter, "sequence_parallel", False) and parameter.grad is not None:
            by_type.setdefault(parameter.dtype, []).append(parameter.grad)
    for grads in by_type.values():
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        dist.all_reduce(flat, group=group)
        for grad, part in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
            grad.copy_(part.view(grad.shape))


def clip_grad_norm_(
    parameters: Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    tp_group: Group | None = None,
) -> torch.Tensor:
    """Scales gradients so that the norm of the whole model's is at most `max_norm`.

    Unlike `torch.nn.utils.clip_grad_norm_` it counts once what all ranks of a group hold. The host
    waits for nothing.

    Args:
        parameters: Of the calling rank's part; those without gradient are left out.
        max_norm: Largest norm.
        norm_type: Which norm; `inf` for the largest size.
        tp_group: Who shares the model; by default the tensor-parallel group.

    Returns:
        The norm before, a single value.
    """
    group = group_of(tp_group)
    members = list(parameters)
    counted = [
        member.grad
        for member in members
        if member.grad is not None and param_is_not_tensor_parallel_duplicate(member, group)
    ]
    norm = torch.nn.utils.get_total_norm(counted, norm_type, group=group)
    torch.nn.utils.clip_grads_with_norm_(members, max_norm, norm)
    return norm


guard(globals())
