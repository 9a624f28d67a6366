"""Operations on shapes, reductions and products, with texts written by hand."""

import math
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ttir_texts import Array, elementwise, kernel, run

from kernbench.errors import UnsupportedError
from kernbench.ttir.combining import one_by_one
from kernbench.ttir.executing import Executable
from kernbench.ttir.products import Product
from kernbench.ttir.reader import read
from kernbench.ttir.types import SCALARS


def ramp(name: str, size: int) -> str:
    return f"{name} = tt.make_range {{end = {size} : i32, start = 0 : i32}} : tensor<{size}xi32>"


def of_tile(
    body: str, x: Array, given: str, shape: str, result: str, count: int, more: Array | None = None
) -> Array:
    """Returns what a kernel makes of a tile `%t`, as `count` numbers of `%r`.

    Args:
        given: Type of the tile's elements.
        shape: Shape of the tile, such as `4x8`.
        result: Type of the elements of `%r`, a tile of `count`.
        more: A second tile of the same type, `%u`.
    """
    out = np.zeros(count, SCALARS[result])
    size = x.size
    lines = [ramp("%i", size)]
    for name, source in (("t", "%x"), ("u", "%y")):
        pointers = f"tensor<{size}x!tt.ptr<{given}>>"
        lines += [
            f"%{name}0 = tt.splat {source} : !tt.ptr<{given}> -> {pointers}",
            f"%{name}1 = tt.addptr %{name}0, %i : {pointers}, tensor<{size}xi32>",
            f"%{name}2 = tt.load %{name}1 : {pointers}",
            f"%{name} = tt.reshape %{name}2 : tensor<{size}x{given}> -> tensor<{shape}x{given}>",
        ]
    pointers = f"tensor<{count}x!tt.ptr<{result}>>"
    lines += [
        body,
        ramp("%j", count),
        f"%o0 = tt.splat %out : !tt.ptr<{result}> -> {pointers}",
        f"%o1 = tt.addptr %o0, %j : {pointers}, tensor<{count}xi32>",
        f"tt.store %o1, %r : {pointers}",
    ]
    signature = f"%x: !tt.ptr<{given}>, %y: !tt.ptr<{given}>, %out: !tt.ptr<{result}>"
    run(kernel(signature, "\n".join(lines)), [x, x if more is None else more, out])
    return out


def combined(name: str, operation: str, said: str, given: str, result: str) -> str:
    """Returns a reduction or a scan of `%t` with a region of one operation, as `%s`.

    Args:
        said: Attributes.
        given: Shape and type of the tile.
        result: Type of the result.
    """
    kind = given.rpartition("x")[2]
    return f"""%s = "tt.{name}"(%t) <{{{said}}}> ({{
    ^bb0(%a: {kind}, %b: {kind}):
      %c = {operation} %a, %b : {kind}
      tt.{name}.return %c : {kind}
    }}) : (tensor<{given}>) -> {result}"""


@pytest.mark.parametrize(
    ("operation", "kind", "oracle"),
    [
        ("arith.addi", "i8", lambda a: np.sum(a, axis=1, dtype=np.int8)),
        ("arith.muli", "i32", lambda a: np.prod(a, axis=1, dtype=np.int32)),
        ("arith.maxsi", "i32", lambda a: a.max(axis=1)),
        ("arith.minui", "i32", lambda a: a.view(np.uint32).min(axis=1).view(np.int32)),
        ("arith.xori", "i32", lambda a: np.bitwise_xor.reduce(a, axis=1)),
        ("arith.minnumf", "f32", lambda a: np.fmin.reduce(a, axis=1)),
        ("arith.maximumf", "f16", lambda a: np.maximum.reduce(a, axis=1)),
    ],
)
def test_reductions_of_one_operation(operation: str, kind: str, oracle: Any) -> None:
    x = np.random.default_rng(2).integers(-100, 100, (4, 8)).astype(SCALARS[kind])
    if x.dtype.kind == "f":
        x[1, 2] = np.nan
    body = combined("reduce", operation, "axis = 1 : i32", f"4x8x{kind}", f"tensor<4x{kind}>")
    body += f"\n%r = tt.reshape %s : tensor<4x{kind}> -> tensor<4x{kind}>"
    found = of_tile(body, x, kind, "4x8", kind, 4)

    np.testing.assert_array_equal(found, oracle(x))


