"""Values of the kernel language: tiles, and pointers that know their tensor."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from kernbench.errors import NoDataError, call_site, site_fact
from kernbench.memory import DType, View
from kernbench.tl.operands import check_key, refusal
from kernbench.tl.symbols import Affine, Symbol
from kernbench.tl.types import Scalar


class Engines(Protocol):
    """The part of a program that tiles call; see `program.Program`.

    Attributes:
        data_dependent: Whether control flow or a mask has looked at loaded values.
    """

    data_dependent: bool

    def elementwise(self, name: str, *operands: "Tile | Scalar") -> "Tile":
        """Applies a function element by element."""
        ...

    def cast(self, tile: "Tile", dtype: DType) -> "Tile":
        """Returns the tile with elements of another type."""
        ...

    def expand(self, tile: "Tile", key: tuple[Any, ...]) -> "Tile":
        """Returns the tile with an axis of extent 1 for each None of a key."""
        ...

    def reshape(self, tile: "Tile", shape: tuple[int, ...]) -> "Tile":
        """Returns the elements in another shape, in row-major order."""
        ...

    def transpose(self, tile: "Tile", axes: tuple[int, ...]) -> "Tile":
        """Returns the tile with its axes in another order."""
        ...

    def reduce(
        self,
        name: str,
        tile: "Tile",
        axis: int | None,
        *,
        keep_dims: bool = False,
        dtype: DType | None = None,
    ) -> "Tile":
        """Reduces an axis, or all elements.

        Args:
            name: `add`, `maximum` or `minimum`.
            axis: Axis to reduce; None for all.
            keep_dims: Whether reduced axes stay, with an extent of 1.
            dtype: Type in which `add` adds; None for the usual one.
        """
        ...

    def move(self, offsets: "int | Tile", by: "int | Tile") -> "Tile":
        """Returns offsets of pointers, moved by further elements."""
        ...


Operator = Callable[["Tile", "Tile | Scalar"], "Tile"]


def _binary(name: str) -> Operator:
    return lambda tile, other: tile.program.elementwise(name, tile, other)


def _swapped(name: str) -> Operator:
    return lambda tile, other: tile.program.elementwise(name, other, tile)


def _right_shift(tile: "Tile") -> str:
    return "arithmetic_right_shift" if tile.dtype.is_signed else "logical_right_shift"


class Tile:
    """An immutable block of values, with the time at which an engine has computed it.

    Tiles made from `arange`, `program_id`, constants and arithmetic on these are index arithmetic
    of the scalar unit: they take no time of engines, and have values even with data off.

    Attributes:
        shape: Extents; `()` for a scalar.
        dtype: Element type.
        ready: When the tile is computed, in picoseconds; None for index arithmetic.
        symbol: Formula of index arithmetic; None for other tiles.
        number: Number of the tile in a recording; None for index arithmetic, and outside of
            recordings.
        name: What the kernel calls the tile, for reports, if it is an argument; else empty.
        wrapped: Sentence about the arithmetic that made the index wrap around; empty if it has not.
    """

    __slots__ = (
        "_values",
        "dtype",
        "name",
        "number",
        "program",
        "ready",
        "shape",
        "symbol",
        "wrapped",
    )

    def __init__(
        self,
        program: "Engines",
        shape: tuple[int, ...],
        dtype: DType,
        values: np.ndarray[Any, Any] | None,
        ready: int | None,
        symbol: Symbol | None = None,
        number: int | None = None,
        name: str = "",
        wrapped: str = "",
    ) -> None:
        self.program: Final = program
        self.shape: Final = shape
        self.dtype: Final = dtype
        self.ready: Final = ready
        self.symbol: Final = symbol
        self.number: Final = number
        self.name: Final = name
        self.wrapped: Final = wrapped
        self._values = values

    @property
    def values(self) -> np.ndarray[Any, Any] | None:
        """The elements; None for computed tiles while data is off."""
        if self._values is None and self.symbol is not None:
            self._values = self.symbol.values()
        return self._values

    @property
    def numel(self) -> int:
        """Number of elements."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    def to(self, dtype: DType) -> "Tile":
        """Returns the tile with elements of another type.

        Floats are rounded to nearest, and to whole numbers towards zero. A number that an 8-bit
        float does not hold becomes its largest one. Of other types than the tile's it takes time.
        """
        return self.program.cast(self, dtype)

    def __getitem__(self, key: Any) -> "Tile":
        """Adds axes of extent 1 (`None`) and keeps axes whole (`:`), as in Triton."""
        keys = key if isinstance(key, tuple) else (key,)
        check_key(keys, self.shape)
        return self.program.expand(self, keys)

    def _scalar(self) -> Any:
        if self.shape != ():
            raise refusal(
                f"a tile of shape {list(self.shape)} is not a single value",
                "expected a scalar, shape []: one truth value or number",
                hint="choose lane by lane with tl.where or a mask, or reduce with tl.max or tl.sum",
            )
        if isinstance(self.symbol, Affine):
            return self.symbol.base
        if self.values is None:
            raise NoDataError(
                "control flow of a kernel asks for a loaded value while data is off",
                [site_fact(call_site())],
                hint="run with --data on",
            )
        if self.ready is not None:
            self.program.data_dependent = True
        return self.values[()]

    def __bool__(self) -> bool:
        return bool(self._scalar())

    def __int__(self) -> int:
        return int(self._scalar())

    def __float__(self) -> float:
        return float(self._scalar())

    def __index__(self) -> int:
        return int(self._scalar())

    __add__, __radd__ = _binary("add"), _swapped("add")
    __sub__, __rsub__ = _binary("subtract"), _swapped("subtract")
    __mul__, __rmul__ = _binary("multiply"), _swapped("multiply")
    __truediv__, __rtruediv__ = _binary("divide"), _swapped("divide")
    __floordiv__, __rfloordiv__ = _binary("floor_divide"), _swapped("floor_divide")
    __mod__, __rmod__ = _binary("remainder"), _swapped("remainder")
    __and__, __rand__ = _binary("bitwise_and"), _swapped("bitwise_and")
    __or__, __ror__ = _binary("bitwise_or"), _swapped("bitwise_or")
    __xor__, __rxor__ = _binary("bitwise_xor"), _swapped("bitwise_xor")
    __lshift__, __rlshift__ = _binary("left_shift"), _swapped("left_shift")
    __lt__, __le__ = _binary("less"), _binary("less_equal")
    __gt__, __ge__ = _binary("greater"), _binary("greater_equal")
    __eq__ = _binary("equal")  # type: ignore[assignment]
    __ne__ = _binary("not_equal")  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment] # tiles compare element by element

    def __rshift__(self, other: "Tile | Scalar") -> "Tile":
        return self.program.elementwise(_right_shift(self), self, other)

    def __rrshift__(self, other: "Tile | Scalar") -> "Tile":
        return self.program.elementwise(_right_shift(self), other, self)

    def __neg__(self) -> "Tile":
        return self.program.elementwise("negative", self)

    def __invert__(self) -> "Tile":
        return self.program.elementwise("invert", self)

    def __repr__(self) -> str:
        return f"<tile {self.shape} {self.dtype}>"


