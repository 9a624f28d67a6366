"""How long a collective takes by itself, on an idle machine, when all ranks begin at once."""

from kernbench.ccl.collective import Collective
from kernbench.ccl.config import Chosen
from kernbench.ccl.model import CollectiveModel
from kernbench.ccl.operations import OPERATIONS, Reduction
from kernbench.ccl.prepared import CollectiveShape
from kernbench.memory import Storage, View, dtypes
from kernbench.sim_engine.command import Command, Stream
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.host import Host
from kernbench.topology import Topology


def block_count(operation: str, ranks: int) -> int:
    """Returns into how many blocks the whole size of an operation is cut.

    Args:
        operation: A key of `OPERATIONS`.
        ranks: Ranks that take part.
    """
    return 1 if OPERATIONS[operation].blocks == "one" else ranks


def time_alone(topology: Topology, chosen: Chosen, operation: str, ranks: int, nbytes: int) -> int:
    """Returns the picoseconds until the last rank has ended, without data.

    Args:
        chosen: The algorithm.
        operation: A key of `OPERATIONS`.
        ranks: On the machine's first SIPs.
        nbytes: Of all blocks together, cut to whole elements of float32; at least one each.
    """
    what, dtype = OPERATIONS[operation], dtypes.float32
    count = block_count(operation, ranks)
    block = max(1, nbytes // dtype.itemsize // count)
    row = (block,) * count
    sizes = (row,) * ranks if what.blocks == "pairs" else row
    engine = GraphEngine(topology, False)
    model = CollectiveModel(engine)
    shape = CollectiveShape(chosen, operation, tuple(range(ranks)), sizes, dtype)
    reduction = Reduction("sum", "add") if what.reduces else None
    collective = Collective(model, model.prepare(shape), reduction)
    commands = []
    for rank in range(ranks):
        elements = [
            block * len(blocks)
            for blocks in (what.given(rank, ranks, 0), what.taken(rank, ranks, 0))
        ]
        hbm = engine.devices[rank].hbm
        given, taken = (
            View(
                Storage(hbm, dtype.itemsize * max(1, each), "x", None).buffer,
                dtype,
                (each,),
                (1,),
                0,
            )
            for each in elements
        )
        host = Host(engine.loop, rank, engine.rank_owner(rank), 0, 1)
        work = collective.join(rank, [given], [taken])
        commands.append(Command(operation, "collective", host, Stream("collective", rank), work))
    for command in commands:
        engine.submit(command)
    engine.loop.run()
    return max(command.done.time or 0 for command in commands)