def test_sums_of_half_precision_are_rounded_each_time() -> None:
    # First 1 + 2^-11, which is 1 (ties to even), and 2^-11 + 2^-11; then 1 + 2^-10.
    x = np.array([1, 2**-11, 2**-11, 2**-11], np.float16)
    body = combined("reduce", "arith.addf", "axis = 0 : i32", "4xf16", "f16")
    body += "\n%r = tt.splat %s : f16 -> tensor<1xf16>"

    assert of_tile(body, x, "f16", "4", "f16", 1).tolist() == [1 + 2**-10]


def test_running_sums_of_half_precision_are_rounded_once() -> None:
    # 1 + 2^-11 is 1 in half precision (ties to even), 1 + 2^-10 is not; of two roundings, 1 stays.
    x = np.array([1, 2**-11, 2**-11, 0], np.float16)
    body = combined("scan", "arith.addf", "axis = 0 : i32", "4xf16", "tensor<4xf16>")
    body += "\n%r = tt.reshape %s : tensor<4xf16> -> tensor<4xf16>"

    found = of_tile(body, x, "f16", "4", "f16", 4)

    assert found.tolist() == [1, 1, 1 + 2**-10, 1 + 2**-10]


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(
    ("operation", "kind"), [("arith.addi", "i32"), ("arith.addf", "f16"), ("arith.maxui", "i32")]
)
def test_scans_forwards_and_backwards(operation: str, kind: str, backwards: bool) -> None:
    x = np.random.default_rng(3).integers(-9, 9, (2, 8)).astype(SCALARS[kind])
    said = f"axis = 1 : i32, reverse = {str(backwards).lower()}"
    body = combined("scan", operation, said, f"2x8x{kind}", f"tensor<2x8x{kind}>")
    body += f"\n%r = tt.reshape %s : tensor<2x8x{kind}> -> tensor<16x{kind}>"

    found = of_tile(body, x, kind, "2x8", kind, 16).reshape(2, 8)

    way = x[:, ::-1] if backwards else x
    if operation == "arith.maxui":
        expected = np.maximum.accumulate(way.view(np.uint32), axis=1).view(np.int32)
    else:
        expected = np.cumsum(way, axis=1).astype(x.dtype)
    assert found.tolist() == (expected[:, ::-1] if backwards else expected).tolist()


@pytest.mark.parametrize(
    ("given", "result", "precision"),
    [
        ("i8", "i32", ""),
        ("f16", "f16", ""),
        ("f16", "f64", ""),
        ("f32", "f32", "tf32"),
        ("f64", "f64", "ieee"),
        ("bf16", "f32", ""),
    ],
)
def test_products_of_tiles(given: str, result: str, precision: str) -> None:
    x = np.random.default_rng(4).integers(-20, 20, (16, 16)).astype(SCALARS[given])
    said = f", inputPrecision = {precision}" if precision else ""
    one = "1" if result == "i32" else "1.0"
    tile, total = f"tensor<16x16x{given}>", f"tensor<16x16x{result}>"
    body = f"""%z = arith.constant dense<{one}> : {total}
    %w = tt.trans %t {{order = array<i32: 1, 0>}} : {tile} -> {tile}
    %d = tt.dot %t, %w, %z{said} : {tile} * {tile} -> {total}
    %r = tt.reshape %d : {total} -> tensor<256x{result}>"""

    found = of_tile(body, x, given, "16x16", result, 256).reshape(16, 16)

    exact = x.astype(np.float64) @ x.astype(np.float64).T + 1
    np.testing.assert_allclose(found.astype(np.float64), exact, rtol=1e-3)


