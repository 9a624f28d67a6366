"""Collectives of 1 GiB without data, cold: what one costs that repeats itself a thousand times.

`before` was measured on the version before repetitions were skipped, or follows from a smaller size
of it ("about"). For 8 ranks, a smaller collective is checked against a replay of every message.
"""

import random
import sys
import time
from dataclasses import dataclass
from unittest import mock

import _measure

from kernbench import caches
from kernbench.ccl import replay
from kernbench.ccl.collective import Collective
from kernbench.ccl.config import Chosen, choose, load_ccl, shipped_ccl_file
from kernbench.ccl.model import CollectiveModel
from kernbench.ccl.operations import OPERATIONS, Reduction
from kernbench.ccl.prepared import CollectiveShape
from kernbench.ccl.tuner import Choices
from kernbench.memory import Storage, View
from kernbench.memory.dtypes import float32
from kernbench.sim_engine.command import Command, Stream
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.host import Host
from kernbench.topology import Topology, load_topology

SIZE = 1 << 30
SKEW_PS = 10_000_000
REPEATS = 2
NEVER = sys.maxsize


@dataclass(frozen=True)
class Row:
    """A collective.

    Attributes:
        machine: A shipped machine.
        ranks: How many take part.
        operation: A key of `OPERATIONS`.
        limit: Seconds asked for; None if nothing was asked for.
        before: Seconds before repetitions were skipped.
        algorithm: Name of the algorithm; empty for the one that is expected to be the fastest.
        skew: Whether ranks begin at unequal times.
    """

    machine: str
    ranks: int
    operation: str
    limit: float | None
    before: str
    algorithm: str = ""
    skew: bool = False


ROWS = [
    Row("h200x8_x4_nodes", 64, "all_gather", 1, "153 s", "two_level"),
    Row("h200x8_x4_nodes", 64, "all_gather", 1, "about 300 s"),
    Row("h200x8_x4_nodes", 64, "all_gather", None, "about 150 s", "two_level", skew=True),
    Row("sip8", 8, "broadcast", 0.3, "about 12 s"),
    Row("sip8", 8, "broadcast", 0.3, "about 12 s", skew=True),
    Row("sip8", 8, "all_to_all", 0.3, "about 35 s"),
    Row("sip8", 8, "all_gather", None, "about 200 s"),
    Row("sip8", 8, "gather", None, "about 34 s"),
    Row("h200x8", 8, "broadcast", 0.3, "0.20 s"),
    Row("h200x8", 8, "all_to_all", 0.3, "about 0.5 s"),
    Row("h200x8_x4_nodes", 64, "broadcast", None, "8.9 s"),
    Row("h200x8_x4_nodes", 64, "all_to_all", None, "9.9 s"),
]


def chosen_for(row: Row, topology: Topology, nbytes: int) -> Chosen:
    if not row.algorithm:
        return Choices(None, (), topology).choose(row.operation, nbytes, tuple(range(row.ranks)))
    path = shipped_ccl_file()
    return choose(load_ccl(path), path, row.algorithm, topology.machine.system)


def ends(row: Row, size: int) -> list[int | None]:
    """Returns when each rank is done with a collective of `size` bytes a rank."""
    overrides = [f"system.sips.count={row.ranks}"]
    topology = load_topology(row.machine, overrides).topology_obj
    operation, ranks = OPERATIONS[row.operation], row.ranks
    whole = size * ranks if operation.blocks == "ranks" else size
    blocks = {"one": 1, "ranks": ranks, "pairs": ranks}[operation.blocks]
    sizes: tuple[object, ...] = (whole // blocks // float32.itemsize,) * blocks
    if operation.blocks == "pairs":
        sizes = (sizes,) * ranks
    chosen = chosen_for(row, topology, whole)
    shape = CollectiveShape(chosen, row.operation, tuple(range(ranks)), sizes, float32)
    engine = GraphEngine(topology, enable_data=False)
    model = CollectiveModel(engine)
    reduction = Reduction("sum", "add") if operation.reduces else None
    collective = Collective(model, model.prepare(shape), reduction)
    rng, memory, commands = random.Random(ranks), list[Storage](), []
    rows = operation.sizes(sizes, ranks)[0].tolist()
    for rank in range(ranks):
        views = []
        for taken in (operation.given(rank, ranks, 0), operation.taken(rank, ranks, 0)):
            count = sum(rows[block] for block in taken)
            nbytes = max(count, 1) * float32.itemsize
            memory.append(Storage(engine.devices[rank].hbm, nbytes, "buffer", None))
            views.append(View(memory[-1].buffer, float32, (count,), (1,), 0))
        start = rng.randrange(SKEW_PS) if row.skew else 0
        host = Host(engine.loop, rank, engine.rank_owner(rank), start, 1024)
        work = collective.join(rank, views[:1], views[1:])
        commands.append(Command(row.operation, "collective", host, Stream("s", rank), work))
        engine.submit(commands[-1])
    engine.loop.run()
    return [command.done.time for command in commands]


def cold(row: Row) -> float:
    """Returns the seconds of CPU time of a collective, with everything found anew."""
    caches.clear()
    begin = time.process_time()
    ends(row, SIZE)
    return time.process_time() - begin


def check(row: Row) -> None:
    """Asserts that a small collective ends at the same picosecond without skips."""
    size = SIZE >> 6
    skipped = ends(row, size)
    with mock.patch.multiple(replay, LONG=NEVER, MANY=NEVER):
        assert skipped == ends(row, size), row


def main() -> None:
    table: list[list[object]] = []
    for row in ROWS:
        if row.ranks == 8:
            check(row)
        seconds = min(cold(row) for _ in range(REPEATS))
        verdict = "" if row.limit is None else _measure.verdict(seconds, row.limit, at_least=False)
        what = f"{row.operation}, {row.ranks} ranks of {row.machine}"
        what += f", {row.algorithm}" if row.algorithm else ""
        what += ", unequal starts" if row.skew else ""
        table.append([what, row.before, f"{seconds:.2f} s", verdict])
    _measure.show("1 GiB, data off, cold, CPU time", ["", "before", "kernbench", "target"], table)


if __name__ == "__main__":
    main()
