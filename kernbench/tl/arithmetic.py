"""What commands compute: types and functions of values, apart from the times of engines."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from kernbench.caches import cached
from kernbench.memory import DType, dtypes
from kernbench.memory.arithmetic import function_named
from kernbench.tl.operands import common_shape, refusal
from kernbench.tl.tile import Scalar, Tile

Array = np.ndarray[Any, Any]

Function = Callable[..., Array]
"""Takes the values of operands without changing them, and returns the values of the result."""

_OF_FLOATS: Final = {"divide", "exp", "log", "rsqrt", "sigmoid", "sqrt"}
"""Functions whose results are never whole numbers."""


def _quotient(a: Array, b: Array) -> Array:
    """Divides whole numbers and rounds towards zero, as C and Triton do."""
    quotient: Array = np.floor_divide(a - np.fmod(a, b), b)
    return quotient


def _rsqrt(x: Array) -> Array:
    return np.reciprocal(np.sqrt(x))


def _sigmoid(x: Array) -> Array:
    # The exponential of a positive number might be too large.
    small = np.exp(-np.abs(x))
    values: Array = np.where(x >= 0, np.ones_like(small), small) / (small + 1)
    return values


_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "floor_divide": _quotient,
    "remainder": np.fmod,  # has the sign of the dividend, for floats as well
    "rsqrt": _rsqrt,
    "sigmoid": _sigmoid,
}
"""Functions for which numpy has no ufunc of the same name and meaning."""


def elementwise(name: str, operands: Sequence[Tile | Scalar]) -> tuple[Function, DType]:
    """Returns a function of some operands, and the type of its result.

    Whole numbers and Python's scalars are converted to the float type of the other operands, as in
    Triton.

    Args:
        name: Name of a numpy ufunc, `rsqrt` or `sigmoid`; `floor_divide` and `remainder` work as in
            C.
        operands: Tiles and Python's scalars.

    Raises:
        TileOperandError: For `floor_divide` of floats.
    """
    kinds = tuple([t.dtype if isinstance(t, Tile) else type(t) for t in operands])
    if name == "floor_divide" and any(map(_is_float, kinds)):
        shown = " and ".join(k.__name__ if isinstance(k, type) else str(k) for k in kinds)
        raise refusal(
            f"'//' takes whole numbers; got {shown}",
            hint="divide with '/', or convert with .to(tl.int32)",
        )
    return _elementwise(name, kinds)


def _is_float(kind: DType | type) -> bool:
    return kind.is_floating_point if isinstance(kind, DType) else kind is float


@cached("tl.elementwise")
def _elementwise(name: str, kinds: tuple[DType | type, ...]) -> tuple[Function, DType]:
    floats = [k for k in kinds if isinstance(k, DType) and k.is_floating_point]
    wanted: Any = None
    if floats:
        wanted = max(floats, key=lambda dtype: dtype.itemsize).numpy
    elif name in _OF_FLOATS or float in kinds:
        wanted = np.dtype(np.float32)
    casts = [None if k in floats else wanted for k in kinds]
    function = _FUNCTIONS.get(name) or function_named(name, wanted)

    def compute(*values: Any) -> Array:
        if wanted is not None:
            pairs = zip(values, casts, strict=True)
            return np.asarray(function(*[v if c is None else np.asarray(v, c) for v, c in pairs]))
        return np.asarray(function(*values))

    samples: list[Any] = [np.ones((), k.numpy) if isinstance(k, DType) else k(1) for k in kinds]
    dtype = dtypes.from_numpy(compute(*samples).dtype)
    assert dtype is not None
    return compute, dtype


def cast(dtype: DType) -> Function:
    """Returns a function that converts values to a type."""
    return lambda values: values.astype(dtype.numpy)


def where(dtype: DType) -> Function:
    """Returns a function that chooses between values, converted to a type."""

    def choose(condition: Array, yes: Array, no: Array) -> Array:
        yes, no = (each.astype(dtype.numpy, copy=False) for each in (yes, no))
        return np.where(condition, yes, no)

    return choose


def reduction(name: str, dtype: DType, axis: int | None) -> tuple[Function, DType]:
    """Returns a function that reduces values with a ufunc, and the type of its result.

    Args:
        name: Name of a numpy ufunc, such as `add`; narrow types are added in a wider type.
        dtype: Type of the values.
        axis: Axis to reduce; None for all.
    """
    wide = dtype.numpy
    if name == "add":
        if not dtype.is_floating_point and dtype.itemsize < 4:
            dtype = dtypes.int32
        wide = dtype.accumulator
    function: Any = getattr(np, name)

    def compute(values: Array) -> Array:
        reduced = np.asarray(function.reduce(values.astype(wide, copy=False), axis=axis))
        return reduced.astype(dtype.numpy, copy=False)

    return compute, dtype


def product(a: Tile, b: Tile, acc: Tile | None, out: DType) -> tuple[Function, DType]:
    """Returns a function that multiplies two tiles and adds a third, and its result's type.

    Args:
        a: Tile of shape `[m, k]`.
        b: Tile of shape `[k, n]`.
        acc: Tile to add, of a shape that broadcasts to `[m, n]`; None for none.
        out: Type of the result; int8 gives int32 instead.

    Raises:
        TileOperandError: If shapes or types do not fit.
    """
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0]:
        raise refusal(f"tl.dot takes [m, k] and [k, n]; got {list(a.shape)} and {list(b.shape)}")
    if a.dtype is not b.dtype or (not a.dtype.is_floating_point and a.dtype is not dtypes.int8):
        raise refusal(
            f"tl.dot takes two tiles of one floating-point type or int8; "
            f"got {a.dtype} and {b.dtype}",
            hint="convert one of them with .to(dtype)",
        )
    expected = (a.shape[0], b.shape[1])
    if acc is not None and common_shape("tl.dot and its acc", [expected, acc.shape]) != expected:
        raise refusal(f"tl.dot gives {list(expected)}; got an acc of {list(acc.shape)}")
    wide = a.dtype.accumulator
    if a.dtype is dtypes.int8:
        wide, out = dtypes.int32.numpy, dtypes.int32
    return _product(a.dtype.numpy, wide, out.numpy, None if acc is None else acc.dtype.numpy), out


@cached("tl.products")
def _product(narrow: Any, wide: Any, out: Any, added: Any) -> Function:
    def multiply(a: Array, b: Array) -> Array:
        values: Array = a.astype(wide, copy=False) @ b.astype(wide, copy=False)
        return values.astype(out, copy=False)

    def multiply_and_add(a: Array, b: Array, acc: Array) -> Array:
        values: Array = acc + a.astype(wide, copy=False) @ b.astype(wide, copy=False)
        return values.astype(out, copy=False)

    def plainly(a: Array, b: Array, acc: Array) -> Array:
        # Nobody else holds the product, so it can be changed in place.
        values: Array = a @ b
        if acc.shape != values.shape:
            return acc + values
        np.add(acc, values, values)
        return values

    if added is None:
        return multiply
    return plainly if narrow == wide == out == added else multiply_and_add
