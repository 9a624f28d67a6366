"""The bytes behind tensors, and which of these bytes were ever written."""

from collections.abc import Callable, Sequence
from math import prod
from sys import is_finalizing
from typing import Any, Final, Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided

from kernbench.caches import cached
from kernbench.errors import CallSite, KernbenchError, OperandError, site_fact
from kernbench.memory.address import Address
from kernbench.memory.allocator import Allocation, Allocator, OutOfMemoryError
from kernbench.memory.computer import STEP, Room, physical_bytes
from kernbench.memory.dtypes import DType, cast, poison, real_type
from kernbench.units import format_bytes

Array = np.ndarray[Any, Any]
"""An array of numpy, of any shape and type."""


class Writer(Protocol):
    """A command that writes a block, as reports name it."""

    @property
    def name(self) -> str:
        """Name of the command."""
        ...

    @property
    def site(self) -> CallSite | None:
        """Where the user asked for the command."""
        ...


class UninitialisedReadError(KernbenchError):
    """A read of memory that was never written (M5, M6).

    Args:
        summary: See `KernbenchError`, as for `facts`, `hint` and `code`.
        facts: Further lines.
        code: Stable code.
        writer: The latest command that was issued to write to the block; None without any.

    Attributes:
        writer: See above.
    """

    def __init__(
        self,
        summary: str,
        facts: Sequence[str] = (),
        *,
        hint: str = "",
        code: str = "",
        writer: Writer | None = None,
    ) -> None:
        super().__init__(summary, facts, hint=hint, code=code)
        self.writer = writer

    def tell_writer(self) -> None:
        """Adds the line that tells which command has written other elements, or that none has."""
        writer = self.writer
        self.add_fact(
            "nothing was issued that writes to it"
            if writer is None
            else site_fact(writer.site, f"last written by {writer.name}, issued at")
        )


def never_written(
    gaps: Array, label: object, site: CallSite | None, writer: Writer | None
) -> UninitialisedReadError:
    """Returns the error about a read of elements that were never written (M5).

    Args:
        gaps: True for each such element of the tensor that is read.
        label: What the memory was made for.
        site: Where.
        writer: The latest command that was issued to write to the memory; None without any.
    """
    flat = np.flatnonzero(gaps)
    return UninitialisedReadError(
        f"{len(flat)} of {gaps.size} elements of {label} were never written",
        [
            f"first unwritten element {flat[0]}, last {flat[-1]} (of the tensor as read, "
            f"shape {gaps.shape})",
            site_fact(site, "allocated at"),
        ],
        hint="write them first, or make the tensor with zeros() instead of empty()",
        code="M5",
        writer=writer,
    )


class NoBytesError(KernbenchError, AssertionError):
    """A read of memory whose writer did not run, since a command before it had failed."""


