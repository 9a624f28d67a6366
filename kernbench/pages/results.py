"""The documents of results that programs leave: tables of nccl-tests, and any plain values."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from math import inf
from typing import Any, Final, TypeGuard

from kernbench.pages.escaping import LONGEST
from kernbench.pages.page import (
    COLOURS,
    DASHES,
    Cell,
    Facts,
    Fold,
    Line,
    Lines,
    Note,
    Part,
    Table,
    bytes_cell,
    left_out,
    number_cell,
    time_cell,
)
from kernbench.report.flattening import flat
from kernbench.report.nccl_table import LINK_BOUND

Document = Mapping[str, Any]
"""What a program leaves in `ctx.results`: plain values."""

_MOST_ROWS: Final = 400
_MOST_COLUMNS: Final = 30
_MOST_DOCUMENTS: Final = 40
_MOST_VALUES: Final = 8
_DEEPEST: Final = 4
_OPEN_ROWS: Final = 16
_PATH: Final = re.compile(r"(?:[A-Za-z]:)?[\\/](?:[^\\/\n]+[\\/])+([^\\/\n]+)")
_FOLDERS: Final = re.compile(
    # Between quotes a folder may have spaces.
    r"""(?<=")(?:[A-Za-z]:)?[\\/][^"\n]*[\\/](?=[^"\\/\n]+\.py")"""
    r"""|(?<![^\s"'(=,\[])(?:[A-Za-z]:)?[\\/](?:[^\\/\s"'<>|:]+[\\/])*(?=[^\\/\s"':]+\.py\b)"""
)


def without_folders(text: str) -> str:
    """Returns a text in which source files stand without their folders, which differ by machine."""
    return _FOLDERS.sub("", text)


def is_nccl(document: object) -> TypeGuard[Document]:
    """Returns whether a document is a table of nccl-tests."""
    if not isinstance(document, Mapping) or not isinstance(document.get("collective"), str):
        return False
    rows = document.get("rows")
    return isinstance(rows, Sequence) and all(
        isinstance(row, Mapping)
        and isinstance(row.get("size_bytes"), int)
        and isinstance(row.get("out_of_place"), Mapping)
        and isinstance(row.get("in_place"), Mapping | None)
        for row in rows
    )


class _Room:
    """Room for the figures of a page, which shrinks as they are shown.

    Attributes:
        left: Characters that may still be shown, about.
    """

    def __init__(self) -> None:
        self.left = _MOST_CHARACTERS

    def fits(self, cells: Sequence[Cell]) -> bool:
        """Returns whether there is room for a row, and takes it."""
        needed = sum(_CELL + min(len(cell.text), LONGEST) for cell in cells)
        if needed > self.left:
            return False
        self.left -= needed
        return True

    def rows(self, rows: Iterable[Sequence[Cell]]) -> list[Sequence[Cell]]:
        """Returns the first rows, as many as there is room for."""
        return list(takewhile(self.fits, islice(rows, _MOST_ROWS)))


_MOST_CHARACTERS: Final = 1_000_000
_CELL: Final = 30
"""Characters of HTML around a cell."""


def result_parts(documents: Sequence[Document]) -> list[Part]:
    """Returns the tables of all documents."""
    parts: list[Part] = []
    room = _Room()
    for number, document in enumerate(documents[:_MOST_DOCUMENTS], 1):
        if is_nccl(document):
            parts += _nccl_parts(document, room)
        else:
            name = document.get("bench") if isinstance(document, Mapping) else None
            parts += _plain_parts(str(name or f"result {number}"), document, 0, room)
    shown = min(len(documents), _MOST_DOCUMENTS)
    return [*parts, *left_out(shown, len(documents), "documents of results", "The first")]


def names_of(documents: Sequence[Document]) -> list[str]:
    """Returns what the lines of tables of nccl-tests are called; no two have the same name."""
    names = [
        f"{document['collective']}, {document.get('ranks')} ranks, {document.get('algorithm')}"
        if is_nccl(document)
        else ""
        for document in documents
    ]
    return [
        f"{name}, table {number}" if names.count(name) > 1 else name
        for number, name in enumerate(names, 1)
    ]


def title_of(document: Document) -> str:
    """Returns what a table of nccl-tests is about."""
    return (
        f"{document['collective']} on {document.get('machine')}, {document.get('ranks')} ranks, "
        f"{document.get('algorithm')}"
    )


def _nccl_parts(document: Document, room: _Room) -> Iterator[Part]:
    rows = document["rows"]
    shown = room.rows(map(_nccl_cells, rows))
    heads = ("time (us)", "algbw (GB/s)", "busbw (GB/s)", "#wrong")
    yield Table(
        ("size", "count", "type", "redop", "root", "algorithm", *heads, *heads),
        shown,
        title_of(document),
        (("", 6), ("out of place", 4), ("in place", 4)),
    )
    yield from left_out(len(shown), len(rows), "sizes", "The first")
    wrong, busbw = document.get("out_of_bounds_values"), document.get("average_busbw_gb_per_s")
    said = [
        f"Out of bounds values: {'not checked' if wrong is None else value_text(wrong)}.",
        *([] if busbw is None else [f"Average bus bandwidth: {_figure(busbw).text} GB/s."]),
        *([f"Limit: {value_text(document['limit'])}."] if document.get("limit") else []),
    ]
    dials = document.get("dials")
    if isinstance(dials, Mapping) and dials:
        settings = ", ".join(f"{name} {value_text(value)}" for name, value in dials.items())
        said.append(f"Settings: {settings}.")
    yield Note(" ".join(said))


def _nccl_cells(row: Mapping[str, Any]) -> list[Cell]:
    cells = [
        bytes_cell(row["size_bytes"]),
        _figure(row.get("count")),
        Cell(str(row.get("type"))),
        Cell(str(row.get("redop"))),
        Cell("-" if row.get("root") == -1 else str(row.get("root"))),
        Cell(str(row.get("algorithm")), code=True),
    ]
    for way in ("out_of_place", "in_place"):
        timing = row.get(way) or {}
        wrong = timing.get("wrong")
        cells += [_figure(timing.get(name)) for name in _TIMING]
        cells.append(Cell("-", None) if wrong is None else replace(_figure(wrong), bad=bool(wrong)))
    return cells


def _figure(value: object) -> Cell:
    """Returns the cell of a figure with four digits."""
    return number_cell(value) if isinstance(value, int | float | None) else value_cell(value)


_TIMING: Final = ("time_us", "algbw_gb_per_s", "busbw_gb_per_s")


def busbw_lines(document: Document, name: str) -> Iterator[Line]:
    """Yields the lines of bus bandwidth over size of a table: out of place, then in place.

    Args:
        document: The table, of nccl-tests.
        name: What the lines are called.
    """
    for way in ("out_of_place", "in_place"):
        points = {
            row["size_bytes"]: rate
            for row in document["rows"]
            if row["size_bytes"] > 0
            and isinstance(rate := (row.get(way) or {}).get("busbw_gb_per_s"), int | float)
            and 0 < rate < inf
        }
        if points:
            said = way.replace("_", " ")
            yield Line(f"{name}, {said}", sorted(points.items()), 0, int(way == "in_place"))


def busbw_charts(
    tables: Sequence[tuple[str, Document]], factors: Sequence[tuple[str, ...]] = ()
) -> list[Part]:
    """Returns the chart of bus bandwidth over size; nothing if no document has such figures.

    The first factor that varies is the colour of a line, the others are its dash. Where there is
    one factor, or there are more values than colours or dashes, each table has a colour, and few
    tables have a dashed line in place.

    Args:
        tables: Documents, each with what its lines are called; those that are no table of
            nccl-tests are left out.
        factors: For each document the values that differ; none for a single run.
    """
    found = [
        (pair, factors[place] if factors else ())
        for place, (name, document) in enumerate(tables)
        if is_nccl(document) and (pair := list(busbw_lines(document, name)))
    ]
    first = list(dict.fromkeys(values[:1] for _, values in found))
    rest = list(dict.fromkeys(values[1:] for _, values in found))
    dashed = 1 < len(rest) <= DASHES and 1 < len(first) <= COLOURS
    many = dashed or len(found) > _FEW_TABLES
    lines = []
    for number, (pair, values) in enumerate(found):
        for line in pair:
            if dashed:
                colour, dash = first.index(values[:1]), rest.index(values[1:])
            else:
                colour, dash = number, number // COLOURS if many else line.dash
            if not many:
                lines.append(replace(line, colour=colour, dash=dash))
            elif not line.dash:
                name = line.name.removesuffix(", out of place")
                lines.append(replace(line, name=name, colour=colour, dash=dash))
    if not lines:
        return []
    shown = lines[:_MOST_LINES]
    sizes = [size for line in shown for size, _ in line.points]
    allowed = {document.get(LINK_BOUND) for _, document in tables if is_nccl(document)}
    bounds = sorted(each for each in allowed if isinstance(each, int | float) and each > 0)
    if len(bounds) <= _MOST_BOUNDS:
        shown += [
            Line("bound of the links", [(min(sizes), each), (max(sizes), each)], 0, bound=True)
            for each in bounds
        ]
    title = "Bus bandwidth over size"
    return [
        Lines(f"{title}, out of place" if many else title, "GB/s", shown),
        *left_out(min(len(lines), _MOST_LINES), len(lines), "lines", "The first"),
    ]


_FEW_TABLES: Final = 4
_MOST_LINES: Final = 24
_MOST_BOUNDS: Final = 4


def _plain_parts(title: str, document: object, depth: int, room: _Room) -> list[Part]:
    """Returns any plain values: scalars as facts, lists of mappings as tables."""
    if not isinstance(document, Mapping):
        return [Facts([(title, value_text(document))])]
    facts: list[tuple[str, str]] = []
    parts: list[Part] = []
    for key, value in document.items():
        name = str(key)
        if name in _SAID_ELSEWHERE and not depth:
            continue
        if isinstance(value, Mapping) and value:
            if depth < _DEEPEST and any(_is_deep(inner) for inner in value.values()):
                parts += _plain_parts(name, value, depth + 1, room)
            else:
                facts += [(f"{name}.{inner}", value_text(said)) for inner, said in value.items()]
        elif _is_rows(value):
            if depth < _DEEPEST and any(_is_deep(v) for row in value for v in row.values()):
                for number, row in enumerate(value[:_MOST_VALUES], 1):
                    what = row.get("name", number)
                    parts += _plain_parts(f"{name}: {value_text(what)}", row, depth + 1, room)
                shown = min(len(value), _MOST_VALUES)
                parts += left_out(shown, len(value), name, "The first")
            else:
                parts += _table(name, value, room)
        else:
            facts.append((name, value_text(value)))
    most = list(takewhile(lambda fact: room.fits([Cell(fact[1])]), facts[:_MOST_ROWS]))
    head: list[Part] = [Facts(most), *left_out(len(most), len(facts), "values", "The first")]
    found = [*(head if facts else []), *parts]
    return [Fold(title, found)] if depth else [Note(f"{title}:"), *found]


_SAID_ELSEWHERE: Final = ("schema_version", "clock", "bench")


def _is_rows(value: object) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and bool(value)
        and all(isinstance(row, Mapping) for row in value)
    )


def _is_deep(value: object) -> bool:
    """Returns whether a value has no short text: it has rows, or values inside of values."""
    if isinstance(value, Mapping):
        return any(isinstance(inner, Mapping) or _is_rows(inner) for inner in value.values())
    return _is_rows(value)


def _table(name: str, rows: Sequence[Mapping[str, Any]], room: _Room) -> list[Part]:
    shown = [dict(flat(row, _DEEPEST)) for row in rows[:_MOST_ROWS]]
    columns = list(dict.fromkeys(key for row in shown for key in row))
    heads = columns[:_MOST_COLUMNS]
    cells = room.rows([_cell(column, row.get(column, "")) for column in heads] for row in shown)
    folded = len(cells) > _OPEN_ROWS
    parts: list[Part] = [
        Table(heads, cells, "" if folded else name),
        *left_out(len(cells), len(rows), "rows", "The first"),
        *left_out(len(heads), len(columns), "columns", "The first"),
    ]
    return [Fold(f"{name}, {len(rows)} rows", parts)] if folded else parts


def _cell(column: str, value: object) -> Cell:
    """Returns the cell of a value; if its column is one of picoseconds, as a time."""
    return time_cell(value) if column.endswith("_ps") and type(value) is int else value_cell(value)


def value_cell(value: object) -> Cell:
    """Returns the cell of any plain value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Cell(value_text(value))
    return Cell(value_text(value), value)


def value_text(value: object, depth: int = 0) -> str:
    """Returns the text of any plain value; of a long list, its first elements and its length."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        path = _PATH.fullmatch(value)
        return value if path is None else path[1]
    if not isinstance(value, Mapping | Sequence):
        return str(value)
    if depth >= _DEEPEST:
        return "..."
    if isinstance(value, Mapping):
        first = islice(value.items(), _MOST_VALUES)
        texts = [f"{key}: {value_text(inner, depth + 1)}" for key, inner in first]
    else:
        texts = [value_text(inner, depth + 1) for inner in islice(value, _MOST_VALUES)]
    text = ", ".join(texts)
    return text if len(value) <= _MOST_VALUES else f"{text}, ... ({len(value)} values)"
