"""`torch.distributed`: the collectives in which all ranks give or take blocks of agreed sizes.

Each call puts the calling rank's part in a stream; the host does not wait, except for tensors on
the host. With `async_op` the part goes to the communication stream of the group, behind all
commands that the current stream holds now, and the call returns a `Work`. Otherwise the part goes
to the current stream. Tensors are contiguous, as for the NCCL backend, and on the calling rank's
device, or on the host if the backend serves it. Sizes may be uneven where PyTorch allows it:
`all_gather` and `reduce_scatter` of lists.
"""

from typing import Any

from kernbench.ccl.operations import Reduction
from kernbench.distributed.checks import (
    CollectiveArgumentError,
    block_shapes,
    check_tensor,
    check_whole,
    reduction_for,
    root_of,
    told,
)
from kernbench.distributed.groups import Group, library_of, members_of
from kernbench.distributed.issuing import handle, issue, run
from kernbench.distributed.noting import noted
from kernbench.distributed.reduce_ops import ReduceOp, ReductionError, reduction_of
from kernbench.distributed.signatures import even_signature, reducing_signature, signature
from kernbench.distributed.works import IllegalWork, Work
from kernbench.errors import call_site
from kernbench.process.called import called
from kernbench.process.process import current_process
from kernbench.ranks.meeting import Role
from kernbench.tensors.tensor import Tensor

__all__ = [
    "_all_gather_base",
    "_reduce_scatter_base",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_single",
    "all_reduce",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "scatter",
]


def all_reduce(
    tensor: Tensor,
    op: Reduction = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
) -> Any:
    """Combines the tensors of all ranks, in place; every rank ends with the same bits.

    Args:
        tensor: Tensor of the same shape and dtype on all ranks.
        op: Reduce operation; partial results are rounded to the tensor's dtype, 8-bit floats with
            saturation, in the order of the algorithm.
        group: Process group; None for all ranks.
        async_op: Whether to return a `Work` to wait for.

    Raises:
        CollectiveMismatchError: If the calls of the ranks differ (C2-C5).
        KernbenchError: If the operation, the group or the tensor cannot be used (C6, C8, C18).
    """
    return all_reduce_into(tensor, tensor, op, group, async_op)


def all_reduce_into(
    target: Tensor,
    source: Tensor,
    op: object,
    group: Group,
    async_op: bool,
    role: Role | None = None,
) -> Any:
    """Does what `all_reduce` does, from one tensor into another tensor, or into the same.

    Args:
        target: Tensor that receives the result.
        source: Input of the calling rank.
        group: Process group; None for all ranks.
        async_op: Whether to return a `Work` to wait for.
        role: Why the collective runs, if the user did not call it directly.

    Raises:
        CollectiveMismatchError: If the calls of the ranks differ (C2-C5).
        ReductionError: If the reduce operation is not defined for the dtype or the backend (C6).
        KernbenchError: If the group or a tensor cannot be used (C8, C18).
    """
    process = current_process()
    members = members_of(process, group, "all_reduce")
    if members is None:
        return None
    check_tensor(process, "all_reduce", source)
    view, library = source.window, library_of(process, members, source)
    try:
        reduction = reduction_of("all_reduce", op)
        what = reducing_signature(
            "all_reduce", "all_reduce", view.dtype, (view.shape,), reduction, library
        )
    except ReductionError as error:
        raise told(error, process, "all_reduce", members) from None
    if noted(process, members, "all_reduce", source, target, reduction):
        return IllegalWork() if async_op else None
    sources = (source,)
    targets = sources if target is source else (target,)
    site = process.site or call_site()
    command, _ = issue(
        process, members, what, sources, targets, async_op=async_op, site=site, role=role
    )
    return handle(process, command, targets) if async_op else None