def test_a_tile_that_programs_share_times_one_of_equal_numbers() -> None:
    tile, places = "tensor<32x16xf32>", "tensor<32x16xi32>"
    body = f"""%p = tt.get_program_id x : i32
    %four = arith.constant 4 : i32
    %size = arith.constant 512 : i32
    %half = arith.divsi %p, %four : i32
    %rows = tt.make_range {{end = 32 : i32, start = 0 : i32}} : tensor<32xi32>
    %down = tt.expand_dims %rows {{axis = 1 : i32}} : tensor<32xi32> -> tensor<32x1xi32>
    %width = arith.constant dense<16> : tensor<32x1xi32>
    %starts = arith.muli %down, %width : tensor<32x1xi32>
    %columns = tt.make_range {{end = 16 : i32, start = 0 : i32}} : tensor<16xi32>
    %along = tt.expand_dims %columns {{axis = 0 : i32}} : tensor<16xi32> -> tensor<1x16xi32>
    %a = tt.broadcast %starts : tensor<32x1xi32> -> {places}
    %b = tt.broadcast %along : tensor<1x16xi32> -> {places}
    %inside = arith.addi %a, %b : {places}
    %from = arith.muli %half, %size : i32
    %xs = tt.addptr %x, %from : !tt.ptr<f32>, i32
    %to = arith.muli %p, %size : i32
    %ys = tt.addptr %y, %to : !tt.ptr<f32>, i32
    %xp = tt.splat %xs : !tt.ptr<f32> -> tensor<32x16x!tt.ptr<f32>>
    %yp = tt.splat %ys : !tt.ptr<f32> -> tensor<32x16x!tt.ptr<f32>>
    %xa = tt.addptr %xp, %inside : tensor<32x16x!tt.ptr<f32>>, {places}
    %ya = tt.addptr %yp, %inside : tensor<32x16x!tt.ptr<f32>>, {places}
    %t = tt.load %xa : tensor<32x16x!tt.ptr<f32>>
    %twos = arith.constant dense<2.0> : tensor<16x16xf32>
    %z = arith.constant dense<1.0> : {tile}
    %d = tt.dot %t, %twos, %z, inputPrecision = ieee : {tile} * tensor<16x16xf32> -> {tile}
    tt.store %ya, %d : tensor<32x16x!tt.ptr<f32>>"""
    x, y = np.arange(1024, dtype=np.float32), np.zeros((8, 32, 16), np.float32)

    run(kernel("%x: !tt.ptr<f32>, %y: !tt.ptr<f32>", body), [x, y], (8, 1, 1))

    sums = x.reshape(2, 32, 16).sum(2)[np.arange(8) // 4]
    np.testing.assert_array_equal(y, np.broadcast_to(2 * sums[..., None] + 1, y.shape))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([0, 1, 2, 0, 1, 2], [0, 0, 0, 1, 1, 1]),  # a grid, as of a product in tiles
        ([0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 0, 1]),
        ([0, 1, 2, 3, 4, 5], [0, 0, 1, 1, 2, 2]),  # a tile each, as of attention
        ([2, 1, 0, 2, 1, 0], [0, 0, 0, 1, 1, 1]),
        ([0, 1, 2, 0, 1], [0, 0, 0, 1, 1]),
        ([1, 1, 1], [0, 1, 2]),
    ],
)
def test_products_of_tiles_that_programs_share_are_those_of_each(
    first: list[int], second: list[int]
) -> None:
    random = np.random.default_rng(5)
    left, right = (random.standard_normal((6, 16, 16)).astype(np.float32) for _ in range(2))
    held = random.standard_normal((len(first), 16, 16)).astype(np.float32)
    tiles = [(left, np.array(first)), (right, np.array(second))]

    found = one_by_one(Product("f32", "f32", short=False), tiles, held, len(first))

    for program, (row, column) in enumerate(zip(first, second, strict=True)):
        np.testing.assert_array_equal(found[program], left[row] @ right[column] + held[program])


