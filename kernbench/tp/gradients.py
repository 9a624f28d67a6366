"""What is left to do with the gradients of a model in shards before its optimiser sees them.

Megatron-Core does it in `finalize_model_grads` and in the clipping of its optimisers. A parameter's
gradient is its `main_grad` if it has one, else its `grad`.
"""

from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.extend import guard
from kernbench.parallel import parallel_state, shards
from kernbench.parallel.groups import ProcessGroupCollection
from kernbench.parallel.members import refuse
from kernbench.tp.utils import Group, group_of, size_of

_Modules = torch.nn.Module | Sequence[torch.nn.Module]
_Parameters = torch.Tensor | Iterable[torch.Tensor]


def _grad(param: torch.Tensor) -> torch.Tensor | None:
    held = getattr(param, "main_grad", None)
    return param.grad if held is None else held


def _listed(parameters: _Parameters) -> list[torch.Tensor]:
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)


# What counts where


def param_is_not_shared(param: torch.Tensor) -> bool:
    """Returns whether a parameter is no copy of one of another pipeline stage.

    Args:
        param: A copy is marked `shared`, as Megatron-Core marks the word embedding of the last
            stage that is that of the first one, too.
    """
    return not vars(param).get("shared", False)


def param_is_not_tensor_parallel_duplicate(
    param: torch.Tensor, tp_group: Group | None = None, expert_tp_group: Group | None = None
) -> bool:
    """Returns whether a parameter counts on the calling rank where it must count once.

    Args:
        param: A shard, marked `tensor_model_parallel`, counts on every rank; what all ranks hold
            counts on the first one.
        tp_group: Who shares; by default the tensor-parallel group.
        expert_tp_group: Who shares a parameter marked `allreduce = False`; by default the
            tensor-parallel group of experts if `tp_group` is not given, else that one.
    """
    if getattr(param, "tensor_model_parallel", False):
        return True
    if shards.is_expert(param) and expert_tp_group is not None:
        group = expert_tp_group
    elif shards.is_expert(param) and tp_group is None:
        group = parallel_state.get_expert_tensor_parallel_group()
    else:
        group = group_of(tp_group)
    return dist.get_rank(group) == 0


# Finalising


def finalize_model_grads(
    model: _Modules,
    num_tokens: torch.Tensor | None = None,
    pg_collection: ProcessGroupCollection | None = None,
    force_all_reduce: bool | None = False,
    *,
    tp_group: Group | None = None,
) -> None:
    """Sums the gradients of which ranks hold a part each. The host waits for nothing.

    In this order: pieces of the model that have a `finish_grad_sync` finish it; parameters that all
    ranks hold and that were applied to a rank's own rows, marked `sequence_parallel`, are summed
    over the tensor-parallel group, those of experts over theirs; embeddings that the first and the
    last pipeline stage share are summed over the embedding group: parameters marked
    `shared_embedding`, and `position_embeddings.weight` over the position-embedding group. What is
    summed over one group travels together, in one all-reduce a type.

    Args:
        model: The pieces of the calling rank, on all ranks, after a backward pass.
        num_tokens: Tokens of the calling rank's batch, a single value; that of the last pipeline
            stage counts. Gradients are divided by the sum over the data-parallel group, with
            context parallelism, if that is not 0.
        pg_collection: The groups `tp`, `expt_tp`, `embd`, `pos_embd`, `pp` and `dp_cp`; those that
            it does not have are left out. By default those of `parallel_state`.
        force_all_reduce: Has no effect: without a distributed optimiser gradients are always
            all-reduced.
        tp_group: Who shares the rows; then nothing is done over other groups.

    Raises:
        ParallelError: If both `tp_group` and one of the other two are given.
    """
    del force_all_reduce
    if tp_group is not None and (num_tokens is not None or pg_collection is not None):
        raise refuse("finalize_model_grads takes tp_group, or num_tokens and pg_collection")
    pieces = [model] if isinstance(model, torch.nn.Module) else list(model)
    if tp_group is not None:
        groups = ProcessGroupCollection(tp=tp_group)
    else:
        groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups()
    for piece in pieces:
        finish = getattr(piece, "finish_grad_sync", None)
        if finish is not None:
            finish()
    params = _unique(pieces)
    rows = [p for p in params if getattr(p, "sequence_parallel", False)]
    _sum_together([p for p in rows if not shards.is_expert(p)], groups.tp)
    _sum_together([p for p in rows if shards.is_expert(p)], groups.expt_tp or groups.tp)
    embeddings = [p for p in params if getattr(p, "shared_embedding", False)]
    _sum_together(embeddings, groups.embd, missing_as_zero=True)
    _sum_together(_position_embeddings(pieces), groups.pos_embd, missing_as_zero=True)
    if num_tokens is not None:
        _divide(params, num_tokens, groups)


