"""Atomic operations, reports of accesses outside, and what kernels print."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ttir_texts import Array, kernel, run

from kernbench.errors import KernbenchError, UnsupportedError
from kernbench.ttir.executing import Executable
from kernbench.ttir.memory import Allocation, Memory
from kernbench.ttir.reader import read
from kernbench.ttir.types import SCALARS

LANES = 8


def atomics(kind: str, type_: str, *, wanted: bool) -> str:
    """Returns a kernel that combines values into places, and stores what it found if wanted."""
    pointers, tile = f"tensor<8x!tt.ptr<{type_}>>", f"tensor<8x{type_}>"
    ints = "tensor<8x!tt.ptr<i32>>"
    types = f"({pointers}, {tile}, tensor<8xi1>) -> {tile}"
    last = f"    tt.store %o1, %old : {pointers}" if wanted else ""
    return kernel(
        f"%x: !tt.ptr<{type_}>, %where: !tt.ptr<i32>, %v: !tt.ptr<{type_}>, %out: !tt.ptr<{type_}>",
        f"""
    %id = tt.get_program_id x : i32
    %c8 = arith.constant 8 : i32
    %b = arith.muli %id, %c8 : i32
    %i = tt.make_range {{end = 8 : i32, start = 0 : i32}} : tensor<8xi32>
    %s = tt.splat %b : i32 -> tensor<8xi32>
    %l = arith.addi %s, %i : tensor<8xi32>
    %w0 = tt.splat %where : !tt.ptr<i32> -> {ints}
    %w1 = tt.addptr %w0, %l : {ints}, tensor<8xi32>
    %w = tt.load %w1 : {ints}
    %v0 = tt.splat %v : !tt.ptr<{type_}> -> {pointers}
    %v1 = tt.addptr %v0, %l : {pointers}, tensor<8xi32>
    %n = tt.load %v1 : {pointers}
    %o0 = tt.splat %out : !tt.ptr<{type_}> -> {pointers}
    %o1 = tt.addptr %o0, %l : {pointers}, tensor<8xi32>
    %p0 = tt.splat %x : !tt.ptr<{type_}> -> {pointers}
    %p = tt.addptr %p0, %w : {pointers}, tensor<8xi32>
    %z = arith.constant dense<0> : tensor<8xi32>
    %m = arith.cmpi sge, %w, %z : tensor<8xi32>
    %old = tt.atomic_rmw {kind}, acq_rel, gpu, %p, %n, %m : {types}
{last}""",
    )


WAYS: dict[str, tuple[str, Any]] = {
    "add": ("i32", lambda a, b: a + b),
    "fadd": ("f32", lambda a, b: a + b),
    "max": ("i32", max),
    "min": ("i32", min),
    "umax": ("i32", lambda a, b: max(a, b, key=lambda n: int(n) % 2**32)),
    "umin": ("i32", lambda a, b: min(a, b, key=lambda n: int(n) % 2**32)),
    "and": ("i32", lambda a, b: a & b),
    "or": ("i32", lambda a, b: a | b),
    "xor": ("i32", lambda a, b: a ^ b),
    "exch": ("f32", lambda a, b: b),
}


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("kind", WAYS)
@settings(max_examples=5)
@given(data=st.data())
def test_atomic_operations_act_one_lane_after_the_other(kind: str, wanted: bool, data: Any) -> None:
    type_, combine = WAYS[kind]
    size = 3 * LANES
    numbers = st.lists(st.integers(-50, 50), min_size=size, max_size=size)
    where = np.array([n % 5 - 1 for n in data.draw(numbers)], np.int32)
    given_ = np.array(data.draw(numbers), SCALARS[type_])
    x, out = np.arange(4).astype(SCALARS[type_]), np.zeros(size, SCALARS[type_])
    expected, found = x.copy(), np.zeros_like(out)
    for lane, (place, value) in enumerate(zip(where, given_, strict=True)):
        if place >= 0:
            found[lane] = expected[place]
            expected[place] = combine(expected[place], value)

    run(atomics(kind, type_, wanted=wanted), [x, where, given_, out], (3, 1, 1))

    assert x.tolist() == expected.tolist()
    assert out.tolist() == (found.tolist() if wanted else [0] * size)


def test_half_precision_is_rounded_at_every_addition() -> None:
    x, out = np.array([2048], np.float16), np.zeros(8, np.float16)

    run(
        atomics("fadd", "f16", wanted=True), [x, np.zeros(8, np.int32), np.ones(8, np.float16), out]
    )

    assert x[0] == 2048  # 2049 is half way, and goes to the even one: 2048, eight times


def test_unknown_atomic_operations_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="the kind odd is not simulated"):
        Executable(read(atomics("odd", "i32", wanted=True)))


SCALE = """
    %i = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<8xi32>
    %id = tt.get_program_id x : i32
    %c = arith.constant 6 : i32
    %b = arith.muli %id, %c : i32
    %s = tt.splat %b : i32 -> tensor<8xi32>
    %l = arith.addi %s, %i : tensor<8xi32>
    %x0 = tt.splat %x : !tt.ptr<f32> -> tensor<8x!tt.ptr<f32>>
    %x1 = tt.addptr %x0, %l : tensor<8x!tt.ptr<f32>>, tensor<8xi32>
