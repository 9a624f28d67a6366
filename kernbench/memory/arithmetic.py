"""Arithmetic on elements as the device does it, where numpy rounds in another way."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import ml_dtypes
import numpy as np

from kernbench.caches import cached

Function = Callable[..., Any]

LARGEST: Final = {
    np.dtype(ml_dtypes.float8_e4m3fn): 448.0,
    np.dtype(ml_dtypes.float8_e5m2): 57344.0,
}
"""8-bit floats and the largest finite value of each."""

_ROUNDED: Final = frozenset({"add", "subtract", "multiply"})


@cached("memory.functions")
def function_named(name: str, dtype: np.dtype[Any] | None) -> Function:
    """Returns an elementwise function with the signature of a ufunc: operands, and `out` if wanted.

    The function is numpy's ufunc, except that sums, differences and products of 8-bit floats are
    exact, rounded once to nearest even, and end at the largest finite value: an H100 converts to 8
    bits in this way (`__NV_SATFINITE`), while ml_dtypes overflows to NaN (e4m3) or infinity (e5m2).

    Args:
        name: Name of the ufunc.
        dtype: Type of the operands; None if it does not matter.
    """
    ufunc: Function = getattr(np, name)
    if dtype is None or dtype not in LARGEST or name not in _ROUNDED:
        return ufunc
    return partial(_saturated, ufunc, dtype)


def saturated(values: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Returns values as 8-bit floats: rounded, and the largest finite value where they are larger.

    Args:
        values: Numbers of any type; infinity becomes the largest value, too, and NaN stays.
        dtype: `float8_e4m3fn` or `float8_e5m2` of ml_dtypes.
    """
    largest = LARGEST[dtype]
    narrow: np.ndarray[Any, Any] = np.clip(np.asarray(values, np.float32), -largest, largest)
    return narrow.astype(dtype)


def _saturated(
    ufunc: Function, dtype: np.dtype[Any], left: Any, right: Any, out: Any = None
) -> Any:
    # float32 holds the sum and the product of two 8-bit floats without rounding.
    wide = ufunc(np.asarray(left, np.float32), np.asarray(right, np.float32))
    values = saturated(wide, dtype)
    if out is None:
        return values
    out[...] = values
    return out
