"""`torch.distributed.new_group` and similar functions: all ranks make the same groups (C9).

No call waits: its result depends on the rank's own arguments only. So a disagreement is found when
the second of two ranks calls, and a missing call when the rank returns.
"""

import operator
import warnings
from collections.abc import Sequence
from typing import Any, Final

from kernbench.distributed.groups import (
    BACKENDS,
    GroupMember,
    backend_of,
    check_device_id,
    find_group,
    get_process_group_ranks,
    libraries_of,
)
from kernbench.errors import OperandError, OptionError, call_site, site_fact
from kernbench.operations import cuda
from kernbench.process.process import Process, current_process
from kernbench.ranks.groups import GroupError, ProcessGroup
from kernbench.ranks.making import meet
from kernbench.ranks.meeting import Call, Meeting, Term, runs
from kernbench.ranks.world import GroupLeakWarning, world_of
from kernbench.tensors.errors import refuse

__all__ = ["new_group", "new_subgroups", "new_subgroups_by_enumeration", "split_group"]

_WARN_AT: Final = 64
"""Number of groups at which a rank is warned; on hardware each costs buffers and threads."""

_ONE: Final = "one rank"
"""What all groups of one rank have in common."""

_LONGEST: Final = 24
"""Most characters of a list of ranks in a group's name."""


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: object = None,
    backend: str | None = None,
    pg_options: object = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: object = None,
    sort_ranks: bool = True,
) -> Any:
    """Makes a process group; every rank of the world calls it, members or not. Does not wait.

    Args:
        ranks: Global ranks of the members; None for all.
        timeout: Ignored by design: a hang is found when it happens, not after a time.
        backend: Name as for `init_process_group`; None for the backend that was given there.
        pg_options: Must be None.
        use_local_synchronization: Whether only the members call the function.
        group_desc: Description of the group's purpose.
        device_id: If given, must be the calling rank's device.
        sort_ranks: Whether to number the members in the order of their global ranks; otherwise they
            keep the order of `ranks`.

    Returns:
        The group. A rank outside the group gets `GroupMember.NON_GROUP_MEMBER`, or None with
        `use_local_synchronization`.

    Raises:
        GroupMismatchError: If another rank made another group at this place (C9), unless both are
            groups of one rank, as those of `new_subgroups(1, group)` are.
        GroupError: If nothing is initialised (C18), or for too many groups (C17).
        OptionError: If a rank does not exist or is named twice.
    """
    del timeout
    process = current_process()
    world = find_group(process, None, "new_group")
    refuse("new_group", pg_options=pg_options)
    check_device_id("new_group", process, device_id)
    library = _library(backend)
    members = world.ranks if ranks is None else _members(world, ranks, sort_ranks)
    outsider = None if use_local_synchronization else GroupMember.NON_GROUP_MEMBER
    if use_local_synchronization and process.rank not in members:
        return outsider
    scope, among = ("local", members) if use_local_synchronization else ("world", world.ranks)
    call = Call(
        process.rank,
        "new_group",
        (
            # A group of one meets nobody, so it does not matter who else makes another such group.
            Term("C9", "members", members if len(members) > 1 else _ONE),
            Term("C9", "backend", library),
            Term("C9", "description", group_desc),
        ),
        f"new_group({list(members)}" + (f", {group_desc!r})" if group_desc else ")"),
        call_site(),
        process.host.clock,
    )
    desc = group_desc or "undefined"

    def make(number: int) -> dict[tuple[int, ...], ProcessGroup]:
        del number
        return {}

    key = (scope, among if use_local_synchronization else None)
    made, meeting = meet(process, key, among, call, make)
    if members not in made:
        local = "local." if use_local_synchronization else "G"
        name = f"{local}{meeting.number}{_braced(members)}"
        made[members] = ProcessGroup(name, members, desc, library)
    return _received(process, made[members], meeting, outsider)


