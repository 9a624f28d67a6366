"""Functions of NVIDIA's libdevice, which kernels call by name (`extra.libdevice` of Triton)."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from kernbench.errors import UnsupportedError
from kernbench.ttir.arithmetic import FLOATING, Array, Function, high_half, to_whole, unsigned
from kernbench.ttir.bits import leading_zeros, permuted_octets, reversed_bits
from kernbench.ttir.compiling import Compiler, Handler
from kernbench.ttir.directed import rounding_function
from kernbench.ttir.frames import Frame, Step
from kernbench.ttir.module import Operation
from kernbench.ttir.special import SPECIAL
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


def _halved(a: Array, b: Array, *, up: bool) -> Array:
    """Returns means of whole numbers, whose sum may be past the end of their type."""
    odd = a ^ b if up else a & b
    found: Array = (a | b) - (odd >> 1) if up else odd + ((a ^ b) >> 1)
    return found


def _without_signs(function: Function) -> Function:
    return lambda *operands: function(*map(unsigned, operands)).view(operands[0].dtype)


_KNOWN: Final[Mapping[str, Function]] = {
    **SPECIAL,
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
    "byte_perm": _without_signs(permuted_octets),
    "cbrt": np.cbrt,
    "clz": leading_zeros,
    "cosh": np.cosh,
    "cospi": _of_turns(np.cos),
    "double2hiint": lambda a: (a.view(np.int64) >> 32).astype(np.int32),
    "double2loint": lambda a: a.view(np.int64).astype(np.int32),
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
    "hadd": partial(_halved, up=False),
    "hiloint2double": lambda a, b: ((a.astype(np.int64) << 32) | unsigned(b)).view(np.float64),
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
    "mul64hi": lambda a, b: high_half(a, b) - np.where(a < 0, b, 0) - np.where(b < 0, a, 0),
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
    "rhadd": partial(_halved, up=True),
    "rint": np.rint,
    "rnorm3d": lambda *axes: axes[0].dtype.type(1) / _length(*axes),
    "rnorm4d": lambda *axes: axes[0].dtype.type(1) / _length(*axes),
    "round": _away,
    "sad": lambda a, b, c: np.maximum(a, b) - np.minimum(a, b) + c,
    "saturate": lambda a: np.clip(np.nan_to_num(a, nan=0.0), a.dtype.type(0), a.dtype.type(1)),
    "scalbn": np.ldexp,
    "signbit": lambda a: np.signbit(a).astype(np.int32),
    "sinh": np.sinh,
    "sinpi": _of_turns(np.sin),
    "tgamma": _each(_gamma),
    "uint_as_float": _as(np.float32),
    "uhadd": _without_signs(partial(_halved, up=False)),
    "umul24": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    "umulhi": high_half,
    "umul64hi": high_half,
    "urhadd": _without_signs(partial(_halved, up=True)),
    "usad": _without_signs(lambda a, b, c: np.maximum(a, b) - np.minimum(a, b) + c),
}
"""By libdevice's name, without `__nv_` and the letters that tell the type."""


def function_of(symbol: str) -> Function | None:
    """Returns what a function of libdevice computes; None if it is not known.

    Args:
        symbol: Its name, such as `__nv_tanhf`.
    """
    name = symbol.removeprefix("__nv_").removeprefix("fast_")
    for known in (name, name.removesuffix("f"), name.removesuffix("d"), name.removesuffix("ll")):
        if known in _KNOWN:
            return _KNOWN[known]
    return rounding_function(name)


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
