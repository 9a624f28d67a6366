"""Where a rank stands in its pipeline, and what lies there; public through `parallel_state`.

`broadcast_from_last_stage`, for which Megatron-Core has no name, is used from here.
"""

from typing import Any, NamedTuple, TypeVar

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.errors import call_site, site_fact
from kernbench.parallel.accessors import (
    get_pipeline_model_parallel_rank,
    get_pipeline_model_parallel_world_size,
    get_virtual_pipeline_model_parallel_world_size,
)
from kernbench.parallel.held import find_worker, group_for, held_of
from kernbench.parallel.layout import ParallelStateError
from kernbench.parallel.members import Group, size_of

_Value = TypeVar("_Value")


class _Hole(NamedTuple):
    """Stands for a tensor in an object: what the other stages must know to receive it."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def get_pipeline_model_parallel_first_rank() -> int:
    """Returns the global rank of the first stage of the calling rank's pipeline.

    Raises:
        ParallelStateError: If there is none.
    """
    return group_for("get_pipeline_model_parallel_first_rank", "pp").ranks[0]


def get_pipeline_model_parallel_last_rank() -> int:
    """Returns the global rank of the last stage of the calling rank's pipeline.

    Raises:
        ParallelStateError: If there is none.
    """
    return group_for("get_pipeline_model_parallel_last_rank", "pp").ranks[-1]


def get_pipeline_model_parallel_next_rank() -> int:
    """Returns the global rank of the next stage; after the last comes the first.

    Raises:
        ParallelStateError: If there is no pipeline.
    """
    return _stage_beside("get_pipeline_model_parallel_next_rank", 1)


def get_pipeline_model_parallel_prev_rank() -> int:
    """Returns the global rank of the previous stage; before the first comes the last.

    Raises:
        ParallelStateError: If there is no pipeline.
    """
    return _stage_beside("get_pipeline_model_parallel_prev_rank", -1)


def _stage_beside(name: str, step: int) -> int:
    ranks = group_for(name, "pp").ranks
    return ranks[(get_pipeline_model_parallel_rank() + step) % len(ranks)]


def is_pipeline_first_stage(ignore_virtual: bool = True, vp_stage: int | None = None) -> bool:
    """Returns whether the calling rank has the beginning of the model.

    Args:
        ignore_virtual: Whether to ask for the rank, whichever piece it is at.
        vp_stage: Which piece; needed with virtual stages unless they are ignored.

    Raises:
        ParallelStateError: If there is no pipeline, or `vp_stage` is left out.
    """
    find_worker("is_pipeline_first_stage")
    at_piece = ignore_virtual or _is_piece(vp_stage, last=False)
    return at_piece and get_pipeline_model_parallel_rank() == 0


def is_pipeline_last_stage(ignore_virtual: bool = True, vp_stage: int | None = None) -> bool:
    """Returns whether the calling rank has the end of the model.

    Args:
        ignore_virtual: Whether to ask for the rank, whichever piece it is at.
        vp_stage: Which piece; needed with virtual stages unless they are ignored.

    Raises:
        ParallelStateError: If there is no pipeline, or `vp_stage` is left out.
    """
    find_worker("is_pipeline_last_stage")
    at_piece = ignore_virtual or _is_piece(vp_stage, last=True)
    return at_piece and (
        get_pipeline_model_parallel_rank() == get_pipeline_model_parallel_world_size() - 1
    )


def _is_piece(vp_stage: int | None, last: bool) -> bool:
    pieces = get_virtual_pipeline_model_parallel_world_size()
    if pieces is None:
        return True
    if vp_stage is None:
        raise ParallelStateError(
            "vp_stage must be passed with virtual pipeline stages", [site_fact(call_site())]
        )
    return vp_stage == (pieces - 1 if last else 0)


def is_rank_in_embedding_group(ignore_virtual: bool = True, vp_stage: int | None = None) -> bool:
    """Returns whether the calling rank holds the word embedding; False before it is known.

    Args:
        ignore_virtual: Whether to ask for the rank, whichever piece it is at.
        vp_stage: Which piece; needed with virtual stages unless they are ignored.

    Raises:
        ParallelStateError: If `vp_stage` is left out.
    """
    group = (held_of("is_rank_in_embedding_group")[1].groups or {}).get("embd")
    if group is None:
        return False
    if not ignore_virtual:
        if group.rank() == 0:
            return is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage)
        if group.rank() == group.size() - 1:
            return is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage)
    return True


def is_rank_in_position_embedding_group() -> bool:
    """Returns whether the calling rank holds the position embedding; False before it is known."""
    return "pos_embd" in (held_of("is_rank_in_position_embedding_group")[1].groups or {})


def broadcast_from_last_stage(value: _Value, group: Group | None = None) -> _Value:
    """Returns the value of the last stage on all stages of a pipeline; all of them call it.

    A schedule returns losses on the last stage only.

    Args:
        value: A tensor of one shape and dtype on all stages, which is overwritten; or any object
            that can be pickled, for which the host waits. What other stages give in place of an
            object is not looked at. Tensors in its lists, tuples and dicts are sent as tensors.
        group: The stages, in order; by default the calling rank's pipeline.

    Raises:
        ParallelStateError: If no group is given and there is no pipeline.
        GroupError: If the calling rank is not one of the stages (C8), or the group is destroyed.
        CollectiveMismatchError: If stages give tensors that differ, or only some of them do.
    """
    stages = group_for("broadcast_from_last_stage", "pp") if group is None else group
    last = size_of(stages) - 1
    if isinstance(value, torch.Tensor):
        dist.broadcast(value, group=stages, group_src=last)
        return value
    tensors: list[torch.Tensor] = []
    told = [_without_tensors(value, tensors)]
    dist.broadcast_object_list(told, group=stages, group_src=last)
    if dist.get_rank(stages) != last:
        tensors.clear()
        value = _with_tensors(told[0], tensors)
    for tensor in tensors:
        dist.broadcast(tensor, group=stages, group_src=last)
    return value


def _without_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Returns a value with holes in place of its tensors, which are added to a list."""
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach().contiguous())
        return _Hole(tuple(value.shape), value.dtype)
    if isinstance(value, dict):
        return {key: _without_tensors(each, tensors) for key, each in value.items()}
    if type(value) in {list, tuple}:
        return type(value)([_without_tensors(each, tensors) for each in value])
    return value


def _with_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Returns a value with new tensors in place of its holes, which are added to a list."""
    if isinstance(value, _Hole):
        tensors.append(torch.empty(*value.shape, dtype=value.dtype, device="cuda"))
        return tensors[-1]
    if isinstance(value, dict):
        return {key: _with_tensors(each, tensors) for key, each in value.items()}
    if type(value) in {list, tuple}:
        return type(value)([_with_tensors(each, tensors) for each in value])
    return value
