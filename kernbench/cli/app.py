"""Commands and options."""

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from kernbench import __version__
from kernbench.run_spec import RunSpec

app = typer.Typer(
    help="Run multi-GPU programs on simulated machines: real numbers and predicted time.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


_USUAL: Final = RunSpec()


class Switch(StrEnum):
    """A dial with two settings."""

    on = "on"
    off = "off"


class Fidelity(StrEnum):
    """How closely time is simulated."""

    tile = "tile"
    kernel = "kernel"
    functional = "functional"


def _version(value: bool) -> None:
    if value:
        typer.echo(f"kernbench {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_version, is_eager=True),
    ] = False,
) -> None: ...


@app.command(context_settings={"ignore_unknown_options": False})
def run(
    context: typer.Context,
    bench: Annotated[
        str | None,
        typer.Argument(help="A Python file with run(ctx), or the name of a shipped bench."),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="What the bench finds in ctx.argv; put it after --."),
    ] = None,
    spec: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Repeats the run of a JSON file: a run specification, or what --json wrote.",
        ),
    ] = None,
    topology: Annotated[
        str,
        typer.Option(metavar="FILE", help="Machine: a YAML file, or the name of a shipped one."),
    ] = str(_USUAL.topology),
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
    seed: Annotated[
        int, typer.Option(min=0, help="Of the ranks' random generators.")
    ] = _USUAL.seed,
    eager_limit: Annotated[
        int,
        typer.Option(
            metavar="BYTES",
            min=0,
            help="Messages up to this size are sent without their receive; 0 finds every deadlock.",
        ),
    ] = _USUAL.eager_limit,
    watchdog: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0.0,
            help="Of wall time without a simulated step, until code is stopped; 0: never.",
        ),
    ] = _USUAL.watchdog_s,
    step_budget: Annotated[
        int,
        typer.Option(
            metavar="COMMANDS", min=0, help="That a rank may issue in a spawn; 0: any number."
        ),
    ] = _USUAL.step_budget,
    group_limit: Annotated[
        int,
        typer.Option(
            metavar="GROUPS", min=0, help="Process groups that a rank may hold beside WORLD."
        ),
    ] = _USUAL.group_limit,
    explore: Annotated[
        int,
        typer.Option(
            metavar="SCHEDULES",
            min=0,
            help="Runs so often, at most, with other matches of receives from any source; an error "
            "if results differ.",
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
    """Run a bench on a simulated machine."""
    from kernbench.cli.failures import failed
    from kernbench.cli.output import Output
    from kernbench.cli.run import run_bench
    from kernbench.errors import UsageError

    if spec is not None:
        _check_alone(context)
    elif bench is None:
        raise typer.BadParameter("expected one, or --spec FILE", param_hint="BENCH")
    try:
        what = (
            RunSpec(
                topology=topology,
                ccl=ccl,
                overrides=tuple(set_ or ()),
                devices="all" if devices == "all" else _numbers(devices, _DEVICES, ","),
                data=data is Switch.on,
                fidelity=fidelity.value,
                shadow=shadow,
                seed=seed,
                eager_limit=eager_limit,
                watchdog_s=watchdog,
                step_budget=step_budget,
                group_limit=group_limit,
                schedule=None if schedule == "0" else _numbers(schedule, _SCHEDULE, "."),
                bench=bench,
                arguments=tuple(arguments or ()),
            )
            if spec is None
            else RunSpec.from_file(spec)
        )
    except UsageError as error:
        raise typer.Exit(failed(error)) from None
    output = Output(
        trace=trace,
        flight_recorder=flight_recorder,
        json=json,
        breakdown=breakdown,
        quiet=quiet,
        verbose=verbose,
    )
    raise typer.Exit(run_bench(what, output, explore))


_SCHEDULE: Final = (r"[1-9]\d*(\.[1-9]\d*)*", "numbers from 1 with dots between, such as 2.1; or 0")
_DEVICES: Final = (r"\d+(,\d+)*", "numbers with commas between, such as 0,2,5; or all")


def _numbers(text: str, form: tuple[str, str], between: str) -> tuple[int, ...]:
    """Returns the numbers of an option's value.

    Args:
        text: The value.
        form: What it looks like, as a pattern and in words.
        between: What stands between two numbers.

    Raises:
        typer.BadParameter: If it looks otherwise.
    """
    pattern, words = form
    if not re.fullmatch(pattern, text, re.ASCII):
        raise typer.BadParameter(f"expected {words}")
    return tuple(map(int, text.split(between)))


_BESIDE_SPEC: Final = frozenset(
    {"spec", "explore", "trace", "flight_recorder", "json", "breakdown", "quiet", "verbose"}
)
"""What may be said together with `--spec`: all that is no part of the specification."""


def _check_alone(context: typer.Context) -> None:
    """Checks that nothing is said twice: in the file of `--spec`, and beside it.

    Raises:
        typer.BadParameter: If it is, with the names.
    """
    beside = []
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        given = source is not None and source.name == "COMMANDLINE"
        if given and parameter.name not in _BESIDE_SPEC:
            option = parameter.opts[0]
            beside.append(option if option.startswith("-") else option.upper())
    if beside:
        raise typer.BadParameter(
            f"the file says what runs, so {', '.join(beside)} cannot stand beside it",
            param_hint="--spec",
        )


@app.command()
def explain(
    codes: Annotated[
        list[str] | None,
        typer.Argument(help="Codes of reports, such as C14; without any, shows all there are."),
    ] = None,
) -> None:
    """Explain the codes of reports."""
    from kernbench.cli.explaining import print_entries

    raise typer.Exit(print_entries(codes or ()))


@app.command("list")
def list_() -> None:
    """List benches, machines and algorithms."""
    from kernbench.cli.listing import print_listing

    raise typer.Exit(print_listing())
