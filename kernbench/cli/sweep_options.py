"""The options of `kernbench sweep`: those of `kernbench run` that say what runs, and its own."""

import inspect
import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from kernbench.cli.spec_options import Varied, check_alone, spec_of_options

_OWN_OF_RUN: Final = frozenset(
    {
        "explore",
        "hash_seeds",
        "trace",
        "trace_kineto",
        "trace_limit",
        "flight_recorder",
        "breakdown",
        "verbose",
    }
)
"""Parameters of `kernbench run` that `kernbench sweep` does not have."""

_BESIDE_SPEC: Final = frozenset(
    {
        "spec",
        "on",
        "address",
        "jobs",
        "timeout",
        "json",
        "csv",
        "plot",
        "x",
        "y",
        "hue",
        "report",
        "resume",
        "quiet",
    }
)
"""Parameters that may stand beside `--spec`, since the specifications do not hold them."""


class Where(StrEnum):
    """Where runs take place."""

    local = "local"
    ray = "ray"


class Command(TyperCommand):
    """Keeps the words of the command line, for `Varied` in their order and for a resumption."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See `click.Command.parse_args`.

        Args:
            ctx: The context, whose `meta` gets the words.
            args: The words behind `sweep`.
        """
        ctx.meta[_WORDS] = list(args)
        return super().parse_args(ctx, args)


_WORDS: Final = "kernbench.sweep.words"


def words_of(context: typer.Context) -> list[str]:
    """Returns the words behind `kernbench sweep`."""
    words: list[str] = context.meta[_WORDS]
    return words


def varied(words: Sequence[str]) -> list[Varied]:
    """Returns the options that may have several values, in the order of the command line.

    Args:
        words: The words behind `kernbench sweep`, which have been parsed without an error.
    """
    found: list[Varied] = []
    left = iter(words)
    for word in left:
        if word == "--":
            break
        match = re.fullmatch(r"--(topology|ccl|set|arg)(?:=(.*))?", word, re.DOTALL)
        if match is not None:
            option: Any = match[1]
            found.append(Varied(option, next(left) if match[2] is None else match[2]))
        elif word in _WITH_VALUE:
            next(left)
    return found


_WITH_VALUE: Final = frozenset(
    {
        "--address",
        "--csv",
        "--data",
        "--default-device",
        "--devices",
        "--eager-limit",
        "--fidelity",
        "--group-limit",
        "--hue",
        "--jobs",
        "--json",
        "--max-time",
        "--nproc-per-node",
        "--on",
        "--plot",
        "--report",
        "--schedule",
        "--seed",
        "--spec",
        "--step-budget",
        "--timeout",
        "--watchdog",
        "--x",
        "--y",
    }
)
"""Other options with a value, which may look like any option."""


def command_like(run: Callable[..., None]) -> Callable[..., None]:
    """Returns the function of `kernbench sweep`.

    Args:
        run: The function of `kernbench run`, whose options it has, too.
    """
    own = {
        name: parameter
        for name, parameter in inspect.signature(_sweep).parameters.items()
        if name != "shared"
    }
    shared = {
        name: parameter
        for name, parameter in inspect.signature(run).parameters.items()
        if name not in own and name not in _OWN_OF_RUN
    }
    ordered = sorted([*own.values(), *shared.values()], key=lambda p: p.name not in _FIRST)
    # typer reads options from the signature.
    vars(_sweep)["__signature__"] = inspect.Signature(ordered)
    return _sweep


_FIRST: Final = ("context", "bench", "arguments")


def _sweep(
    context: typer.Context,
    topology: Annotated[
        str | None,
        typer.Option(metavar="FILE,...", help="Machines: YAML files, or names of shipped ones."),
    ] = None,
    ccl: Annotated[
        str | None, typer.Option(metavar="FILE,...", help="Files of algorithms; see `run`.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=V1,V2,...",
            help="Values of a key of the YAML files; a comma in a value is written as \\,",
        ),
    ] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(metavar="FLAG=V1,V2,...", help="Values of a flag of the bench."),
    ] = None,
    spec: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Runs a JSON list of run specifications, or what --json of run or sweep wrote.",
        ),
    ] = None,
    on: Annotated[
        Where, typer.Option(help="Processes of this machine, or Ray (pip install kernbench[ray]).")
    ] = Where.local,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Of a cluster of Ray, such as 10.0.0.1:6379; default: Ray starts here.",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Runs at a time; default: 1, on Ray as many as it has CPUs."
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0.0, help="Of wall time that a run may take; 0: any number."
        ),
    ] = 0.0,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Writes the records as JSON.")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Writes the rows of all results.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draws a picture, .png, .svg or .pdf (pip install kernbench[plot]).",
        ),
    ] = None,
    x: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="Of the horizontal axis; default: sizes, or the first number."
        ),
    ] = None,
    y: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="Of the vertical axis; default: busbw over sizes, else a time."
        ),
    ] = None,
    hue: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="Whose values each have a line; default: what varies besides."
        ),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Writes a page that shows them (.html).")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Goes on with what the files or the journal have.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Prints errors only.")] = False,
    **shared: Any,
) -> None:
    """Run a bench over a grid of machines, settings and flags.

    \f
    Args:
        context: Knows the words of the command line.
        topology: Machines with commas between; None for the usual one.
        ccl: Files of algorithms with commas between; None for the usual one.
        set_: Keys of the YAML files, each with its values.
        arg: Flags of the bench, each with its values.
        spec: JSON file with the specifications of all runs; then only options for outputs and
            processes may stand beside it.
        on: Where runs take place.
        address: Of a cluster of Ray; None to start Ray on this machine.
        jobs: Most runs at a time; None for one, or on Ray for as many as it has CPUs.
        timeout: Seconds of wall time that a run may take; 0 for any number.
        json: File for the records; None for no file.
        csv: File for the rows of all results; None for no file.
        plot: File for a picture; None for no file.
        x: Column of its horizontal axis; None for the usual one.
        y: Column of its vertical axis; None for the usual one.
        hue: Column whose values each have a line; None for the usual ones.
        report: File for a page that shows the records; None for no file.
        resume: Whether records that are there count as done.
        quiet: Whether to print errors only.
        shared: What `kernbench run` has, too.

    Raises:
        typer.BadParameter: If arguments are missing, malformed, or contradict `spec`.
        typer.Exit: Always at the end, with the exit code.
    """  # noqa: D301 - `--help` ends at \f
    from kernbench.cli.failures import failed
    from kernbench.cli.sweeping import run_sweep
    from kernbench.errors import UsageError
    from kernbench.sweeps.drawing import plot_of
    from kernbench.sweeps.executors import executor_of
    from kernbench.sweeps.sweeping import Files

    del topology, ccl, set_, arg  # read from the words, in their order
    words = words_of(context)
    if spec is not None:
        check_alone(context, _BESIDE_SPEC)
    elif shared["bench"] is None:
        raise typer.BadParameter("expected one, or --spec FILE", param_hint="BENCH")
    try:
        base = spec_of_options(shared)
        executor = executor_of(on.value, address, jobs, timeout or None)
        files = Files(json=json, csv=csv, plot=plot_of(plot, x, y, hue), report=report)
    except UsageError as error:
        raise typer.Exit(failed(error)) from None
    raise typer.Exit(
        run_sweep(
            spec if spec is not None else base,
            varied(words),
            words,
            executor=executor,
            files=files,
            resume=resume,
            quiet=quiet,
        )
    )
