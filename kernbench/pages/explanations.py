"""What bounds a run, and the kernels that take most of its time."""

from collections.abc import Sequence
from typing import Final

from kernbench.hw.explained import Resource
from kernbench.pages.page import (
    COLOURS,
    Cell,
    Figure,
    Fold,
    Line,
    Lines,
    Note,
    Part,
    Table,
    Verdict,
    left_out,
    number_cell,
    time_cell,
)
from kernbench.report import Explanation
from kernbench.report.explanation import MOST, Row, bound_words
from kernbench.report.explanation_lines import (
    COLUMNS,
    NOTE,
    bound_text,
    by_bytes_text,
    law_text,
    near_text,
    roof_text,
    spent_text,
)
from kernbench.units import format_time

_MOST_MORE: Final = 40


def verdict_parts(
    told: Explanation, ranks: int, span: int, steps: Sequence[int] = ()
) -> list[Part]:
    """Returns what a page says first: what bounds the run, its time, and what it could save.

    Args:
        told: The explanation.
        ranks: How many ranks ran.
        span: Simulated time of the run, in picoseconds.
        steps: Picoseconds of each step of an optimizer, after the first.
    """
    if not told.rows:
        return []
    many = f"of {ranks} ranks" if ranks > 1 else "of one rank"
    whole = format_time(span)
    if steps:
        step = format_time(sorted(steps)[len(steps) // 2])
        between = f"median of {len(steps)}, from optimizer step to optimizer step"
        figures = [Figure("Step time", step, f"{between}; {whole} in all")]
    else:
        figures = [Figure("Simulated time", whole, f"{many}, predicted")]
    bound, share = told.bound
    figures.append(Figure("Most time goes to", f"{share:.0%}", bound_words(bound)))
    if told.gains:
        gain = told.gains[0]
        saved = gain.ps / told.span_ps
        figures.append(
            Figure(
                "Largest thing to gain",
                f"at most {saved:.0%}",
                f"{format_time(round(span * saved))} less with {gain.what}",
            )
        )
    return [Verdict(_sentence(told.verdict), figures)]


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def bound_parts(told: Explanation) -> list[Part]:
    """Returns the verdict, where the time went, and the kernels that take most of it."""
    if not told.rows:
        return []
    more = told.rows[MOST : MOST + _MOST_MORE]
    parts: list[Part] = [
        Note(_sentence(told.verdict)),
        Note(f"Time of the ranks: {spent_text(told)}."),
        _table(told.rows[:MOST]),
    ]
    if more:
        left = left_out(MOST + len(more), len(told.rows), "kernels", "The first")
        parts.append(Fold("More kernels", [_table(more), *left]))
    shown = told.rows[:MOST]
    parts += [Note(f"{row.name}: {row.programs}.") for row in shown if row.programs is not None]
    parts += roofline(shown)
    by_bytes = by_bytes_text(told.by_bytes, told.device_ps)
    return [
        *parts,
        Note(_sentence(by_bytes)),
        Note(f"{NOTE[0].upper()}{NOTE[1:]}"),
    ]


_ENGINES: Final[Sequence[Resource]] = ("tensor", "math")


def roofline(rows: Sequence[Row]) -> list[Part]:
    """Returns a picture of what kernels reach of the HBM's and the engines' rates, if any tell.

    Each kernel has a point: operations a byte of the HBM, and operations a second, of products or,
    without any, of the instructions of all threads. Source: Williams, Waterman and Patterson,
    "Roofline", 2009.
    """
    points: dict[Resource, list[tuple[str, float, float]]] = {}
    roofs: dict[Resource, tuple[float, float]] = {}
    for row in rows:
        told = row.programs
        if told is None or not told.work["HBM"]:
            continue
        engine = next((each for each in _ENGINES if told.work[each]), None)
        if engine is None:
            continue
        work, moved = told.work[engine], told.work["HBM"]
        points.setdefault(engine, []).append((row.name, work / moved, work / told.ps))
        roofs[engine] = moved / told.roofs["HBM"], work / told.roofs[engine]
    lines: list[Line] = []
    places = [x for found in points.values() for _, x, _ in found]
    for engine, (bandwidth, peak) in roofs.items():
        ridge = peak / bandwidth
        ends = sorted({min([*places, ridge]) / 2, ridge, 2 * max([*places, ridge])})
        roof = [(x, min(peak, x * bandwidth)) for x in ends]
        lines.append(Line(f"roof of HBM and {engine}", roof, 0, bound=True))
        for name, x, y in points[engine]:
            number = sum(not line.bound for line in lines)
            lines.append(Line(f"{name} ({engine})", [(x, y)], number, number // COLOURS))
    title = "What kernels reach of the HBM and of the engines"
    return [Lines(title, "TFLOP/s", lines, "FLOP a byte of the HBM")] if lines else []


def _table(rows: Sequence[Row]) -> Table:
    cells = [
        [
            Cell(row.name, code=True),
            number_cell(row.calls),
            time_cell(row.total_ps),
            Cell(f"{row.share:.1%}", row.share),
            Cell(bound_text(row)),
            Cell(roof_text(row), row.achieved),
            Cell(law_text(row), code=True),
            Cell(near_text(row.near), row.near.error),
        ]
        for row in rows
    ]
    return Table(COLUMNS, cells)
