"""Makes tensors: new ones without bytes, and further windows on the memory of another."""

from collections.abc import Sequence
from math import prod
from typing import Final

from kernbench.caches import cached
from kernbench.errors import CallSite
from kernbench.memory import (
    DType,
    Storage,
    View,
    available_bytes,
    contiguous_strides,
    no_room,
)
from kernbench.process.process import Process
from kernbench.process.types import Device
from kernbench.tensors.memory import Label, Memory
from kernbench.tensors.tensor import Tensor

_bare: Final = Tensor.__new__
"""Makes a tensor that is still without everything; `Tensor(...)` is what users write."""


def wrap(memory: Memory, view: View, device: Device) -> Tensor:
    """Returns a tensor over a part of a memory. Takes no time.

    Args:
        memory: Storage of the tensor.
        view: Elements of the storage.
        device: Device of the storage.
    """
    tensor = _bare(Tensor)
    tensor.memory, tensor.window, tensor.device = memory, view, device
    tensor.graph = tensor.origin = None
    return tensor


def new_tensor(
    process: Process,
    shape: tuple[int, ...],
    dtype: DType,
    device: Device,
    site: CallSite | None = None,
    *,
    pinned: bool = False,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    """Returns a tensor without values, for an effect to fill. Takes no time.

    Args:
        process: The rank, or main, that owns the tensor.
        shape: Extents of the dimensions.
        device: `cpu`, or `cuda` with an index.
        site: Where the user asked for the tensor; None: to be found.
        pinned: Whether the tensor is in host memory that devices access directly.
        strides: Strides in elements, without gaps; None: row-major.

    Raises:
        OutOfMemoryError: If the device, or the computer that simulates, has no room for the tensor
            (M7).
    """
    sip = device.index
    allocator = process.memory if sip is None else process.engine.devices[sip].hbm
    label, nbytes, plain = _plain(dtype, shape)
    site = site or process.call_site()
    storage = Storage(allocator, nbytes, label, site)
    if nbytes > _LARGE and process.engine.enable_data:
        _check_room(nbytes, label, device, site)
    made = _bare(Tensor)
    made.memory, made.device = Memory(storage, process, pinned=pinned), device
    made.window = View(storage.buffer, dtype, shape, strides or plain, 0)
    made.graph = made.origin = None
    return made


@cached("tensors.labels")
def _plain(dtype: DType, shape: tuple[int, ...]) -> tuple[Label, int, tuple[int, ...]]:
    """Returns the label of a tensor, its size in bytes, and its strides if it is row-major."""
    return Label(dtype, shape), prod(shape) * dtype.itemsize, contiguous_strides(shape)


_LARGE: Final = 1 << 28
"""Bytes of a tensor from which this computer is asked, before the call, whether it has room."""


def _check_room(nbytes: int, label: Label, device: Device, site: CallSite | None) -> None:
    """Refuses a tensor that the computer that simulates the machine cannot hold."""
    left = available_bytes()
    if left is not None and nbytes > left:
        raise no_room(f"{label} on {device}", site, nbytes, left)


def alias(tensor: Tensor, shape: Sequence[int], strides: Sequence[int], offset: int) -> Tensor:
    """Returns a view: another window on the same memory. Takes no time.

    Args:
        tensor: The tensor to view.
        shape: Extents of the view's dimensions.
        strides: Strides of the view, in elements.
        offset: Place of the view's first element in the storage, in elements.
    """
    old, seen = tensor.window, _bare(Tensor)
    seen.memory, seen.device = tensor.memory, tensor.device
    seen.window = View(old.buffer, old.dtype, tuple(shape), tuple(strides), offset)
    seen.graph = seen.origin = None
    return seen
