"""An all-reduce on a simulated machine, below the runtime: no programs, no tensors."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernbench.ccl.collective import Collective
from kernbench.ccl.config import Chosen, choose, load_ccl
from kernbench.ccl.model import CollectiveModel
from kernbench.ccl.operations import Reduction
from kernbench.ccl.prepared import CollectiveShape
from kernbench.config import shipped
from kernbench.memory import Storage, View
from kernbench.memory.dtypes import float32
from kernbench.sim_engine.command import Command, Stream
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.host import Host
from kernbench.topology import Topology


def ring() -> Chosen:
    """Returns the ring of small slots of the shipped `ccl.yaml`."""
    path = shipped("configs") / "ccl.yaml"
    return choose(load_ccl(path), path, "ring_allreduce_tcm")


class AllReduce:
    """A machine that sums a float32 buffer of each rank, in place, as often as it is asked to.

    Args:
        chosen: The algorithm.
        ranks: How many take part.
        count: Elements of the buffer.
        buffers: The values of each rank; without them data is off.
    """

    def __init__(
        self,
        topology: Topology,
        chosen: Chosen,
        ranks: int,
        count: int,
        buffers: Sequence[np.ndarray[Any, Any]] | None = None,
    ) -> None:
        self.model = CollectiveModel(GraphEngine(topology, buffers is not None))
        self._chosen = chosen
        self._count = count
        engine = self.model.engine
        self._storages = [
            Storage(engine.devices[rank].hbm, count * float32.itemsize, "buffer", None)
            for rank in range(ranks)
        ]
        self.fill(buffers or ())

    def fill(self, buffers: Sequence[np.ndarray[Any, Any]]) -> None:
        """Gives each rank's buffer other values, uncopied."""
        for storage, values in zip(self._storages, buffers, strict=bool(buffers)):
            storage.buffer.adopt(values)

    def values(self, rank: int) -> np.ndarray[Any, Any]:
        """Returns what a rank's buffer holds; ranks may share the result of a run."""
        view = View(self._storages[rank].buffer, float32, (self._count,), (1,), 0)
        return view.read()

    def run(self, starts: Sequence[int]) -> list[int]:
        """Returns when each rank is done, in picoseconds, if they begin at `starts`."""
        engine = self.model.engine
        begin = engine.loop.now
        sips = tuple(range(len(starts)))
        shape = CollectiveShape(self._chosen, "all_reduce", sips, (self._count,), float32)
        collective = Collective(self.model, self.model.prepare(shape), Reduction("sum", "add"))
        commands = []
        for rank, start in enumerate(starts):
            view = View(self._storages[rank].buffer, float32, (self._count,), (1,), 0)
            host = Host(engine.loop, rank, engine.rank_owner(rank), begin + start, 1024)
            work = collective.join(rank, [view], [view])
            commands.append(Command("all_reduce", "collective", host, Stream("s", rank), work))
        for command in commands:
            engine.submit(command)
        engine.loop.run()
        return [(command.done.time or 0) - begin for command in commands]
