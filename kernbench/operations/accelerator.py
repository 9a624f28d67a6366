"""`torch.accelerator`: what `torch.cuda` has, without the name of the device's kind."""

from collections.abc import Iterator
from contextlib import contextmanager

from kernbench.operations import cuda
from kernbench.operations.cuda import (
    current_stream,
    device_count,
    empty_cache,
    is_available,
    set_stream,
    synchronize,
)
from kernbench.operations.twins import args_of
from kernbench.process.types import Device, DeviceLike

__all__ = [
    "current_accelerator",
    "current_device_index",
    "current_stream",
    "device_count",
    "device_index",
    "empty_cache",
    "is_available",
    "max_memory_allocated",
    "memory_allocated",
    "memory_reserved",
    "reset_peak_memory_stats",
    "set_device_index",
    "set_stream",
    "synchronize",
]


def current_accelerator(check_available: bool = False) -> Device | None:
    """Returns the device's kind, `cuda`.

    Args:
        check_available: Whether to return None if there is no device.
    """
    return None if check_available and not is_available() else Device("cuda")


def current_device_index() -> int:
    """Returns the index of the calling rank's current device."""
    return cuda.current_device()


def set_device_index(device: DeviceLike | None) -> None:
    """Makes a device the current one, as `torch.cuda.set_device`; None: nothing changes.

    Args:
        device: The device, or its index.
    """
    if device is not None:
        cuda.set_device(device)


@contextmanager
def device_index(device: int | None) -> Iterator[None]:
    """Makes a device the current one in a `with` block.

    Args:
        device: Index of the device; None: nothing changes.
    """
    if device is None:
        yield
    else:
        with cuda.device(device):
            yield


def memory_allocated(device_index: DeviceLike | None = None) -> int:
    """Returns the bytes of the tensors on a device.

    Args:
        device_index: The device; None for the current one.
    """
    return cuda.memory_allocated(device_index)


@args_of(memory_allocated)
def memory_reserved(device_index: DeviceLike | None = None) -> int:
    """Returns the bytes that the device keeps for tensors."""
    return cuda.memory_reserved(device_index)


@args_of(memory_allocated)
def max_memory_allocated(device_index: DeviceLike | None = None) -> int:
    """Returns the most bytes that tensors on a device have taken at one time."""
    return cuda.max_memory_allocated(device_index)


@args_of(memory_allocated)
def reset_peak_memory_stats(device_index: DeviceLike | None = None) -> None:
    """Lets `max_memory_allocated` begin anew."""
    cuda.reset_peak_memory_stats(device_index)
