"""Functional collectives (`torch.ops._c10d_functional`) on tensors of a device.

PyTorch makes their results in C++, where no mode sees that they are on the device, and without
numbers it only finds out shapes. So they are made here, and the process group is called for them.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from kernbench.bridge.base.here import Rank
from kernbench.bridge.distributed.symmetric import begun, of_symmetric_memory

_REDUCTIONS: Final = {
    name: getattr(dist.ReduceOp, name.upper())
    for name in ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")
}


def _group(name: str) -> Any:
    for group, known in c10d._world.pg_names.items():
        if known == name:
            return group
    # By a name that the program has registered itself; PyTorch refuses one that nobody has.
    return c10d._resolve_process_group(name)


def _reducing(name: str) -> Any:
    reduction = _REDUCTIONS.get(name.lower())
    if reduction is None:
        raise RuntimeError(f"Unrecognized reduce_op: {name}")  # PyTorch's words
    return SimpleNamespace(reduceOp=reduction, asyncOp=True)


def _empty(given: torch.Tensor, rows: int, rank: Rank) -> torch.Tensor:
    return torch.empty((rows, *given.shape[1:]), dtype=given.dtype, device=rank.device)


def _all_reduce_(rank: Rank, given: torch.Tensor, op: str, group: str) -> torch.Tensor:
    del rank
    return begun(given, _group(group).allreduce([given], _reducing(op)))


def _all_reduce(rank: Rank, given: torch.Tensor, op: str, group: str) -> torch.Tensor:
    whole = given.clone(memory_format=torch.contiguous_format)
    return _all_reduce_(rank, whole, op, group)


def _broadcast_(rank: Rank, given: torch.Tensor, root: int, group: str) -> torch.Tensor:
    del rank
    options = SimpleNamespace(rootRank=root, asyncOp=True)
    return begun(given, _group(group).broadcast([given], options))


def _broadcast(rank: Rank, given: torch.Tensor, root: int, group: str) -> torch.Tensor:
    return _broadcast_(rank, given.clone(memory_format=torch.contiguous_format), root, group)


def _all_gather(
    rank: Rank, given: torch.Tensor, size: int, group: str, out: Any = None
) -> torch.Tensor:
    given = given.contiguous()
    out = _empty(given, given.shape[0] * size, rank) if out is None else out
    return begun(out, _group(group).all_gather_single(out, given))


def _reduce_scatter(
    rank: Rank, given: torch.Tensor, op: str, size: int, group: str, out: Any = None
) -> torch.Tensor:
    given = given.contiguous()
    if given.shape[0] % size:
        raise RuntimeError(
            f"input tensor must be divisible by the group size: {given.shape[0]} rows, {size} ranks"
        )
    out = _empty(given, given.shape[0] // size, rank) if out is None else out
    return begun(out, _group(group).reduce_scatter_single(out, given, _reducing(op)))


def _all_to_all(
    rank: Rank, given: torch.Tensor, to_take: Any, to_give: Any, group: str
) -> torch.Tensor:
    given = given.contiguous()
    out = _empty(given, sum(to_take), rank)
    work = _group(group).all_to_all_single(out, given, list(to_take), list(to_give))
    return begun(out, work)


def _shard_dim_alltoall(
    rank: Rank, given: torch.Tensor, gather_dim: int, shard_dim: int, group: str
) -> torch.Tensor:
    """What DTensor does if another dimension is to be sharded."""
    del rank
    ranks = _group(group)
    parts = torch.stack(given.chunk(ranks.size(), shard_dim))
    taken = torch.empty_like(parts)
    ranks.all_to_all_single(taken, parts).wait()
    return torch.cat(taken.unbind(0), gather_dim)


def _wait(rank: Rank, given: torch.Tensor) -> torch.Tensor:
    work = rank.begun.pop(given.untyped_storage()._cdata, None)
    if work is not None:
        work.wait()
    return given


def _to_wait_for(rank: Rank, given: torch.Tensor) -> torch.Tensor:
    """Returns what waits at its first use; without numbers, PyTorch's own would never wait."""
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    del rank
    wrapped: torch.Tensor = AsyncCollectiveTensor(given)
    return wrapped


def _each(one: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what does the same with each tensor of a list."""

    def many(rank: Rank, given: Any, *args: Any) -> Any:
        return [one(rank, tensor, *args) for tensor in given]

    return many


_BY_NAME: Final[dict[str, Callable[..., Any]]] = {
    "all_reduce": _all_reduce,
    "all_reduce_": _all_reduce_,
    "all_reduce_coalesced": _each(_all_reduce),
    "all_reduce_coalesced_": _each(_all_reduce_),
    "broadcast": _broadcast,
    "broadcast_": _broadcast_,
    "all_gather_into_tensor": _all_gather,
    "all_gather_into_tensor_out": _all_gather,
    "all_gather_into_tensor_coalesced": _each(_all_gather),
    "reduce_scatter_tensor": _reduce_scatter,
    "reduce_scatter_tensor_out": _reduce_scatter,
    "reduce_scatter_tensor_coalesced": _each(_reduce_scatter),
    "all_to_all_single": _all_to_all,
    "shard_dim_alltoall": _shard_dim_alltoall,
    "wait_tensor": _wait,
    "_wrap_tensor_autograd": _to_wait_for,
}


def collective(func: Any) -> Callable[..., Any] | None:
    """Returns what does a functional collective on tensors of a device; None for others."""
    name = func._overloadpacket.__name__
    if func.namespace == "symm_mem":
        return of_symmetric_memory(name)
    return _BY_NAME.get(name) if func.namespace in {"_c10d_functional", "_dtensor"} else None
