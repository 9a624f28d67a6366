"""Which elements of a tensor a load or a store touches, and how they are read and written."""

from collections.abc import Callable, Hashable
from typing import Any, Final

import numpy as np

from kernbench.caches import cached
from kernbench.errors import call_site, site_fact
from kernbench.memory import Array, UninitialisedReadError, View
from kernbench.tl.symbols import Affine, Box, Shape, Symbol, broadcast
from kernbench.tl.tile import Pointer, Tile
from kernbench.tl.types import Scalar, convert
from kernbench.ttir.reports import OutOfBoundsError


def flat(view: View) -> Array:
    """Returns the elements of a view's buffer, flat, from the view's first element on."""
    data = view.buffer.data
    assert data is not None
    return data.view(view.dtype.numpy)[view.offset :]


def flags(view: View) -> Array | None:
    """Returns which bytes of a view's buffer were never written, from its first element on.

    The shape is `[elements, itemsize]`; None if every byte was written.
    """
    unwritten = view.buffer.unwritten
    if unwritten is None:
        return None
    itemsize = view.dtype.itemsize
    return unwritten.reshape(-1, itemsize)[view.offset :]


def extent(view: View) -> int:
    """Returns the number of elements from the first to the last of a view, both included."""
    return _extent(view.shape, view.strides)


@cached("tl.extents")
def _extent(shape: Shape, strides: Shape) -> int:
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


class Window:
    """A block of elements at regular distances: one strided window on the tensor.

    Attributes:
        shape: Shape of the tile; lanes outside of the window are masked.
        extents: Extents of the window.
        count: Number of touched elements.
    """

    __slots__ = ("_inside", "_offset", "_strides", "count", "extents", "shape")

    def __init__(
        self, offset: int, extents: Shape, strides: Shape, shape: Shape, inside: Any = None
    ) -> None:
        self.shape: Final = shape
        self.extents: Final = extents
        self._offset: Final = offset
        self._strides: Final = strides
        self._inside: Final = inside
        count = 1
        for each in extents:
            count *= each
        self.count: Final = count

    @property
    def plain(self) -> bool:
        """Whether BLAS can use the window in place: a matrix with contiguous rows or columns.

        With other strides BLAS would add in another order.
        """
        if self._inside is not None or len(self.extents) != 2:
            return False
        (m, n), (row, column) = self.extents, self._strides
        return (column == 1 and row >= n) or (row == 1 and column >= m)

    @property
    def key(self) -> Hashable:
        """Key that tells the window from other windows on the same tensor that mask no lane."""
        return self._offset, self.extents, self._strides

    @property
    def transposed_key(self) -> Hashable:
        """The key of the same elements with axes in the opposite order."""
        return self._offset, self.extents[::-1], self._strides[::-1]

    @property
    def distinct(self) -> bool:
        """Whether no two lanes are one element, so that the order of writing does not matter."""
        reach = 0
        lanes = zip(self._strides, self.extents, strict=True)
        for stride, each in sorted((abs(stride), each) for stride, each in lanes):
            if each > 1:
                if stride <= reach:
                    return False
                reach += (each - 1) * stride
        return True

    def place(self, elements: Array) -> Array:
        """Returns the elements of the window in place, as an array of shape `extents`.

        Args:
            elements: All elements of the tensor, from its first on.
        """
        if not self.count:
            return np.empty(self.extents, elements.dtype)
        size = elements.itemsize
        steps = tuple([stride * size for stride in self._strides])
        return np.ndarray(self.extents, elements.dtype, elements, self._offset * size, steps)

    def fetch(self, elements: Array, other: Scalar) -> Array:
        """Returns a copy of the elements.

        Args:
            elements: All elements of the tensor, from its first on.
            other: Value of masked lanes.
        """
        if self._inside is None:
            return np.array(self.place(elements))
        values: Array = np.full(self.shape, other, elements.dtype)
        values[self._inside] = self.place(elements)
        return values

    def put(self, elements: Array, values: Any) -> None:
        """Writes values to the lanes that are not masked.

        Args:
            elements: All elements of the tensor, from its first on.
            values: Array that broadcasts to `shape`.
        """
        self.place(elements)[...] = self.chosen(values)

    def chosen(self, values: Array) -> Array:
        """Returns the values of the lanes that are not masked.

        Args:
            values: Array that broadcasts to `shape`.
        """
        if values.shape != self.shape:
            values = np.broadcast_to(values, self.shape)
        return values if self._inside is None else values[self._inside]

    def active(self, elements: Array) -> Array:
        """Returns the elements of lanes that are not masked; for reading only."""
        return self.place(elements)

    def runs(self) -> tuple[Array, int]:
        """Returns the first elements of runs of neighbours, and how many elements a run has."""
        starts, run = np.full(min(self.count, 1), self._offset), 1
        for stride, extent in sorted(zip(self._strides, self.extents, strict=True)):
            if stride == run:
                run *= extent
            elif stride:
                starts = (starts[:, None] + stride * np.arange(extent)).reshape(-1)
        return starts, run

    def fill(self, elements: Array, value: Scalar) -> None:
        """Writes one value to every lane that is not masked."""
        self.place(elements)[...] = value

    def unwritten(self, marks: Array) -> int:
        """Returns how many touched elements nobody has written.

        Args:
            marks: What `flags` returns.
        """
        return int(self.place_marks(marks)[..., 0].sum())

    def mark(self, marks: Array) -> None:
        """Notes that the touched elements are written.

        Args:
            marks: What `flags` returns; changed.
        """
        self.place_marks(marks)[...] = False

    def place_marks(self, marks: Array) -> Array:
        """Returns the marks of the touched bytes in place, of each element along the last axis."""
        if not self.count:
            return np.zeros((*self.extents, 1), np.bool_)
        size = marks.shape[1]
        steps = tuple([stride * size for stride in self._strides])
        whole = marks.reshape(-1)
        return np.ndarray((*self.extents, size), np.bool_, whole, self._offset * size, (*steps, 1))


