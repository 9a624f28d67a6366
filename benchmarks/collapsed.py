"""What runs cost in which one rank stands for all that do the same (`--collapse exact`, ADR 0071).

Each row runs in a process of its own; CPU seconds and the largest resident memory are the whole
process's, imports apart. `python benchmarks/collapsed.py all` runs the rows that take minutes, too.
"""

import resource
import subprocess
import sys
import time
from collections.abc import Callable

from kernbench import torch
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.torch import distributed as dist


def alone(ranks: int, collapse: str, algorithm: str = "ring", *network: str) -> None:
    """An all-reduce of 16 elements of each rank."""
    spec = RunSpec(
        topology="ring1024",
        overrides=(f"system.sips.count={ranks}", f"defaults.algorithm={algorithm}", *network),
        data=False,
        collapse="exact" if collapse == "exact" else "off",
    )

    def worker(rank: int) -> None:
        del rank
        dist.init_process_group("nccl")
        dist.all_reduce(torch.empty(16 * ranks, device="cuda"))

    with RuntimeContext(spec) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=ranks)


def step(ranks: int, collapse: str, *flags: str) -> None:
    """A step of `benches/cluster.py`."""
    import benches.cluster

    spec = RunSpec(
        topology="h200x8_x4_nodes",
        overrides=(f"system.sips.count={ranks}",),
        data=False,
        collapse="exact" if collapse == "exact" else "off",
        arguments=("--ranks", str(ranks), *flags),
    )
    with RuntimeContext(spec, quiet=True) as ctx:
        benches.cluster.run(ctx)


_70B = ("--layers", "14", "--tp", "8", "--pp", "8", "--microbatches", "8", "--sequence", "4096")
_405B = ("--model", "llama3-405b", "--tp", "8", "--pp", "16", "--microbatches", "16")

_LATE = ("ring", "system.sips.changed=[{which: [5], sip: {launch: 30 us}}]")
"""One rank of a ring begins 30 us later than the others, and is a class of its own."""

_SWITCH = ("halving_doubling", "system.sips.network.kind=switch")

Row = tuple[str, bool, Callable[..., None], tuple[object, ...]]

ROWS: tuple[Row, ...] = (
    ("all-reduce on a ring of 16,384", False, alone, (16_384, "exact")),
    ("all-reduce on a ring of 100,000", False, alone, (100_000, "exact")),
    ("all-reduce on a switch of 131,072", False, alone, (131_072, "exact", *_SWITCH)),
    ("ring of 16,384, one rank late", False, alone, (16_384, "exact", *_LATE)),
    ("ring of 100,000, one rank late", False, alone, (100_000, "exact", *_LATE)),
    ("70B of 14 layers on 1,024 ranks", False, step, (1024, "exact", *_70B)),
    ("the same, every rank", True, step, (1024, "off", *_70B)),
    ("405B of 126 layers on 16,384 ranks", True, step, (16_384, "exact", *_405B)),
    ("405B of 126 layers on 100,352 ranks", True, step, (100_352, "exact", *_405B)),
)


def main() -> None:
    """Runs a row, or all of them."""
    which = sys.argv[1:]
    if which and which != ["all"]:
        _, _, run, arguments = ROWS[int(which[0])]
        before = time.process_time()
        run(*arguments)
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(f"{time.process_time() - before:8.2f} s {most:8} MiB")
        return
    for number, (name, long, _, _) in enumerate(ROWS):
        if not long or which:
            print(f"{name:40}", end="", flush=True)
            subprocess.run([sys.executable, __file__, str(number)], check=True)


if __name__ == "__main__":
    main()
