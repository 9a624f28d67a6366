"""Loads and stores of all programs of a launch at once.

Addresses are bytes, and belong to an allocation: a kernel that was given a tensor may touch that
tensor alone. A tile whose last axis lies element after element is copied row by row; others are
gathered.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final, Protocol

import numpy as np

from kernbench.ttir.arithmetic import Array
from kernbench.ttir.races import Access, Races
from kernbench.ttir.rows import (
    Rows,
    distinct,
    joint_shape,
    leading,
    once,
    rows_of,
    shortened,
    spread,
)
from kernbench.ttir.sums import Shared, Value, plain

_FLAGS: Final = 1024
"""Most elements of a store that others may poll; larger ones store what is no flag."""

_BITS: Final = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(eq=False)
class Allocation:
    """Memory that a kernel may touch.

    Attributes:
        label: How reports call it, such as `argument x, a tensor of 4 x 8 float32`.
        start: Address of its first byte.
        data: Its bytes, in one dimension.
        read: Whether a program has read it.
        written: Whether a program has written it.
        loaded: Bytes that programs have read, as often as they have.
        stored: The same of bytes that they have written.
        unwritten: True for each byte that nothing has written; None if all are written. What
            programs write is taken out of it.
    """

    label: str
    start: int
    data: np.ndarray[Any, np.dtype[np.uint8]]
    read: bool = False
    written: bool = False
    loaded: int = 0
    stored: int = 0
    unwritten: np.ndarray[Any, np.dtype[np.bool_]] | None = None
    _views: dict[np.dtype[Any], Array] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """Address after its last byte."""
        return self.start + len(self.data)

    def view(self, dtype: np.dtype[Any]) -> Array:
        """Returns the elements of a type, without what is left at the end."""
        found = self._views.get(dtype)
        if found is None:
            whole = len(self.data) // dtype.itemsize * dtype.itemsize
            found = self._views[dtype] = self.data[:whole].view(dtype)
        return found


class Beside(Protocol):
    """Kernels of other devices that run at the same time, and touch some of the same memory."""

    def begin(self, program: int, touched: int) -> None:
        """Notes that a program begins.

        Args:
            program: Its number; the number of programs once all have ended.
            touched: Bytes that programs have moved so far.
        """
        ...

    def turned(
        self,
        allocation: Allocation,
        offsets: Array,
        changed: Array,
        touched: int,
        *,
        looked: bool,
        fences: bool = False,
        by: Access | None = None,
    ) -> None:
        """Notes that a program has touched elements by which kernels may wait for each other.

        Args:
            offsets: Of the elements in the allocation, in bytes.
            changed: True for those that it has changed.
            touched: Bytes that programs have moved so far.
            looked: Whether it may go on by what it has found there.
            fences: Whether all that it has written before comes first (`release`).
            by: Who does it; None if no races are to be looked for.
        """
        ...

    def accessed(
        self,
        by: Access,
        address: Value,
        shape: tuple[int, ...],
        size: int,
        mask: Array | None,
        count: int,
        *,
        writes: bool,
    ) -> None:
        """Notes a load or a store, as `races.spans_of` takes it."""
        ...

    def end(self) -> None:
        """Notes that all programs have ended."""
        ...

    def wait(self, told: Callable[[], Sequence[str]]) -> None:
        """Waits until another one has changed something.

        Args:
            told: Returns what the program waits for, for reports.
        """
        ...


class OutsideError(Exception):
    """Elements of an access are outside of the allocation.

    Attributes:
        allocation: Where they should be; None if they are in none.
        bad: True for each element that is outside; full shape.
        addresses: Addresses of all elements; full shape.
        misaligned: Whether they are inside, but lie across elements of the allocation.
    """

    def __init__(
        self,
        allocation: Allocation | None,
        bad: Array,
        addresses: Array,
        *,
        misaligned: bool = False,
    ) -> None:
        super().__init__("outside")
        self.allocation, self.bad, self.addresses = allocation, bad, addresses
        self.misaligned = misaligned


class Memory:
    """The allocations of a launch.

    Args:
        arguments: Those that arguments of the kernel point into, by the number of the argument.
        others: Those that may be reached by addresses in memory, too.

    Attributes:
        arguments: See above.
        changes: How many operations have changed something.
        races: Looks for races in the launch; None if nobody does.
        beside: Kernels that run at the same time, and touch some of the memory; None without any.
        touched: Bytes that programs have moved.
    """

    def __init__(
        self, arguments: Mapping[int, Allocation], others: Sequence[Allocation] = ()
    ) -> None:
        self.arguments: Final = dict(arguments)
        self.changes = 0
        self.races: Races | None = None
        self.beside: Beside | None = None
        self.touched = 0
        unique = {each.start: each for each in (*others, *arguments.values())}
        self._marks: Final = (
            self._marks_of(unique) if any(map(_incomplete, unique.values())) else None
        )
        self._sorted: Final = [unique[start] for start in sorted(unique)]
        self._starts: Final = np.array([each.start for each in self._sorted], np.int64)

    def load(
        self,
        address: Value,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        mask: Array | None,
        other: Array | None,
        root: int | None,
        by: Access | None = None,
    ) -> Value:
        """Returns elements; of those that the mask leaves out, what `other` has, or 0.

        Args:
            address: Byte addresses.
            shape: Shape of a tile.
            mask: True for the elements to read; None for all.
            root: Number of the argument whose memory it is; None if that is not known.
            by: Who does it; None if no races are to be looked for.

        Raises:
            OutsideError: If an element is in no memory of the kernel's.
            RaceError: If another program has stored to an element.
        """
        mask = shortened(mask)
        if mask is not None and not mask.any():
            return np.zeros((1,) * (1 + len(shape)), dtype) if other is None else other
        rows = rows_of(address, shape)
        found: Value | None = None
        few = None if rows is None or dtype.kind in "biu" else distinct(rows, shape, mask, other)
        if rows is not None and few is not None:
            tiles = self._load_rows(few[0], dtype, mask, other, root, len(rows.starts))
            found = None if tiles is None else Shared(tiles, few[1])
        if found is None:
            found = self._loaded(rows, address, shape, dtype, mask, other, root)
        if self.races is not None and by is not None:
            known = None if root is None else self.arguments.get(root)
            inside = None if known is None else (known.start, known.end)
            self.races.loaded(by, address, shape, dtype.itemsize, mask, inside)
        if self.beside is not None and by is not None:
            self.beside.accessed(by, address, shape, dtype.itemsize, mask, 1, writes=False)
        return found

    def _loaded(
        self,
        rows: Rows | None,
        address: Value,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        mask: Array | None,
        other: Array | None,
        root: int | None,
    ) -> Array:
        if rows is not None:
            found = self._load_rows(rows, dtype, mask, other, root, len(rows.starts))
            if found is not None:
                return found
        full = spread(plain(address), shape)
        active = None if mask is None else np.broadcast_to(mask, joint_shape(full, mask))
        full = full if active is None else np.broadcast_to(full, active.shape)
        out = np.zeros(full.shape, dtype)
        for allocation, places in self._allocations(full, active, dtype, root):
            allocation.read = True
            indices = (full[places] - allocation.start) // dtype.itemsize
            allocation.loaded += indices.size * dtype.itemsize
            self.touched += indices.size * dtype.itemsize
            out[places] = allocation.view(dtype)[indices]
        if active is None or other is None:
            return out
        return np.where(active, out, other)

    def store(
        self,
        address: Value,
        shape: tuple[int, ...],
        values: Array,
        mask: Array | None,
        root: int | None,
        by: Access | None = None,
    ) -> None:
        """Writes elements; of several at one address, that of the last program stays.

        Args:
            address: Byte addresses.
            shape: Shape of a tile.
            mask: True for the elements to write; None for all.
            root: See `load`, as for `by`.

        Raises:
            OutsideError: If an element is in no memory of the kernel's.
            RaceError: If other programs or lanes touch an element that this changes.
        """
        mask = shortened(mask)
        if mask is not None and not mask.any():
            return
        self.changes += 1
        self._checked(address, shape, values, mask, root, by)
        self.wrote(address, shape, values.dtype, mask, root)
        if self.beside is None:
            return
        if by is not None:
            size, count = values.dtype.itemsize, values.shape[0]
            self.beside.accessed(by, address, shape, size, mask, count, writes=True)
        if prod(shape) <= _FLAGS:
            self.turned(plain(address), shape, values.dtype, mask, root, looked=False, by=by)

    def turned(
        self,
        address: Array,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        mask: Array | None,
        root: int | None,
        *,
        looked: bool,
        by: Access | None,
    ) -> None:
        """Tells kernels beside this one of elements that are looked at, or are all changed.

        Args:
            address: Byte addresses.
            shape: Shape of a tile.
            mask: True for the elements; None for all.
            root: See `load`, as for `by`.
            looked: Whether they are looked at.
        """
        if self.beside is None:
            return
        full = spread(address, shape)
        active = None if mask is None else np.broadcast_to(mask, joint_shape(full, mask))
        full = full if active is None else np.broadcast_to(full, active.shape)
        for allocation, places in self._allocations(full, active, dtype, root):
            offsets = (full[places] - allocation.start).reshape(-1)
            changed = np.full(offsets.shape, not looked)
            self.beside.turned(allocation, offsets, changed, self.touched, looked=looked, by=by)

    def _checked(
        self,
        address: Value,
        shape: tuple[int, ...],
        values: Array,
        mask: Array | None,
        root: int | None,
        by: Access | None,
    ) -> None:
        races = None if by is None else self.races
        if races is None or by is None:
            self._stored(address, shape, values, mask, root)
            return

        def there() -> Array:
            rows = rows_of(address, shape)
            return self._loaded(rows, address, shape, values.dtype, mask, None, root)

        crowded = races.storing(by, address, shape, values, mask, there)
        self._stored(address, shape, values, mask, root)
        if crowded:
            races.stored(by, address, shape, values, mask, there())

    def _stored(
        self,
        address: Value,
        shape: tuple[int, ...],
        values: Array,
        mask: Array | None,
        root: int | None,
    ) -> None:
        dtype = values.dtype
        rows = rows_of(address, shape)
        if rows is not None and rows.step > 0:
            count = rows.length if mask is None else leading(mask, rows.length)
            if count and self._store_rows(rows._replace(length=count), values, root):
                return
        full = spread(plain(address), shape)
        joint = joint_shape(full, values) if mask is None else joint_shape(full, values, mask)
        full, values = np.broadcast_to(full, joint), np.broadcast_to(values, joint)
        active = None if mask is None else np.broadcast_to(mask, joint)
        for allocation, places in self._allocations(full, active, dtype, root):
            allocation.written = True
            indices = (full[places] - allocation.start) // dtype.itemsize
            allocation.stored += indices.size * dtype.itemsize
            self.touched += indices.size * dtype.itemsize
            allocation.view(dtype)[indices] = values[places]

    def _marks_of(self, unique: "Mapping[int, Allocation]") -> "Memory":
        """Returns memory of which a byte is 1 where nothing has written that of this one."""
        made: dict[int, Allocation] = {}
        for start, each in unique.items():
            marks = each.unwritten
            data = np.zeros(len(each.data), np.uint8) if marks is None else marks.view(np.uint8)
            made[start] = Allocation(each.label, start, data)
        given = {number: made[each.start] for number, each in self.arguments.items()}
        return Memory(given, list(made.values()))

    @property
    def allocations(self) -> "list[Allocation]":
        """All allocations; one that several arguments point into may be there several times."""
        return list({id(one): one for one in (*self.arguments.values(), *self._sorted)}.values())

    @property
    def incomplete(self) -> bool:
        """Whether there are bytes that nothing has written."""
        return self._marks is not None

    def gaps(
        self,
        address: Value,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        mask: Array | None,
        root: int | None,
    ) -> Array | None:
        """Returns True for the elements of a load that nothing has written; None if all are."""
        known = None if root is None else self.arguments.get(root)
        if self._marks is None or (known is not None and not _incomplete(known)):
            return None
        bits = np.dtype(_BITS[dtype.itemsize])
        found: Array = plain(self._marks.load(address, shape, bits, mask, None, root)) != 0
        return found if found.any() else None

    def wrote(
        self,
        address: Value,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        mask: Array | None,
        root: int | None,
    ) -> None:
        """Notes that elements are written, as for `store`."""
        known = None if root is None else self.arguments.get(root)
        if self._marks is not None and (known is None or _incomplete(known)):
            none = np.zeros((1,) * (1 + len(shape)), _BITS[dtype.itemsize])
            self._marks.store(address, shape, none, mask, root)

    def ranges(self, roots: Iterable[int] | None) -> list[tuple[int, int]]:
        """Returns the first addresses and ends of the memory of arguments; None: of all memory."""
        places = None if roots is None else [self.arguments.get(root) for root in roots]
        if places is None or None in places:  # an address that was given as a number
            return [(each.start, each.end) for each in self._sorted]
        return [(each.start, each.end) for each in places if each is not None]

    def place(
        self, address: Array, active: Array | None, dtype: np.dtype[Any], root: int | None
    ) -> "list[tuple[Allocation, Array]]":
        """Returns the allocations that addresses lie in, each with the elements in it.

        Args:
            address: Byte addresses, full shape.
            active: True for the elements that count; None for all.

        Raises:
            OutsideError: If an element that counts is in none.
        """
        return self._allocations(address, active, dtype, root)

    def _load_rows(
        self,
        rows: Rows,
        dtype: np.dtype[Any],
        mask: Array | None,
        other: Array | None,
        root: int | None,
        programs: int,
    ) -> Array | None:
        """Returns the elements of regular rows; None if they have to be looked at one by one.

        Args:
            programs: How many programs load them.
        """
        length = rows.length
        count = 0 if mask is None else leading(mask, length)
        if count:
            length, mask = count, None
        windows = self._windows(rows, dtype, length, root)
        if windows is None:
            return None
        found, places, allocation = windows
        allocation.read = True
        out: Array = found[places].view(dtype)
        allocation.loaded += out[:1].nbytes * programs
        self.touched += out[:1].nbytes * programs
        if length < rows.length:
            joint = (*out.shape[:-1], rows.length)
            if other is None:
                whole = np.zeros(joint, dtype)
            else:
                whole = np.broadcast_to(other, np.broadcast_shapes(joint, other.shape)).copy()
            whole[..., :length] = out
            return whole
        if mask is None:
            return out
        return np.where(mask, out, dtype.type(0) if other is None else other)

    def _store_rows(self, rows: Rows, values: Array, root: int | None) -> bool:
        windows = self._windows(rows, values.dtype, rows.length, root)
        if windows is None:
            return False
        found, places, allocation = windows
        shape = (*np.broadcast_shapes(places.shape, values.shape[:-1]), rows.length)
        allocation.written = True
        allocation.stored += prod(shape) * values.itemsize
        self.touched += prod(shape) * values.itemsize
        values = values[..., : rows.length]
        found[np.broadcast_to(places, shape[:-1])] = np.ascontiguousarray(values).view(found.dtype)
        return True

    def _windows(
        self, rows: Rows, dtype: np.dtype[Any], length: int, root: int | None
    ) -> tuple[Array, Array, Allocation] | None:
        """Returns all windows of an allocation, which ones the rows are, and the allocation.

        Returns:
            None if a row is not inside the allocation, or none is known.
        """
        size, step = dtype.itemsize, rows.step
        if step % size:
            return None
        first, last = int(rows.starts.min()), int(rows.starts.max())
        reach = (length - 1) * step
        known = None if root is None else self.arguments.get(root)
        allocation = known or self.at(first)
        if allocation is None:
            return None
        low, high = first + min(reach, 0), last + max(reach, 0) + size
        if low < allocation.start or high > allocation.end:
            return None
        offsets = rows.starts[..., 0] - allocation.start
        if size > 1 and (offsets % size).any():
            return None
        base = max(0, -reach) // size
        count = len(allocation.data) // size - abs(reach) // size
        # As bits: numpy copies types that it does not know itself one element at a time.
        windows: Array = np.ndarray(
            (count, length), _BITS[size], allocation.data, base * size, (size, step)
        )
        return windows, offsets // size - base, allocation

    def at(self, address: int) -> Allocation | None:
        """Returns the allocation that an address is in; None if it is in none."""
        place = int(np.searchsorted(self._starts, address, "right")) - 1
        if place < 0 or address >= self._sorted[place].end:
            return None
        return self._sorted[place]

    def _allocations(
        self, full: Array, active: Array | None, dtype: np.dtype[Any], root: int | None
    ) -> list[tuple[Allocation, Array]]:
        places: Any = ... if active is None else active
        seen = full[places]
        if not seen.size:
            return []
        first, last = int(seen.min()), int(seen.max())
        known = None if root is None else self.arguments.get(root)
        allocation = known or self.at(first)
        if (
            allocation is not None
            and allocation.start <= first
            and last + dtype.itemsize <= allocation.end
        ):
            self._aligned(allocation, full, active, dtype)
            return [(allocation, places)]
        if known is not None:
            bad = (full < known.start) | (full + dtype.itemsize > known.end)
            raise OutsideError(known, bad if active is None else bad & active, full)
        return self._each(full, active, dtype)

    def _each(
        self, full: Array, active: Array | None, dtype: np.dtype[Any]
    ) -> list[tuple[Allocation, Array]]:
        """Returns the allocations of addresses that are in several, or in unknown ones."""
        counts = np.ones(full.shape, np.bool_) if active is None else active
        which = np.searchsorted(self._starts, full, "right") - 1
        ends = np.array([0, *(each.end for each in self._sorted)], np.int64)
        bad = (full + dtype.itemsize > ends[which + 1]) & counts
        if bad.any():
            raise OutsideError(None, bad, full)
        found = []
        for number in once(which[counts]):
            inside = counts & (which == number)
            self._aligned(self._sorted[number], full, inside, dtype)
            found.append((self._sorted[number], inside))
        return found

    @staticmethod
    def _aligned(
        allocation: Allocation, full: Array, active: Array | None, dtype: np.dtype[Any]
    ) -> None:
        if dtype.itemsize > 1:
            off = (full - allocation.start) % dtype.itemsize != 0
            if active is not None:
                off &= active
            if off.any():
                raise OutsideError(allocation, off, full, misaligned=True)


def _incomplete(allocation: Allocation) -> bool:
    return allocation.unwritten is not None
