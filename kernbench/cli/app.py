"""Commands and options."""

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kernbench import __version__
from kernbench.cli import defaults

app = typer.Typer(
    help="Run multi-GPU programs on simulated machines: real numbers and predicted time.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


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
    bench: Annotated[
        str, typer.Argument(help="A Python file with run(ctx), or the name of a shipped bench.")
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="What the bench finds in ctx.argv; put it after --."),
    ] = None,
    topology: Annotated[
        str, typer.Option(help="Machine: a YAML file, or the name of a shipped one.")
    ] = defaults.MACHINE,
    ccl: Annotated[
        Path | None,
        typer.Option(help="Algorithms; default: ./ccl.yaml if there is one, else the shipped one."),
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
    seed: Annotated[int, typer.Option(min=0, help="Of the ranks' random generators.")] = 0,
    eager_limit: Annotated[
        int,
        typer.Option(
            metavar="BYTES",
            min=0,
            help="Messages up to this size are sent without their receive; 0 finds every deadlock.",
        ),
    ] = 0,
    watchdog: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0.0,
            help="Of wall time without a simulated step, until code is stopped; 0: never.",
        ),
    ] = defaults.WATCHDOG_S,
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
        str | None,
        typer.Option(
            metavar="PICKS",
            help="Which candidate each receive from any source takes, such as 2.1; 0: the first "
            "to come.",
        ),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Prints errors and results files only.")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Prints which algorithm each operation is given."),
    ] = False,
) -> None:
    """Run a bench on a simulated machine."""
    from kernbench.cli.options import Options
    from kernbench.cli.run import run_bench

    if schedule is not None and not re.fullmatch(r"0|[1-9]\d*(\.[1-9]\d*)*", schedule):
        raise typer.BadParameter("expected numbers from 1 with dots between, such as 2.1; or 0")
    options = Options(
        bench=bench,
        arguments=tuple(arguments or ()),
        topology=topology,
        ccl=ccl,
        overrides=tuple(set_ or ()),
        trace=trace,
        flight_recorder=flight_recorder,
        json=json,
        breakdown=breakdown,
        data=data is Switch.on,
        fidelity=fidelity.value,
        seed=seed,
        eager_limit=eager_limit,
        watchdog=watchdog,
        explore=explore,
        schedule=tuple(map(int, schedule.split("."))) if schedule not in {None, "0"} else None,
        quiet=quiet,
        verbose=verbose,
    )
    raise typer.Exit(run_bench(options))


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