def _unique(pieces: Sequence[torch.nn.Module]) -> list[torch.Tensor]:
    found: dict[int, torch.Tensor] = {}
    for piece in pieces:
        found |= {id(each): each for each in piece.parameters()}
    return list(found.values())


def _position_embeddings(pieces: Sequence[torch.nn.Module]) -> list[torch.Tensor]:
    modules = (module for piece in pieces for module in piece.modules())
    layers = (getattr(module, "position_embeddings", None) for module in modules)
    weights = [layer.weight for layer in layers if layer is not None]
    return list({id(each): each for each in weights}.values())


def _sum_together(
    params: Sequence[torch.Tensor], group: Group | None, *, missing_as_zero: bool = False
) -> None:
    """Sums gradients over a group, in one all-reduce for each type."""
    if group is None or size_of(group) == 1:
        return
    by_type: dict[torch.dtype, list[torch.Tensor]] = {}
    for param in params:
        if missing_as_zero and param.requires_grad and _grad(param) is None:
            # A stage that did not use its copy takes part all the same.
            param.grad = torch.zeros_like(param)
        grad = _grad(param)
        if grad is not None:
            by_type.setdefault(grad.dtype, []).append(grad)
    for grads in by_type.values():
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        dist.all_reduce(flat, group=group)
        for grad, part in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
            grad.copy_(part.view(grad.shape))


def _divide(
    params: Sequence[torch.Tensor], num_tokens: torch.Tensor, groups: ProcessGroupCollection
) -> None:
    tokens = num_tokens.detach().clone()
    if groups.pp is not None and size_of(groups.pp) > 1:
        dist.broadcast(tokens, dist.get_process_group_ranks(groups.pp)[-1], groups.pp)
    if groups.dp_cp is not None and size_of(groups.dp_cp) > 1:
        dist.all_reduce(tokens, group=groups.dp_cp)
    # Without a token there is no gradient either: 1 leaves it as it is.
    factor = 1 / tokens.clamp(min=1)
    for param in params:
        grad = _grad(param)
        if grad is not None:
            grad.mul_(factor)


# Norms and clipping


def get_grad_norm_fp32(
    grads_for_norm: _Parameters,
    norm_type: float = 2.0,
    grad_stats_parallel_group: Group | None = None,
) -> torch.Tensor:
    """Returns the norm of gradients as if they were one vector, a single value.

    Unlike Megatron-Core's it is a tensor on the device: the host does not wait for it.

    Args:
        grads_for_norm: Of the calling rank; each value counts on one rank of the group only.
        norm_type: Which norm; `inf` for the largest size.
        grad_stats_parallel_group: Whose gradients belong to the vector; None for one's own only.
    """
    grads = _listed(grads_for_norm)
    return torch.nn.utils.get_total_norm(grads, norm_type, group=grad_stats_parallel_group)


def clip_grad_by_total_norm_fp32(
    parameters: _Parameters, max_norm: float, total_norm: torch.Tensor | float
) -> None:
    """Scales gradients by `max_norm / total_norm` where that is less than 1; does not wait.

    Args:
        parameters: Of the calling rank's part; those without gradient are left out.
        max_norm: Largest norm.
        total_norm: Norm of the whole model's gradients.
    """
    held: Any = [SimpleNamespace(grad=_grad(each)) for each in _listed(parameters)]
    norm = total_norm
    if not isinstance(norm, torch.Tensor):
        norm = torch.tensor(float(norm), device="cuda")
    torch.nn.utils.clip_grads_with_norm_(held, max_norm, norm)


