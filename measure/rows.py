"""What a table is made of, and its file."""

import csv
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from timing import Timer

Values = Mapping[str, Any]
Key = tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """A line to measure.

    Args:
        key: Values of the columns that name the line, in the table's order.
        measure: Allocates what the line needs and returns the measured columns.
    """

    key: tuple[object, ...]
    measure: Callable[[], Values]

    @property
    def text(self) -> Key:
        """The key as it stands in the file."""
        return tuple(map(str, self.key))


@dataclass(frozen=True)
class Group:
    """This process among those of `torchrun`."""

    rank: int = 0
    world: int = 1
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sizes(self) -> list[int]:
        """Sizes of the groups that are measured: 2, 4, 8, and all."""
        return sorted({n for n in (2, 4, 8, self.world) if 2 <= n <= self.world})


@dataclass(frozen=True)
class Table:
    """A table to measure.

    Args:
        name: The file is `NAME.csv`, if `file` says nothing.
        keys: Columns that name a line.
        values: Measured columns.
        rows: All lines; short ones alone for a timer that is `quick`.
        where: `gpu`: by any one GPU, beside others at other tables; `alone`: by rank 0 while the
            others wait, since the host counts; `all`: by all ranks together.
        profiled: `Row.measure` returns a call, and the profiler says how long its kernels take.
    """

    name: str
    keys: Sequence[str]
    values: Sequence[str]
    rows: Callable[[Timer, Group], Iterator[Row]]
    where: str = "gpu"
    profiled: bool = False
    file: str = ""


class File:
    """A table's file, to which lines are added.

    Args:
        path: Need not exist.
        table: Says the columns; a file with others is an error.
    """

    def __init__(self, path: Path, table: Table) -> None:
        self.path, self.table = path, table
        self.columns = [*table.keys, *table.values]
        self.known: set[Key] = set()
        if path.exists():
            with path.open(newline="") as lines:
                reader = csv.DictReader(lines)
                if list(reader.fieldnames or []) != self.columns:
                    raise SystemExit(f"{path} has other columns than {','.join(self.columns)}")
                self.known = {tuple(line[name] for name in table.keys) for line in reader}

    def add(self, row: Row, values: Values) -> None:
        """Writes a line at once, so that nothing is lost if the process ends."""
        new = not self.path.exists()
        with self.path.open("a", newline="") as out:
            writer = csv.writer(out)
            if new:
                writer.writerow(self.columns)
            measured = [values.get(name, "") for name in self.table.values]
            writer.writerow(
                [*row.key, *(round(v, 3) if isinstance(v, float) else v for v in measured)]
            )
        self.known.add(row.text)


def product(*axes: Sequence[Any], quick: bool = False) -> Iterator[tuple[Any, ...]]:
    """Yields combinations; of every axis but the first only its first value, if `quick`."""
    taken = [axis if not at else axis[:1] for at, axis in enumerate(axes)] if quick else axes
    return itertools.product(*taken)