def split_group(
    parent_pg: ProcessGroup | None = None,
    split_ranks: Sequence[Sequence[int]] | None = None,
    timeout: object = None,
    pg_options: object = None,
    group_desc: str | None = None,
    backend: str | None = None,
) -> ProcessGroup | None:
    """Splits a group; every rank of the parent calls it, with the same lists. Does not wait.

    Args:
        parent_pg: Group to split; None for all ranks.
        split_ranks: Ranks of each part, numbered inside the parent.
        timeout: Ignored by design: a hang is found when it happens, not after a time.
        pg_options: Must be None.
        group_desc: Description of the parts' purpose.
        backend: None, or the backend of the parent.

    Returns:
        The part that holds the calling rank; None if no part does.

    Raises:
        GroupMismatchError: If another rank of the parent made other parts (C9).
        OptionError: If the parts overlap, or name ranks that do not exist.
    """
    del timeout
    process = current_process()
    parent = find_group(process, parent_pg, "split_group")
    refuse("split_group", pg_options=pg_options)
    of_parent = backend_of(process, parent)
    if backend not in {None, of_parent}:
        raise OptionError(
            f"split_group(backend={backend!r}): the parent's is {of_parent!r}",
            [site_fact(call_site())],
        )
    if not split_ranks:
        raise OptionError(
            "split_group(split_ranks=...): expected a list of lists of ranks",
            [site_fact(call_site()), f"got {split_ranks!r}"],
        )
    parts = [_members(parent, part, True, "the parent's numbering") for part in split_ranks]
    _check_apart("split_group", parts)
    places = ", ".join(str([parent.place(rank) for rank in part]) for part in parts)
    call = Call(
        process.rank,
        "split_group",
        (Term("C9", "parts", parts), Term("C9", "description", group_desc)),
        f"split_group({parent.name}, [{places}]" + (f", {group_desc!r})" if group_desc else ")"),
        call_site(),
        process.host.clock,
    )

    def make(number: int) -> dict[int, ProcessGroup]:
        made: dict[int, ProcessGroup] = {}
        for part in parts:
            name = f"{parent.name}/{number}{_braced(part)}"
            desc = group_desc or f"{parent.desc}:split:{number - 1}"
            made |= dict.fromkeys(part, ProcessGroup(name, part, desc, parent.backend))
        return made

    made, meeting = meet(process, ("split", parent.name), parent.ranks, call, make)
    group = made.get(process.rank)
    return None if group is None else _received(process, group, meeting, None)


def new_subgroups(
    group_size: int | None = None,
    group: ProcessGroup | None = None,
    timeout: object = None,
    backend: str | None = None,
    pg_options: object = None,
    group_desc: str | None = None,
) -> tuple[Any, list[Any]]:
    """Makes groups of equal size out of neighbouring ranks; every rank calls it. Does not wait.

    Args:
        group_size: Number of ranks in each group; None for `torch.cuda.device_count()`.
        group: Group whose ranks are divided; None for all ranks.
        timeout: Ignored by design.
        backend: See `new_group`.
        pg_options: Must be None.
        group_desc: Description of the groups' purpose.

    Returns:
        The group that holds the calling rank, and a list of the results of `new_group`.

    Raises:
        OptionError: If the ranks cannot be divided like this.
        GroupMismatchError: If another rank made other groups (C9).
    """
    ranks = get_process_group_ranks(group)
    size = cuda.device_count() if group_size is None else group_size
    if size <= 0 or len(ranks) % size:
        raise OptionError(
            f"new_subgroups(group_size={size}): {len(ranks)} ranks cannot be divided like this",
            [site_fact(call_site())],
            hint="the number of ranks must be a multiple of group_size",
        )
    parts = [ranks[first : first + size] for first in range(0, len(ranks), size)]
    return new_subgroups_by_enumeration(parts, timeout, backend, pg_options, group_desc)


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]],
    timeout: object = None,
    backend: str | None = None,
    pg_options: object = None,
    group_desc: str | None = None,
) -> tuple[Any, list[Any]]:
    """Makes groups that have no rank in common; every rank calls it. Does not wait.

    Args:
        ranks_per_subgroup_list: Global ranks of each group.
        timeout: Ignored by design.
        backend: See `new_group`.
        pg_options: Must be None.
        group_desc: Description of the groups' purpose.

    Returns:
        The group that holds the calling rank, or None; and a list of the results of `new_group`.

    Raises:
        OptionError: If a rank is in two groups.
        GroupMismatchError: If another rank made other groups (C9).
    """
    world = find_group(current_process(), None, "new_subgroups_by_enumeration")
    if not ranks_per_subgroup_list:
        raise OptionError(
            "new_subgroups_by_enumeration: the list of groups is empty", [site_fact(call_site())]
        )
    parts = [_members(world, part, True) for part in ranks_per_subgroup_list]
    _check_apart("new_subgroups_by_enumeration", parts)
    made = [new_group(part, timeout, backend, pg_options, group_desc=group_desc) for part in parts]
    mine = [group for group in made if group != GroupMember.NON_GROUP_MEMBER]
    return (mine[0] if mine else None), made


