"""What the kernels of a CUDA graph find in the L2: what the kernels before them have touched."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from kernbench.hw.device import Device
from kernbench.hw.explained import Explained
from kernbench.hw.warmed import Warmed
from kernbench.kernels.operands import bytes_of
from kernbench.memory import View
from kernbench.process.act import Block
from kernbench.sim_engine.engine import Hold


class Touched(NamedTuple):
    """What a kernel reads and writes.

    Attributes:
        price: What it takes, by the state of the L2.
        reads: Bytes of each piece of memory that it reads.
        writes: Bytes of each that it writes.
    """

    price: Warmed
    reads: Mapping[Hashable, int]
    writes: Mapping[Hashable, int]


class Cache:
    """The pieces of memory that an L2 has, whole or not at all; the first one is to leave first.

    A piece that is larger than it, or of which a part had to leave, is not there: who reads it anew
    begins at its beginning, and each part drives out the next one.

    Args:
        capacity: Bytes that it keeps. At first all of it is to be written back, as after a program.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity: Final = capacity
        self._pieces: Final[dict[Hashable, tuple[int, bool]]] = {_BEFORE: (capacity, True)}
        self._total = capacity

    def touch(self, piece: Hashable, nbytes: int, *, writes: bool) -> tuple[int, int]:
        """Lets a kernel read or write a piece of memory.

        Args:
            piece: What it is called.
            nbytes: How much of it.
            writes: Whether it is written, and not read.

        Returns:
            How many bytes of it were there, and how many left that have to be written back.
        """
        had, dirty = self._pieces.pop(piece, (0, False))
        self._total -= had
        found = min(had, nbytes)
        size = max(had, nbytes)
        self._pieces[piece] = size, writes or dirty
        self._total += size
        back = 0
        while self._total > self._capacity:
            oldest = next(iter(self._pieces))
            left, unsaved = self._pieces[oldest]
            if oldest is _BEFORE:  # of which any part may leave
                part = min(left, self._total - self._capacity)
                back += part
                self._total -= part
                if part < left:
                    self._pieces[oldest] = left - part, True
                    break
            else:
                back += left if unsaved else 0
                self._total -= left
            del self._pieces[oldest]
        return found, back


_BEFORE: Final = object()
"""What was there before the graph began."""


class HasWindow(Protocol):
    """A block, or what a graph keeps of one."""

    @property
    def window(self) -> View:
        """The elements."""
        ...


class Warmth:
    """Finds out what the kernels of a graph take, with what they find in the L2.

    While it is there, the device's library tells what each kernel takes in three states of the L2.

    Args:
        device: Whose L2 it is, and whose library.

    Attributes:
        library: That library; None: what the L2 has makes no difference on this machine.
    """

    def __init__(self, device: Device) -> None:
        self._device: Final = device
        self._cold: Final = device.library
        self._touched: Final[dict[int, Touched]] = {}
        self.library: Final = device.warmed
        if self.library is not None:
            device.library = self.library

    def issued(
        self, number: int, action: object, reads: Sequence[Block], writes: Sequence[Block]
    ) -> None:
        """Notes a command whose blocks are known.

        Args:
            number: Its number in the graph.
            action: What it does.
            reads: Blocks that it reads.
            writes: Blocks that it writes.
        """
        if isinstance(action, Hold) and isinstance(action.price, Warmed):
            self.touched(number, action.price, _pieces(reads), _pieces(writes))
            action.last(action.price.cold)

    def touched(
        self,
        number: int,
        price: int,
        reads: Iterable[tuple[Hashable, int]],
        writes: Iterable[tuple[Hashable, int]],
    ) -> None:
        """Notes what a kernel reads and writes.

        Args:
            number: Number of its command in the graph.
            price: What it takes, by `library`.
            reads: Pieces of memory that it reads, with how many bytes.
            writes: Those that it writes.
        """
        if isinstance(price, Warmed):
            self._touched[number] = Touched(price, dict(reads), dict(writes))

    def leave(self) -> None:
        """Gives the device its own library back."""
        self._device.library = self._cold

    def end(self, commands: Sequence[tuple[object, Sequence[HasWindow]]]) -> None:
        """Lets the kernels of a graph take as long as with what they find.

        Nothing is known of what the L2 has when a replay begins, so all of that counts as not
        there.

        Args:
            commands: In the order of the calls, what they do and their blocks.
        """
        warm = self._device.sip.warm
        if warm is None:
            return
        cache = Cache(warm.kept)
        for number, (action, blocks) in enumerate(commands):
            touched = self._touched.get(number)
            if touched is None or not isinstance(action, Hold):
                for piece, nbytes in _pieces(blocks):
                    cache.touch(piece, nbytes, writes=True)
                continue
            total = found = back = 0
            for pieces, written in ((touched.reads, False), (touched.writes, True)):
                for piece, nbytes in pieces.items():
                    here, gone = cache.touch(piece, nbytes, writes=written)
                    total, found, back = total + nbytes, found + here, back + gone
            if total:
                price = touched.price
                action.last(_as(price.cold, price.lasting(total, found, back, warm.kept)))


def _pieces(blocks: Sequence[HasWindow]) -> Iterator[tuple[Hashable, int]]:
    """Yields where blocks begin, and their bytes: memory may be used again, and is the same."""
    for block in blocks:
        yield block.window.buffer.allocation.offset, bytes_of(block.window)


def _as(price: int, ps: int) -> int:
    """Returns another duration of the same kind: explained, or leaving PEs to others."""
    if isinstance(price, Explained):
        found = price.lasting(ps)
        return Explained(_as(price.plain, ps), found.parts)
    return type(price)(ps)
