"""One SIP: its memories, its engines as library kernels use them, its way to the host."""

from typing import Final

from kernbench.des import Fifo
from kernbench.hw.library import Library
from kernbench.memory import Allocator, Space
from kernbench.topology import Topology


class Device:
    """The state of one SIP.

    Attributes:
        index: Its number in the machine.
        library: Durations of library kernels.
        hbm: Allocator of its HBM, all cubes together.
        compute: All engines, as one library kernel after the other holds them.
        to_device: PCIe, host to device.
        to_host: PCIe, device to host.
    """

    def __init__(self, index: int, topology: Topology) -> None:
        spec = topology.machine.system
        cubes = spec.sip.cubes.shape[0] * spec.sip.cubes.shape[1]
        self.index: Final = index
        self.spec: Final = spec
        self.library: Final = Library(spec.sip)
        self.hbm: Final = Allocator(Space.HBM, index, 0, cubes * spec.sip.cube.hbm.capacity)
        self.compute: Final = Fifo()
        self.to_device: Final = Fifo()
        self.to_host: Final = Fifo()

    def share(self) -> None:
        """Says that several streams use the device: reservations go by simulated time from now."""
        for fifo in (self.compute, self.to_device, self.to_host):
            fifo.shared = True

    def pcie_ps(self, nbytes: int) -> int:
        """Returns how long PCIe is busy with a copy, in picoseconds, without its latency."""
        return self.spec.host.pcie.bandwidth.duration_ps(nbytes)
