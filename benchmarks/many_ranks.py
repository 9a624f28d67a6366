"""What a rank costs in runs of 64 to 4 096 ranks, and a hierarchical all-reduce of 16 384.

Each row runs in processes of its own, one for a number of ranks: CPU seconds and the growth of the
largest resident memory belong to that run alone, imports and the machine's file apart. What takes
longer than the row's limit is stopped and shown so. Data is off.

`python benchmarks/many_ranks.py ROW RANKS` runs one case and prints its figures.
"""

import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import _measure

from kernbench import torch
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.torch import distributed as dist

COUNTS = (64, 512, 1024, 4096)
REPEATS = 3
LIMIT_S = 240
ELEMENTS = 1024
MESSAGE = 64


def all_reduce(rank: int) -> None:
    dist.init_process_group("nccl")
    dist.all_reduce(torch.empty(ELEMENTS, device="cuda"))


def barrier(rank: int) -> None:
    dist.init_process_group("nccl")
    dist.barrier()


def exchange(rank: int) -> None:
    """Sends to the next rank and receives from the one before."""
    ranks = dist.get_world_size()
    out, into = (torch.empty(MESSAGE, device="cuda") for _ in range(2))
    operations = [
        dist.P2POp(dist.isend, out, (rank + 1) % ranks),
        dist.P2POp(dist.irecv, into, (rank - 1) % ranks),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def messages(rank: int) -> None:
    dist.init_process_group("nccl")
    exchange(rank)


def both(rank: int) -> None:
    all_reduce(rank)
    exchange(rank)


def ring(ranks: int) -> RunSpec:
    """A ring of as many SIPs as there are ranks."""
    return RunSpec(topology="ring1024", overrides=(f"system.sips.count={ranks}",), data=False)


def part_of_ring(ranks: int) -> RunSpec:
    """A ring of twice as many SIPs, so that the last rank is as far from the first as can be."""
    return RunSpec(topology="ring1024", overrides=(f"system.sips.count={2 * ranks}",), data=False)


def torus(ranks: int) -> RunSpec:
    """A square torus; all-reduces go along one dimension, then along the other."""
    side = math.isqrt(ranks)
    overrides = (
        f"system.sips.count={ranks}",
        f"system.sips.network.shape=[{side}, {ranks // side}]",
        "system.sips.network.kind=torus",
        "defaults.algorithm=dimension_wise",
        "algorithms.dimension_wise.channels=1",
    )
    return RunSpec(topology="ring1024", overrides=overrides, data=False)


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        text: What is measured.
        program: What each rank runs.
        machine: The machine for a number of ranks.
        counts: Numbers of ranks; the first is what the others are compared with.
        seconds: Most CPU seconds that are asked for, by number of ranks.
        kib: Most KiB a rank that are asked for, by number of ranks.
    """

    text: str
    program: Callable[[int], None]
    machine: Callable[[int], RunSpec]
    seconds: dict[int, float]
    kib: dict[int, float]
    counts: Sequence[int] = COUNTS


ROWS = {
    "both": Row(
        "all-reduce, then neighbours' messages", both, ring, {1024: 2, 4096: 9}, {4096: 64}
    ),
    "messages": Row("neighbours' messages", messages, ring, {}, {}),
    "all_reduce": Row("all-reduce", all_reduce, ring, {}, {4096: 64}),
    "barrier": Row("barrier on half of a ring", barrier, part_of_ring, {}, {}),
    "torus": Row(
        "all-reduce on a square torus, dimension by dimension",
        all_reduce,
        torus,
        {16384: 30},
        {},
        (64, 1024, 4096, 16384),
    ),
}
RATIO = 1.5
"""Most that a rank may cost of what it costs in a run of the fewest ranks."""


def case(row: Row, ranks: int) -> tuple[float, float]:
    """Returns the CPU seconds of a run and the KiB by which its largest memory grew."""
    with RuntimeContext(
        RunSpec(topology="sip8", data=False)
    ) as ctx:  # what is made at its first use
        ctx.multiprocessing.spawn(row.program, nprocs=8)
    with RuntimeContext(row.machine(ranks)) as ctx:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        begin = time.process_time()
        ctx.multiprocessing.spawn(row.program, nprocs=ranks)
        seconds = time.process_time() - begin
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


def measured(name: str, ranks: int) -> tuple[float, float] | None:
    """Returns the fewest CPU seconds and KiB of some runs; None if a run takes too long."""
    found = []
    for _ in range(REPEATS if ranks <= COUNTS[0] else 1):
        command = [sys.executable, __file__, name, str(ranks)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=True)
        except subprocess.TimeoutExpired:
            return None
        found.append(json.loads(done.stdout))
    return min(one[0] for one in found), min(one[1] for one in found)


def lines(name: str, row: Row) -> list[list[object]]:
    """Returns the lines of a row: one for each number of ranks."""
    found: list[list[object]] = []
    first = None
    for ranks in row.counts:
        figures = measured(name, ranks)
        if figures is None:
            found.append([row.text, ranks, f"not in {LIMIT_S} s", "", "", "", "NO"])
            continue
        seconds, kib = figures
        each = seconds / ranks
        first = each if first is None else first
        wanted = [each / first <= RATIO]
        wanted += [
            seconds <= row.seconds.get(ranks, seconds),
            kib / ranks <= row.kib.get(ranks, kib),
        ]
        verdict = "yes" if all(wanted) else "NO"
        limits = [f"{row.seconds[ranks]:g} s"] if ranks in row.seconds else []
        limits += [f"{row.kib[ranks]:g} KiB"] if ranks in row.kib else []
        found.append(
            [
                row.text,
                ranks,
                f"{seconds:.2f} s",
                f"{each * 1e3:.2f} ms",
                f"{kib / ranks:.0f} KiB",
                f"{each / first:.2f}x",
                ", ".join([f"<= {RATIO:g}x", *limits]) + f" {verdict}",
            ]
        )
    return found


def main(arguments: Sequence[str]) -> None:
    if len(arguments) > 1:
        print(json.dumps(case(ROWS[arguments[0]], int(arguments[1]))))
        return
    table = []
    for name in arguments or ROWS:
        table += lines(name, ROWS[name])
    header = ["", "ranks", "CPU time", "a rank", "memory a rank", "to the first", "target"]
    _measure.show("Many ranks, data off", header, table)


if __name__ == "__main__":
    main(sys.argv[1:])
