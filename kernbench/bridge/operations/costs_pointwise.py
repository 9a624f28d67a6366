"""Kernels that make each element of a result from the elements at its place; random numbers."""

from typing import Any, Final

import torch

from kernbench.bridge.operations.costs_traffic import (
    INDEXED,
    Formula,
    bytes_of,
    elements_of,
    step_of,
    streamed_ps,
)
from kernbench.bridge.tensors.operands import tensors_in
from kernbench.hw.library import Library

_OPERATIONS: Final = {
    "gelu": 44,
    "gelu_backward": 44,
    "silu": 36,
    "silu_backward": 56,
    "native_dropout": 56,
    "normal_": 77,
    "randn": 77,
    "randn_like": 77,
    "uniform_": 55,
    "rand": 55,
    "rand_like": 55,
    "bernoulli_": 51,
    "bernoulli": 51,
    "random_": 55,
    "randint": 55,
    "randint_like": 55,
    "exponential_": 77,
    "log_normal_": 77,
    "cauchy_": 77,
    "geometric_": 77,
    "normal": 77,
    "zero_": 20,
    "fill_": 20,
    "zeros": 20,
    "zeros_like": 20,
    "ones": 20,
    "ones_like": 20,
    "full": 20,
    "full_like": 20,
    "new_zeros": 20,
    "new_ones": 20,
    "new_full": 20,
    "scalar_tensor": 20,
    "arange": 20,
    "eye": 20,
    "linspace": 20,
    "logspace": 20,
    "tril_indices": 20,
    "triu_indices": 20,
}
"""Operations of the MATH engines for an element of the result, where they bound the kernel.

elementwise.csv: gelu, silu, dropout, normal_, uniform_, bernoulli_, zero, each on bfloat16, mean
error 4 %; silu_backward and silu: profile of FSDP2; other random fills as those that draw alike.
"""

FILLS: Final = frozenset(_OPERATIONS) - {
    "gelu",
    "gelu_backward",
    "silu",
    "silu_backward",
    "native_dropout",
}
"""Operations that read no operand: their first argument, if it is a tensor, is only written."""

COPIES: Final = frozenset(("clone", "_to_copy", "copy_", "copy", "contiguous", "to_sparse"))
"""Operations that write each element of a tensor elsewhere, maybe as another type."""

_NARROWED: Final = (torch.bfloat16, torch.float16)
"""Types to which PyTorch has a kernel of its own that casts float32 in vectors."""


def pointwise(name: str) -> Formula:
    """Returns the time of an elementwise kernel.

    Each operand is read once, and each result written once, also in place and with `out=`.
    Operands that lie otherwise than the result, or mix floating-point types, cost operations.

    Args:
        name: Name of the operation.
    """
    each_operations = _OPERATIONS.get(name, _OPERATIONS.get(name.removesuffix("_"), 1))

    def duration(library: Library, args: Any, kwargs: Any, out: Any) -> int:
        target = out if isinstance(out, torch.Tensor) else next(tensors_in(out), None)
        if target is None:
            return streamed_ps(library, bytes_of(args), elements_of(args))
        count = target.numel()
        plain = target.is_contiguous()
        operations, nbytes, kind = each_operations, 0, None
        if not isinstance(args, tuple | list):
            args = (args,)
        if kwargs:
            args = (*args, *[value for key, value in kwargs.items() if key != "out"])
        for arg in args:
            if isinstance(arg, torch.Tensor):
                if arg.numel() == count and plain and arg.is_contiguous():
                    nbytes += count * arg.element_size()
                else:
                    nbytes += bytes_of(arg)
                    operations = max(operations, step_of(arg, target))
                dtype = arg.dtype
                if dtype.is_floating_point and dtype is not kind and arg.dim():
                    if kind is not None:
                        operations = max(operations, INDEXED)
                    kind = dtype
        if not plain and step_of(target, target):
            operations = max(operations, INDEXED)
        if isinstance(out, torch.Tensor):
            nbytes += count * out.element_size() if plain else bytes_of(out)
        else:
            nbytes += bytes_of(out)
        return streamed_ps(library, nbytes, operations * count)

    return duration


def filling(name: str) -> Formula:
    """Returns the time of a kernel that writes without reading.

    Args:
        name: Name of the operation.
    """
    each = _OPERATIONS[name]

    def duration(library: Library, args: Any, kwargs: Any, out: Any) -> int:
        del args, kwargs
        target = next(tensors_in(out), None)
        if target is None:
            return streamed_ps(library, 0)
        count = target.numel()
        step = 0 if target.is_contiguous() else step_of(target, target)
        return streamed_ps(library, bytes_of(out), max(each, step) * count, share=100)

    return duration


def copying(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    """Returns the time of a copy: reads the source once, writes the target once.

    float32 to a 16-bit type is a kernel that works in vectors; other casts compute the place of
    each element.

    Args:
        library: Of the device.
        args: The source; of `copy_`, the target and the source.
        kwargs: Not looked at: what they ask for shows in the result.
        out: The target.
    """
    del kwargs
    source = args[1] if len(args) > 1 and isinstance(args[1], torch.Tensor) else args[0]
    count = out.numel()
    operations = 1
    if not (source.is_contiguous() and out.is_contiguous() and source.numel() == count):
        operations = max(operations, step_of(source, out))
        if not out.is_contiguous() and step_of(out, out):
            operations = max(operations, INDEXED)
    if source.dtype is not out.dtype and not (
        source.dtype is torch.float32 and out.dtype in _NARROWED
    ):
        operations = max(operations, INDEXED)
    return streamed_ps(library, bytes_of(source) + bytes_of(out), operations * count)
