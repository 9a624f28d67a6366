"""`torch.distributed.new_group` and similar functions: all ranks make the same groups (C9).

No call waits: its result depends on the rank's own arguments only. So a disagreement is found when
the second of two ranks calls, and a missing call when the rank returns.
"""

import operator
import warnings
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from kernbench.caches import cached
from kernbench.distributed.groups import (
    BACKENDS,
    GroupMember,
    backend_of,
    check_device_id,
    find_group,
    get_process_group_ranks,
    libraries_of,
)
from kernbench.errors import CallSite, OperandError, OptionError, call_site, site_fact
from kernbench.operations import cuda
from kernbench.process.process import Process, current_process
from kernbench.ranks.group_creation import Creation, Row
from kernbench.ranks.groups import GroupError, ProcessGroup
from kernbench.ranks.meeting import Call, Meeting, Term
from kernbench.ranks.ranges import runs
from kernbench.ranks.world import GroupLeakWarning, Split, World, meet, meet_in_row, world_of
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
    if not use_local_synchronization:
        return _make(
            process, ("world", None), world.ranks, members, library, group_desc, call_site()
        )
    if process.rank not in members:
        return None
    return _make(process, ("local", members), members, members, library, group_desc, call_site())


def new_rows(lines: Any, group_desc: str) -> list[Any]:
    """Returns what `new_group` returns for each row of an array of global ranks, kept in order.

    Args:
        lines: Shape `[groups, ranks]`.
        group_desc: See `new_group`.

    Raises:
        GroupMismatchError: If another rank made another group at the same place (C9).
        GroupError: If nothing is initialised (C18), or for too many groups (C17).
        OptionError: If a rank does not exist or is named twice.
    """
    process = current_process()
    world = find_group(process, None, "new_group")
    members = _lines(world.ranks, lines.shape, lines.tobytes(), lines.dtype.str)
    if members is None:
        members = tuple(_members(world, line, False) for line in lines.tolist())
    return _make_each(process, world, members, None, group_desc)


@cached("distributed.lines")
def _lines(
    ranks: tuple[int, ...], shape: tuple[int, ...], values: bytes, dtype: str
) -> tuple[tuple[int, ...], ...] | None:
    """Returns the rows of an array of ranks, the same object for all; None if one is wrong.

    Args:
        ranks: Ranks that there are.
        shape: Of the array.
        values: Of the array.
        dtype: Of the array.
    """
    lines = np.frombuffer(values, dtype).reshape(shape)
    found = tuple(map(tuple, lines.tolist()))
    flat = [rank for line in found for rank in line]
    return found if set(flat) <= set(ranks) and all(len(set(x)) == len(x) for x in found) else None


def _make_each(
    process: Process,
    world: ProcessGroup,
    parts: tuple[tuple[int, ...], ...],
    backend: str | None,
    group_desc: str | None,
) -> list[Any]:
    """Makes a group of each list of ranks that is checked, as `new_group` does."""
    library, site, place = _library(backend), call_site(), ("world", None)
    made = _make_in_row(process, world, parts, library, group_desc, site)
    if made is not None:
        return made
    return [_make(process, place, world.ranks, part, library, group_desc, site) for part in parts]


def _make_in_row(
    process: Process,
    world: ProcessGroup,
    parts: tuple[tuple[int, ...], ...],
    library: str | None,
    group_desc: str | None,
    site: CallSite | None,
) -> list[Any] | None:
    """Does what `_make` does for each of several groups; None if they must be made one by one.

    So a rank's time does not go with the number of groups that it is not in.
    """
    state, rank = world_of(process), process.rank
    held = state.held[rank]
    if len(held) >= min(_WARN_AT, process.ctx.spec.group_limit):
        return None  # `_received` counts
    row = _row(parts, library, group_desc)
    if row is None:
        return None
    terms, text = row.terms[-1]
    call = Call(rank, "new_group", terms, text, site, process.host.clock)

    def make(meetings: Sequence[Creation]) -> list[ProcessGroup]:
        groups = []
        for part, meeting in zip(parts, meetings, strict=True):
            name = f"G{meeting.number}{_braced(part)}"
            group = state.new_group(name, part, group_desc or "undefined", library)
            group.birth = meeting
            state.groups[name] = group
            groups.append(group)
        return groups

    rows = meet_in_row(process, ("world", None), world.ranks, call, row, make)
    if rows is None:
        return None
    mine, made = row.place.get(rank), rows.made
    outside = state.outside.setdefault(rank, [])
    found: list[Any] = [GroupMember.NON_GROUP_MEMBER] * len(made)
    if mine is None:
        outside += made
        return found
    outside += made[:mine] + made[mine + 1 :]
    found[mine] = held[made[mine].name] = made[mine]
    return found


