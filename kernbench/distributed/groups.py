"""`torch.distributed`: which ranks are in which process group, and which groups a rank may use."""

import warnings
from collections.abc import Mapping
from typing import Any, Final

from kernbench.caches import cached
from kernbench.distributed.libraries import LIBRARIES
from kernbench.errors import CallSite, KernbenchError, OperandError, call_site, site_fact
from kernbench.process.access import other_device
from kernbench.process.called import called
from kernbench.process.process import MAIN, Process, RankLocal, current_process
from kernbench.process.types import Device
from kernbench.ranks.groups import GroupError, ProcessGroup
from kernbench.ranks.world import World, world_of
from kernbench.tensors.tensor import Tensor

__all__ = [
    "Backend",
    "GroupMember",
    "ProcessGroup",
    "get_backend",
    "get_global_rank",
    "get_group_rank",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "is_available",
    "is_backend_available",
    "is_gloo_available",
    "is_initialized",
    "is_nccl_available",
]

Group = ProcessGroup | None
"""Type of `group=` arguments; None stands for all ranks."""

BACKENDS: Final = ("nccl", "gloo", "ccl", "cpu:gloo,cuda:nccl")
"""Names of libraries, and an example of a list by type of device; see `libraries_of`."""


class UnknownGroupError(OperandError, ValueError):
    """What was given as a group is none; PyTorch looks it up, and raises `ValueError`."""


class Backend(str):
    """`torch.distributed.Backend`: the name of a backend, in lower case."""

    NCCL: Final = "nccl"
    GLOO: Final = "gloo"

    def __new__(cls, name: str) -> "Backend":
        """Returns the name in lower case."""
        return super().__new__(cls, name.lower())


class _DefaultGroup(type):
    """Gives a class the property `WORLD`."""

    @property
    def WORLD(cls) -> ProcessGroup | None:  # noqa: N802 - PyTorch's name
        """The group of all ranks; None before the calling rank has initialised it."""
        process = current_process()
        world = world_of(process)
        return world.group if process.rank in world.backend else None


class group(metaclass=_DefaultGroup):  # noqa: N801 - PyTorch's name
    """`torch.distributed.group`: holds `WORLD`."""


class GroupMember(metaclass=_DefaultGroup):
    """`torch.distributed.GroupMember`: holds `WORLD`, and the value for groups of other ranks."""

    NON_GROUP_MEMBER: Any = -100


def is_available() -> bool:
    """Returns True: this package always simulates it."""
    return True


def is_backend_available(backend: str) -> bool:
    """Returns whether `init_process_group` takes a backend."""
    return bool(libraries_of(backend.lower()))


def is_nccl_available() -> bool:
    """Returns True: `nccl` names the simulated library, with the rules of NCCL."""
    return True


def is_gloo_available() -> bool:
    """Returns True: on devices `gloo` names the simulated library, with Gloo's operations."""
    return True


def is_initialized() -> bool:
    """Returns whether the calling rank has called `init_process_group`."""
    process = current_process()
    return process.rank in world_of(process).backend


@cached("distributed.libraries")
def libraries_of(backend: str) -> Mapping[str, str]:
    """Returns the name of the library for each type of device, `cpu` or `cuda`.

    Args:
        backend: Name of a backend, in lower case: a library, for all types that it knows, or a list
            such as `cpu:gloo,cuda:nccl`.

    Returns:
        The names by type of device; empty if there is no such backend.
    """
    if backend in LIBRARIES:
        return dict.fromkeys(LIBRARIES[backend].devices, backend)
    found = {}
    for part in backend.split(","):
        device, _, library = part.partition(":")
        if device in found or library not in LIBRARIES:
            return {}
        if device not in LIBRARIES[library].devices:
            return {}
        found[device] = library
    return found


def backend_of(process: Process, group: ProcessGroup) -> str:
    """Returns the backend of a group that the calling rank may use."""
    return group.backend or world_of(process).backend[process.rank]


def library_of(process: Process, group: ProcessGroup, tensor: Tensor) -> str:
    """Returns the library that serves a tensor: a group may have one for each type of device.

    Args:
        group: Process group that the rank may use.
        tensor: The tensor; its type of device decides.
    """
    backend = group.backend or world_of(process).backend[process.rank]
    return libraries_of(backend).get(tensor.device.type, backend) if ":" in backend else backend


def meets_on_host(process: Process, group: ProcessGroup) -> bool:
    """Returns whether calls without tensors, such as barriers, go from host to host."""
    libraries = libraries_of(backend_of(process, group))
    return libraries.get("cuda", "gloo") == "gloo"


def home_of(process: Process) -> int:
    """Returns the SIP with which a rank takes part in collectives."""
    return process.ctx.devices[process.rank]


