"""Generators of random numbers; each rank has a default one, or one a device."""

from typing import Final

import numpy as np

from kernbench.process.process import Process, RankLocal
from kernbench.process.types import Device, DeviceLike


class Generator:
    """`torch.Generator`: a stream of random numbers.

    Args:
        device: Device on which the numbers are used; the numbers do not depend on it.

    Attributes:
        device: The device.
    """

    def __init__(self, device: DeviceLike = "cpu") -> None:
        self.device = Device(device)
        self.manual_seed(0)

    def manual_seed(self, seed: int) -> "Generator":
        """Starts the stream of random numbers that belongs to a seed, and returns the generator."""
        # PyTorch takes negative seeds as unsigned 64-bit numbers.
        self._seed = int(seed) % (1 << 64)
        self.numbers = np.random.Generator(np.random.Philox(key=self._seed))
        return self

    def initial_seed(self) -> int:
        """Returns the seed that the stream started from."""
        return self._seed


def _seeded(process: Process) -> Generator:
    return Generator().manual_seed(process.ctx.spec.seed)


def default_generator(process: Process, device: Device) -> RankLocal[Generator]:
    """Returns the variable with the generator that a rank draws from on a device.

    If devices are kept apart, the host and the rank's device have one each, as in PyTorch.
    """
    apart = process.strict and device.type == "cuda"
    return DEVICE_GENERATOR if apart else DEFAULT_GENERATOR


DEFAULT_GENERATOR: Final = RankLocal("default generator", _seeded)
"""The generator that a rank draws from unless told otherwise; it starts from the context's seed."""

DEVICE_GENERATOR: Final = RankLocal("default generator of the device", _seeded)
"""The same for tensors on the rank's device, if devices are kept apart."""
