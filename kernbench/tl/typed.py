"""A program of types and shapes only: what a kernel's commands mean before it runs (K12)."""

from collections.abc import Sequence
from typing import Any, Final

from kernbench.des import Task
from kernbench.errors import KernbenchError, call_site, site_fact
from kernbench.hw.pe import PeCosts, PeTimeline, later
from kernbench.memory import Array, DType, dtypes
from kernbench.tl.arithmetic import Function
from kernbench.tl.constants import constexpr, plain
from kernbench.tl.operands import check_stored, common_shape
from kernbench.tl.program import Program
from kernbench.tl.symbols import Shape, Symbol
from kernbench.tl.tile import Pointer, Tile
from kernbench.tl.types import Scalar

MOST_ELEMENTS: Final = 1 << 20
"""Most elements of a tile: `TRITON_MAX_TENSOR_NUMEL` of `triton/language/core.py`."""

_LEAST_DEPTH: Final = {1: 32, 2: 16, 4: 8, 8: 4}
"""Least `k` of a product by bytes of an element: `min_dot_size` of Triton's NVIDIA backend, which
takes any number of rows and columns."""

INT32: Final = 1 << 31


class CompilationError(KernbenchError):
    """Triton would not compile the kernel (K12)."""


def not_compiled(what: str, hint: str, *, site: Any = None) -> CompilationError:
    """Returns the error of a kernel that Triton would not compile.

    Args:
        what: What Triton refuses, as a part of a sentence.
        hint: What to write instead.
        site: Place in the kernel; None for the running line.
    """
    return CompilationError(
        f"Triton would not compile this kernel: {what}",
        [site_fact(site or call_site())],
        hint=hint,
        code="K12",
    )


class Unknown:
    """A value of a type that only a run can tell: a tile of another program."""


UNKNOWN: Final = Unknown()


def any_unknown(*values: Any) -> bool:
    """Returns whether the type of one of the values is unknown."""
    return any(value is UNKNOWN for value in values)


def block_of(pointer: Pointer) -> Shape:
    """Returns the shape of a block of pointers."""
    offsets = pointer.offsets
    if isinstance(offsets, Tile):
        return offsets.shape
    return () if isinstance(offsets, int) else (len(offsets),)


def type_of(value: Any) -> Any:
    """Returns the type of a value as Triton compares types; constants are types of their own."""
    if isinstance(value, Tile):
        return value.shape, value.dtype
    if isinstance(value, Pointer):
        return "pointer", block_of(value), value.dtype
    if isinstance(value, tuple) and not isinstance(value, constexpr):
        return tuple([type_of(each) for each in value])
    return "constant", type(value), plain(value)


def same_type(a: Any, b: Any) -> bool:
    """Returns whether two values are of one type, as far as it is known."""
    return any_unknown(a, b) or bool(type_of(a) == type_of(b))


def shown(value: Any) -> str:
    """Returns a value's type for reports, such as `float32[64]`."""
    if isinstance(value, Tile):
        return f"{value.dtype.name}{list(value.shape)}"
    if isinstance(value, Pointer):
        return f"pointer to {value.dtype.name}{list(block_of(value))}"
    return f"constant {plain(value)!r}"


