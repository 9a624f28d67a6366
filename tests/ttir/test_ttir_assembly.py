"""Inline assembly and functions of libdevice, against Python's own numbers."""

import math
import struct
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from ttir_texts import Array, elementwise

from kernbench.errors import UnsupportedError
from kernbench.ttir.externs import function_of
from kernbench.ttir.types import SCALARS

MASK = 0xFFFFFFFF


def run_assembly(text: str, operands: list[Array], kinds: list[str], result: str) -> Array:
    constraints = ",".join(["=r", *["r"] * len(operands)])
    names = ", ".join(f"{{{place}}}" for place in range(len(operands)))
    types = ", ".join(f"tensor<{{shape}}x{kind}>" for kind in kinds)
    escaped = text.replace("{", "{{").replace("}", "}}")
    return elementwise(
        f'tt.elementwise_inline_asm "{escaped}" {{{{constraints = "{constraints}", '
        f"packed_element = 1 : i32, pure = true}}}} {names} : {types} -> "
        f"tensor<{{shape}}x{result}>",
        operands,
        kinds,
        result,
    )


def signed(word: int) -> int:
    return word - 2**32 if word >> 31 else word


WORDS: dict[str, Callable[[int, int], int]] = {
    "add.u32 $0, $1, $2;": lambda a, b: a + b,
    "sub.s32 $0, $1, $2;": lambda a, b: a - b,
    "mul.lo.s32 $0, $1, $2;": lambda a, b: a * b,
    "mul.hi.u32 $0, $1, $2;": lambda a, b: a * b >> 32,
    "mad.lo.s32 $0, $1, $2, 7;": lambda a, b: a * b + 7,
    "mad.hi.u32 $0, $1, $2, 0x10;": lambda a, b: (a * b >> 32) + 16,
    "and.b32 $0, $1, $2;": lambda a, b: a & b,
    "or.b32 $0, $1, 0xF0U;": lambda a, b: a | 0xF0,
    "xor.b32 $0, $1, $2;": lambda a, b: a ^ b,
    "not.b32 $0, $1;": lambda a, b: ~a,
    "neg.s32 $0, $1;": lambda a, b: -a,
    "shl.b32 $0, $1, $2;": lambda a, b: a << b if b < 32 else 0,
    "shr.u32 $0, $1, $2;": lambda a, b: a >> b if b < 32 else 0,
    "shr.s32 $0, $1, $2;": lambda a, b: signed(a) >> min(b, 31),
    "min.s32 $0, $1, $2;": lambda a, b: min(signed(a), signed(b)),
    "max.u32 $0, $1, $2;": max,
    "shf.l.wrap.b32 $0, $1, $2, 8;": lambda a, b: b << 8 | a >> 24,
    "shf.r.wrap.b32 $0, $1, $2, 40;": lambda a, b: (b << 32 | a) >> 8,
    "shf.l.clamp.b32 $0, $1, $2, 40;": lambda a, b: a,
    "shf.r.clamp.b32 $0, $1, $2, 40;": lambda a, b: b,
    "brev.b32 $0, $1;": lambda a, b: int(f"{a:032b}"[::-1], 2),
    "clz.b32 $0, $1;": lambda a, b: 32 - a.bit_length(),
    "popc.b32 $0, $1;": lambda a, b: a.bit_count(),
    "lop3.b32 $0, $1, $2, 0x0FF0, 0xca;": lambda a, b: a & b | ~a & 0x0FF0,
    "prmt.b32 $0, $1, $2, 0x0735;": lambda a, b: (
        b >> 8 & 255 | (a >> 24) << 8 | (b >> 24) << 16 | (a & 255) << 24
    ),
    "prmt.b32 $0, $1, $2, 0x444f;": lambda a, b: (
        (255 if b >> 31 else 0) | (b & 255) << 8 | (b & 255) << 16 | (b & 255) << 24
    ),
    "cvt.u32.u8 $0, $1;": lambda a, b: a & 255,
    "cvt.s32.s8 $0, $1;": lambda a, b: (a & 255) - 256 if a & 128 else a & 255,
    "cvt.rn.f32.s32 $0, $1;": lambda a, b: struct.unpack("I", struct.pack("f", signed(a)))[0],
    ".reg .b32 t; mov.u32 t, $1; /* twice */ add.u32 $0, t, t; // all": lambda a, b: 2 * a,
    "{ .reg .b16 lo, hi; mov.b32 {lo, hi}, $1; mov.b32 $0, {hi, lo}; }": (
        lambda a, b: a >> 16 | a << 16
    ),
}


