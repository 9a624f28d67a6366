"""Replicas of a module on all ranks of a group: checks that they agree, and makes them equal."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from kernbench.distributed.issuing import issue, met
from kernbench.distributed.signatures import object_signature, signature
from kernbench.errors import KernbenchError, call_site, site_fact
from kernbench.memory import DType, dtypes
from kernbench.nn.marks import PARTS
from kernbench.nn.module import Module
from kernbench.operations.copies import array_to
from kernbench.operations.creation import empty
from kernbench.operations.shaping import cat
from kernbench.process.process import Process
from kernbench.ranks.groups import ProcessGroup
from kernbench.ranks.meeting import Role
from kernbench.ranks.ranges import folded
from kernbench.ranks.world import world_of
from kernbench.tensors.new import new_tensor
from kernbench.tensors.nodes import recording
from kernbench.tensors.running import read_back, wait_for
from kernbench.tensors.tensor import Tensor

if TYPE_CHECKING:
    from kernbench.process.types import Device

NAME: Final = "DistributedDataParallel"

_BROADCAST_BYTES: Final = 250 << 20
"""Bytes of tensors that are broadcast together at most, as in PyTorch."""

Shown = tuple[str, tuple[int, ...], DType, bool]


EVENLY: Final = (
    f"every rank wraps its module in {NAME} and takes as many steps with it as the others: look "
    "for uneven numbers of batches, and for a branch on the rank"
)
"""Hint for a rank that does not reach a collective of the wrapper."""

_ALIKE: Final = Role(
    "which checks that parameters are alike",
    EVENLY,
)
_COPIES: Final = Role(f"of {NAME}'s parameters or buffers", EVENLY)


class DataParallelError(KernbenchError, RuntimeError):
    """A module cannot be trained data parallel, or was not used as data parallelism requires."""


IGNORED: Final = "_ddp_params_and_buffers_to_ignore"
"""Attribute of a module, with PyTorch's name: parameters and buffers that a wrapper leaves out."""

EXPERTS: Final = "EXPERT_DATA_PARALLEL_GROUP"
"""Description that Megatron-Core gives to the group of the ranks that hold the same experts."""


def check_ignored(module: Module, ignored: Collection[str]) -> None:
    """Refuses to ignore what PyTorch would average all the same.

    Raises:
        DataParallelError: If a parameter to ignore belongs to the module itself, not to a module
            in it. PyTorch 2.13 compares its name with `.name`, so it averages the gradients but
            leaves the values of ranks as they are.
    """
    own = [n for n, p in module.named_parameters(recurse=False) if p.requires_grad and n in ignored]
    if own:
        raise DataParallelError(
            f"{NAME} cannot ignore {', '.join(own)}: it belongs to the wrapped module itself",
            [site_fact(call_site()), "PyTorch would go on to average its gradient"],
            hint="give the parameter to a module inside of the wrapped one",
        )


def check_parts(
    process: Process, group: ProcessGroup, named: "Sequence[tuple[str, Tensor]]"
) -> None:
    """Refuses to make parts alike that ranks hold on purpose, by the marks of Megatron-Core.

    A shard of `kernbench.tp` knows whose other parts are. Of a parameter that somebody else has
    marked `allreduce = False` it is known that its data-parallel group is another one than that of
    parameters without the mark; and, if the rank is in a group that Megatron-Core describes as that
    of the ranks with the same experts, which group that is.

    Args:
        group: The ranks that would hold the same values.
        named: Their parameters, with their names.

    Raises:
        DataParallelError: If ranks of the group hold other parts of a parameter, or other experts;
            if only some of the parameters are marked.
    """
    if group.size() == 1:
        return
    marked = [pair for pair in named if getattr(pair[1], "allreduce", True) is False]
    experts = {name for name, _ in marked}
    mixed = experts if len(marked) < len(named) else set()
    apart = _with_other_experts(process, group)
    for name, parameter in named:
        parts = getattr(parameter, PARTS, None)
        others = [r for r in group.ranks if parts and r != process.rank and r in parts.ranks]
        if parts is None and name in experts:
            others = apart
        if not others and name not in mixed:
            continue
        why = (
            f"{folded(others)} of the group hold{'s' if len(others) == 1 else ''} another part"
            if others
            else "its mark allreduce = False says that it is an expert's, and others have no mark"
        )
        raise DataParallelError(
            f"{NAME} over group {group.name} would overwrite {name} of rank {process.rank} with "
            f"that of rank {group.ranks[0]}, and average their gradients",
            [site_fact(call_site()), why],
            hint="wrap parts over the ranks that hold the same part: get_data_parallel_group() for "
            "layers in shards, a wrapper of their own over get_expert_data_parallel_group() for "
            f"experts; take them out of this one with {NAME}."
            "_set_params_and_buffers_to_ignore_for_model(module, names)",
        )


