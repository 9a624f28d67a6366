"""Commands and options."""

import io
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from kernbench import __version__
from kernbench.cli import sweep_options, torchrun_options
from kernbench.cli.comparing import compare
from kernbench.cli.output import TRACE_LIMIT, Output
from kernbench.cli.spec_options import USUAL, Switch, check_alone, spec_of_options
from kernbench.cli.testing import run_tests
from kernbench.run_spec import RunSpec

app = typer.Typer(
    help="Run multi-GPU programs on simulated machines: real numbers and predicted time.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


class Fidelity(StrEnum):
    """How closely time is simulated."""

    tile = "tile"
    kernel = "kernel"
    functional = "functional"


class DefaultDevice(StrEnum):
    """Type of the device on which ranks make tensors without `device=`."""

    cuda = "cuda"
    cpu = "cpu"


def _version(value: bool) -> None:
    if value:
        typer.echo(f"kernbench {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_version, is_eager=True),
    ] = False,
) -> None:
    out: object = sys.stdout
    if isinstance(out, io.TextIOWrapper) and context.invoked_subcommand not in _RUN_PROGRAMS:
        # Names come from files, and need not fit the terminal; half of a surrogate pair fits none.
        out.reconfigure(errors="backslashreplace")


_RUN_PROGRAMS: Final = frozenset({"run", "torchrun", "test"})
"""Commands in whose process programs print: what these print is refused as Python refuses it."""


