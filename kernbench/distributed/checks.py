"""Checks of the arguments of collectives, before anything changes."""

from collections.abc import Sequence
from typing import Any

from kernbench.ccl.operations import Reduction
from kernbench.distributed.groups import (
    backend_of,
    home_of,
    libraries_of,
    library_of,
)
from kernbench.distributed.libraries import LIBRARIES
from kernbench.distributed.reduce_ops import ReductionError, check_reduction, reduction_of
from kernbench.errors import KernbenchError, OperandError
from kernbench.memory import DType
from kernbench.memory.windows import has_no_gaps, numel
from kernbench.process.called import called
from kernbench.process.process import Process
from kernbench.ranks.groups import GroupError, ProcessGroup
from kernbench.ranks.ranges import folded
from kernbench.tensors.tensor import Tensor


class CollectiveArgumentError(KernbenchError, RuntimeError, ValueError):
    """Tensors that cannot take part in a collective, by their place, size or type (C4, C12).

    PyTorch raises `RuntimeError` for some of these and `ValueError` for others.
    """


def check_tensor(
    process: Process, name: str, tensor: object, label: str = "tensor", home: int | None = None
) -> None:
    """Checks that an argument is a tensor that the calling rank may give to other ranks.

    Args:
        name: Name of the function that the user called.
        tensor: The argument.
        label: Name of the argument.
        home: SIP on which the tensor must be, unless it is on the host; None for the rank's SIP.

    Raises:
        OperandError: If the argument is no tensor.
        CollectiveArgumentError: If the tensor is on another device, or is not contiguous.
    """
    if not isinstance(tensor, Tensor):
        raise OperandError(
            f"rank {process.rank} called {name} with {label} of type {type(tensor).__name__}",
            [called(process, name), "expected a tensor"],
        )
    if home is None:
        home = process.ctx.devices[process.rank]  # as `home_of`: every collective comes here
    if tensor.device.index != home and tensor.device.index is not None:
        raise CollectiveArgumentError(
            f"rank {process.rank} called {name} on a tensor on {tensor.device}",
            [called(process, name), f"expected one on cuda:{home}"],
            hint=f"move it with .to('cuda:{home}') first: rank r has the r-th device",
        )
    view = tensor.window
    if not has_no_gaps(view.shape, view.strides):
        raise CollectiveArgumentError(
            f"rank {process.rank} called {name} on a tensor that is not contiguous",
            [
                called(process, name),
                f"shape {list(view.shape)}, strides {list(view.strides)}",
            ],
            hint="call .contiguous() first, and use its result",
        )


def check_library(process: Process, group: ProcessGroup, name: str, device: str) -> None:
    """Checks that the backend of a group has a library for tensors on a type of device.

    Args:
        name: Name of the function that the user called.
        device: `cpu` or `cuda`.

    Raises:
        CollectiveArgumentError: If the backend has none.
    """
    backend = backend_of(process, group)
    libraries = libraries_of(backend)
    if device in libraries:
        return
    home = f"cuda:{home_of(process)}"
    hint = f"move it with .to('{home}') first, or use the backend 'cpu:gloo,cuda:nccl'"
    if device == "cuda":
        hint = "use the backend 'cpu:gloo,cuda:nccl'"
    raise CollectiveArgumentError(
        f"rank {process.rank} called {name} on a tensor on {device}: No backend type associated "
        f"with device type {device}",
        [
            called(process, name, group),
            f"group {group.name} has the backend {backend}, for tensors on "
            + " and ".join(home if each == "cuda" else each for each in sorted(libraries)),
        ],
        hint=hint,
    )


def check_type(
    process: Process, group: ProcessGroup, name: str, kind: str, device: str, dtype: DType
) -> None:
    """Checks that the library of a group for a type of device moves an element type.

    Args:
        group: Process group, with a library for the device.
        name: Name of the function that the user called.
        kind: Name of the operation; `send_recv` for a message.
        device: `cpu` or `cuda`.

    Raises:
        CollectiveArgumentError: If the library does not move it (C6).
    """
    library = libraries_of(backend_of(process, group))[device]
    if LIBRARIES[library].takes(kind, dtype):
        return
    hint = f"convert the tensor first, or send its bytes: {name} of tensor.view(torch.uint8)"
    if dtype.is_complex:
        hint = f"{name} of torch.view_as_real(tensor)"
    raise CollectiveArgumentError(
        f"rank {process.rank} called {name} on a tensor of {dtype}, which it is not defined for on "
        f"backend {library}",
        [called(process, name, group)],
        hint=hint,
        code="C6",
    )


