"""`torch.distributed._coalescing_manager`: several collectives, or messages, issued as one."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from kernbench.ccl.operations import Reduction
from kernbench.distributed.checks import (
    CollectiveArgumentError,
    check_tensor,
    one_dtype,
    reduction_for,
)
from kernbench.distributed.groups import check_device_id, find_group, members_of
from kernbench.distributed.issuing import handle, issue
from kernbench.distributed.noting import Entry, Notes, close_notes, open_notes
from kernbench.distributed.p2p import issue_batch
from kernbench.distributed.reduce_ops import ReduceOp
from kernbench.distributed.signatures import Shape, coalesced_signature
from kernbench.distributed.works import Work
from kernbench.errors import OperandError, call_site, site_fact
from kernbench.memory import DType
from kernbench.memory.windows import numel
from kernbench.process.called import called
from kernbench.process.process import Process, current_process
from kernbench.process.types import Device
from kernbench.ranks.groups import ProcessGroup
from kernbench.tensors.errors import TensorError
from kernbench.tensors.new import alias
from kernbench.tensors.tensor import Tensor

__all__ = [
    "_CoalescingManager",
    "_coalescing_manager",
    "all_gather_coalesced",
    "all_reduce_coalesced",
]


class _CoalescingManager:
    """Value of `with _coalescing_manager()`: handles of the operations that run asynchronously."""

    def __init__(self) -> None:
        self.works: list[Work] = []

    def append(self, work: Work | None = None) -> None:
        """Adds a handle to wait for."""
        if work is not None:
            self.works.append(work)

    def wait(self) -> None:
        """Makes the current stream wait for all operations; the host does not wait."""
        for work in self.works:
            work.wait()


def _coalescing_manager(
    group: ProcessGroup | None = None, device: object = None, async_ops: bool = False
) -> "_Coalescing":
    """Returns a context that issues the collectives of its block as one when the block succeeds.

    Calls of `all_reduce`, `all_gather_into_tensor` and `reduce_scatter_tensor` are issued as one if
    all are of one kind and have one reduce operation. Other collectives are issued where they are
    called, as in PyTorch. Tensors of each dtype, and tensors on the host and on the device, are
    issued as operations of their own. If `device` is given, messages to and from known ranks of the
    group also wait for the end of the block and start together, as with `batch_isend_irecv`.

    Args:
        group: Process group of the collectives; None for all ranks.
        device: None, or the calling rank's device.
        async_ops: Whether the operations are asynchronous; then the `wait()` of the context's value
            waits for them.

    Raises:
        TensorError: If the collectives are of different kinds, or such blocks are nested.
        CollectiveMismatchError: If the calls of the ranks differ.
    """
    process = current_process()
    chosen = find_group(process, group, "_coalescing_manager")
    check_device_id("_coalescing_manager", process, device)
    return _Coalescing(process, chosen, Notes(device is not None), async_ops)


class _Coalescing:
    """The context of `_coalescing_manager`: a class, so that a report shows its `with` line."""

    def __init__(
        self, process: Process, group: ProcessGroup, notes: Notes, async_ops: bool
    ) -> None:
        self._process = process
        self._group = group
        self._async_ops = async_ops
        self._notes = notes
        self._manager = _CoalescingManager()

    def __enter__(self) -> _CoalescingManager:
        if not open_notes(self._process, self._group, self._notes):
            raise TensorError(
                f"_coalescing_manager inside another one of group {self._group.name}",
                [site_fact(call_site())],
            )
        return self._manager

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        close_notes(self._process, self._group)
        if error is None:
            self._issue_all()

    def _issue_all(self) -> None:
        entries = self._notes.entries
        kinds = {(entry.operation, entry.reduction) for entry in entries}
        if len(kinds) > 1:
            names = sorted(
                operation + (f" {reduction.name}" if reduction is not None else "")
                for operation, reduction in kinds
            )
            raise TensorError(
                "_coalescing_manager: collectives of one kind only",
                [site_fact(call_site()), f"got {', '.join(names)}"],
            )
        for kind in dict.fromkeys(_kind(entry) for entry in entries):
            same = [entry for entry in entries if _kind(entry) == kind]
            self._manager.append(_issue(self._process, self._group, same, self._async_ops))
        if self._notes.messages:
            work = issue_batch(self._process, "_coalescing_manager", self._notes.messages)
            if self._async_ops:
                self._manager.append(work)
            else:
                work.wait()


def all_reduce_coalesced(
    tensors: Sequence[Tensor] | Tensor,
    op: Reduction = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Any:
    """Does what `all_reduce` does with each of several tensors, as one operation.

    Args:
        tensors: At least one tensor; all of one dtype, and of the same shapes on all ranks.
        group: Process group; None for all ranks.
        async_op: Whether to return a `Future` to wait for, as in PyTorch.

    Raises:
        CollectiveMismatchError: If the calls of the ranks differ (C2-C5).
        KernbenchError: If an argument cannot be used (C4, C6, C8, C12, C18).
    """
    name = "all_reduce_coalesced"
    process = current_process()
    members = members_of(process, group, name)
    if members is None:
        return None
    given = [tensors] if isinstance(tensors, Tensor) else tensors
    _check_each(process, members, name, given, "tensors")
    reduction = reduction_for(process, members, name, op, given[0])
    entries = [Entry("all_reduce", tensor, tensor, reduction) for tensor in given]
    work = _issue(process, members, entries, async_op)
    return None if work is None else work.get_future()


def all_gather_coalesced(
    output_tensor_lists: list[list[Tensor]],
    input_tensor_list: list[Tensor],
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Any:
    """Does what `all_gather` does with each of several tensors, as one operation.

    Args:
        output_tensor_lists: For each rank of the group, a list of tensors that receive the rank's
            inputs.
        input_tensor_list: At least one tensor; all of one dtype, and of the same shapes on all
            ranks.
        group: Process group; None for all ranks.
        async_op: Whether to return a `Future` to wait for, as in PyTorch.

    Raises:
        CollectiveMismatchError: If the calls of the ranks differ (C2-C4).
        KernbenchError: If an argument cannot be used (C4, C8, C12, C18).
    """
    name = "all_gather_coalesced"
    process = current_process()
    members = members_of(process, group, name)
    if members is None:
        return None
    _check_each(process, members, name, input_tensor_list, "input_tensor_list")
    sizes = [numel(tensor.window.shape) for tensor in input_tensor_list]
    found = []
    for part in output_tensor_lists:
        _check_each(process, members, name, [*input_tensor_list, *part], "output_tensor_lists")
        found.append([numel(tensor.window.shape) for tensor in part])
    if found != [sizes] * members.size():
        raise CollectiveArgumentError(
            f"rank {process.rank} called {name} with output_tensor_lists that do not fit",
            [
                called(process, name, members),
                f"needed {members.size()} lists, one for each rank of group {members.name}, of "
                f"tensors of {sizes} elements; got {found}",
            ],
            hint="make each list like the inputs: [torch.empty_like(x) for x in inputs]",
            code="C12",
        )
    shapes = tuple(tensor.window.shape for tensor in input_tensor_list)
    dtype = input_tensor_list[0].dtype
    what = coalesced_signature("all_gather", dtype, (shapes,) * members.size())
    taken = [tensor for part in output_tensor_lists for tensor in part]
    command, _ = issue(process, members, what, input_tensor_list, taken, async_op=async_op)
    return handle(process, command, taken).get_future() if async_op else None


def _check_each(
    process: Process, group: ProcessGroup, name: str, tensors: Sequence[Tensor], label: str
) -> None:
    """Checks that a list has at least one tensor, and that all have one dtype and one device."""
    if not isinstance(tensors, list | tuple) or not tensors:
        raise OperandError(
            f"rank {process.rank} called {name} with {label} that is no list of tensors",
            [called(process, name, group), f"got {tensors!r}"],
        )
    for tensor in tensors:
        check_tensor(process, name, tensor, f"an entry of {label}")
    one_dtype(process, group, name, tensors)


def _kind(entry: Entry) -> tuple[DType, Device]:
    return entry.source.dtype, entry.source.device


def _issue(
    process: Process, group: ProcessGroup, entries: Sequence[Entry], async_ops: bool
) -> Work | None:
    """Issues collectives of one kind and dtype as one: each block holds a part of each of them."""
    operation, first, _, reduction = entries[0]
    sources = [entry.source for entry in entries]
    targets = [entry.target for entry in entries]
    shapes = tuple(entry.source.window.shape for entry in entries)
    blocks: tuple[tuple[Shape, ...], ...] = (shapes,)
    given, taken = sources, targets
    if operation == "all_gather":
        blocks = (shapes,) * group.size()
        taken = _block_by_block(targets, group.size())
    elif operation == "reduce_scatter":
        blocks = (tuple(entry.target.window.shape for entry in entries),) * group.size()
        given = _block_by_block(sources, group.size())
    elif all(entry.source is entry.target for entry in entries):
        taken = given
    what = coalesced_signature(operation, first.dtype, blocks, reduction)
    command, _ = issue(process, group, what, given, taken, async_op=async_ops)
    return handle(process, command, targets) if async_ops else None


def _block_by_block(tensors: Sequence[Tensor], ranks: int) -> list[Tensor]:
    """Returns the parts of tensors that belong to rank 0, then to rank 1, and so on."""
    parts: list[Tensor] = []
    for rank in range(ranks):
        for tensor in tensors:
            count = numel(tensor.window.shape) // ranks
            parts.append(alias(tensor, (count,), (1,), tensor.window.offset + rank * count))
    return parts
