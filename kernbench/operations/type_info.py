"""Limits of element types: `torch.finfo` and `torch.iinfo`; names and kinds of values."""

from math import floor, log10
from typing import Any, Final

import ml_dtypes
import numpy as np

from kernbench.errors import OperandError, call_site, site_fact
from kernbench.memory import DType, dtypes
from kernbench.operations.typed import type_
from kernbench.tensors.settings import default_dtype
from kernbench.tensors.tensor import Tensor

__all__ = ["finfo", "iinfo", "is_floating_point", "typename"]

_NARROW: Final = {dtypes.bfloat16, dtypes.float8_e4m3fn, dtypes.float8_e5m2}


class finfo:  # noqa: N801 - PyTorch's name
    """`torch.finfo`: the limits of a floating-point type, or of the parts of a complex one.

    Args:
        type: The type; None for the default type.

    Attributes:
        bits: Bits of a number.
        dtype: Name of the type.
        eps: Distance from 1 to the next number.
        max: The largest number.
        min: The smallest number.
        resolution: The power of 10 of the last decimal that counts.
        smallest_normal: The smallest number above 0 with all digits.
        tiny: The same.

    Raises:
        OperandError: If the type has no floating-point numbers.
    """

    def __init__(self, type: DType | None = None) -> None:
        found = default_dtype() if type is None else type
        if not isinstance(found, DType) or not (found.is_floating_point or found.is_complex):
            raise OperandError(
                f"torch.finfo() requires a floating point input type, got {found!r}",
                [site_fact(call_site())],
                hint="torch.iinfo() has the limits of integers",
            )
        real = dtypes.real_type(found)
        limits: Any = ml_dtypes.finfo if real in _NARROW else np.finfo
        facts = limits(real.numpy)
        self.dtype = real.name
        self.bits = 8 * real.itemsize
        self.eps = float(facts.eps)
        self.max = float(facts.max)
        self.min = float(facts.min)
        self.smallest_normal = self.tiny = float(facts.smallest_normal)
        self.resolution = float(f"1e{-floor(-log10(self.eps))}")

    def __repr__(self) -> str:
        names = ("resolution", "min", "max", "eps", "smallest_normal", "tiny")
        shown = [f"{name}={getattr(self, name):g}" for name in names]
        return f"finfo({', '.join(shown)}, dtype={self.dtype})"


class iinfo:  # noqa: N801 - PyTorch's name
    """`torch.iinfo`: the limits of an integer type.

    Attributes:
        bits: Bits of a number.
        dtype: Name of the type.
        max: The largest number.
        min: The smallest number.

    Raises:
        OperandError: If the type has no integers.
    """

    def __init__(self, type: DType) -> None:
        if not isinstance(type, DType) or type.numpy.kind not in "iu":
            raise OperandError(
                f"torch.iinfo() requires an integer input type, got {type!r}",
                [site_fact(call_site())],
                hint="torch.finfo() has the limits of floating-point numbers",
            )
        facts = np.iinfo(type.numpy)
        self.dtype = type.name
        self.bits = 8 * type.itemsize
        self.max = int(facts.max)
        self.min = int(facts.min)

    def __repr__(self) -> str:
        return f"iinfo(min={self.min:g}, max={self.max:g}, dtype={self.dtype})"


def is_floating_point(input: Tensor) -> bool:
    """Returns whether a tensor holds floating-point numbers."""
    return input.window.dtype.is_floating_point


def typename(obj: Any, /) -> str:
    """Returns the name of a tensor's class, such as `torch.FloatTensor`, or of any other class."""
    if isinstance(obj, Tensor):
        named = type_(obj)
        assert isinstance(named, str)
        return named
    kind = obj if hasattr(obj, "__qualname__") else type(obj)
    module = getattr(kind, "__module__", None) or ""
    return kind.__qualname__ if module in {"", "builtins"} else f"{module}.{kind.__qualname__}"