def test_instructions_on_words() -> None:
    words = [0, 1, 2, 31, 32, 33, 0x80, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x12345678, 0xDEADBEEF]
    pairs = [(a, b) for a in words for b in words][:128]
    a, b = (np.array(side, np.uint32).view(np.int32) for side in zip(*pairs, strict=True))

    for text, oracle in WORDS.items():
        found = run_assembly(text, [a, b], ["i32", "i32"], "i32").view(np.uint32)

        assert found.tolist() == [oracle(x, y) & MASK for x, y in pairs], text


FLOATS: dict[str, Callable[[float, float], float]] = {
    "add.f32 $0, $1, $2;": lambda a, b: a + b,
    "div.full.f32 $0, $1, $2;": lambda a, b: a / b,
    "fma.rn.f32 $0, $1, $2, 0f3F800000;": lambda a, b: a * b + 1,
    "mul.ftz.f32 $0, $1, 1.5;": lambda a, b: a * 1.5,
    "max.f32 $0, $1, $2;": max,
    "min.f32 $0, $1, $2;": min,
    "ex2.approx.ftz.f32 $0, $1;": lambda a, b: 2**a,
    "lg2.approx.f32 $0, $1;": lambda a, b: math.log2(a),
    "rcp.approx.f32 $0, $1;": lambda a, b: 1 / a,
    "rsqrt.approx.f32 $0, $1;": lambda a, b: 1 / math.sqrt(a),
    "tanh.approx.f32 $0, $1;": lambda a, b: math.tanh(a),
    "cvt.rzi.s32.f32 $0, $1; cvt.rn.f32.s32 $0, $0;": lambda a, b: float(math.trunc(a)),
    "cvt.rni.s32.f32 $0, $1; cvt.rn.f32.s32 $0, $0;": lambda a, b: float(round(a)),
}


