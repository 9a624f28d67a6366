"""Functions of NVIDIA's libdevice, which kernels call by name (`extra.libdevice` of Triton)."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from kernbench.errors import UnsupportedError
from kernbench.ttir.arithmetic import FLOATING, Array, Function, high_half, to_whole, unsigned
from kernbench.ttir.bits import leading_zeros, reversed_bits
from kernbench.ttir.compiling import Compiler, Handler
from kernbench.ttir.frames import Frame, Step
from kernbench.ttir.module import Operation
from kernbench.ttir.sums import plain


def _each(function: Callable[[float], float]) -> Function:
    """Returns a function of numbers for arrays, which is infinite where it has a pole."""

    def one(number: float) -> float:
        try:
            return function(number)
        except OverflowError:
            return math.inf
        except ValueError:
            return math.inf if function is math.lgamma else math.nan

    made: Any = np.frompyfunc(one, 1, 1)

    def computed(a: Array) -> Array:
        found: Array = made(a.astype(np.float64)).astype(a.dtype)
        return found

    return computed


def _gamma(a: float) -> float:
    return math.gamma(a) if a else math.copysign(math.inf, a)


def _of_turns(function: Function) -> Function:
    """Returns a function of multiples of pi."""
    return lambda a: function(np.pi * np.remainder(a.astype(np.float64), 2)).astype(a.dtype)


def _first_set(a: Array) -> Array:
    lowest = unsigned(a & -a).astype(np.float64)
    return np.where(a == 0, 0, np.log2(np.where(a == 0, 1, lowest)) + 1).astype(np.int32)


def _away(a: Array) -> Array:
    found: Array = np.trunc(a + np.copysign(a.dtype.type(0.5), a))
    return found


def _as(kind: type[np.generic]) -> Function:
    return lambda a: a.view(kind)


def _length(*axes: Array) -> Array:
    return np.sqrt(sum(axis.astype(np.float64) ** 2 for axis in axes)).astype(axes[0].dtype)


def _exponent(a: Array) -> Array:
    return (np.frexp(a)[1] - 1).astype(np.int32)


_KNOWN: Final[Mapping[str, Function]] = {
    **{name: FLOATING[name] for name in ("ceil", "copysign", "cos", "erf", "exp", "exp2", "expm1")},
    **{name: FLOATING[name] for name in ("floor", "fma", "log", "log10", "log1p", "log2", "rsqrt")},
    **{name: FLOATING[name] for name in ("sin", "sqrt", "tan", "tanh", "trunc", "atan2")},
    "abs": np.abs,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "brev": reversed_bits,
    "cbrt": np.cbrt,
    "clz": leading_zeros,
    "cosh": np.cosh,
    "cospi": _of_turns(np.cos),
    "double_as_longlong": _as(np.int64),
    "erfc": _each(math.erfc),
    "exp10": lambda a: np.power(a.dtype.type(10), a),
    "fabs": np.abs,
    "fdim": lambda a, b: np.maximum(a - b, a.dtype.type(0)),
    "fdividef": np.divide,
    "ffs": _first_set,
    "finite": lambda a: np.isfinite(a).astype(np.int32),
    "float_as_int": _as(np.int32),
    "float_as_uint": _as(np.int32),
    "fmod": np.fmod,
    "hadd": lambda a, b: ((a.astype(np.int64) + b) >> 1).astype(a.dtype),
    "hypot": np.hypot,
    "ilogb": _exponent,
    "int_as_float": _as(np.float32),
    "isfinite": lambda a: np.isfinite(a).astype(np.int32),
    "isinf": lambda a: np.isinf(a).astype(np.int32),
    "isnan": lambda a: np.isnan(a).astype(np.int32),
    "ldexp": np.ldexp,
    "lgamma": _each(math.lgamma),
    "llabs": np.abs,
    "llrint": lambda a: to_whole(np.rint(a), np.dtype(np.int64), signed=True),
    "llround": lambda a: to_whole(_away(a), np.dtype(np.int64), signed=True),
    "logb": lambda a: _exponent(a).astype(a.dtype),
    "longlong_as_double": _as(np.float64),
    "mul24": lambda a, b: ((a << 8) >> 8) * ((b << 8) >> 8),
    "mulhi": lambda a, b: ((a.astype(np.int64) * b.astype(np.int64)) >> 32).astype(np.int32),
    "nearbyint": np.rint,
    "nextafter": np.nextafter,
    "norm3d": _length,
    "norm4d": _length,
    "popc": lambda a: np.bitwise_count(unsigned(a)).astype(np.int32),
    "pow": np.power,
    "powi": np.power,
    "rcbrt": lambda a: a.dtype.type(1) / np.cbrt(a),
    "remainder": lambda a, b: (a - np.rint(a / b) * b).astype(a.dtype),
    "rhypot": lambda a, b: a.dtype.type(1) / np.hypot(a, b),
    "rint": np.rint,
    "round": _away,
    "saturate": lambda a: np.clip(np.nan_to_num(a, nan=0.0), a.dtype.type(0), a.dtype.type(1)),
    "scalbn": np.ldexp,
    "signbit": lambda a: np.signbit(a).astype(np.int32),
    "sinh": np.sinh,
    "sinpi": _of_turns(np.sin),
    "tgamma": _each(_gamma),
    "uint_as_float": _as(np.float32),
    "umulhi": high_half,
    "umul64hi": high_half,
}
"""By libdevice's name, without `__nv_` and the letters that tell the type."""

_BY_ROUNDING: Final[Mapping[str, Function]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "sqrt": np.sqrt,
    "rcp": lambda a: a.dtype.type(1) / a,
    "rsqrt": FLOATING["rsqrt"],
}
"""Functions with a rounding in their name, such as `__nv_fadd_rn`."""


def function_of(symbol: str) -> Function | None:
    """Returns what a function of libdevice computes; None if it is not known.

    Roundings other than to the nearest are not: numpy has one way to round.

    Args:
        symbol: Its name, such as `__nv_tanhf`.
    """
    name = symbol.removeprefix("__nv_").removeprefix("fast_")
    plainly = re.fullmatch(r"[fd](add|sub|mul|div|sqrt|rcp|rsqrt)_rn", name)
    if plainly:
        return _BY_ROUNDING[plainly[1]]
    if re.fullmatch(r"fmaf?_rn", name):
        return _KNOWN["fma"]
    for known in (name, name.removesuffix("f"), name.removesuffix("d"), name.removesuffix("ll")):
        if known in _KNOWN:
            return _KNOWN[known]
    return None


def _extern(compiler: Compiler, operation: Operation) -> Step:
    del compiler
    symbol = str(operation.attributes["symbol"])
    function = function_of(symbol)
    if function is None:
        raise UnsupportedError(
            f"the function {symbol} is not simulated",
            [f"at {site}" for site in operation.sites[:1]],
            hint="write it with functions of triton.language",
        )
    numbers = [value.number for value in operation.operands]
    result = operation.results[0]
    dtype = result.type.dtype

    def step(frame: Frame) -> None:
        found: Any = function(*(plain(frame.values[number]) for number in numbers))
        frame.values[result.number] = found.astype(dtype, copy=False)

    return step


HANDLERS: Final[Mapping[str, Handler]] = {"tt.extern_elementwise": _extern}
"""Steps of functions that the IR only names."""
