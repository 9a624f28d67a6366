"""`kernbench validate`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from kernbench.validation.summary import Score
    from kernbench.validation.validating import Validation

_NAMES: Final = {"own": "own torch", "pytorch": "PyTorch"}
_MOST_PLACES: Final = 3
"""Lines of a table that are named of one reason, unless all are."""
_MACHINE: Final = "h200x8"
"""The host of tables whose folder is not called as a shipped machine."""
_WIDTH: Final = 41
"""Characters of the columns of one torch."""


def validate(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Folder with tables of a real host, such as `validation/h200x8`."
        ),
    ],
    topology: Annotated[
        str | None,
        typer.Option(
            metavar="MACHINE",
            help="The machine that stands for the host: a YAML file, or a shipped machine.",
            show_default="the shipped machine that is called as the folder, else `h200x8`",
        ),
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Runs this table alone, such as `gemm`; may be repeated.",
            show_default="every `.csv` of the folder",
        ),
    ] = None,
    programs: Annotated[
        bool,
        typer.Option(
            "--programs",
            help="Runs tables of whole programs, too, which takes minutes; they need PyTorch, "
            "some of them torchvision or transformers.",
        ),
    ] = False,
    json: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Writes scores, cells with measured and predicted values, and what is not "
            "simulated.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draws predicted over measured, a point a cell, `.png`, `.svg` or `.pdf` (`pip "
            "install matplotlib`).",
        ),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Most processes at a time; 0: one a core. Results are the same for any number.",
        ),
    ] = 0,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Lists every cell, and every line that is not simulated."
        ),
    ] = False,
) -> None:
    """Compare predicted times with tables that were measured on a real host.

    \f
    Args:
        folder: Folder of the tables.
        topology: A topology file, or the name of a shipped machine; None for the one that is called
            as the folder, else `h200x8`.
        table: Names of tables to run; None for all.
        programs: Whether tables of whole programs are run, too.
        json: File for scores and cells; None for no file.
        plot: File for the picture; None for none.
        jobs: Most processes at a time; 0 for one a core.
        verbose: Whether to list every cell.

    Raises:
        typer.Exit: Always at the end, with the exit code.
    """  # noqa: D301 - `--help` ends at \f
    from kernbench.cli import loading
    from kernbench.cli.failures import Exit, failed
    from kernbench.errors import KernbenchError
    from kernbench.topology import shipped_machines

    loading.settle()
    named = folder.resolve().name
    machine = topology or (named if named in shipped_machines() else _MACHINE)
    try:
        done = _validate(folder, machine, table or (), programs, (json, plot), jobs)
    except (KernbenchError, KeyboardInterrupt) as error:
        raise typer.Exit(failed(error.with_traceback(None))) from None
    if verbose:
        _print_cells(done)
    _print_scores(done)
    _print_missing(done, verbose=verbose)
    lost = len(done.lost())
    raise typer.Exit(Exit.FAILED if lost or done.unknown else Exit.OK)


def _validate(
    folder: Path,
    topology: str,
    names: Sequence[str],
    programs: bool,
    files: tuple[Path | None, Path | None],
    jobs: int,
) -> "Validation":
    """Runs the tables and writes the files."""
    from kernbench.ccl.config import local_file_notice
    from kernbench.report import check_apart, check_writable
    from kernbench.sweeps.drawing import check_picture
    from kernbench.validation.picture import write_picture
    from kernbench.validation.validating import validate

    check_apart(files)
    json_file, plot_file = files
    if json_file is not None:
        check_writable(json_file)
    if plot_file is not None:
        check_picture(plot_file)
    if (notice := local_file_notice(way_out="another working directory")) is not None:
        print(f"kernbench: {notice}", file=sys.stderr)
    done = validate(folder, topology, names=names, programs=programs, jobs=jobs)
    if json_file is not None:
        done.write_json(json_file)
    if plot_file is not None:
        write_picture(plot_file, done)
    return done


def _print_scores(done: "Validation") -> None:
    titles = ["cells", "MAPE", "geomean", "<=10 %", "worst"]
    found = done.scores()
    wide = max([len("table"), *map(len, found)]) + 1
    names = [f" {_NAMES[torch]}".ljust(_WIDTH) for torch in done.torches]
    print(f"{done.machine:{wide}}|{'|'.join(names)}|")
    print(f"{'table':{wide}}|{'|'.join([_right(titles)] * len(names))}| worst cell")
    for part, scores in found.items():
        nothing = ["0", *["-"] * (len(titles) - 1)]
        told = [_cells(scores[torch]) if torch in scores else nothing for torch in done.torches]
        worst = max(scores.values(), key=lambda each: abs(each.worst), default=None)
        label = "" if worst is None else f" {worst.worst_cell}"
        print(f"{part:{wide}}|{'|'.join(map(_right, told))}|{label}")


def _right(texts: Sequence[str]) -> str:
    return "".join(text.rjust(8) for text in texts) + " "


def _cells(score: "Score") -> list[str]:
    return [
        str(score.cells),
        f"{score.mape:.1%}",
        f"{score.geomean:.3f}",
        f"{score.near:.0%}",
        f"{score.worst:+.0%}",
    ]


def _print_cells(done: "Validation") -> None:
    for result in done.results:
        for column, measured in result.line.measured.items():
            told = [f"measured {measured:g}"]
            for torch in done.torches:
                error = result.error(torch, column)
                predicted = result.found[torch].predicted.get(column)
                value = "-" if error is None else f"{predicted:.6g} ({error:+.1%})"
                told.append(f"{_NAMES[torch]} {value}")
            label = f"{result.line.label} {column}"
            print(f"{result.line.place}: {label}: {', '.join(told)}")


def _print_missing(done: "Validation", *, verbose: bool) -> None:
    """Prints what is not simulated, and why, the rows with one reason together."""
    from kernbench.validation.summary import missing

    reasons: dict[tuple[str, str, str], list[int]] = {}
    for result, torch, reason in missing(done.results, done.torches):
        key = result.line.table.name, torch, reason
        reasons.setdefault(key, []).append(result.line.number)
    for (name, torch, reason), numbers in reasons.items():
        shown = numbers if verbose else numbers[:_MOST_PLACES]
        more = f" and {len(numbers) - len(shown)} more" if len(numbers) > len(shown) else ""
        rows = f"{name}.csv:{', '.join(map(str, shown))}{more}"
        print(f"{rows}: not simulated by {_NAMES[torch]}: {reason}")
    for name, count in done.not_run.items():
        print(f"{name}: {_counted(count, 'whole program')} not run; --programs runs them, too")
    for path, why in done.unknown.items():
        print(f"{path}: not simulated: {why}")
    if len(done.torches) == 1:
        print("PyTorch is not installed: all of it is by kernbench.torch")
    lost = len(done.lost())
    if lost or done.unknown:
        files = f", {_counted(len(done.unknown), 'file')} not run" if done.unknown else ""
        print(f"{_counted(lost, 'row')} of {len(done.results)} simulated by no torch{files}")


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
