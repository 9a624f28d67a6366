"""What the kernels of CUDA take beside the traffic of their operands, and how operands lie."""

from collections.abc import Callable
from typing import Any, Final

import torch

from kernbench.bridge.tensors.operands import tensors_in
from kernbench.bridge.tensors.storages import is_on_device
from kernbench.hw.library import Library

Formula = Callable[[Library, Any, Any, Any], int]
"""Duration in picoseconds, from the library of a device, arguments, those by name, and result."""

# Shares of the memory's bandwidth, in percent, that kernels reach; H200, PyTorch 2.11, 2026-11-22.
STREAM: Final = 96
"""elementwise.csv: add, exp, relu, copy, mul, where of 32 MiB and more; mean error 4 %."""

INDEXED: Final = 100
"""Operations for each element of a kernel that computes where each operand's element lies.

elementwise.csv: 93 (add_bcast, cast of bfloat16 to float32); profile of FSDP2: 98 to 115.
"""

SCATTERED: Final = 225
"""The same if neighbours of the result are none of the operand; elementwise.csv: transpose_copy."""


def bytes_of(value: Any) -> int:
    """Returns the bytes of memory that the tensors of a value lie in.

    An element that an expanded tensor repeats counts once; numbers count nothing.

    Args:
        value: As in `tensors_in`.
    """
    if isinstance(value, torch.Tensor):
        count: int = value.numel()
        if 0 in value.stride() and count:
            for size, stride in zip(value.shape, value.stride(), strict=True):
                if stride == 0:
                    count //= size
        each: int = value.element_size()
        return count * each
    nbytes = 0
    if isinstance(value, list | tuple):
        for one in value:
            if isinstance(one, _HOLDERS):
                nbytes += bytes_of(one)
    elif isinstance(value, dict):
        for one in value.values():
            nbytes += bytes_of(one)
    return nbytes


_HOLDERS: Final = (torch.Tensor, list, tuple)


def elements_of(value: Any) -> int:
    """Returns the elements of the tensors of a value, those that an expanded tensor repeats too.

    Args:
        value: As in `tensors_in`.
    """
    count = 0
    for each in tensors_in(value):
        count += each.numel()
    return count


def written(args: Any, out: Any) -> Any:
    """Returns what an operation writes: its result; if it returns none, its first argument.

    Args:
        args: Its arguments.
        out: Its result.
    """
    return args[0] if out is None and args else out


def streamed_ps(
    library: Library, nbytes: int, operations: int = 0, *, share: int = STREAM, kernels: int = 1
) -> int:
    """Returns the picoseconds of kernels that read and write memory, with their launches.

    Args:
        library: Of the device.
        nbytes: Bytes read and bytes written.
        operations: Operations of the MATH engines.
        share: Percent of the memory's bandwidth that the kernel reaches.
        kernels: How many kernels run, one after another; the traffic is that of all.
    """
    duration: int = library.elementwise(nbytes * 100 // share, operations)
    if kernels > 1:
        duration += (kernels - 1) * library.elementwise(0, 0)
    return duration


def by_bytes(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    """Returns the picoseconds of a kernel that reads its operands and writes its result.

    Args:
        library: Of the device.
        args: Arguments of the operation.
        kwargs: Arguments by name; `out` is written and not read.
        out: Its result.
    """
    nbytes = bytes_of(args) + bytes_of(written(args, out))
    if kwargs:
        nbytes += bytes_of([value for key, value in kwargs.items() if key != "out"])
    return streamed_ps(library, nbytes, elements_of(out))


def step_of(source: torch.Tensor, target: torch.Tensor) -> int:
    """Returns the operations that finding an operand's element takes, for each of the result.

    CUDA's elementwise kernels read operands that lie as the result does in vectors. Else they
    compute where each element lies (`INDEXED`); and if neighbours of the result are none of the
    operand, most of what the memory gives is not used (`SCATTERED`).

    Args:
        source: The operand. A number on the host, which is an argument of the kernel, costs 0.
        target: The result.
    """
    strides = source.stride()
    if source.shape == target.shape and strides == target.stride():
        return 0 if _dense(target) else INDEXED
    if source.dim() == 0:
        return INDEXED if is_on_device(source) else 0
    if source.numel() == target.numel() <= 1:
        return 0
    if source.is_contiguous() and target.is_contiguous() and source.numel() == target.numel():
        return 0
    if source.dim() == target.dim():
        for size, stride, other in zip(target.shape, target.stride(), strides, strict=True):
            if size > 1 and stride == 1:
                return INDEXED if other <= 1 else SCATTERED
    return INDEXED


def _dense(tensor: torch.Tensor) -> bool:
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