class TypedProgram(Program):
    """A program whose tiles have types and shapes, and no values.

    Args:
        task: The running task.
        costs: Durations of a PE.
    """

    def __init__(self, task: Task, costs: PeCosts) -> None:
        timeline = PeTimeline(0, costs.pe.issue, later)
        super().__init__(task, timeline, costs, ids=(0, 0, 0), grid=(1, 1, 1), data=False)

    def scalar(self, value: Scalar) -> Tile:
        """Returns the tile that a number becomes when it is assigned to a variable."""
        return self.tile(value)

    def arange(self, start: int, end: int) -> Tile:
        """Returns integers; see `Program.arange`.

        Args:
            start: First integer.
            end: End, which is not included.

        Raises:
            CompilationError: If the bounds are no constants, or their distance is not a power of 2.
        """
        for bound in (start, end):
            if not isinstance(bound, int):
                raise not_compiled(
                    "the bounds of tl.arange are constants (tl.constexpr)",
                    "make the bound a tl.constexpr parameter, or write `name: tl.constexpr = ...`",
                )
        if end <= start:
            raise not_compiled(
                f"tl.arange({start}, {end}): the end must be above the start",
                "count upwards; subtract from the end to count down",
            )
        if start < 0 or end > INT32:
            raise not_compiled(
                f"tl.arange({start}, {end}): the bounds must lie in 0..{INT32 - 1}",
                "start at 0 and add what you need: first + tl.arange(0, count)",
            )
        if (end - start) & (end - start - 1):
            raise not_compiled(
                f"tl.arange({start}, {end}) has {end - start} numbers, and this must be a power "
                "of 2",
                f"take tl.arange({start}, {start + _power_above(end - start)}) and mask the lanes "
                "that are too many",
            )
        return self._block((end - start,), dtypes.int32)

    def full(self, shape: Sequence[int], value: Scalar | Tile, dtype: DType) -> Tile:
        """Returns a tile of a shape; see `Program.full`.

        Args:
            value: Value of every element.

        Raises:
            CompilationError: If Triton has no such shape.
        """
        return self._block(tuple(shape), dtype)

    def reshape(self, tile: Tile, shape: tuple[int, ...]) -> Tile:
        """Returns the elements in another shape; see `Program.reshape`.

        Args:
            shape: The new extents.

        Raises:
            CompilationError: If Triton has no such shape.
        """
        self._block(shape, tile.dtype)
        return super().reshape(tile, shape)

    def dot(self, a: Tile, b: Tile, *rest: Any, **named: Any) -> Tile:
        """Multiplies two tiles; see `Program.dot`.

        Args:
            a: Tile of shape `[m, k]`.
            b: Tile of shape `[k, n]`.
            *rest: As for `Program.dot`.
            **named: As for `Program.dot`.

        Raises:
            CompilationError: If the product is too shallow for the engine.
        """
        product = super().dot(a, b, *rest, **named)
        least, depth = _LEAST_DEPTH[a.dtype.itemsize], a.shape[-1]
        if depth < least:
            raise not_compiled(
                f"tl.dot of {list(a.shape)} and {list(b.shape)} {a.dtype.name}: k is {depth}, and "
                f"at least {least} is needed",
                f"take blocks of k >= {least}, or tl.sum(a[:, :, None] * b[None, :, :], axis=1)",
            )
        return product

    def load(self, pointer: Pointer, mask: Any = None, *rest: Any, **named: Any) -> Tile:
        """Returns a tile of the type and the shape of a load.

        Args:
            pointer: The block of pointers.
            mask: Lanes to load; None for all.
            *rest: No matter of types.
            **named: No matter of types.
        """
        return self._block(self._touched("load", pointer, mask), pointer.dtype)

    def store(
        self,
        pointer: Pointer,
        value: Tile | Scalar,
        mask: Any = None,
        *rest: Any,
        **named: Any,
    ) -> None:
        """Checks the shapes of a store.

        Args:
            pointer: The block of pointers.
            value: Tile or scalar that broadcasts to the pointers.
            mask: Lanes to store; None for all.
            *rest: No matter of types.
            **named: No matter of types.
        """
        check_stored(
            value.shape if isinstance(value, Tile) else (), self._touched("store", pointer, mask)
        )

    def send(self, tile: Tile, to: int | Tile) -> None:
        """Does nothing: a message has no type that another program must know."""

    def receive(self, source: int | Tile) -> Any:
        """Returns a value of which nothing is known."""
        return UNKNOWN

    def _touched(self, verb: str, pointer: Pointer, mask: Any) -> Shape:
        shapes = [block_of(pointer)]
        if isinstance(mask, Tile):
            shapes.append(mask.shape)
        return common_shape(f"tl.{verb} with pointers and a mask", shapes)

    def _block(self, shape: tuple[Any, ...], dtype: DType) -> Tile:
        count = 1
        for each in shape:
            if not isinstance(each, int):
                raise not_compiled(
                    "the extents of a shape are constants (tl.constexpr)",
                    "make the extent a tl.constexpr parameter, or write `name: tl.constexpr = ...`",
                )
            if each < 1 or each & (each - 1):
                raise not_compiled(
                    f"shape {list(shape)} has an extent of {each}, which is not a power of 2",
                    f"take {_power_above(each)} and mask the lanes that are too many",
                )
            count *= each
        if count > MOST_ELEMENTS:
            raise not_compiled(
                f"a tile of shape {list(shape)} has {count} elements, more than {MOST_ELEMENTS}",
                "use smaller blocks",
            )
        return Tile(self, tuple(shape), dtype, None, None)

    def number(self, value: Scalar, dtype: DType, name: str = "") -> Tile:
        """Returns a tile of a number; see `Program.number`.

        Args:
            value: The number.
            name: What the kernel calls it.
        """
        return self._block((), dtype)

    def _formula(self, symbol: Symbol, name: str = "", wrapped: str = "") -> Tile:
        return self._block(symbol.shape, symbol.dtype)

    def _result(
        self,
        shape: tuple[int, ...],
        dtype: DType,
        function: Function,
        operands: Sequence[Tile | Array],
        ready: int | None,
        wrapped: str = "",
    ) -> Tile:
        return self._block(shape, dtype)


def _power_above(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()
