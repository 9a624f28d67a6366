"""`torch.device`, to which a number alone names a device, as on a computer with CUDA."""

from typing import Any, Final

import torch

from kernbench.bridge.base.here import HERE

_REAL: Final[Any] = torch.device


class _AsReal(type):
    """Lets the class stand for the real one wherever programs and PyTorch compare or ask."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _REAL)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, _REAL)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is _REAL

    def __hash__(cls) -> int:
        return hash(_REAL)

    def __getattr__(cls, name: str) -> Any:
        return getattr(_REAL, name)

    def __repr__(cls) -> str:
        return repr(_REAL)


class _Device(metaclass=_AsReal):
    def __new__(cls, *args: Any, **options: Any) -> Any:
        """Makes a `torch.device`."""
        number = args[0] if args else options.get("device", options.get("index"))
        if HERE.rank is not None and type(number) is int and len(args) + len(options) == 1:
            return _REAL("cuda", number)
        return _REAL(*args, **options)


_Device.__module__, _Device.__qualname__, _Device.__name__ = "torch", "device", "device"
_Device.__doc__ = _REAL.__doc__

DEVICE: Final[Any] = _Device
"""Stands for `torch.device`."""