class Buffer:
    """The bytes of a block of memory, kept as long as a command still has to read or write them.

    The bytes exist from the first write on, so that a thousand commands in a queue do not hold a
    thousand results.

    Attributes:
        allocation: The block of simulated memory that the bytes fill.
        data: The bytes; None until written, and always None while data is off.
        unwritten: True for each byte that was never written; None when all were.
        lent: Whether other blocks share these bytes: a writer must call `own` first, which copies
            them.
        fixed: Whether the bytes belong to another library, which must see what is written: they
            are never replaced then.
        writer: The latest command that was issued to write to the block; None without any.
    """

    __slots__ = ("allocation", "data", "fixed", "lent", "unwritten", "writer")

    def __init__(self, allocation: Allocation) -> None:
        self.allocation = allocation
        self.data: np.ndarray[Any, np.dtype[np.uint8]] | None = None
        self.unwritten: np.ndarray[Any, np.dtype[np.bool_]] | None = None
        self.lent = False
        self.fixed = False
        self.writer: Writer | None = None

    @classmethod
    def over(cls, allocation: Allocation, array: Array) -> "Buffer":
        """Returns a buffer over the bytes of somebody else, which are never replaced.

        Args:
            allocation: Block of simulated memory that stands for them.
            array: Contiguous and writeable, as large as the block; all of it counts as written.

        Raises:
            OperandError: If the array is neither.
        """
        if not (array.flags.c_contiguous and array.flags.writeable):
            raise OperandError(
                "the bytes of an array can take part only if it is contiguous and writeable",
                [f"shape {list(array.shape)}, strides {array.strides} bytes"],
                hint="np.ascontiguousarray(array) makes a copy that can",
            )
        buffer = cls(allocation)
        buffer.adopt(array)
        buffer.fixed = True
        return buffer

    def _bytes(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        assert self.data is not None
        return self.data

    def _replace(self, data: np.ndarray[Any, np.dtype[np.uint8]], *, lent: bool) -> None:
        """Takes flat bytes: as the block's own, or, if those are somebody else's, into them."""
        assert data.nbytes == self.allocation.nbytes
        if self.fixed:
            self._bytes()[...] = data
        else:
            if not lent:
                _take_room(self.allocation, data.nbytes)
            self.data = data
            self.lent = lent
        self.unwritten = None

    def adopt(self, array: Array) -> None:
        """Takes a contiguous array of the block's size as the bytes, without a copy."""
        self._replace(array.reshape(-1).view(np.uint8), lent=False)

    def borrow(self, data: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        """Takes flat bytes that other blocks share, without a copy; `own` must precede a write."""
        if self.fixed:
            self._replace(data, lent=True)
            return
        assert data.nbytes == self.allocation.nbytes
        self.data, self.lent, self.unwritten = data, True, None

    def own(self) -> None:
        """Replaces shared bytes by a copy of the block's own, before a write."""
        if self.lent:
            assert self.data is not None
            _take_room(self.allocation, self.data.nbytes)
            self.data = self.data.copy()
            self.lent = False

    def copy(self) -> "Buffer":
        """Returns a buffer of the same block with copies of the bytes."""
        buffer = Buffer(self.allocation)
        buffer.data = None if self.data is None else self.data.copy()
        buffer.unwritten = None if self.unwritten is None else self.unwritten.copy()
        return buffer

    def poison(self, dtype: DType) -> None:
        """Fills the block with the poison value of a type, and marks every byte as unwritten."""
        _take_room(self.allocation, self.allocation.nbytes)  # for the marks
        count = self.allocation.nbytes // dtype.itemsize
        self.adopt(np.full(count, poison(dtype), dtype.numpy))
        self.unwritten = np.ones(self.allocation.nbytes, np.bool_)


ROOM: Final = Room()
"""What the computer has left for tensors; one for all contexts."""


def _take_room(block: Allocation, nbytes: int) -> None:
    """Refuses bytes for which the computer has no room, while there is still room for a report.

    Raises:
        OutOfMemoryError: If there is none (M7).
    """
    ROOM.unlooked += nbytes
    left = ROOM.lacks(nbytes) if ROOM.unlooked >= STEP else None
    if left is not None:
        raise no_room(block.label, block.site, nbytes, left)


def no_room(label: object, site: CallSite | None, nbytes: int, left: int) -> OutOfMemoryError:
    """Returns the error about a tensor that the computer that simulates cannot hold (M7).

    Args:
        label: What the bytes are for.
        site: Where the user asked for them.
        nbytes: How many they are.
        left: How many the computer has left.
    """
    has = physical_bytes()
    of = "" if has is None else f" of {format_bytes(has)}"
    return OutOfMemoryError(
        f"{label} does not fit into the memory of this computer",
        [
            site_fact(site, "allocated at"),
            f"it takes {format_bytes(nbytes)}; {format_bytes(left)}{of} are left",
        ],
        hint="--data off (data=False) simulates time and memory of the machine without "
        "values; or use smaller sizes",
        code="M7",
    )


class Storage:
    """Owns a block of memory; gives it back, in host order, when no tensor refers to it any more.

    Attributes:
        buffer: The bytes; they may outlive the storage while a command still needs them.
    """

    __slots__ = ("buffer",)

    def __init__(
        self, allocator: Allocator, nbytes: int, label: object, site: CallSite | None
    ) -> None:
        self.buffer = Buffer(allocator.allocate(nbytes, label, site))

    def __del__(self, at_the_end: Callable[[], bool] = is_finalizing) -> None:
        try:
            block = self.buffer.allocation
        except AttributeError:  # the allocation failed
            return
        # When the interpreter ends, the names of this module may be gone already.
        if not block.freed and not at_the_end():
            try:
                block.memory.give_back(block)
            except BaseException:  # an interrupt, of which nobody hears: Python prints and drops it
                if not block.freed:
                    block.memory.give_back(block)
                raise

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.buffer.allocation.nbytes

    @property
    def address(self) -> Address:
        """Address of the first byte."""
        return self.buffer.allocation.address


@cached("memory.strides")
def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the strides, in elements, of a row-major tensor."""
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


class View:
    """A strided window on a buffer. Bounds are those of the view, not of the memory.

    Attributes:
        buffer: The bytes that the view shows.
        dtype: Element type.
        shape: Extent of each dimension.
        strides: Step of each dimension, in elements.
        offset: Place of the first element in the buffer, in elements of `dtype`.
    """

    __slots__ = ("_array", "_data", "buffer", "dtype", "offset", "shape", "strides")

    def __init__(
        self,
        buffer: Buffer,
        dtype: DType,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        offset: int,
    ) -> None:
        self.buffer = buffer
        self.dtype = dtype
        self.shape = shape
        self.strides = strides
        self.offset = offset
        # The latest result of `array`, and the bytes on which it lies.
        self._array: Array | None = None
        self._data: np.ndarray[Any, np.dtype[np.uint8]] | None = None

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Total bytes of the elements; strided elements may spread over more memory than that."""
        return prod(self.shape) * self.dtype.itemsize

    def extent(self) -> tuple[int, int]:
        """Returns the range of bytes in the buffer that holds all elements: first, last plus 1."""
        if 0 in self.shape:
            return 0, 0
        span = sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))
        itemsize = self.dtype.itemsize
        return self.offset * itemsize, (self.offset + span + 1) * itemsize

    def overlaps(self, other: "View") -> bool:
        """Returns whether two views of one buffer have a byte in common."""
        low, high = self.extent()
        other_low, other_high = other.extent()
        if low >= other_high or other_low >= high:
            return False
        # Only addresses are compared; the bytes that this array claims to have are never touched.
        probe = as_strided(np.empty(1, np.uint8), (self.buffer.allocation.nbytes,), (1,))
        return bool(np.shares_memory(self._flags(probe), other._flags(probe)))

    def parts(self) -> "View":
        """Returns a complex view without gaps as real numbers: both parts of each element in turn.

        Any other view is returned unchanged.
        """
        if not self.dtype.is_complex:
            return self
        return View(self.buffer, real_type(self.dtype), (2 * self.numel,), (1,), 2 * self.offset)

    def snapshot(self) -> "View":
        """Returns a view of a copy of the elements, if there are bytes; it has no gaps."""
        buffer = Buffer(self.buffer.allocation)
        if self.buffer.data is not None:
            buffer.data = np.ascontiguousarray(self.array()).reshape(-1).view(np.uint8).copy()
        return View(buffer, self.dtype, self.shape, contiguous_strides(self.shape), 0)

    def let_go(self) -> None:
        """Forgets bytes of another library, which that library may then free."""
        self.buffer.data = self._array = self._data = None

    def array(self) -> Array:
        """Returns the elements in place, written or not.

        Raises:
            NoBytesError: If the command that would have written the bytes did not run after an
                error.
        """
        data = self.buffer.data
        if self._array is not None and data is self._data:
            return self._array
        if data is None:
            block = self.buffer.allocation
            raise NoBytesError(
                f"{block.label} has no bytes",
                [site_fact(block.site, "allocated at")],
                hint="look at the first error; what would have written it was not run after that",
            )
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype.numpy)
        itemsize = self.dtype.itemsize
        self._data = data
        self._array = np.ndarray(
            self.shape,
            self.dtype.numpy,
            data,
            self.offset * itemsize,
            tuple([stride * itemsize for stride in self.strides]),
        )
        return self._array

    def read(self) -> Array:
        """Returns the elements in place, for reading.

        Raises:
            UninitialisedReadError: If some elements were never written.
        """
        buffer = self.buffer
        if buffer.unwritten is not None:
            self._check_written()
        if self._array is not None and buffer.data is self._data:  # as in `array`, without a call
            return self._array
        return self.array()

    def write(self) -> Array:
        """Returns the elements in place, for a caller that writes all of them."""
        self.buffer.own()
        if self.buffer.unwritten is not None:
            self._mark_written()
        return self.array()

    def note_written(self) -> None:
        """Notes that something else has written all elements."""
        if self.buffer.unwritten is not None:
            self._mark_written()

    def store(self, values: Any) -> None:
        """Writes all elements; the values may have any type and must broadcast to the shape."""
        self.write()[...] = cast(values, self.dtype)

    def adopt(self, values: Any) -> None:
        """Makes values the bytes of the buffer, all of which this view shows.

        Args:
            values: Values of the view's shape or one that broadcasts to it, which no other code
                uses; copied only if type or layout differ.
        """
        buffer = self.buffer
        if buffer.fixed:
            self.store(values)
            return
        shape, dtype = self.shape, self.dtype.numpy
        if isinstance(values, np.ndarray) and values.dtype is dtype:
            array = values  # nearly always
        else:
            array = cast(values, self.dtype)
        flags = array.flags
        if not (
            flags.c_contiguous
            and flags.owndata
            and array.shape == shape
            and self.strides == contiguous_strides(shape)
        ):
            itemsize = self.dtype.itemsize
            data = np.empty(self.nbytes, np.uint8)
            if data.size:
                steps = tuple([stride * itemsize for stride in self.strides])
                laid_out: Array = np.ndarray(shape, dtype, data, 0, steps)
                laid_out[...] = array
                array = laid_out
            else:
                array = np.empty(shape, dtype)
        else:
            data = array.reshape(-1).view(np.uint8)
        # Nearly every operation comes here, so without a call.
        block = buffer.allocation
        if ROOM.unlooked + block.nbytes < STEP:
            ROOM.unlooked += block.nbytes
        else:
            _take_room(block, block.nbytes)
        buffer.data = self._data = data
        buffer.unwritten = None
        buffer.lent = False
        self._array = array

    def gaps(self) -> Array | None:
        """Returns True for each element that was never written; None if all were written.

        A buffer of which a view shows everything, and everything is written, is marked as written.
        """
        unwritten = self.buffer.unwritten
        if unwritten is None or 0 in self.shape:
            return None
        flags = self._flags(unwritten)
        if flags.flags.c_contiguous and not flags.any():  # fast, and mostly all
            if flags.size == unwritten.size:
                self.buffer.unwritten = None  # written part by part: the next read need not look
            return None
        bad = np.asarray(flags.any(axis=-1))
        return bad if bad.any() else None

    def leave(self, gaps: Array) -> None:
        """Marks elements as never written, those where `gaps` is True."""
        buffer = self.buffer
        if buffer.unwritten is None:
            buffer.unwritten = np.zeros(buffer.allocation.nbytes, np.bool_)
        self._flags(buffer.unwritten)[gaps] = True

    def pick(self, index: Any) -> Array:
        """Returns some elements for reading: `read()[index]`, though others may be unwritten.

        Raises:
            UninitialisedReadError: If some of the picked elements were never written.
        """
        unwritten = self.buffer.unwritten
        if unwritten is not None and self._flags(unwritten)[index].any():
            self._check_written()
        picked: Array = self.array()[index]
        return picked

    def put(self, index: Any, values: Any) -> None:
        """Writes some elements: `array()[index] = values`."""
        self.buffer.own()
        unwritten = self.buffer.unwritten
        self.array()[index] = values
        if unwritten is not None:
            self._flags(unwritten)[index] = False

    def _flags(self, unwritten: Array) -> Array:
        itemsize = self.dtype.itemsize
        strides = (*(stride * itemsize for stride in self.strides), 1)
        return as_strided(unwritten[self.offset * itemsize :], (*self.shape, itemsize), strides)

    def _mark_written(self) -> None:
        unwritten = self.buffer.unwritten
        assert unwritten is not None
        if 0 in self.shape:
            return
        flags = self._flags(unwritten)
        if flags.size == unwritten.size and flags.flags.c_contiguous:
            self.buffer.unwritten = None
        else:
            flags[...] = False

    def _check_written(self) -> None:
        bad = self.gaps()
        if bad is not None:
            block = self.buffer.allocation
            raise never_written(bad, block.label, block.site, self.buffer.writer)
