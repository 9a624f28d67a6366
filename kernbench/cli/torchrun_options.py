"""The options of `kernbench torchrun`: those of PyTorch's `torchrun`, and of `kernbench run`."""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from kernbench.cli.output import Output
from kernbench.run_spec import Races, RunSpec

_ONE_NODE: Final = "h200x8"
_MORE_NODES: Final = "h200x8_x4_nodes"
_MOST_NODES: Final = 4

_NOT_OF_TORCHRUN: Final = frozenset(
    {"context", "bench", "arguments", "spec", "as_torch", "default_device"}
)
"""Parameters of `kernbench run` that `kernbench torchrun` does not have."""


class Numbers(StrEnum):
    """Whether tensors hold values."""

    on = "on"
    off = "off"
    fake = "fake"


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


class Command(TyperCommand):
    """Takes options as `torchrun` does: with `-` or `_`, and only in front of the program."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See `click.Command.parse_args`.

        Args:
            ctx: The context.
            args: The words behind `torchrun`.

        Raises:
            typer.BadParameter: If an option of PyTorch's `torchrun` cannot be followed here.
        """
        valued = {
            name
            for param in self.params
            if not getattr(param, "is_flag", False)
            for name in param.opts
        }
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
    def _takes(name: str, valued: set[str]) -> bool:
        return MEANINGLESS.get(name, name in valued)


def command_like(run: Callable[..., None]) -> Callable[..., None]:
    """Returns the function of `kernbench torchrun`.

    Args:
        run: The function of `kernbench run`, whose options it has, too.
    """
    own = {
        name: parameter
        for name, parameter in inspect.signature(_torchrun).parameters.items()
        if name != "shared"
    }
    shared = {
        name: parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(run).parameters.items()
        if name not in own and name not in _NOT_OF_TORCHRUN
    }
    # typer reads options from the signature.
    vars(_torchrun)["__signature__"] = inspect.Signature([*own.values(), *shared.values()])
    return _torchrun


