"""Products of matrices, and what reduces arrays, as a GPU rounds them."""

from typing import Final

import numpy as np

from kernbench.ttir.arithmetic import Array, Function, rounded, widened
from kernbench.ttir.types import SCALARS


def tf32(a: Array) -> Array:
    """Returns float32 numbers without their last 13 bits, as a product in tf32 takes them.

    Triton 3.9 compiles no rounding (`cvt.rna.tf32`) for compute capabilities 8.0 and 9.0, and the
    instructions read no more bits: an H200 multiplies 1 + 2^-11 as 1. NaN stays NaN.
    """
    kept = (np.ascontiguousarray(a).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    if a.size and np.isnan(a.max()):  # which is a NaN if one is there
        np.copyto(kept, a, where=np.isnan(a))
    return kept


class Product:
    """Multiplies matrices `[..., m, k]` and `[..., k, n]` and, if given, adds others.

    Args:
        given: Name of the type of the matrices.
        to: Name of the type of the result, and of what is added.
        short: Whether float32 is multiplied as tf32.

    Attributes:
        prepared: Makes of a matrix what `multiplied` takes.
        whole: Whether that is a product of numpy's, with nothing to round or to wrap around.
    """

    def __init__(self, given: str, to: str, *, short: bool) -> None:
        self._to: Final = to
        self._dtype: Final = SCALARS[to]
        self.prepared: Function = _as_it_is
        if self._dtype.kind == "i":
            self.prepared = _exact
        elif given == "f32" and short:
            self.prepared = tf32
        elif SCALARS[given].itemsize < 4:
            self.prepared = widened
        taken = SCALARS["f32" if self.prepared is widened else given]
        self.whole: Final = self._dtype.kind == "f" and taken == self._dtype

    def __call__(self, a: Array, b: Array, held: Array | None = None) -> Array:
        """Returns the product of matrices, added to others if there are any."""
        return self.multiplied(self.prepared(a), self.prepared(b), held)

    def multiplied(self, a: Array, b: Array, held: Array | None) -> Array:
        """Returns the product of prepared matrices, added to others if there are any."""
        found: Array = np.matmul(a, b)
        if self._dtype.kind == "i":
            found = found.astype(np.int64)  # which wraps around where the result is narrower
        if self._dtype.itemsize < 4:
            return rounded(found if held is None else found + widened(held), self._to)
        found = found.astype(self._dtype, copy=False)  # float64 of narrow numbers
        if held is None:
            return found
        # Nobody else has the product: it is changed in place, unless more programs add others.
        added: Array = np.add(found, held, out=found if len(held) <= len(found) else None)
        return added


def _as_it_is(a: Array) -> Array:
    return a


def _exact(a: Array) -> Array:
    """Returns whole numbers as float64, whose sums of products are exact, and fast."""
    return a.astype(np.float64)


def reducing(ufunc: np.ufunc, of: str, *, exact: bool) -> Function:
    """Returns what reduces arrays of a type along an axis, or all elements if that is None.

    Args:
        ufunc: What it reduces with.
        of: Name of the type.
        exact: Whether nothing is rounded. Else every result of narrow floats is, as on a GPU.
    """
    dtype = SCALARS[of]

    def reduced(array: Array, axis: int | None) -> Array:
        found: Array
        if dtype.kind in "biu" or dtype.itemsize >= 4:
            found = ufunc.reduce(array, axis=axis, dtype=dtype)
        elif exact or not array.size:
            found = ufunc.reduce(widened(array), axis=axis).astype(dtype)
        else:
            left = array.reshape(-1) if axis is None else np.moveaxis(array, axis, 0)
            while len(left) > 1:
                half = len(left) // 2
                both = rounded(ufunc(widened(left[:half]), widened(left[half : 2 * half])), of)
                left = np.concatenate((both, left[2 * half :])) if len(left) % 2 else both
            found = left[0]
        return found

    return reduced
