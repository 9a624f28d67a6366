"""The allocator against a map of every unit of the memory, and what it says when it fails."""

import gc
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shooting import shots

from kernbench.errors import CallSite, KernbenchError, call_site
from kernbench.memory import (
    Address,
    Allocation,
    Allocator,
    Buffer,
    FreeError,
    OutOfMemoryError,
    Space,
    Storage,
)
from kernbench.memory import allocator as allocator_module
from kernbench.memory.allocator import ALIGNMENT, NotedAllocator

CAPACITY = 1024
UNIT = ALIGNMENT[Space.TCM]


def tcm() -> Allocator:
    return Allocator(Space.TCM, 3, 5, CAPACITY)


def site() -> CallSite:
    found = call_site()
    assert found is not None
    return found


class Map:
    """Every unit of the memory by itself; first fit means the lowest free stretch."""

    def __init__(self) -> None:
        self.used = [False] * (CAPACITY // UNIT)

    def place(self, units: int) -> int | None:
        for begin in range(len(self.used) - units + 1):
            if not any(self.used[begin : begin + units]):
                return begin
        return None

    def mark(self, begin: int, units: int, value: bool) -> None:
        self.used[begin : begin + units] = [value] * units

    def largest_hole(self) -> int:
        runs = "".join("x" if used else "." for used in self.used).split("x")
        return max(map(len, runs)) * UNIT


# A positive number allocates so many bytes, a negative one frees one of the blocks in use.
actions = st.lists(
    st.one_of(st.integers(0, 400), st.integers(0, 60), st.integers(-9, -1)), max_size=40
)


@given(actions)
def test_it_allocates_where_a_map_of_the_memory_finds_room(actions: list[int]) -> None:
    allocator, model = tcm(), Map()
    live: list[tuple[Allocation, int, int]] = []
    peak, numbers = 0, list[int]()
    for action in actions:
        if action >= 0:
            units = max(1, -(-action // UNIT))
            begin = model.place(units)
            if begin is None:
                with pytest.raises(OutOfMemoryError):
                    allocator.allocate(action, "x", None)
            else:
                block = allocator.allocate(action, "x", None)
                assert block.address == Address(Space.TCM, 3, 5, begin * UNIT)
                assert (block.nbytes, block.reserved) == (action, units * UNIT)
                model.mark(begin, units, True)
                live.append((block, begin, units))
                numbers.append(block.number)
        elif live:
            block, begin, units = live.pop(action % len(live))
            allocator.free(block)
            model.mark(begin, units, False)
        used = sum(model.used) * UNIT
        peak = max(peak, used)
        assert allocator.allocated == used
        assert allocator.largest_hole == model.largest_hole()
        assert {entry.number for entry in allocator.live()} == {block.number for block, *_ in live}
    assert allocator.peak == peak
    assert len(set(numbers)) == len(numbers)  # a number is never used again
    for block, *_ in live:
        allocator.free(block)
    assert (allocator.allocated, allocator.largest_hole) == (0, CAPACITY)


def test_a_host_has_no_limit_and_hbm_rounds_to_its_alignment() -> None:
    host = Allocator(Space.HOST, -1, 0, None)
    host.allocate(1 << 45, "huge", None)
    hbm = Allocator(Space.HBM, 0, 0, 4096)
    assert [hbm.allocate(n, "x", None).address.offset for n in (1, 512, 513)] == [0, 512, 1024]
    assert hbm.allocated == 2048


def test_addresses_say_where_they_are() -> None:
    assert str(Address(Space.HBM, 2, 0, 512) + 16) == "sip2.hbm+0x210"
    assert str(Address(Space.TCM, 2, 7, 0)) == "sip2.tcm[7]+0x0"
    assert (tcm().name, Allocator(Space.HBM, 4, 0, 1).name) == ("sip3.tcm[5]", "sip4.hbm")


def test_out_of_hbm_names_the_lines_that_hold_most_and_what_is_free() -> None:
    allocator = Allocator(Space.HBM, 1, 0, 64 << 10)
    where, there = site(), CallSite(site.__code__, 0)
    kept = [allocator.allocate(9 << 10, f"tensor {n}", where) for n in range(2)]
    allocator.free(allocator.allocate(4 << 10, "tensor", there))
    kept += [allocator.allocate(n << 10, f"tensor {n}", there) for n in (3, 5)]
    kept += [allocator.allocate(512, "small", None), allocator.allocate(512, "small", None)]
    with pytest.raises(OutOfMemoryError) as caught:
        allocator.allocate(40 << 10, "empty([10240], float32)", where)
    error = caught.value
    assert isinstance(error, MemoryError)
    assert str(error) == "\n".join(
        [
            "[M7] sip1.hbm is out of memory",
            f"  at {where.show()}",
            "  requested 40 KiB (40960 B) for empty([10240], float32)",
            "  free 37 KiB of 64 KiB, largest free block 37 KiB",
            "  in use, by line:",
            f"    18 KiB in 2 blocks, each 9 KiB tensor 0, at {where.show()}",
            f"    8 KiB in 2 blocks, the largest 5 KiB tensor 5, at {there.show()}",
            "    1 KiB in 2 blocks, of which no line is known",
            "  hint: drop tensors that are no longer needed, shard over more ranks, or raise "
            "system.sip.cube.hbm.capacity in the topology file",
        ]
    )
    assert allocator.allocated == sum(block.nbytes for block in kept)  # nothing has changed


def test_out_of_an_empty_tcm_asks_for_smaller_tiles() -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        tcm().allocate(2048, "tile [512] float32", None)
    assert str(caught.value) == "\n".join(
        [
            "[M8] sip3.tcm[5] is out of memory",
            "  at <no user frame>",
            "  requested 2 KiB (2048 B) for tile [512] float32",
            "  free 1 KiB of 1 KiB, largest free block 1 KiB",
            "  hint: use smaller tiles",
        ]
    )


def test_a_double_free_names_both() -> None:
    allocator = tcm()
    block = allocator.allocate(8, "acc", None)
    first = site()
    allocator.free(block, first)
    second = site()
    with pytest.raises(FreeError) as caught:
        allocator.free(block, second)
    assert str(caught.value) == (
        f"[M4] acc was freed twice\n  second free at {second.show()}\n"
        f"  first free at {first.show()}"
    )


def test_a_foreign_block_stays_where_it_lives() -> None:
    mine, other = tcm(), Allocator(Space.HBM, 0, 0, 4096)
    other.allocate(8, "decoy", None)  # the same number in the other memory
    block, where = mine.allocate(8, "acc", None), site()
    with pytest.raises(FreeError) as caught:
        other.free(block, where)
    assert str(caught.value) == (
        f"[M4] acc was not allocated from sip0.hbm\n  at {where.show()}\n"
        "  it lives at sip3.tcm[5]+0x0"
    )
    assert (mine.allocated, other.allocated) == (UNIT, 512)
    mine.free(block)


def test_storage_gives_its_block_back_in_host_order_while_its_buffer_lives_on() -> None:
    hbm = Allocator(Space.HBM, 0, 0, 1024)
    storage = Storage(hbm, 512, "x", None)
    buffer: Buffer = storage.buffer
    address = storage.address
    assert storage.nbytes == 512
    del storage
    gc.collect()
    assert hbm.allocated == 0
    assert buffer.allocation.freed
    again = Storage(hbm, 512, "y", None)  # the same place, other bytes
    assert again.address == address
    assert again.buffer is not buffer
    assert again.buffer.allocation.number != buffer.allocation.number


def in_order(memory: Allocator) -> bool:
    """Returns whether blocks and holes lie side by side, without a gap between them."""
    blocks = [(block.offset, block.reserved) for block in memory.live()]
    end = 0
    for offset, length in sorted(blocks + memory._holes):
        if offset != end:
            return False
        end += length
    return True


class Restless(list[tuple[int, int]]):
    """Holes that run a finalizer whenever somebody looks at one of them, or changes one."""

    def __init__(self, holes: list[tuple[int, int]]) -> None:
        super().__init__(holes)
        self.garbage: list[Storage] = []

    def _finalize(self) -> None:
        if self.garbage:
            del self.garbage[0]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for each in super().__iter__():
            self._finalize()
            yield each

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self._finalize()
        return found

    def __setitem__(self, index: Any, value: Any) -> None:
        self._finalize()
        super().__setitem__(index, value)


@given(st.lists(st.integers(0, 5), min_size=12, max_size=40))
def test_blocks_given_back_in_the_middle_of_a_change_wait_for_its_end(actions: list[int]) -> None:
    memory = Allocator(Space.HOST, 0, 0, None)
    holes = memory._holes = Restless(memory._holes)
    kept = [Storage(memory, 64, "x", None) for _ in range(16)]
    for action in actions:
        if action < 3 and kept:  # garbage that a collection finds later
            holes.garbage.append(kept.pop(action * len(kept) // 3))
        elif action == 3 and kept:
            del kept[len(kept) // 2]
        else:
            kept.append(Storage(memory, 64 * max(1, action - 2), "y", None))
        assert in_order(memory)
    holes.garbage.clear()
    live = [block.number for block in memory.live()]
    assert live == sorted(each.buffer.allocation.number for each in kept)
    assert memory.allocated == sum(block.reserved for block in memory.live())
    kept.clear()
    assert memory.live() == []
    assert list(memory._holes) == [(0, 1 << 62)]


def test_a_finalizer_that_asks_for_memory_in_the_middle_of_a_request_is_refused() -> None:
    memory = tcm()

    class Asking(Restless):
        def _finalize(self) -> None:
            memory.allocate(UNIT, "more", None)

    memory._holes = Asking(memory._holes)
    with pytest.raises(KernbenchError, match=r"a finalizer uses sip3\.tcm\[5\] while it changes"):
        memory.allocate(UNIT, "first", None)
    memory._holes = [(0, CAPACITY)]
    assert memory.allocate(UNIT, "next", None).offset == 0


def test_a_storage_that_got_no_memory_gives_none_back() -> None:
    hbm = Allocator(Space.HBM, 0, 0, 512)
    with pytest.raises(OutOfMemoryError):
        Storage(hbm, 4096, "x", None)
    gc.collect()
    assert hbm.allocated == 0


def test_a_block_that_is_set_aside_counts_as_free_and_comes_back_where_it_was() -> None:
    changes: list[int] = []
    memory = NotedAllocator(Space.TCM, 3, 5, CAPACITY, str, lambda _, size: changes.append(size))
    block = memory.allocate(3 * UNIT, "a", None)
    memory.set_aside(block)
    assert (memory.allocated, memory.live()) == (0, [])
    assert memory.allocate(UNIT, "b", None).offset == 3 * UNIT, "its place is kept"
    assert memory.take_back(block)
    assert (memory.allocated, memory.peak, block.offset) == (4 * UNIT, 4 * UNIT, 0)
    memory.set_aside(block)
    memory.free(block)
    assert memory.largest_hole == CAPACITY - 4 * UNIT
    assert changes == [3 * UNIT, -3 * UNIT, UNIT, 3 * UNIT, -3 * UNIT]


def test_a_full_memory_takes_what_was_set_aside() -> None:
    memory = tcm()
    blocks = [memory.allocate(CAPACITY // 2, "half", None) for _ in range(2)]
    for block in blocks:
        memory.set_aside(block)
    assert memory.allocate(CAPACITY, "all", None).offset == 0
    assert not memory.take_back(blocks[0])
    assert all(block.freed for block in blocks)


def _agree(memory: Allocator) -> None:
    """Blocks, holes and sums tell the same."""
    places = [(block.offset, block.reserved) for block in memory._live.values()]
    spans = sorted([*places, *memory._holes])
    ends = [start + size for start, size in spans]
    assert [start for start, _ in spans] == [0, *ends[:-1]], "no gap, and nothing twice"
    assert memory.allocated == sum(size for _, size in places)
    holes = memory._holes
    assert all(one[0] + one[1] < two[0] for one, two in itertools.pairwise(holes)), "merged"


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_an_interrupt_at_any_bytecode_leaves_a_memory_that_is_right(step: int) -> None:
    memories: list[Allocator] = []

    def fresh() -> Callable[[], None]:
        memory = Allocator(Space.HBM, 0, 0, 1 << 16)
        memories.append(memory)

        def call() -> None:
            blocks = [memory.allocate(1000, "x", None) for _ in range(4)]
            memory.free(blocks[1])
            memory.give_back(blocks[2])
            blocks[1] = memory.allocate(500, "y", None)
            memory.free(blocks[3])
            memory.give_back(blocks[0])
            memory.free(blocks[1])

        return call

    for _ in shots(fresh, [allocator_module], step):
        memory = memories.pop()
        last = memory.allocate(700, "z", None)
        _agree(memory)
        memory.free(last)
        _agree(memory)
        for block in memory.live():
            memory.free(block)
        assert memory.allocated == 0
        assert memory._holes == [(0, 1 << 16)]
        assert last.freed
