"""What launches reach: the devices of a run, which whoever runs ranks implements."""

from collections.abc import Mapping
from typing import Any, Final, Protocol

from kernbench.errors import UsageError
from kernbench.triton.launches import Launch


class Devices(Protocol):
    """The devices of the ranks, of which the calling one is asked for."""

    def current(self) -> int:
        """Returns the number of the current device."""
        ...

    def choose(self, device: int) -> None:
        """Makes a device the current one."""
        ...

    def stream(self, device: int) -> int:
        """Returns the number by which programs know the current stream."""
        ...

    def capability(self, device: int) -> tuple[int, int]:
        """Returns the compute capability, major and minor."""
        ...

    def properties(self, device: int) -> Mapping[str, int]:
        """Returns the device's properties by the names that Triton gives them."""
        ...

    def torch_device(self) -> Any:
        """Returns the current device as PyTorch's."""
        ...

    def interface(self) -> Any:
        """Returns the module of events, streams and devices: `torch.cuda`."""
        ...

    def cache(self) -> Any:
        """Returns what is cleared before a measured run, so that no input is in the cache."""
        ...

    def launch(self, launch: Launch) -> None:
        """Runs a kernel, and issues the command that it is on the current stream.

        Raises:
            KernbenchError: If the arguments are no memory of the device, or a program does what it
                must not.
        """
        ...


class _Now:
    """The devices while ranks are there; None elsewhere."""

    def __init__(self) -> None:
        self.devices: Devices | None = None

    def here(self) -> Devices:
        """Returns the devices.

        Raises:
            UsageError: If no run is under way.
        """
        if self.devices is None:
            raise UsageError(
                "a kernel of Triton was compiled for simulated devices, and none is there now",
                hint="launch it while ranks run: kernbench torchrun, kernbench run, or spawn",
            )
        return self.devices


NOW: Final = _Now()
"""Of this process. Kernels outlive the run in which they were compiled, so they ask here."""
