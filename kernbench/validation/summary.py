"""Errors of predictions, by table and by part of a table."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from kernbench.validation.running import Result

NEAR: Final = 0.1
"""Error within which a cell counts as near."""


@dataclass(frozen=True, slots=True)
class Score:
    """How near the predictions of some cells are.

    Attributes:
        cells: Number of cells with a prediction.
        mape: Mean of `|predicted / measured - 1|`.
        geomean: Geometric mean of `predicted / measured`.
        near: Share of cells within `NEAR`.
        worst: Error of the worst cell, the one whose ratio is farthest from 1.
        worst_cell: The worst cell's label and column.
    """

    cells: int
    mape: float
    geomean: float
    near: float
    worst: float
    worst_cell: str

    def as_json(self) -> dict[str, Any]:
        """Returns the score as plain values, rounded to what a reader can use."""
        return {
            "cells": self.cells,
            "mape": round(self.mape, 4),
            "geomean": round(self.geomean, 4),
            "within_10_percent": round(self.near, 4),
            "worst": round(self.worst, 4),
            "worst_cell": self.worst_cell,
        }


def score(errors: Sequence[tuple[float, str]]) -> Score | None:
    """Returns the score of cells; None if there are none.

    Args:
        errors: `predicted / measured - 1` of each, and its label.
    """
    if not errors:
        return None
    values = [error for error, _ in errors]
    worst, label = max(errors, key=lambda each: abs(_log(each[0])))
    return Score(
        cells=len(values),
        mape=fmean(map(abs, values)),
        geomean=math.exp(fmean(map(_log, values))),
        near=sum(abs(value) <= NEAR for value in values) / len(values),
        worst=worst,
        worst_cell=label,
    )


def _log(error: float) -> float:
    """Returns the logarithm of a ratio; a prediction of nothing counts as a billionth."""
    return math.log(max(1 + error, 1e-9))


def parts(results: Iterable[Result]) -> dict[str, list[tuple[Result, str]]]:
    """Returns the cells, each a row and a column, by the part of a table that they are of."""
    found: dict[str, list[tuple[Result, str]]] = {}
    for result in results:
        table = result.line.table
        for column in result.line.measured:
            part = table.part(result.line.row, column)
            found.setdefault(f"{table.name} {part}".rstrip(), []).append((result, column))
    return found


def scores(results: Iterable[Result], torches: Sequence[str]) -> dict[str, dict[str, Score]]:
    """Returns the scores of each part of a table under each torch that predicts any of it.

    Args:
        results: Rows and what came of them.
        torches: Names of the torches.
    """
    found: dict[str, dict[str, Score]] = {}
    for part, cells in parts(results).items():
        mine = found[part] = {}
        for torch in torches:
            errors = [
                (error, cell_label(result, column))
                for result, column in cells
                if (error := result.error(torch, column)) is not None
            ]
            told = score(errors)
            if told is not None:
                mine[torch] = told
    return found


def cell_label(result: Result, column: str) -> str:
    """Returns what tells a cell from others of its table."""
    several = len(result.line.measured) > 1
    return f"{result.line.label} {column}" if several else result.line.label


def missing(results: Iterable[Result], torches: Sequence[str]) -> Iterator[tuple[Result, str, str]]:
    """Yields rows that a torch does not simulate, with the torch and the reason.

    A column that the program of a row does not measure is such a reason, too.

    Args:
        results: Rows and what came of them.
        torches: Names of the torches.
    """
    for result in results:
        for torch in torches:
            found = result.found[torch]
            if found.missing:
                yield result, torch, found.missing
                continue
            for column in result.line.measured:
                if column not in found.predicted:
                    yield result, torch, f"its program does not measure {column}"


def lost(results: Iterable[Result]) -> list[Result]:
    """Returns the rows with a cell that no torch predicts."""
    return [
        result
        for result in results
        if any(
            all(column not in found.predicted for found in result.found.values())
            for column in result.line.measured
        )
    ]