def test_tf32_loses_the_last_bits_of_a_fraction() -> None:
    # Seen on an H200: these times 1.
    x, one = np.zeros((16, 16), np.float32), np.eye(16, dtype=np.float32)
    x[0, :4] = [1 + 2**-10, 1 + 2**-11, 1 + 2**-10 + 2**-11, -(1 + 2**-11 + 2**-20)]
    x[1, 0], x[2, 0] = np.inf, np.array([0x7F800001], np.uint32).view(np.float32)[0]
    tile = "tensor<16x16xf32>"
    body = f"""%z = arith.constant dense<0.0> : {tile}
    %d = tt.dot %u, %t, %z, inputPrecision = tf32 : {tile} * {tile} -> {tile}
    %r = tt.reshape %d : {tile} -> tensor<256xf32>"""

    found = of_tile(body, one, "f32", "16x16", "f32", 256, x).reshape(16, 16)

    assert found[0, :4].tolist() == [1.0009765625, 1.0, 1.0009765625, -1.0]
    assert np.isinf(found[1, 0])
    assert np.isnan(found[2, 0])


def test_tiles_are_joined_and_taken_apart() -> None:
    body = """%p = tt.join %t, %u : tensor<4xi32> -> tensor<4x2xi32>
    %a, %b = tt.split %p : tensor<4x2xi32> -> tensor<4xi32>
    %c = tt.cat %b, %a : tensor<4xi32> -> tensor<8xi32>
    %d = tt.bitcast %c : tensor<8xi32> -> tensor<8xf32>
    %r = tt.bitcast %d : tensor<8xf32> -> tensor<8xi32>"""
    x, y = np.arange(8, dtype=np.int32).reshape(2, 4)

    assert of_tile(body, x, "i32", "4", "i32", 8, y).tolist() == [4, 5, 6, 7, 0, 1, 2, 3]


@pytest.mark.parametrize(("said", "expected"), [("all", [2.0, math.nan]), ("none", [2.0, -1.0])])
def test_numbers_are_clamped(said: str, expected: list[float]) -> None:
    body = f"""%l = arith.constant dense<-1.0> : tensor<2xf32>
    %h = arith.constant dense<2.0> : tensor<2xf32>
    %r = tt.clampf %t, %l, %h, propagateNan = {said} : tensor<2xf32>"""

    found = of_tile(body, np.array([5, np.nan], np.float32), "f32", "2", "f32", 2)

    np.testing.assert_array_equal(found, expected)


def test_constants_of_every_form() -> None:
    body = """%a = arith.constant dense<[1.5, 0xFF800000, -2.0, 0.0]> : tensor<4xf32>
    %b = arith.constant dense<"0x0000803F000000400000404000008040"> : tensor<4xf32>
    %c = arith.constant 0x7F800000 : f32
    %d = tt.splat %c : f32 -> tensor<4xf32>
    %e = arith.constant dense<true> : tensor<4xi1>
    %f = arith.select %e, %a, %d : tensor<4xi1>, tensor<4xf32>
    %n = ub.poison : tensor<4xf32>
    %g = tt.cat %f, %b : tensor<4xf32> -> tensor<8xf32>
    %o = arith.constant false
    %h = arith.select %o, %n, %d : tensor<4xf32>
    %k = tt.cat %h, %h : tensor<4xf32> -> tensor<8xf32>
    %r = tt.cat %g, %k : tensor<8xf32> -> tensor<16xf32>"""

    found = of_tile(body, np.zeros(4, np.float32), "f32", "4", "f32", 16)

    assert found.tolist() == [1.5, -math.inf, -2, 0, 1, 2, 3, 4, *[math.inf] * 8]


