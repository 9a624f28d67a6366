"""What the picture of a sweep shows: a figure over what varies, a line for each of something else.

It is chosen from the flat rows of `tables`; `drawing` makes a picture of it.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from sys import float_info
from typing import Any, Final, TypeGuard

from kernbench.config import did_you_mean
from kernbench.errors import UsageError
from kernbench.report.nccl_table import LINK_BOUND
from kernbench.sweeps.figures import is_whole_time, kind_of
from kernbench.sweeps.records import Record
from kernbench.sweeps.tables import FIRST, LAST, columns_of, rows_of
from kernbench.units import (
    PS_PER_US,
    UnitError,
    parse_bandwidth,
    parse_bytes,
    parse_time,
)

_MOST_LINES: Final = 24
"""More cannot be told apart."""

_MOST_BOUNDS: Final = 4

Value = int | float | str
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Choice:
    """What is drawn; columns are those of the flat table.

    Attributes:
        x: Column of the horizontal axis.
        y: Column of the vertical axis.
        hue: Columns whose values each have a line; empty for a single line.
    """

    x: str
    y: str
    hue: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """Points of one line.

    Attributes:
        label: The values of the columns that tell it from others.
        values: The same, each by itself.
        xs: Different values, ascending if they are numbers; else in the order in which they come.
        ys: For each, the mean of its values.
        least: For each, the least of its values.
        most: For each, the largest of its values.
    """

    label: str
    values: tuple[str, ...]
    xs: tuple[Value, ...]
    ys: tuple[float, ...]
    least: tuple[float, ...]
    most: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """All that a picture shows.

    Attributes:
        choice: What is drawn.
        lines: The lines.
        xs: All values of the horizontal axis, in the order in which they stand.
        x_unit: Their unit: `us`, `B`, `GB/s`; empty for any other.
        y_unit: That of the vertical axis.
        title: What ran.
        caption: What was left out, and what a band is.
        bounds: Bus bandwidths that the links of the machines allow, if bus bandwidths are drawn.
    """

    choice: Choice
    lines: tuple[Line, ...]
    xs: tuple[Value, ...]
    x_unit: str
    y_unit: str
    title: str
    caption: str
    bounds: tuple[float, ...] = ()


def picture_of(
    records: Callable[[], Iterable[Record]],
    *,
    x: str | None = None,
    y: str | None = None,
    hue: str | None = None,
) -> Picture:
    """Returns what a picture of records shows.

    Args:
        records: Returns the records; called twice.
        x: Column of the horizontal axis; None for sizes, or else the first number that varies.
        y: Column of the vertical axis; None for the bus bandwidth over sizes, else a time.
        hue: Column whose values each have a line; None for all that varies besides.

    Raises:
        UsageError: If there is no such column, or nothing can be drawn.
    """
    failed = sum(not record.ok for record in records())
    ran = [record for record in records() if record.ok]
    varied = list(dict.fromkeys(name for record in ran for name in record.run.varied))
    rows = [row for record in ran for row in rows_of(record)]
    if not rows:
        raise UsageError("nothing to draw: no run has succeeded", hint="the reports say why")
    columns = [name for name in columns_of(ran) if name != LAST]
    choice = choose(rows, columns, varied, x, y, hue)
    lines = _lines(rows, choice)
    total = len(ran) + failed
    left_out = f", of which {failed} failed and {_are(failed)} left out" if failed else ""
    notes = [f"{total} run{'' if total == 1 else 's'}{left_out}"]
    if any(line.least != line.most for line in lines):
        notes.append("where several fall on one point, their mean, the least and the largest")
    xs = tuple(dict.fromkeys(value for line in lines for value in line.xs))
    units = _unit(choice.x, _values(rows, choice.x)), _unit(choice.y, [])
    bounds = _bounds(rows, choice)
    return Picture(choice, lines, _ordered(xs), *units, _title(ran), "; ".join(notes), bounds)


def _bounds(rows: Rows, choice: Choice) -> tuple[float, ...]:
    """Returns the bounds of links of the runs, ascending; none if there are many."""
    if not choice.y.rpartition(".")[2].startswith("busbw"):
        return ()
    bounds = {value for row in rows if _is_number(value := row.get(LINK_BOUND)) and value > 0}
    return tuple(sorted(bounds)) if len(bounds) <= _MOST_BOUNDS else ()


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _title(records: Sequence[Record]) -> str:
    """Returns which benches ran, and on which machine if it is one."""
    benches = dict.fromkeys(Path(record.run.spec.bench or "").stem for record in records)
    machines = dict.fromkeys(str(record.run.spec.topology) for record in records)
    where = f" on {next(iter(machines))}" if len(machines) == 1 else ""
    return f"{', '.join(benches)}{where}"


# What is drawn


def choose(
    rows: Rows,
    columns: Sequence[str],
    varied: Sequence[str],
    x: str | None,
    y: str | None,
    hue: str | None,
) -> Choice:
    """Returns which columns are drawn.

    Args:
        columns: Their columns, in order.
        varied: The columns that the sweep varies.
        x: What the user asks for; None for the default. A name may also be the end of a column
            behind a dot.
        y: What the user asks for; None for the default.
        hue: What the user asks for; None for the default.

    Raises:
        UsageError: If there is no such column, or none that can be drawn.
    """
    asked = {"x": x, "y": y, "hue": hue}
    named = {
        name: _column(given, columns, f"--{name}")
        for name, given in asked.items()
        if given is not None
    }
    over = named.get("x") or _default_x(rows, columns, varied)
    what = named.get("y") or _default_y(rows, columns, over)
    if over == what:
        raise UsageError(f"--x and --y are both {over}", hint="name another column for one")
    drawn = [row for row in rows if _is_number(row.get(what)) and row.get(over) is not None]
    if not drawn:
        told = "--y" if y is not None else "--x"
        raise UsageError(
            f"{told} {named.get(told[2:], what)}: no row has numbers in {what} over {over}",
            [f"columns are {', '.join(columns)}"],
        )
    hues = (named["hue"],) if "hue" in named else _default_hue(drawn, columns, varied, over)
    number = len({_label(row, hues) for row in drawn})
    if number > _MOST_LINES:
        raise UsageError(
            f"{', '.join(hues)} has {number} values, and the most lines are {_MOST_LINES}",
            hint="--hue COLUMN names another column",
        )
    return Choice(over, what, hues)


def _column(name: str, columns: Sequence[str], option: str) -> str:
    if name in columns:
        return name
    ends = [column for column in columns if column.endswith(f".{name}")]
    if ends:
        return ends[0]
    last = {column.rpartition(".")[2]: column for column in reversed(columns)}
    raise UsageError(
        f"{option} {name}: the table has no such column",
        [f"columns are {', '.join(columns)}"],
        hint=did_you_mean(name, [*columns, *last]),
    )


def _default_x(rows: Rows, columns: Sequence[str], varied: Sequence[str]) -> str:
    sizes = [name for name in columns if name.rpartition(".")[2] == "size_bytes"]
    for name in (*sizes, *(each for each in varied if _are_numbers(_values(rows, each)))):
        if len(_values(rows, name)) > 1:
            return name
    for name in (*varied, *columns):
        if name not in FIRST and len(_values(rows, name)) > 1:
            return name
    raise UsageError(
        "nothing to draw: no column has different values", hint="vary something with --set or --arg"
    )


def _default_y(rows: Rows, columns: Sequence[str], x: str) -> str:
    numbers = [
        name for name in columns if name != x and any(_is_number(row.get(name)) for row in rows)
    ]
    rates = [name for name in numbers if name.rpartition(".")[2].startswith("busbw")]
    times = [name for name in numbers if name not in FIRST and is_whole_time(name.split("."))]
    with_sizes = rates if x.rpartition(".")[2] == "size_bytes" else []
    return next(iter([*with_sizes, *times, "sim_ps"]))


def _default_hue(
    rows: Rows, columns: Sequence[str], varied: Sequence[str], x: str
) -> tuple[str, ...]:
    """Returns what varies besides, and texts, as long as points would fall on one another."""
    hues = [name for name in varied if name != x and len(_values(rows, name)) > 1]
    for name in columns:
        if len({(_label(row, hues), str(row[x])) for row in rows}) == len(rows):
            break
        values = _values(rows, name)
        more = [*hues, name]
        if (
            name not in {*hues, x, *FIRST}
            and len(values) > 1
            and all(isinstance(value, str) for value in values)
            and len({_label(row, more) for row in rows}) <= _MOST_LINES
        ):
            hues.append(name)
    while len({_label(row, hues) for row in rows}) > _MOST_LINES:
        hues.pop()
    return tuple(hues)


def _values(rows: Rows, name: str) -> list[Any]:
    """Returns the different scalars in a column, in the order in which they come."""
    found = (row.get(name) for row in rows)
    return list(dict.fromkeys(each for each in found if isinstance(each, str | int | float)))


def _is_number(value: Any) -> TypeGuard[int | float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -float_info.max <= value <= float_info.max  # neither can an axis hold a larger integer


def _label(row: Mapping[str, Any], hues: Sequence[str]) -> str:
    return ", ".join(_hue_values(row, hues))


def _hue_values(row: Mapping[str, Any], hues: Sequence[str]) -> tuple[str, ...]:
    return tuple(str(row.get(name, "")) for name in hues)


def _lines(rows: Rows, choice: Choice) -> tuple[Line, ...]:
    numbers = _as_numbers(choice.x, _values(rows, choice.x))
    found: dict[tuple[str, ...], dict[Value, list[float]]] = {}
    for row in rows:
        x, y = row.get(choice.x), row.get(choice.y)
        if _is_number(y) and isinstance(x, str | int | float):
            line = found.setdefault(_hue_values(row, choice.hue), {})
            line.setdefault(numbers.get(x, str(x)), []).append(_scaled(choice.y, y))
    lines = []
    for values, points in found.items():
        xs = _ordered(points)
        each = [points[x] for x in xs]
        lines.append(
            Line(
                ", ".join(values),
                values,
                xs,
                tuple(math.fsum(ys) / len(ys) for ys in each),
                tuple(map(min, each)),
                tuple(map(max, each)),
            )
        )
    return tuple(lines)


def _ordered(values: Iterable[Value]) -> tuple[Value, ...]:
    found = tuple(values)
    numbers = [value for value in found if not isinstance(value, str)]
    return tuple(sorted(numbers)) if len(numbers) == len(found) else found


# Numbers and units

_QUANTITIES: Final[Sequence[tuple[str, Callable[[str], float]]]] = (
    ("", float),
    ("us", lambda text: parse_time(text) / PS_PER_US),
    ("B", lambda text: float(parse_bytes(text))),
    ("GB/s", lambda text: parse_bandwidth(text).per_second / 10**9),
)
"""The units in which texts are drawn, and how they are read."""


def _read(values: Sequence[Any]) -> tuple[str, dict[Any, float]] | None:
    """Returns the unit and the numbers of values; None if one of them is none."""
    for unit, read in _QUANTITIES:
        try:
            numbers = {value: read(value) for value in values}
        except (UnitError, ValueError, TypeError):
            continue
        if all(map(math.isfinite, numbers.values())):
            return unit, numbers
    return None


def _are_numbers(values: Sequence[Any]) -> bool:
    return _read(values) is not None


def _as_numbers(column: str, values: Sequence[Any]) -> dict[Any, float]:
    """Returns the number of each value; nothing if one of them is none."""
    found = _read(values)
    return {} if found is None else {v: _scaled(column, n) for v, n in found[1].items()}


def _scaled(column: str, value: float) -> float:
    """Returns a figure in the unit in which it is drawn: a time in ps as us."""
    return value / PS_PER_US if _last_unit(column) == "ps" else float(value)


def _last_unit(column: str) -> str:
    return column.rpartition(".")[2].rpartition("_")[2]


def _unit(column: str, values: Sequence[Any]) -> str:
    """Returns the unit of a column, by its values if they are texts, or else by its name."""
    found = _read(values)
    if found is not None and found[0]:
        return found[0]
    kind, unit = kind_of([column.rpartition(".")[2]]), _last_unit(column)
    if kind == "time":
        return "us" if unit == "ps" else unit
    if kind == "rate":
        return "GB/s" if column.endswith("gb_per_s") else "1/s"
    return "B" if kind == "bytes" else ""
