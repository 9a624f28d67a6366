"""Commands and options."""

import io
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from kernbench import __version__
from kernbench.cli import collective_app, sweep_options, torchrun_options
from kernbench.cli.comparing import compare
from kernbench.cli.program_command import (
    Command,
    Plain,
    check_alone,
    output_of_options,
    spec_of_options,
    with_options,
)
from kernbench.cli.testing import run_tests
from kernbench.cli.validating import validate
from kernbench.run_spec import RunSpec

app = typer.Typer(
    help="Run multi-GPU programs on simulated machines: real numbers and predicted time.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


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


def _run(
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
    **options: Any,
) -> None:
    """Run a script or a bench on a simulated machine.

    \f
    Args:
        context: Knows which parameters the command line gives.
        bench: A Python file, or the name of a shipped bench; None with `--spec`.
        arguments: Arguments that a script finds in `sys.argv`, and a bench in `ctx.argv`.
        options: Values of the options of `option_table`, by name.

    Raises:
        typer.BadParameter: If arguments are missing, malformed, or contradict `--spec`.
        typer.Exit: Always at the end, with the exit code.
    """  # noqa: D301 - `--help` ends at \f
    from kernbench.cli.failures import failed
    from kernbench.cli.run import run_bench
    from kernbench.errors import UsageError
    from kernbench.scripts.program import is_of_pytorch

    try:
        if options["spec"] is not None:
            check_alone(context, "run")
            spec = RunSpec.from_file(options["spec"])
        elif bench is None:
            raise typer.BadParameter("expected one, or --spec FILE", param_hint="BENCH")
        else:
            spec = spec_of_options("run", options, bench, arguments)
            if not spec.as_torch and is_of_pytorch(Path(bench)):
                source = context.get_parameter_source("topology")
                named = source is not None and source.name == "COMMANDLINE"
                spec = torchrun_options.of_pytorch(spec, named)
                if not options["quiet"]:
                    print(
                        f"kernbench: {Path(bench).name} imports PyTorch itself: it runs as with "
                        "`kernbench torchrun`; --as-torch lets `import torch` mean kernbench.torch",
                        file=sys.stderr,
                    )
    except UsageError as error:
        raise typer.Exit(failed(error)) from None
    output = output_of_options("run", options)
    raise typer.Exit(run_bench(spec, output, options["explore"], options["hash_seeds"]))


app.command("run", cls=Command)(with_options("run", _run))
app.command("sweep", cls=sweep_options.Command)(with_options("sweep", sweep_options.sweep))
app.command("torchrun", cls=torchrun_options.Command)(
    with_options("torchrun", torchrun_options.torchrun)
)


@app.command(cls=Plain)
def check(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES", help="Python files with `import torch` or `import kernbench.torch`."
        ),
    ],
    torchrun: Annotated[
        bool,
        typer.Option(
            "--torchrun",
            help="Lists what `kernbench torchrun` refuses, in place of what `kernbench.torch` "
            "lacks.",
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


@app.command(cls=Plain)
def explain(
    codes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CODES", help="Codes of reports, such as `C14`; without any: the title of each."
        ),
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


@app.command(cls=Plain)
def doctor() -> None:
    """Show what is installed here, and what each part enables.

    \f
    Raises:
        typer.Exit: Always at the end, with the exit code.
    """  # noqa: D301
    from kernbench.cli.doctor import print_doctor

    raise typer.Exit(print_doctor())


@app.command("tour", cls=Plain)
def tour_(
    folder: Annotated[
        Path,
        typer.Option("--folder", metavar="DIR", help="Where its scripts and the page are written."),
    ] = Path("kernbench-tour"),
) -> None:
    """Show and run six commands, each with what to look at.

    \f
    Args:
        folder: The folder; it is made if it is not there.

    Raises:
        typer.Exit: Always at the end, with the exit code.
    """  # noqa: D301
    from kernbench.cli.failures import failed
    from kernbench.cli.tour import tour
    from kernbench.errors import UsageError

    try:
        raise typer.Exit(tour(folder))
    except UsageError as error:
        raise typer.Exit(failed(error)) from None


@app.command("list", cls=Plain)
def list_() -> None:
    """List benches, machines and algorithms.

    \f
    Raises:
        typer.Exit: Always at the end, with the exit code.
    """  # noqa: D301
    from kernbench.cli.listing import print_listing

    raise typer.Exit(print_listing())


@app.command("new-machine", cls=Plain)
def new_machine_(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Name of the machine; the file is `NAME.yaml`."),
    ],
    from_: Annotated[
        str | None,
        typer.Option(
            "--like",
            "--from",
            metavar="MACHINE",
            help="Copies a YAML file, or a shipped machine, with its comments.",
            show_default="a file with what has no default",
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


@app.command("calibrate", cls=Plain)
def calibrate_(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Tables as `measure/measure.py` writes them.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="The machine's file; its stem is the machine's name.",
        ),
    ],
    from_: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="MACHINE",
            help="Machine whose numbers stay where no table has others: a YAML file, or a "
            "shipped one.",
        ),
    ] = "h200x8",
    topology: Annotated[
        str | None,
        typer.Option(
            "--topology",
            metavar="MACHINE",
            help="Machine with the datasheet's numbers; kernels and library of `--from` are "
            "shares of its peaks.",
            show_default="that of `--from`",
        ),
    ] = None,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            help="Shows every fit: its cells, and its error on those that it was fitted on and on "
            "the others.",
        ),
    ] = False,
) -> None:
    """Fit a machine's numbers to tables measured on a host (needs SciPy).

    \f
    Args:
        folder: The tables; what is not there is not fitted.
        out: The file; its stem is the machine's name.
        from_: A topology file or the name of a shipped machine.
        topology: The same; None for that of `from_`.

    Raises:
        typer.Exit: Always at the end, with the exit code.
    """  # noqa: D301
    from kernbench.cli.calibrating import calibrate_machine

    raise typer.Exit(calibrate_machine(folder, out, from_, topology, verbose=verbose))


@app.command("show-machine", cls=Plain)
def show_machine_(
    machine: Annotated[
        str,
        typer.Argument(metavar="MACHINE", help="A YAML file, or the name of a shipped machine."),
    ],
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


app.command(cls=Plain)(compare)
app.command(cls=Plain)(validate)
app.command("test", cls=Plain)(run_tests)
app.add_typer(collective_app.app, name="collective")