# Operation, given numbers and their type, type of the result, and what comes out.
CONVERSIONS: list[tuple[str, list[Any], str, str, list[Any]]] = [
    ("arith.extsi {0} : @i1 to @i32", [True, False], "i1", "i32", [-1, 0]),
    ("arith.extui {0} : @i1 to @i32", [True, False], "i1", "i32", [1, 0]),
    ("arith.extui {0} : @i8 to @i32", [-1, 5], "i8", "i32", [255, 5]),
    ("arith.extsi {0} : @i32 to @i64", [-1, 5], "i32", "i64", [-1, 5]),
    ("arith.extsi {0} : @i8 to @i32", [-1, 5], "i8", "i32", [-1, 5]),
    ("arith.trunci {0} : @i32 to @i8", [257, -1], "i32", "i8", [1, -1]),
    ("arith.trunci {0} : @i32 to @i1", [2, 3], "i32", "i1", [False, True]),
    ("arith.sitofp {0} : @i1 to @f32", [True, False], "i1", "f32", [-1, 0]),
    ("arith.sitofp {0} : @i64 to @f32", [2**60 + 2**36 + 1], "i64", "f32", [2.0**60 + 2.0**37]),
    ("arith.uitofp {0} : @i32 to @f64", [-1, 3], "i32", "f64", [2.0**32 - 1, 3]),
    ("arith.uitofp {0} : @i1 to @f16", [True, False], "i1", "f16", [1, 0]),
    ("arith.fptosi {0} : @f32 to @i1", [0.5, 0], "f32", "i1", [True, False]),
    ("arith.truncf {0} : @f64 to @f16", [1.0, 1e9], "f64", "f16", [1.0, math.inf]),
    ("arith.bitcast {0} : @f32 to @i32", [1.0, -0.0], "f32", "i32", [0x3F800000, -(2**31)]),
    ("math.absi {0} : @i32", [-5, 5], "i32", "i32", [5, 5]),
    ("math.erf {0} : @f32", [0.0, math.inf], "f32", "f32", [0, 1]),
    ("math.rsqrt {0} : @f32", [4.0, 0.0], "f32", "f32", [0.5, math.inf]),
    ("math.round {0} : @f32", [2.5, -2.5], "f32", "f32", [3, -3]),
    ("arith.negf {0} : @bf16", [2.5, -0.0], "bf16", "bf16", [-2.5, 0.0]),
    ("tt.precise_sqrt {0} : @f32", [4.0, 2.25], "f32", "f32", [2, 1.5]),
    ("tt.fp_to_fp {0}, rounding = rtz : @f32 -> @f16", [1.0008, -1.0008], "f32", "f16", [1, -1]),
    ("tt.fp_to_fp {0} : @f8E5M2 -> @f16", [1.5, -2.0], "f8E5M2", "f16", [1.5, -2]),
]  # fmt: skip


def test_conversions() -> None:
    for text, given, kind, result, expected in CONVERSIONS:
        whole = re.sub(r"@(\w+)", r"tensor<{shape}x\1>", text)

        found = elementwise(whole, [np.array(given, SCALARS[kind])], [kind], result)

        assert found.astype(object).tolist() == expected, text
        assert found.dtype == SCALARS[result]


def test_fused_products_are_rounded_once() -> None:
    text = "math.fma {0}, {1}, {2} : tensor<{shape}xf32>"
    a, c = np.array([1 + 2**-12], np.float32), np.array([-1 - 2**-11], np.float32)
    assert elementwise(text, [a, a, c], ["f32"] * 3, "f32").tolist() == [2**-24]

    d, e = np.array([1 + 2**-27]), np.array([-1 - 2**-26])
    found = elementwise(text.replace("f32", "f64"), [d, d, e], ["f64"] * 3, "f64")
    assert found.tolist() == [2**-54]


