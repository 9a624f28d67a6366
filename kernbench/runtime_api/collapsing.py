"""Which ranks of a spawn are simulated once, as the run and its program say."""

from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from kernbench.classes.partition import WAY_OUT, NotAlikeError, Partition, role_hint
from kernbench.classes.roles import EVERYBODY, read_roles, roles_of
from kernbench.config.schema import Changes
from kernbench.errors import UsageError, site_fact
from kernbench.report.records import is_engine
from kernbench.run_spec import RunSpec
from kernbench.sim_engine.op_log import Record
from kernbench.topology.spec import PortSpec
from kernbench.units import format_time

if TYPE_CHECKING:
    from kernbench.ranks.spawning import SpawnSession


def check_collapse(spec: RunSpec) -> None:
    """Checks that what a run says of ranks that do the same can hold together.

    Raises:
        UsageError: If ranks have values of their own, or simulate what ranks that stand for others
            cannot, or if roles are given for nothing.
    """
    if spec.collapse == "off":
        for given, flag in (
            (spec.roles is not None, "--roles"),
            (spec.witnesses is not None, "--witnesses"),
            (spec.class_limit != RunSpec().class_limit, "--class-limit"),
        ):
            if given:
                raise UsageError(
                    f"{flag} without --collapse exact: every rank is simulated then",
                    hint="add --collapse exact",
                )
        return
    for wrong, what in (
        (spec.data, "--data on, with which ranks have values of their own"),
        (spec.fidelity != "kernel", f"--fidelity {spec.fidelity}, which runs each rank's part"),
        (spec.pytorch is not None, "a program of PyTorch, which has --same-ranks"),
        (spec.schedule is not None, "--schedule, for receives from any source"),
        (spec.eager_limit, "--eager-limit, which searches for hangs of all ranks"),
        (spec.shadow, "--shadow, which simulates each rank again"),
    ):
        if wrong:
            way = "--data off" if spec.data else WAY_OUT
            raise UsageError(f"--collapse exact and {what}", hint=way)


def partition_of(ctx: "SpawnSession", nprocs: int) -> Partition | None:
    """Returns the classes of the ranks of a spawn; None if every rank runs.

    Ranks are of one class if they have one role, and SIPs that are alike with all of their ports.

    Raises:
        UsageError: If the file of roles is wrong, or a witness is not there.
        NotAlikeError: If there are too many classes.
    """
    spec = ctx.spec
    if spec.collapse == "off":
        return None
    if spec.roles is not None:
        roles = read_roles(Path(spec.roles), nprocs)
    elif ctx.roles is not None:
        roles = roles_of(ctx.roles, nprocs)
    else:
        roles = [EVERYBODY] * nprocs
    partition = Partition.by_roles(roles)
    _check_limit(partition, None, spec.class_limit)
    whole, split = partition, ctx.splits.classes(len(ctx.collapsed))
    system = ctx.engine.topology.machine.system
    ports = system.changed_ports
    if split is not None:
        partition = split
    elif len(system.kinds) > 1 or ports:
        partition = partition.refined(
            [
                f"SIP of kind {system.kind_of(sip)}{_ports_told(ports.get(sip))}"
                for sip in ctx.devices[:nprocs]
            ]
        )
    _check_limit(partition, whole, spec.class_limit)
    if spec.witnesses is None:
        return partition
    ctx.engine.op_log.keep_records()
    # A witness may have become the rank that runs for a part of its class.
    runs = partition.calls if split is not None else lambda _: False
    return partition.witnessed([rank for rank in spec.witnesses if not runs(rank)])


def _ports_told(changes: Changes[PortSpec] | None) -> str:
    return f" with {changes}" if changes is not None and changes.values else ""


def _check_limit(partition: Partition, before: Partition | None, limit: int) -> None:
    """Checks that there are not too many classes.

    Args:
        before: The partition by roles that it refines; None if it is this one.

    Raises:
        NotAlikeError: If there are.
    """
    if len(partition) <= limit:
        return
    if before is None:
        first, second, *_ = partition.classes
        why = f"{len(partition):,} roles, of which rank {first.member} has {first.name!r} and rank "
        why += f"{second.member} has {second.name!r}"
    else:
        whole = before.classes[0]
        for one in partition.classes:
            whole = before.class_of(one.member)
            if one.member != whole.member:
                break
        why = f"the first split: rank {one.member} of class {whole.name!r} is {one.name!r}"
    raise NotAlikeError(
        f"{len(partition):,} classes of {partition.ranks:,} ranks, over --class-limit {limit:,}",
        [why],
        hint=f"give more ranks one role (--roles), raise --class-limit, or {WAY_OUT}",
    )


def check_witnesses(ctx: "SpawnSession", partition: Partition) -> None:
    """Compares, command by command, ranks that ran beside the one that runs for their class.

    Raises:
        NotAlikeError: If one of them did something else, or at another time.
    """
    done: dict[int, list[Record]] = {rank: [] for rank in partition.callers}
    for record in ctx.engine.op_log.records if partition.beside else ():
        if record.rank in done and not is_engine(record.track):
            done[record.rank].append(record)
    for rank in partition.beside:
        one = partition.class_of(rank)
        pair = [sorted(done[each], key=_order) for each in (one.member, rank)]
        for mine, theirs in zip_longest(*pair):
            if mine is None or theirs is None or _order(mine) != _order(theirs):
                raise NotAlikeError(
                    f"rank {rank} did not do what rank {one.member} did, which runs the program "
                    "for it",
                    [
                        f"both are of class {one.name!r}",
                        *(
                            f"rank {each} had ended"
                            if found is None
                            else site_fact(found.site, f"rank {each}: {_told(found)}, at")
                            for each, found in ((one.member, mine), (rank, theirs))
                        ),
                    ],
                    hint=role_hint(rank),
                )


def _order(record: Record) -> tuple[object, ...]:
    site = record.site
    place = ("", 0) if site is None else (site.file, site.line)
    return record.issued, record.start, record.end, record.category, *place


def _told(record: Record) -> str:
    return (
        f"{record.name}, {format_time(record.start)} to {format_time(record.end)}, issued "
        f"{format_time(record.issued)}"
    )
