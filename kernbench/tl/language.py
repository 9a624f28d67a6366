"""The kernel language, read like Triton's: functions that act on the running program."""

import builtins
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from kernbench.des import current_task
from kernbench.errors import UnsupportedError, call_site, site_fact
from kernbench.memory import DType
from kernbench.memory.dtypes import (
    bfloat16,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from kernbench.memory.dtypes import bool_ as int1
from kernbench.memory.dtypes import float8_e4m3fn as float8e4nv
from kernbench.memory.dtypes import float8_e5m2 as float8e5
from kernbench.tl import types
from kernbench.tl.operands import refusal
from kernbench.tl.program import Program
from kernbench.tl.tile import Pointer, Tile
from kernbench.tl.types import Scalar

_Range = builtins.range

__all__ = [
    "Pointer",
    "Tile",
    "abs",
    "arange",
    "bfloat16",
    "cdiv",
    "constexpr",
    "dot",
    "exp",
    "fence",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8e4nv",
    "float8e5",
    "float16",
    "float32",
    "float64",
    "full",
    "int1",
    "int8",
    "int16",
    "int32",
    "int64",
    "load",
    "log",
    "max",
    "maximum",
    "min",
    "minimum",
    "num_programs",
    "program_id",
    "range",
    "recv",
    "reshape",
    "rsqrt",
    "send",
    "sigmoid",
    "sqrt",
    "static_assert",
    "static_range",
    "store",
    "sum",
    "trans",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "where",
    "zeros",
]


if TYPE_CHECKING:
    constexpr: TypeAlias = Any
else:
    from kernbench.tl.constants import constexpr


def static_range(start: int, stop: int | None = None, step: int = 1) -> _Range:
    """Returns Python's range over constants; the loop is unrolled.

    Args:
        start: First number. Without `stop` it is the end, and the first number is 0.
        stop: End; the range does not include it.
        step: Distance between numbers.
    """
    return _Range(start, stop, step) if stop is not None else _Range(0, start, step)


def range(
    start: Tile | int,
    stop: Tile | int | None = None,
    step: Tile | int = 1,
    *,
    num_stages: int | None = None,
) -> Iterator[Tile]:
    """Returns the numbers of a loop one by one, as tiles without axes.

    Their type is that of the bounds together, mostly int32. Python's `range` is this function
    inside of a kernel.

    Args:
        start: First number. Without `stop` it is the end, and the first number is 0.
        stop: End; the range does not include it.
        step: Distance between numbers.
        num_stages: Has no effect: engines of a PE overlap by themselves.

    Raises:
        TileOperandError: If a bound is no whole number.
    """
    start, stop = (0, start) if stop is None else (start, stop)
    running = program()
    bounds = [running.tile(each) for each in (start, stop, step)]
    for each in bounds:
        if each.dtype.is_floating_point:
            raise refusal(f"the bounds of range are whole numbers; got {each.dtype}")
    dtype = bounds[0].dtype
    for each in bounds[1:]:
        dtype = types.common_type(dtype, each.dtype)
    return (running.number(i, dtype) for i in _Range(*[int(each) for each in bounds]))


def static_assert(condition: Any, message: str = "") -> None:
    """Raises if a condition on constants does not hold.

    Raises:
        AssertionError: With the message.
    """
    if not condition:
        raise AssertionError(f"tl.static_assert: {message}")


def program() -> Program:
    """Returns the running tile program.

    Raises:
        UnsupportedError: Outside of a kernel.
    """
    task = current_task()
    subject = None if task is None else task.subject
    if not isinstance(subject, Program):
        raise UnsupportedError(
            "a function of kernbench.tl was called outside of a kernel",
            [site_fact(call_site())],
            hint="launch a @tl.jit function with kernel[grid](...)",
        )
    return subject


def program_id(axis: int) -> Tile:
    """Returns this program's index on an axis of the grid (0, 1 or 2)."""
    return program().program_id(axis)


def num_programs(axis: int) -> Tile:
    """Returns the extent of the grid on an axis (0, 1 or 2)."""
    return program().num_programs(axis)


def arange(start: int, end: int) -> Tile:
    """Returns the int32 numbers `start..end-1`, shape `[end - start]`.

    As in Triton, both are constants and the extent is a power of two; see `jit` for a kernel that
    need not be one for Triton.
    """
    return program().arange(start, end)


def zeros(shape: Sequence[int], dtype: DType = float32) -> Tile:
    """Returns a tile of zeros."""
    return program().full(tuple(shape), 0, dtype)


def full(shape: Sequence[int], value: Scalar | Tile, dtype: DType = float32) -> Tile:
    """Returns a tile that holds `value` everywhere.

    Args:
        value: Value of every element: a number that the type has, or a tile without axes.

    Raises:
        TileOperandError: If a type of whole numbers does not have the number.
    """
    return program().full(tuple(shape), value, dtype)


def load(
    pointer: Pointer, mask: Tile | bool | None = None, other: Tile | Scalar | None = None
) -> Tile:
    """Loads a tile from HBM through the DMA engine; does not wait for it.

    Args:
        pointer: A tensor argument plus offsets in elements.
        mask: Lanes to load; the others cost nothing and read `other`.
        other: Value of the masked lanes, converted to the type of the elements. Triton leaves
            masked lanes undefined without it; here they hold NaN or the largest integer, like
            memory that nobody wrote, so that a sum or a maximum over them is visibly wrong.

    Raises:
        OutOfBoundsError: If an active lane lies outside of the tensor.
        UninitialisedReadError: If an active lane was never written.
        TileOperandError: If the mask does not fit the pointers or holds numbers, or `other` comes
            without it.
        ProgramRaceError: At the end of the launch, if another program stores to one of the
            elements.
    """
    return program().load(pointer, mask, other)


def store(pointer: Pointer, value: Tile | Scalar, mask: Tile | bool | None = None) -> None:
    """Stores a tile to HBM through the DMA engine once it is computed; does not wait.

    Args:
        pointer: A tensor argument plus offsets in elements.
        value: Tile or scalar that broadcasts to the pointers; converted to the type of the elements
            as by `to`.
        mask: Lanes to store; None for all.

    Raises:
        OutOfBoundsError: If an active lane lies outside of the tensor.
        TileOperandError: If the mask or the value does not fit the pointers.
        ProgramRaceError: At the end of the launch, if another program stores to one of them.
    """
    program().store(pointer, value, mask)


def fence() -> None:
    """Waits, in the program's own time, until all stores of the program are done."""
    program().fence()


def dot(
    a: Tile,
    b: Tile,
    acc: Tile | None = None,
    input_precision: str | None = None,
    allow_tf32: bool | None = None,
    out_dtype: DType | None = None,
) -> Tile:
    """Returns `a @ b` (plus `acc`) from the GEMM engine, `[m, k] x [k, n]`.

    16-bit and 8-bit floats are added in float32. float32 is multiplied as tf32 by default, as in
    Triton: the last 13 bits of each operand are dropped, and it takes as long as the rate `tf32` of
    the machine file says, or `fp32` if there is no such rate.

    Args:
        a: Tile of shape `[m, k]`.
        b: Tile of shape `[k, n]`, of the type of `a`; two 8-bit floats may differ.
        acc: Tile of shape `[m, n]` that is added; it has the type of the result. None for none.
        input_precision: How float32 is multiplied: `tf32`, `tf32x3` (three products of tf32, which
            are computed in float32 here) or `ieee`. Other types take no notice of it.
        allow_tf32: False stands for `ieee`, True for `tf32`.
        out_dtype: Type of the result of float16 and 8-bit floats; by default that of `acc`, or
            float32.

    Raises:
        TileOperandError: If shapes or types do not fit, or both `input_precision` and `allow_tf32`
            are given.
    """
    if input_precision is not None and allow_tf32 is not None:
        raise refusal("tl.dot takes input_precision or allow_tf32, not both")
    if input_precision is None:
        input_precision = "ieee" if allow_tf32 is False else "tf32"
    return program().dot(a, b, acc, out_dtype, input_precision.lower())


def where(condition: Tile | bool, x: Tile | Scalar, y: Tile | Scalar) -> Tile:
    """Returns `x` where `condition` holds, else `y`, in the common type of the two.

    Args:
        condition: Tile of truth values.
        x: Values where the condition holds.
        y: Values where the condition does not hold.

    Raises:
        TileOperandError: If shapes or types do not fit.
    """
    return program().where(condition, x, y)


def exp(x: Tile | Scalar) -> Tile:
    """Returns e to the power of each element, of float32 or float64."""
    return program().elementwise("exp", x)


def log(x: Tile | Scalar) -> Tile:
    """Returns the natural logarithm of each element, of float32 or float64."""
    return program().elementwise("log", x)


def sqrt(x: Tile | Scalar) -> Tile:
    """Returns the square root of each element, of float32 or float64."""
    return program().elementwise("sqrt", x)


def rsqrt(x: Tile | Scalar) -> Tile:
    """Returns one over the square root of each element, of float32 or float64."""
    return program().elementwise("rsqrt", x)


def sigmoid(x: Tile | Scalar) -> Tile:
    """Returns `1 / (1 + exp(-x))` of each element, of float32 or float64."""
    return program().elementwise("sigmoid", x)


def reshape(x: Tile, *shape: int | Sequence[int]) -> Tile:
    """Returns the elements in another shape, in row-major order; takes no time.

    Raises:
        TileOperandError: If the new shape has another number of elements.
    """
    return x.program.reshape(x, _numbers(shape))


def trans(x: Tile, *dims: int | Sequence[int]) -> Tile:
    """Returns the tile with its axes in another order; takes no time.

    Args:
        dims: The axes in their new order; by default the last two change places.

    Raises:
        TileOperandError: If `dims` are not the axes of the tile.
    """
    rank = len(x.shape)
    order = _numbers(dims) if dims else (*_Range(rank - 2), rank - 1, rank - 2)
    return x.program.transpose(x, order)


def _numbers(given: Sequence[Any]) -> tuple[int, ...]:
    if len(given) == 1 and isinstance(given[0], Sequence):
        given = given[0]
    return tuple([int(each) for each in given])


def abs(x: Tile | Scalar) -> Tile:
    """Returns the absolute value of each element; unsigned numbers take no time."""
    tile = program().tile(x)
    if not tile.dtype.is_signed:
        return tile
    return tile.program.elementwise("absolute", tile)


def maximum(x: Tile | Scalar, y: Tile | Scalar) -> Tile:
    """Returns the larger of each two elements; a number, if the other one is NaN."""
    return program().elementwise("maximum", x, y)


def minimum(x: Tile | Scalar, y: Tile | Scalar) -> Tile:
    """Returns the smaller of each two elements; a number, if the other one is NaN."""
    return program().elementwise("minimum", x, y)


def sum(
    x: Tile, axis: int | None = None, keep_dims: bool = False, dtype: DType | None = None
) -> Tile:
    """Adds up along an axis, or all elements; each sum of two narrow floats is rounded.

    Args:
        axis: Axis to add along; None for all.
        keep_dims: Whether the axis stays, with an extent of 1.
        dtype: Type to which the elements are converted first. By default that of the tile, or 32
            bits for whole numbers of less: int32, and uint32 for bool and uint8.
    """
    return x.program.reduce("add", x, axis, keep_dims=keep_dims, dtype=dtype)


def max(x: Tile, axis: int | None = None, keep_dims: bool = False) -> Tile:
    """Returns the largest values along an axis, or the largest of all elements.

    NaN is left out, as in Triton; the largest of nothing but NaN is NaN. The result of types of
    less than 32 bits is float32 or int32.

    Args:
        axis: Axis to reduce; None for all.
        keep_dims: Whether the axis stays, with an extent of 1.
    """
    return x.program.reduce("maximum", x, axis, keep_dims=keep_dims)


def min(x: Tile, axis: int | None = None, keep_dims: bool = False) -> Tile:
    """Returns the smallest values along an axis, or the smallest of all elements.

    NaN and narrow types are treated as by `max`.

    Args:
        axis: Axis to reduce; None for all.
        keep_dims: Whether the axis stays, with an extent of 1.
    """
    return x.program.reduce("minimum", x, axis, keep_dims=keep_dims)


_Whole = TypeVar("_Whole", int, Tile)


def cdiv(x: _Whole, y: Any) -> _Whole:
    """Returns `x / y` of positive numbers, rounded up; also usable on the host."""
    rounded: _Whole = (x + (y - 1)) // y
    return rounded


def send(tile: Tile, to: int | Tile) -> None:
    """Sends a tile to program `to` of the same launch, through its queue.

    Waits for a credit, that is, for a free slot at the receiver; does not wait for the receiver to
    take the tile.

    Raises:
        MessageSizeError: If the tile is larger than a slot.
    """
    program().send(tile, to)


def recv(source: int | Tile) -> Tile:
    """Returns the next tile that program `source` of the same launch sent. Waits for it."""
    return program().receive(source)
