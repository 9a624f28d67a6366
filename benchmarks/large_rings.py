"""Rings of 512 and 4 096 ranks without data: what a message costs, and what the network takes.

SimPy's part is a message of the 64-rank ring of `ring_vs_simpy.py`, measured in the same run and
checked to end at the same picosecond on every rank: a ring of 512 takes it three minutes.

On a machine whose engines take no time, a ring all-reduce is its network time: `2 (N - 1)` steps of
a chunk through a link. That is asserted.
"""

from fractions import Fraction

import _measure
from _allreduce import AllReduce, ring
from _simpy_ring import Ring
from ring_vs_simpy import simpy_model, unequal_starts

from kernbench import caches
from kernbench.ccl.config import Chosen
from kernbench.memory.dtypes import float32
from kernbench.topology import Topology, load_topology

PIECES = 4
REPEATS = 3
SIMPY_RANKS = 64
ASTRA_SIM = "76 s, 5.4 GiB"  # its analytical backend, on another machine of 2 cores
INSTANT = [
    "system.sip.collective_launch=0 ns",
    "system.sip.cube.hbm={capacity: 8 GiB, bandwidth: 1000 TB/s, latency: 0 ns}",
    "system.sip.pe.tcm={capacity: 64 MiB, bandwidth: 1000 TB/s, latency: 0 ns}",
    "system.sip.pe.dma=1000 TB/s",
    "system.sip.pe.issue=0 ns",
    "system.sip.pe.math=1000 TFLOP/s",
]


def machine(ranks: int, *overrides: str) -> Topology:
    return load_topology("ring1024", [f"system.sips.count={ranks}", *overrides]).topology_obj


def elements(ranks: int, chosen: Chosen) -> int:
    return ranks * PIECES * chosen.queue.slot_size // float32.itemsize


def cold(topology: Topology, ranks: int, count: int, seed: int) -> float:
    """Returns the seconds of one run: a plan recorded anew, starts that were never seen."""
    starts = unequal_starts(seed, ranks)

    def run() -> None:
        caches.clear()
        AllReduce(topology, ring(), ranks, count).run(starts)

    return _measure.seconds(run)


def simpy_seconds_a_message() -> float:
    chosen = ring()
    count = elements(SIMPY_RANKS, chosen)
    reduce = AllReduce(machine(SIMPY_RANKS), chosen, SIMPY_RANKS, count)
    model, ends = simpy_model(reduce, chosen), list[list[int]]()
    starts = unequal_starts(0, SIMPY_RANKS)
    time = _measure.seconds(lambda: ends.append(Ring(model, starts).run()))
    assert ends == [reduce.run(starts)]
    return time / (SIMPY_RANKS * 2 * (SIMPY_RANKS - 1) * PIECES)


def network_time(ranks: int) -> tuple[float, int]:
    """Returns the wall seconds of a ring whose engines take no time, and its simulated time."""
    topology, chosen = machine(ranks, *INSTANT), ring()
    count = ranks * chosen.queue.slot_size // float32.itemsize
    ends: list[list[int]] = []

    def run() -> None:
        caches.clear()
        ends.append(AllReduce(topology, chosen, ranks, count).run([0] * ranks))

    wall = min(_measure.seconds(run) for _ in range(REPEATS))
    link = topology.machine.system.sips.network
    chunk = Fraction(chosen.queue.slot_size * 10**12, link.bandwidth.per_second)
    formula = 2 * (ranks - 1) * (chunk + link.latency)
    end = max(ends[0])
    # Rounding up, and engines that are only nearly instant, may cost each step tens of picoseconds.
    assert formula <= end <= formula + 2 * (ranks - 1) * 64, (float(formula), end)
    return wall, end


def main() -> None:
    rows: list[list[object]] = []
    theirs = min(simpy_seconds_a_message() for _ in range(REPEATS))
    ranks = 512
    topology, count = machine(ranks), elements(ranks, ring())
    messages = ranks * 2 * (ranks - 1) * PIECES
    ours = min(cold(topology, ranks, count, seed) for seed in range(REPEATS)) / messages
    rows.append(
        [
            f"all-reduce of {ranks} ranks, {messages} messages",
            f"SimPy {theirs * 1e6:.0f} us/message",
            f"{ours * 1e6:.3f} us/message",
            f"{theirs / ours:.0f}x",
            _measure.verdict(theirs / ours, 1000, at_least=True),
        ]
    )
    ranks = 4096
    topology, count = machine(ranks), ranks * ring().queue.slot_size // float32.itemsize
    wall = min(cold(topology, ranks, count, seed) for seed in range(REPEATS))
    verdict = _measure.verdict(wall, 1, at_least=False)
    rows.append(
        [
            f"all-reduce of {ranks} ranks, unequal starts",
            f"ASTRA-sim {ASTRA_SIM}",
            f"{wall:.2f} s",
            "",
            verdict,
        ]
    )
    wall, end = network_time(ranks)
    rows.append(
        [
            f"the same, engines instant: {end / 1e9:.3f} ms as 2(N-1)(chunk/bw+lat)",
            f"ASTRA-sim {ASTRA_SIM}",
            f"{wall:.2f} s",
            "",
            _measure.verdict(wall, 1, at_least=False),
        ]
    )
    _measure.show("Large rings, data off, cold", ["", "peer", "kernbench", "ratio", "target"], rows)


if __name__ == "__main__":
    main()