def count_zeros_fp32(
    parameters: _Parameters,
    grad_stats_parallel_group: Group,
    tp_group: Group | None = None,
    expert_tp_group: Group | None = None,
) -> torch.Tensor:
    """Returns how many values of gradients are 0, a single value; the host does not wait.

    Args:
        parameters: Of the calling rank's part; what several ranks hold counts once.
        grad_stats_parallel_group: Who shares the model.
        tp_group: See `param_is_not_tensor_parallel_duplicate`.
        expert_tp_group: See `param_is_not_tensor_parallel_duplicate`.
    """
    total = torch.zeros((), dtype=torch.int64, device="cuda")
    for _, grad in _counted(_listed(parameters), tp_group, expert_tp_group):
        total = total + (grad == 0).sum()
    dist.all_reduce(total, group=grad_stats_parallel_group)
    return total


def _counted(
    params: Iterable[torch.Tensor], tp_group: Group | None, expert_tp_group: Group | None
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields parameters with gradients that count on the calling rank."""
    for param in params:
        grad = _grad(param)
        if grad is None or not param_is_not_shared(param):
            continue
        if param_is_not_tensor_parallel_duplicate(param, tp_group, expert_tp_group):
            yield param, grad


def clip_grad_norm_(
    parameters: _Parameters,
    max_norm: float,
    norm_type: float = 2.0,
    tp_group: Group | None = None,
    *,
    pg_collection: ProcessGroupCollection | None = None,
) -> torch.Tensor:
    """Scales gradients so that the norm of the whole model's is at most `max_norm`.

    Unlike `torch.nn.utils.clip_grad_norm_` it counts once what several ranks hold: what is no shard
    on the first rank of its group, and what is marked `shared` not at all. Dense layers are summed
    over the model-parallel group, with its pipeline stages; experts over theirs. The host waits for
    nothing.

    Args:
        parameters: Of the calling rank's part; those without gradient are left out.
        max_norm: Largest norm.
        norm_type: Which norm; `inf` for the largest size.
        tp_group: Who shares the model, if that is no more than a tensor-parallel group.
        pg_collection: The groups `tp` and `mp`, and for experts `ep`, `expt_tp` and `tp_ep_pp`. By
            default those of `parallel_state`.

    Returns:
        The norm before, a single value.

    Raises:
        ParallelError: If both kinds of groups are given, or experts' groups are missing.
    """
    if tp_group is not None and pg_collection is not None:
        raise refuse("clip_grad_norm_ takes tp_group or pg_collection, not both")
    if tp_group is not None:
        groups = ProcessGroupCollection(tp=tp_group, mp=tp_group)
    else:
        groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups()
    members = _listed(parameters)
    if groups.ep is None and any(map(shards.is_expert, members)):
        raise refuse(
            "some parameters are experts' (allreduce = False), and the groups of experts are not "
            "given",
            hint="give pg_collection with ep, expt_tp and tp_ep_pp, or neither it nor tp_group",
        )
    counted = [*_counted(members, groups.tp, groups.expt_tp)]
    dense = [grad for param, grad in counted if not shards.is_expert(param)] or _nothing(members)
    norm = get_grad_norm_fp32(dense, norm_type, groups.mp)
    if groups.ep is not None and size_of(groups.ep) > 1:
        experts = [grad for param, grad in counted if shards.is_expert(param)]
        experts = experts or _nothing(members)
        norm = _both(norm, get_grad_norm_fp32(experts, norm_type, groups.tp_ep_pp), norm_type)
    clip_grad_by_total_norm_fp32(members, max_norm, norm)
    return norm


def _nothing(members: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the part of a rank on which nothing counts, in the type of the others' parts."""
    grads = [grad for grad in map(_grad, members) if grad is not None]
    wide = any(grad.dtype is torch.float64 for grad in grads)
    return [torch.zeros((), dtype=torch.float64 if wide else torch.float32, device="cuda")]


def _both(a: torch.Tensor, b: torch.Tensor, order: float) -> torch.Tensor:
    """Returns the norm of two vectors one after the other, from their norms."""
    if order == float("inf"):
        return torch.maximum(a, b)
    if order == 2:
        return (a * a + b * b).sqrt()
    return (a**order + b**order) ** (1 / order)


guard(globals())
