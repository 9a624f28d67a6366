"""`torch.distributed.nn.functional`: collectives that return their result and have a gradient.

Each gradient is a collective too, issued by `backward`; every rank of the group must call
`backward`. Gradients of a reduction are combined by the same reduce operation, as in PyTorch: the
result is the true gradient for `SUM` and `AVG` only.
"""

from collections.abc import Sequence
from typing import Any

from kernbench.autograd.function import Function
from kernbench.ccl.operations import Reduction
from kernbench.distributed import collectives, exchanges
from kernbench.distributed.groups import find_group
from kernbench.distributed.reduce_ops import ReduceOp
from kernbench.operations.copies import clone, contiguous
from kernbench.operations.creation import empty, empty_like, zeros_like
from kernbench.operations.filling import zero_
from kernbench.process.process import current_process
from kernbench.ranks.groups import ProcessGroup
from kernbench.tensors.tensor import Tensor

__all__ = [
    "_all_gather_base",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
]

Group = ProcessGroup | None


def broadcast(tensor: Tensor, src: int, group: Group = None) -> Tensor:
    """Returns the tensor of one rank; the gradient is the sum of all ranks' gradients.

    Args:
        tensor: Tensor of the same shape and dtype on all ranks.
        src: Global rank of the source.
        group: Process group; None for all ranks.
    """
    result: Tensor = _Broadcast.apply(src, group, tensor)
    return result


def gather(tensor: Tensor, dst: int = 0, group: Group = None) -> tuple[Tensor, ...]:
    """Returns the tensors of all ranks on one rank, and zeros on all others.

    Args:
        tensor: Tensor of the same shape and dtype on all ranks.
        dst: Global rank of the destination.
        group: Process group; None for all ranks.
    """
    result: tuple[Tensor, ...] = _Gather.apply(dst, group, tensor)
    return result


def scatter(tensors: Sequence[Tensor], src: int = 0, group: Group = None) -> Tensor:
    """Returns one of the tensors of one rank.

    Args:
        tensors: One tensor for each rank, all of one shape; only the values of the source's tensors
            are used.
        src: Global rank of the source.
        group: Process group; None for all ranks.
    """
    result: Tensor = _Scatter.apply(src, group, *tensors)
    return result


def reduce(tensor: Tensor, dst: int, op: Reduction = ReduceOp.SUM, group: Group = None) -> Tensor:
    """Returns the tensors of all ranks combined, on one rank; on other ranks their own tensor.

    Args:
        tensor: Tensor of the same shape and dtype on all ranks.
        dst: Global rank of the destination.
        group: Process group; None for all ranks.
    """
    result: Tensor = _Reduce.apply(dst, op, group, tensor)
    return result


def reduce_scatter(
    output: Tensor,
    input_list: Sequence[Tensor],
    op: Reduction = ReduceOp.SUM,
    group: Group = None,
) -> Tensor:
    """Combines the lists of all ranks entry by entry, and returns the calling rank's entry.

    Args:
        output: Tensor that receives the calling rank's entry.
        input_list: One tensor for each rank, all of one shape.
        group: Process group; None for all ranks.
    """
    result: Tensor = _ReduceScatter.apply(op, group, output, *input_list)
    return result


def all_gather(tensor: Tensor, group: Group = None) -> tuple[Tensor, ...]:
    """Returns the tensors of all ranks.

    Args:
        tensor: Tensor of the same shape and dtype on all ranks.
        group: Process group; None for all ranks.
    """
    result: tuple[Tensor, ...] = _AllGather.apply(group, tensor)
    return result


def _all_gather_base(output_tensor: Tensor, input_tensor: Tensor, group: Group = None) -> Tensor:
    """Returns the tensors of all ranks, one behind the other in `output_tensor`.

    Args:
        output_tensor: Tensor that receives the tensors of all ranks.
        input_tensor: Tensor of the same shape and dtype on all ranks.
        group: Process group; None for all ranks.
    """
    result: Tensor = _AllGatherBase.apply(output_tensor, input_tensor, group)
    return result


def all_to_all(
    output_tensor_list: Sequence[Tensor], input_tensor_list: Sequence[Tensor], group: Group = None
) -> tuple[Tensor, ...]:
    """Gives the i-th tensor of each rank to rank i, and returns the received tensors.

    Args:
        output_tensor_list: Tensors that receive the data, one for each rank.
        input_tensor_list: Tensors to send, one for each rank.
        group: Process group; None for all ranks.
    """
    result: tuple[Tensor, ...] = _AllToAll.apply(
        group, list(output_tensor_list), *input_tensor_list
    )
    return result


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Group = None,
) -> Tensor:
    """Gives the i-th part of each rank's input to rank i, and returns the received parts.

    Args:
        output: Tensor that receives the parts, in the order of the ranks.
        input: Tensor to send; its rows are parted along dimension 0.
        output_split_sizes: Rows that come from each rank; None for equal parts.
        input_split_sizes: Rows that go to each rank; None for equal parts.
        group: Process group; None for all ranks.
    """
    result: Tensor = _AllToAllSingle.apply(
        group, output, output_split_sizes, input_split_sizes, input
    )
    return result


def all_reduce(tensor: Tensor, op: Reduction = ReduceOp.SUM, group: Group = None) -> Tensor:
    """Returns the tensors of all ranks combined.

    Args:
        tensor: Tensor of the same shape and dtype on all ranks.
        group: Process group; None for all ranks.
    """
    result: Tensor = _AllReduce.apply(op, group, tensor)
    return result


def _copied(tensor: Tensor) -> Tensor:
    """Returns a copy in row-major order."""
    whole = contiguous(tensor)
    return clone(tensor) if whole is tensor else whole


