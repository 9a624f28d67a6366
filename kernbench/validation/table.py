"""What a table of measurements is: its columns, and the programs that its rows stand for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeVar

Row = Mapping[str, str]
"""The texts of a row by column, checked against the kinds of the columns."""

Times = Mapping[str, float]
"""What a rank has measured, by column, in the column's unit."""

Program = Callable[[Any, Row], Times | None]
"""Runs a row in a rank: takes `torch`, either of the two; None if this rank measures nothing."""

T = TypeVar("T")


class Kind(Enum):
    """What a column holds."""

    WORD = "a word"
    COUNT = "a whole number from 0"
    FLAG = "one of 0, 1, False, True"
    MEASURED = "a number above 0, or nothing"
    """Compared with what the program of the row measures."""
    BESIDE = "a number, or nothing"
    """Not compared: it follows from other columns, or no program measures it."""
    NOTE = "a word, or nothing"
    """An argument that not every row has."""
    REMARK = "a text"
    """Nobody reads it."""


WORD, COUNT, FLAG = Kind.WORD, Kind.COUNT, Kind.FLAG
MEASURED, BESIDE = Kind.MEASURED, Kind.BESIDE
NOTE, REMARK = Kind.NOTE, Kind.REMARK


def _one(row: Row) -> int:
    del row
    return 1


def _nothing(row: Row) -> tuple[str, ...]:
    del row
    return ()


def _can(row: Row) -> str:
    del row
    return ""


def _whole(row: Row, column: str) -> str:
    del row, column
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A kind of file of measurements.

    Attributes:
        name: The file's name without `.csv`.
        about: What a cell of it is, in a line.
        columns: Kind of each column, by name.
        program: What runs a row.
        ranks: Number of ranks of a row.
        overrides: Settings of the machine and of `ccl.yaml` with which a row was measured.
        only_pytorch: Why no program of `kernbench.torch` can do the same; empty if one can.
        needs: Packages without which a row does not run.
        refused: Why no program can do what a row did; empty if one can.
        scripts: Folder beside the file with the programs that its rows name; empty if there is
            none. A row then has the folder's path as `SCRIPTS`. Such programs take seconds each.
        numbers: Whether a row has to run with numbers, which its ways depend on.
        unread: Columns that tell rows apart which one program stands for.
        part: Which part of the table a cell is of, by its row and column: parts are scored apart.
    """

    name: str
    about: str
    columns: Mapping[str, Kind]
    program: Program
    ranks: Callable[[Row], int] = _one
    overrides: Callable[[Row], tuple[str, ...]] = _nothing
    only_pytorch: str = ""
    needs: Callable[[Row], tuple[str, ...]] = _nothing
    refused: Callable[[Row], str] = _can
    scripts: str = ""
    numbers: Callable[[Row], bool] = lambda row: False
    unread: tuple[str, ...] = ()
    part: Callable[[Row, str], str] = _whole


@dataclass(frozen=True, slots=True)
class Line:
    """A row of a file.

    Attributes:
        table: The table.
        place: File and line, for reports.
        number: Line of the file, from 1.
        row: The texts by column.
        measured: What was measured, by column; at least one number.
    """

    table: Table
    place: str
    number: int
    row: Row
    measured: Mapping[str, float]

    @property
    def label(self) -> str:
        """The values that tell the row from others, in the order of the file."""
        return " ".join(filter(None, self._told().values()))

    @property
    def asked(self) -> tuple[str, ...]:
        """What is equal for rows of which one stands for all; see `Table.unread`."""
        unread = self.table.unread
        told = [text for name, text in self._told().items() if name not in unread]
        return (self.table.name, *(told if unread else [str(self.number)]))

    def _told(self) -> dict[str, str]:
        kinds, beside = self.table.columns, {MEASURED, BESIDE, REMARK}
        return {
            name: text
            for name, text in self.row.items()
            if name in kinds and kinds[name] not in beside
        }


@dataclass(frozen=True, slots=True)
class Found:
    """What came of a row under one of the torches.

    Attributes:
        predicted: Predicted values by column; empty if there are none.
        missing: Why there are none; empty if there are.
    """

    predicted: Mapping[str, float] = field(default_factory=dict)
    missing: str = ""


SCRIPTS: Final = "/scripts"
"""What a row has besides its columns if its table names programs: the path of their folder."""

GPU: Final = "gpu"
"""Column with the GPU that a row was measured on; the names of its machines begin so."""

OWN: Final = "own"
"""Name of `kernbench.torch` in results."""

BRIDGE: Final = "pytorch"
"""Name of PyTorch under `kernbench torchrun` in results."""
