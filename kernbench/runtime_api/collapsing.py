"""Which ranks of a spawn are simulated once, as the run and its program say."""

from pathlib import Path
from typing import TYPE_CHECKING

from kernbench.classes.partition import WAY_OUT, Partition
from kernbench.classes.roles import EVERYBODY, read_roles, roles_of
from kernbench.errors import UsageError
from kernbench.run_spec import RunSpec

if TYPE_CHECKING:
    from kernbench.ranks.spawning import SpawnSession


def check_collapse(spec: RunSpec) -> None:
    """Checks that what a run says of ranks that do the same can hold together.

    Raises:
        UsageError: If ranks have values of their own, or simulate what ranks that stand for others
            cannot, or if roles are given for nothing.
    """
    if spec.collapse == "off":
        if spec.roles is not None:
            raise UsageError(
                "--roles without --collapse exact: every rank is simulated then",
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
        UsageError: If the file of roles is wrong.
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
    system = ctx.engine.topology.machine.system
    if len(system.kinds) == 1 and not system.changed_ports:
        return partition
    ports = system.changed_ports
    return partition.refined(
        [
            f"SIP of kind {system.kind_of(sip)}{f' with {ports[sip]}' if sip in ports else ''}"
            for sip in ctx.devices[:nprocs]
        ]
    )
