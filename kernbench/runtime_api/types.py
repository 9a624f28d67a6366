"""The place where programs look for `DeviceSelector`."""

from kernbench.process.types import DeviceSelector

__all__ = ["DeviceSelector"]