@dataclass(frozen=True, slots=True, eq=False)
class Pointer:
    """Elements of one tensor; the pointer knows its tensor, so bounds are checked exactly.

    Attributes:
        view: The tensor that was passed to the kernel; bounds of the pointer are bounds of this
            tensor.
        offsets: Offsets from the tensor's first element, in elements: one, a run, or a tile of
            them.
    """

    view: View
    offsets: "int | range | Tile"

    def __add__(self, other: "int | Tile") -> "Pointer":
        if isinstance(other, Tile) and not isinstance(self.offsets, range):
            return Pointer(self.view, other.program.move(self.offsets, other))
        if isinstance(self.offsets, range):
            if not isinstance(other, int):
                raise TypeError("a run of elements moves by whole numbers only")
            run = self.offsets
            return Pointer(self.view, range(run.start + other, run.stop + other, run.step))
        if not isinstance(other, int):
            raise refusal(
                f"a pointer moves by whole numbers; got {other!r}",
                hint="offsets are tiles of whole numbers, in elements",
            )
        if isinstance(self.offsets, Tile):
            return Pointer(self.view, self.offsets.program.move(self.offsets, other))
        return Pointer(self.view, self.offsets + other)

    __radd__ = __add__

    def __sub__(self, other: "int | Tile") -> "Pointer":
        return self + -other

    def run(self, offset: int, count: int) -> "Pointer":
        """Returns pointers to `count` neighbouring elements from `offset` on."""
        return Pointer(self.view, range(offset, offset + count))

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.view.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the block of pointers; `()` for one pointer."""
        if isinstance(self.offsets, Tile):
            return self.offsets.shape
        return () if isinstance(self.offsets, int) else (len(self.offsets),)
