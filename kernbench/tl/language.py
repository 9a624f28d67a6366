"""The kernel language, read like Triton's: functions that act on the running program."""

import builtins
from collections.abc import Sequence
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
)
from kernbench.memory.dtypes import bool_ as int1
from kernbench.tl.program import Program
from kernbench.tl.tile import Pointer, Scalar, Tile

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


def range(start: Any, stop: Any = None, step: Any = 1, *, num_stages: int | None = None) -> _Range:
    """Returns Python's range, over numbers or scalar tiles.

    Args:
        start: First number. Without `stop` it is the end, and the first number is 0.
        stop: End; the range does not include it.
        step: Distance between numbers.
        num_stages: Has no effect: engines of a PE overlap by themselves.
    """
    return _Range(start, stop, step) if stop is not None else _Range(0, start, step)


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
    """Returns the int64 numbers `start..end-1`, shape `[end - start]`.

    As in Triton, both are constants and the extent is a power of two; see `jit` for a kernel that
    need not be one for Triton.
    """
    return program().arange(start, end)


def zeros(shape: Sequence[int], dtype: DType = float32) -> Tile:
    """Returns a tile of zeros.

    Args:
        shape: Extents.
        dtype: Element type.
    """
    return program().full(tuple(shape), 0, dtype)


def full(shape: Sequence[int], value: Scalar, dtype: DType = float32) -> Tile:
    """Returns a tile that holds `value` everywhere.

    Args:
        shape: Extents.
        value: Value of every element.
        dtype: Element type.
    """
    return program().full(tuple(shape), value, dtype)


def load(pointer: Pointer, mask: Tile | None = None, other: Scalar | None = None) -> Tile:
    """Loads a tile from HBM through the DMA engine; does not wait for it.

    Args:
        pointer: A tensor argument plus offsets in elements.
        mask: Lanes to load; the others cost nothing and read `other`.
        other: Value of the masked lanes. Triton leaves masked lanes undefined without it; here they
            hold NaN or the largest integer, like memory that nobody wrote, so that a sum or a
            maximum over them is visibly wrong.

    Raises:
        OutOfBoundsError: If an active lane lies outside of the tensor.
        UninitialisedReadError: If an active lane was never written.
        TileOperandError: If the mask does not fit the pointers.
        ProgramRaceError: At the end of the launch, if another program stores to one of the
            elements.
    """
    return program().load(pointer, mask, other)


def store(pointer: Pointer, value: Tile | Scalar, mask: Tile | None = None) -> None:
    """Stores a tile to HBM through the DMA engine once it is computed; does not wait.

    Args:
        pointer: A tensor argument plus offsets in elements.
        value: Tile or scalar that broadcasts to the pointers.
        mask: Lanes to store; None for all.

    Raises:
        OutOfBoundsError: If an active lane lies outside of the tensor.
        TileOperandError: If the mask or the value does not fit the pointers.
        ProgramRaceError: If another program of the launch stored to one of the elements.
    """
    program().store(pointer, value, mask)


def fence() -> None:
    """Waits, in the program's own time, until all stores of the program are done."""
    program().fence()


def dot(a: Tile, b: Tile, acc: Tile | None = None, out_dtype: DType = float32) -> Tile:
    """Returns `a @ b` (plus `acc`) from the GEMM engine, `[m, k] x [k, n]`.

    16-bit and 8-bit floats are added in float32.

    Args:
        a: Tile of shape `[m, k]`.
        b: Tile of shape `[k, n]`, of the type of `a`.
        acc: Tile that is added; its shape broadcasts to `[m, n]`. None for none.
        out_dtype: Type of the result; int8 gives int32 instead.

    Raises:
        TileOperandError: If shapes or types do not fit.
    """
    return program().dot(a, b, acc, out_dtype)


def where(condition: Tile, x: Tile | Scalar, y: Tile | Scalar) -> Tile:
    """Returns `x` where `condition` holds, else `y`.

    Args:
        condition: Tile of truth values.
        x: Values where the condition holds.
        y: Values where the condition does not hold.
    """
    return program().where(condition, x, y)


def exp(x: Tile) -> Tile:
    """Returns e to the power of each element."""
    return x.program.elementwise("exp", x)


def log(x: Tile) -> Tile:
    """Returns the natural logarithm of each element."""
    return x.program.elementwise("log", x)


def sqrt(x: Tile) -> Tile:
    """Returns the square root of each element."""
    return x.program.elementwise("sqrt", x)


def rsqrt(x: Tile) -> Tile:
    """Returns one over the square root of each element."""
    return x.program.elementwise("rsqrt", x)


def sigmoid(x: Tile) -> Tile:
    """Returns `1 / (1 + exp(-x))` of each element."""
    return x.program.elementwise("sigmoid", x)


def reshape(x: Tile, *shape: int | Sequence[int]) -> Tile:
    """Returns the elements in another shape, in row-major order; takes no time.

    Raises:
        TileOperandError: If the new shape has another number of elements.
    """
    return x.program.reshape(x, _numbers(shape))


def trans(x: Tile, *dims: int | Sequence[int]) -> Tile:
    """Returns the tile with its axes in another order; takes no time.

    Args:
        x: The tile.
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


def abs(x: Tile) -> Tile:
    """Returns the absolute value of each element."""
    return x.program.elementwise("absolute", x)


def maximum(x: Tile | Scalar, y: Tile | Scalar) -> Tile:
    """Returns the larger of each two elements."""
    return program().elementwise("maximum", x, y)


def minimum(x: Tile | Scalar, y: Tile | Scalar) -> Tile:
    """Returns the smaller of each two elements."""
    return program().elementwise("minimum", x, y)


def sum(x: Tile, axis: int | None = None) -> Tile:
    """Adds up along an axis, or all elements; narrow floats are added in float32."""
    return x.program.reduce("add", x, axis)


def max(x: Tile, axis: int | None = None) -> Tile:
    """Returns the largest values along an axis, or the largest of all elements."""
    return x.program.reduce("maximum", x, axis)


def min(x: Tile, axis: int | None = None) -> Tile:
    """Returns the smallest values along an axis, or the smallest of all elements."""
    return x.program.reduce("minimum", x, axis)


_Whole = TypeVar("_Whole", int, Tile)


def cdiv(x: _Whole, y: int) -> _Whole:
    """Returns `x / y` of positive numbers, rounded up; also usable on the host."""
    return (x + y - 1) // y


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
