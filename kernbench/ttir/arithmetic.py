"""What the operations of MLIR's dialects `arith` and `math` compute, element by element.

As MLIR defines them, and where it leaves a choice, as a GPU does: integers wrap around, a shift by
the width or more gives 0, numbers too large for an integer become its largest, half precision is
computed in float32 and rounded once.
"""

from collections.abc import Callable, Mapping
from math import erf as erf_of
from typing import Any, Final

import ml_dtypes
import numpy as np

from kernbench.errors import UnsupportedError
from kernbench.ttir.module import Operation
from kernbench.ttir.types import SCALARS, Descriptor, Type

Array = np.ndarray[Any, Any]
Function = Callable[..., Array]

_UNSIGNED: Final = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_HALVES: Final = frozenset({"f16", "bf16"})
_LARGEST: Final = {
    name: float(ml_dtypes.finfo(SCALARS[name]).max)  # type: ignore[no-untyped-call]
    for name in SCALARS
    if name.startswith("f8")
}


def unsigned(a: Array) -> Array:
    """Returns the same bits as whole numbers without a sign."""
    return a.view(_UNSIGNED[a.dtype.itemsize])


def widened(a: Array) -> Array:
    """Returns numbers as float32; those of 32 bits and more as they are."""
    if a.dtype == ml_dtypes.bfloat16:
        bits = a.view(np.uint16).astype(np.uint32)
        return np.left_shift(bits, 16, out=bits).view(np.float32)
    return a if a.dtype.itemsize >= 4 else a.astype(np.float32)


def rounded(a: Array, to: str, *, down: bool = False) -> Array:
    """Returns floating-point numbers in another such type.

    Types of 8 bits take their largest number for what is larger, as the conversions of PTX do
    (`cvt.satfinite`).

    Args:
        to: Name of the type.
        down: Whether to round towards zero; else to the nearest, to even between two.
    """
    dtype = SCALARS[to]
    if a.dtype == dtype:
        return a
    if down and to in _HALVES:
        return _towards_zero(widened(a), to)
    if to in _LARGEST:
        wide, most = widened(a), _LARGEST[to]
        return np.clip(wide, -most, most).astype(dtype)
    return widened(a).astype(dtype) if a.dtype.itemsize < 4 else a.astype(dtype)


def _towards_zero(a: Array, to: str) -> Array:
    if to == "bf16":
        kept = (a.view(np.uint32) >> 16).astype(np.uint16)
        lost = np.isnan(a) & ((kept & 0x7F) == 0)  # all of the bits that made it a NaN
        return np.where(lost, np.uint16(0x7FC0), kept).view(ml_dtypes.bfloat16)
    near = a.astype(np.float16)
    above = np.abs(near.astype(np.float32)) > np.abs(a)
    return np.where(above & np.isfinite(a), np.nextafter(near, np.float16(0)), near)


def to_whole(a: Array, dtype: np.dtype[Any], *, signed: bool) -> Array:
    """Returns numbers without their fraction; the nearest that there is, and 0 for NaN, as PTX.

    Args:
        dtype: A type of whole numbers.
        signed: Whether its numbers have a sign.
    """
    if dtype == np.bool_:
        some: Array = widened(a) != 0
        return some
    kind: np.dtype[Any] = dtype if signed else np.dtype(_UNSIGNED[dtype.itemsize])
    limits = np.iinfo(kind.type)
    if a.dtype.itemsize >= 4:  # powers of 2 that all of these types have
        low = float(limits.min) or -1.0
        if ((a > low) & (a < float(limits.max + 1))).all():
            return a.astype(kind).view(dtype)
    wide = np.trunc(a.astype(np.float64))
    inside = np.where(np.isnan(wide) | (np.abs(wide) >= 2.0**64), 0.0, wide)
    found = np.where(
        inside >= float(limits.max),
        limits.max,
        np.where(inside <= float(limits.min), limits.min, inside.astype(kind)),
    )
    most = np.where(wide >= float(limits.max), limits.max, found)
    return np.where(wide <= float(limits.min), limits.min, most).astype(kind).view(dtype)


