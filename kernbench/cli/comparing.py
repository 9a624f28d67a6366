"""`kernbench compare`."""

import re
import sys
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from kernbench.sweeps.comparing import Comparison, Difference

_TOLERANCE: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(%?)", re.ASCII)
_ROWS: Final = 20
"""Default of `--rows`."""
_MOST_TOLD: Final = 10
"""Most lines about one thing that is no figure."""
_WIDTH: Final = 60
"""Most characters of a value that is no figure."""


def compare(
    before: Annotated[
        Path,
        typer.Argument(
            metavar="BEFORE",
            help="What `--json` of `kernbench run` or `kernbench sweep` wrote.",
        ),
    ],
    after: Annotated[
        Path, typer.Argument(metavar="AFTER", help="What it wrote later, or elsewhere.")
    ],
    tolerance: Annotated[
        str,
        typer.Option(
            metavar="SHARE",
            help="By which a figure may become worse, such as `5%` or `0.05`; simulated time is "
            "exact.",
        ),
    ] = "0",
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="The figure to compare, such as `busbw_gb_per_s` or `out_of_place.time_us`; "
            "may be repeated.",
            show_default="every number whose key names a unit of time, but for the parts of a "
            "breakdown",
        ),
    ] = None,
    both: Annotated[
        bool,
        typer.Option(
            "--both", help="Fails, too, if a figure has become better by more than the tolerance."
        ),
    ] = False,
    only_common: Annotated[
        bool,
        typer.Option(
            "--only-common",
            help="Lets runs and rows pass that only one file has, but no run that failed in "
            "`AFTER` alone.",
        ),
    ] = False,
    rows: Annotated[
        int,
        typer.Option(metavar="ROWS", min=0, help="Most rows shown, the worst first; 0: all."),
    ] = _ROWS,
    json: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Writes all rows as JSON, with ratio and verdict, and what else was found.",
        ),
    ] = None,
) -> None:
    """Compare the predicted times of two files of results.

    \f
    Args:
        before: File of `kernbench run --json` or `kernbench sweep --json`.
        after: File of the same form.
        tolerance: Share of a figure by which it may become worse, such as `5%`.
        metric: Names of figures to compare; None for all times.
        both: Whether what has become better fails, too.
        only_common: Whether runs and rows of one file alone pass.
        rows: Most rows to show; 0 for all.
        json: File for the comparison; None for no file.

    Raises:
        typer.BadParameter: If the tolerance is no share.
        typer.Exit: Always at the end, with the exit code.
    """  # noqa: D301 - `--help` ends at \f
    from kernbench.cli.failures import Exit, failed
    from kernbench.errors import UsageError

    share = _share(tolerance)
    try:
        good = _compare((before, after), share, metric or (), both, only_common, rows, json)
    except UsageError as error:
        raise typer.Exit(failed(error)) from None
    raise typer.Exit(Exit.OK if good else Exit.FAILED)


def _share(text: str) -> Fraction:
    """Returns a tolerance.

    Raises:
        typer.BadParameter: If the text is no share; 1 or more needs a percent sign.
    """
    match = _TOLERANCE.fullmatch(text)
    if match is not None:
        share = Fraction(match[1]) / (100 if match[2] else 1)
        if match[2] or share < 1:
            return share
    raise typer.BadParameter("expected a share such as 5% or 0.05", param_hint="--tolerance")


