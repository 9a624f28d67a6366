"""Types of values in Triton's IR."""

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, Final

import ml_dtypes
import numpy as np

SCALARS: Final[dict[str, np.dtype[Any]]] = {
    name: np.dtype(dtype)
    for name, dtype in {
        "i1": np.bool_,
        "i8": np.int8,
        "i16": np.int16,
        "i32": np.int32,
        "i64": np.int64,
        "index": np.int64,
        "f16": np.float16,
        "bf16": ml_dtypes.bfloat16,
        "f32": np.float32,
        "f64": np.float64,
        "f8E4M3FN": ml_dtypes.float8_e4m3fn,
        "f8E5M2": ml_dtypes.float8_e5m2,
        "f8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
        "f8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
        "f8E4M3B11FNUZ": ml_dtypes.float8_e4m3b11fnuz,
    }.items()
}
"""Types of numbers, and how numpy keeps them. Integers have no sign in MLIR: operations give it."""


@dataclass(frozen=True)
class Pointer:
    """An address of a number, or of another address.

    Attributes:
        to: What lies there.
    """

    to: "Type"


@dataclass(frozen=True)
class Descriptor:
    """A tensor in memory, of which blocks are loaded and stored.

    Attributes:
        block: A block.
        unsigned: Whether its elements are said to be whole numbers without a sign.
    """

    block: "Type"
    unsigned: bool = False


@dataclass(frozen=True)
class Type:
    """Of one number, pointer or descriptor, or of a tile of them.

    Attributes:
        element: Name of a number's type, a pointer or a descriptor.
        shape: Extents of the tile; empty for a single one.
    """

    element: str | Pointer | Descriptor
    shape: tuple[int, ...] = ()

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """How numpy keeps an element; addresses are 64-bit integers."""
        return SCALARS[self.element] if isinstance(self.element, str) else SCALARS["i64"]

    @cached_property
    def numel(self) -> int:
        """Elements of the tile; 1 for a single one."""
        return prod(self.shape)

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating-point numbers."""
        return isinstance(self.element, str) and self.element[0] in "fb"

    @property
    def pointee(self) -> "Type":
        """What lies at the addresses, as a tile of the same shape.

        Raises:
            TypeError: If these are no addresses.
        """
        if not isinstance(self.element, Pointer):
            raise TypeError(f"{self.element} is no pointer")
        return Type(self.element.to.element, self.shape)

    def of(self, element: str) -> "Type":
        """Returns the type of a tile of the same shape with other elements."""
        return Type(element, self.shape)
