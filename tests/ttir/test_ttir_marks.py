"""Lanes that hold nothing defined: told where they do harm, and only there."""

import warnings
from collections.abc import Sequence

import numpy as np
import pytest
from ttir_texts import FIRST, Array, kernel

from kernbench.errors import KernbenchError
from kernbench.ttir.executing import Executable
from kernbench.ttir.memory import Allocation, Memory
from kernbench.ttir.reader import read
from kernbench.ttir.reports import UndefinedLanesWarning

HEAD = """
%l = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<8xi32>
%five = arith.constant dense<5> : tensor<8xi32>
%zero = arith.constant dense<0> : tensor<8xi32>
%one = arith.constant dense<1> : tensor<8xi32>
%m = arith.cmpi slt, %l, %five : tensor<8xi32>
%xs = tt.splat %x : !tt.ptr<i32> -> tensor<8x!tt.ptr<i32>>
%ys = tt.splat %y : !tt.ptr<i32> -> tensor<8x!tt.ptr<i32>>
%p = tt.addptr %xs, %l : tensor<8x!tt.ptr<i32>>, tensor<8xi32>
%q = tt.addptr %ys, %l : tensor<8x!tt.ptr<i32>>, tensor<8xi32>
"""
MASKED = '%v = tt.load %p, %m : tensor<8x!tt.ptr<i32>> loc("mine.py":3:5)\n'
WHOLE = '%v = tt.load %p : tensor<8x!tt.ptr<i32>> loc("mine.py":3:5)\n'
STORE = 'tt.store %q, %r : tensor<8x!tt.ptr<i32>> loc("mine.py":9:5)'
SUM = """%s = "tt.reduce"(%w) <{axis = 0 : i32}> ({
^bb0(%a: i32, %b: i32):
  %c = arith.addi %a, %b : i32
  tt.reduce.return %c : i32
}) : (tensor<8xi32>) -> i32
%r = tt.splat %s : i32 -> tensor<8xi32>
"""


def launched(
    body: str, x: Array, gaps: Sequence[int] = (), programs: int = 1
) -> tuple[list[int], list[int]]:
    """Runs a kernel of `%x` and `%y`; x has elements that nothing has written.

    Returns:
        What y holds, and which elements of x nothing has written.
    """
    y = np.zeros(8, np.int32)
    unwritten = np.zeros(x.nbytes, np.bool_)
    for place in gaps:
        unwritten[4 * place : 4 * place + 4] = True
    memory = Memory(
        {
            0: Allocation("argument x", FIRST, x.view(np.uint8), unwritten=unwritten),
            1: Allocation("argument y", 2 * FIRST, y.view(np.uint8)),
        }
    )
    text = kernel("%x: !tt.ptr<i32>, %y: !tt.ptr<i32>", HEAD + body)
    places = [np.array([FIRST]), np.array([2 * FIRST])]
    Executable(read(text)).run((programs, 1, 1), places, memory, print)
    left = np.flatnonzero(unwritten.reshape(-1, 4).any(axis=1))
    return [int(each) for each in y], [int(each) for each in left]


def warned(body: str) -> list[str]:
    """Returns the lines of the only warning that a kernel gives."""
    with pytest.warns(UndefinedLanesWarning) as caught:
        launched(body, np.arange(1, 9, dtype=np.int32))
    (only,) = caught
    return str(only.message).split("\n")


def test_a_lane_that_no_mask_has_read_is_told_where_it_is_stored() -> None:
    assert warned(MASKED + "%r = arith.addi %v, %one : tensor<8xi32>\n" + STORE) == [
        "[K14] program (0, 0, 0) of kernel uses lanes that the mask of tl.load leaves out and no "
        "other= defines",
        "  at mine.py:3:5",
        "  tl.store uses it in program (0, 0, 0) of kernel, lane (5,)",
        "  at mine.py:9:5",
        "  hint: say what these lanes are: tl.load(ptr, mask=mask, other=0.0)",
    ]


CHOSEN = "%r = arith.select %m, %v, %zero : tensor<8xi1>, tensor<8xi32>\n"
TIMES = "%k = arith.extui %m : tensor<8xi1> to tensor<8xi32>\n"
ANDED = """%big = arith.cmpi sgt, %v, %zero : tensor<8xi32>
%both = arith.andi %m, %big : tensor<8xi1>
tt.store %q, %one, %both : tensor<8x!tt.ptr<i32>>"""


