"""Numbers among the arguments of a launch: which are tiles in the kernel, and of which type."""

from typing import Any, NamedTuple

import numpy as np

from kernbench.memory import DType, dtypes
from kernbench.tl import types
from kernbench.tl.program import Program
from kernbench.tl.types import Scalar


class Number(NamedTuple):
    """A number that a kernel gets as a tile without axes.

    Attributes:
        name: Name of the parameter.
        value: The number.
        dtype: Type of the tile.
    """

    name: str
    value: Scalar
    dtype: DType


def passed(name: str, value: Any) -> Any:
    """Returns an argument as it reaches the programs of a launch.

    As Triton's `specialize` has it, an integer is int32, or int64 or uint64 if it is too large for
    that; a float is float32 and a truth value is int1. The integer 1 stays Python's, since Triton
    compiles it into the kernel. Numbers in a tuple are treated alike.

    Args:
        name: Name of the parameter.
        value: The argument; a tensor is a pointer.
    """
    if isinstance(value, np.generic) and isinstance(value.item(), int | float):
        value = value.item()
    if isinstance(value, tuple):
        parts = [passed(f"{name}[{index}]", each) for index, each in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, bool):
        return Number(name, value, dtypes.bool_)
    if isinstance(value, float):
        return Number(name, value, dtypes.float32)
    if isinstance(value, int) and value != 1:
        dtype = types.type_of(value)
        if dtype is dtypes.uint32:
            dtype = dtypes.int64
        return Number(name, value, dtype)
    return value


def value_in(program: Program, value: Any) -> Any:
    """Returns an argument as one program sees it.

    Args:
        value: What `passed` returns.
    """
    if isinstance(value, Number):
        return program.number(value.value, value.dtype, value.name)
    if isinstance(value, tuple):
        parts = [value_in(program, each) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value