def _contiguous(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [contiguous(tensor) for tensor in tensors]


def _is_me(rank: int) -> bool:
    return current_process().rank == rank


def _gathered(group: Group, tensor: Tensor, dst: int) -> tuple[Tensor, ...]:
    ranks = find_group(current_process(), group, "gather").size()
    outputs = [zeros_like(tensor) for _ in range(ranks)]
    collectives.gather(contiguous(tensor), [*outputs] if _is_me(dst) else None, dst, group)
    return tuple(outputs)


def _scattered(group: Group, tensors: Sequence[Tensor], src: int) -> Tensor:
    output = empty_like(contiguous(tensors[0]))
    given = _contiguous(tensors) if _is_me(src) else None
    collectives.scatter(output, given, src, group)
    return output


def _all_gathered(group: Group, tensor: Tensor) -> tuple[Tensor, ...]:
    tensor = contiguous(tensor)
    ranks = find_group(current_process(), group, "all_gather").size()
    outputs = [empty_like(tensor) for _ in range(ranks)]
    collectives.all_gather([*outputs], tensor, group)
    return tuple(outputs)


def _exchanged(group: Group, outputs: list[Tensor], tensors: Sequence[Tensor]) -> None:
    exchanges.all_to_all([*outputs], _contiguous(tensors), group)


class _Broadcast(Function):
    @staticmethod
    def forward(ctx: Any, src: int, group: Group, tensor: Tensor) -> Tensor:
        ctx.src, ctx.group = src, group
        result = _copied(tensor)
        collectives.broadcast(result, src, group)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        total = _copied(grad)
        collectives.reduce(total, ctx.src, ReduceOp.SUM, ctx.group)
        return None, None, total if _is_me(ctx.src) else zero_(total)


class _Gather(Function):
    @staticmethod
    def forward(ctx: Any, dst: int, group: Group, tensor: Tensor) -> tuple[Tensor, ...]:
        ctx.dst, ctx.group = dst, group
        return _gathered(group, tensor, dst)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return None, None, _scattered(ctx.group, grads, ctx.dst)


class _Scatter(Function):
    @staticmethod
    def forward(ctx: Any, src: int, group: Group, *tensors: Tensor) -> Tensor:
        ctx.src, ctx.group = src, group
        return _scattered(group, tensors, src)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return None, None, *_gathered(ctx.group, grad, ctx.src)


class _Reduce(Function):
    @staticmethod
    def forward(ctx: Any, dst: int, op: Reduction, group: Group, tensor: Tensor) -> Tensor:
        ctx.dst, ctx.group = dst, group
        result = _copied(tensor)
        collectives.reduce(result, dst, op, group)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        back = _copied(grad)
        collectives.broadcast(back, ctx.dst, ctx.group)
        return None, None, None, back


class _ReduceScatter(Function):
    @staticmethod
    def forward(ctx: Any, op: Reduction, group: Group, output: Tensor, *inputs: Tensor) -> Tensor:
        ctx.group = group
        collectives.reduce_scatter(output, _contiguous(inputs), op, group)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return None, None, None, *_all_gathered(ctx.group, grad)


class _AllGather(Function):
    @staticmethod
    def forward(ctx: Any, group: Group, tensor: Tensor) -> tuple[Tensor, ...]:
        ctx.group = group
        return _all_gathered(group, tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        total = empty_like(contiguous(grads[0]))
        collectives.reduce_scatter(total, _contiguous(grads), ReduceOp.SUM, ctx.group)
        return None, total


class _AllGatherBase(Function):
    @staticmethod
    def forward(ctx: Any, output: Tensor, tensor: Tensor, group: Group) -> Tensor:
        ctx.group, ctx.shape = group, tensor.shape
        collectives.all_gather_into_tensor(output, contiguous(tensor), group)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        total = empty(ctx.shape, dtype=grad.dtype, device=grad.device)
        collectives.reduce_scatter_tensor(total, contiguous(grad), ReduceOp.SUM, ctx.group)
        return None, total, None


class _AllToAll(Function):
    @staticmethod
    def forward(
        ctx: Any, group: Group, outputs: list[Tensor], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.group, ctx.shapes = group, [tensor.shape for tensor in tensors]
        _exchanged(group, outputs, tensors)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        dtype, device = grads[0].dtype, grads[0].device
        back = [empty(shape, dtype=dtype, device=device) for shape in ctx.shapes]
        _exchanged(ctx.group, back, grads)
        return None, None, *back


class _AllToAllSingle(Function):
    @staticmethod
    def forward(
        ctx: Any,
        group: Group,
        output: Tensor,
        output_splits: Sequence[int] | None,
        input_splits: Sequence[int] | None,
        tensor: Tensor,
    ) -> Tensor:
        ctx.group, ctx.shape = group, tensor.shape
        ctx.splits = output_splits, input_splits
        exchanges.all_to_all_single(output, contiguous(tensor), output_splits, input_splits, group)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        back = empty(ctx.shape, dtype=grad.dtype, device=grad.device)
        came, went = ctx.splits
        exchanges.all_to_all_single(back, contiguous(grad), went, came, ctx.group)
        return None, None, None, None, back


class _AllReduce(Function):
    @staticmethod
    def forward(ctx: Any, op: Reduction, group: Group, tensor: Tensor) -> Tensor:
        ctx.op, ctx.group = op, group
        result = _copied(tensor)
        collectives.all_reduce(result, op, group)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        total = _copied(grad)
        collectives.all_reduce(total, ctx.op, ctx.group)
        return None, None, total
