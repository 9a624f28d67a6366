"""Who owns which bytes of a memory: first fit, with coalescing, and a name for every block."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from sys import _getframe as getframe
from threading import RLock
from types import FrameType
from typing import Final

from kernbench.errors import CallSite, KernbenchError, call_site, site_fact
from kernbench.memory.address import HOST_SIP, Address, Space
from kernbench.units import format_bytes, parse_bytes

ALIGNMENT: Final = {Space.HOST: 64, Space.HBM: 512, Space.SRAM: 64, Space.TCM: 16}
"""Bytes to which blocks are rounded; 512 is what CUDA's caching allocator in PyTorch uses."""


_NO_LIMIT: Final = 1 << 62
"""Bytes of a memory without a capacity."""


class OutOfMemoryError(KernbenchError, MemoryError, RuntimeError):
    """A memory of the machine is full (M7, M8)."""


class FreeError(KernbenchError):
    """A block was freed twice, or was never allocated (M4)."""


@dataclass(slots=True, eq=False)
class Allocation:
    """A block of one memory. Its number is never used again.

    Attributes:
        memory: The memory that holds the block.
        number: Which allocation of its memory the block is, counted from 1.
        offset: Offset of the first byte in the memory.
        nbytes: Bytes that were asked for.
        reserved: Bytes that the block occupies.
        label: What the block holds; converted to text only for a report.
        site: Where the user asked for the block.
        aside: Whether the block counts as free, and keeps its place while nobody else needs it.
        kept: Whether it does so whoever needs it: nobody uses it, and nobody gets it.
        freed: Whether the block was given back.
        freed_at: Where the block was given back.
    """

    memory: "Allocator"
    number: int
    offset: int
    nbytes: int
    reserved: int
    label: object
    site: CallSite | None
    freed: bool = False
    freed_at: CallSite | None = None
    aside: bool = False
    kept: bool = False

    @property
    def address(self) -> Address:
        """Address of the first byte."""
        memory = self.memory
        return Address(memory.space, memory.sip, memory.unit, self.offset)


