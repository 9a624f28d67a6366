"""What bounds a run, and the kernels that take most of its time."""

from collections.abc import Sequence
from typing import Final

from kernbench.pages.page import Cell, Fold, Note, Part, Table, left_out, number_cell, time_cell
from kernbench.report import Explanation
from kernbench.report.explanation import MOST, Row
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

_MOST_MORE: Final = 40


def bound_parts(told: Explanation) -> list[Part]:
    """Returns the verdict, where the time went, and the kernels that take most of it."""
    if not told.rows:
        return []
    verdict = f"{told.verdict[0].upper()}{told.verdict[1:]}."
    more = told.rows[MOST : MOST + _MOST_MORE]
    parts: list[Part] = [
        Note(verdict),
        Note(f"Time of the ranks: {spent_text(told)}."),
        _table(told.rows[:MOST]),
    ]
    if more:
        left = left_out(MOST + len(more), len(told.rows), "kernels", "The first")
        parts.append(Fold("More kernels", [_table(more), *left]))
    by_bytes = by_bytes_text(told.by_bytes, told.device_ps)
    return [
        *parts,
        Note(f"{by_bytes[0].upper()}{by_bytes[1:]}."),
        Note(f"{NOTE[0].upper()}{NOTE[1:]}"),
    ]


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
