"""Branches, loops and calls of programs that agree and of programs that part."""

import numpy as np
import pytest
from ttir_texts import kernel, run

from kernbench.ttir.compiling import Compiler
from kernbench.ttir.executing import HANDLERS
from kernbench.ttir.reader import read
from kernbench.ttir.reports import KernelEndlessError, KernelWaitError

PLACE = """
    %id = tt.get_program_id x : i32
    %from = tt.addptr %x, %id : !tt.ptr<i32>, i32
    %to = tt.addptr %out, %id : !tt.ptr<i32>, i32
    %v = tt.load %from : !tt.ptr<i32>
"""
"""A number of each program, and where it puts one."""


def of_each(
    body: str, numbers: list[int], *more: int, result: str = "%r", races: bool = True
) -> list[int]:
    """Returns what programs make of a number each; more numbers are `%n0`, `%n1` and so on."""
    x = np.array(numbers, np.int32)
    out = np.full(len(numbers), -1, np.int32)
    text = of_each_text(body, len(more), result)
    run(text, [x, out, *more], (len(numbers), 1, 1), races=races)
    return [int(number) for number in out]


def of_each_text(body: str, more: int, result: str = "%r") -> str:
    names = "".join(f", %n{place}: i32" for place in range(more))
    return kernel(
        f"%x: !tt.ptr<i32>, %out: !tt.ptr<i32>{names}",
        f"{PLACE}{body}\n    tt.store %to, {result} : !tt.ptr<i32>",
    )


BRANCH = """
    %c0 = arith.constant 0 : i32
    %c = arith.cmpi sgt, %v, %c0 : i32
    %r = scf.if %c -> (i32) {
      %a = arith.addi %v, %v : i32
      scf.yield %a : i32
    } else {
      %b = arith.subi %c0, %v : i32
      scf.yield %b : i32
    }
"""


@pytest.mark.parametrize("numbers", [[1, -2, 3, -4], [1, 2], [-1, -2], [5]])
def test_programs_take_both_branches_or_one(numbers: list[int]) -> None:
    assert of_each(BRANCH, numbers) == [2 * n if n > 0 else -n for n in numbers]


def test_a_branch_without_a_result_stores() -> None:
    body = """
    %c0 = arith.constant 0 : i32
    %c = arith.cmpi sgt, %v, %c0 : i32
    scf.if %c {
      tt.store %from, %c0 : !tt.ptr<i32>
    }
    %r = tt.load %from : !tt.ptr<i32>
"""
    assert of_each(body, [3, -3, 4]) == [0, -3, 0]
    assert of_each(body, [-3, -4]) == [-3, -4]


LOOP = """
    %c0 = arith.constant 0 : i32
    %r = scf.for {way}%i = %n0 to %v step %n1 iter_args(%t = %c0) -> (i32) : i32 {{
      %s = arith.addi %t, %i : i32
      scf.yield %s : i32
    }}
"""


@pytest.mark.parametrize("numbers", [[7, 0, 12, 3], [9, 9], [-4, -4]])
@pytest.mark.parametrize(("low", "step"), [(0, 1), (2, 3)])
def test_loops_have_the_turns_of_each_program(numbers: list[int], low: int, step: int) -> None:
    found = of_each(LOOP.format(way=""), numbers, low, step)

    assert found == [sum(range(low, n, step)) for n in numbers]


ALIKE = """
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %r = scf.for %i = %c0 to %v step %c1 iter_args(%t = %c0) -> (i32) : i32 {
      %twice = arith.muli %id, %n0 : i32
      %p = tt.addptr %from, %twice : !tt.ptr<i32>, i32
      %w = tt.load %p : !tt.ptr<i32>
      %next = arith.addi %w, %c1 : i32
      tt.store %p, %next : !tt.ptr<i32>
      %s = arith.addi %t, %w : i32
      scf.yield %s : i32
    }
"""


@pytest.mark.parametrize("turns", [[3, 0, 2], [2, 2], [0, 0]])
def test_what_turns_do_alike_is_done_once_and_what_they_change_each_time(turns: list[int]) -> None:
    # Each counts up its own number, from what it is; the place of that is the same in each turn.
    assert of_each(ALIKE, turns, 0) == [sum(range(n, n + n)) for n in turns]
    module = read(of_each_text(ALIKE, 1))
    compiler = Compiler(module, module.kernel, HANDLERS)
    loop = next(each for each in module.kernel.body[0].operations if each.regions)
    alike, made, turn = compiler.turn(loop.regions[0][0])
    # The product and the address; the load, the sums and the store stay.
    assert (len(alike.steps), len(made), len(turn.steps)) == (2, 2, 4)


def test_a_loop_that_carries_nothing_may_lack_its_end() -> None:
    body = """
    %c1 = arith.constant 1 : i32
    scf.for %i = %n0 to %v step %c1 : i32 {
      tt.store %from, %i : !tt.ptr<i32>
    }
    %r = tt.load %from : !tt.ptr<i32>
"""
    assert of_each(body, [4, 0, -7], 0) == [3, 0, -7]


