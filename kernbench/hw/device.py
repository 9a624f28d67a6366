"""One SIP: its memories, the engines that library kernels hold, and the PCIe way to the host."""

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
        index: Number of the SIP in the machine.
        topology: The machine.
        libraries: Durations of library kernels, by kind of SIP; the constructor adds a missing
            kind. Devices of one kind share a library, so a duration is computed once for all of
            them.

    Attributes:
        index: Number of the SIP in the machine.
        spec: Description of the whole machine.
        kind: Kind of the SIP; equal for SIPs that are alike, see `SystemSpec.kinds`.
        sip: Description of the SIP.
        library: Durations of library kernels.
        hbm: Allocator of the HBM of all cubes together.
        compute: All engines of the SIP; library kernels hold them one after another.
        to_device: PCIe from host to device.
        to_host: PCIe from device to host.
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
        """Lets several streams use the device: reservations follow simulated time from now on."""
        for fifo in (self.compute, self.to_device, self.to_host):
            fifo.shared = True

    def pcie_ps(self, nbytes: int) -> int:
        """Returns how long a copy keeps PCIe busy, in picoseconds, without its latency.

        Args:
            nbytes: Size of the copy.
        """
        return self.spec.host.pcie.bandwidth.duration_ps(nbytes)