@pytest.mark.parametrize(
    ("body", "harm"),
    [
        ("%w = arith.addi %v, %one : tensor<8xi32>\n" + SUM + STORE, True),
        ("tt.store %q, %v, %m : tensor<8x!tt.ptr<i32>>", False),
        (CHOSEN + STORE, False),
        (CHOSEN.replace("%v, %zero", "%zero, %v") + STORE, True),
        (TIMES + "%w = arith.muli %v, %k : tensor<8xi32>\n" + SUM + STORE, False),
        (ANDED, False),
        (ANDED.replace("arith.andi", "arith.ori"), True),
        (SUM.replace("%w", "%v") + "%c9 = arith.constant 9 : i32\n", False),
        (
            SUM.replace("%w", "%v")
            + "%c9 = arith.constant 9 : i32\n%yes = arith.cmpi sgt, %s, %c9 : i32\n"
            + "scf.if %yes {\n  tt.store %q, %one : tensor<8x!tt.ptr<i32>>\n}",
            True,
        ),
        (
            "%w = tt.addptr %ys, %v : tensor<8x!tt.ptr<i32>>, tensor<8xi32>\n"
            "tt.store %w, %one, %m : tensor<8x!tt.ptr<i32>>",
            False,
        ),
        (
            "%t = tt.reshape %v : tensor<8xi32> -> tensor<2x4xi32>\n"
            "%u = tt.trans %t {order = array<i32: 1, 0>} : tensor<2x4xi32> -> tensor<4x2xi32>\n"
            "%r = tt.reshape %u : tensor<4x2xi32> -> tensor<8xi32>\n" + STORE,
            True,
        ),
    ],
)
def test_lanes_that_are_left_out_are_told_where_they_do_harm(body: str, harm: bool) -> None:
    if harm:
        warned(MASKED + body)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        launched(MASKED + body, np.arange(8, dtype=np.int32) % 7)