@app.command(context_settings={"ignore_unknown_options": False})
def run(
    context: typer.Context,
    bench: Annotated[
        str | None,
        typer.Argument(
            help="A Python file: a script, or with run(ctx); or the name of a shipped bench."
        ),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="What the file finds in sys.argv or ctx.argv; put it after --."),
    ] = None,
    spec: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Repeats the run of a JSON file: a run specification, or what --json wrote.",
        ),
    ] = None,
    nproc_per_node: Annotated[
        int | None,
        typer.Option(
            metavar="RANKS",
            min=1,
            help="Runs a script as torchrun does: so many ranks, each with the file as its main.",
        ),
    ] = None,
    as_torch: Annotated[
        bool,
        typer.Option("--as-torch", help="Lets `import torch` in the file mean kernbench.torch."),
    ] = False,
    topology: Annotated[
        str,
        typer.Option(metavar="FILE", help="Machine: a YAML file, or the name of a shipped one."),
    ] = str(USUAL.topology),
    ccl: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Algorithms; default: ./ccl.yaml if there is one, else the shipped one.",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Changes one value of the YAML files."),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Writes a trace for Perfetto (.json, .gz).")
    ] = None,
    trace_kineto: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Writes a trace for each rank as PyTorch's profiler does, for tools that read it.",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Writes a page that shows the run (.html)."),
    ] = None,
    trace_limit: Annotated[
        int,
        typer.Option(
            metavar="RECORDS",
            min=0,
            help="Most records that a trace, a page or a breakdown takes, the first ones; 0: all.",
        ),
    ] = TRACE_LIMIT,
    flight_recorder: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="If ranks fail, writes what each did last, as JSON."),
    ] = None,
    json: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Writes the results, or the failure, as JSON."),
    ] = None,
    breakdown: Annotated[
        bool, typer.Option("--breakdown", help="Prints where each rank's time went.")
    ] = False,
    data: Annotated[
        Switch, typer.Option(help="Whether tensors hold values; off: only time is simulated.")
    ] = Switch.on,
    default_device: Annotated[
        DefaultDevice,
        typer.Option(
            help="Where ranks make tensors without device=: on their device; or on the host, as "
            "PyTorch does, which keeps host and device apart."
        ),
    ] = DefaultDevice.cuda,
    fidelity: Annotated[
        Fidelity,
        typer.Option(
            help="tile: every tile command; kernel: plans proved equal to it; functional: no time."
        ),
    ] = Fidelity.kernel,
    shadow: Annotated[
        bool,
        typer.Option("--shadow", help="Simulates what caches know as well, and compares."),
    ] = False,
    devices: Annotated[
        str,
        typer.Option(
            metavar="LIST", help="SIPs that ranks may use, such as 0,2,5; rank r the r-th."
        ),
    ] = "all",
    seed: Annotated[int, typer.Option(min=0, help="Of the ranks' random generators.")] = USUAL.seed,
    eager_limit: Annotated[
        int,
        typer.Option(
            metavar="BYTES",
            min=0,
            help="Messages up to this size are sent without their receive; 0 finds every deadlock.",
        ),
    ] = USUAL.eager_limit,
    watchdog: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0.0,
            help="Of wall time of your code without a simulated step, until it stops; 0: never.",
        ),
    ] = USUAL.watchdog_s,
    max_time: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Of simulated time, such as 10ms, that a run may not pass; 0: any."
        ),
    ] = "0",
    step_budget: Annotated[
        int,
        typer.Option(
            metavar="COMMANDS", min=0, help="That a rank may issue in a spawn; 0: any number."
        ),
    ] = USUAL.step_budget,
    group_limit: Annotated[
        int,
        typer.Option(
            metavar="GROUPS", min=0, help="Process groups that a rank may hold beside WORLD."
        ),
    ] = USUAL.group_limit,
    explore: Annotated[
        int,
        typer.Option(
            metavar="SCHEDULES",
            min=0,
            help="Runs so often, at most, with other matches of receives from any source; an error "
            "if results differ.",
        ),
    ] = 0,
    hash_seeds: Annotated[
        int,
        typer.Option(
            metavar="SEEDS",
            min=0,
            help="Runs under so many hash seeds of Python; an error if ranks with different seeds, "
            "as on hardware, would disagree.",
        ),
    ] = 0,
    schedule: Annotated[
        str,
        typer.Option(
            metavar="PICKS",
            help="Which candidate each receive from any source takes, such as 2.1; 0: the first "
            "to come.",
        ),
    ] = "0",
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Prints errors and results files only.")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Prints which algorithm each operation is given."),
    ] = False,
) -> None:
    """Run a script or a bench on a simulated machine.

    \f
    Args:
        context: Knows which parameters the command line gives.
        bench: A Python file, or the name of a shipped bench; None with `spec`.
        arguments: Arguments that a script finds in `sys.argv`, and a bench in `ctx.argv`.
        spec: JSON file with a run specification; then only options for outputs, `explore` and
            `hash_seeds` may stand beside it.
        nproc_per_node: Number of ranks that each run the file as `__main__`; None if it spawns
            them itself.
        as_torch: Whether `import torch` means `kernbench.torch` in the program.
        topology: A topology file, or the name of a shipped machine.
        ccl: The algorithms' file; None for `./ccl.yaml` if there is one, else the shipped file.
        set_: Overrides of the YAML files, such as `system.sips.count=4`.
        trace: File for the trace; None for no trace.
        trace_kineto: Folder for a trace of each rank, as PyTorch's profiler; None for no traces.
        report: File for a page that shows the run; None for no page.
        trace_limit: Most records that a trace, a page or a breakdown takes; 0 for all.
        flight_recorder: File for each rank's last calls, if ranks fail; None for no file.
        json: File for the results or the failure; None for no file.
        breakdown: Whether to print where each rank's time went.
        data: Whether tensors hold values.
        default_device: Where ranks make tensors without `device=`.
        fidelity: How closely time is simulated.
        devices: SIPs that ranks may use, such as `0,2,5`, or `all`.
        seed: Seed of the ranks' random generators.
        eager_limit: Bytes up to which messages are sent without their receive.
        watchdog: Seconds of wall time that code may run without a simulated step; 0 for
            never.
        max_time: Simulated time that the run may not pass, such as `10ms`; `0` for no limit.
        step_budget: Number of commands that a rank may issue in a spawn; 0 for any number.
        group_limit: Number of process groups that a rank may hold besides `WORLD`.
        shadow: Whether answers of caches are found anew, too, and compared.
        explore: Number of schedules to try, at most; 0 for a single run.
        hash_seeds: Number of hash seeds of Python to try; 0 for a single run.
        schedule: Candidate that each receive from any source takes, such as `2.1`; `0` for the
            message that comes first.
        quiet: Whether to print errors and results files only.
        verbose: Whether to print which algorithm each operation is given.

    Raises:
        typer.BadParameter: If arguments are missing, malformed, or contradict `spec`.
        typer.Exit: Always at the end, with the exit code.
    """  # noqa: D301 - `--help` ends at \f
    from kernbench.cli.failures import failed
    from kernbench.cli.run import run_bench
    from kernbench.errors import UsageError

    if spec is not None:
        check_alone(context, _BESIDE_SPEC)
    elif bench is None:
        raise typer.BadParameter("expected one, or --spec FILE", param_hint="BENCH")
    try:
        what = spec_of_options(context.params) if spec is None else RunSpec.from_file(spec)
    except UsageError as error:
        raise typer.Exit(failed(error)) from None
    output = Output(
        trace=trace,
        trace_kineto=trace_kineto,
        report=report,
        trace_limit=trace_limit,
        flight_recorder=flight_recorder,
        json=json,
        breakdown=breakdown,
        quiet=quiet,
        verbose=verbose,
    )
    raise typer.Exit(run_bench(what, output, explore, hash_seeds))


