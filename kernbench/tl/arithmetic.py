"""What commands compute: types and functions of values, apart from the times of engines."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from kernbench.caches import cached
from kernbench.errors import CallSite, call_site
from kernbench.memory import Array, DType, dtypes
from kernbench.memory.arithmetic import function_named
from kernbench.tl import types
from kernbench.tl.notices import notify
from kernbench.tl.operands import refusal
from kernbench.tl.tile import Tile
from kernbench.tl.types import Scalar, convert, element, is_whole
from kernbench.ttir.arithmetic import FLOATING, WHOLE
from kernbench.ttir.products import Product, reducing

Function = Callable[..., Array]
"""Takes the values of operands without changing them, and returns the values of the result."""

_DIVIDING: Final = {"divide", "floor_divide", "remainder"}
_OF_BITS: Final = {
    "bitwise_and": "&",
    "bitwise_or": "|",
    "bitwise_xor": "^",
    "left_shift": "<<",
    "arithmetic_right_shift": ">>",
    "logical_right_shift": ">>",
    "invert": "~",
}
_COMPARING: Final = {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}
_OF_FLOATS: Final = {"exp", "log", "rsqrt", "sigmoid", "sqrt"}
_WRAPPING: Final = {"add", "subtract", "multiply"}


def _shifted_right(a: Array, b: Array) -> Array:
    """Shifts in copies of the first bit, even if the type has no sign."""
    signed = np.dtype(f"i{a.dtype.itemsize}")
    shifted: Array = np.right_shift(a.view(signed), b.view(signed)).view(a.dtype)
    return shifted


def _sigmoid(x: Array) -> Array:
    values: Array = np.reciprocal(np.exp(-x) + x.dtype.type(1))
    return values


_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "floor_divide": WHOLE["divsi"],
    "remainder": np.fmod,  # has the sign of the dividend, for floats as well
    "arithmetic_right_shift": _shifted_right,
    "logical_right_shift": np.right_shift,
    "rsqrt": FLOATING["rsqrt"],
    "sigmoid": _sigmoid,
}
"""Functions for which numpy has no ufunc of the same name and meaning."""

Prepared = tuple[Function, DType, list[Tile | Array]]
"""A function, the type of its result, and its operands: numbers have become arrays."""


def elementwise(name: str, operands: Sequence[Tile | Scalar]) -> Prepared:
    """Returns a function of one or two operands, the type of its result, and what it is given.

    Operands are converted to their common type, see `types.common_type`. The result has that type,
    except that comparisons give truth values, and that `divide` gives a float.

    Args:
        name: Name of a numpy ufunc, a right shift, `rsqrt` or `sigmoid`; `floor_divide` and
            `remainder` work as in C, and numbers of one bit are added modulo 2.
        operands: Tiles and Python's numbers.

    Raises:
        TileOperandError: If Triton does not compile the function for these types.
    """
    kinds = tuple([t.dtype if isinstance(t, Tile) else types.type_of(t) for t in operands])
    weak = tuple([not isinstance(t, Tile) for t in operands])
    met, function, dtype = _elementwise(name, kinds, weak)
    given = [t if isinstance(t, Tile) else types.constant(t, met) for t in operands]
    if name in _DIVIDING and is_whole(dtype):
        if not isinstance(given[1], Tile) and not given[1].any():
            raise refusal(
                "a whole number is divided by 0",
                hint="on a GPU the result is undefined, and nothing reports it",
            )
        function = _watched(function, dtype, call_site())
    return function, dtype, given


def _check(name: str, common: DType) -> None:
    whole = is_whole(common)
    if name == "floor_divide" and not whole:
        raise refusal(
            f"'//' takes whole numbers; the common type is {common}",
            hint="divide with '/', or convert with .to(tl.int32)",
        )
    if name in _OF_BITS and not whole:
        raise refusal(
            f"'{_OF_BITS[name]}' takes whole numbers; the common type is {common}",
            hint="convert with .to(tl.int32)",
        )
    if name in _OF_FLOATS and common not in (dtypes.float32, dtypes.float64):
        raise refusal(
            f"tl.{name} takes float32 or float64; got {common}",
            hint=f"convert first, as in Triton: tl.{name}(x.to(tl.float32))",
        )


@cached("tl.elementwise")
def _elementwise(
    name: str, kinds: tuple[DType, ...], weak: tuple[bool, ...]
) -> tuple[DType, Function, DType]:
    """Returns the type that operands meet in, a function of them, and the type of its result."""
    met = kinds[0]
    if len(kinds) == 2:
        met = types.common_type(kinds[0], kinds[1], weak[0], weak[1], divides=name in _DIVIDING)
    common = dtypes.float32 if name == "divide" and is_whole(met) else met
    _check(name, common)
    result = dtypes.bool_ if name in _COMPARING else common
    if name in ("maximum", "minimum"):
        function: Callable[..., Any] = types.extreme(name, common)[0]
    elif common is dtypes.bool_ and result is common:
        function = _of_bits(name)
    else:
        function = _FUNCTIONS.get(name) or function_named(name, common.numpy)
    if common is met and all(w or kind is met for kind, w in zip(kinds, weak, strict=True)):
        return met, lambda *values: np.asarray(function(*values)), result

    def compute(*values: Array) -> Array:
        return np.asarray(function(*[convert(value, common) for value in values]))

    return met, compute, result


def _of_bits(name: str) -> Callable[..., Any]:
    """Returns a function of numbers of one bit: sums and products are those modulo 2."""
    if name == "invert":
        return np.logical_not
    function = _FUNCTIONS.get(name) or getattr(np, name)

    def compute(*values: Array) -> Array:
        wide = np.asarray(function(*[value.astype(np.int8) for value in values]))
        return (wide & 1).astype(np.bool_)

    return compute


_BY_ZERO: Final = (
    "a kernel divides whole numbers by 0 in some lanes, which is undefined on a GPU; these lanes "
    "now hold the largest number. Divide by tl.where(divisor == 0, 1, divisor)."
)


def _watched(function: Function, dtype: DType, site: CallSite | None) -> Function:
    """Returns a division that reports zeros among the divisors.

    Lanes with a divisor of 0 hold what undefined lanes hold. They are no error, since lanes that a
    mask leaves out at the end are computed, too.
    """

    def divide(a: Array, b: Array) -> Array:
        values = function(a, b)
        zeros = b == 0
        if not zeros.any():
            return values
        notify(site, _BY_ZERO)
        return np.where(zeros, types.undefined(dtype), values)

    return divide


def exact_range(
    name: str, operands: Sequence[Tile | Array], dtype: DType
) -> tuple[int, int] | None:
    """Returns the range that a result would have in a type without ends, if it has wrapped around.

    Args:
        name: Name of the function.
        operands: Tiles with values, and arrays.
        dtype: Type of the result.

    Returns:
        The smallest and the largest number; None if the type holds both, if the type has no sign,
        so that it is meant to wrap around, or if the function is no sum, difference or product.
    """
    if name not in _WRAPPING or not dtype.is_signed or not is_whole(dtype):
        return None
    raw = [t.values if isinstance(t, Tile) else t for t in operands]
    if any(values is None or not values.size for values in raw):
        return None
    wide: Any = np.int64 if dtype.itemsize < 8 else np.float64
    found = getattr(np, name)(*[values.astype(wide) for values in raw if values is not None])
    low, high = int(found.min()), int(found.max())
    first, last = types.ends(dtype)
    if wide is np.float64:  # which rounds, so a number close to the end is not told apart from it
        first, last = first - (1 << 20), last + (1 << 20)
    return None if first <= low and high <= last else (low, high)


def cast(dtype: DType) -> Function:
    """Returns a function that converts values to a type."""
    return lambda values: convert(values, dtype)


def where(yes: Tile | Scalar, no: Tile | Scalar) -> Prepared:
    """Returns a function that chooses between values, its type, and the values to choose from.

    Args:
        yes: Values where the condition holds.
        no: Values where the condition does not hold.

    Raises:
        TileOperandError: If the values have no common type.
    """
    values = (yes, no)
    kinds = [t.dtype if isinstance(t, Tile) else types.type_of(t) for t in values]
    weak = [not isinstance(t, Tile) for t in values]
    common = types.common_type(kinds[0], kinds[1], weak[0], weak[1])

    def choose(condition: Array, yes: Array, no: Array) -> Array:
        return np.where(convert(condition, dtypes.bool_), convert(yes, common), convert(no, common))

    return choose, common, [t if isinstance(t, Tile) else types.constant(t, common) for t in values]


def reduction(
    name: str, dtype: DType, axis: int | None, wanted: DType | None = None
) -> tuple[Function, DType]:
    """Returns a function that reduces values, and the type of its result.

    Whole numbers of fewer than 32 bits are widened to 32, and so are floats of which the largest or
    smallest is wanted. Each sum of two narrow floats is rounded; a GPU adds in an order of its own.

    Args:
        name: `add`, `maximum` or `minimum`.
        dtype: Type of the values.
        axis: Axis to reduce; None for all.
        wanted: Type in which `add` adds; None for the usual one.
    """
    if name != "add":
        if dtype.itemsize < 4:
            dtype = dtypes.int32 if is_whole(dtype) else dtypes.float32
        reduce, out = types.extreme(name, dtype)[1], dtype
        return lambda values: reduce(convert(values, out), axis), out
    if wanted is not None:
        dtype = wanted
    elif is_whole(dtype) and dtype.itemsize < 4:
        dtype = dtypes.int32 if dtype.is_signed else dtypes.uint32
    result = dtype
    if is_whole(result):
        return lambda values: np.asarray(
            np.add.reduce(convert(values, result), axis=axis, dtype=result.numpy)
        ), result
    reduced = reducing(np.add, element(result), exact=False)
    return lambda values: np.asarray(reduced(convert(values, result), axis)), result


PRECISIONS: Final = ("tf32", "tf32x3", "ieee")
"""How `tl.dot` multiplies float32: Triton's names."""


