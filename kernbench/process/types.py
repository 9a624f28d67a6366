"""Small values of the API: devices, sizes, which devices a context may use."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from kernbench.errors import KernbenchError, UsageError, call_site, site_fact

_DEVICE: Final = re.compile(r"(cpu|cuda)(?::(\d+))?")


class DeviceError(KernbenchError, RuntimeError):
    """A value that should mean a device does not."""


class Device:
    """`torch.device`: `cpu`, or a SIP of the machine as `cuda:index`.

    Inside `with torch.device(...):` it is where the calling rank makes tensors without `device=`.

    Attributes:
        type: `cpu` or `cuda`.
        index: SIP; None for the host, and for `cuda` alone, which means the current device.
    """

    __slots__ = ("index", "type")

    def __init__(self, device: "str | int | Device", index: int | None = None) -> None:
        if isinstance(device, Device):
            self.type: str = device.type
            self.index: int | None = device.index
            return
        text = f"cuda:{device}" if isinstance(device, int) else device
        match = _DEVICE.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise DeviceError(
                f"{device!r} is no device",
                [site_fact(call_site()), "expected 'cpu', 'cuda', 'cuda:N' or N"],
            )
        self.type = match[1]
        number = match[2] if index is None else index
        self.index = None if number is None or self.type == "cpu" else int(number)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, Device):
            return (self.type, self.index) == (other.type, other.index)
        return NotImplemented

    def __hash__(self) -> int:
        return hash((self.type, self.index))

    def __enter__(self) -> "Device":
        process = find_process()
        process.default_devices += (process.default_device,)
        process.default_device = self
        return self

    def __exit__(self, *exception: object) -> None:
        process = find_process()
        *before, process.default_device = process.default_devices
        process.default_devices = tuple(before)

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        return f"device(type={self.type!r}" + (
            ")" if self.index is None else f", index={self.index})"
        )


class Placing(Protocol):
    """The part of a process that says where tensors are made, see `process.Process`."""

    default_device: Device | None
    default_devices: tuple[Device | None, ...]


def _nobody() -> Placing:
    raise AssertionError("kernbench.process.process was never imported")


find_process: Callable[[], Placing] = _nobody
"""Returns the process of the calling code; `process.process` puts its function here."""

CPU: Final = Device("cpu")

DeviceLike = str | int | Device


class Size(tuple[int, ...]):
    """`torch.Size`."""

    __slots__ = ()

    def numel(self) -> int:
        """Returns the number of elements."""
        count = 1
        for extent in self:
            count *= extent
        return count

    def __repr__(self) -> str:
        return f"torch.Size({list(self)})"


@dataclass(frozen=True, slots=True)
class DeviceSelector:
    """Which SIPs of the machine a context may use.

    Attributes:
        which: `all`, one index, or several.
    """

    which: Any = "all"

    def indices(self, count: int) -> list[int]:
        """Returns the selected SIPs of a machine of `count`.

        Raises:
            UsageError: If a SIP does not exist, or the selector is of another kind.
        """
        if self.which == "all":
            return list(range(count))
        chosen = list(self._each())
        wrong = [index for index in chosen if not 0 <= index < count]
        if wrong or not chosen or len(set(chosen)) != len(chosen):
            named = ",".join(map(str, self._entries()))
            raise UsageError(
                f"--devices {named} (devices=) does not fit a machine of {count} SIPs",
                [f"expected 'all' or different indices 0..{count - 1}"],
            )
        return chosen

    def _entries(self) -> Sequence[Any]:
        return [self.which] if isinstance(self.which, int | str) else list(self.which)

    def _each(self) -> Iterator[int]:
        for entry in self._entries():
            if isinstance(entry, bool) or not isinstance(entry, int):
                yield -1
            else:
                yield entry