@cached("distributed.rows")
def _row(
    parts: tuple[tuple[int, ...], ...], library: str | None, group_desc: str | None
) -> Row | None:
    """Returns groups that are made in a row, the same object for all ranks.

    Args:
        parts: Global ranks of each group.
        library: Name of the library; None for that of the world.
        group_desc: The user's description.

    Returns:
        The row; None if a rank is in several groups, or a group has a single rank, where ranks may
        differ.
    """
    place = {rank: number for number, part in enumerate(parts) for rank in part}
    if len(place) < sum(map(len, parts)) or min(map(len, parts)) < 2 or len(parts) < 2:
        return None
    return Row(parts, place, [_terms(part, library, group_desc) for part in parts])


def _make(
    process: Process,
    place: tuple[str, tuple[int, ...] | None],
    among: tuple[int, ...],
    members: tuple[int, ...],
    library: str | None,
    group_desc: str | None,
    site: CallSite | None,
) -> Any:
    """Makes a group; returns it to a member, and `NON_GROUP_MEMBER` to others.

    Args:
        place: Where the ranks meet: all of the world, or the members only.
        among: Global ranks that make the group.
        members: Global ranks of the group.
        library: Name of the library; None for that of the world.
        group_desc: The user's description.
        site: Where the user made it.
    """
    terms, text = _terms(members, library, group_desc)
    call = Call(process.rank, "new_group", terms, text, site, process.host.clock)
    made, meeting = meet(process, place, among, call, _none_yet)
    group = made.get(members)
    if group is None:
        name = f"{'G' if place[0] == 'world' else 'local.'}{meeting.number}{_braced(members)}"
        group = made[members] = world_of(process).new_group(
            name, members, group_desc or "undefined", library
        )
    return _received(process, group, meeting, GroupMember.NON_GROUP_MEMBER)


@cached("distributed.new_groups")
def _terms(
    members: tuple[int, ...], library: str | None, group_desc: str | None
) -> tuple[tuple[Term, ...], str]:
    """Returns what the calls of all ranks must agree on, and their text: the same objects for all.

    Args:
        members: Global ranks of the group.
        library: Name of the library; None for that of the world.
        group_desc: The user's description.
    """
    terms = (
        # A group of one meets nobody, so it does not matter who else makes another such group.
        Term("C9", "members", members if len(members) > 1 else _ONE),
        Term("C9", "backend", library),
        Term("C9", "description", group_desc),
    )
    return terms, f"new_group({list(members)}" + (f", {group_desc!r})" if group_desc else ")")


def _none_yet(number: int) -> dict[tuple[int, ...], ProcessGroup]:
    """Returns where the groups of one meeting are kept: several, if each has one rank."""
    del number
    return {}


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
    world = world_of(process)
    split = _split(world, parent, split_ranks, group_desc)
    parts = split.parts
    call = Call(
        process.rank, "split_group", split.terms, split.text, call_site(), process.host.clock
    )

    def make(number: int) -> dict[int, ProcessGroup]:
        made: dict[int, ProcessGroup] = {}
        for part in parts:
            name = f"{parent.name}/{number}{_braced(part)}"
            desc = group_desc or f"{parent.desc}:split:{number - 1}"
            made |= dict.fromkeys(part, world.new_group(name, part, desc, parent.backend))
        return made

    made, meeting = meet(process, ("split", parent.name), parent.ranks, call, make)
    group = made.get(process.rank)
    return None if group is None else _received(process, group, meeting, None)


