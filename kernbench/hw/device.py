"""One SIP: its memories, its engines as library kernels use them, its way to the host."""

from functools import partial
from typing import Final

from kernbench.des import Fifo
from kernbench.hw.library import Library
from kernbench.memory import Allocator, Space
from kernbench.topology import Topology
from kernbench.topology.spec import HBM_CAPACITY


class Device:
    """The state of one SIP.

    Args:
        index: Its number in the machine.
        topology: The machine.
        libraries: By kind of SIP; its own is added. What one device has asked of a library, all
            that are alike know.

    Attributes:
        index: Its number in the machine.
        sip: What it is.
        kind: Equal for SIPs that are alike, see `SystemSpec.kinds`.
        library: Durations of library kernels.
        hbm: Allocator of its HBM, all cubes together.
        compute: All engines, as one library kernel after the other holds them.
        to_device: PCIe, host to device.
        to_host: PCIe, device to host.
    """

    def __init__(self, index: int, topology: Topology, libraries: dict[int, Library]) -> None:
        spec = topology.machine.system
        self.index: Final = index
        self.spec: Final = spec
        self.kind: Final = spec.kind_of(index)
        self.sip: Final = spec.kinds[self.kind]
        library = libraries.get(self.kind)
        if library is None:
            library = libraries[self.kind] = Library(self.sip)
        self.library: Final = library
        self.hbm: Final = Allocator(
            Space.HBM,
            index,
            0,
            topology.num_cubes * self.sip.cube.hbm.capacity,
            partial(spec.field_of, index, *HBM_CAPACITY),
        )
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