class Scattered:
    """Elements anywhere in the tensor.

    Attributes:
        shape: Shape of the tile.
        count: Number of lanes that are not masked.
        index: The elements, in the order of the lanes that are not masked.
    """

    __slots__ = ("_lanes", "count", "index", "shape")

    plain: Final = False

    def __init__(self, index: Array, lanes: Array | None) -> None:
        self.shape: Final = index.shape
        self.index: Final = index if lanes is None else index[lanes]
        self._lanes: Final = lanes
        self.count: Final = self.index.size

    @property
    def nbytes(self) -> int:
        """Size of the index and the mask, in bytes."""
        return self.index.nbytes + (0 if self._lanes is None else self._lanes.nbytes)

    def fetch(self, elements: Array, other: Scalar) -> Array:
        """See `Window`."""
        if self._lanes is None:
            return np.array(elements[self.index])
        values: Array = np.full(self.shape, other, elements.dtype)
        values[self._lanes] = elements[self.index]
        return values

    def put(self, elements: Array, values: Any) -> None:
        """See `Window`."""
        elements[self.index] = self.chosen(values)

    def chosen(self, values: Array) -> Array:
        """See `Window`."""
        values = np.broadcast_to(values, self.shape)
        return values if self._lanes is None else values[self._lanes]

    def active(self, elements: Array) -> Array:
        """See `Window`."""
        return elements[self.index]

    def runs(self) -> tuple[Array, int]:
        """See `Window`."""
        return self.index.reshape(-1), 1

    def fill(self, elements: Array, value: Scalar) -> None:
        """See `Window`."""
        elements[self.index] = value

    def unwritten(self, marks: Array) -> int:
        """See `Window`."""
        return int(marks[:, 0][self.index].sum())

    def mark(self, marks: Array) -> None:
        """See `Window`."""
        marks[self.index] = False


class Unknown:
    """Unknown elements: offsets or a mask were loaded while data is off.

    Attributes:
        shape: Shape of the tile.
        count: Number of lanes that may be touched.
    """

    __slots__ = ("count", "shape")

    def __init__(self, shape: Shape, mask: Tile | None) -> None:
        self.shape: Final = shape
        lanes = None if mask is None else mask.values
        if lanes is None:
            self.count = int(np.prod(shape, dtype=np.int64))
        else:
            self.count = int(np.broadcast_to(lanes, shape).sum())


Region = Window | Scattered | Unknown


