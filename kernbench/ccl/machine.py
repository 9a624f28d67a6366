"""What collectives need of a machine: costs of its PEs, and paths between them."""

from typing import Any, Final

import numpy as np

from kernbench.caches import Table
from kernbench.ccl.rows import SMALL
from kernbench.hw.path import Path
from kernbench.hw.pe import PeCosts
from kernbench.hw.queue import QueueSpec
from kernbench.topology import Topology
from kernbench.units import Bandwidth


class Machine:
    """A machine as collectives see it; knows no engine and no time.

    Attributes:
        topology: The same.
        scratch: Bytes for `Rows`, which belong to nobody between two calls.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology: Final = topology
        first, *others = map(PeCosts.of, topology.machine.system.kinds)
        self._costs: Final = [first, *(first if each == first else each for each in others)]
        self._paths: Final[Table[tuple[int, int, int, int], Path]] = Table("ccl.paths")
        self.scratch: Final[np.ndarray[Any, np.dtype[np.uint8]]] = np.empty(SMALL, np.uint8)

    def costs(self, sip: int) -> PeCosts:
        """Returns the durations of the PEs of a SIP; of SIPs that are alike, the same object."""
        return self._costs[self.topology.machine.system.kind_of(sip)]

    def path(
        self, source: int, destination: int, queue: QueueSpec, share: Bandwidth | None = None
    ) -> Path:
        """Returns the path from the first PE of a SIP to the first PE of another.

        Args:
            source: Number of the sending SIP.
            destination: Number of the receiving SIP.
            queue: How queues are built: the rate on the first link, and virtual-channel chunks.
            share: Another bound of the rate on the first link, in bytes a second; None for none.
        """
        feed = queue.feed(self.costs(source).pe.dma)
        if share is not None and share.per_second < feed.per_second:
            feed = share
        key = (source, destination, queue.vc_chunk_size, feed.per_second)
        path = self._paths.get(key)
        if path is None:
            route = self.topology.sip_route(source, destination)
            path = self._paths.keep(key, Path(route, feed, queue.vc_chunk_size))
        return path