def test_instructions_on_floating_point_numbers() -> None:
    a, b = np.array([0.5, 1.5, 2.5, 3.75], np.float32), np.array([2, 0.25, 1, 8], np.float32)

    for text, oracle in FLOATS.items():
        found = run_assembly(text, [a, b], ["f32", "f32"], "f32")

        expected = [oracle(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=text)


def test_predicates_choose_among_numbers_and_instructions() -> None:
    a = np.array([1, 30, -5, np.nan], np.float32)
    softplus = (
        "{ .reg .pred p; setp.gt.f32 p, $1, 20.; @p mov.f32 $0, $1; @!p mul.f32 $0, $1, 2.0; "
        "@!p add.f32 $0, $0, 1.0; }"
    )
    chosen = "{ .reg .pred p; setp.ne.f32 p, $1, 1.0; selp.f32 $0, $1, 7.0, p; }"

    np.testing.assert_array_equal(
        run_assembly(softplus, [a], ["f32"], "f32"), np.array([3, 30, -9, np.nan], np.float32)
    )
    assert run_assembly(chosen, [a], ["f32"], "f32").tolist() == [7, 30, -5, 7]


def test_a_nan_is_left_out_of_the_least_and_the_largest() -> None:
    a, b = np.array([np.nan, 1], np.float32), np.array([2, np.nan], np.float32)

    assert run_assembly("max.f32 $0, $1, $2;", [a, b], ["f32"] * 2, "f32").tolist() == [2, 1]


def test_two_halves_share_a_register() -> None:
    x = np.array([1.5, -2, 0.25, np.nan], np.float16)
    text = (
        'tt.elementwise_inline_asm "min.f16x2 $0, $1, 0x3C00BC00;" {{constraints = "=r,r", '
        "packed_element = 2 : i32, pure = true}} {0} : tensor<{shape}xf16> -> tensor<{shape}xf16>"
    )

    found = elementwise(text, [x], ["f16"], "f16")

    assert found.tolist() == [-1, -2, -1, 1]  # 0xBC00 is -1, 0x3C00 is 1


def test_four_bytes_share_a_register() -> None:
    x = np.arange(-8, 8, dtype=np.int8)
    text = (
        'tt.elementwise_inline_asm "xor.b32 $0, $1, 0x000000FF;" {{constraints = "=r,r", '
        "packed_element = 4 : i32, pure = true}} {0} : tensor<{shape}xi8> -> tensor<{shape}xi8>"
    )

    found = elementwise(text, [x], ["i8"], "i8")

    assert found.tolist() == [~n if lane % 4 == 0 else n for lane, n in enumerate(x.tolist())]


def library(symbol: str, *operands: Any, kind: str, result: str) -> list[Any]:
    names = ", ".join(f"{{{place}}}" for place in range(len(operands)))
    types = ", ".join([f"tensor<{{shape}}x{kind}>"] * len(operands))
    found = elementwise(
        f'tt.extern_elementwise {names} {{{{libname = "", libpath = "", pure = true, '
        f'symbol = "__nv_{symbol}"}}}} : ({types}) -> tensor<{{shape}}x{result}>',
        [np.array(each, SCALARS[kind]) for each in operands],
        [kind] * len(operands),
        result,
    )
    return list(found.tolist())


X = [0.25, 0.5, 0.75]
OF_PYTHON: dict[str, Callable[..., float]] = {
    "acosf": math.acos,
    "asinf": math.asin,
    "atan2f": math.atan2,
    "atanhf": math.atanh,
    "cbrtf": lambda a: a ** (1 / 3),
    "coshf": math.cosh,
    "cospif": lambda a: math.cos(math.pi * a),
    "erfcf": math.erfc,
    "erfinvf": lambda a: NormalDist().inv_cdf((a + 1) / 2) / math.sqrt(2),
    "exp10f": lambda a: 10.0**a,
    "fast_sinf": math.sin,
    "fdimf": lambda a, b: max(a - b, 0),
    "fdividef": lambda a, b: a / b,
    "fmodf": math.fmod,
    "hypotf": math.hypot,
    "lgammaf": math.lgamma,
    "norm3df": lambda a, b, c: math.sqrt(a * a + b * b + c * c),
    "powf": math.pow,
    "rcbrtf": lambda a: a ** (-1 / 3),
    "remainderf": math.remainder,
    "rhypotf": lambda a, b: 1 / math.hypot(a, b),
    "saturatef": lambda a: a,
    "rnorm3df": lambda a, b, c: 1 / math.hypot(a, b, c),
    "sinpif": lambda a: math.sin(math.pi * a),
    "tgammaf": math.gamma,
    "fadd_rn": lambda a, b: a + b,
    "frcp_rn": lambda a: 1 / a,
    "frsqrt_rn": lambda a: 1 / math.sqrt(a),
    "fmaf_rn": lambda a, b, c: a * b + c,
}


ARITY = dict.fromkeys(
    ["atan2f", "fdimf", "fdividef", "fmodf", "hypotf", "powf", "remainderf", "rhypotf", "fadd_rn"],
    2,
) | {"norm3df": 3, "rnorm3df": 3, "fmaf_rn": 3}


def test_functions_of_libdevice() -> None:
    for symbol, oracle in OF_PYTHON.items():
        operands = [X, X[::-1], [1.5, 2.5, 3.5]][: ARITY.get(symbol, 1)]

        found = library(symbol, *operands, kind="f32", result="f32")

        expected = [oracle(*numbers) for numbers in zip(*operands, strict=True)]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7, err_msg=symbol)


ENDS: list[tuple[str, list[Any], str, str, list[Any]]] = [
    ("clz", [[0, 1, -1, 2**30]], "i32", "i32", [32, 31, 0, 1]),
    ("clzll", [[0, 1, -1, 2**53 + 1, 2**63 - 1]], "i64", "i32", [64, 63, 0, 10, 1]),
    ("ffs", [[0, 1, 8, -(2**31)]], "i32", "i32", [0, 1, 4, 32]),
    ("popc", [[0, -1, 5]], "i32", "i32", [0, 32, 2]),
    ("brev", [[1, 2]], "i32", "i32", [-(2**31), 2**30]),
    ("mulhi", [[-1, 2**30], [1, 16]], "i32", "i32", [-1, 4]),
    ("umulhi", [[-1, 2**30], [-1, 16]], "i32", "i32", [-2, 4]),
    ("mul24", [[2**23 - 1, -1], [2, 5]], "i32", "i32", [2**24 - 2, -5]),
    ("hadd", [[3, 2**31 - 1], [4, 2**31 - 1]], "i32", "i32", [3, 2**31 - 1]),
    ("isnanf", [[math.nan, 1.0]], "f32", "i32", [1, 0]),
    ("signbitf", [[-0.0, 1.0]], "f32", "i32", [1, 0]),
    ("float_as_int", [[1.0, -0.0]], "f32", "i32", [0x3F800000, -(2**31)]),
    ("llroundf", [[2.5, -2.5]], "f32", "i64", [3, -3]),
    ("llrintf", [[2.5, math.nan]], "f32", "i64", [2, 0]),
    ("roundf", [[2.5, -0.4]], "f32", "f32", [3.0, -0.0]),
    ("ilogbf", [[8.0, 0.75]], "f32", "i32", [3, -1]),
    ("logbf", [[8.0, 0.75]], "f32", "f32", [3.0, -1.0]),
    ("lgammaf", [[0.0, 1.0]], "f32", "f32", [math.inf, 0.0]),
    ("tgammaf", [[200.0, 3.0, -0.0]], "f32", "f32", [math.inf, 2.0, -math.inf]),
    ("saturatef", [[-1.0, math.nan, 7.0]], "f32", "f32", [0.0, 0.0, 1.0]),
]