def test_a_loop_may_count_without_a_sign() -> None:
    # From 2^32 - 8 to 2^32 - 3 in steps of 2; with a sign, the sum is of -8, -6 and -4.
    assert of_each(LOOP.format(way="unsigned "), [-3, 2], -8, 2) == [-18, 0]


WHILE = """
    %c1 = arith.constant 1 : i32
    %r:2 = scf.while (%a = %v, %n = %c1) : (i32, i32) -> (i32, i32) {
      %go = arith.cmpi sgt, %a, %c1 : i32
      scf.condition(%go) %a, %n : i32, i32
    } do {
    ^bb0(%a: i32, %n: i32):
      %p = arith.muli %n, %a : i32
      %b = arith.subi %a, %c1 : i32
      scf.yield %b, %p : i32, i32
    }
"""


@pytest.mark.parametrize("numbers", [[5, 1, 0, 3], [4, 4], [0, 0]])
def test_programs_leave_a_loop_at_turns_of_their_own(numbers: list[int]) -> None:
    factorials = {0: 1, 1: 1, 3: 6, 4: 24, 5: 120}
    assert of_each(WHILE, numbers, result="%r#1") == [factorials[n] for n in numbers]


def test_a_loop_that_changes_nothing_is_reported() -> None:
    body = """
    %c0 = arith.constant 0 : i32
    %r = scf.while (%a = %v) : (i32) -> i32 {
      %flag = tt.load %from : !tt.ptr<i32>
      %go = arith.cmpi ne, %flag, %c0 : i32
      scf.condition(%go) %a : i32
    } do {
    ^bb0(%a: i32):
      scf.yield %a : i32
    }
"""
    with pytest.raises(KernelWaitError, match=r"program \(1, 0, 0\) of kernel waits"):
        of_each(body, [0, 1, 0])


COUNTS_TO_V = """
    %c1 = arith.constant 1 : i32
    %c0 = arith.constant 0 : i32
    %r = scf.while (%a = %c0) : (i32) -> i32 {
      %go = arith.cmpi ne, %a, %v : i32
      scf.condition(%go) %a : i32
    } do {
    ^bb0(%a: i32):
      %b = arith.addi %a, %c1 : i32
      scf.yield %b : i32
    }
"""


def test_a_loop_that_goes_on_and_on_is_stopped() -> None:
    asked: list[int] = []

    def over() -> float:
        asked.append(1)
        return 30.0 if len(asked) == 3 else 0.0

    text = of_each_text(COUNTS_TO_V, 0)
    out = np.zeros(2, np.int32)
    # Asked first after 1024 turns, which begins the time, then every 1024.
    run(text, [np.array([3, 3000], np.int32), out], (2, 1, 1), patience=lambda: over)
    assert out.tolist() == [3, 3000]
    assert len(asked) == 1
    with pytest.raises(KernelEndlessError, match=r"\[K5\] program \(1, 0, 0\) of kernel goes on"):
        run(text, [np.array([3, -1], np.int32), out], (2, 1, 1), patience=lambda: over)
    assert len(asked) == 3


def test_jumps_hand_values_to_blocks() -> None:
    body = """
    %c0 = arith.constant 0 : i32
    %c = arith.cmpi slt, %v, %c0 : i32
    cf.cond_br %c, ^bb1(%c0 : i32), ^bb2
  ^bb1(%low: i32):
    cf.br ^bb3(%low : i32)
  ^bb2:
    %twice = arith.addi %v, %v : i32
    cf.br ^bb3(%twice : i32)
  ^bb3(%r: i32):
"""
    assert of_each(body, [4, -4, 5, -5]) == [8, 0, 10, 0]


def test_programs_that_part_in_a_function_return_together() -> None:
    text = """module {
  tt.func public @kernel(%x: !tt.ptr<i32>, %out: !tt.ptr<i32>) {
    %id = tt.get_program_id x : i32
    %from = tt.addptr %x, %id : !tt.ptr<i32>, i32
    %to = tt.addptr %out, %id : !tt.ptr<i32>, i32
    %r:2 = tt.call @"clip.i32"(%from) : (!tt.ptr<i32>) -> (i32, !tt.ptr<i32>)
    %s = tt.load %r#1 : !tt.ptr<i32>
    %t = arith.addi %r#0, %s : i32
    tt.store %to, %t : !tt.ptr<i32>
    tt.return
  }
  tt.func private @"clip.i32"(%p: !tt.ptr<i32>) -> (i32, !tt.ptr<i32>) {
    %c0 = arith.constant 0 : i32
    %v = tt.load %p : !tt.ptr<i32>
    %c = arith.cmpi slt, %v, %c0 : i32
    cf.cond_br %c, ^bb1, ^bb2
  ^bb1:
    tt.return %c0, %p : i32, !tt.ptr<i32>
  ^bb2:
    tt.return %v, %p : i32, !tt.ptr<i32>
  }
}
"""
    x, out = np.array([3, -3, 5], np.int32), np.zeros(3, np.int32)

    run(text, [x, out], (3, 1, 1))

    assert out.tolist() == [6, -3, 10]


