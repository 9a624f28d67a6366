"""Types of tiles: which type a computation has, and conversion, both as in Triton.

The rules are those of Triton 3.9, `TritonSemantic` in `python/triton/language/semantic.py`:
`computation_type_impl`, `to_tensor_type`, `scalar_constant` and `cast`.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from kernbench.caches import cached
from kernbench.memory import Array, DType, dtypes
from kernbench.memory.arithmetic import saturated
from kernbench.tl.operands import refusal
from kernbench.ttir.arithmetic import to_whole
from kernbench.ttir.types import SCALARS

Scalar = int | float | bool

_FLOAT32: Final = np.finfo(np.float32)


def is_whole(dtype: DType) -> bool:
    """Returns whether a type holds whole numbers; bool is one of a single bit, without a sign."""
    return not dtype.is_floating_point


def width(dtype: DType) -> int:
    """Returns the number of bits of an element."""
    return 1 if dtype is dtypes.bool_ else 8 * dtype.itemsize


_ELEMENTS: Final = {dtype: name for name, dtype in SCALARS.items() if name != "index"}


def element(dtype: DType) -> str:
    """Returns the name of a type in Triton's IR, where whole numbers have no sign."""
    numpy = dtype.numpy
    return _ELEMENTS[np.dtype(f"i{numpy.itemsize}") if numpy.kind == "u" else numpy]


def ends(dtype: DType) -> tuple[int, int]:
    """Returns the smallest and the largest number of a type of whole numbers."""
    bits = width(dtype)
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if dtype.is_signed else (0, (1 << bits) - 1)


_OF_NUMBERS: Final = tuple(
    (dtype, *ends(dtype)) for dtype in (dtypes.int32, dtypes.uint32, dtypes.int64, dtypes.uint64)
)
"""Types that Python's integers have, each with its smallest and largest number."""


def type_of(value: Scalar) -> DType:
    """Returns the type of one of Python's numbers as a tile.

    Raises:
        TileOperandError: If no type holds the number, or it is none.
    """
    if isinstance(value, bool):
        return dtypes.bool_
    if isinstance(value, float):
        size = abs(value)
        normal = float(_FLOAT32.tiny) <= size <= float(_FLOAT32.max)
        return dtypes.float32 if normal or not size or not np.isfinite(size) else dtypes.float64
    given: object = value  # of any type, like all that a kernel is launched with
    if not isinstance(given, int | np.integer):
        raise refusal(f"expected a tile or a number; got {type(given).__name__}")
    for dtype, low, high in _OF_NUMBERS:
        if low <= value <= high:
            return dtype
    raise refusal(f"{value} is too large for a kernel: no type of whole numbers has it")


def _kind(dtype: DType) -> int:
    return 2 if dtype.is_floating_point else int(dtype is not dtypes.bool_)


@cached("tl.types")
def common_type(
    a: DType, b: DType, a_weak: bool = False, b_weak: bool = False, *, divides: bool = False
) -> DType:
    """Returns the type in which a function of two operands is computed.

    Args:
        a: Type of the first operand.
        b: Type of the second operand.
        a_weak: Whether the first operand is one of Python's numbers.
        b_weak: Whether the second operand is one of Python's numbers.
        divides: Whether the function is a division or a remainder.

    Raises:
        TileOperandError: If the types have no common one, or Triton does not divide them by each
            other.
    """
    if a_weak != b_weak:
        number, tile = (a, b) if a_weak else (b, a)
        # Python's number takes part only if it is of a higher kind: bool < whole < float.
        if _kind(number) <= _kind(tile):
            a = b = tile
    both = {a, b}
    if dtypes.float64 in both:
        return dtypes.float64
    floats = [each for each in (a, b) if each.is_floating_point]
    if floats and (divides or dtypes.float32 in both):
        return dtypes.float32
    if dtypes.float16 in both:
        return dtypes.float16
    if dtypes.bfloat16 in both:
        return dtypes.bfloat16 if len(both) == 1 else dtypes.float32
    if len(floats) == 2:
        return a if a is b else dtypes.float16
    if floats:
        raise refusal(
            f"{a} and {b} have no common type",
            hint="convert the 8-bit floats with .to(tl.float16) or .to(tl.float32)",
        )
    if divides and a.is_signed != b.is_signed:
        raise refusal(
            f"{a} and {b} are not divided by each other: one has a sign, one has none",
            hint="convert one of them with .to(dtype)",
        )
    return _wider(a, b)


def _wider(a: DType, b: DType) -> DType:
    """Returns the type of two types of whole numbers together, by C's usual conversions."""
    if a.is_signed == b.is_signed:
        return a if width(a) > width(b) else b
    unsigned, signed = (b, a) if a.is_signed else (a, b)
    return unsigned if width(unsigned) >= width(signed) else signed


