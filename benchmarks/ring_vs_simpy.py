"""A 64-rank ring all-reduce without data: the same timing model in SimPy, then in kernbench.

Every run is checked: each rank must end at the same picosecond in both. On shared links two
messages may ask for a link at the very same picosecond; kernbench then serves the lower rank
first, SimPy whichever its event queue turns up. Where the ends differ, the equality is asserted
for a SimPy run that orders such ties by rank (not timed), and the column `ties` says by how much
the timed, idiomatic one differs.

A cold run has start times that were never seen before, on a machine that is made anew, and records
the algorithm's plan anew; a warm one repeats the state of the one before on the same machine.
"""

import random
from functools import partial
from pathlib import Path

import _measure
from _allreduce import AllReduce, ring
from _simpy_ring import Hop, Model, Ring, RingWithOrderedTies

from kernbench import caches
from kernbench.ccl.config import Chosen
from kernbench.ccl.costs import StepCosts
from kernbench.ccl.machine import Machine
from kernbench.memory.dtypes import float32
from kernbench.topology import Topology, load_topology

RANKS = 64
PIECES = 4
MESSAGES = RANKS * 2 * (RANKS - 1) * PIECES
REPEATS = 3
MACHINES = Path(__file__).parent / "machines"


def unequal_starts(seed: int, ranks: int = RANKS) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(5_000_000) for _ in range(ranks)]


def simpy_model(machine: AllReduce, chosen: Chosen) -> Model:
    """Returns the durations of the model, which both have in common."""
    topology = machine.model.engine.topology
    paper = Machine(topology)
    queue, costs = chosen.queue, paper.costs(0)
    step = StepCosts(costs, queue, float32)
    piece = step.times(step.piece)
    paths = [paper.path(rank, (rank + 1) % RANKS, queue) for rank in range(RANKS)]
    return Model(
        launch=topology.machine.system.sip_of(0).collective_launch,
        steps=RANKS - 1,
        pieces=PIECES,
        paths=[
            [
                Hop(hop.link, hop.latency, times.full, times.head, times.tail)
                for hop, times in zip(path.hops, path.times(queue.slot_size), strict=True)
            ]
            for path in paths
        ],
        credit_delays=[path.credit_delay(queue.credit_size) for path in paths],
        slots=queue.n_slots,
        issue=costs.pe.issue,
        port=piece.port,
        dma=piece.dma,
        copy=piece.copy,
        math=piece.math,
        memory_latency=step.memory_latency,
        slot_latency=step.slot_latency,
    )


def compare(name: str, topology: Topology, chosen: Chosen, target: float) -> list[list[object]]:
    count = RANKS * PIECES * chosen.queue.slot_size // float32.itemsize
    machine = AllReduce(topology, chosen, RANKS, count)
    model = simpy_model(machine, chosen)
    ends: dict[str, list[int]] = {}
    peer, cold, warm, ties = [], [], [], 0.0

    def in_simpy(starts: list[int]) -> None:
        ends["simpy"] = Ring(model, starts).run()

    def in_kernbench(starts: list[int]) -> None:
        caches.clear()
        ends["kernbench"] = AllReduce(topology, chosen, RANKS, count).run(starts)

    def again(starts: list[int]) -> None:
        ends["warm"] = machine.run(starts)

    for seed in range(REPEATS):
        starts = unequal_starts(seed)
        peer.append(_measure.seconds(partial(in_simpy, starts)))
        cold.append(_measure.seconds(partial(in_kernbench, starts)))
        machine.run(starts)
        warm.append(_measure.seconds(partial(again, starts)))
        assert ends["kernbench"] == ends["warm"]
        if ends["kernbench"] != ends["simpy"]:
            assert ends["kernbench"] == RingWithOrderedTies(model, starts).run()
        off = [abs(a - b) for a, b in zip(ends["simpy"], ends["kernbench"], strict=True)]
        ties = max(ties, max(off) / max(ends["kernbench"]))

    def row(state: str, times: list[float]) -> list[object]:
        ratio = min(peer) / min(times)
        return [
            f"{name}, {state}",
            f"{min(peer) / MESSAGES * 1e6:.1f}",
            f"{min(times) / MESSAGES * 1e6:.2f}",
            f"{ratio:.1f}x",
            _measure.verdict(ratio, target, at_least=True),
            f"{ties:.1%}",
        ]

    return [row("cold", cold), row("warm", warm)]


def main() -> None:
    private = load_topology("ring1024", [f"system.sips.count={RANKS}"]).topology_obj
    shared = load_topology(MACHINES / "shared64.yaml").topology_obj
    _measure.show(
        f"Ring all-reduce, {RANKS} ranks, {PIECES} messages a step, {MESSAGES} in all, data off",
        ["links", "SimPy us/msg", "kernbench us/msg", "ratio", "target", "ties"],
        compare("private", private, ring(), 30) + compare("shared by 2", shared, ring(), 8),
    )


if __name__ == "__main__":
    main()