def test_functions_of_libdevice_at_their_ends() -> None:
    for symbol, operands, kind, result, expected in ENDS:
        assert library(symbol, *operands, kind=kind, result=result) == expected, symbol


HALF_STEP = 2.0**-24
"""Half of what lies between 1 and the next float32."""

BELOW = 1 - HALF_STEP
ABOVE = 1 + 2 * HALF_STEP

LARGEST = float(np.finfo(np.float32).max)

DIRECTED: list[tuple[str, list[Any], list[Any]]] = [
    ("fadd_ru", [[1.0, -1.0], [1e-30, -1e-30]], [ABOVE, -1.0]),
    ("fadd_rd", [[1.0, -1.0], [1e-30, -1e-30]], [1.0, -ABOVE]),
    ("fsub_rz", [[1.0, -1.0], [1e-30, -1e-30]], [BELOW, -BELOW]),
    ("fmul_rz", [[LARGEST, -LARGEST, ABOVE], [2.0, 2.0, ABOVE]], [LARGEST, -LARGEST, 1 + 2.0**-22]),
    (
        "fmul_ru",
        [[LARGEST, -LARGEST, ABOVE], [2.0] * 2 + [ABOVE]],
        [math.inf, -LARGEST, 1 + 3 * 2.0**-23],
    ),
    (
        "fdiv_rd",
        [[1.0, -1.0, 1.0], [3.0, 3.0, 0.0]],
        [11184810 / 2**25, -11184811 / 2**25, math.inf],
    ),
    ("frcp_ru", [[3.0, -3.0]], [11184811 / 2**25, -11184810 / 2**25]),
    ("fsqrt_rd", [[2.0, 4.0]], [11863283 / 2**23, 2.0]),
    ("fsqrt_ru", [[2.0, 4.0]], [11863284 / 2**23, 2.0]),
    ("fmaf_rz", [[ABOVE, 2.0], [ABOVE, 3.0], [-1.0, 1.0]], [2.0**-22, 7.0]),
]
"""Functions of float32, what is given, and the neighbour of the exact result on the side that they
name: 1/3 lies between 11184810 and 11184811, the root of 2 between 11863283 and 11863284 parts."""

