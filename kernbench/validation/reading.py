"""Reads the tables of a folder; all problems of a file are reported at once, with file and line."""

import csv
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kernbench.config.near import did_you_mean
from kernbench.config.problems import ConfigError, Problem, short
from kernbench.config.yaml_file import read_text
from kernbench.errors import UsageError
from kernbench.validation.catalogue import TABLES, WITHOUT_PROGRAMS
from kernbench.validation.table import MEASURED, SCRIPTS, Kind, Line, Table

MOST_BYTES: Final = 16 << 20
"""Largest size of a file."""

_COUNT: Final = re.compile(r"\d{1,18}", re.ASCII)
_FLAGS: Final = frozenset({"0", "1", "False", "True"})


@dataclass(frozen=True, slots=True)
class Folder:
    """What a folder has.

    Attributes:
        lines: The rows of all tables that are known, in the order of `catalogue.TABLES`.
        unknown: Why a file is not run, by its path: it is no such table, or has no program.
    """

    lines: Sequence[Line]
    unknown: dict[str, str]


def read_folder(folder: Path, names: Sequence[str] = ()) -> Folder:
    """Reads every `.csv` of a folder.

    Args:
        names: Names of tables to read; empty for all.

    Raises:
        UsageError: If there is no such folder, it has no table (F11), or has not the named ones.
        ConfigError: If something is wrong with a file: of all files, the first.
    """
    if not folder.is_dir():
        raise UsageError(
            f"{folder}: expected a folder with tables, "
            f"{'got a file' if folder.exists() else 'there is none'}",
            hint=f"did you mean `{folder.parent}`?" if folder.is_file() else "",
            code="F11",
        )
    files = {path.stem: path for path in sorted(folder.glob("*.csv"))}
    if not files:
        raise UsageError(f"{folder}: expected tables, *.csv; there are none", code="F11")
    for name in names:
        if name not in files:
            raise UsageError(
                f"--table {name}: {folder} has no {name}.csv", hint=did_you_mean(name, files)
            )
    wanted = {name: files[name] for name in names or files}
    lines = [
        line
        for name, table in TABLES.items()
        if name in wanted
        for line in read_table(wanted[name], table)
    ]
    unknown = {
        str(path): WITHOUT_PROGRAMS.get(name) or _unknown(name)
        for name, path in wanted.items()
        if name not in TABLES
    }
    return Folder(lines, unknown)


def _unknown(name: str) -> str:
    hint = did_you_mean(name, TABLES)
    return f"no table is called so; {hint}" if hint else "no table is called so"


def read_table(path: Path, table: Table) -> list[Line]:
    """Returns the rows of a file in which something was measured.

    Args:
        path: The file.
        table: What it should be.

    Raises:
        ConfigError: If the file cannot be read (F11, F9, F10), a column is unknown or missing (F1),
            stands twice (F6), or a value is of a wrong kind (F2), too small or too large (F3).
    """
    text = read_text(path, MOST_BYTES)
    source = text.splitlines()
    reader = csv.reader(source, strict=True)
    problems: list[Problem] = []
    lines: list[Line] = []
    try:
        header = next(reader, [])
        problems += _of_header(path, header, table, source)
        if not problems:
            for cells in reader:
                if cells:
                    found = _line(path, table, header, cells, reader.line_num, source)
                    problems += found if isinstance(found, list) else []
                    lines += [found] if isinstance(found, Line) else []
    except csv.Error as error:
        place = f"{path}:{reader.line_num}"
        problems.append(Problem("F10", place, "", f"expected comma-separated values: {error}"))
    if not problems and not lines:
        message = f"expected rows with {_either(table)}, got none"
        problems.append(Problem("F11", str(path), "", message))
    if problems:
        raise ConfigError(str(path), problems)
    return lines


def _either(table: Table) -> str:
    return " or ".join(name for name, kind in table.columns.items() if kind is MEASURED)


def _of_header(
    path: Path, header: Sequence[str], table: Table, source: Sequence[str]
) -> Iterator[Problem]:
    if not header:
        yield Problem("F11", str(path), "", "expected a table, got an empty file")
        return
    seen: set[str] = set()
    for place, name in enumerate(header):
        column = len(",".join(header[:place])) + bool(place) + 1
        where = f"{path}:1:{column}"
        if name in seen:
            message = "expected each column once, got it again"
            yield Problem("F6", where, name, message, source[0], column)
        elif name not in table.columns:
            message = f"expected the columns of {table.name}, got an unknown one"
            hint = did_you_mean(name, table.columns)
            yield Problem("F1", where, short(name), message, source[0], column, hint)
        seen.add(name)
    for name in table.columns:
        if name not in seen:
            yield Problem("F1", f"{path}:1", name, f"expected this column of {table.name}")


def _line(
    path: Path,
    table: Table,
    header: Sequence[str],
    cells: Sequence[str],
    number: int,
    source: Sequence[str],
) -> Line | list[Problem] | None:
    place = f"{path}:{number}"
    if len(cells) != len(header):
        message = f"expected {len(header)} values, got {len(cells)}"
        return [Problem("F2", place, "", message)]
    row = dict(zip(header, (cell.strip() for cell in cells), strict=True))
    problems: list[Problem] = []
    for name, value in row.items():
        wrong = _wrong(table.columns[name], value)
        if wrong is not None:
            code, got = wrong
            expected = f"expected {table.columns[name].value}, got {got}"
            text = source[number - 1]
            column = text.find(value) + 1 if value and text.count(value) == 1 else 0
            where = f"{place}:{column}" if column else place
            shown = text if column else ""
            problems.append(Problem(code, where, name, expected, shown, column))
    if problems:
        return problems
    measured = {
        name: float(value)
        for name, value in row.items()
        if table.columns[name] is MEASURED and value
    }
    if table.scripts:
        row[SCRIPTS] = str(path.parent / table.scripts)
    return Line(table, place, number, row, measured) if measured else None


def _wrong(kind: Kind, value: str) -> tuple[str, str] | None:
    """Returns the code of what is wrong with a value, and what it is; None if nothing is."""
    got = f"text {short(value)!r}" if value else "nothing"
    match kind:
        case Kind.WORD:
            return None if value else ("F2", got)
        case Kind.COUNT:
            return None if _COUNT.fullmatch(value) else ("F2", got)
        case Kind.FLAG:
            return None if value in _FLAGS else ("F2", got)
        case Kind.MEASURED | Kind.BESIDE:
            if not value:
                return None
            try:
                number = float(value)
            except ValueError:
                return "F2", got
            finite = math.isfinite(number) and (kind is Kind.BESIDE or number > 0)
            return None if finite else ("F3", value)
        case Kind.NOTE | Kind.REMARK:
            return None