def product(
    a: Tile, b: Tile, acc: Tile | None, out: DType | None, precision: str
) -> tuple[Function, DType]:
    """Returns a function that multiplies two tiles and adds a third, and its result's type.

    Args:
        a: Tile of shape `[m, k]`.
        b: Tile of shape `[k, n]`.
        acc: Tile to add, of shape `[m, n]`; None for none.
        out: Type of the result; None for that of `acc`, or float32. bfloat16, float32, float64 and
            int8 have one result each: float32, float32, float64 and int32.
        precision: One of `PRECISIONS`; only float32 differs, see `ttir.products.tf32`.

    Raises:
        TileOperandError: If shapes or types do not fit.
    """
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0]:
        raise refusal(f"tl.dot takes [m, k] and [k, n]; got {list(a.shape)} and {list(b.shape)}")
    eight = a.dtype.saturates and b.dtype.saturates
    whole = is_whole(a.dtype) and a.dtype is not dtypes.int8
    if (a.dtype is not b.dtype and not eight) or whole:
        raise refusal(
            f"tl.dot takes two tiles of one floating-point type or int8; "
            f"got {a.dtype} and {b.dtype}",
            hint="convert one of them with .to(dtype)",
        )
    if precision not in PRECISIONS:
        raise refusal(
            f"tl.dot: input_precision={precision!r}", f"expected one of {', '.join(PRECISIONS)}"
        )
    if out is None:
        out = dtypes.float32 if acc is None else acc.dtype
    if out is dtypes.bfloat16 and a.dtype is not dtypes.int8:
        raise refusal(
            "tl.dot gives no bfloat16", hint="take float32 and convert it with .to(tl.bfloat16)"
        )
    result = _RESULTS.get(a.dtype) or out
    shape = (a.shape[0], b.shape[1])
    if acc is not None and (acc.shape != shape or not acc.dtype is result is out):
        raise refusal(
            f"tl.dot gives {result} of shape {list(shape)}; got an acc of {acc.dtype} of shape "
            f"{list(acc.shape)}",
            hint="make acc with tl.zeros((m, n), dtype), and leave out_dtype out",
        )
    return _product(element(a.dtype), element(result), short=precision == "tf32"), result


_product: Final = cached("tl.products")(Product)


_RESULTS: Final = {
    dtypes.int8: dtypes.int32,
    dtypes.bfloat16: dtypes.float32,
    dtypes.float32: dtypes.float32,
    dtypes.float64: dtypes.float64,
}
