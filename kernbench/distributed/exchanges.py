"""`torch.distributed`: collectives in which each rank sends different data to each other rank."""

from collections.abc import Sequence
from typing import Any

from kernbench.distributed.checks import (
    CollectiveArgumentError,
    check_list,
    check_tensor,
    one_dtype,
    splits_of,
)
from kernbench.distributed.groups import Group, members_of
from kernbench.distributed.issuing import run
from kernbench.distributed.signatures import exchange_signature
from kernbench.memory.windows import numel
from kernbench.process.called import called
from kernbench.process.process import Process, current_process
from kernbench.ranks.groups import ProcessGroup
from kernbench.routing import Load
from kernbench.tensors.tensor import Tensor

__all__ = ["all_to_all", "all_to_all_single"]


def all_to_all(
    output_tensor_list: list[Tensor],
    input_tensor_list: list[Tensor],
    group: Group = None,
    async_op: bool = False,
) -> Any:
    """Gives the i-th tensor of each rank to rank i.

    Args:
        output_tensor_list: Tensors that receive the data, one for each rank; sizes may be uneven.
        input_tensor_list: Tensors to send, one for each rank.
        group: Process group; None for all ranks.
        async_op: Whether to return a `Work` to wait for.

    Raises:
        CollectiveMismatchError: If the calls of the ranks differ (C2, C4, C11).
        KernbenchError: If an argument cannot be used (C8, C12, C18).
    """
    name = "all_to_all"
    process = current_process()
    members = members_of(process, group, name)
    if members is None:
        return None
    check_list(process, members, name, output_tensor_list, "output_tensor_list")
    check_list(process, members, name, input_tensor_list, "input_tensor_list")
    dtype = one_dtype(process, members, name, [*input_tensor_list, *output_tensor_list])
    sends, receives = (
        tuple([numel(tensor.window.shape) for tensor in tensors])
        for tensors in (input_tensor_list, output_tensor_list)
    )
    what = exchange_signature(name, dtype, sends, receives, None)
    return run(process, members, what, input_tensor_list, output_tensor_list, async_op)


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Group = None,
    async_op: bool = False,
) -> Any:
    """Gives the i-th part of each rank's input to rank i.

    Args:
        output: Tensor that receives the parts, in the order of the ranks.
        input: Tensor to send; its rows are parted along dimension 0.
        output_split_sizes: Rows that come from each rank; None for equal parts.
        input_split_sizes: Rows that go to each rank; None for equal parts.
        group: Process group; None for all ranks.
        async_op: Whether to return a `Work` to wait for.

    Raises:
        CollectiveMismatchError: If the calls of the ranks differ (C2-C4, C11).
        KernbenchError: If an argument cannot be used (C8, C12, C18).
    """
    name = "all_to_all_single"
    process = current_process()
    members = members_of(process, group, name)
    if members is None:
        return None
    check_tensor(process, name, output, "output")
    check_tensor(process, name, input, "input")
    dtype = one_dtype(process, members, name, (input, output))
    sends = splits_of(process, members, name, "input", input, input_split_sizes)
    receives = splits_of(process, members, name, "output", output, output_split_sizes)
    row = input.window.shape[1:]
    if numel(row) != numel(output.window.shape[1:]):
        raise CollectiveArgumentError(
            f"rank {process.rank} called {name} with rows of different size",
            [
                called(process, name, members),
                f"input rows {list(row)}, output rows {list(output.window.shape[1:])}",
            ],
            hint="only the first dimension is split: make the others alike",
            code="C12",
        )
    what = exchange_signature(name, dtype, sends, receives, row)
    if process.engine.op_log.full and len({*sends, *receives}) > 1:
        _note(process, members, sends, receives, numel(row) * dtype.itemsize)
    return run(process, members, what, (input,), (output,), async_op)


def _note(
    process: Process,
    members: ProcessGroup,
    sends: Sequence[int],
    receives: Sequence[int],
    row_bytes: int,
) -> None:
    """Notes an uneven exchange for the report of loads, unless a layer of experts notes its own."""
    if process.ranges and process.ranges[-1].startswith("moe "):
        return
    sent = (sum(sends) - sends[members.ranks.index(process.rank)]) * row_bytes
    rows = sum(receives)
    note_load(process, -1, -1, "exchange", members.ranks, (), None, None, sent, rows=rows)


def note_load(
    process: Process,
    layer: int,
    step: int,
    direction: str,
    ranks: Sequence[int],
    by_expert: Sequence[int],
    dropped: int | None,
    padded: int | None,
    sent: int,
    *,
    rows: int | None = None,
) -> None:
    """Notes what a rank gets in an exchange of tokens; see `Load`.

    Args:
        process: The rank.
        rows: Rows that it got; None for those of its experts.
    """
    of_experts = tuple(by_expert)
    what = sum(of_experts) if rows is None else rows, of_experts, dropped, padded, sent
    where = process.rank, layer, step, direction, process.host.clock, tuple(ranks)
    process.engine.op_log.loads.append(Load(*where, *what))
