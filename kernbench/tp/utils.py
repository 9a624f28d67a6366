"""Small helpers: the group by default, parts of vectors and vocabularies, data for all ranks."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.parallel import parallel_state
from kernbench.parallel.members import (
    Group,
    ParallelAssertionError,
    ParallelError,
    divide,
    ensure_divisibility,
    refuse_assertion,
    size_of,
    split_tensor_along_last_dim,
)

__all__ = [
    "Group",
    "ParallelAssertionError",
    "ParallelError",
    "VocabUtility",
    "broadcast_data",
    "divide",
    "ensure_divisibility",
    "gather_split_1d_tensor",
    "group_of",
    "size_of",
    "split_tensor_along_last_dim",
    "split_tensor_into_1d_equal_chunks",
]


def group_of(group: Group | None) -> Group:
    """Returns a group, by default the calling rank's tensor-parallel one.

    Raises:
        AssertionError: If None is given and model parallelism is not initialised.
    """
    if group is not None:
        return group
    return parallel_state.get_tensor_model_parallel_group()


# Division


def split_tensor_into_1d_equal_chunks(
    tensor: torch.Tensor, new_buffer: bool = False, tp_group: Group | None = None
) -> torch.Tensor:
    """Returns the calling rank's part of the flattened tensor: a view, or a copy.

    Args:
        tensor: Of any shape; elements that the ranks cannot share equally are left out.
        new_buffer: Whether to copy.
        tp_group: Who shares; by default the tensor-parallel group.
    """
    group = group_of(tp_group)
    size = tensor.numel() // size_of(group)
    part = tensor.reshape(-1).narrow(0, size * dist.get_rank(group), size)
    return part.clone() if new_buffer else part


def gather_split_1d_tensor(tensor: torch.Tensor, tp_group: Group | None = None) -> torch.Tensor:
    """Returns the parts of all ranks, one behind the other; not recorded for gradients.

    Args:
        tensor: `[n]`, contiguous.
        tp_group: Who shares; by default the tensor-parallel group.
    """
    group = group_of(tp_group)
    gathered = torch.empty(
        tensor.numel() * size_of(group), dtype=tensor.dtype, device=tensor.device
    )
    dist.all_gather_into_tensor(gathered, tensor, group)
    return gathered


class VocabUtility:
    """Which rows of a vocabulary a rank has."""

    @staticmethod
    def vocab_range_from_per_partition_vocab_size(
        per_partition_vocab_size: int, rank: int, world_size: int
    ) -> tuple[int, int]:
        """Returns the first row of a rank, and the first behind its last.

        Args:
            per_partition_vocab_size: Rows that each rank has.
            rank: Which rank of those that share the vocabulary.
            world_size: How many share it; makes no difference here, as in Megatron-Core.
        """
        del world_size
        first = rank * per_partition_vocab_size
        return first, first + per_partition_vocab_size

    @staticmethod
    def vocab_range_from_global_vocab_size(
        global_vocab_size: int, rank: int, world_size: int
    ) -> tuple[int, int]:
        """Returns the first row of a rank, and the first behind its last.

        Args:
            global_vocab_size: Rows that all ranks have together.
            rank: Which rank of those that share the vocabulary.
            world_size: How many share it.

        Raises:
            ParallelAssertionError: If the ranks cannot have equally many.
        """
        rows = divide(global_vocab_size, world_size)
        return VocabUtility.vocab_range_from_per_partition_vocab_size(rows, rank, world_size)


# Data

_Key = TypeVar("_Key")


def broadcast_data(
    keys: Sequence[_Key],
    data: Mapping[_Key, torch.Tensor] | None,
    datatype: torch.dtype,
    tp_group: Group | None = None,
) -> dict[_Key, torch.Tensor]:
    """Gives every rank of a group the tensors of its first one; the host waits for their shapes.

    Args:
        keys: Which tensors, in the same order on all ranks.
        data: On the first rank, the tensors; on others it is not looked at.
        datatype: Type of all of them.
        tp_group: Which ranks; by default the tensor-parallel group.

    Returns:
        New tensors on the calling rank's device.

    Raises:
        ParallelAssertionError: If the first rank gives no data, or a tensor of another type.
    """
    group = group_of(tp_group)
    first = dist.get_rank(group) == 0
    given: list[torch.Tensor] = []
    if first:
        if data is None:
            raise refuse_assertion(
                "broadcast_data: the first rank of the group gives the data, and its data is None",
                f"expected a mapping with {', '.join(map(repr, keys))}",
            )
        given = [data[key] for key in keys]
    for key, tensor in zip(keys, given, strict=False):
        if tensor.dtype is not datatype:
            raise refuse_assertion(
                f"{key} has data type {tensor.dtype} which is different than {datatype}"
            )
    shapes: list[object] = [[tuple(tensor.shape) for tensor in given]]
    if size_of(group) > 1:
        dist.broadcast_object_list(shapes, group=group, group_src=0)
    sizes = shapes[0]
    assert isinstance(sizes, list)
    counts = [torch.Size(size).numel() for size in sizes]
    # One message for all of them: many small ones would each pay the latency.
    if first:
        flat = torch.cat([tensor.cuda().reshape(-1) for tensor in given])
    else:
        flat = torch.empty(sum(counts), dtype=datatype, device="cuda")
    if size_of(group) > 1:
        dist.broadcast(flat, group=group, group_src=0)
    parts = flat.split(counts)
    return {
        key: part.reshape(size).clone() for key, part, size in zip(keys, parts, sizes, strict=True)
    }