def check_device_id(name: str, process: Process, device_id: Any) -> None:
    """Checks that a `device_id=` is None or the calling rank's device.

    Args:
        name: Name of the function that the user called.
        device_id: The argument: None, a device, or an index.

    Raises:
        OwnershipError: If the argument means another device (M14).
    """
    if device_id is None:
        return
    sip, own = process.sip_of(Device(device_id)), home_of(process)
    if sip != own:
        error = other_device(process.name, sip, own, process.ctx.rank_of_device(sip))
        error.add_fact(f"by {name}(device_id={device_id!r})")
        raise error


def members_of(process: Process, group: Group, name: str) -> ProcessGroup | None:
    """Returns the group that a `group=` argument of a communication means.

    As in PyTorch, a call with `GroupMember.NON_GROUP_MEMBER` warns (C8), once a line, and does
    nothing.

    Args:
        group: The argument; None for all ranks.
        name: Name of the function, for the report.

    Returns:
        The group; None if the rank is not in it, so that the call is over.

    Raises:
        KernbenchError: If the rank may not use the group, as `find_group` does.
    """
    session: Any = process.ctx  # as `world_of` and `_held`: every communication comes here
    world: World = session.world
    held = world.held.get(process.rank)
    found = world.group if group is None else group
    if held and isinstance(found, ProcessGroup) and held.get(found.name) is found:
        return found
    error = _unusable(process, world, group, name)
    if not (world.held.get(process.rank) and _is_non_member(group)):
        raise error
    warn_outside(process, name)
    return None


_WARNED: Final[RankLocal[set[tuple[str, CallSite | None]]]] = RankLocal(
    "calls on groups of other ranks", lambda _: set()
)
"""Functions, with their lines, that a rank has been warned of."""


class OutsideGroupWarning(UserWarning):
    """A rank called a communication on a group that it is not in; nothing happened (C8)."""


def warn_outside(process: Process, name: str) -> None:
    """Warns of a communication on a group that the rank is not in (C8), once a line.

    Args:
        name: Name of the function.
    """
    site = call_site()
    warned = _WARNED.of(process)
    if (name, site) in warned:
        return
    warned.add((name, site))
    made = [
        f"not in {each.name}; {each.made(process.rank)}"
        for each in world_of(process).outside.get(process.rank, ())
    ]
    lines = [
        f"[C8] Running {name} on global rank {process.rank} which does not belong to the given "
        "group.",
        site_fact(site),
        *made[-_SHOWN:],
        "hint: call it on the members only: `if group != GroupMember.NON_GROUP_MEMBER:`",
    ]
    file, line = (site.file, site.line) if site is not None else (__name__, 0)
    warnings.warn_explicit("\n  ".join(lines), OutsideGroupWarning, file, line)


def find_group(process: Process, group: Group, name: str) -> ProcessGroup:
    """Returns the group that a `group=` argument means, if the calling rank may use it.

    Args:
        group: The argument; None for all ranks.
        name: Name of the function, for the report.

    Raises:
        KernbenchError: If the rank may not use the group. The class is `GroupError` if the group is
            not initialised or is destroyed (C18), leaves the rank out (C8), or was not made by the
            rank (C9); it is `UnknownGroupError` if the argument is none.
    """
    world = world_of(process)
    found = _held(process, world, group)
    if found is None:
        raise _unusable(process, world, group, name)
    return found


def _held(process: Process, world: World, group: Any) -> ProcessGroup | None:
    """Returns the group that an argument means; None if the rank may not use it."""
    held = world.held.get(process.rank)
    if held:
        if group is None:
            group = world.group
        if isinstance(group, ProcessGroup) and held.get(group.name) is group:
            return group
    return None


def is_outside(group: Any, name: str) -> bool:
    """Returns whether a communication has nothing to do, after a warning; see `members_of`.

    Args:
        group: The `group=` argument.
        name: Name of the function, for the report.
    """
    return _is_non_member(group) and members_of(current_process(), group, name) is None


def _is_non_member(group: Any) -> bool:
    return isinstance(group, int) and group == GroupMember.NON_GROUP_MEMBER


def _unusable(process: Process, world: World, group: Any, name: str) -> KernbenchError:
    rank, here = process.rank, called(process, name)
    if rank not in world.backend:
        left = [site_fact(world.left[rank], "destroyed at")] if rank in world.left else []
        return GroupError(
            f"{process.name} called {name} without an initialised process group",
            [here, *left],
            hint="call torch.distributed.init_process_group() "
            + ("again first" if left else "in every worker first"),
            code="C18",
        )
    if _is_non_member(group):
        made = [f"not in {g.name}; {g.made(rank)}" for g in world.outside.get(rank, ())]
        return GroupError(
            f"rank {rank} called {name} on a group that it is not in (NON_GROUP_MEMBER)",
            [here, *made[-_SHOWN:]],
            hint="call it on the members only: `if group != GroupMember.NON_GROUP_MEMBER:`",
            code="C8",
        )
    if not isinstance(group, ProcessGroup):
        return UnknownGroupError(
            f"{name}(group={group!r}): expected a ProcessGroup or None", [here]
        )
    if rank in group.destroyed:
        return GroupError(
            f"rank {rank} called {name} on group {group.name}, which it has destroyed",
            [
                called(process, name, group),
                site_fact(group.destroyed[rank], "destroyed at"),
                group.made(rank),
            ],
            code="C18",
            hint="destroy a group after its last use",
        )
    if world.groups.get(group.name) is not group:
        return GroupError(
            f"rank {rank} called {name} on group {group.name} of a spawn that is over",
            [here, group.made(rank)],
            code="C18",
            hint="make groups in the worker; nothing of a spawn survives it",
        )
    if rank not in group:
        return GroupError(
            f"rank {rank} called {name} on group {group.name}, which it is not in",
            [here, group.made(rank)],
            hint="call it on the members only: `if dist.get_rank(group) >= 0:`",
            code="C8",
        )
    return GroupError(
        f"rank {rank} called {name} on group {group.name} before it made the group itself",
        [called(process, name, group), group.made(rank)],
        hint="every rank calls new_group() for every group, and uses its own result",
        code="C9",
    )


