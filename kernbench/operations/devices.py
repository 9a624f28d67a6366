"""Where tensors are made that no `device=` places."""

from kernbench.process.process import current_process
from kernbench.process.types import Device, DeviceLike
from kernbench.tensors.running import find_device

__all__ = ["get_default_device", "set_default_device"]


def set_default_device(device: DeviceLike | None) -> None:
    """Sets where the calling rank makes tensors without `device=`, as `torch.set_default_device`.

    Args:
        device: The device; None for the run's default, see `RunSpec.default_device`.

    Raises:
        DeviceError: If `device` means no device.
        KernbenchError: If the device does not exist.
        OwnershipError: If the device belongs to another rank (M14).
    """
    process = current_process()
    if device is not None:
        find_device(process, device)
    process.default_device = None if device is None else Device(device)


def get_default_device() -> Device:
    """Returns the device on which the calling rank makes tensors without `device=`."""
    return find_device(current_process(), None)