def broadcast(
    tensor: Tensor,
    src: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Any:
    """Copies the tensor of one rank over the tensors of all other ranks.

    Args:
        tensor: Tensor of the same shape and dtype on all ranks.
        src: Global rank of the source; or give `group_src`.
        group: Process group; None for all ranks.
        async_op: Whether to return a `Work` to wait for.
        group_src: Rank of the source in the group.

    Raises:
        CollectiveMismatchError: If the calls of the ranks differ (C2-C4, C7).
        KernbenchError: If the source, the group or the tensor cannot be used (C7, C8, C18).
    """
    process = current_process()
    members = members_of(process, group, "broadcast")
    if members is None:
        return None
    root, text = root_of(process, members, "broadcast", "src", src, group_src)
    check_tensor(process, "broadcast", tensor)
    shape = tensor.window.shape
    what = signature("broadcast", "broadcast", tensor.dtype, (shape,), None, root, text)
    both = (tensor,)
    sources = both if members.place(process.rank) == root else ()
    return run(process, members, what, sources, both, async_op)


def reduce(
    tensor: Tensor,
    dst: int | None = None,
    op: Reduction = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Any:
    """Combines the tensors of all ranks, in place on one rank; other ranks keep their values.

    Args:
        tensor: Tensor of the same shape and dtype on all ranks.
        dst: Global rank of the destination; or give `group_dst`.
        group: Process group; None for all ranks.
        async_op: Whether to return a `Work` to wait for.
        group_dst: Rank of the destination in the group.

    Raises:
        CollectiveMismatchError: If the calls of the ranks differ (C2-C5, C7).
        KernbenchError: If an argument cannot be used (C6-C8, C18).
    """
    process = current_process()
    members = members_of(process, group, "reduce")
    if members is None:
        return None
    root, text = root_of(process, members, "reduce", "dst", dst, group_dst)
    check_tensor(process, "reduce", tensor)
    reduction = reduction_for(process, members, "reduce", op, tensor)
    shape = tensor.window.shape
    what = signature("reduce", "reduce", tensor.dtype, (shape,), reduction, root, text)
    both = (tensor,)
    targets = both if members.place(process.rank) == root else ()
    return run(process, members, what, both, targets, async_op)


def all_gather(
    tensor_list: list[Tensor], tensor: Tensor, group: Group = None, async_op: bool = False
) -> Any:
    """Gives every rank the tensors of all ranks.

    Args:
        tensor_list: Tensors that receive the inputs, one for each rank of the group; sizes may be
            uneven, but all ranks must agree on them.
        tensor: Input of the calling rank.
        group: Process group; None for all ranks.
        async_op: Whether to return a `Work` to wait for.

    Raises:
        CollectiveMismatchError: If the calls of the ranks differ (C2-C4).
        KernbenchError: If an argument cannot be used (C8, C12, C18).
    """
    process = current_process()
    members = members_of(process, group, "all_gather")
    if members is None:
        return None
    check_tensor(process, "all_gather", tensor)
    blocks = block_shapes(process, members, "all_gather", tensor_list, "tensor_list", tensor)
    what = signature("all_gather", "all_gather", tensor.dtype, blocks)
    return run(process, members, what, (tensor,), tensor_list, async_op)


def all_gather_into_tensor(
    output_tensor: Tensor,
    input_tensor: Tensor,
    group: Group = None,
    async_op: bool = False,
) -> Any:
    """Gives every rank the tensors of all ranks, one behind the other.

    Args:
        output_tensor: Tensor that receives the inputs of all ranks, concatenated or stacked.
        input_tensor: Input of the calling rank; may be its part of the output.
        group: Process group; None for all ranks.
        async_op: Whether to return a `Work` to wait for.

    Raises:
        CollectiveMismatchError: If the calls of the ranks differ (C2-C4).
        KernbenchError: If an argument cannot be used (C8, C12, C18).
    """
    name = "all_gather_into_tensor"
    process = current_process()
    members = members_of(process, group, name)
    if members is None:
        return None
    check_tensor(process, name, output_tensor, "output_tensor")
    check_tensor(process, name, input_tensor, "input_tensor")
    check_whole(process, members, name, output_tensor, "output", input_tensor, "input")
    if noted(process, members, "all_gather", input_tensor, output_tensor):
        return IllegalWork() if async_op else None
    shape, ranks = input_tensor.window.shape, len(members.ranks)
    what = even_signature(name, "all_gather", input_tensor.dtype, shape, ranks)
    return run(process, members, what, (input_tensor,), (output_tensor,), async_op)


def gather(
    tensor: Tensor,
    gather_list: list[Tensor] | None = None,
    dst: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Any:
    """Gives one rank the tensors of all ranks.

    Args:
        tensor: Tensor of the same shape and dtype on all ranks.
        gather_list: On the destination, tensors that receive the inputs, one for each rank;
            elsewhere None.
        dst: Global rank of the destination, by default 0; or give `group_dst`.
        group: Process group; None for all ranks.
        async_op: Whether to return a `Work` to wait for.
        group_dst: Rank of the destination in the group.

    Raises:
        CollectiveMismatchError: If the calls of the ranks differ (C2-C4, C7).
        KernbenchError: If an argument cannot be used (C7, C8, C12, C18).
    """
    return _at_root(
        "gather", "dst", tensor, gather_list, "gather_list", dst, group, async_op, group_dst
    )


def scatter(
    tensor: Tensor,
    scatter_list: list[Tensor] | None = None,
    src: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Any:
    """Gives every rank one of the tensors of one rank.

    Args:
        tensor: Tensor that receives the result; of the same shape and dtype on all ranks.
        scatter_list: On the source, one tensor for each rank; elsewhere None.
        src: Global rank of the source, by default 0; or give `group_src`.
        group: Process group; None for all ranks.
        async_op: Whether to return a `Work` to wait for.
        group_src: Rank of the source in the group.

    Raises:
        CollectiveMismatchError: If the calls of the ranks differ (C2-C4, C7).
        KernbenchError: If an argument cannot be used (C7, C8, C12, C18).
    """
    return _at_root(
        "scatter", "src", tensor, scatter_list, "scatter_list", src, group, async_op, group_src
    )


def reduce_scatter(
    output: Tensor,
    input_list: list[Tensor],
    op: Reduction = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
) -> Any:
    """Combines the lists of all ranks entry by entry; rank i gets the i-th result.

    Args:
        output: Tensor that receives the calling rank's result.
        input_list: One tensor for each rank; sizes may be uneven, but all ranks must agree on them.
        group: Process group; None for all ranks.
        async_op: Whether to return a `Work` to wait for.

    Raises:
        CollectiveMismatchError: If the calls of the ranks differ (C2-C5).
        KernbenchError: If an argument cannot be used (C6, C8, C12, C18).
    """
    name = "reduce_scatter"
    process = current_process()
    members = members_of(process, group, name)
    if members is None:
        return None
    check_tensor(process, name, output, "output")
    blocks = block_shapes(process, members, name, input_list, "input_list", output)
    reduction = reduction_for(process, members, name, op, output)
    what = signature(name, "reduce_scatter", output.dtype, blocks, reduction)
    return run(process, members, what, input_list, (output,), async_op)


def reduce_scatter_tensor(
    output: Tensor,
    input: Tensor,
    op: Reduction = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
) -> Any:
    """Combines the inputs of all ranks; rank i gets the i-th part of the result.

    Args:
        output: Tensor that receives the calling rank's part; may be that part of the input.
        input: Input of the calling rank, with as many elements as the outputs of all ranks.
        group: Process group; None for all ranks.
        async_op: Whether to return a `Work` to wait for.

    Raises:
        CollectiveMismatchError: If the calls of the ranks differ (C2-C5).
        KernbenchError: If an argument cannot be used (C6, C8, C12, C18).
    """
    name = "reduce_scatter_tensor"
    process = current_process()
    members = members_of(process, group, name)
    if members is None:
        return None
    check_tensor(process, name, output, "output")
    check_tensor(process, name, input, "input")
    check_whole(process, members, name, input, "input", output, "output")
    reduction = reduction_for(process, members, name, op, output)
    if noted(process, members, "reduce_scatter", input, output, reduction):
        return IllegalWork() if async_op else None
    shape, ranks = output.window.shape, len(members.ranks)
    what = even_signature(name, "reduce_scatter", output.dtype, shape, ranks, reduction)
    return run(process, members, what, (input,), (output,), async_op)


all_gather_single = _all_gather_base = all_gather_into_tensor
reduce_scatter_single = _reduce_scatter_base = reduce_scatter_tensor


def _at_root(
    name: str,
    label: str,
    tensor: Tensor,
    tensors: list[Tensor] | None,
    list_label: str,
    given: int | None,
    group: Group,
    async_op: bool,
    local: int | None,
) -> Work | None:
    """Gathers into a list, or scatters a list, that only one rank has."""
    process = current_process()
    members = members_of(process, group, name)
    if members is None:
        return None
    root, text = root_of(process, members, name, label, given, local, default=0)
    check_tensor(process, name, tensor)
    mine = members.place(process.rank) == root
    if mine:
        block_shapes(process, members, name, tensors, list_label, tensor, even=True)
    elif tensors:
        raise CollectiveArgumentError(
            f"rank {process.rank} called {name} with a {list_label}, but {text} has it",
            [called(process, name, members)],
            hint=f"give {list_label} on that rank only",
            code="C12",
        )
    many = tensors if mine and tensors is not None else ()
    shape, ranks = tensor.window.shape, len(members.ranks)
    what = even_signature(name, name, tensor.dtype, shape, ranks, None, root, text)
    if label == "dst":
        return run(process, members, what, (tensor,), many, async_op)
    return run(process, members, what, many, (tensor,), async_op)
