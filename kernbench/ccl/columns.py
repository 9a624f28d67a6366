"""Tables over steps and ranks that hold no more numbers than there are different ones.

A ring of thousands of ranks has as many steps, and a table over both has their product. But each
row of it is the row before moved by one rank, and most other rows are all alike. Such tables are
views of an array with a number for each step and each rank.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int64]]


class Around:
    """By rank, the rank so many places further round a ring: `(rank + places) % ranks`.

    It stands for all ranks at once while an algorithm is recorded, and knows no more of numbers
    than what algorithms for rings do with them. Everything else raises `TypeError`.

    Args:
        ranks: Number of ranks.
        places: How many places further.
        wrapped: Whether `% ranks` was taken; a sum has not been.
    """

    __slots__ = ("places", "ranks", "wrapped")
    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, ranks: int, places: int = 0, *, wrapped: bool = True) -> None:
        self.ranks: Final = ranks
        self.places: Final = places
        self.wrapped: Final = wrapped

    def __add__(self, places: Any) -> "Around":
        # A sum of what was wrapped at another rank than the last one is no such number.
        if type(places) is not int or (self.wrapped and self.places):
            raise TypeError(_UNKNOWN)
        return Around(self.ranks, self.places + places, wrapped=False)

    __radd__ = __add__

    def __sub__(self, places: Any) -> "Around":
        return self.__add__(-places)

    def __mod__(self, ranks: Any) -> "Around":
        if type(ranks) is not int or ranks != self.ranks:
            raise TypeError(_UNKNOWN)
        return Around(ranks, self.places % ranks)

    def __eq__(self, other: object) -> bool:
        raise TypeError(_UNKNOWN)

    def __bool__(self) -> bool:
        raise TypeError(_UNKNOWN)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(_UNKNOWN)

    def turns(self, first: int, by: int, count: int) -> "Turns":
        """Returns the ranks of several steps, each so many places further than the one before.

        Args:
            first: How many places further the first one is.
            by: Places from one step to the next.
            count: Number of steps; at least one.
        """
        places = (first + by * np.arange(count)) % self.ranks
        return Turns((self + first) % self.ranks, places)


class Turns(NamedTuple):
    """What `Around` is for one step, for several in a row.

    Attributes:
        first: Of the first step.
        places: How many places further it is, step by step.
    """

    first: Around
    places: Ints


_UNKNOWN: Final = "not known of all ranks at once"


class Column:
    """One argument of all exchanges, step after step: a number, or an array over ranks.

    Args:
        ranks: Number of ranks.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks: Final = ranks
        self._count = 0
        self._last: Any = None
        # How the rows go on: 0 all alike, -1 or 1 each the one before moved by so many ranks.
        self._shift: int | None = None
        self._line: list[int] = []
        # Numbers that are the same for all ranks, each with how many steps it stands for.
        self._numbers: list[tuple[int, int]] | None = []
        self._rows: list[Any] | None = None
        # How many places round the ring each row's numbers are from the ranks.
        self._places: list[Ints] | None = None

    def append(self, row: Any) -> None:
        """Adds a step.

        Args:
            row: A number, an array over ranks that nobody changes any more, or an `Around`.
        """
        if isinstance(row, Around):
            self._append_around(row)
        elif self._places is not None:
            self._give_up(row)
        elif self._rows is not None:
            self._rows.append(row)
        elif isinstance(row, np.ndarray):
            self._append_array(row)
        elif self._numbers is not None:
            self._numbers.append((int(row), 1))
        else:
            self._give_up(row)
        self._last = row
        self._count += 1

    def extend(self, rows: Sequence[Any]) -> None:
        """Adds several steps, all of them numbers, or all of them an `Around`.

        Args:
            rows: See `append`; at least one.
        """
        around = isinstance(rows[0], Around)
        if around and self._adds_places:
            self._add_places(np.array([row.places for row in rows]))
        elif not around and self._numbers is not None:
            self._numbers += [(int(row), 1) for row in rows]
        else:
            for row in rows:
                self.append(row)
            return
        self._last = rows[-1]
        self._count += len(rows)

    def repeat(self, number: int, count: int) -> None:
        """Adds several steps with one number; at least one."""
        if self._numbers is None:
            self.extend([number] * count)
            return
        self._numbers.append((int(number), count))
        self._last = number
        self._count += count

    def turn(self, turns: Turns) -> None:
        """Adds several steps round the ring."""
        last = int(turns.places[-1])
        if not self._adds_places:
            for places in turns.places.tolist():
                self.append(Around(self._ranks, places))
            return
        self._add_places(turns.places)
        self._last = Around(self._ranks, last)
        self._count += len(turns.places)

    @property
    def _adds_places(self) -> bool:
        return self._places is not None or not self._count

    def _add_places(self, places: Ints) -> None:
        if self._places is None:
            self._places, self._numbers = [], None
        self._places.append(places)

    @staticmethod
    def _joined(places: list[Ints]) -> Ints:
        """Returns the places of all steps, and keeps them so."""
        places[:] = [np.concatenate(places)]
        return places[0]

    def _append_around(self, row: Around) -> None:
        if self._places is None and not self._count:
            self._places, self._numbers = [], None
        if self._places is not None:
            self._places.append(np.array([row.places]))
        elif self._rows is not None:
            self._rows.append(self._around(row.places))
        else:
            self._give_up(self._around(row.places))

    def _around(self, places: int) -> Any:
        return (np.arange(self._ranks) + places) % self._ranks

    def _append_array(self, row: Any) -> None:
        last, shift = self._last, self._shift
        if row.shape != (self._ranks,) or (self._count and self._numbers is not None):
            self._give_up(row)
        elif not self._count:
            self._numbers = None
        elif shift in {None, 0} and (row == last).all():
            self._shift = 0
        elif shift in {None, -1} and (row[:-1] == last[1:]).all():
            if shift is None:
                self._shift, self._line = -1, last.tolist()
            self._line.append(int(row[-1]))
        elif shift in {None, 1} and (row[1:] == last[:-1]).all():
            if shift is None:
                self._shift, self._line = 1, last[::-1].tolist()
            self._line.append(int(row[0]))
        else:
            self._give_up(row)

    def _give_up(self, row: Any) -> None:
        """Keeps rows as they are from now on."""
        self._rows = [self.row(step) for step in range(self._count)]
        self._rows.append(row)
        self._numbers, self._line, self._shift, self._places = None, [], None, None

    def row(self, step: int) -> Any:
        """Returns a step: a number, or an array over ranks."""
        if self._places is not None:
            return self._around(int(self._joined(self._places)[step]))
        if self._rows is not None:
            return self._rows[step]
        if self._numbers is not None:
            return self._each(self._numbers)[step]
        if not self._shift:
            return self._last
        line = np.array(self._line[step : step + self._ranks], self._last.dtype)
        return line if self._shift < 0 else line[::-1]

    def of(self, rank: int) -> list[int]:
        """Returns the numbers of a rank, step by step."""
        if self._places is not None:
            found: list[int] = ((rank + self._joined(self._places)) % self._ranks).tolist()
            return found
        if self._numbers is not None:
            return self._each(self._numbers)
        if self._shift:
            first = rank if self._shift < 0 else self._ranks - 1 - rank
            return self._line[first : first + self._count]
        if self._rows is None:
            return [int(self._last[rank])] * self._count
        return [int(row[rank] if np.ndim(row) else row) for row in self._rows]

    @property
    def fits(self) -> bool:
        """Whether each step is a number or has one number for each rank."""
        rows = self._rows or ()
        return all(np.ndim(row) == 0 or np.shape(row) == (self._ranks,) for row in rows)

    def table(self, dtype: Any) -> Any:
        """Returns all steps as an array over steps and ranks, which nobody may write to."""
        shape = self._count, self._ranks
        if self._places is not None:
            return self._table_around(self._joined(self._places), dtype)
        if self._rows is not None or not self._count:
            table = np.empty(shape, dtype)
            for step, row in enumerate(self._rows or ()):
                table[step] = row
            return table
        if self._numbers is not None:
            numbers, counts = map(list, zip(*self._numbers, strict=True))
            if len(set(numbers)) == 1:
                return np.broadcast_to(np.array(numbers[:1], dtype), shape)
            return np.broadcast_to(np.repeat(np.array(numbers, dtype), counts)[:, None], shape)
        if not self._shift:
            return np.broadcast_to(np.asarray(self._last, dtype), shape)
        line = np.array(self._line, dtype)
        windows = np.lib.stride_tricks.sliding_window_view(line, self._ranks)
        return windows if self._shift < 0 else windows[:, ::-1]

    @staticmethod
    def _each(numbers: list[tuple[int, int]]) -> list[int]:
        """Returns the number of each step, and keeps them so."""
        if any(count > 1 for _, count in numbers):
            numbers[:] = [(number, 1) for number, count in numbers for _ in range(count)]
        return [number for number, _ in numbers]

    def _table_around(self, places: Ints, dtype: Any) -> Any:
        ranks, shape = self._ranks, (self._count, self._ranks)
        by = np.diff(places) % ranks
        step = int(by[0]) if len(by) and (by == by[0]).all() else 0
        if not by.any():
            return np.broadcast_to(self._around(places[0]).astype(dtype), shape)
        if step in {1, ranks - 1}:
            line = (places[0] + np.arange(self._count + ranks - 1)) % ranks
            if step == 1:
                return np.lib.stride_tricks.sliding_window_view(line.astype(dtype), ranks)
            line = (places[0] + ranks - 1 - np.arange(self._count + ranks - 1)) % ranks
            windows = np.lib.stride_tricks.sliding_window_view(line.astype(dtype), ranks)
            return windows[:, ::-1]
        line = np.arange(2 * ranks) % ranks
        windows = np.lib.stride_tricks.sliding_window_view(line.astype(dtype), ranks)
        return windows[places % ranks]
