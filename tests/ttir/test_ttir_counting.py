"""What launches do, counted without doing it, against sums by hand and in Python."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from ttir_texts import FIRST, Array, kept, kernel

from kernbench.errors import UnsupportedError
from kernbench.ttir.counting import Counter, Work
from kernbench.ttir.memory import Allocation, Memory
from kernbench.ttir.reader import read


def count(
    text: str,
    arguments: Sequence[Array | int | None],
    grid: tuple[int, int, int] = (1, 1, 1),
    *,
    numbers: bool = False,
) -> Work:
    """Counts a launch; arrays are given if there are numbers, and None is a pointer otherwise."""
    held: list[Any] = []
    allocations = {}
    for place, argument in enumerate(arguments):
        if isinstance(argument, np.ndarray):
            data = argument.reshape(-1).view(np.uint8)
            allocations[place] = Allocation(f"argument {place}", FIRST * (place + 1), data)
        if isinstance(argument, int):
            held.append(np.array([argument], np.int32))
        else:
            held.append(np.array([FIRST * (place + 1)], np.int64))
    memory = Memory(allocations) if numbers else None
    return Counter(read(text)).count(grid, held, memory)


def nbytes(work: Work) -> dict[int | None, tuple[int, int]]:
    """Returns the bytes that are loaded and stored, by argument."""
    found: dict[int | None, tuple[int, int]] = {}
    for each in work.accesses:
        loads, stores = found.get(each.root, (0, 0))
        more = each.nbytes * each.loads, each.nbytes * each.stores
        found[each.root] = loads + more[0], stores + more[1]
    return found


def test_a_product_of_matrices_loads_its_operands_once_a_tile() -> None:
    m, n, k = 64, 96, 160
    work = count(kept("gemm"), [None, None, None, m, n, k], (2, 3, 1))

    # 6 programs of 10 turns, in each of which 32 x 16 and 16 x 32 float16 are multiplied.
    assert work.turns == [(6, 10)]
    assert [each[:2] for each in work.loops] == [(True, 60)]
    assert work.flop == {"fp16": 2 * m * n * k}
    assert nbytes(work) == {0: (3 * m * k * 2, 0), 1: (2 * k * n * 2, 0), 2: (0, m * n * 2)}
    # No argument has more different bytes than there are.
    extents = {0: m * k * 2, 1: k * n * 2, 2: m * n * 2}
    assert work.distinct(extents, {}) == 2 * (m * k + k * n + m * n)
    # The second operand is in the first one's memory.
    assert work.distinct(extents, {1: 0}) == 2 * (m * k + m * n)
    assert work.traffic == sum(sum(both) for both in nbytes(work).values())


def test_masks_leave_out_what_is_past_the_end() -> None:
    m, n, k = 50, 80, 48
    work = count(kept("gemm"), [None, None, None, m, n, k], (2, 3, 1))

    # Rows and columns are taken modulo, so only stores are cut.
    assert work.turns == [(6, 3)]
    assert nbytes(work) == {0: (3 * 64 * k * 2, 0), 1: (2 * k * 96 * 2, 0), 2: (0, m * n * 2)}


def test_what_lies_apart_is_fetched_by_sectors() -> None:
    text = kernel(
        "%x: !tt.ptr<f32>, %step: i32",
        """
        %r = tt.make_range {end = 128 : i32, start = 0 : i32} : tensor<128xi32>
        %s = tt.splat %step : i32 -> tensor<128xi32>
        %o = arith.muli %r, %s : tensor<128xi32>
        %q = tt.splat %x : !tt.ptr<f32> -> tensor<128x!tt.ptr<f32>>
        %a = tt.addptr %q, %o : tensor<128x!tt.ptr<f32>>, tensor<128xi32>
        %v = tt.load %a : tensor<128x!tt.ptr<f32>>""",
    )
    # 128 numbers of 4 bytes: in whole sectors of 32, or 16 numbers apart, or all the same.
    fetched = [nbytes(count(text, [None, step], (3, 1, 1)))[0][0] for step in (1, 2, 16, 0)]
    assert fetched == [3 * 512, 3 * 1024, 3 * 128 * 32, 3 * 32]


def test_where_atomic_operations_go_is_looked_at() -> None:
    bins, ours = count(kept("counters"), [None, None, None, 40], (2, 1, 1)).atomics

    # Loaded numbers say where the 32 lanes of each program add; 8 bins begin at the 9th number.
    assert (bins.root, bins.itemsize, bins.requests) == (1, 4, 2)
    assert bins.seen is None
    assert (ours.root, ours.itemsize, ours.requests) == (1, 4, 2)
    assert ours.seen is not None
    assert ours.seen.tolist() == [[[2 * FIRST + 32 + 4 * lane for lane in range(8)]]] * 2


def test_lanes_that_a_mask_turns_off_add_nowhere() -> None:
    text = kernel(
        "%x: !tt.ptr<f32>, %n: i32",
        """
        %p = tt.get_program_id x : i32
        %c = arith.constant 64 : i32
        %b = arith.muli %p, %c : i32
        %r = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
        %s = tt.splat %b : i32 -> tensor<64xi32>
        %o = arith.addi %s, %r : tensor<64xi32>
        %m = tt.splat %n : i32 -> tensor<64xi32>
        %k = arith.cmpi slt, %o, %m : tensor<64xi32>
        %q = tt.splat %x : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>
        %a = tt.addptr %q, %o : tensor<64x!tt.ptr<f32>>, tensor<64xi32>
        %one = arith.constant dense<1.0> : tensor<64xf32>
        %v = tt.atomic_rmw fadd, relaxed, gpu, %a, %one, %k : ("""
        "tensor<64x!tt.ptr<f32>>, tensor<64xf32>, tensor<64xi1>) -> tensor<64xf32>",
    )
    (added,) = count(text, [None, 70], (2, 1, 1)).atomics

    # Two requests of a program; of the second program's 64 lanes 6 are on.
    assert added.requests == 4
    assert added.seen is not None
    assert (added.seen >= 0).sum(2).tolist() == [[32, 32], [6, 0]]


def test_masks_of_many_programs_are_counted_in_some() -> None:
    text = kernel(
        "%x: !tt.ptr<f32>, %n: i32",
        """
        %c = arith.constant 128 : i32
        %p = tt.get_program_id x : i32
        %b = arith.muli %p, %c : i32
        %r = tt.make_range {end = 128 : i32, start = 0 : i32} : tensor<128xi32>
        %s = tt.splat %b : i32 -> tensor<128xi32>
        %o = arith.addi %s, %r : tensor<128xi32>
        %m = tt.splat %n : i32 -> tensor<128xi32>
        %k = arith.cmpi slt, %o, %m : tensor<128xi32>
        %q = tt.splat %x : !tt.ptr<f32> -> tensor<128x!tt.ptr<f32>>
        %a = tt.addptr %q, %o : tensor<128x!tt.ptr<f32>>, tensor<128xi32>
        %v = tt.load %a, %k : tensor<128x!tt.ptr<f32>>
        tt.store %a, %v, %k : tensor<128x!tt.ptr<f32>>""",
    )
    few = count(text, [None, 1000], (10, 1, 1))
    assert nbytes(few) == {0: (4000, 4000)}

    # A quarter of 100,000 programs has nothing to do.
    many = count(text, [None, 75_000 * 128], (100_000, 1, 1))
    loads, stores = nbytes(many)[0]
    assert loads == stores == pytest.approx(75_000 * 128 * 4, rel=0.001)
    assert sum(programs for programs, _ in many.turns) == 100_000


def test_programs_take_as_many_turns_as_the_numbers_that_they_load() -> None:
    counts = np.array([3, 0, 10, 10, 5], np.int32)

    work = count(kept("triangle"), [counts, counts, 1000], (5, 1, 1), numbers=True)

    assert work.turns == [(1, 3), (1, 0), (2, 10), (1, 5)]
    assert [each[:2] for each in work.loops] == [(True, 28)]


def test_turns_that_nobody_can_know_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedError) as caught:
        count(kept("triangle"), [None, None, 1000], (5, 1, 1))
    assert "kernel triangle: how long it takes depends on numbers that it loads" in str(
        caught.value
    )
    assert "kernels.py:" in str(caught.value)


def _collatz(value: int) -> int:
    steps = 0
    while value != 1:
        value = value // 2 if value % 2 == 0 else 3 * value + 1
        steps += 1
    return steps


def test_programs_that_return_early_store_nothing() -> None:
    x = np.array([1, 27, 0, 6, 7, -3, 97], np.int32)

    work = count(kept("collatz"), [x, x], (7, 1, 1), numbers=True)

    turns = [_collatz(value) if value > 0 else 0 for value in x.tolist()]
    told = [each for programs, each in work.turns for _ in range(programs)]
    assert told == turns
    assert nbytes(work) == {0: (7 * 4, 0), 1: (0, 5 * 4)}


def test_the_order_of_programs_is_told_and_equal_ones_are_one_run() -> None:
    body = """
        %c0 = arith.constant 0 : i32
        %c1 = arith.constant 1 : i32
        %p = tt.get_program_id y : i32
        scf.for %i = %c0 to %p step %c1 : i32 {
          %a = tt.load %x : !tt.ptr<f64>
          scf.for %j = %c0 to %n step %c1 : i32 {
            tt.store %x, %a : !tt.ptr<f64>
          }
        }"""
    work = count(kernel("%x: !tt.ptr<f64>, %n: i32", body), [None, 4], (3, 4, 1))

    # Programs of one y are 3 in a row; y turns outside, 4 y inside.
    assert work.turns == [(3, 0), (3, 4), (3, 8), (3, 12)]
    assert [each[:2] for each in work.loops] == [(False, 3 * 6), (True, 3 * 24)]
    assert nbytes(work) == {0: (18 * 8, 72 * 8)}


def test_a_lock_is_free() -> None:
    work = count(kept("spin"), [None, None, None], (5, 1, 1))

    assert [each[:2] for each in work.loops] == [(True, 0)]
    assert nbytes(work)[2] == (20, 0)


def test_a_function_that_is_called_counts_as_its_text() -> None:
    work = count(kept("calls"), [None, None, 2], (5, 1, 1))

    assert nbytes(work) == {0: (20, 0), 1: (0, 20)}