_SHOWN: Final = 3
"""Most groups that a report lists if the caller passed the value for groups of other ranks."""


def get_backend(group: Group = None) -> str:
    """Returns the name given to `init_process_group`, or to `new_group`, in lower case."""
    process = current_process()
    chosen = find_group(process, group, "get_backend")
    return backend_of(process, chosen)


def get_rank(group: Group = None) -> int:
    """Returns the calling rank; unlike PyTorch, also before a worker's `init_process_group`.

    Args:
        group: Process group that numbers the ranks; None for all ranks. The result is -1 for a rank
            outside the group.

    Raises:
        GroupError: After `destroy_process_group()` (C18), or on main, which is no rank.
    """
    process = current_process()
    if process.rank == MAIN:
        raise GroupError(
            f"main is no rank: {_NOT_INITIALISED}",
            [site_fact(call_site())],
            hint="call it in the worker that multiprocessing.spawn runs",
        )
    if group is None:
        _check_not_left(process, "get_rank")
        return process.rank
    found = _held_or_of_others(process, group, "get_rank")
    return -1 if found is None else found.place(process.rank)


def _held_or_of_others(process: Process, group: Group, name: str) -> ProcessGroup | None:
    """Returns the group that an argument means; None if it leaves the caller out.

    Args:
        group: The argument; may be the value for groups of other ranks, too.
        name: Name of the function, for the report.

    Raises:
        KernbenchError: If the rank may not use the group; see `find_group`.
    """
    world = world_of(process)
    found = _held(process, world, group)
    if found is None:
        outside = (
            process.rank not in group if isinstance(group, ProcessGroup) else _is_non_member(group)
        )
        if not outside:
            raise _unusable(process, world, group, name)
    return found


_NOT_INITIALISED: Final = (
    "Default process group has not been initialized, please make sure to call init_process_group."
)


def _check_not_left(process: Process, name: str) -> None:
    world, rank = world_of(process), process.rank
    if rank in world.left and rank not in world.backend:
        raise GroupError(
            f"rank {rank} called {name}: {_NOT_INITIALISED}",
            [called(process, name), site_fact(world.left[rank], "destroyed at")],
            hint="ask before destroy_process_group()",
            code="C18",
        )


def get_world_size(group: Group = None) -> int:
    """Returns the number of ranks in a group; on main, the number that the machine can hold.

    Args:
        group: Process group; None for all ranks. The result is -1 for a rank outside the group.

    Raises:
        GroupError: After `destroy_process_group()` (C18).
    """
    process = current_process()
    if group is None:
        _check_not_left(process, "get_world_size")
        return world_of(process).size or len(process.ctx.devices)
    found = _held_or_of_others(process, group, "get_world_size")
    return -1 if found is None else len(found.ranks)


def get_process_group_ranks(group: Group) -> list[int]:
    """Returns the global ranks of a group, in the order of the group."""
    return list(find_group(current_process(), group, "get_process_group_ranks").ranks)


def get_group_rank(group: ProcessGroup, global_rank: int) -> int:
    """Returns the rank inside a group of a global rank.

    Raises:
        GroupError: If the rank is not a member.
    """
    process = current_process()
    chosen = find_group(process, group, "get_group_rank")
    if not isinstance(global_rank, int) or global_rank not in chosen:
        raise GroupError(
            f"Global rank {global_rank!r} is not part of group {chosen.name}",
            [called(process, "get_group_rank"), f"its ranks are {list(chosen.ranks)}"],
        )
    return chosen.place(global_rank)


def get_global_rank(group: ProcessGroup, group_rank: int) -> int:
    """Returns the global rank of a rank inside a group.

    Raises:
        GroupError: If there is no such rank.
    """
    process = current_process()
    chosen = find_group(process, group, "get_global_rank")
    if not isinstance(group_rank, int) or not 0 <= group_rank < chosen.size():
        raise GroupError(
            f"Group rank {group_rank!r} is not part of group {chosen.name}",
            [called(process, "get_global_rank"), f"it has ranks 0..{chosen.size() - 1}"],
        )
    return chosen.ranks[group_rank]
