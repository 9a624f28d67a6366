"""Small collectives on a torus, whose links several algorithms share: 100 all-reduces of 4 KiB.

The peer is a ring, whose links are its own, in turns with what `auto` chooses. The first time of
each is in a process that has chosen nothing yet.
"""

import time

import _measure

from kernbench import torch
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.torch import distributed as dist

MACHINE, RANKS, COUNT, REPEATS = "torus4x4", 16, 100, 5
MOST_SECONDS = 0.1


def seconds(ctx: RuntimeContext) -> float:
    """Returns the CPU seconds of a spawn whose ranks do all-reduces one after the other."""

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        tensor = torch.empty(1024, device="cuda")
        for _ in range(COUNT):
            dist.all_reduce(tensor)
        torch.cuda.synchronize()
        dist.destroy_process_group()

    return _measure.seconds(
        lambda: ctx.multiprocessing.spawn(worker, nprocs=RANKS), time.process_time
    )


def main() -> None:
    found: dict[str, list[float]] = {"ring": [], "auto": []}
    for _ in range(REPEATS):
        for name, times in found.items():
            given = (f"defaults.algorithm={name}",)
            spec = RunSpec(topology=MACHINE, overrides=given, data=False)
            with RuntimeContext(spec, quiet=True) as ctx:
                times.append(seconds(ctx))
    ring, auto = (min(times) for times in found.values())
    first = found["auto"][0]
    _measure.show(
        f"{COUNT} all-reduces of 4 KiB, {RANKS} ranks of {MACHINE}, CPU time",
        ["algorithm", "ms", "over the ring's", "asked"],
        [
            ["ring", f"{ring * 1e3:.0f}", "", ""],
            ["auto, the first time", f"{first * 1e3:.0f}", f"{first / ring:.1f}x", ""],
            [
                "auto",
                f"{auto * 1e3:.0f}",
                f"{auto / ring:.1f}x",
                _measure.verdict(auto, MOST_SECONDS, at_least=False),
            ],
        ],
    )


if __name__ == "__main__":
    main()