"""
PLACE = 'loc(callsite(#lib at callsite("mine.py":7:9 at "mine.py":20:5)))'


@pytest.mark.parametrize(
    ("operation", "summary", "code"),
    [
        ("%v = tt.load %x1 : tensor<8x!tt.ptr<f32>>", "tl.load out of bounds of argument 0", "M1"),
        (
            "tt.store %x1, %one : tensor<8x!tt.ptr<f32>>",
            "tl.store out of bounds of argument 0",
            "M2",
        ),
        (
            "%v = tt.atomic_rmw fadd, relaxed, gpu, %x1, %one : "
            "(tensor<8x!tt.ptr<f32>>, tensor<8xf32>) -> tensor<8xf32>",
            "tl.atomic_fadd out of bounds of argument 0",
            "M2",
        ),
    ],
)
def test_accesses_outside_name_kernel_line_program_lane_tensor_and_byte(
    operation: str, summary: str, code: str
) -> None:
    text = kernel(
        "%x: !tt.ptr<f32>",
        f"""{SCALE}
    %one = arith.constant dense<1.0> : tensor<8xf32>
    {operation} {PLACE}""",
    )
    text = '#lib = loc("/usr/lib/triton/language/standard.py":3:1)\n' + text

    with pytest.raises(KernbenchError) as caught:
        run(text, [np.zeros(18, np.float32)], (3, 1, 1))

    assert caught.value.code == code
    assert caught.value.summary == summary
    assert list(caught.value.facts) == [
        "at mine.py:7:9",
        "called at mine.py:20:5",
        "program (2, 0, 0) of kernel, lane (6,)",
        "first bad element at byte 72 of 72; 2 of 24 lanes of programs that run together",
    ]
    assert "mask the lanes beyond the end" in caught.value.hint


def test_a_block_whose_tensor_is_not_there_is_reported() -> None:
    text = kernel(
        "%x: !tt.ptr<f32>",
        """
    %c0 = arith.constant 0 : i32
    %c16 = arith.constant 16 : i32
    %one = arith.constant 1 : i64
    %d = tt.make_tensor_descriptor %x, [%c16], [%one] : <f32>, <16xf32>
    %v = tt.descriptor_load %d[%c0] : !tt.tensordesc<16xf32> -> tensor<16xf32> loc("mine.py":4:1)
    tt.descriptor_store %d[%c0], %v : !tt.tensordesc<16xf32>, tensor<16xf32> loc("mine.py":5:1)""",
    )
    with pytest.raises(KernbenchError) as caught:
        run(text, [np.zeros(9, np.float32)])
    assert caught.value.summary == "load of a descriptor out of bounds of argument 0"
    assert caught.value.facts[3:] == ("the descriptor says shape (16,), of strides (4,) in bytes",)
    assert "shape and the strides of the tensor" in caught.value.hint

    written = text.replace(
        "%v = tt.descriptor_load %d[%c0] : !tt.tensordesc<16xf32> ->",
        "%v = arith.constant dense<1.0> :",
    )
    with pytest.raises(KernbenchError) as caught:
        run(written, [np.zeros(9, np.float32)])
    assert (caught.value.code, caught.value.facts[0]) == ("M2", "at mine.py:5:1")


def test_padding_of_a_block_may_be_nan() -> None:
    text = kernel(
        "%x: !tt.ptr<f32>, %out: !tt.ptr<f32>",
        """
    %c2 = arith.constant 2 : i32
    %c4 = arith.constant 4 : i32
    %one = arith.constant 1 : i64
    %c0 = arith.constant 0 : i32
    %d = tt.make_tensor_descriptor %x, [%c4], [%one] {padding = 2 : i32} : <f32>, <4xf32>
    %o = tt.make_tensor_descriptor %out, [%c4], [%one] : <f32>, <4xf32>
    %v = tt.descriptor_load %d[%c2] : !tt.tensordesc<4xf32> -> tensor<4xf32>
    tt.descriptor_store %o[%c0], %v : !tt.tensordesc<4xf32>, tensor<4xf32>""",
    )
    out = np.zeros(4, np.float32)

    run(text, [np.arange(4, dtype=np.float32), out])

    np.testing.assert_array_equal(out, [2, 3, np.nan, np.nan])


def test_addresses_inside_of_elements_are_misaligned() -> None:
    text = kernel(
        "%x: !tt.ptr<i8>",
        """
    %c2 = arith.constant 2 : i32
    %p = tt.addptr %x, %c2 : !tt.ptr<i8>, i32
    %q = tt.bitcast %p : !tt.ptr<i8> -> !tt.ptr<i32>
    %v = tt.load %q : !tt.ptr<i32> loc("mine.py":4:1)""",
    )

    with pytest.raises(KernbenchError) as caught:
        run(text, [np.zeros(16, np.int8)])

    assert caught.value.summary == "tl.load misaligned in argument 0"
    assert caught.value.facts[1:] == (
        "program (0, 0, 0) of kernel",
        "first bad element at byte 2 of 16; 1 of 1 lanes of programs that run together",
    )


def test_an_address_in_no_memory_is_reported_as_a_number() -> None:
    text = kernel(
        "%a: i64",
        """
    %p = tt.int_to_ptr %a : i64 -> !tt.ptr<i32>
    %b = tt.ptr_to_int %p : !tt.ptr<i32> -> i64
    %q = tt.int_to_ptr %b : i64 -> !tt.ptr<i32>
    %v = tt.load %q : !tt.ptr<i32>""",
    )

    with pytest.raises(KernbenchError) as caught:
        run(text, [77], types={0: "i64"})

    assert caught.value.summary == "tl.load out of bounds of all memory that the kernel was given"
    assert "first bad element at address 77; 1 of 1 lanes" in caught.value.facts[1]
    assert caught.value.facts[2].startswith("no tensor lies there; one that did is gone")
    assert "keep a tensor while kernels have its address" in caught.value.hint


OF_ROWS = """
    %id = tt.get_program_id x : i32
    %r = arith.muli %id, %stride : i32 loc("mine.py":3:9)
    %rs = tt.splat %r : i32 -> tensor<4xi32>
    %l = tt.make_range {end = 4 : i32, start = 0 : i32} : tensor<4xi32>
    %o = arith.addi %rs, %l : tensor<4xi32> loc("mine.py":3:20)
    %xs = tt.splat %x : !tt.ptr<i8> -> tensor<4x!tt.ptr<i8>>
    %p = tt.addptr %xs, %o : tensor<4x!tt.ptr<i8>>, tensor<4xi32>
    %v = tt.load %p : tensor<4x!tt.ptr<i8>> loc("mine.py":4:1)
