"""Operations on numbers, against Python's own whole numbers and fractions."""

import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ttir_texts import elementwise

WIDTHS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64}


def signed(value: int, width: int) -> int:
    value &= (1 << width) - 1
    return value - (1 << width) if value >> (width - 1) else value


def bare(value: int, width: int) -> int:
    return value & ((1 << width) - 1)


def towards_zero(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


WHOLE: dict[str, Callable[[int, int, int], int]] = {
    "addi": lambda a, b, w: a + b,
    "subi": lambda a, b, w: a - b,
    "muli": lambda a, b, w: a * b,
    "andi": lambda a, b, w: a & b,
    "ori": lambda a, b, w: a | b,
    "xori": lambda a, b, w: a ^ b,
    "maxsi": lambda a, b, w: max(a, b),
    "minsi": lambda a, b, w: min(a, b),
    "maxui": lambda a, b, w: max(bare(a, w), bare(b, w)),
    "minui": lambda a, b, w: min(bare(a, w), bare(b, w)),
    "shli": lambda a, b, w: a << bare(b, w) if bare(b, w) < w else 0,
    "shrsi": lambda a, b, w: a >> min(bare(b, w), w - 1),
    "shrui": lambda a, b, w: bare(a, w) >> bare(b, w) if bare(b, w) < w else 0,
}
DIVIDING: dict[str, Callable[[int, int, int], int]] = {
    "divsi": lambda a, b, w: towards_zero(a, b),
    "remsi": lambda a, b, w: a - b * towards_zero(a, b),
    "divui": lambda a, b, w: bare(a, w) // bare(b, w),
    "remui": lambda a, b, w: bare(a, w) % bare(b, w),
    "floordivsi": lambda a, b, w: a // b,
    "ceildivsi": lambda a, b, w: -(-a // b),
}


def pairs(width: int) -> list[tuple[int, int]]:
    """Returns all pairs of numbers near the ends of a type and near 0, and some drawn ones."""
    low, high = -(1 << (width - 1)), (1 << (width - 1)) - 1
    edges = [low, low + 1, -width, -2, -1, 0, 1, 2, width - 1, width, high - 1, high]
    draw = random.Random(width)
    drawn = [(draw.randint(low, high), draw.randint(low, high)) for _ in range(200)]
    return [*itertools.product(edges, edges), *drawn]


@pytest.mark.parametrize("kind", WIDTHS)
@pytest.mark.parametrize("name", [*WHOLE, *DIVIDING])
def test_whole_numbers_wrap_and_divide_as_in_mlir(name: str, kind: str) -> None:
    width = WIDTHS[kind]
    numbers = pairs(width)
    if name in DIVIDING:
        numbers = [(a, b or 3) for a, b in numbers]
    dtype = np.dtype(f"int{width}")
    a, b = (np.array(side, dtype) for side in zip(*numbers, strict=True))
    oracle = {**WHOLE, **DIVIDING}[name]

    found = elementwise(
        f"arith.{name} {{0}}, {{1}} : tensor<{{shape}}x{kind}>", [a, b], [kind] * 2, kind
    )

    assert found.tolist() == [signed(oracle(x, y, width), width) for x, y in numbers]


@pytest.mark.parametrize(
    "name", ["ult", "ule", "ugt", "uge", "slt", "sle", "sgt", "sge", "eq", "ne"]
)
def test_comparisons_with_and_without_a_sign(name: str) -> None:
    numbers = pairs(32)
    a, b = (np.array(side, np.int32) for side in zip(*numbers, strict=True))
    ways = {
        "lt": lambda x, y: x < y,
        "le": lambda x, y: x <= y,
        "gt": lambda x, y: x > y,
        "ge": lambda x, y: x >= y,
        "eq": lambda x, y: x == y,
        "ne": lambda x, y: x != y,
    }
    plain = name if name in ways else name[1:]

    found = elementwise(
        f"arith.cmpi {name}, {{0}}, {{1}} : tensor<{{shape}}xi32>", [a, b], ["i32"] * 2, "i1"
    )

    kept = (lambda n: bare(n, 32)) if name[0] == "u" else (lambda n: n)
    assert found.tolist() == [ways[plain](kept(x), kept(y)) for x, y in numbers]


@settings(max_examples=20)
@given(numbers=st.lists(st.floats(width=32), min_size=1, max_size=40), data=st.data())
def test_comparisons_with_a_nan(numbers: list[float], data: Any) -> None:
    others = [
        data.draw(st.one_of(st.just(math.nan), st.just(one), st.floats(width=32)))
        for one in numbers
    ]
    a, b = np.array(numbers, np.float32), np.array(others, np.float32)

    def compared(name: str) -> list[bool]:
        text = f"arith.cmpf {name}, {{0}}, {{1}} : tensor<{{shape}}xf32>"
        return list(elementwise(text, [a, b], ["f32"] * 2, "i1").tolist())

    nan = [math.isnan(x) or math.isnan(y) for x, y in zip(numbers, others, strict=True)]
    less = [x < y for x, y in zip(numbers, others, strict=True)]
    assert compared("uno") == nan
    assert compared("ord") == [not each for each in nan]
    assert compared("olt") == less
    assert compared("ult") == [x or y for x, y in zip(nan, less, strict=True)]


@pytest.mark.parametrize(
    ("name", "keeps"),
    [("maxnumf", False), ("maximumf", True), ("minnumf", False), ("minimumf", True)],
)
def test_a_nan_is_kept_or_left_out(name: str, keeps: bool) -> None:
    a, b = np.array([np.nan, 1.0], np.float32), np.array([2.0, np.nan], np.float32)

    found = elementwise(
        f"arith.{name} {{0}}, {{1}} : tensor<{{shape}}xf32>", [a, b], ["f32"] * 2, "f32"
    )

    assert np.isnan(found).tolist() == [keeps, keeps]
    assert keeps or found.tolist() == [2.0, 1.0]


@pytest.mark.parametrize(("name", "kind"), [("fptosi", "i32"), ("fptoui", "i8"), ("fptosi", "i64")])
def test_floating_numbers_become_the_nearest_whole_ones(name: str, kind: str) -> None:
    given_ = [0.9, -0.9, 2.5, 1e30, -1e30, math.inf, -math.inf, math.nan]
    width = WIDTHS[kind]
    low, high = (
        (0, 2**width - 1) if name == "fptoui" else (-(2 ** (width - 1)), 2 ** (width - 1) - 1)
    )

    found = elementwise(
        f"arith.{name} {{0}} : tensor<{{shape}}xf32> to tensor<{{shape}}x{kind}>",
        [np.array(given_, np.float32)],
        ["f32"],
        kind,
    )

    expected = [0, 0, 2, high, low, high, low, 0]
    assert [bare(n, width) for n in found.tolist()] == [bare(n, width) for n in expected]


@pytest.mark.parametrize(
    ("kind", "given_", "expected"),
    [
        ("f8E4M3FN", [500.0, -1e9, 0.0625, 449.0], [448.0, -448.0, 0.0625, 448.0]),
        ("f8E5M2", [1e6, 60000.0], [57344.0, 57344.0]),
    ],
)
def test_eight_bits_take_their_largest_number(
    kind: str, given_: list[float], expected: list[float]
) -> None:
    text = f"tt.fp_to_fp {{0}}, rounding = rtne : tensor<{{shape}}xf32> -> tensor<{{shape}}x{kind}>"

    found = elementwise(text, [np.array(given_, np.float32)], ["f32"], kind)

    assert found.astype(np.float32).tolist() == expected


@settings(max_examples=20)
@given(numbers=st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=40))
def test_bfloat16_is_rounded_to_even_and_towards_zero(numbers: list[float]) -> None:
    array = np.array(numbers, np.float32)
    ways = {}
    for rounding in ("rtne", "rtz"):
        types = "tensor<{shape}xf32> -> tensor<{shape}xbf16>"
        text = f"tt.fp_to_fp {{0}}, rounding = {rounding} : {types}"
        ways[rounding] = elementwise(text, [array], ["f32"], "bf16")

    with np.errstate(over="ignore"):
        assert ways["rtne"].tobytes() == array.astype(ml_dtypes.bfloat16).tobytes()
    cut = (array.view(np.uint32) & 0xFFFF0000).view(np.float32)
    assert ways["rtz"].astype(np.float32).tobytes() == cut.tobytes()


def test_half_precision_is_computed_in_float32_and_rounded_once() -> None:
    a, b = np.array([1.0, 65504.0], np.float16), np.array([2**-11, 16.0], np.float16)

    found = elementwise("arith.addf {0}, {1} : tensor<{shape}xf16>", [a, b], ["f16"] * 2, "f16")

    assert found.tolist() == [1.0, math.inf]  # ties to even; past the largest


def test_extended_products_have_the_upper_half() -> None:
    a = np.array([-1, 3, 1 << 40], np.int64)
    b = np.array([-1, -1, 1 << 40], np.int64)

    found = elementwise("tt.mulhiui {0}, {1} : tensor<{shape}xi64>", [a, b], ["i64"] * 2, "i64")

    assert [bare(n, 64) for n in found.tolist()] == [
        bare(x, 64) * bare(y, 64) >> 64 for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]


NEAREST: dict[str, Callable[[float], float]] = {
    "math.ceil": math.ceil,
    "math.floor": math.floor,
    "math.roundeven": round,  # Python's own rounds halves to even
    "math.exp2": lambda a: 2.0**a,
    "math.expm1": math.expm1,
    "math.log10": math.log10,
    "math.log1p": math.log1p,
}


@pytest.mark.parametrize("name", NEAREST)
@given(numbers=st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=40))
def test_functions_of_one_number_are_near_the_exact_ones(name: str, numbers: list[float]) -> None:
    x = np.array(numbers, np.float32)
    x = 1 + np.abs(x) if "log" in name else x

    found = elementwise(f"{name} {{0}} : tensor<{{shape}}xf32>", [x], ["f32"], "f32")

    # numpy's functions of float32 are within 2 units of the last place.
    exact = np.array([NEAREST[name](float(a)) for a in x], np.float32)
    np.testing.assert_array_max_ulp(found, exact, 2)


@given(
    st.lists(
        st.tuples(st.floats(-100, 100, width=32), st.floats(0.125, 100, width=32)),
        min_size=1,
        max_size=40,
    ),
    st.booleans(),
)
def test_quotients_remainders_and_signs(numbers: list[tuple[float, float]], minus: bool) -> None:
    pairs_ = [(a, -b if minus else b) for a, b in numbers]
    a, b = (np.array(side, np.float32) for side in zip(*pairs_, strict=True))

    def found(text: str) -> list[float]:
        kinds = "tensor<{shape}xf32>"
        return [float(each) for each in elementwise(text + kinds, [a, b], ["f32"] * 2, "f32")]

    # The exact remainder of two float32 is one; a quotient is rounded once.
    assert found("arith.remf {0}, {1} : ") == [math.fmod(x, y) for x, y in pairs_]
    assert found("math.copysign {0}, {1} : ") == [math.copysign(x, y) for x, y in pairs_]
    quotients = [float(np.float32(x / y)) for x, y in pairs_]
    assert found("tt.precise_divf {0}, {1} : ") == quotients