_BESIDE_SPEC: Final = frozenset(
    {
        "spec",
        "explore",
        "hash_seeds",
        "trace",
        "trace_kineto",
        "report",
        "trace_limit",
        "flight_recorder",
        "json",
        "breakdown",
        "quiet",
        "verbose",
    }
)
"""Parameters that may stand beside `--spec`, since the specification does not hold them."""


app.command("sweep", cls=sweep_options.Command)(sweep_options.command_like(run))
app.command("torchrun", cls=torchrun_options.Command)(torchrun_options.command_like(run))


@app.command()
def check(
    files: Annotated[
        list[Path], typer.Argument(help="Python files with `import torch` or kernbench.torch.")
    ],
    torchrun: Annotated[
        bool,
        typer.Option(
            "--torchrun", help="Lists what `kernbench torchrun` refuses, which has all else."
        ),
    ] = False,
) -> None:
    """List the names of torch that files use and that kernbench.torch lacks.

    \f
    Args:
        files: The files; modules beside them that they import are read, too.
        torchrun: Whether to list what `kernbench torchrun` refuses instead.

    Raises:
        typer.Exit: Always at the end, with the exit code.
    """  # noqa: D301
    from kernbench.cli.checking import print_check

    raise typer.Exit(print_check(files, torchrun=torchrun))


@app.command()
def explain(
    codes: Annotated[
        list[str] | None,
        typer.Argument(help="Codes of reports, such as C14; without any, shows all there are."),
    ] = None,
) -> None:
    """Explain the codes of reports.

    \f
    Args:
        codes: Codes such as `C14`; None for a list of all codes.

    Raises:
        typer.Exit: Always at the end, with the exit code.
    """  # noqa: D301
    from kernbench.cli.explaining import print_entries

    raise typer.Exit(print_entries(codes or ()))


@app.command("list")
def list_() -> None:
    """List benches, machines and algorithms.

    \f
    Raises:
        typer.Exit: Always at the end, with the exit code.
    """  # noqa: D301
    from kernbench.cli.listing import print_listing

    raise typer.Exit(print_listing())


@app.command("new-machine")
def new_machine_(
    name: Annotated[str, typer.Argument(help="Name of the machine; the file is NAME.yaml.")],
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="MACHINE",
            help="Copies a YAML file, or a shipped machine; without it, the file has what nobody "
            "can guess, and all else has defaults.",
        ),
    ] = None,
) -> None:
    """Write the file of a machine of your own.

    \f
    Args:
        name: Name of the machine; the file is `NAME.yaml` in the working directory.
        from_: The machine to copy: a topology file or the name of a shipped machine; None for a
            file with what has no default.

    Raises:
        typer.Exit: Always at the end, with the exit code.
    """  # noqa: D301
    from kernbench.cli.machines import new_machine

    raise typer.Exit(new_machine(name, from_))


@app.command("show-machine")
def show_machine_(
    machine: Annotated[str, typer.Argument(help="A YAML file, or the name of a shipped machine.")],
) -> None:
    """Show every value of a machine, and which ones its file leaves to defaults.

    \f
    Args:
        machine: A topology file, or the name of a shipped machine.

    Raises:
        typer.Exit: Always at the end, with the exit code.
    """  # noqa: D301
    from kernbench.cli.machines import show_machine

    raise typer.Exit(show_machine(machine))


app.command()(compare)
app.command("test")(run_tests)