def _members(
    parent: ProcessGroup, ranks: Sequence[int], in_order: bool, numbering: str = "global numbering"
) -> tuple[int, ...]:
    """Returns the global ranks of a new group.

    Args:
        parent: Group that numbers `ranks`.
        ranks: The user's argument.
        in_order: Whether to sort the ranks.
        numbering: Name of the numbering in reports.
    """
    try:
        given = [operator.index(rank) for rank in ranks]
    except TypeError:
        raise OperandError(
            f"a group is made of ranks; got {ranks!r}", [site_fact(call_site())]
        ) from None
    wrong = [rank for rank in given if not 0 <= rank < parent.size()]
    if wrong or not given or len(set(given)) < len(given):
        what = f"rank {wrong[0]} does not exist" if wrong else "ranks must be different"
        raise OptionError(
            f"a group of ranks {given}: {what if given else 'it has no members'}",
            [
                site_fact(call_site()),
                f"expected ranks 0..{parent.size() - 1} of {numbering}, each at most once",
            ],
        )
    return tuple(parent.ranks[rank] for rank in (sorted(given) if in_order else given))


def _check_apart(name: str, parts: Sequence[tuple[int, ...]]) -> None:
    seen: dict[int, tuple[int, ...]] = {}
    for part in parts:
        for rank in part:
            if rank in seen:
                raise OptionError(
                    f"{name}: rank {rank} is in two groups, {list(seen[rank])} and {list(part)}",
                    [site_fact(call_site())],
                )
            seen[rank] = part


def _library(backend: str | None) -> str | None:
    if backend is None:
        return None
    if not libraries_of(backend.lower()):
        raise OptionError(
            f"new_group(backend={backend!r})",
            [site_fact(call_site()), f"expected one of {', '.join(map(repr, BACKENDS))}"],
        )
    return backend.lower()


def _braced(ranks: Sequence[int]) -> str:
    text = runs(ranks, ",")
    if len(text) > _LONGEST:
        text = f"{ranks[0]},{ranks[1]},..,{ranks[-1]}"
    return f"{{{text}}}"


def _received(process: Process, group: ProcessGroup, meeting: Meeting, outsider: Any) -> Any:
    """Returns a group to a member, which may use it from now on; others get `outsider`."""
    world, rank = world_of(process), process.rank
    if group.birth is None:
        group.birth = meeting
        world.groups[group.name] = group
    if rank not in group:
        world.outside.setdefault(rank, []).append(group)
        return outsider
    held = world.held[rank]
    held[group.name] = group
    count, limit = len(held) - 1, process.ctx.spec.group_limit
    if count > limit:
        raise GroupError(
            f"rank {rank} holds {count} process groups; the limit is {limit}",
            [meeting.calls[rank].fact(meeting.title), *_most_made(process)],
            hint="destroy groups after their last use, or make them in `with group_scope():`; "
            "--group-limit or group_limit= sets the limit",
            code="C17",
        )
    if count >= _WARN_AT and not world.warned:
        world.warned = True
        warnings.warn(
            f"[C17] rank {rank} holds {count} process groups\n  "
            + "\n  ".join(_most_made(process))
            + "\n  hint: destroy groups after their last use, or make them in "
            "`with group_scope():`",
            GroupLeakWarning,
            stacklevel=3,
        )
    return group


def _most_made(process: Process) -> list[str]:
    """Returns a fact that names the line at which most of the rank's groups were made."""
    counts: dict[str, int] = {}
    for group in world_of(process).held[process.rank].values():
        if group.birth is not None:
            where = site_fact(group.birth.calls[process.rank].site, "made at")
            counts[where] = counts.get(where, 0) + 1
    where = max(counts, key=lambda found: counts[found])
    return [f"{counts[where]} of them were {where}"]
