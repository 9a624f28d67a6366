"""`torch.distributed`: the beginning and the end of process groups."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple

from kernbench.distributed.groups import (
    BACKENDS,
    GroupMember,
    check_device_id,
    find_group,
    libraries_of,
)
from kernbench.errors import CallSite, KernbenchError, call_site, site_fact
from kernbench.process.called import called, issued
from kernbench.process.process import MAIN, Process, current_process
from kernbench.ranks.environments import own_variables
from kernbench.ranks.groups import GroupError, ProcessGroup
from kernbench.ranks.world import world_of
from kernbench.tensors.errors import refuse
from kernbench.tensors.running import wait_for

__all__ = ["destroy_process_group", "group_scope", "init_process_group", "live_groups"]

_SHOWN: Final = 3
"""Most pending operations that a report lists."""


_HINTS: Final = {
    "backend": "name a library, or one for each type of device",
    "init_method": "leave it out: ranks of a spawn find each other by themselves",
    "world_size": "spawn as many ranks, or leave it out",
    "rank": "pass the first argument of the worker, or leave it out",
}

_VARIABLES: Final = {"world_size": "WORLD_SIZE", "rank": "RANK"}


class LiveGroup(NamedTuple):
    """A process group that a rank may use.

    Attributes:
        name: Unique name while the spawn runs.
        ranks: Global ranks, in the order of the group.
        desc: The user's description of the group's purpose.
        site: Where the group was made; None for the group of all ranks.
    """

    name: str
    ranks: tuple[int, ...]
    desc: str
    site: CallSite | None


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: object = None,
    world_size: int = -1,
    rank: int = -1,
    store: object = None,
    group_name: str = "",
    pg_options: object = None,
    device_id: object = None,
) -> None:
    """Makes the group of all ranks usable by the calling rank; takes no simulated time.

    Args:
        backend: `nccl`, `gloo` or `ccl`, or one for each type of device, `cpu:gloo,cuda:nccl`. On
            devices all three name the same simulated library, see `ReduceOp` for the differences;
            between hosts `gloo` and `ccl` name one library. None is `ccl`, which takes tensors on
            devices and on hosts, like PyTorch's default.
        init_method: `env://`, `tcp://...` or `file://...`, or None; the value is not used, since
            ranks find each other without it.
        timeout: Ignored by design: a hang is found when it happens, not after a time.
        world_size: Must be the number of ranks of the spawn; -1 for the one that the rank has put
            into `os.environ`, if any.
        rank: Must be the calling rank; -1 as for `world_size`.
        store: Must be None.
        group_name: Must be empty.
        pg_options: Must be None.
        device_id: If given, must be the calling rank's device.

    Raises:
        GroupError: If called twice without `destroy_process_group` in between, or with values that
            do not fit the spawn (C18).
        KernbenchError: On main, or with options that are not simulated.
    """
    del timeout
    process = current_process()
    world = world_of(process)
    if process.rank == MAIN:
        raise KernbenchError(
            "init_process_group was called on main, which is no rank",
            [site_fact(call_site())],
            hint="call it in the worker that multiprocessing.spawn runs, or start the ranks as "
            "torchrun does: kernbench run FILE --nproc-per-node N",
        )
    process.note_frame()
    if process.rank in world.backend:
        raise GroupError(
            f"rank {process.rank} called init_process_group twice",
            [called(process, "init_process_group")],
            hint="call destroy_process_group in between",
            code="C18",
        )
    refuse("init_process_group", store=store, pg_options=pg_options, group_name=group_name or None)
    chosen = "ccl" if backend is None else str(backend).lower()
    scheme = str(init_method).partition("://")[0]
    backends = (chosen,) if libraries_of(chosen) else BACKENDS
    mine = own_variables(process) if scheme in ("None", "env") else {}
    checks: tuple[tuple[str, str | int, tuple[str | int, ...]], ...] = (
        ("backend", chosen, backends),
        ("init_method", scheme, ("None", "env", "tcp", "file")),
        ("world_size", world_size, (-1, world.size)),
        ("rank", rank, (-1, process.rank)),
    )
    for name, value, expected in checks:
        said = ""
        if mine and value == -1 and _VARIABLES[name] in mine:  # as PyTorch reads it with `env://`
            value, expected = mine[_VARIABLES[name]], (str(expected[-1]),)  # noqa: PLW2901
            said = f"os.environ[{_VARIABLES[name]!r}]={value!r}"
        if value not in expected:
            raise GroupError(
                f"init_process_group({said or f'{name}={value!r}'}) on rank {process.rank}",
                [
                    called(process, "init_process_group"),
                    f"expected one of {', '.join(map(repr, expected))}",
                ],
                hint=_HINTS[name],
                code="C18",
            )
    check_device_id("init_process_group", process, device_id)
    assert world.group is not None
    world.backend[process.rank] = chosen
    world.held.setdefault(process.rank, {})[world.group.name] = world.group


def destroy_process_group(group: Any = None) -> None:
    """Ends the use of a group by the calling rank; the host waits for the rank's collectives in it.

    Args:
        group: A process group. None, or the group of all ranks, stands for every group of the
            calling rank. Nothing happens for `GroupMember.NON_GROUP_MEMBER`, as in PyTorch.

    Raises:
        GroupError: If the group was not initialised, or is destroyed already (C18), or leaves the
            calling rank out (C8).
        KernbenchError: If the rank has not waited for asynchronous operations on the group (C13).
    """
    process = current_process()
    if isinstance(group, int) and group == GroupMember.NON_GROUP_MEMBER:
        return
    world, rank = world_of(process), process.rank
    chosen = find_group(process, group, "destroy_process_group")
    if process.frame is not None:  # perhaps the last that is seen of the rank
        process.note_frame()
    everything = chosen is world.group
    doomed = list(world.held[rank].values()) if everything else [chosen]
    _check_idle(process, doomed)
    _drain(process, doomed)
    _give_up(process, doomed)


def _drain(process: Process, doomed: Sequence[ProcessGroup]) -> None:
    """Waits, on the host, for the rank's last collective of each group."""
    for group in doomed:
        last = group.last.get(process.rank)
        if last is not None:  # also if its time is known already, which may lie ahead of the host's
            wait_for(process, last)