def test_bits_follow_their_own_arithmetic() -> None:
    a, b = np.array([True, True, False]), np.array([True, False, False])
    for name, expected in [
        ("addi", [False, True, False]),
        ("muli", [True, False, False]),
        ("maxsi", [True, False, False]),
        ("minui", [True, False, False]),
    ]:
        text = f"arith.{name} {{0}}, {{1}} : tensor<{{shape}}xi1>"
        assert elementwise(text, [a, b], ["i1"] * 2, "i1").tolist() == expected


def test_results_of_two_words() -> None:
    numbers = [(-1, -1), (3, -1), (-(2**31), 2), (2**31 - 1, 2**31 - 1), (0, -5)]
    x, y = (np.array(side, np.int32) for side in zip(*numbers, strict=True))
    x, y = np.resize(x, 8), np.resize(y, 8)
    for name, product in [
        ("mului_extended", [(a % 2**32) * (b % 2**32) for a, b in numbers]),
        ("mulsi_extended", [a * b for a, b in numbers]),
    ]:
        body = f"%l, %h = arith.{name} %t, %u : tensor<8xi32>\n"
        body += "%r = tt.cat %l, %h : tensor<8xi32> -> tensor<16xi32>"
        found = of_tile(body, x, "i32", "8", "i32", 16, y).view(np.uint32).tolist()
        assert found[:5] == [each % 2**32 for each in product]
        assert found[8:13] == [each // 2**32 % 2**32 for each in product]
    body = """%s, %c = arith.addui_extended %t, %u : tensor<8xi32>, tensor<8xi1>
    %w = arith.extui %c : tensor<8xi1> to tensor<8xi32>
    %r = tt.cat %s, %w : tensor<8xi32> -> tensor<16xi32>"""
    found = of_tile(body, x, "i32", "8", "i32", 16, y).view(np.uint32).tolist()
    totals = [a % 2**32 + b % 2**32 for a, b in numbers]
    assert found[:5] == [each % 2**32 for each in totals]
    assert found[8:13] == [each // 2**32 for each in totals]


SAID = '{constraints = "=r,r", packed_element = 1 : i32, pure = true}'


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("%r = arith.unheard_of %x : i32", "the operation arith.unheard_of of Triton's IR"),
        ("%r = tt.unheard_of %x : i32 -> i32", "the operation tt.unheard_of of Triton's IR"),
        (
            '%r = tt.extern_elementwise %x {symbol = "__nv_odd"} : (i32) -> i32',
            "the function __nv_odd",
        ),
        (
            '%r = tt.elementwise_inline_asm "bfind.u32 $0, $1;" {SAID} %x : i32 -> i32',
            "the instruction bfind.u32",
        ),
        (
            '%r = tt.elementwise_inline_asm "@p add.u32 $0, $1, 1;" {SAID} %x : i32 -> i32',
            "the instruction '@p add.u32",
        ),
        (
            '%r = tt.elementwise_inline_asm "bar.sync 0;" {SAID} %x : i32 -> i32',
            "the instruction 'bar.sync 0'",
        ),
    ],
)
def test_what_is_not_simulated_is_refused_before_anything_runs(body: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match="is not simulated") as caught:
        Executable(read(kernel("%x: i32", f'{body.replace("{SAID}", SAID)} loc("kernel.py":3:5)')))

    assert message in str(caught.value)
    assert "at kernel.py:3" in str(caught.value)


def test_eight_bit_products_are_computed_exactly() -> None:
    x = np.random.default_rng(5).standard_normal((16, 16)).astype(ml_dtypes.float8_e4m3fn)
    body = """%z = arith.constant dense<0.0> : tensor<16x16xf32>
    %d = tt.dot %t, %u, %z : tensor<16x16xf8E4M3FN> * tensor<16x16xf8E4M3FN> -> tensor<16x16xf32>
    %r = tt.reshape %d : tensor<16x16xf32> -> tensor<256xf32>"""

    found = of_tile(body, x, "f8E4M3FN", "16x16", "f32", 256).reshape(16, 16)

    np.testing.assert_allclose(found, x.astype(np.float64) @ x.astype(np.float64), atol=1e-5)