def reduction_for(
    process: Process, group: ProcessGroup, name: str, op: object, tensor: Tensor
) -> Reduction:
    """Returns the reduce operation that an `op` argument means, after a check that it is defined.

    Args:
        name: Name of the function that the user called.
        op: The argument: one of `ReduceOp`, or its name.
        tensor: Tensor to reduce; its dtype and device decide what is defined.

    Raises:
        ReductionError: If the operation is not defined for the dtype or the backend (C6).
    """
    library = library_of(process, group, tensor)
    try:
        reduction = reduction_of(name, op)
        check_reduction(name, reduction, tensor.window.dtype, library)
    except ReductionError as error:
        raise told(error, process, name, group) from None
    return reduction


def told(error: ReductionError, process: Process, name: str, group: ProcessGroup) -> ReductionError:
    """Adds to an error of a reduce operation which rank called, and when; returns the error (C6).

    Args:
        name: Name of the function that the user called.
    """
    error.summary = f"{process.name}: {error.summary}"
    error.facts = (called(process, name, group), *error.facts[1:])
    return error


def root_of(
    process: Process,
    group: ProcessGroup,
    name: str,
    label: str,
    given: int | None,
    local: int | None,
    default: int | None = None,
) -> tuple[int, str]:
    """Returns the rank in the group of the source or destination, and its text in reports.

    Args:
        name: Name of the function that the user called.
        label: `src` or `dst`.
        given: The user's `src` or `dst`: a global rank.
        local: The user's `group_src` or `group_dst`: a rank in the group.
        default: Global rank if neither argument is given; None if one of them must be given.

    Raises:
        GroupError: If there is no such rank, or both or neither of the arguments are given (C7).
    """
    if given is None and local is None:
        given = default
    if (given is None) == (local is None):
        both = "both" if given is not None else "neither"
        raise GroupError(
            f"rank {process.rank} called {name} with {both} of {label}= and group_{label}=",
            [called(process, name, group), "expected one of them"],
            hint=f"{label}= takes global ranks, group_{label}= ranks in the group",
            code="C7",
        )
    place = place_of(group, given, local)
    if place is not None:
        return place, f"{label}={group.ranks[place]}"
    if local is not None:
        raise GroupError(
            f"rank {process.rank} called {name}(group_{label}={local}): group {group.name} has no "
            "such rank",
            [
                called(process, name, group),
                f"group_{label}= is a rank in the group: expected 0..{len(group.ranks) - 1}",
            ],
            hint=f"{label}= takes global ranks",
            code="C7",
        )
    raise GroupError(
        f"rank {process.rank} called {name}({label}={given}): group {group.name} has no such rank",
        [
            called(process, name, group),
            f"{label}= is a global rank: expected {folded(group.ranks)}",
        ],
        hint=f"group_{label}= takes ranks in the group"
        if group.birth is not None
        else "ranks are counted from 0",
        code="C7",
    )


def place_of(group: ProcessGroup, rank: object, group_rank: object) -> int | None:
    """Returns the rank inside a group that one of two arguments means; None for an unknown rank.

    Args:
        rank: A global rank; not used if `group_rank` is given.
        group_rank: A rank inside the group; None if `rank` is given.
    """
    number = rank if group_rank is None else group_rank
    if isinstance(number, bool) or not isinstance(number, int):
        return None
    if group_rank is not None:
        return number if number in range(len(group.ranks)) else None
    return group.place(number) if number in group else None


def check_list(
    process: Process, group: ProcessGroup, name: str, tensors: object, label: str
) -> None:
    """Checks that an argument is a list with one tensor for each rank of the group.

    Args:
        name: Name of the function that the user called.
        tensors: The argument.
        label: Name of the argument.

    Raises:
        OperandError: If the argument is no list, or an entry is no tensor.
        CollectiveArgumentError: If the number of entries is wrong (C12), or if an entry is on
            another device or is not contiguous.
    """
    if not isinstance(tensors, list):
        raise OperandError(
            f"rank {process.rank} called {name} with {label} of type {type(tensors).__name__}",
            [called(process, name, group), "expected a list of tensors"],
        )
    if len(tensors) != len(group.ranks):
        raise CollectiveArgumentError(
            f"rank {process.rank} called {name} with {len(tensors)} tensors in {label}",
            [
                called(process, name, group),
                f"needed {len(group.ranks)}, one for each rank of group {group.name}; got "
                f"{len(tensors)}",
            ],
            hint="make the list with one entry for each of dist.get_world_size(group)",
            code="C12",
        )
    for tensor in tensors:
        check_tensor(process, name, tensor, f"an entry of {label}")