def constant(value: Scalar, dtype: DType) -> Array:
    """Returns one of Python's numbers in a type, without axes.

    Raises:
        TileOperandError: If a type of whole numbers does not have the number.
    """
    if is_whole(dtype):
        low, high = ends(dtype)
        whole = not isinstance(value, float) or value == 0
        if not whole or not low <= value <= high:
            raise refusal(
                f"{value} is not a number of type {dtype}",
                f"{dtype} holds the whole numbers {low}..{high}",
                hint="convert the tile with .to(dtype) first",
            )
        return np.array(int(value), dtype.numpy)
    return convert(np.array(value, np.float64), dtype)


def check_cast(source: DType, target: DType) -> None:
    """Refuses a conversion between 8-bit floats and whole numbers, which Triton does not compile.

    Raises:
        TileOperandError: If the types are such a pair.
    """
    if (source.saturates and is_whole(target)) or (is_whole(source) and target.saturates):
        raise refusal(
            f"{source} is not converted to {target} at once",
            hint="go by way of float32: x.to(tl.float32).to(dtype)",
        )


def convert(values: Array, dtype: DType) -> Array:
    """Returns values as an array of a type; the array itself if it has that type.

    A number that an 8-bit float or a whole number does not hold becomes its largest or smallest
    one, as the conversions of an H200 do: Triton 3.9 compiles `.to` to PTX's `cvt.rn.satfinite` and
    `cvt.rzi`, by which NaN is 0. Any number but 0 is True.
    """
    if values.dtype == dtype.numpy:
        return values
    if dtype.saturates:
        return saturated(values, dtype.numpy)
    if values.dtype.kind not in "biu" and is_whole(dtype):
        found = to_whole(values, dtype.numpy, signed=dtype.is_signed)
        source = dtypes.from_numpy(values.dtype)
        lost = source is not None and are_undefined(values, source)
        return np.where(lost, undefined(dtype), found) if np.any(lost) else found
    return values.astype(dtype.numpy)


# Lanes that nobody defined

_PATTERNS: Final = {
    dtypes.float64: (np.uint64, 0xFFFC << 48),
    dtypes.float32: (np.uint32, 0xFFE0 << 16),
    dtypes.float16: (np.uint16, 0xFF00),
    dtypes.bfloat16: (np.uint16, 0xFFE0),
    dtypes.float8_e4m3fn: (np.uint8, 0xFF),
    dtypes.float8_e5m2: (np.uint8, 0xFF),
}
"""A NaN that no computation makes of numbers, whose bits outlive a conversion to a wider type."""


_NANS: Final = {
    dtype: np.array(pattern, bits).view(dtype.numpy)[()]
    for dtype, (bits, pattern) in _PATTERNS.items()
}


def undefined(dtype: DType) -> Any:
    """Returns the value of a lane that a mask leaves out: a NaN, or the largest whole number."""
    return dtypes.poison(dtype) if is_whole(dtype) else _NANS[dtype]


def are_undefined(values: Array, dtype: DType) -> Array:
    """Returns which floats are the NaN of `undefined`."""
    bits, pattern = _PATTERNS[dtype]
    found: Array = np.ascontiguousarray(values).view(bits) == pattern
    return found.reshape(values.shape)


Extreme = Callable[..., Array]


@cached("tl.extremes")
def extreme(name: str, dtype: DType) -> tuple[Extreme, Callable[[Array, int | None], Array]]:
    """Returns the larger or the smaller of two values, and of the values along an axis.

    NaN loses against a number, as in Triton without `propagate_nan` and in PTX's `max`; but what
    is computed of a lane that nobody defined is undefined.

    Args:
        name: `maximum` or `minimum`.
        dtype: Type of the values.
    """
    plain: Any = getattr(np, name)
    dropping: Any = np.fmax if name == "maximum" else np.fmin
    if is_whole(dtype):
        return plain, lambda values, axis: np.asarray(plain.reduce(values, axis=axis))

    def of_two(a: Array, b: Array) -> Array:
        values = np.asarray(plain(a, b))
        if not np.isnan(values).any():
            return values
        lost = are_undefined(np.asarray(a), dtype) | are_undefined(np.asarray(b), dtype)
        chosen: Array = np.where(lost, undefined(dtype), dropping(a, b))
        return chosen

    def of_axis(values: Array, axis: int | None) -> Array:
        reduced = np.asarray(plain.reduce(values, axis=axis))
        if not np.isnan(reduced).any():
            return reduced
        lost = are_undefined(values, dtype).any(axis=axis)
        chosen: Array = np.where(lost, undefined(dtype), dropping.reduce(values, axis=axis))
        return chosen

    return of_two, of_axis