def locate(
    pointer: Pointer, mask: Tile | None, verb: str, who: Callable[[], str], *, repeat: bool
) -> Region:
    """Returns the elements that a load or store touches.

    Args:
        pointer: The block of pointers.
        mask: Lanes to touch, which `operands.check_mask` accepts; None for all.
        verb: `load` or `store`.
        who: Names the program, for errors.
        repeat: Whether several lanes may touch one element.

    Raises:
        OutOfBoundsError: If an active lane lies outside of the tensor.
    """
    view, offsets = pointer.view, pointer.offsets
    if isinstance(offsets, range):
        if mask is None and offsets.step == 1:
            if offsets and (offsets.start < 0 or offsets.stop > extent(view)):
                raise _out_of_bounds(view, np.asarray(offsets), verb, who)
            run = (len(offsets),)
            return Window(offsets.start, run, (1,), run)
        block: Symbol | None = None
    else:
        block = Affine(offsets, (), ()) if isinstance(offsets, int) else offsets.symbol
    box = None if mask is None else mask.symbol
    if isinstance(block, Affine) and (mask is None or isinstance(box, Box)):
        window = _window(view, block, box if isinstance(box, Box) else None)
        if window is not None and (repeat or window.distinct):
            return window
    if isinstance(offsets, Tile) and offsets.values is None:
        shape = offsets.shape if mask is None else broadcast(offsets.shape, mask.shape)
        return Unknown(shape, mask)
    index: Array = np.asarray(offsets.values if isinstance(offsets, Tile) else offsets)
    lanes = None
    if mask is not None:
        if mask.values is None:
            return Unknown(broadcast(index.shape, mask.shape), mask)
        index, lanes = np.broadcast_arrays(index, mask.values)
    active = index if lanes is None else index[lanes]
    if active.size and (active.min() < 0 or active.max() >= extent(view)):
        wrapped = offsets.wrapped if isinstance(offsets, Tile) else ""
        raise _out_of_bounds(view, active, verb, who, wrapped)
    return Scattered(index, lanes)


def _window(view: View, block: Affine, box: Box | None) -> Window | None:
    """Returns a block of pointers as a window on a tensor; None if it lies partly outside."""
    offset, shape, strides = block.base, block.shape, block.strides
    extents, inside = shape, None
    if box is not None:
        shape = broadcast(block.shape, box.shape)
        strides = block.broadcast(shape).strides
        box = box.broadcast(shape)
        extents = tuple([high - low for low, high in box.ranges])
        for (low, _), stride in zip(box.ranges, strides, strict=True):
            offset += low * stride
        if extents != shape:
            inside = box.slices()
    window = Window(offset, extents, strides, shape, inside)
    if window.count:
        low, high = Affine(offset, extents, strides).bounds()
        if low < 0 or high >= extent(view):
            return None
    return window


def _out_of_bounds(
    view: View, offsets: Array, verb: str, who: Callable[[], str], wrapped: str = ""
) -> OutOfBoundsError:
    bound = extent(view)
    lanes = offsets.reshape(-1)
    bad = lanes[(lanes < 0) | (lanes >= bound)]
    block = view.buffer.allocation
    address = block.address + int(view.offset + bad[0]) * view.dtype.itemsize
    of = "a view of " if 0 < bound * view.dtype.itemsize < block.nbytes else ""
    call = "tl.load(ptr + offs, mask=offs < n)"
    if verb == "store":
        call = "tl.store(ptr + offs, value, mask=offs < n)"
    hint = f"mask the lanes beyond the end: {call}"
    if wrapped:
        hint = "convert an operand before the offsets wrap around: x.to(tl.int64)"
    return OutOfBoundsError(
        f"tl.{verb} out of bounds of {of}{block.label}",
        [
            site_fact(call_site()),
            who(),
            *([f"offsets: {wrapped}"] if wrapped else []),
            f"shape {view.shape}, strides {view.strides}: valid offsets 0..{bound - 1}",
            f"first bad offset {int(bad[0])} ({address}); {bad.size} of {lanes.size} lanes",
            site_fact(block.site, "allocated at"),
        ],
        hint=hint,
        code="M1" if verb == "load" else "M2",
    )


def read(view: View, region: Window | Scattered, other: Scalar, who: Callable[[], str]) -> Array:
    """Returns a copy of the elements that a load touches.

    Args:
        region: Elements to load.
        other: Value of masked lanes.
        who: Names the program, for errors.

    Raises:
        UninitialisedReadError: If nobody has written some of the elements.
    """
    marks = flags(view)
    bad = 0 if marks is None else region.unwritten(marks)
    if bad:
        block = view.buffer.allocation
        raise UninitialisedReadError(
            f"tl.load read {bad} of {region.count} elements of {block.label} "
            "that were never written",
            [site_fact(call_site()), who(), site_fact(block.site, "allocated at")],
            hint="write them first, mask them, or make the tensor with zeros()",
            code="M5",
            writer=view.buffer.writer,
        )
    return region.fetch(flat(view), other)


def write(view: View, region: Window | Scattered, values: Array) -> None:
    """Writes the elements that a store touches.

    Args:
        region: Elements to store to.
        values: Values in the shape of the tile; converted to the type of the tensor.
    """
    view.buffer.own()
    region.put(flat(view), convert(values, view.dtype))
    marks = flags(view)
    if marks is not None:
        region.mark(marks)