def one_dtype(process: Process, group: ProcessGroup, name: str, tensors: Sequence[Tensor]) -> DType:
    """Returns the dtype of tensors, after a check that they share one dtype and one device.

    Args:
        name: Name of the function that the user called.
        tensors: At least one tensor.

    Raises:
        CollectiveArgumentError: If the tensors have several dtypes (C4) or devices (C12).
    """
    first = tensors[0]
    dtype, device = first.window.dtype, first.device
    for tensor in tensors:
        if tensor.device is not device and tensor.device != device:
            raise CollectiveArgumentError(
                f"rank {process.rank} called {name} with tensors on different devices",
                [called(process, name, group), f"got {device} and {tensor.device}"],
                hint="move them to one device with .to()",
                code="C12",
            )
        if tensor.window.dtype is not dtype:
            raise CollectiveArgumentError(
                f"rank {process.rank} called {name} with tensors of different dtypes",
                [called(process, name, group), f"got {dtype} and {tensor.dtype}"],
                hint="convert them to one with .to()",
                code="C4",
            )
    return dtype


def block_shapes(
    process: Process,
    group: ProcessGroup,
    name: str,
    tensors: Any,
    label: str,
    own: Tensor,
    *,
    even: bool = False,
) -> tuple[tuple[int, ...], ...]:
    """Returns the shapes of a list with a tensor for each rank, after a check against one tensor.

    Args:
        name: Name of the function that the user called.
        label: Name of the list's argument.
        own: The single tensor of the call; the calling rank's entry must have as many elements.
        even: Whether all entries must have as many elements as `own`.

    Raises:
        OperandError: If the argument is no list, or an entry is no tensor.
        CollectiveArgumentError: If an entry does not fit (C4, C12).
    """
    check_list(process, group, name, tensors, label)
    one_dtype(process, group, name, [own, *tensors])
    place = group.place(process.rank)
    for index in range(len(tensors)) if even else (place,):
        shape = tensors[index].window.shape
        if numel(shape) != numel(own.window.shape):
            raise CollectiveArgumentError(
                f"rank {process.rank} called {name} with {label}[{index}] of {numel(shape)} "
                f"elements",
                [
                    called(process, name, group),
                    f"needed {numel(own.window.shape)}, as many as the tensor "
                    f"{list(own.window.shape)} of this rank; got {list(shape)}",
                ],
                hint=f"make it like the tensor, or give a tensor like {label}[{index}]",
                code="C12",
            )
    return tuple([tensor.window.shape for tensor in tensors])


def check_whole(
    process: Process,
    group: ProcessGroup,
    name: str,
    whole: Tensor,
    label: str,
    part: Tensor,
    part_label: str,
) -> None:
    """Checks that a tensor holds a part for each rank of the group.

    Args:
        name: Name of the function that the user called.
        whole: Tensor that holds the parts of all ranks.
        label: Name of that tensor in reports.
        part: Tensor that holds one part.
        part_label: Name of the part in reports.

    Raises:
        CollectiveArgumentError: If the dtypes differ (C4), or if the devices differ or `whole` has
            the wrong number of elements (C12).
    """
    one_dtype(process, group, name, (part, whole))
    needed, got = numel(part.window.shape) * len(group.ranks), numel(whole.window.shape)
    if needed != got:
        raise CollectiveArgumentError(
            f"rank {process.rank} called {name} with an {label} of {got} elements",
            [
                called(process, name, group),
                f"needed {needed} = {len(group.ranks)} ranks x {numel(part.window.shape)} of the "
                f"{part_label} {list(part.window.shape)}; got {list(whole.window.shape)}",
            ],
            hint=f"make the {label} {len(group.ranks)} times as large as the {part_label}",
            code="C12",
        )


def splits_of(
    process: Process,
    group: ProcessGroup,
    name: str,
    label: str,
    tensor: Tensor,
    sizes: Sequence[int] | None,
) -> tuple[int, ...]:
    """Returns the number of rows of a tensor that belong to each rank.

    Args:
        name: Name of the function that the user called.
        label: `input` or `output`.
        tensor: The tensor; its rows are the entries of dimension 0.
        sizes: The user's number of rows for each rank; None or empty for equal parts.

    Raises:
        CollectiveArgumentError: If the sizes do not add up to the tensor's rows, or the rows cannot
            be parted evenly (C12).
    """
    shape, ranks = tensor.window.shape, len(group.ranks)
    if not shape:
        needed = "a tensor with at least one dimension"
    elif not sizes:
        if shape[0] % ranks == 0:
            return (shape[0] // ranks,) * ranks
        needed = f"a number of rows that {ranks} ranks can share, or {label}_split_sizes"
    else:
        counts = tuple(sizes)
        if len(counts) == ranks and sum(counts) == shape[0] and min(counts) >= 0:
            return counts
        needed = f"{ranks} sizes that add up to {shape[0]} rows"
    raise CollectiveArgumentError(
        f"rank {process.rank} called {name} with an {label} that cannot be split",
        [
            called(process, name, group),
            f"needed {needed}; got shape {list(shape)}"
            + (f", {label}_split_sizes={list(sizes)}" if sizes else ""),
        ],
        hint="split sizes count rows, one number for each rank of the group",
        code="C12",
    )