CONVERTED: list[tuple[str, list[Any], str, str, list[Any]]] = [
    ("float2int_rd", [[-1.5, 2.5, 3e9]], "f32", "i32", [-2, 2, 2**31 - 1]),
    ("float2int_rn", [[-1.5, 2.5, math.nan]], "f32", "i32", [-2, 2, 0]),
    ("float2uint_ru", [[-1.5, 2.5, 3e9]], "f32", "i32", [0, 3, 3_000_000_000 - 2**32]),
    ("double2ll_rz", [[-1.5, 2.0**40 + 0.5]], "f64", "i64", [-1, 2**40]),
    ("int2float_rz", [[2**24 + 1, -(2**24) - 1]], "i32", "f32", [2.0**24, -(2.0**24)]),
    ("int2float_ru", [[2**24 + 1, -(2**24) - 1]], "i32", "f32", [2.0**24 + 2, -(2.0**24)]),
    ("uint2float_rd", [[-1]], "i32", "f32", [2.0**32 - 2**8]),
    ("ull2double_rd", [[-1, 5]], "i64", "f64", [2.0**64 - 2**11, 5.0]),
    ("double2float_ru", [[1 + 1e-10, -1e300]], "f64", "f32", [ABOVE, -LARGEST]),
    ("hiloint2double", [[0x3FF00000], [-1]], "i32", "f64", [1 + (2**32 - 1) / 2**52]),
    ("double2hiint", [[1.0]], "f64", "i32", [0x3FF00000]),
    ("double2loint", [[1 + 2.0**-52]], "f64", "i32", [1]),
    ("byte_perm", [[0x03020100], [0x07060504], [0x7531]], "i32", "i32", [0x07050301]),
    ("rhadd", [[3, -3, 2**31 - 1], [4, -4, 2**31 - 1]], "i32", "i32", [4, -3, 2**31 - 1]),
    ("urhadd", [[-1, 3], [-1, 4]], "i32", "i32", [-1, 4]),
    ("uhadd", [[-1, 3], [1, 4]], "i32", "i32", [-(2**31), 3]),
    ("sad", [[-5, 7], [3, 2], [1, 1]], "i32", "i32", [9, 6]),
    ("usad", [[-1], [0], [2]], "i32", "i32", [1]),
    ("umul24", [[-1], [2]], "i32", "i32", [2**25 - 2]),
    ("mul64hi", [[-1, 2**62], [5, 8]], "i64", "i64", [-1, 2]),
]
"""In types of whole numbers without a sign, bits are shown as those of numbers that have one."""

SPECIAL: list[tuple[str, list[float], list[float]]] = [
    ("cyl_bessel_i0", [0.0, 1.0, -2.0], [1.0, 1.2660658777520084, 2.2795853023360673]),
    ("cyl_bessel_i1", [1e-9, 1.0, -2.0], [5e-10, 0.5651591039924850, -1.5906368546373291]),
    ("j0", [1.0, 200.0, math.inf], [0.7651976865579666, -0.015437439930564947, 0.0]),
    ("j1", [1.0, -200.0, 1e-9], [0.4400505857449335, 0.05430453818237824, 5e-10]),
    (
        "y0",
        [1.0, 200.0, 0.0, -1.0],
        [0.08825696421567696, -0.05426577524981795, -math.inf, math.nan],
    ),
    ("y1", [1.0, 200.0, 1e-9], [-0.7812128213002887, 0.01530182458038955, -2e9 / math.pi]),
    ("erfcx", [0.0, 30.0, -1.0], [1.0, 0.018795888861416754, 5.008980080762283]),
    ("erfinv", [1e-12, 0.5, 1.0], [8.862269254527581e-13, 0.4769362762044699, math.inf]),
    ("erfcinv", [1e-30, 1.5, 0.0], [8.148616223169870, -0.4769362762044699, math.inf]),
    ("normcdf", [0.0, -10.0], [0.5, 7.61985302416047e-24]),
    ("normcdfinv", [1e-30, 0.5, 1.0], [-11.464024688443613, 0.0, math.inf]),
]
"""Values of tables (Abramowitz and Stegun; scipy 1.17), in float64."""


def test_functions_round_as_they_say() -> None:
    for symbol, operands, expected in DIRECTED:
        assert library(symbol, *operands, kind="f32", result="f32") == expected, symbol
    for symbol, operands, kind, result, expected in CONVERTED:
        assert library(symbol, *operands, kind=kind, result=result) == expected, symbol
    for symbol, operands, wide in SPECIAL:
        found = library(symbol, operands, kind="f64", result="f64")
        np.testing.assert_allclose(found, wide, rtol=1e-12, err_msg=symbol)
    close = (1 + 2.0**-30, 1 - 2.0**-30, -1.0)  # their product is 1 - 2^-60
    product = library("fma_ru", *([each] for each in close), kind="f64", result="f64")
    assert product == [-(2.0**-60)]


def test_functions_that_are_approximate_in_no_known_way_are_not_known() -> None:
    assert function_of("__nv_rcp64h") is None
    assert function_of("__nv_frsqrt_rz") is None


def test_registers_that_tell_of_a_gpu_are_refused() -> None:
    with pytest.raises(UnsupportedError) as caught:
        run_assembly("mov.u32 $0, %smid;", [np.zeros(1, np.int32)], ["i32"], "i32")

    assert "the instruction 'mov.u32 $0, %smid' is not simulated" in caught.value.summary