class Allocator:
    """Allocates blocks of one memory.

    Most blocks are given back by finalizers, and Python runs those in the middle of anything: of
    this class's own code, too, and in any thread. So while the holes change, a block that is
    given back only waits its turn.

    An interrupt may cut a change short, in a finalizer even without anybody hearing of it. Blocks
    say what is in use, and holes and sums follow from them: the next change finds them anew.

    Args:
        space: Kind of memory.
        sip: Index of the SIP; for host memory, the rank whose host it is.
        unit: Index of the cube or PE, as in `Address`.
        capacity: Size of the memory in bytes; None for no limit (a host).
        capacity_at: Returns the field of the topology file that says how many bytes of HBM.

    Attributes:
        home: SIP that holds the bytes; `HOST_SIP` for any host.
    """

    def __init__(
        self,
        space: Space,
        sip: int,
        unit: int,
        capacity: int | None,
        capacity_at: Callable[[], str] = lambda: "system.sip.cube.hbm.capacity",
    ) -> None:
        self.space = space
        self.sip = sip
        self.home = HOST_SIP if space is Space.HOST else sip
        self.unit = unit
        self.capacity = capacity
        self.allocated = 0
        self.peak = 0
        self._capacity_at = capacity_at
        self._alignment = ALIGNMENT[space]
        self._holes: list[tuple[int, int]] = [(0, capacity if capacity is not None else _NO_LIMIT)]
        self._live: dict[int, Allocation] = {}
        self._count = 0
        self._lock = RLock()  # against other threads
        self._changing = False  # against this one
        self._returned: list[Allocation] = []  # mostly empty: a deque takes 760 B even then

    @property
    def name(self) -> str:
        """Name of this memory in reports."""
        return str(Address(self.space, self.sip, self.unit, 0)).split("+")[0]

    @property
    def count(self) -> int:
        """Number of blocks that were ever allocated, which is also the number of the latest one."""
        return self._count

    def allocate(self, nbytes: int, label: object, site: CallSite | None) -> Allocation:
        """Returns a new block.

        Args:
            nbytes: Size in bytes; the block occupies the next multiple of `ALIGNMENT`.
            label: What the block holds; converted to text only for a report.
            site: Where the user asked for the block.

        Raises:
            OutOfMemoryError: If no hole is large enough.
        """
        with self._lock:
            block = self._take(nbytes, label, site)
            settled = self._returned and self._settle()
            if block is not None:
                return block
            if not (settled or self._free_aside()):
                raise self._out_of_memory(nbytes, label, site)
            return Allocator.allocate(self, nbytes, label, site)

    def _take(self, nbytes: int, label: object, site: CallSite | None) -> Allocation | None:
        """Returns a new block in the first hole that is large enough; None if there is none."""
        if self._changing:
            self._mend(getframe().f_back)
        self._changing = True
        try:
            reserved = -(-(nbytes or 1) // self._alignment) * self._alignment
            holes = self._holes
            for index, (offset, size) in enumerate(holes):
                if size > reserved:
                    holes[index] = offset + reserved, size - reserved
                    break
                if size == reserved:
                    del holes[index]
                    break
            else:
                self._changing = False
                return None
            number = self._count = self._count + 1
            allocated = self.allocated = self.allocated + reserved
            if allocated > self.peak:
                self.peak = allocated
            block = Allocation(self, number, offset, nbytes, reserved, label, site)
            self._live[number] = block
        except BaseException:
            self._live.pop(self._count, None)  # nobody gets it; `_mend` does the rest
            raise
        self._changing = False
        return block

    def free(self, block: Allocation, site: CallSite | None = None) -> None:
        """Gives a block back.

        Raises:
            FreeError: If the block was freed before, or belongs to another memory.
        """
        with self._lock:
            self._release(block, site)
            self._settle()

    def give_back(self, block: Allocation) -> None:
        """Gives a block back from a finalizer: at once, or after the change that it interrupts.

        Args:
            block: A block in use.
        """
        if self._lock.acquire(False):
            try:
                if not self._changing:
                    self._release(block, None)
                    if self._returned:
                        self._settle()
                    return
            finally:
                self._lock.release()
        # Who holds the lock frees it, now or in the next request: a finalizer must not wait.
        self._returned.append(block)

    def _settle(self) -> bool:
        """Frees the blocks that finalizers have given back; returns whether there were any."""
        some = bool(self._returned)
        while self._returned:
            self._release(self._returned.pop(0), None)
        return some

    def _release(self, block: Allocation, site: CallSite | None) -> None:
        if self._changing:
            self._mend(getframe().f_back)
        live, number = self._live, block.number
        if live.get(number) is not block:
            raise self._bad_free(block, site)
        self._changing = True
        block.freed_at = site
        block.freed = True
        del live[number]
        if not block.aside:
            self.allocated -= block.reserved
        self._merge(block.offset, block.reserved)
        self._changing = False  # not after an interrupt, which leaves it to `_mend`

    def _mend(self, frame: FrameType | None) -> None:
        """Finds holes and sums anew, after a change that was cut short.

        Args:
            frame: Innermost frame that may be in the middle of a change.

        Raises:
            KernbenchError: If it is: a finalizer asks for what only a program may.
        """
        while frame is not None:
            if frame.f_code in _CHANGES and frame.f_locals.get("self") is self:
                raise self._nested()
            frame = frame.f_back
        for number in [number for number, block in self._live.items() if block.freed]:
            del self._live[number]
        end = 0
        holes: list[tuple[int, int]] = []
        for block in sorted(self._live.values(), key=lambda block: block.offset):
            if block.offset > end:
                holes.append((end, block.offset - end))
            end = block.offset + block.reserved
        capacity = self.capacity if self.capacity is not None else _NO_LIMIT
        if end < capacity:
            holes.append((end, capacity - end))
        self._holes = holes
        self.allocated = sum(each.reserved for each in self._live.values() if not each.aside)
        self._changing = False

    def set_aside(self, block: Allocation) -> None:
        """Counts a block as free, but keeps its place for `take_back` while nobody else needs it.

        Args:
            block: A block in use.
        """
        block.aside = True
        self.allocated -= block.reserved

    def take_back(self, block: Allocation) -> bool:
        """Uses a block again that was set aside; returns whether it is still there."""
        if block.freed:
            return False
        block.aside = False
        allocated = self.allocated = self.allocated + block.reserved
        if allocated > self.peak:
            self.peak = allocated
        return True

    def withhold(self, nbytes: int, label: object, site: CallSite | None) -> Allocation:
        """Returns a block that counts as free, and that nobody gets until it is given back.

        Args:
            nbytes: Size in bytes.
            label: What it is kept for.
            site: Where the user asked for it.

        Raises:
            OutOfMemoryError: If no hole is large enough.
        """
        peak = self.peak
        block = self.allocate(nbytes, label, site)
        self.set_aside(block)
        block.kept, self.peak = True, peak
        return block

    @property
    def withheld(self) -> int:
        """Bytes that `withhold` keeps from others."""
        return sum(block.reserved for block in list(self._live.values()) if block.kept)

    def _free_aside(self) -> bool:
        """Frees the blocks that were set aside; returns whether there were any."""
        aside = [block for block in list(self._live.values()) if block.aside and not block.kept]
        for block in aside:
            self._release(block, None)
        return bool(aside)

    def _merge(self, start: int, size: int) -> None:
        """Adds a range to the holes.

        Args:
            start: Offset of its first byte.
            size: Its bytes.
        """
        holes = self._holes
        index = bisect_left(holes, (start, 0))
        if index < len(holes):
            following, length = holes[index]
            if following == start + size:
                size += length
                del holes[index]
        if index > 0:
            preceding, length = holes[index - 1]
            if preceding + length == start:
                holes[index - 1] = preceding, length + size
                return
        holes.insert(index, (start, size))

    @property
    def largest_hole(self) -> int:
        """Bytes of the largest block that could be allocated now."""
        return max((size for _, size in list(self._holes)), default=0)

    def live(self) -> list[Allocation]:
        """Returns the blocks in use, oldest first."""
        return [block for block in list(self._live.values()) if not block.aside]

    def _out_of_memory(self, nbytes: int, label: object, site: CallSite | None) -> OutOfMemoryError:
        assert self.capacity is not None
        withheld = self.withheld
        free = self.capacity - self.allocated - withheld
        used = [some for some in _by_line(self.live()) if _bytes(some) * 1000 >= self.allocated]
        facts = [
            site_fact(site),
            f"requested {format_bytes(nbytes)} ({nbytes} B) for {label}",
            f"free {_unrounded(free)} of {format_bytes(self.capacity)}, "
            f"largest free block {format_bytes(self.largest_hole)}",
        ]
        if withheld:
            facts.append(f"{format_bytes(withheld)} more are kept by memory pools of CUDA graphs")
        if used:
            facts.append("in use, by line:")
        facts += [f"  {_told(blocks)}" for blocks in used[:_MOST_LINES]]
        if len(used) > _MOST_LINES:
            rest = [block for blocks in used[_MOST_LINES:] for block in blocks]
            facts.append(f"  {_amount(rest)} of {len(used) - _MOST_LINES} more lines")
        tcm = self.space is Space.TCM
        return OutOfMemoryError(
            f"{self.name} is out of memory",
            facts,
            hint="use smaller tiles"
            if tcm
            else "drop tensors that are no longer needed, shard over more ranks, or raise "
            f"{self._capacity_at()} in the topology file",
            code="M8" if tcm else "M7",
        )

    def _nested(self) -> KernbenchError:
        return KernbenchError(
            f"a finalizer uses {self.name} while it changes",
            [site_fact(call_site())],
            hint="make no tensors in `__del__` and in callbacks of `weakref`: Python runs them "
            "at any moment",
        )

    def _bad_free(self, block: Allocation, site: CallSite | None) -> FreeError:
        if not block.freed:
            return FreeError(
                f"{block.label} was not allocated from {self.name}",
                [site_fact(site), f"it lives at {block.address}"],
                code="M4",
            )
        return FreeError(
            f"{block.label} was freed twice",
            [site_fact(site, "second free at"), site_fact(block.freed_at, "first free at")],
            code="M4",
        )


_MOST_LINES: Final = 5
"""Most lines of the user that a report on a full memory lists."""


def _unrounded(nbytes: int) -> str:
    """Returns bytes as text, with their number if the text is rounded: `1024 MiB` may be less."""
    text = format_bytes(nbytes)
    return text if parse_bytes(text) == nbytes else f"{text} ({nbytes} B)"


def _by_line(blocks: list[Allocation]) -> list[list[Allocation]]:
    """Returns the blocks of each line of the user, the line with the most bytes first."""
    lines: dict[CallSite | None, tuple[str, int] | None] = {None: None}
    found: dict[tuple[str, int] | None, list[Allocation]] = {}
    for block in blocks:
        site = block.site
        if site not in lines:  # to find a line takes long
            assert site is not None
            lines[site] = site.file, site.line
        found.setdefault(lines[site], []).append(block)
    return sorted(found.values(), key=lambda some: (-_bytes(some), some[0].number))


def _bytes(blocks: list[Allocation]) -> int:
    return sum(block.nbytes for block in blocks)


def _amount(blocks: list[Allocation]) -> str:
    count = f"{len(blocks)} block{'' if len(blocks) == 1 else 's'}"
    return f"{format_bytes(_bytes(blocks))} in {count}"


def _told(blocks: list[Allocation]) -> str:
    """Returns what a report says of the blocks of one line."""
    largest = max(blocks, key=lambda block: (block.nbytes, -block.number))
    if largest.site is None:  # a small one, or a library's outside of all calls of the user
        return f"{_amount(blocks)}, of which no line is known"
    what = f"{format_bytes(largest.nbytes)} {largest.label}"
    if len(blocks) > 1:
        each = "each" if largest.nbytes * len(blocks) == _bytes(blocks) else "the largest"
        what = f"{_amount(blocks)}, {each} {what},"
    return f"{what} {site_fact(largest.site)}"


class NotedAllocator(Allocator):
    """An allocator that tells how many bytes each block takes, and gives back.

    A class of its own, so that an allocator that tells nothing is as fast as before.

    Args:
        space: See `Allocator`, as for `sip`, `unit`, `capacity` and `capacity_at`.
        unit: Index of the cube or PE.
        capacity: Size of the memory in bytes.
        capacity_at: Returns the field of the topology file.
        note: Called with the SIP and the bytes that a block occupies, below 0 if it is freed.
    """

    def __init__(
        self,
        space: Space,
        sip: int,
        unit: int,
        capacity: int | None,
        capacity_at: Callable[[], str],
        note: Callable[[int, int], None],
    ) -> None:
        super().__init__(space, sip, unit, capacity, capacity_at)
        self.note = note

    def allocate(self, nbytes: int, label: object, site: CallSite | None) -> Allocation:
        """Does what `Allocator.allocate` does, and reports the block.

        Args:
            nbytes: Size in bytes.
            label: What the block holds.
            site: Where the user asked for the block.

        Raises:
            OutOfMemoryError: If no hole is large enough.
        """
        block = super().allocate(nbytes, label, site)
        self.note(self.sip, block.reserved)
        return block

    def _release(self, block: Allocation, site: CallSite | None) -> None:
        counted = not block.aside
        super()._release(block, site)
        if counted:
            self.note(self.sip, -block.reserved)

    def set_aside(self, block: Allocation) -> None:
        """Does what `Allocator.set_aside` does, and reports the block.

        Args:
            block: A block in use.
        """
        super().set_aside(block)
        self.note(self.sip, -block.reserved)

    def take_back(self, block: Allocation) -> bool:
        """Does what `Allocator.take_back` does, and reports the block."""
        there = super().take_back(block)
        if there:
            self.note(self.sip, block.reserved)
        return there


_CHANGES: Final = frozenset({Allocator._take.__code__, Allocator._release.__code__})
"""Code in whose middle holes and blocks do not agree."""