def _split(
    world: World, parent: ProcessGroup, given: Sequence[Sequence[int]], group_desc: str | None
) -> Split:
    """Returns what a split is, found once for all ranks that give the same tuple.

    Args:
        parent: Group to split.
        given: The user's argument.
        group_desc: The user's description.
    """
    key = (id(given), parent.name, group_desc)
    known = world.splits.get(key)
    if known is not None and known.given is given:
        return known
    parts = [_members(parent, part, True, "the parent's numbering") for part in given]
    _check_apart("split_group", parts)
    places = ", ".join(str([parent.place(rank) for rank in part]) for part in parts)
    split = Split(
        given,
        parts,
        (Term("C9", "parts", parts), Term("C9", "description", group_desc)),
        f"split_group({parent.name}, [{places}]" + (f", {group_desc!r})" if group_desc else ")"),
    )
    if type(given) is tuple and all(map(_is_fixed, given)):
        world.splits.keep(key, split)
    return split


def _is_fixed(ranks: Sequence[int]) -> bool:
    """Returns whether nobody can change a list of ranks any more."""
    return type(ranks) is tuple and all(type(rank) is int for rank in ranks)


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
    process = current_process()
    world = find_group(process, None, "new_subgroups")
    refuse("new_group", pg_options=pg_options)
    made = _make_each(process, world, _neighbours(tuple(ranks), size), backend, group_desc)
    return _mine(made), made


@cached("distributed.neighbours")
def _neighbours(ranks: tuple[int, ...], size: int) -> tuple[tuple[int, ...], ...]:
    """Returns ranks in parts of one size, each in order: the same object for all ranks."""
    return tuple(tuple(sorted(ranks[first : first + size])) for first in range(0, len(ranks), size))


def _mine(made: Sequence[Any]) -> Any:
    """Returns the first group that holds the calling rank; None if there is none."""
    mine = [group for group in made if group is not GroupMember.NON_GROUP_MEMBER]
    return mine[0] if mine else None


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
    process = current_process()
    world = find_group(process, None, "new_subgroups_by_enumeration")
    if not ranks_per_subgroup_list:
        raise OptionError(
            "new_subgroups_by_enumeration: the list of groups is empty", [site_fact(call_site())]
        )
    parts = tuple(_members(world, part, True) for part in ranks_per_subgroup_list)
    _check_apart("new_subgroups_by_enumeration", parts)
    refuse("new_group", pg_options=pg_options)
    made = _make_each(process, world, parts, backend, group_desc)
    return _mine(made), made


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
        given = list(map(operator.index, ranks))
    except TypeError:
        raise OperandError(
            f"a group is made of ranks; got {ranks!r}", [site_fact(call_site())]
        ) from None
    size = len(parent.ranks)
    if not given or min(given) < 0 or max(given) >= size or len(set(given)) < len(given):
        wrong = [rank for rank in given if not 0 <= rank < size]
        what = f"rank {wrong[0]} does not exist" if wrong else "ranks must be different"
        raise OptionError(
            f"a group of ranks {given}: {what if given else 'it has no members'}",
            [
                site_fact(call_site()),
                f"expected ranks 0..{size - 1} of {numbering}, each at most once",
            ],
        )
    return tuple(map(parent.ranks.__getitem__, sorted(given) if in_order else given))


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
        warning = GroupLeakWarning(
            f"[C17] rank {rank} holds {count} process groups\n  "
            + "\n  ".join(_most_made(process))
            + "\n  hint: destroy groups after their last use, or make them in "
            "`with group_scope():`"
        )
        site = meeting.calls[rank].site
        file, line = (site.file, site.line) if site is not None else (__name__, 0)
        warnings.warn_explicit(warning, GroupLeakWarning, file, line)
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
