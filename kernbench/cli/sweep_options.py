"""`kernbench sweep`: its options are those of `kernbench run` that say what runs, and its own."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from kernbench.cli import program_command
from kernbench.cli.program_command import Varied, check_alone, spec_of_options, with_value


class Command(program_command.Command):
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
    valued = with_value("sweep")
    left = iter(words)
    for word in left:
        if word == "--":
            break
        match = re.fullmatch(r"--(topology|ccl|set|arg)(?:=(.*))?", word, re.DOTALL)
        if match is not None:
            option: Any = match[1]
            found.append(Varied(option, next(left) if match[2] is None else match[2]))
        elif word in valued:
            next(left)
    return found


def sweep(
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
    """Run a bench over a grid of machines, settings and flags.

    \f
    Args:
        context: Knows the words of the command line.
        bench: A Python file, or the name of a shipped bench; None with `--spec`.
        arguments: Arguments that a script finds in `sys.argv`, and a bench in `ctx.argv`.
        options: Values of the options of `option_table`, by name. Those that vary are read from
            the words, in their order.

    Raises:
        typer.BadParameter: If arguments are missing, malformed, or contradict `--spec`.
        typer.Exit: Always at the end, with the exit code.
    """  # noqa: D301 - `--help` ends at \f
    from kernbench.cli.failures import failed
    from kernbench.cli.sweeping import run_sweep
    from kernbench.errors import UsageError
    from kernbench.run_spec import RunSpec
    from kernbench.sweeps.drawing import plot_of
    from kernbench.sweeps.executors import executor_of
    from kernbench.sweeps.sweeping import Files

    words = words_of(context)
    what: RunSpec | Path
    try:
        if options["spec"] is not None:
            check_alone(context, "sweep")
            what = options["spec"]
        elif bench is None:
            raise typer.BadParameter("expected one, or --spec FILE", param_hint="BENCH")
        else:
            what = spec_of_options("sweep", options, bench, arguments)
        executor = executor_of(
            options["on"], options["address"], options["jobs"], options["timeout"] or None
        )
        plot = plot_of(options["plot"], options["x"], options["y"], options["hue"])
        files = Files(json=options["json"], csv=options["csv"], plot=plot, report=options["report"])
    except UsageError as error:
        raise typer.Exit(failed(error)) from None
    raise typer.Exit(
        run_sweep(
            what,
            varied(words),
            words,
            executor=executor,
            files=files,
            resume=options["resume"],
            quiet=options["quiet"],
        )
    )
