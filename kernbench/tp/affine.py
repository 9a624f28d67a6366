"""What a parameter says of its place in a dense weight, and first values of a part of one."""

from typing import Any, Final

import kernbench.torch as torch
from kernbench.extend import guard
from kernbench.parallel import parallel_state
from kernbench.parallel.members import divide, refuse_assertion
from kernbench.parallel.random import EXPERT_PARALLEL, MODEL_PARALLEL, get_cuda_rng_tracker
from kernbench.parallel.shards import InitMethod

__all__ = [
    "copy_tensor_model_parallel_attributes",
    "set_defaults_if_not_set_tensor_model_parallel_attributes",
    "set_tensor_model_parallel_attributes",
]

_DEFAULTS: Final[dict[str, Any]] = {
    "expert_tp": False,
    "is_qkv": False,
    "tensor_model_parallel": False,
    "partition_dim": -1,
    "partition_stride": 1,
}
"""Megatron-Core's attributes of a parameter, and what one without them stands for."""


def set_tensor_model_parallel_attributes(
    tensor: torch.Tensor, is_parallel: bool, dim: int, stride: int
) -> None:
    """Notes on a parameter which part of a dense weight it is.

    Args:
        tensor: Without any of these notes.
        is_parallel: Whether it is a part.
        dim: Along which dimension.
        stride: How many weights lie in one, along that dimension.

    Raises:
        ParallelAssertionError: If it has such a note already.
    """
    for name in _DEFAULTS:
        if hasattr(tensor, name):
            raise refuse_assertion(
                f"set_tensor_model_parallel_attributes: the tensor has {name} already",
                hint="set the attribute itself to change it",
            )
    notes = {"tensor_model_parallel": is_parallel, "partition_dim": dim, "partition_stride": stride}
    for name, value in notes.items():
        setattr(tensor, name, value)


def set_defaults_if_not_set_tensor_model_parallel_attributes(tensor: torch.Tensor) -> None:
    """Notes on a parameter that it is no part of another, as far as it says nothing of it."""
    for name, value in _DEFAULTS.items():
        if not hasattr(tensor, name):
            setattr(tensor, name, value)


def copy_tensor_model_parallel_attributes(
    destination_tensor: torch.Tensor, source_tensor: torch.Tensor
) -> None:
    """Copies such notes, as far as there are any, to a tensor from another one."""
    for name in _DEFAULTS:
        if hasattr(source_tensor, name):
            setattr(destination_tensor, name, getattr(source_tensor, name))


def _initialize_affine_weight_gpu(
    weight: torch.Tensor,
    init_method: InitMethod,
    partition_dim: int,
    stride: int = 1,
    is_expert: bool = False,
) -> None:
    """Draws first values of a part from the stream of shards, or of experts, and marks it."""
    set_tensor_model_parallel_attributes(weight, True, partition_dim, stride)
    stream = EXPERT_PARALLEL if is_expert else MODEL_PARALLEL
    with get_cuda_rng_tracker().fork(stream), torch.no_grad():
        init_method(weight)


def _initialize_affine_weight_cpu(
    weight: torch.Tensor,
    output_size: int,
    input_size: int,
    per_partition_size: int,
    partition_dim: int,
    init_method: InitMethod,
    stride: int = 1,
    return_master_weight: bool = False,
    *,
    params_dtype: torch.dtype = torch.float32,
    rank: int | None = None,
    world_size: int | None = None,
    skip_set_tensor_parallel_attributes: bool = False,
) -> torch.Tensor | None:
    """Draws a dense weight on the host, in float32, and copies a rank's part of it.

    Without `rank` the calling rank's place in its tensor-parallel group counts, and the size of
    that, whatever `world_size` says.
    """
    if not skip_set_tensor_parallel_attributes:
        set_tensor_model_parallel_attributes(weight, True, partition_dim, stride)
    if rank is None:
        rank = parallel_state.get_tensor_model_parallel_rank()
        world_size = parallel_state.get_tensor_model_parallel_world_size()
    elif world_size is None:
        raise refuse_assertion(f"_initialize_affine_weight_cpu(rank={rank}) needs world_size too")
    piece = divide(per_partition_size, stride)
    with torch.no_grad():
        master = torch.empty(output_size, input_size, device="cpu")
        init_method(master)
        master = master.to(params_dtype)
        mine = master.split(piece, partition_dim)[rank::world_size]
        weight.copy_(torch.cat(mine, partition_dim))
    return master if return_master_weight else None


guard(globals())
