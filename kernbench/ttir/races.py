"""Programs and lanes of one launch that touch the same elements in no order (M12).

What programs have stored, and what they have loaded of memory that the launch stores to, is kept as
spans of bytes. To store what is there already is no race, and none is looked for after an atomic
operation of which a program uses the result, or a volatile load: these may put it after others.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import numpy as np

from kernbench.ttir.arithmetic import Array
from kernbench.ttir.module import Operation
from kernbench.ttir.rows import once
from kernbench.ttir.sums import Value, parts_of, plain

_MOST: Final = 1 << 21
"""Spans that are kept; what comes later is compared with these, and not kept."""

_BITS: Final = 31
"""Bits of the number of a program, of which two stand in the number that is for several."""


def several(least: Any, most: Any) -> Any:
    """Returns the negative number that stands for several programs, by two of them."""
    return -1 - (least | most << _BITS)


def two_of(programs: Any) -> tuple[Array, Array]:
    """Returns the two programs that numbers stand for; twice the same for that of a program."""
    many, bits = programs < 0, -1 - programs
    least = np.where(many, bits & ((1 << _BITS) - 1), programs)
    return least, np.where(many, bits >> _BITS, programs)


class Access(NamedTuple):
    """Who touches memory.

    Attributes:
        operation: What they do.
        programs: Numbers of the programs.
    """

    operation: Operation
    programs: Array


class RaceError(Exception):
    """Two programs, or two lanes, touch an element in no order.

    Attributes:
        second: What is done by the one of which this is noticed, and its number.
        lane: Its lane.
        first: What was done by the other, and its number.
        address: Address of the element.
    """

    def __init__(
        self,
        second: tuple[Operation, int],
        lane: tuple[int, ...],
        first: tuple[Operation, int],
        address: int,
    ) -> None:
        super().__init__("race")
        self.second, self.lane, self.first, self.address = second, lane, first, address


class Spans(NamedTuple):
    """Spans of bytes, each with who has touched it.

    Attributes:
        starts: First addresses.
        ends: Addresses behind the last bytes.
        programs: Numbers of programs, or of `several`.
        lines: Which operations of the launch did it.
    """

    starts: Array
    ends: Array
    programs: Array
    lines: Array

    def at(self, places: Array) -> "Spans":
        """Returns some of the spans."""
        return Spans(*(array[places] for array in self))

    @property
    def apart(self) -> bool:
        """Whether each span begins after the end of the one before."""
        return bool((self.starts[1:] >= self.ends[:-1]).all())

    def first_in(self, others: "Spans") -> tuple[int, int] | None:
        """Returns the places of the first span that overlaps one of others, and of that one.

        Args:
            others: Spans that are apart.
        """
        after = np.searchsorted(others.ends, self.starts, "right")
        found = np.flatnonzero(np.searchsorted(others.starts, self.ends, "left") > after)
        return (int(found[0]), int(after[found[0]])) if len(found) else None

    def within(self, others: "Spans") -> bool:
        """Returns whether each span is inside of one of others, which are apart."""
        places = np.minimum(
            np.searchsorted(others.ends, self.starts, "right"), len(others.ends) - 1
        )
        begins, ends = others.starts[places], others.ends[places]
        return bool((begins <= self.starts).all() and (self.ends <= ends).all())


def spans_of(
    by: Access,
    address: Value,
    shape: tuple[int, ...],
    size: int,
    mask: Array | None,
    count: int = 1,
    line: int = 0,
) -> Spans:
    """Returns the spans of an access, in the order of its programs.

    Args:
        address: Byte addresses.
        shape: Shape of a tile.
        size: Bytes of an element.
        mask: True for the elements that count; None for all.
        count: For how many programs there are values.
        line: Which operation of the launch it is.
    """
    starts, lengths = _rows(address, shape, size, mask) or _single(address, shape, mask)
    joint = (max(starts.shape[0], lengths.shape[0], count), *starts.shape[1:])
    programs = by.programs
    if joint[0] == 1 != len(programs):
        programs = several(programs[:1], programs[-1:])
    starts = np.broadcast_to(starts, joint).reshape(-1)
    lengths = np.broadcast_to(lengths, joint).reshape(-1)
    owners = np.broadcast_to(programs.reshape(-1, *(1,) * (len(joint) - 1)), joint).reshape(-1)
    left = lengths > 0
    if not left.all():
        starts, lengths, owners = starts[left], lengths[left], owners[left]
    return Spans(starts, starts + lengths * size, owners, np.full(len(starts), line, np.int32))


class Touched:
    """What was touched, in sets of spans that are sorted and do not overlap."""

    def __init__(self) -> None:
        self._sets: Final[list[Spans]] = []
        self._count = 0

    def add(self, spans: Spans) -> None:
        """Adds spans, which may overlap and be in any order."""
        if not len(spans.starts) or self._count > _MOST:
            return
        self._sets.append(flat(spans))
        while len(self._sets) > 1 and len(self._sets[-2].starts) < 2 * len(self._sets[-1].starts):
            last, before = self._sets.pop(), self._sets.pop()
            both = Spans(*(np.concatenate(pair) for pair in zip(before, last, strict=True)))
            self._sets.append(flat(both))
        self._count = sum(len(each.starts) for each in self._sets)

    def met(self, spans: Spans) -> tuple[int, int, int] | None:
        """Returns the first span that others touch, too: its place, another program, and its line.

        Returns:
            None if there is none.
        """
        if not len(spans.starts):
            return None
        low, high = int(spans.starts.min()), int(spans.ends.max())
        for each in self._sets:
            if each.ends[-1] <= low or high <= each.starts[0]:
                continue
            first = np.searchsorted(each.ends, spans.starts, "right")
            behind = np.searchsorted(each.starts, spans.ends, "left")
            count = np.maximum(behind - first, 0)
            mine = np.repeat(np.arange(len(count)), count)
            others = np.arange(len(mine)) - np.repeat(np.cumsum(count) - count - first, count)
            programs = each.programs[others]
            bad = np.flatnonzero((programs != spans.programs[mine]) | (programs < 0))
            if len(bad):
                other = others[bad[0]]
                return int(mine[bad[0]]), int(programs[bad[0]]), int(each.lines[other])
        return None


def flat(spans: Spans) -> Spans:
    """Returns spans sorted; where some overlap, as one of the program, or of `several`."""
    if not spans.apart:
        spans = spans.at(np.argsort(spans.starts, kind="stable"))
    if not spans.apart:
        bounds = once(np.concatenate((spans.starts, spans.ends)))
        first = np.searchsorted(bounds, spans.starts)
        count = np.searchsorted(bounds, spans.ends) - first
        mine = np.repeat(np.arange(len(count)), count)
        pieces = np.arange(len(mine)) - np.repeat(np.cumsum(count) - count - first, count)
        order = np.argsort(pieces, kind="stable")
        pieces, mine = pieces[order], mine[order]
        begins = np.flatnonzero(np.r_[True, pieces[1:] != pieces[:-1]])
        low, high = two_of(spans.programs[mine])
        least, most = np.minimum.reduceat(low, begins), np.maximum.reduceat(high, begins)
        programs = np.where(least == most, least, several(least, most))
        where, last = pieces[begins], mine[np.r_[begins[1:], len(mine)] - 1]
        spans = Spans(bounds[where], bounds[where + 1], programs, spans.lines[last])
    new = np.ones(len(spans.starts), np.bool_)
    new[1:] = (
        (spans.starts[1:] != spans.ends[:-1])
        | (spans.programs[1:] != spans.programs[:-1])
        | (spans.lines[1:] != spans.lines[:-1])
    )
    if new.all():
        return spans
    begins = np.flatnonzero(new)
    ends = spans.ends[np.r_[begins[1:], len(new)] - 1]
    return Spans(spans.starts[begins], ends, spans.programs[begins], spans.lines[begins])


class Races:
    """Looks for races in one launch.

    Args:
        stored: First addresses and ends of memory that the launch may store to.
        total: How many programs there are.
    """

    def __init__(self, stored: Iterable[tuple[int, int]], total: int) -> None:
        self._stored: Final = list(stored)
        self._several: Final = total > 1
        self._loads: Final = Touched()
        self._stores: Final = Touched()
        self._lines: Final[list[Operation]] = []
        self._ordered: Array | None = None
        self._total: Final = total

    def order(self, programs: Array) -> None:
        """Notes programs that may come after others from now on, as they synchronise."""
        if self._ordered is None:
            self._ordered = np.zeros(self._total, np.bool_)
        self._ordered[programs] = True

    def loaded(
        self,
        by: Access,
        address: Value,
        shape: tuple[int, ...],
        size: int,
        mask: Array | None,
        inside: tuple[int, int] | None = None,
    ) -> None:
        """Looks at a load.

        Args:
            address: Byte addresses.
            shape: Shape of a tile.
            size: Bytes of an element.
            mask: True for the elements that are read; None for all.
            inside: First address and end of the memory that all of them are in; None if unknown.

        Raises:
            RaceError: If another program has stored to what is read.
        """
        if not self._several:
            return
        if by.operation.attributes.get("isVolatile") is True:
            self.order(by.programs)
        if inside is not None and not self._may_store(inside[0], inside[1] - 1):
            return
        low = high = 0
        for part in parts_of(address):
            low, high = low + int(part.min()), high + int(part.max())
        if not self._may_store(low, high):
            return
        spans = self._spans(by, address, shape, size, mask)
        if self._stores.met(spans) is not None:
            self._refuse(self._stores, by, address, shape, size, mask)
        self._loads.add(spans)

    def _may_store(self, low: int, high: int) -> bool:
        return any(start <= high and low < end for start, end in self._stored)

    def storing(
        self,
        by: Access,
        address: Value,
        shape: tuple[int, ...],
        values: Array,
        mask: Array | None,
        there: Callable[[], Array],
    ) -> bool:
        """Looks at a store that is about to happen.

        Args:
            address: As for `loaded`, as are `shape` and `mask`.
            values: What is stored.
            there: Returns what is there now.

        Returns:
            Whether several programs or lanes store to one element.

        Raises:
            RaceError: If another program has loaded or stored what this one changes.
        """
        size = values.dtype.itemsize
        spans = self._spans(by, address, shape, size, mask, values)
        if self._several:
            for touched in (self._stores, self._loads):
                if touched.met(spans) is not None:
                    changed = _differ(values, there())
                    changed = changed if mask is None else changed & mask
                    self._refuse(touched, by, address, shape, size, changed)
            self._stores.add(spans)
        return not (spans.apart or spans.at(np.argsort(spans.starts, kind="stable")).apart)

    def stored(
        self,
        by: Access,
        address: Value,
        shape: tuple[int, ...],
        values: Array,
        mask: Array | None,
        there: Array,
    ) -> None:
        """Looks at a store that has happened, in which several store to one element.

        Args:
            there: What is there now; the others as for `storing`.

        Raises:
            RaceError: If one has stored another value than what is there.
        """
        lost = _differ(values, there)
        lost = lost if mask is None else lost & mask
        if not lost.any():
            return
        full, active = _elements(address, shape, mask, values)
        lost = np.broadcast_to(lost, full.shape)
        active = np.broadcast_to(active, full.shape)
        place = tuple(int(axis) for axis in np.argwhere(lost)[0])
        same = np.argwhere((full == full[place]) & active & ~lost)[-1]
        first, second = (_program(by, int(each[0]), full) for each in (same, place))
        operation = by.operation
        raise RaceError((operation, second), place[1:], (operation, first), int(full[place]))

    def _line(self, operation: Operation) -> int:
        if operation not in self._lines:
            self._lines.append(operation)
        return self._lines.index(operation)

    def _spans(
        self,
        by: Access,
        address: Value,
        shape: tuple[int, ...],
        size: int,
        mask: Array | None,
        values: Array | None = None,
    ) -> Spans:
        """Returns what is touched, but for what ordered programs touch."""
        count = 1 if values is None else values.shape[0]
        spans = spans_of(by, address, shape, size, mask, count, self._line(by.operation))
        if self._ordered is None or not len(spans.starts):
            return spans
        if spans.programs[0] < 0:
            left = np.full(len(spans.starts), not self._ordered.any())
        else:
            left = ~self._ordered[spans.programs]
        return spans if left.all() else spans.at(left)

    def _refuse(
        self,
        touched: Touched,
        by: Access,
        address: Value,
        shape: tuple[int, ...],
        size: int,
        mask: Array | None,
    ) -> None:
        """Raises if others touch single elements that a mask has, and not only their spans."""
        full, active = _elements(address, shape, mask)
        places = np.argwhere(active)
        starts = full[tuple(places.T)]
        programs = np.array([_program(by, int(place[0]), full) for place in places])
        if self._ordered is not None:
            left = ~self._ordered[programs]
            places, starts, programs = places[left], starts[left], programs[left]
        met = touched.met(Spans(starts, starts + size, programs, programs))
        if met is not None:
            mine, others, line = met
            own, (low, high) = int(programs[mine]), two_of(np.array(others))
            raise RaceError(
                (by.operation, own),
                tuple(int(axis) for axis in places[mine][1:]),
                (self._lines[line], int(high if low == own else low)),
                int(starts[mine]),
            )


def _program(by: Access, row: int, full: Array) -> int:
    """Returns the number of the program that an element is of; of the last where all share it."""
    return int(by.programs[row if full.shape[0] > 1 else -1])


def _differ(a: Array, b: Array) -> Array:
    """Returns where the bits of two arrays differ."""
    a, b = (np.ascontiguousarray(each) for each in np.broadcast_arrays(a, b))
    kind: Any = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[a.dtype.itemsize]
    found: Array = a.view(kind) != b.view(kind)
    return found


def _elements(
    address: Value, shape: tuple[int, ...], mask: Array | None, values: Array | None = None
) -> tuple[Array, Array]:
    """Returns the addresses of all elements, and which of them count."""
    full = plain(address)
    others = [each.shape[0] for each in (mask, values) if each is not None]
    joint = (max(full.shape[0], *others, 1), *shape)
    active = np.ones((1,) * len(joint), np.bool_) if mask is None else mask
    return np.broadcast_to(full, joint), np.broadcast_to(active, joint)


def _single(address: Value, shape: tuple[int, ...], mask: Array | None) -> tuple[Array, Array]:
    """Returns the addresses of all elements; the extents are 1, or 0 where a mask has none."""
    full, active = _elements(address, shape, mask)
    return full, active.astype(np.int64)


def _rows(
    address: Value, shape: tuple[int, ...], size: int, mask: Array | None
) -> tuple[Array, Array] | None:
    """Returns the first addresses of rows along an axis whose elements are neighbours.

    Returns:
        The addresses, with the extent 1 along that axis, and how many elements of a row count;
        None if there is no such axis, or elements inside of a row do not count.
    """
    parts = parts_of(address)
    for axis in range(len(shape), 0, -1):
        along = [part for part in parts if part.shape[axis] > 1]
        if len(along) != 1 or (np.diff(along[0], axis=axis) != size).any():
            continue
        lengths = np.full((1,) * (1 + len(shape)), shape[axis - 1])
        if mask is not None and mask.shape[axis] == 1:
            lengths = np.where(mask, shape[axis - 1], 0)
        elif mask is not None:
            if (np.diff(mask.view(np.int8), axis=axis) > 0).any():
                return None
            lengths = mask.sum(axis=axis, keepdims=True)
        starts = np.take(parts[0], [0], axis=axis)
        for part in parts[1:]:
            starts = starts + np.take(part, [0], axis=axis)
        joint = [*np.broadcast_shapes(starts.shape, lengths.shape, (1, *shape))]
        joint[axis], joint[0] = 1, starts.shape[0]
        starts = np.broadcast_to(starts, joint)
        joint[0] = lengths.shape[0]
        return starts, np.broadcast_to(lengths, joint)
    return None