def _compare(
    paths: tuple[Path, Path],
    tolerance: Fraction,
    metrics: Sequence[str],
    both: bool,
    only_common: bool,
    most: int,
    json_file: Path | None,
) -> bool:
    """Compares two files, prints and writes what is found, and returns whether it is good."""
    import json

    from kernbench.report import check_writable, replacing
    from kernbench.run_spec import read_json
    from kernbench.sweeps.comparing import compare

    if json_file is not None:
        check_writable(json_file)
    names = str(paths[0]), str(paths[1])
    one, other = (read_json(path) for path in paths)
    found = compare(one, other, tolerance=tolerance, metrics=metrics, names=names)
    good = found.passed(both=both, only_common=only_common)
    if json_file is not None:
        head = {
            "before": names[0],
            "after": names[1],
            "tolerance": float(tolerance),
            "metrics": list(metrics),
            "both": both,
            "only_common": only_common,
            "passed": good,
        }
        with replacing(json_file) as file:
            json.dump({"kernbench": 1, "compare": head, **found.to_json()}, file, indent=2)
            file.write("\n")
    _print(found, names, most)
    print(f"{'passed' if good else 'failed'}: {_summary(found, names, tolerance, only_common)}")
    return good


def _print(found: "Comparison", names: tuple[str, str], most: int) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else 110)
    shown = found.rows[: most or None]
    if shown:
        table = Table(title=Text(f"{names[0]} -> {names[1]}"))
        table.add_column("row", overflow="fold")
        table.add_column("figure", no_wrap=True)
        for column in ("before", "after", "ratio"):
            table.add_column(column, justify="right")
        table.add_column("")
        for row in shown:
            figures = _number(row.before), _number(row.after)
            texts = (row.row, row.figure, *figures, _ratio(row.ratio), row.verdict)
            table.add_row(*map(Text, texts))  # no text is markup
        console.print(table)
    if len(shown) < len(found.rows):
        left = len(found.rows) - len(shown)
        print(f"{left} rows more, none worse than these; --rows 0 shows all")
    for rows, told in (
        (found.failed_after, f"failed in {names[1]} only"),
        (found.failed_before, f"failed in {names[0]} only"),
        (found.failed_both, "failed in both"),
        (found.only_before, f"only in {names[0]}"),
        (found.only_after, f"only in {names[1]}"),
        ([_difference(each) for each in found.differences], "differs"),
    ):
        _print_some(rows, told)


def _print_some(lines: Sequence[str], told: str) -> None:
    for line in lines[:_MOST_TOLD]:
        print(f"{told}: {line}")
    if len(lines) > _MOST_TOLD:
        print(f"{told}: {len(lines) - _MOST_TOLD} more; --json writes all")


def _difference(each: "Difference") -> str:
    many = f" ({each.places} times)" if each.places > 1 else ""
    return f"{each.name}: {_short(each.before)} -> {_short(each.after)}{many}"


def _short(text: str) -> str:
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."


def _summary(
    found: "Comparison", names: tuple[str, str], tolerance: Fraction, only_common: bool
) -> str:
    """Returns what decides, in a line: how many figures became what, and what has no figures."""
    counted = Counter(row.verdict for row in found.rows)
    total = len(found.rows)
    figures = f"{total} figure{'s' if total != 1 else ''}"
    within = f" within {float(100 * tolerance):g}%" if tolerance else ""
    same = counted.pop("same", 0)
    if same == total:
        parts = [f"{figures}, all the same{within}" if total else figures]
    else:
        each = [f"{number} {verdict}" for verdict, number in counted.items()]
        parts = [f"{figures}: {', '.join([*each, f'{same} the same{within}'])}"]
    parts += [f"{len(found.failed_after)} failed in {names[1]} only"] * bool(found.failed_after)
    if not only_common:
        for rows, told in (
            (found.failed_before, f"failed in {names[0]} only"),
            (found.only_before, f"only in {names[0]}"),
            (found.only_after, f"only in {names[1]}"),
        ):
            parts += [f"{len(rows)} {told}"] * bool(rows)
    return "; ".join(parts)


def _number(value: float) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _ratio(ratio: float) -> str:
    """Returns a ratio with as many digits as tell it from 1."""
    for digits in (4, 7, 10):
        text = f"{ratio:.{digits}g}"
        if text != "1":
            return text
    return "1" if ratio == 1 else f"{ratio!r}"