def _check_idle(process: Process, doomed: Sequence[ProcessGroup]) -> None:
    world = world_of(process)
    names = {group.name for group in doomed}
    pending = [
        command
        for command in world.unwaited.get(process.rank, {}).values()
        if not process.knows(command) and (command.args or {}).get("group", "WORLD") in names
    ]
    if pending:
        several = len(pending) > 1
        label = doomed[0].name if len(doomed) == 1 else "all its groups"
        raise KernbenchError(
            f"rank {process.rank} destroys {label} while {len(pending)} "
            f"operation{'s are' if several else ' is'} pending",
            [
                called(process, "destroy_process_group"),
                *(issued(command) for command in pending[:_SHOWN]),
            ],
            hint="call work.wait() first",
            code="C13",
        )


def _give_up(process: Process, doomed: Sequence[ProcessGroup]) -> None:
    world, rank, site = world_of(process), process.rank, call_site()
    for group in doomed:
        held = world.held[rank]
        del held[group.name]
        if group is world.group:
            # The group of all ranks may be initialised again, so it stays in the world.
            del world.backend[rank]
            world.left[rank] = site
            continue
        group.destroyed[rank] = site
        # A group whose collective lacks a rank stays, so that it is reported when ranks return.
        if len(group.destroyed) == len(group.callers) and not group.open:
            del world.groups[group.name]


def live_groups() -> list[LiveGroup]:
    """Returns the groups that the calling rank has made, is in and has not destroyed."""
    process = current_process()
    return [_live(process, held) for held in world_of(process).held.get(process.rank, {}).values()]


def _live(process: Process, group: ProcessGroup) -> LiveGroup:
    site = None if group.birth is None else group.birth.calls[process.rank].site
    return LiveGroup(group.name, group.ranks, group.desc, site)


class group_scope:  # noqa: N801 - used like a function
    """A context that destroys the groups that the rank made in its block, however the block ends.

    Raises:
        KernbenchError: If the block ends without an error and the rank has not waited for
            asynchronous operations on one of the groups (C13).
    """

    def __init__(self) -> None:
        self._process = current_process()
        self._before: dict[str, ProcessGroup] = {}

    def __enter__(self) -> None:
        self._before = dict(self._held())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        held = self._held()
        doomed = [group for name, group in held.items() if self._before.get(name) is not group]
        if error is None and doomed:
            _check_idle(self._process, doomed)
            _drain(self._process, doomed)
        _give_up(self._process, doomed)

    def _held(self) -> dict[str, ProcessGroup]:
        return world_of(self._process).held.get(self._process.rank, {})
