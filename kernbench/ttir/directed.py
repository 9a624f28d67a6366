"""Functions of libdevice that say how they round, such as `__nv_fadd_rz` and `__nv_float2int_rd`.

numpy rounds to the nearest number alone. Other ways to round compare that with the exact result,
which fractions of Python hold.
"""

import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final

import numpy as np

from kernbench.ttir.arithmetic import FLOATING, Array, Function, to_whole, unsigned

_NEAREST: Final[Mapping[str, Function]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "sqrt": np.sqrt,
    "rcp": lambda a: a.dtype.type(1) / a,
    "fma": FLOATING["fma"],
    "rsqrt": FLOATING["rsqrt"],  # to the nearest alone
}

_EXACT: Final[Mapping[str, Callable[..., Fraction]]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "rcp": lambda a: 1 / a,
    "fma": lambda a, b, c: a * b + c,
}

_TO_WHOLE: Final[Mapping[str, Function]] = {
    "rn": np.rint,
    "rz": np.trunc,
    "ru": np.ceil,
    "rd": np.floor,
}

_DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "int": np.dtype(np.int32),
    "ll": np.dtype(np.int64),
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
}


def rounding_function(name: str) -> Function | None:
    """Returns what a function with a rounding in its name computes; None if it is not known.

    Args:
        name: Its name without `__nv_`, such as `fmul_ru`, `fmaf_rn` and `ull2float_rz`.
    """
    found = re.fullmatch(r"(?:[fd](add|sub|mul|div|sqrt|rcp|rsqrt)|(fma)f?)_(r[nzud])", name)
    if found:
        kind, way = found[1] or found[2], found[3]
        if way == "rn":
            return _NEAREST[kind]
        return None if kind == "rsqrt" else _directed(kind, way)
    found = re.fullmatch(r"(u?)(int|ll|float|double)2(u?)(int|ll|float|double)_(r[nzud])", name)
    if found is None:
        return None
    without, given, positive, result, way = found.groups()
    if given in ("float", "double") and result in ("int", "ll"):
        whole, dtype = _TO_WHOLE[way], _DTYPES[result]
        return lambda a: to_whole(whole(a), dtype, signed=not positive)
    return _narrowed(_DTYPES[result], way, signless=bool(without))


def _directed(kind: str, way: str) -> Function:
    """Returns an operation on numbers that is rounded in another way than to the nearest."""

    def side(near: Any, *operands: Any) -> int:
        if not np.isfinite(operands).all() or np.isnan(near):
            return 0
        if np.isinf(near):  # past the largest number, or divided by 0
            return 0 if kind in ("div", "rcp") and operands[-1] == 0 else -int(np.sign(near))
        exact = [Fraction(float(each)) for each in operands]
        if kind == "sqrt":
            return _sign(exact[0] - Fraction(float(near)) ** 2)
        return _sign(_EXACT[kind](*exact) - Fraction(float(near)))

    def computed(*operands: Array) -> Array:
        if kind == "fma" and operands[0].dtype == np.float64:
            near = _fused(*operands)  # two roundings may be further away than the next number
        else:
            near = _NEAREST[kind](*operands)
        return _moved(near, np.frompyfunc(side, len(operands) + 1, 1)(near, *operands), way)

    return computed


@np.vectorize
def _fused(a: float, b: float, c: float) -> float:
    if not np.isfinite([a, b, c]).all():
        return a * b + c
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    try:
        return float(exact)
    except OverflowError:
        return np.inf if exact > 0 else -np.inf


def _narrowed(dtype: np.dtype[Any], way: str, *, signless: bool) -> Function:
    """Returns a conversion to numbers that may hold fewer digits."""

    def side(near: Any, exact: Any) -> int:
        if not np.isfinite(exact):
            return 0
        if np.isinf(near):
            return -int(np.sign(near))
        return _sign(Fraction(exact) - Fraction(float(near)))

    def computed(a: Array) -> Array:
        given = unsigned(a) if signless else a
        near = given.astype(dtype)
        if way == "rn":
            return near
        return _moved(near, np.frompyfunc(side, 2, 1)(near, given.astype(object)), way)

    return computed


def _sign(number: Fraction) -> int:
    return (number > 0) - (number < 0)


def _moved(near: Array, side: Any, way: str) -> Array:
    """Returns the neighbours of numbers that lie on the wrong side of exact results.

    Args:
        near: A neighbour of each exact result, or the result.
        side: Whether the exact result lies above (1), below (-1), or is this number (0).
        way: "rz" towards zero, "ru" up, "rd" down.
    """
    above = np.asarray(side).astype(np.int8)
    down, up = (
        np.nextafter(near, near.dtype.type(-np.inf)),
        np.nextafter(near, near.dtype.type(np.inf)),
    )
    lower = (above < 0) & ((near > 0) if way == "rz" else way == "rd")
    higher = (above > 0) & ((near < 0) if way == "rz" else way == "ru")
    return np.where(lower, down, np.where(higher, up, near))