"""


@pytest.mark.parametrize(
    ("stride", "numbers", "line"),
    [
        (1 << 30, "2 * 1073741824", "mine.py:3:9"),
        ((1 << 31) - 2, "2147483646 + 2", "mine.py:3:20"),
    ],
)
def test_an_offset_that_wrapped_around_is_named_with_its_line(
    stride: int, numbers: str, line: str
) -> None:
    text = kernel("%x: !tt.ptr<i8>, %stride: i32", OF_ROWS)
    # A tensor of which all rows are seen as one byte: what the last program asks for is inside.
    first = Allocation("x", 1 << 40, np.broadcast_to(np.zeros(1, np.uint8), (1 << 33,)))
    held = [np.array([first.start]), np.array([stride], np.int32)]

    with pytest.raises(KernbenchError) as caught:
        Executable(read(text)).run((3, 1, 1), held, Memory({0: first}), print, races=False)

    assert caught.value.facts[0] == "at mine.py:4:1"
    assert caught.value.facts[3:] == (f"{numbers} wraps around, as it is int32, at {line}",)
    assert caught.value.hint == "convert an operand first: row.to(tl.int64) * stride"


def test_an_offset_before_the_start_is_told_so() -> None:
    text = kernel("%x: !tt.ptr<i8>, %stride: i32", OF_ROWS)
    with pytest.raises(KernbenchError) as caught:
        run(text, [np.zeros(16, np.uint8), -4], (2, 1, 1))
    assert "program (1, 0, 0) of kernel, lane (0,)" in caught.value.facts
    assert "first bad element at byte -4 of 16" in caught.value.facts[2]
    assert "mask the lanes before the start" in caught.value.hint
    assert len(caught.value.facts) == 3


PRINTS: list[tuple[str, str, Array | int | float, list[str]]] = [
    ("hex = false, isSigned = array<i32: 1>", "i32", -2, ["pid (0, 0, 0) idx () v: -2"]),
    ("hex = false, isSigned = array<i32: 0>", "i32", -2, ["pid (0, 0, 0) idx () v: 4294967294"]),
    ("hex = true, isSigned = array<i32: 1>", "i32", -2, ["pid (0, 0, 0) idx () v: 0xfffffffe"]),
    ("hex = false, isSigned = array<i32: 0>", "f32", 1.5, ["pid (0, 0, 0) idx () v: 1.5"]),
]


@pytest.mark.parametrize(("said", "type_", "number", "expected"), PRINTS)
def test_numbers_are_printed(said: str, type_: str, number: Any, expected: list[str]) -> None:
    text = kernel(f"%v: {type_}", f'tt.print " v: " {{{said}}} : %v : {type_}')

    assert run(text, [number]) == expected


def test_every_program_and_lane_prints() -> None:
    text = kernel(
        "%v: i32",
        """
    %r = tt.make_range {end = 2 : i32, start = 0 : i32} : tensor<2xi32>
    tt.print "here" {hex = false, isSigned = array<i32>}
    tt.print "r " {hex = false, isSigned = array<i32: 1>} : %r : tensor<2xi32>""",
    )

    assert run(text, [1], (2, 1, 1)) == [
        "pid (0, 0, 0)here",
        "pid (1, 0, 0)here",
        *(f"pid ({program}, 0, 0) idx ({lane})r {lane}" for program in (0, 1) for lane in (0, 1)),
    ]


def test_lanes_that_break_an_assertion_are_named() -> None:
    text = kernel(
        "%n: i32",
        """
    %r = tt.make_range {end = 4 : i32, start = 0 : i32} : tensor<4xi32>
    %s = tt.splat %n : i32 -> tensor<4xi32>
    %c = arith.cmpi slt, %r, %s : tensor<4xi32>
    tt.assert %c, "" : tensor<4xi1>""",
    )

    with pytest.raises(KernbenchError) as caught:
        run(text, [3])

    assert str(caught.value) == (
        "kernel: an assertion does not hold\n  program (0, 0, 0) of kernel, lane (3,)"
    )


@pytest.mark.parametrize(
    ("element", "block", "expected"),
    [
        ("ui32", "4xui32", [1, 5, 5, 0]),
        ("i32", "4xi32", [-1, -1, 5, -7]),
        ("ui32", "tensor<4xui32>", [1, 5, 5, 0]),  # as Triton 3.6 and 3.7 write it
    ],
)
def test_a_reduction_through_a_descriptor_knows_numbers_without_a_sign(
    element: str, block: str, expected: list[int]
) -> None:
    x, out = np.array([-1, 5, 9, -7], np.int32), np.array([1, -1, 5, 0], np.int32)
    one = f"!tt.tensordesc<4x{element}>"
    text = kernel(
        "%x: !tt.ptr<i32>, %out: !tt.ptr<i32>",
        f"""    %c0 = arith.constant 0 : i32
    %c4 = arith.constant 4 : i32
    %one = arith.constant 1 : i64
    %d = tt.make_tensor_descriptor %x, [%c4], [%one] : <i32>, <4x{element}>
    %o = tt.make_tensor_descriptor %out, [%c4], [%one] : <i32>, <{block}>
    %v = tt.descriptor_load %d[%c0] : {one} -> tensor<4xi32>
    tt.descriptor_reduce min, %o[%c0], %v : {one}, tensor<4xi32>""",
    )

    run(text, [x, out])

    assert out.tolist() == expected


DESCRIPTOR = """    %c = arith.constant {rows} : i32
    %s = arith.constant {stride} : i64
    %one = arith.constant {last} : i64
    %move = arith.constant {move} : i32
    %p = tt.addptr %x, %move : !tt.ptr<f32>, i32
    %d = tt.make_tensor_descriptor %p, [%c, %c], [%s, %one] : <f32>, <4x4xf32> loc("mine.py":7:5)"""


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"move": 1}, "begins at an address that is no multiple of 16"),
        ({"stride": 6}, "has a stride that is no multiple of 16 bytes"),
        ({"last": 2}, "has elements along its last axis that are no neighbours"),
        ({"rows": 0}, "has an extent of 0"),
    ],
)
def test_a_descriptor_that_gpus_refuse_is_told(said: dict[str, int], message: str) -> None:
    numbers = {"rows": 4, "stride": 8, "last": 1, "move": 0}
    run(kernel("%x: !tt.ptr<f32>", DESCRIPTOR.format(**numbers)), [np.zeros(64, np.float32)])

    with pytest.raises(KernbenchError) as caught:
        run(
            kernel("%x: !tt.ptr<f32>", DESCRIPTOR.format(**{**numbers, **said})),
            [np.zeros(64, np.float32)],
        )

    told = f"[K15] program (0, 0, 0) of kernel makes a descriptor of a tensor that {message}"
    assert str(caught.value).split("\n")[:2] == [told, "  at mine.py:7:5"]
