"""An 8-rank all-reduce of 16 MiB a rank with data: the ring in bare numpy, then kernbench.

Bare numpy is 2 (N - 1) steps of contiguous S/N pieces, `np.add(out=)` and `np.copyto`, into arrays
that exist already; it predicts no time. A cold run of kernbench has start times that were never
seen before; a warm one repeats those of the run before.
"""

from functools import partial

import _measure
import numpy as np
from _allreduce import AllReduce, ring

from kernbench.topology import load_topology

RANKS = 8
COUNT = (16 << 20) // 4
REPEATS = 9
TARGET = 1.5

Buffers = list[np.ndarray[tuple[int], np.dtype[np.float32]]]


def bare(buffers: Buffers) -> None:
    """Sums the buffers in place, around a ring."""
    n = len(buffers)
    chunks = [buffer.reshape(n, -1) for buffer in buffers]
    for step in range(n - 1):
        for rank in range(n):
            chunk, after = (rank - step) % n, (rank + 1) % n
            np.add(chunks[after][chunk], chunks[rank][chunk], out=chunks[after][chunk])
    for step in range(n - 1):
        for rank in range(n):
            chunk, after = (rank + 1 - step) % n, (rank + 1) % n
            np.copyto(chunks[after][chunk], chunks[rank][chunk])


def main() -> None:
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(COUNT, np.float32) for _ in range(RANKS)]
    by_hand, simulated = ([values.copy() for values in inputs] for _ in range(2))
    machine = AllReduce(load_topology("sip8").topology_obj, ring(), RANKS, COUNT, simulated)

    def reset(buffers: Buffers) -> None:
        for buffer, values in zip(buffers, inputs, strict=True):
            np.copyto(buffer, values)

    peer: list[float] = []
    cold: list[float] = []
    warm: list[float] = []
    for repeat in range(REPEATS):
        starts = [(repeat + 1) * rank * 1000 for rank in range(RANKS)]
        for times, buffers in ((peer, by_hand), (cold, simulated), (warm, simulated)):
            reset(buffers)
            if times is not peer:
                machine.fill(simulated)
            run = partial(bare, by_hand) if times is peer else partial(machine.run, starts)
            times.append(_measure.seconds(run))
        for rank, theirs in enumerate(by_hand):
            # The order of additions is that of the ring in both, so every bit agrees.
            assert np.array_equal(machine.values(rank), theirs)

    def row(state: str, times: list[float]) -> list[object]:
        ratio = min(times) / min(peer)
        return [
            state,
            f"{min(peer) * 1e3:.1f}",
            f"{min(times) * 1e3:.1f}",
            f"{ratio:.2f}x",
            _measure.verdict(ratio, TARGET, at_least=False),
        ]

    _measure.show(
        f"All-reduce of {COUNT * 4 >> 20} MiB on each of {RANKS} ranks, data on",
        ["start times", "numpy ms", "kernbench ms", "ratio", "target"],
        [row("cold", cold), row("warm", warm)],
    )


if __name__ == "__main__":
    main()
