"""Collectives in flight: what one costs, however many are issued before the first is waited for."""

import time

import _measure

from kernbench import torch
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.torch import distributed as dist

RANKS = 8
COUNTS = (250, 2000)
REPEATS = 3
MOST_GROWTH = 1.3  # the cost of one among the most over that of one among the fewest


def seconds(count: int) -> float:
    """Returns the CPU seconds of a spawn whose ranks issue all-reduces, then wait for each."""

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        tensors = [torch.empty(64, device="cuda") for _ in range(count)]
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            assert work is not None
            work.wait()
        dist.destroy_process_group()

    with RuntimeContext(RunSpec(topology="sip8", data=False)) as ctx:
        return min(
            _measure.seconds(
                lambda: ctx.multiprocessing.spawn(worker, nprocs=RANKS), time.process_time
            )
            for _ in range(REPEATS)
        )


def main() -> None:
    times = [seconds(count) for count in COUNTS]
    each = [time / count / RANKS for time, count in zip(times, COUNTS, strict=True)]
    rows = [
        [f"{count}", f"{time:.2f}", f"{cost * 1e6:.0f}", f"{cost / each[0]:.1f}x"]
        for count, time, cost in zip(COUNTS, times, each, strict=True)
    ]
    rows[-1].append(_measure.verdict(each[-1] / each[0], MOST_GROWTH, at_least=False))
    rows[0].append("")
    header = ["in flight", "seconds", "us a call", "growth", "linear"]
    _measure.show(f"All-reduces of {RANKS} ranks in flight, CPU time", header, rows)


if __name__ == "__main__":
    main()
