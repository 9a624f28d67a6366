"""`kernbench torchrun`: its options are those of PyTorch's `torchrun`, and of `kernbench run`."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Annotated, Any, Final

import typer

from kernbench.cli import program_command
from kernbench.cli.program_command import (
    output_of_options,
    spec_of_options,
    value_of,
    with_value,
)
from kernbench.run_spec import PytorchRun, RunSpec
from kernbench.run_spec.options import MORE_NODES, NNODES, NPROC_PER_NODE, ONE_NODE

_MOST_NODES: Final = 4

MEANINGLESS: Final[Mapping[str, bool]] = {
    "--standalone": False,
    "--rdzv-backend": True,
    "--rdzv-endpoint": True,
    "--rdzv-id": True,
    "--rdzv-conf": True,
    "--master-addr": True,
    "--master-port": True,
    "--local-addr": True,
    "--monitor-interval": True,
    "--run-path": False,
}
"""Options of PyTorch's `torchrun` that change nothing here, and whether they have a value.

Ranks find each other without them, and run in the process that starts them.
"""

_ALL_NODES: Final = "one command simulates all nodes: leave it out"
_IN_PROCESS: Final = "ranks run in this process and print to its output"
_NO_RESTART: Final = "a rank that fails ends the run; it is not started again"

REFUSED: Final[Mapping[str, str]] = {
    "--node-rank": _ALL_NODES,
    "--max-restarts": _NO_RESTART,
    "--start-method": _IN_PROCESS,
    "--event-log-handler": _IN_PROCESS,
    "--role": "ranks have the role `default`",
    "--no-python": "the program is Python",
    "--log-dir": _IN_PROCESS,
    "-r": _IN_PROCESS,
    "--redirects": _IN_PROCESS,
    "-t": _IN_PROCESS,
    "--tee": _IN_PROCESS,
    "--local-ranks-filter": _IN_PROCESS,
    "--duplicate-stdout-filters": _IN_PROCESS,
    "--duplicate-stderr-filters": _IN_PROCESS,
    "--logs-specs": _IN_PROCESS,
    "--numa-binding": "simulated hosts have no NUMA nodes",
    "--signals-to-handle": "Ctrl-C and SIGTERM end the run, and say where every rank is",
    "--virtual-local-rank": "every rank sees all devices of its node",
    "--shutdown-timeout": _IN_PROCESS,
}
"""Options of PyTorch's `torchrun` that are refused, and why."""


class Command(program_command.Command):
    """Takes options as `torchrun` does: with `-` or `_`, and only in front of the program."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See `click.Command.parse_args`.

        Args:
            args: The words behind `torchrun`.

        Raises:
            typer.BadParameter: If an option of PyTorch's `torchrun` cannot be followed here.
        """
        valued = with_value("torchrun")
        left, kept = list(args), []
        while left and left[0].startswith("-") and left[0] not in {"-", "--"}:
            name, equals, value = left.pop(0).partition("=")
            name = name if name in valued else name.replace("_", "-")
            if name in REFUSED:
                raise typer.BadParameter(f"not simulated: {REFUSED[name]}", param_hint=name)
            own = [left.pop(0)] if left and not equals and self._takes(name, valued) else []
            if name not in MEANINGLESS:
                kept += [name + equals + value, *own]
        return super().parse_args(ctx, [*kept, "--", *left] if left else kept)

    @staticmethod
    def _takes(name: str, valued: Collection[str]) -> bool:
        return MEANINGLESS.get(name, name in valued)


def torchrun(
    program: Annotated[str, typer.Argument(help="A Python file, as it is; with -m, a module.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="What the program finds in sys.argv.")
    ] = None,
    **options: Any,
) -> None:
    """Run a program of PyTorch, as it is, on a simulated machine (see kernbench doctor).

    \f
    Args:
        program: A Python file, or with `--module` the name of a module.
        arguments: Arguments that the program finds in `sys.argv`.
        options: Values of the options of `option_table`, by name.

    Raises:
        typer.BadParameter: If options are malformed.
        typer.Exit: Always at the end, with the exit code.
    """  # noqa: D301 - `--help` ends at \f
    from kernbench.cli.failures import failed
    from kernbench.cli.run import run_bench
    from kernbench.errors import UsageError
    from kernbench.scripts.pytorch import with_devices

    machine = options["topology"] or _machine(value_of(NNODES, options))
    of_all_devices = value_of(NPROC_PER_NODE, options) == "gpu"
    said = {**options, "topology": machine}
    if of_all_devices:
        said["nproc_per_node"] = None  # until the machine is known
    try:
        spec = spec_of_options("torchrun", said, program, arguments)
        spec = with_devices(_on_all_devices(spec) if of_all_devices else spec)
    except UsageError as error:
        raise typer.Exit(failed(error)) from None
    output = output_of_options("torchrun", options)
    raise typer.Exit(run_bench(spec, output, options["explore"], options["hash_seeds"]))


def of_pytorch(spec: RunSpec, machine_named: bool) -> RunSpec:
    """Returns what `kernbench torchrun` does with the file of `kernbench run`.

    Args:
        spec: A run of a script that imports PyTorch itself.
        machine_named: Whether the command names the machine of `spec`.

    Raises:
        ConfigError: If something is wrong with the file of the machine.
    """
    from kernbench.scripts.pytorch import with_devices

    return with_devices(
        replace(
            spec,
            pytorch=PytorchRun(),
            nproc_per_node=spec.nproc_per_node or 1,
            topology=spec.topology if machine_named else ONE_NODE,
        )
    )


def _machine(nodes: int) -> str:
    if nodes == 1:
        return ONE_NODE
    if nodes > _MOST_NODES:
        raise typer.BadParameter(
            f"the shipped machine {MORE_NODES} has {_MOST_NODES} nodes; with {nodes}: --topology "
            f"{MORE_NODES} --set system.sips.count={8 * nodes}",
            param_hint="--nnodes",
        )
    return MORE_NODES


def _on_all_devices(spec: RunSpec) -> RunSpec:
    """Returns the specification with a rank for each device of a node."""
    from kernbench.runtime_api.engines import load_machine

    topology = load_machine(spec)
    sips = topology.world_size if spec.devices == "all" else len(spec.devices)
    last = topology.node_of(topology.world_size - 1) + 1
    return replace(spec, nproc_per_node=max(sips // last, 1))
