"""One SIP: its memories, the engines that library kernels hold, and the PCIe way to the host."""

from collections.abc import Callable
from functools import partial
from typing import Final

from kernbench.des import EventLoop, Fifo
from kernbench.hw.library import Library
from kernbench.hw.warmed import WarmedLibrary
from kernbench.memory import Allocator, NotedAllocator, Space
from kernbench.topology import Topology
from kernbench.topology.spec import HBM_CAPACITY


class Device:
    """The state of one SIP.

    Args:
        index: Number of the SIP in the machine.
        libraries: Durations of library kernels, by kind of SIP; the constructor adds a missing
            kind. Devices of one kind share a library, so a duration is computed once for all of
            them.
        note: Told of each change of HBM, see `NotedAllocator`; None if nobody asks.

    Attributes:
        index: Number of the SIP in the machine.
        spec: Description of the whole machine.
        kind: Kind of the SIP; equal for SIPs that are alike, see `SystemSpec.kinds`.
        sip: Description of the SIP.
        library: Durations of library kernels; while a CUDA graph is captured, of a device whose L2
            keeps something, `warmed`.
        hbm: Allocator of the HBM of all cubes together.
        compute: All engines of the SIP; library kernels hold them one after another.
        to_device: PCIe from host to device.
        to_host: PCIe from device to host.
    """

    def __init__(
        self,
        index: int,
        topology: Topology,
        libraries: dict[int, Library],
        note: Callable[[int, int], None] | None = None,
    ) -> None:
        spec = topology.machine.system
        self.index: Final = index
        self.spec: Final = spec
        self.kind: Final = spec.kind_of(index)
        self.sip: Final = spec.kinds[self.kind]
        library = libraries.get(self.kind)
        if library is None:
            library = libraries[self.kind] = Library(self.sip)
        self.library = library
        self._warmed: WarmedLibrary | None = None
        capacity = topology.num_cubes * self.sip.cube.hbm.capacity
        capacity_at = partial(spec.field_of, index, *HBM_CAPACITY)
        self.hbm: Final = (
            Allocator(Space.HBM, index, 0, capacity, capacity_at)
            if note is None
            else NotedAllocator(Space.HBM, index, 0, capacity, capacity_at, note)
        )
        self.compute: Final = Fifo()
        self.to_device: Final = Fifo()
        self.to_host: Final = Fifo()

    @property
    def warmed(self) -> WarmedLibrary | None:
        """The same durations, with what they are if operands are in the L2; None: nothing is."""
        warm = self.sip.warm
        if self._warmed is None and warm is not None:
            self._warmed = WarmedLibrary(self.library, self.sip, warm)
        return self._warmed

    def share(self, loop: EventLoop) -> None:
        """Lets several streams use the device: reservations follow simulated time from now on.

        Args:
            loop: The loop that keeps the simulated time.
        """
        for fifo in (self.compute, self.to_device, self.to_host):
            fifo.share(loop)

    def go_beside(self, loop: EventLoop) -> None:
        """Lets collectives go on beside kernels from now on.

        If they slow each other, kernels reserve the engines in the order of simulated time.

        Args:
            loop: The loop that keeps the simulated time.
        """
        overlap = self.sip.overlap
        if overlap is not None and (overlap.kernel or overlap.message or overlap.collective):
            self.compute.keep_order(loop)

    def pcie_ps(self, nbytes: int) -> int:
        """Returns how long a copy keeps PCIe busy, in picoseconds, without its latency.

        Args:
            nbytes: Size of the copy.
        """
        return self.spec.host.pcie.bandwidth.duration_ps(nbytes)