def _with_other_experts(process: Process, group: ProcessGroup) -> list[int]:
    """Returns the ranks of a group that hold other experts, as far as groups tell."""
    for held in world_of(process).held.get(process.rank, {}).values():
        if held.desc == EXPERTS:
            return [rank for rank in group.ranks if rank not in held.ranks]
    return []


def check_alike(
    process: Process,
    group: ProcessGroup,
    named: "Sequence[tuple[str, Tensor]]",
    device: "Device",
) -> None:
    """Checks that all ranks have tensors of the same shapes and types. The host waits.

    The check is one small all-gather. Names may differ, as in PyTorch.

    Args:
        group: The ranks to compare.
        named: The tensors of the calling rank, with their names.
        device: Where the ranks compare, on which the group must have a library.

    Raises:
        DataParallelError: On all ranks, with the first difference.
    """
    mine = [(name, each.window.shape, each.dtype, each.requires_grad) for name, each in named]
    count = array_to(process, np.array([len(mine)], np.int64), device)
    counts = new_tensor(process, (group.size(),), dtypes.int64, device)
    what = object_signature(NAME, "all_gather", dtypes.int64, ((1,),) * group.size())
    on_host = counts.is_cpu  # there only an asynchronous call returns before all have called
    command, meeting = met(
        issue(process, group, what, (count,), (counts,), async_op=on_host, mail=mine, role=_ALIKE)
    )
    if len(meeting.mail) == group.size():
        # The rank that comes last compares; the others still wait, so it can raise in them too.
        _compare(process, group, meeting.mail)
    if on_host:
        wait_for(process, command)
    else:
        read_back(process, counts, lambda _: None)


def _compare(process: Process, group: ProcessGroup, shown: Mapping[int, Sequence[Shown]]) -> None:
    first = group.ranks[0]
    kinds = [entry[1:] for entry in shown[first]]
    for rank in group.ranks[1:]:
        if [entry[1:] for entry in shown[rank]] != kinds:
            error = _difference(group, first, shown[first], rank, shown[rank])
            world_of(process).blame(group.ranks, error)
            raise error


def _difference(
    group: ProcessGroup, first: int, theirs: Sequence[Shown], rank: int, other: Sequence[Shown]
) -> DataParallelError:
    pairs = zip(theirs, other, strict=False)
    shorter = min(len(theirs), len(other))
    place = next((at for at, (a, b) in enumerate(pairs) if a[1:] != b[1:]), shorter)

    def line(owner: int, shown: Sequence[Shown]) -> str:
        if place >= len(shown):
            return f"rank {owner} has {len(shown)} of them, and none at place {place}"
        name, shape, dtype, requires_grad = shown[place]
        frozen = "" if requires_grad else ", which requires no gradient"
        return f"rank {owner} has {name} {list(shape)} {dtype} at place {place}{frozen}"

    return DataParallelError(
        f"{NAME} over group {group.name}: rank {rank} has other parameters or buffers than "
        f"rank {first}",
        [site_fact(call_site()), line(first, theirs), line(rank, other)],
        hint="build the same module on all ranks of the group; ranks that hold different parts of "
        "a model belong to different data-parallel groups",
    )


def broadcast_together(process: Process, group: ProcessGroup, tensors: Sequence[Tensor]) -> None:
    """Copies the tensors of the group's first rank over those of all others; does not wait.

    Tensors of one type and device travel together, up to 250 MiB at once.

    Args:
        group: The ranks that hold the tensors.
        tensors: The tensors of the calling rank, in the same order on all ranks.
    """
    source = group.place(process.rank) == 0
    with recording(process, False):
        for members in _parcels(tensors):
            parts = [member.detach().reshape(-1) for member in members]
            sizes = [part.window.numel for part in parts]
            if source:
                whole = cat(parts)
            else:
                whole = empty(sum(sizes), dtype=members[0].dtype, device=members[0].device)
            root, shape = f"src={group.ranks[0]}", whole.window.shape
            what = signature("broadcast", "broadcast", whole.dtype, (shape,), None, 0, root)
            both = (whole,)
            issue(process, group, what, both if source else (), both, role=_COPIES)
            if not source:
                for member, part in zip(members, whole.split(sizes), strict=True):
                    member.copy_(part.view(member.shape))


def _parcels(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    parcels: list[list[Tensor]] = []
    alike: dict[tuple[DType, Device], list[Tensor]] = {}
    room: dict[tuple[DType, Device], int] = {}
    for tensor in tensors:
        nbytes = tensor.window.nbytes
        if not nbytes:
            continue
        kind = tensor.dtype, tensor.device
        if nbytes > room.get(kind, 0):
            alike[kind] = []
            room[kind] = _BROADCAST_BYTES
            parcels.append(alike[kind])
        alike[kind].append(tensor)
        room[kind] -= nbytes
    return parcels
