"""State that all collectives of an engine share."""

from functools import lru_cache, partial
from typing import Any, Final, Protocol

import numpy as np

from kernbench.ccl.channel import lanes
from kernbench.ccl.config import Chosen
from kernbench.ccl.prepared import Prepared
from kernbench.ccl.rows import SMALL
from kernbench.hw.path import Path
from kernbench.hw.pe import PeCosts
from kernbench.hw.queue import QueueSpec
from kernbench.sim_engine.engine import GraphEngine


class Choose(Protocol):
    """Returns the algorithm of an operation; see `Choices.choose`."""

    def __call__(
        self, operation: str, nbytes: int, sips: tuple[int, ...], ranks: int | None = None
    ) -> Chosen:
        """See the class."""
        ...


_MOST_SHAPES: Final = 1024
"""Number of `Prepared` that are kept, each with its plans and the paths of its messages."""

_MOST_PATTERNS: Final = 1024
"""Number of start patterns whose times are kept, a few numbers for each rank."""


class CollectiveModel:
    """State that collectives of one engine share: everything that does not depend on time.

    Args:
        engine: The engine.
        choose: Returns the algorithm of an operation; None if every collective names its own.

    Attributes:
        engine: The engine.
        prepare: Returns the `Prepared` of a `CollectiveShape`; the answers used last are kept. An
            answer depends on the machine and the `CollectiveShape` alone.
        lanes: Does what `channel.lanes` does; the answers used last are kept. Starts are relative
            to the first rank's, because ranks that are alone on their links do the same at any
            time.
        scratch: Bytes for `Rows`; their contents have no meaning between two calls.
    """

    def __init__(self, engine: GraphEngine, choose: Choose | None = None) -> None:
        self.engine: Final = engine
        self._choose: Final = choose
        self._costs: Final = [PeCosts.of(sip) for sip in engine.topology.machine.system.kinds]
        self.prepare: Final = lru_cache(_MOST_SHAPES)(partial(Prepared, self))
        self.lanes: Final = lru_cache(_MOST_PATTERNS)(lanes)
        self.scratch: Final[np.ndarray[Any, np.dtype[np.uint8]]] = np.empty(SMALL, np.uint8)
        self._paths: dict[tuple[int, int, int, int], Path] = {}

    def costs(self, sip: int) -> PeCosts:
        """Returns the durations of the PEs of a SIP; SIPs that are alike share one object."""
        return self._costs[self.engine.topology.machine.system.kind_of(sip)]

    def path(self, source: int, destination: int, queue: QueueSpec) -> Path:
        """Returns the path from the first PE of a SIP to the first PE of another.

        Args:
            source: Number of the sending SIP.
            destination: Number of the receiving SIP.
            queue: How queues are built: the rate on the first link, and virtual-channel chunks.
        """
        feed = queue.feed(self.costs(source).pe.dma)
        key = (source, destination, queue.vc_chunk_size, feed.per_second)
        path = self._paths.get(key)
        if path is None:
            topology = self.engine.topology
            path = self._paths[key] = self.engine.network.path(
                topology.cube_node(source),
                topology.cube_node(destination),
                feed,
                queue.vc_chunk_size,
            )
        return path

    def choose(
        self, operation: str, nbytes: int, sips: tuple[int, ...], ranks: int | None = None
    ) -> Chosen:
        """Returns the algorithm of an operation.

        Args:
            operation: A key of `OPERATIONS`.
            nbytes: Size of its data, as nccl-tests counts it.
            sips: Device of each rank that takes part.
            ranks: Ranks of the group in which two ranks exchange a message, see `Choices.choose`.

        Raises:
            UsageError: If no algorithm implements the operation.
        """
        assert self._choose is not None, "made without a way to choose"
        return self._choose(operation, nbytes, sips, ranks)