@pytest.mark.parametrize("harm", [False, True])
def test_marks_of_a_load_that_reads_nothing_change_their_shape(harm: bool) -> None:
    """All lanes hold the same 0, and are held once; each has a mark."""
    body = (
        "%none = arith.cmpi slt, %l, %zero : tensor<8xi32>\n"
        "%v = tt.load %p, %none : tensor<8x!tt.ptr<i32>>\n"
        "%t = tt.expand_dims %v {axis = 0 : i32} : tensor<8xi32> -> tensor<1x8xi32>\n"
        "%r = tt.reshape %t : tensor<1x8xi32> -> tensor<8xi32>\n"
        f"tt.store %q, %r, {'%m' if harm else '%none'} : tensor<8x!tt.ptr<i32>>"
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        y, _ = launched(body, np.arange(1, 9, dtype=np.int32))

    assert y == [0] * 8
    assert [one.category for one in caught] == [UndefinedLanesWarning] * harm


DIVIDED = '%d = arith.divsi %five, %v : tensor<8xi32> loc("mine.py":4:5)\n'


def told(body: str, x: Array, gaps: Sequence[int] = (), programs: int = 1) -> list[str]:
    with pytest.raises(KernbenchError) as caught:
        launched(body, x, gaps, programs)
    return [str(caught.value.code), caught.value.summary, *caught.value.facts]


@pytest.mark.parametrize("name", ["divsi", "divui", "remsi", "remui"])
def test_a_division_by_zero_that_is_stored_is_told(name: str) -> None:
    body = WHOLE + DIVIDED.replace("divsi", name) + STORE.replace("%r", "%d")
    with pytest.raises(ZeroDivisionError) as caught:
        launched(body, np.array([1, 2, 0, 4, 5, 6, 7, 8], np.int32))
    assert str(caught.value).split("\n") == [
        "[K13] program (0, 0, 0) of kernel divides a whole number by 0",
        "  at mine.py:4:5",
        "  tl.store uses it in program (0, 0, 0) of kernel, lane (2,)",
        "  at mine.py:9:5",
        "  hint: divide by tl.where(divisor == 0, 1, divisor)",
    ]


def test_a_division_by_zero_that_nobody_uses_is_none() -> None:
    body = WHOLE + DIVIDED + "tt.store %q, %d, %m : tensor<8x!tt.ptr<i32>>"
    found, _ = launched(body, np.array([1, 2, 3, 4, 5, 0, 0, 0], np.int32))
    assert found == [5, 2, 1, 1, 1, 0, 0, 0]


COPY = WHOLE + STORE.replace("%r", "%v")


def test_what_nothing_has_written_is_told_where_it_is_stored() -> None:
    assert told(COPY, np.zeros(8, np.int32), gaps=(3, 6)) == [
        "M5",
        "tl.load reads what nothing has written of argument x",
        "at mine.py:3:5",
        "program (0, 0, 0), lane (3,): byte 12 of 32, the first of 2",
        "tl.store uses it in program (0, 0, 0) of kernel, lane (3,)",
        "at mine.py:9:5",
    ]


@pytest.mark.parametrize(
    ("body", "gaps", "left"),
    [
        (MASKED + "tt.store %q, %v, %m : tensor<8x!tt.ptr<i32>>", (5, 7), [5, 7]),
        (WHOLE + CHOSEN + STORE, (6,), [6]),
        ("tt.store %p, %one, %m : tensor<8x!tt.ptr<i32>>\n" + MASKED, range(8), [5, 6, 7]),
        ("tt.store %p, %one : tensor<8x!tt.ptr<i32>>\n" + COPY, range(8), []),
    ],
)
def test_what_nothing_has_written_may_be_read_and_not_used(
    body: str, gaps: Sequence[int], left: list[int]
) -> None:
    assert launched(body, np.zeros(8, np.int32), gaps)[1] == left


SCAN = """%r = "tt.scan"(%v) <{axis = 0 : i32, reverse = false}> ({
^bb0(%a: i32, %b: i32):
  %c = arith.addi %a, %b : i32
  tt.scan.return %c : i32
}) : (tensor<8xi32>) -> tensor<8xi32>
"""
GATHER = """%seven = arith.constant dense<7> : tensor<8xi32>
%from = arith.subi %seven, %l : tensor<8xi32>
%r = tt.gather %v[%from] {axis = 0 : i32} : (tensor<8xi32>, tensor<8xi32>) -> tensor<8xi32>
"""
HISTOGRAM = "%r = tt.histogram %v : tensor<8xi32> -> tensor<8xi32>\n"
DOT = """%f = arith.sitofp %v : tensor<8xi32> to tensor<8xf32>
%rows = tt.reshape %f : tensor<8xf32> -> tensor<2x4xf32>
%by = arith.constant dense<1.0> : tensor<4x4xf32>
%none = arith.constant dense<0.0> : tensor<2x4xf32>
%sums = tt.dot %rows, %by, %none : tensor<2x4xf32> * tensor<4x4xf32> -> tensor<2x4xf32>
%flat = tt.reshape %sums : tensor<2x4xf32> -> tensor<8xf32>
%r = arith.fptosi %flat : tensor<8xf32> to tensor<8xi32>
"""


@pytest.mark.parametrize(
    ("operation", "gap", "lane"),
    [
        (SCAN, 3, 3),
        (SCAN.replace("false", "true"), 3, 0),  # sums from the last lane on
        (GATHER, 2, 5),
        (HISTOGRAM, 6, 0),  # it might be in any bin
        (DOT, 5, 4),  # of the second row of two
    ],
)
def test_marks_go_through_what_mixes_lanes(operation: str, gap: int, lane: int) -> None:
    *_, use, place = told(WHOLE + operation + STORE, np.zeros(8, np.int32), gaps=(gap,))
    assert use == f"tl.store uses it in program (0, 0, 0) of kernel, lane ({lane},)"
    assert place == "at mine.py:9:5"


def test_a_factor_that_nothing_has_written_does_no_harm_beside_zeros() -> None:
    body = WHOLE + DOT.replace("dense<1.0>", "dense<0.0>") + STORE
    assert launched(body, np.zeros(8, np.int32), gaps=(5,))[0] == [0] * 8


def test_an_atomic_operation_on_what_nothing_has_written_is_told() -> None:
    body = (
        "%yes = arith.constant dense<true> : tensor<8xi1>\n"
        "%o = tt.atomic_rmw add, relaxed, gpu, %p, %one, %yes : "
        "(tensor<8x!tt.ptr<i32>>, tensor<8xi32>, tensor<8xi1>) -> tensor<8xi32>"
    )
    assert told(body, np.zeros(8, np.int32), gaps=(1,))[:2] == [
        "M5",
        "tl.atomic_add reads what nothing has written of argument x",
    ]


@pytest.mark.parametrize("programs", [1, 4])
def test_marks_go_through_branches_and_loops(programs: int) -> None:
    # Programs part at the branch, and turn different numbers of times.
    body = (
        WHOLE
        + """
%i = tt.get_program_id x : i32
%c0 = arith.constant 0 : i32
%c1 = arith.constant 1 : i32
%first = arith.cmpi eq, %i, %c0 : i32
%b = scf.if %first -> (tensor<8xi32>) {
  %t = arith.addi %v, %one : tensor<8xi32>
  scf.yield %t : tensor<8xi32>
} else {
  scf.yield %zero : tensor<8xi32>
}
%n = arith.addi %i, %c1 : i32
%r = scf.for %j = %c0 to %n step %c1 iter_args(%acc = %b) -> (tensor<8xi32>)  : i32 {
  %t = arith.addi %acc, %one : tensor<8xi32>
  scf.yield %t : tensor<8xi32>
}
"""
        + STORE
    )
    assert told(body, np.zeros(8, np.int32), gaps=(2,), programs=programs)[4:] == [
        "tl.store uses it in program (0, 0, 0) of kernel, lane (2,)",
        "at mine.py:9:5",
    ]
