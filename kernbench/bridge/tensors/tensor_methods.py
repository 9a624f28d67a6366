"""Methods of tensors and of storages that tell where they are, or that bring them elsewhere."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from kernbench.bridge.base.here import HERE, Rank
from kernbench.bridge.tensors import old_classes, storages
from kernbench.bridge.tensors.devices import (
    device_of,
    moved,
    on_device,
    to,
    wanted,
    wrapper_subclass,
)
from kernbench.bridge.tensors.hazards import giving_bytes
from kernbench.bridge.tensors.resizing import before_resize, settle
from kernbench.bridge.tensors.storages import PINNED, STORAGES, is_plain
from kernbench.errors import NoDataError, site_fact
from kernbench.isolation.made_up import MADE_UP
from kernbench.isolation.replaced import Patch
from kernbench.process.access import AccessError
from kernbench.runtime_api.refused_functions import Once
from kernbench.tensors.errors import no_array

_TENSOR: Final = torch.Tensor
_STORAGE: Final = torch.UntypedStorage
_REAL_NUMPY: Final = _TENSOR.numpy
_REAL_TOLIST: Final = _TENSOR.tolist
_REAL_TYPE: Final = _TENSOR.type
_REAL_REPR: Final = _TENSOR.__repr__
_REAL_DATA_PTR: Final = _TENSOR.data_ptr
_REAL_DATA: Final = _TENSOR.data
_REAL_RECORD: Final = _TENSOR.record_stream
_REAL_ADDRESS: Final = _STORAGE.data_ptr
_REAL_RESIZE: Final = _STORAGE.resize_
_REAL_CLONE: Final = _STORAGE.clone
_REAL_WRITE: Final = _STORAGE._write_file
_REAL_STORAGE_TO: Final = _STORAGE.to
_REAL_STORAGE_DEVICE: Final = _STORAGE.device
_REAL_COMPATIBLE: Final = torch._has_compatible_shallow_copy_type


def numpy(self: torch.Tensor, *, force: bool = False) -> Any:
    """`Tensor.numpy`, which refuses a tensor on a device, as PyTorch does.

    Raises:
        TypeError: If the tensor is on a device and `force` is not given.
    """
    rank = HERE.rank
    if rank is None or not on_device(self):
        return _REAL_NUMPY(self, force=force)
    if not force:
        raise no_array(rank.device)
    return _REAL_NUMPY(_to_host(rank, self), force=True)


def _sharing(once: Once) -> Callable[..., Any]:
    """Returns `Tensor.numpy`: an array over the bytes of a tensor of the host, at once.

    To make the array reads nothing, and nobody sees when the program reads its elements.

    Args:
        once: Says so of the first tensor that a command still writes.
    """
    of_device = giving_bytes(numpy, reads=True, writes=True)

    @functools.wraps(numpy)
    def shared(self: torch.Tensor, *, force: bool = False) -> Any:
        rank = HERE.rank
        if rank is None or not rank.hazards.alert or not is_plain(type(self)) or on_device(self):
            return of_device(self, force=force)
        try:
            rank.hazards.check_read(self)
        except AccessError:
            once.say(_SHARED)
        rank.hazards.note_written(self)
        return numpy(self, force=force)

    return shared


_SHARED: Final = (
    "Tensor.numpy() of a tensor that a command still writes: whether the host waits before it "
    "reads the array's elements is not checked (C15)"
)


def tolist(self: torch.Tensor) -> Any:
    """`Tensor.tolist`, which waits for a copy to the host."""
    rank = HERE.rank
    if rank is None or not on_device(self):
        return _REAL_TOLIST(self)
    return _REAL_TOLIST(_to_host(rank, self))


def _to_host(rank: Rank, tensor: torch.Tensor) -> torch.Tensor:
    return moved(rank, tensor.detach(), torch.device("cpu"))


def shown(self: torch.Tensor, *, tensor_contents: Any = None) -> str:
    """`Tensor.__repr__`: without numbers it tells where the tensor is and how large."""
    rank = HERE.rank
    plain = rank is not None and is_plain(type(self)) and on_device(self)
    if rank is None or rank.data or not plain:
        if rank is not None and plain:  # PyTorch does not let modes see what it prints
            rank.mode.copy_out(min(self.nbytes, _SHOWN))
        text: str = _REAL_REPR(self, tensor_contents=tensor_contents)
        return text
    dtype = "" if self.dtype == torch.get_default_dtype() else f", dtype={self.dtype}"
    grad = ", requires_grad=True" if self.requires_grad else ""
    name = "Parameter containing:\n" if isinstance(self, torch.nn.Parameter) else ""
    return f"{name}tensor(..., device='{rank.device}', size={tuple(self.shape)}{dtype}{grad})"


_SHOWN: Final = 8000
"""Bytes of a tensor that is printed: of a large one PyTorch shows some elements."""


def type_(self: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **options: Any) -> Any:
    """`Tensor.type`: the name of a tensor's class in old programs, or a tensor of such a class.

    Args:
        dtype: A type, or the name of a class; None: to ask for the name.
        non_blocking: Whether the host may go on before the copy has ended.

    Raises:
        ValueError: For a name that is no class of tensors.
    """
    rank = HERE.rank
    if rank is None or (dtype is None and not on_device(self)):
        return _REAL_TYPE(self, *(() if dtype is None else (dtype, non_blocking)), **options)
    if dtype is None:
        return old_classes.name_of(self.dtype)
    if isinstance(dtype, torch.dtype):
        return to(self, dtype)
    if isinstance(dtype, str):
        name = dtype
    else:
        name = f"{getattr(dtype, '__module__', 'torch')}.{getattr(dtype, '__name__', dtype)}"
    place, _, kind = name.rpartition(".")
    if kind not in old_classes.DTYPES or place not in {"torch", "torch.cuda"}:
        raise ValueError(f"invalid type: '{name}'")
    return to(self, "cuda" if place == "torch.cuda" else "cpu", old_classes.DTYPES[kind])


def is_pinned(self: torch.Tensor, device: Any = None) -> bool:
    """`Tensor.is_pinned`: whether the program has pinned the memory."""
    del device
    return storages.is_pinned(self)


def pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
    """`Tensor.pin_memory`: a copy on the host that counts as pinned.

    Raises:
        RuntimeError: If the tensor is on a device.
    """
    if HERE.rank is not None and on_device(self):
        kind = old_classes.name_of(self.dtype)
        raise RuntimeError(f"cannot pin '{kind}' only dense CPU tensors can be pinned")
    if is_pinned(self, device):
        return self
    pinned = self.clone()
    setattr(pinned.untyped_storage(), PINNED, True)
    return pinned


def record_stream(self: torch.Tensor, stream: Any) -> None:
    """`Tensor.record_stream`: the memory is given to no other tensor while the stream uses it."""
    if HERE.rank is None or not isinstance(stream, torch.cuda.Stream):
        _REAL_RECORD(self, stream)
        return
    held = STORAGES.get(self.untyped_storage()._cdata)
    if held is not None:
        held.spares = None


def set_data(self: torch.Tensor, value: torch.Tensor) -> None:
    """Sets `Tensor.data`, also from one device to another."""
    rank = HERE.rank
    if rank is None or rank.data or not all(map(is_plain, map(type, (self, value)))):
        _REAL_DATA.__set__(self, value)
        return
    if _REAL_COMPATIBLE(self, value):
        _REAL_DATA.__set__(self, value)
        return
    # From host to device, without numbers: PyTorch keeps the two as different kinds of tensors.
    grad, leaf, host = self.grad, self.requires_grad, rank.process.host
    before = host.clock
    with torch.no_grad():
        other = value.detach().requires_grad_(leaf)
    host.clock = before  # with numbers there is no such view
    torch._C._swap_tensor_impl(self, other)
    if grad is not None and device_of(grad) == device_of(self):
        self.grad = grad


def compatible(input: torch.Tensor, from_: torch.Tensor) -> bool:
    """`torch._has_compatible_shallow_copy_type`: whether a module may keep its parameter."""
    rank = HERE.rank
    if rank is not None and not rank.data and all(map(is_plain, map(type, (input, from_)))):
        return bool((device_of(input).type == "meta") == (device_of(from_).type == "meta"))
    return bool(_REAL_COMPATIBLE(input, from_))


def holds_device_memory(storage: Any) -> bool:
    """Returns whether a storage stands for memory of a simulated device."""
    held = STORAGES.get(storage._cdata)
    return held is not None and held.sip >= 0


def storage_device(self: Any) -> torch.device:
    """`UntypedStorage.device`."""
    rank = HERE.rank
    if rank is not None and holds_device_memory(self):
        return rank.device
    device: torch.device = _REAL_STORAGE_DEVICE.__get__(self)
    return device


def address(self: torch.Tensor) -> int:
    """`Tensor.data_ptr`; see `storage_address`."""
    rank = HERE.rank
    if rank is None or rank.data:
        found: int = _REAL_DATA_PTR(self)
        return found
    start = storage_address(self.untyped_storage())
    return start and start + self.storage_offset() * self.element_size()


def storage_address(self: Any) -> int:
    """`UntypedStorage.data_ptr`; without numbers, a number of its own that stands for memory."""
    rank = HERE.rank
    held = None if rank is None else STORAGES.get(self._cdata)
    if rank is not None and held is not None:
        rank.hazards.unwritten.forget(held)  # who has the address may write there
    if rank is None or rank.data or not holds_device_memory(self):
        address: int = _REAL_ADDRESS(self)
        return address
    return int(self._cdata) if self.nbytes() else 0


def storage_resize(self: Any, size: int) -> Any:
    """`UntypedStorage.resize_`, which takes and frees memory of the device.

    Raises:
        DeviceOutOfMemoryError: If the device has no room for it.
        AccessError: If a collective that nobody has waited for uses the storage (C14, C15).
    """
    rank = HERE.rank
    if rank is None or self.nbytes() == size:
        return _REAL_RESIZE(self, size)
    taken = before_resize(rank, self, size)
    result = _REAL_RESIZE(self, size)
    settle(rank, self, taken)
    return result


def storage_clone(self: Any) -> Any:
    """`UntypedStorage.clone`: a copy where the storage is."""
    rank = HERE.rank
    if rank is None or not holds_device_memory(self):
        return _REAL_CLONE(self)
    return _whole(self).clone().untyped_storage()


def storage_to(self: Any, *, device: Any, non_blocking: bool = False) -> Any:
    """`UntypedStorage.to`."""
    rank = HERE.rank
    target = None if rank is None else wanted(rank, device)
    if rank is None or target is None:
        return _REAL_STORAGE_TO(self, device=device, non_blocking=non_blocking)
    if storage_device(self) == target:
        return self
    if not rank.data and target.type == "cpu":
        return _values_to_write(rank, self.nbytes())
    if target.type == "meta":
        return torch.empty(self.nbytes(), dtype=torch.uint8, device="meta").untyped_storage()
    return moved(rank, _whole(self), target).untyped_storage()


def _values_to_write(rank: Rank, nbytes: int) -> Any:
    """Returns zeros, if values that are not there are to be made up.

    Raises:
        NoDataError: Otherwise.
    """
    if not rank.fake:
        raise no_values_to_write(rank)
    MADE_UP.note(rank.process)
    return torch.zeros(nbytes, dtype=torch.uint8, device="cpu").untyped_storage()


def no_values_to_write(rank: Rank) -> NoDataError:
    """Returns the error about a program that writes values that are not there."""
    return NoDataError(
        f"{rank.process.name} writes the values of a tensor on its device, and there are no "
        "numbers",
        [site_fact(rank.process.call_site())],
        hint="--data on computes numbers, --data fake writes 0",
    )


def storage_write(self: Any, *args: Any) -> None:
    """`UntypedStorage._write_file`, with which storages are pickled."""
    rank = HERE.rank
    if rank is not None and not rank.data and holds_device_memory(self):
        self = _values_to_write(rank, self.nbytes())
    _REAL_WRITE(self, *args)


def storage_cuda(self: Any, device: Any = None, non_blocking: bool = False) -> Any:
    """`UntypedStorage.cuda`."""
    return storage_to(self, device="cuda" if device is None else device, non_blocking=non_blocking)


def storage_cpu(self: Any) -> Any:
    """`UntypedStorage.cpu`."""
    return storage_to(self, device="cpu")


def _written(real: Any) -> Any:
    """Returns a method of storages that writes their bytes where no mode sees it."""

    @functools.wraps(real)
    def method(self: Any, *args: Any, **options: Any) -> Any:
        rank, held = HERE.rank, STORAGES.get(self._cdata)
        if rank is not None and held is not None:
            rank.hazards.unwritten.forget(held)
        return real(self, *args, **options)

    return method


def _whole(storage: Any) -> torch.Tensor:
    """Returns the bytes of a storage as a tensor."""
    place = _REAL_STORAGE_DEVICE.__get__(storage)
    before, HERE.rank = HERE.rank, None
    try:
        return torch.empty(0, dtype=torch.uint8, device=place).set_(storage)
    finally:
        HERE.rank = before


def patches() -> Iterator[Patch]:
    """Yields what is replaced of tensors and of storages."""
    data = property(_REAL_DATA.__get__, set_data, _REAL_DATA.__delete__)
    of_tensors: dict[str, Any] = {
        "numpy": _sharing(Once()),
        "tolist": giving_bytes(tolist, reads=True, shows=True),
        "__repr__": giving_bytes(shown, reads=True, shows=True),
        "__dlpack__": giving_bytes(_TENSOR.__dlpack__, reads=True, writes=True),
        "share_memory_": giving_bytes(_TENSOR.share_memory_, writes=True),
        "type": type_,
        "is_pinned": is_pinned,
        "pin_memory": pin_memory,
        "record_stream": record_stream,
        "data": data,
        "_make_wrapper_subclass": staticmethod(wrapper_subclass),
    }
    of_storages: dict[str, Any] = {
        "device": property(storage_device),
        "is_cuda": property(lambda self: storage_device(self).type == "cuda"),
        "data_ptr": storage_address,
        "resize_": storage_resize,
        "copy_": _written(_STORAGE.copy_),
        "__setitem__": _written(_STORAGE.__setitem__),
        "clone": storage_clone,
        "to": storage_to,
        "cuda": storage_cuda,
        "cpu": storage_cpu,
        "_write_file": storage_write,
    }
    for owner, names in ((_TENSOR, of_tensors), (_STORAGE, of_storages)):
        for name, value in names.items():
            yield Patch(owner, name, value)
    yield from old_classes.patches()
    yield Patch(torch, "_has_compatible_shallow_copy_type", compatible)
