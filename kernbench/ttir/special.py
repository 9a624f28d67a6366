"""Functions that mathematics calls special, as libdevice has them, in float64."""

import math
from collections.abc import Callable, Mapping
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from kernbench.ttir.arithmetic import Array, Function

_INVERSE: Final = NormalDist().inv_cdf

_POINTS: Final = 512
"""Places of a turn at which Bessel's integrals are added up. Their sum is as exact as float64 while
the argument is below `_FAR`: it misses functions of higher orders alone, which are tiny there."""

_FAR: Final = 128.0
"""From where the series in 1 / x is used."""

_AT_ONCE: Final = 4096
"""Arguments that are added up together: 32 MiB."""


def _normcdfinv(a: float) -> float:
    if 0 < a < 1:
        return _INVERSE(a)
    return {0.0: -math.inf, 1.0: math.inf}.get(a, math.nan)


def _erfcinv(a: float) -> float:
    if 0 < a < 2:
        return -_INVERSE(a / 2) / math.sqrt(2) if a < 0.5 else _erfinv(1 - a)
    return {0.0: math.inf, 2.0: -math.inf}.get(a, math.nan)


def _erfinv(a: float) -> float:
    if abs(a) < 1:
        found = _INVERSE((a + 1) / 2) / math.sqrt(2)
        slope = 2 / math.sqrt(math.pi) * math.exp(-found * found)
        return found - (math.erf(found) - a) / slope  # what a + 1 has lost
    return math.copysign(math.inf, a) if abs(a) == 1 else math.nan


def _erfcx(a: float) -> float:
    if a < 10:  # of the square's rounding, 100 parts in 2^53 are left
        try:
            return math.exp(a * a) * math.erfc(a)
        except OverflowError:
            return math.inf
    # Abramowitz and Stegun 7.1.23; its eighth term is below 1e-10 of the first
    terms, term = 1.0, 1.0
    for turn in range(1, 9):
        term *= -(2 * turn - 1) / (2 * a * a)
        terms += term
    return terms / (a * math.sqrt(math.pi))


def _far(order: int, x: Array) -> tuple[Array, Array]:
    """Returns J and Y of large numbers: Abramowitz and Stegun 9.2.5 to 9.2.10."""
    angle = x - (order / 2 + 0.25) * math.pi
    even, odd, term = np.ones_like(x), np.zeros_like(x), np.ones_like(x)
    for turn in range(1, 11):
        term = term * (4 * order * order - (2 * turn - 1) ** 2) / (turn * 8 * x)
        if turn % 2:
            odd += term * (1, -1)[turn // 2 % 2]
        else:
            even += term * (1, -1)[turn // 2 % 2]
    size = np.sqrt(2 / (math.pi * x))
    cos, sin = np.cos(angle), np.sin(angle)
    return size * (even * cos - odd * sin), size * (even * sin + odd * cos)


def _orders(x: Array) -> Array:
    """Returns J of all orders, along the last axis: Abramowitz and Stegun 9.1.41."""
    turn = 2 * math.pi * np.arange(_POINTS) / _POINTS
    found: Array = np.fft.fft(np.exp(1j * x[..., None] * np.sin(turn)), norm="forward").real
    return found


def _j(order: int, x: Array) -> Array:
    size = np.abs(x)
    found = np.where(size < _FAR, _orders(np.minimum(size, _FAR))[..., order], 0.0)
    found = np.where(size < _FAR, found, _far(order, np.maximum(size, _FAR))[0])
    if order:  # the sum is exact to 1e-16, and this to 1e-12 of itself
        found = np.where(size < 1e-3, size / 2 * (1 - size * size / 8), found) * np.sign(x)
    return np.where(np.isinf(x), 0.0, np.where(np.isnan(x), x, found))


def _y(order: int, x: Array) -> Array:
    """Abramowitz and Stegun 9.1.89 for order 0, and its derivative for order 1."""
    near = np.clip(x, 1e-300, _FAR)
    all_j = _orders(near)
    turn = np.arange(1, _POINTS // 4)
    signs = np.where(turn % 2, -1.0, 1.0)
    log = np.log(near / 2) + np.euler_gamma
    if order:
        rest = (all_j[..., 2 * turn - 1] - all_j[..., 2 * turn + 1]) * signs / turn
        close = (log * all_j[..., 1] - all_j[..., 0] / near + rest.sum(-1)) * 2 / math.pi
    else:
        rest = (all_j[..., 2 * turn] * signs / turn).sum(-1)
        close = (log * all_j[..., 0] - 2 * rest) * 2 / math.pi
    found = np.where(x < _FAR, close, _far(order, np.maximum(x, _FAR))[1])
    found = np.where(np.isposinf(x), 0.0, np.where(x == 0, -np.inf, found))
    return np.where((x < 0) | np.isnan(x), np.nan, found)


def _i(order: int, x: Array) -> Array:
    """Abramowitz and Stegun 9.6.19, without the factor e^x until the end."""
    size = np.abs(x)
    turn = 2 * math.pi * np.arange(_POINTS) / _POINTS
    bounded = np.minimum(size, 720.0)  # beyond, float64 has no number for it
    weights = np.exp(bounded[..., None] * (np.cos(turn) - 1)) * np.cos(order * turn)
    found: Array = weights.mean(-1) * np.exp(bounded)
    if order:
        found = np.where(size < 1e-3, size / 2 * (1 + size * size / 8), found) * np.sign(x)
    return found


def _by_parts(function: Callable[[int, Array], Array], order: int) -> Function:
    def computed(a: Array) -> Array:
        wide = a.astype(np.float64).ravel()
        parts = [function(order, wide[at : at + _AT_ONCE]) for at in range(0, wide.size, _AT_ONCE)]
        return np.concatenate([*parts, wide[:0]]).reshape(a.shape).astype(a.dtype)

    return computed


def _each(function: Callable[[float], float]) -> Function:
    made: Any = np.frompyfunc(function, 1, 1)

    def computed(a: Array) -> Array:
        found: Array = made(a.astype(np.float64)).astype(a.dtype)
        return found

    return computed


SPECIAL: Final[Mapping[str, Function]] = {
    "cyl_bessel_i0": _by_parts(_i, 0),
    "cyl_bessel_i1": _by_parts(_i, 1),
    "erfcinv": _each(_erfcinv),
    "erfcx": _each(_erfcx),
    "erfinv": _each(_erfinv),
    "j0": _by_parts(_j, 0),
    "j1": _by_parts(_j, 1),
    "normcdf": _each(lambda a: math.erfc(-a / math.sqrt(2)) / 2),
    "normcdfinv": _each(_normcdfinv),
    "y0": _by_parts(_y, 0),
    "y1": _by_parts(_y, 1),
}
"""By libdevice's name, without `__nv_` and the letter that tells the type."""
