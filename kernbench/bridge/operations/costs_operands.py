"""Which tensors of a call a kernel reads and writes, and how they lie."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import torch

from kernbench.bridge.tensors.operands import tensors_in
from kernbench.bridge.tensors.storages import DTYPES, is_on_device
from kernbench.hw.library import Library
from kernbench.kernels.operands import Layout, numel, total_bytes
from kernbench.kernels.prices import Price
from kernbench.kernels.traffic import streamed_ps
from kernbench.memory import DType

Formula = Callable[[Library, Any, Any, Any], int]
"""Duration in picoseconds, from the library of a device, arguments, those by name, and result."""

_BYTE: Final = np.dtype(np.uint8)


def _other_type(dtype: torch.dtype) -> DType:
    """Returns what stands for a type that kernbench does not compute with, such as `uint16`."""
    floating = dtype.is_floating_point
    return DType(str(dtype), _BYTE, dtype.itemsize, floating, dtype.is_signed, "")


def layout(tensor: torch.Tensor) -> Layout:
    """Returns how a tensor lies.

    Args:
        tensor: A dense tensor.
    """
    dtype = DTYPES.get(tensor.dtype) or _other_type(tensor.dtype)
    return Layout(tuple(tensor.shape), tensor.stride(), dtype)


def layouts(value: Any) -> list[Layout]:
    """Returns how the tensors of a value lie, in order.

    Args:
        value: As in `tensors_in`.
    """
    return [layout(tensor) for tensor in tensors_in(value)]


def operands_of(args: Any, kwargs: Any) -> list[Layout]:
    """Returns how the operands of a call lie, without numbers of the host and `out`."""
    return [layout(tensor) for tensor in _read(args, kwargs)]


def _read(args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    for tensor in tensors_in(args):
        if tensor.dim() or is_on_device(tensor):
            yield tensor
    if kwargs:
        yield from _read([value for key, value in kwargs.items() if key != "out"], None)


def written(args: Any, out: Any) -> Any:
    """Returns what an operation writes: its result; if it returns none, its first argument.

    Args:
        out: Its result.
    """
    return args[0] if out is None and args else out


def by_bytes(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    """Returns the picoseconds of a kernel that reads its operands and writes its result.

    Args:
        args: Arguments of the operation.
        kwargs: Arguments by name; `out` is written and not read.
        out: Its result.
    """
    nbytes = total_bytes(operands_of(args, kwargs)) + total_bytes(layouts(written(args, out)))
    operations = sum(map(numel, layouts(out)))
    return streamed_ps(library, library.kernel("pointwise"), nbytes, operations)


def priced(price: Price) -> Formula:
    """Returns the time of an operation whose operands and results are those of its kernel.

    Args:
        price: What it costs, from `kernels.prices`.
    """
    family, detail = price

    def duration(library: Library, args: Any, kwargs: Any, out: Any) -> int:
        writes = layouts(out)
        if not writes:
            return by_bytes(library, args, kwargs, out)
        return family(library, operands_of(args, kwargs), writes, detail)

    return duration


OUT: Final = -1
"""Stands for the result among the places of operands."""


def by_operands(family: Callable[..., int], *places: int) -> Formula:
    """Returns the time of an operation whose family only has to know some of its operands.

    Args:
        family: Takes the library and the layouts, returns picoseconds; see the room `kernels`.
        places: Places of the operands among the arguments; `OUT` for the (first) result.
    """

    def duration(library: Library, args: Any, kwargs: Any, out: Any) -> int:
        del kwargs
        given = [next(tensors_in(out)) if place == OUT else args[place] for place in places]
        return family(library, *map(layout, given))

    return duration