def test_descriptors_pass_through_branches_and_loops() -> None:
    text = kernel(
        "%x: !tt.ptr<i32>, %y: !tt.ptr<i32>, %out: !tt.ptr<i32>, %n: i32",
        """
    %id = tt.get_program_id x : i32
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %c4 = arith.constant 4 : i32
    %one = arith.constant 1 : i64
    %a = tt.make_tensor_descriptor %x, [%n], [%one] : <i32>, <4xi32>
    %b = tt.make_tensor_descriptor %y, [%c1], [%one] : <i32>, <4xi32>
    %first = arith.cmpi eq, %id, %c0 : i32
    %d = scf.if %first -> (!tt.tensordesc<4xi32>) {
      scf.yield %a : !tt.tensordesc<4xi32>
    } else {
      scf.yield %b : !tt.tensordesc<4xi32>
    }
    %e = scf.for %i = %c0 to %id step %c1 iter_args(%f = %d) -> (!tt.tensordesc<4xi32>) : i32 {
      scf.yield %f : !tt.tensordesc<4xi32>
    }
    %v = tt.descriptor_load %e[%c0] : !tt.tensordesc<4xi32> -> tensor<4xi32>
    %o = arith.muli %id, %c4 : i32
    %p = tt.addptr %out, %o : !tt.ptr<i32>, i32
    %r = tt.make_range {end = 4 : i32, start = 0 : i32} : tensor<4xi32>
    %s = tt.splat %p : !tt.ptr<i32> -> tensor<4x!tt.ptr<i32>>
    %q = tt.addptr %s, %r : tensor<4x!tt.ptr<i32>>, tensor<4xi32>
    tt.store %q, %v : tensor<4x!tt.ptr<i32>>""",
    )
    x, y, out = (
        np.arange(1, 5, dtype=np.int32),
        np.arange(7, 11, dtype=np.int32),
        np.zeros(12, np.int32),
    )

    run(text, [x, y, out, 3], (3, 1, 1))

    assert out.reshape(3, 4).tolist() == [[1, 2, 3, 0], [7, 0, 0, 0], [7, 0, 0, 0]]


def test_a_grid_of_three_axes_counts_the_first_fastest() -> None:
    text = kernel(
        "%out: !tt.ptr<i32>",
        """
    %i = tt.get_program_id x : i32
    %j = tt.get_program_id y : i32
    %k = tt.get_program_id z : i32
    %nx = tt.get_num_programs x : i32
    %ny = tt.get_num_programs y : i32
    %a = arith.muli %k, %ny : i32
    %b = arith.addi %a, %j : i32
    %c = arith.muli %b, %nx : i32
    %d = arith.addi %c, %i : i32
    %p = tt.addptr %out, %d : !tt.ptr<i32>, i32
    %h = arith.constant 100 : i32
    %t = arith.constant 10 : i32
    %x = arith.muli %i, %h : i32
    %y = arith.muli %j, %t : i32
    %z = arith.addi %x, %y : i32
    %w = arith.addi %z, %k : i32
    tt.store %p, %w : !tt.ptr<i32>""",
    )
    out = np.full(24, -1, np.int32)

    run(text, [out], (2, 3, 4))

    assert out.tolist() == [
        100 * i + 10 * j + k for k in range(4) for j in range(3) for i in range(2)
    ]


def test_more_programs_than_run_together_give_the_same() -> None:
    # A tile of 2^17 elements: four programs at a time, and the last one alone.
    text = kernel(
        "%out: !tt.ptr<i64>",
        """
    %id = tt.get_program_id x : i32
    %r = tt.make_range {end = 131072 : i32, start = 0 : i32} : tensor<131072xi32>
    %s = tt.splat %id : i32 -> tensor<131072xi32>
    %t = arith.addi %s, %r : tensor<131072xi32>
    %w = arith.extsi %t : tensor<131072xi32> to tensor<131072xi64>
    %sum = "tt.reduce"(%w) <{axis = 0 : i32}> ({
    ^bb0(%a: i64, %b: i64):
      %c = arith.addi %a, %b : i64
      tt.reduce.return %c : i64
    }) : (tensor<131072xi64>) -> i64
    %p = tt.addptr %out, %id : !tt.ptr<i64>, i32
    tt.store %p, %sum : !tt.ptr<i64>""",
    )
    out = np.zeros(5, np.int64)

    run(text, [out], (5, 1, 1))

    assert out.tolist() == [(1 << 17) * n + (1 << 16) * ((1 << 17) - 1) for n in range(5)]


def test_the_only_element_of_a_tile_is_a_number() -> None:
    body = """
    %t = tt.splat %v : i32 -> tensor<1xi32>
    %n = tt.unsplat %t : tensor<1xi32>
    %r = arith.addi %n, %v : i32
"""
    assert of_each(body, [5, 6, 7]) == [10, 12, 14]


def test_of_stores_to_one_address_the_last_programs_stays() -> None:
    body = "    tt.store %x, %v : !tt.ptr<i32>\n    %r = tt.load %x : !tt.ptr<i32>"

    assert of_each(body, [5, 6, 7], races=False) == [7, 7, 7]