def _torchrun(
    program: Annotated[str, typer.Argument(help="A Python file, as it is; with -m, a module.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="What the program finds in sys.argv.")
    ] = None,
    nproc_per_node: Annotated[
        str | None,
        typer.Option(
            metavar="RANKS",
            help="Ranks of each node, which each run the program; gpu: as many as it has devices. "
            "Without it the program runs once, and may spawn ranks.",
        ),
    ] = None,
    nnodes: Annotated[
        str, typer.Option(metavar="NODES", help="Nodes of the machine that have ranks.")
    ] = "1",
    module: Annotated[
        bool, typer.Option("--module", "-m", help="Takes a module's name, as python -m does.")
    ] = False,
    topology: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help=f"Machine: a YAML file, or the name of a shipped one; default: {_ONE_NODE}, for "
            f"more nodes {_MORE_NODES}.",
        ),
    ] = None,
    data: Annotated[
        Numbers,
        typer.Option(
            help="Whether tensors hold values; off: only time is simulated; fake: as off, and a "
            "value that the program reads of a device is 0 unless it follows from values of the "
            "host."
        ),
    ] = Numbers.on,
    same_ranks: Annotated[
        bool,
        typer.Option(
            "--same-ranks",
            help="With --data off or fake, for a program in which all ranks do the same: the first "
            "and the last rank run it, and the others repeat what rank 0 does.",
        ),
    ] = False,
    witnesses: Annotated[
        str | None,
        typer.Option(
            metavar="RANKS",
            help="With --same-ranks: these ranks run the program in place of the last one, such as "
            "3,17; each is compared with rank 0, step by step.",
        ),
    ] = None,
    check_replicas: Annotated[
        bool,
        typer.Option(
            "--check-replicas",
            help="Compares the parameters of DistributedDataParallel's replicas before the forward "
            "and after the optimizer of each step; the first difference ends the run.",
        ),
    ] = False,
    races: Annotated[
        Races,
        typer.Option(
            help="What an access does that no stream and no wait orders (M10, C14, C15): error "
            "ends the run; warn goes on, and lists them at the end, such as those of a library.",
        ),
    ] = "error",
    flight_recorder: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Writes what each rank called together with others, however the run ends, as "
            "PyTorch's flight recorder does: python -m torch.distributed.flight_recorder.fr_trace "
            "FOLDER reads it.",
        ),
    ] = None,
    **shared: Any,
) -> None:
    """Run a program of PyTorch, as it is, on a simulated machine (pip install kernbench[torch]).

    \f
    Args:
        program: A Python file, or with `module` the name of a module.
        arguments: Arguments that the program finds in `sys.argv`.
        nproc_per_node: Number of ranks of each node that each run the program, or `gpu`; None if
            it spawns them itself.
        nnodes: Number of nodes with ranks.
        module: Whether `program` is the name of a module.
        topology: A topology file, or the name of a shipped machine; None for an H200 machine.
        data: Whether tensors hold values.
        same_ranks: Whether some ranks run the program, and the others repeat it.
        witnesses: Ranks that run it beside rank 0; None for the last one.
        check_replicas: Whether the parameters of DDP's replicas are compared.
        races: What an access does that nothing orders.
        flight_recorder: Folder for the files of PyTorch's flight recorder; None for no files.
        shared: Options of `kernbench run`.

    Raises:
        typer.BadParameter: If options are malformed.
        typer.Exit: Always at the end, with the exit code.
    """  # noqa: D301 - `--help` ends at \f
    from kernbench.cli.failures import failed
    from kernbench.cli.run import run_bench
    from kernbench.cli.spec_options import spec_of_options
    from kernbench.errors import UsageError
    from kernbench.scripts.pytorch import with_devices

    nodes = _nodes(nnodes)
    machine = topology or _machine(nodes)
    options = {
        **shared,
        "topology": machine,
        "bench": program,
        "arguments": arguments,
        "data": data,
        "default_device": "cuda",
        "as_torch": False,
        "pytorch": True,
        "nodes": nodes,
        "as_module": module,
        "same_ranks": same_ranks,
        "witnesses": witnesses,
        "check_replicas": check_replicas,
        "races": races,
        "nproc_per_node": None,
    }
    try:
        spec = spec_of_options(options)
        spec = with_devices(_with_ranks(spec, nproc_per_node))
    except UsageError as error:
        raise typer.Exit(failed(error)) from None
    outputs = {name: value for name, value in shared.items() if name in _OUTPUTS}
    output = Output(**outputs, flight_recorder=flight_recorder)
    status = run_bench(spec, output, shared["explore"], shared["hash_seeds"])
    raise typer.Exit(status)


_OUTPUTS: Final = frozenset(field.name for field in fields(Output))


def _nodes(text: str) -> int:
    match = re.fullmatch(r"([1-9]\d*)(?::([1-9]\d*))?", text, re.ASCII)
    if match is None or match[2] not in {None, match[1]}:
        raise typer.BadParameter(
            "expected a number of nodes; a run that grows or shrinks is not simulated",
            param_hint="--nnodes",
        )
    return int(match[1])


def _machine(nodes: int) -> str:
    if nodes == 1:
        return _ONE_NODE
    if nodes > _MOST_NODES:
        raise typer.BadParameter(
            f"the shipped machine {_MORE_NODES} has {_MOST_NODES} nodes; with {nodes}: --topology "
            f"{_MORE_NODES} --set system.sips.count={8 * nodes}",
            param_hint="--nnodes",
        )
    return _MORE_NODES


def _with_ranks(spec: RunSpec, text: str | None) -> RunSpec:
    if text is None:
        return spec
    if text in {"gpu", "auto"}:
        from kernbench.runtime_api.engines import load_machine

        topology = load_machine(spec)
        sips = topology.world_size if spec.devices == "all" else len(spec.devices)
        last = topology.node_of(topology.world_size - 1) + 1
        return replace(spec, nproc_per_node=max(sips // last, 1))
    if not re.fullmatch(r"[1-9]\d*", text, re.ASCII):
        raise typer.BadParameter("expected a number, or gpu", param_hint="--nproc-per-node")
    return replace(spec, nproc_per_node=int(text))
