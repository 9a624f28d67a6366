"""Elementwise operations, copies and fills: which kernel each is."""

from typing import Any, Final

import torch

from kernbench.bridge.operations.costs_operands import (
    Formula,
    by_bytes,
    layout,
    layouts,
    operands_of,
)
from kernbench.bridge.tensors.operands import tensors_in
from kernbench.hw.library import Library
from kernbench.kernels import copies
from kernbench.kernels import pointwise as kernels
from kernbench.kernels.names import FILLS

_KERNELS: Final = {
    "gelu": "gelu",
    "gelu_backward": "gelu_backward",
    "silu": "silu",
    "silu_backward": "silu_backward",
    "native_dropout": "dropout",
}
"""Elementwise operations whose kernel has a name of its own in machine files."""


def pointwise(name: str) -> Formula:
    """Returns the time of an elementwise operation."""
    kernel = _KERNELS.get(name) or _KERNELS.get(name.removesuffix("_"), "pointwise")

    def duration(library: Library, args: Any, kwargs: Any, out: Any) -> int:
        writes = layouts(out)
        if not writes:
            return by_bytes(library, args, kwargs, out)
        return kernels.duration_ps(library, kernel, operands_of(args, kwargs), writes)

    return duration


def filling(name: str) -> Formula:
    """Returns the time of an operation that writes without reading."""
    kernel = FILLS[name]

    def duration(library: Library, args: Any, kwargs: Any, out: Any) -> int:
        del args, kwargs
        return kernels.fill_ps(library, kernel, layouts(out))

    return duration


def copying(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    """Returns the time of a copy.

    Args:
        args: The source; of `copy_`, the target and the source.
        kwargs: Not looked at: what they ask for shows in the result.
        out: The target.
    """
    del kwargs
    source = args[1] if len(args) > 1 and isinstance(args[1], torch.Tensor) else args[0]
    return copies.duration_ps(library, layout(source), layout(next(tensors_in(out))))