def _divided(a: Array, b: Array) -> Array:
    """Returns quotients rounded towards zero, as C; 0 where the divisor is."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    found: Array = a // safe
    found = found + ((a % safe != 0) & ((a < 0) != (safe < 0)))
    return np.where(b == 0, a.dtype.type(0), found)


def _remainder(a: Array, b: Array) -> Array:
    return np.fmod(a, np.where(b == 0, b.dtype.type(1), b))


def _unsigned_of(function: Function) -> Function:
    def computed(a: Array, b: Array) -> Array:
        return function(unsigned(a), unsigned(b)).view(a.dtype)

    return computed


def _safe_quotient(a: Array, b: Array) -> Array:
    return a // np.where(b == 0, b.dtype.type(1), b)


def _floored_rest(a: Array, b: Array) -> Array:
    return np.remainder(a, np.where(b == 0, b.dtype.type(1), b))


def _shifted(shift: Function, *, sign: bool = False) -> Function:
    def computed(a: Array, b: Array) -> Array:
        bits = 8 * a.dtype.itemsize
        far = unsigned(b) >= bits
        near = shift(a, np.where(far, b.dtype.type(0), b))
        return np.where(far, a >> (bits - 1) if sign else a.dtype.type(0), near)

    return computed


def high_half(a: Array, b: Array) -> Array:
    """Returns the upper half of the products of whole numbers without a sign."""
    x, y = unsigned(a), unsigned(b)
    if a.dtype.itemsize < 8:
        bits = 8 * a.dtype.itemsize
        product = x.astype(np.uint64) * y.astype(np.uint64)
        upper: Array = (product >> bits).astype(x.dtype)
        return upper.view(a.dtype)
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    low_x, high_x, low_y, high_y = x & mask, x >> half, y & mask, y >> half
    low = low_x * low_y
    middle = high_x * low_y + (low >> half)
    other = low_x * high_y + (middle & mask)
    found: Array = high_x * high_y + (middle >> half) + (other >> half)
    return found.view(a.dtype)


def _fused(a: Array, b: Array, c: Array) -> Array:
    if a.dtype == np.float64:
        return np.add(np.multiply(a, b, dtype=np.longdouble), c).astype(np.float64)
    return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(a.dtype)


_ERF: Final[Any] = np.frompyfunc(erf_of, 1, 1)


def _erf(a: Array) -> Array:
    found: Array = _ERF(a).astype(a.dtype)
    return found


WHOLE: Final[Mapping[str, Function]] = {
    "addi": np.add,
    "subi": np.subtract,
    "muli": np.multiply,
    "andi": np.bitwise_and,
    "ori": np.bitwise_or,
    "xori": np.bitwise_xor,
    "divsi": _divided,
    "remsi": _remainder,
    "floordivsi": _safe_quotient,
    "ceildivsi": lambda a, b: _safe_quotient(a, b) + (_floored_rest(a, b) != 0),
    "divui": _unsigned_of(_safe_quotient),
    "remui": _unsigned_of(_remainder),
    "shli": _shifted(np.left_shift),
    "shrsi": _shifted(np.right_shift, sign=True),
    "shrui": _unsigned_of(_shifted(np.right_shift)),
    "maxsi": np.maximum,
    "minsi": np.minimum,
    "maxui": _unsigned_of(np.maximum),
    "minui": _unsigned_of(np.minimum),
}
"""Operations on whole numbers by name."""

BITS: Final[Mapping[str, Function]] = {
    "addi": np.bitwise_xor,
    "subi": np.bitwise_xor,
    "muli": np.bitwise_and,
    "andi": np.bitwise_and,
    "ori": np.bitwise_or,
    "xori": np.bitwise_xor,
    "maxui": np.bitwise_or,
    "minui": np.bitwise_and,
    "maxsi": np.bitwise_and,  # a single bit is the sign: true is -1
    "minsi": np.bitwise_or,
}
"""The same on numbers of one bit."""

FLOATING: Final[Mapping[str, Function]] = {
    "addf": np.add,
    "subf": np.subtract,
    "mulf": np.multiply,
    "divf": np.divide,
    "remf": np.fmod,
    "maxnumf": np.fmax,
    "minnumf": np.fmin,
    "maximumf": np.maximum,
    "minimumf": np.minimum,
    "negf": np.negative,
    "absf": np.abs,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "tanh": np.tanh,
    "sqrt": np.sqrt,
    "rsqrt": lambda a: a.dtype.type(1) / np.sqrt(a),
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": lambda a: np.trunc(a + np.copysign(a.dtype.type(0.5), a)),
    "roundeven": np.rint,
    "erf": _erf,
    "atan2": np.arctan2,
    "powf": np.power,
    "copysign": np.copysign,
    "fma": _fused,
}
"""Operations on floating-point numbers by name, those of `math` among them."""

COMPARED: Final[Mapping[str, Function]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "slt": np.less,
    "sle": np.less_equal,
    "sgt": np.greater,
    "sge": np.greater_equal,
    "ult": lambda a, b: unsigned(a) < unsigned(b),
    "ule": lambda a, b: unsigned(a) <= unsigned(b),
    "ugt": lambda a, b: unsigned(a) > unsigned(b),
    "uge": lambda a, b: unsigned(a) >= unsigned(b),
}
"""Comparisons of whole numbers."""

COMPARED_FLOATING: Final[Mapping[str, Function]] = {
    "oeq": np.equal,
    "one": lambda a, b: (a < b) | (a > b),
    "olt": np.less,
    "ole": np.less_equal,
    "ogt": np.greater,
    "oge": np.greater_equal,
    "ord": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "ueq": lambda a, b: ~((a < b) | (a > b)),
    "une": np.not_equal,
    "ult": lambda a, b: ~(a >= b),
    "ule": lambda a, b: ~(a > b),
    "ugt": lambda a, b: ~(a <= b),
    "uge": lambda a, b: ~(a < b),
    "uno": lambda a, b: np.isnan(a) | np.isnan(b),
}
"""Comparisons of floating-point numbers: those with `u` are true if one is NaN."""


def not_known(operation: Operation, what: str = "") -> UnsupportedError:
    """Returns the refusal of an operation.

    Args:
        what: What of it is not simulated; the operation itself if empty.
    """
    name = f"the operation {operation.name} of Triton's IR"
    return UnsupportedError(
        f"{name}: {what} is not simulated" if what else f"{name} is not simulated",
        [f"at {site}" for site in operation.sites[:1]],
        hint="write it with operations of triton.language",
    )


def elementwise(operation: Operation) -> Function | None:
    """Returns what an operation computes of its operands; None if it is not of these dialects.

    Raises:
        UnsupportedError: If it is of these dialects and not known here.
    """
    dialect, _, name = operation.name.partition(".")
    if dialect not in ("arith", "math"):
        return None
    given = operation.operands[0].type
    result = operation.results[0].type
    if name in ("cmpi", "cmpf"):
        predicate = operation.words[0]
        if name == "cmpi":
            return COMPARED[predicate]
        compared = COMPARED_FLOATING[predicate]
        return compared if given.dtype.itemsize > 1 else _widening(compared)
    if name == "select":
        if isinstance(result.element, Descriptor):
            raise not_known(operation, "to choose between descriptors")
        return _chosen(0 if given.shape == result.shape else len(result.shape))
    converted = _conversion(name, operation, given, result)
    if converted is not None:
        return converted
    if name == "absi":
        return np.abs
    found = (BITS if given.element == "i1" else WHOLE).get(name)
    if found is not None:
        return found
    found = FLOATING.get(name)
    if found is None:
        raise not_known(operation)
    if given.dtype.itemsize >= 4:
        return found
    return _rounding(found, result.element)


def _chosen(rank: int) -> Function:
    """Returns what chooses between tiles; by one condition for each program if a rank is given."""

    def chosen(condition: Array, a: Array, b: Array) -> Array:
        return np.where(condition.reshape(-1, *(1,) * rank) if rank else condition, a, b)

    return chosen


def _widening(function: Function) -> Function:
    return lambda *operands: function(*map(widened, operands))


def _rounding(function: Function, to: Any) -> Function:
    return lambda *operands: rounded(function(*map(widened, operands)), to)


def _from_whole(a: Array, to: str) -> Array:
    """Returns whole numbers as floating-point ones, rounded once."""
    return a.astype(np.float32) if to == "f32" else rounded(a.astype(np.float64), to)


def _conversion(name: str, operation: Operation, given: Type, result: Type) -> Function | None:
    to, dtype = result.element, result.dtype
    if name in ("extf", "truncf"):
        down = "rtz" in operation.words or "toward_zero" in operation.words
        return lambda a: rounded(a, str(to), down=down)
    if name in ("extsi", "index_cast", "index_castui"):
        return (lambda a: -a.astype(dtype)) if given.element == "i1" else lambda a: a.astype(dtype)
    if name == "extui":
        if given.element == "i1":
            return lambda a: a.astype(dtype)
        return lambda a: unsigned(a).astype(_UNSIGNED[dtype.itemsize]).view(dtype)
    if name == "trunci":
        return (lambda a: (a & 1) != 0) if to == "i1" else lambda a: a.astype(dtype)
    if name == "sitofp":
        if given.element == "i1":
            return lambda a: rounded(-a.astype(np.float32), str(to))
        return lambda a: _from_whole(a, str(to))
    if name == "uitofp":
        return lambda a: _from_whole(a if a.dtype == np.bool_ else unsigned(a), str(to))
    if name in ("fptosi", "fptoui"):
        return lambda a: to_whole(a, dtype, signed=name == "fptosi")
    if name == "bitcast":
        return lambda a: a.view(dtype)
    return None
