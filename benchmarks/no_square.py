"""What must not grow with the square of the ranks: choices, groups, and one large all-reduce.

Each case runs in a process of its own: CPU seconds and, of the all-reduce, the largest resident
memory. `python benchmarks/no_square.py CASE RANKS` runs one and prints its figures.
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isqrt

import _measure
from making_groups import mesh, model_parallel, subgroups

from kernbench import torch
from kernbench.ccl.tuner import Choices
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology import load_topology
from kernbench.torch import distributed as dist

SIZE = 4 << 20


def choice(machine: str, operation: str, ranks: int, *overrides: str) -> float:
    """Returns the seconds in which an algorithm is chosen for all ranks of a machine."""
    small = load_topology("sip8").topology_obj
    Choices(None, (), small).choose(operation, SIZE, range(8))  # what is made at its first use
    topology = load_topology(machine, [f"system.sips.count={ranks}", *overrides]).topology_obj
    choices = Choices(None, (), topology)
    begin = time.process_time()
    choices.choose(operation, SIZE, tuple(range(ranks)))
    return time.process_time() - begin


def torus(operation: str, ranks: int) -> float:
    side = isqrt(ranks)
    return choice(
        "ring1024",
        operation,
        ranks,
        "system.sips.network.kind=torus",
        f"system.sips.network.shape=[{side}, {ranks // side}]",
        "system.algorithms=[ring,ring_two_way,dimension_wise]",
    )


def run(program: Callable[[int], None], ranks: int) -> float:
    """Returns the seconds of a program of a ring of ranks."""
    with RuntimeContext(RunSpec(topology="sip8", data=False)) as ctx:
        ctx.multiprocessing.spawn(program, nprocs=8)
    overrides = (f"system.sips.count={ranks}",)
    with RuntimeContext(RunSpec(topology="ring1024", overrides=overrides, data=False)) as ctx:
        begin = time.process_time()
        ctx.multiprocessing.spawn(program, nprocs=ranks)
        return time.process_time() - begin


def all_reduce(rank: int) -> None:
    dist.init_process_group("nccl")
    dist.all_reduce(torch.empty(SIZE // 4, device="cuda"))


def groups(make: Callable[[], None], ranks: int) -> float:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        make()
        dist.destroy_process_group()

    return run(worker, ranks)


@dataclass(frozen=True)
class Row:
    """A case: what it measures, and by number of ranks the most seconds and MB asked for."""

    text: str
    seconds: Callable[[int], float]
    asked: dict[int, float]
    mb: float | None = None


NODES = "h200x8_x4_nodes"
SWITCH = (
    "system.sips.network.kind=switch",
    "system.algorithms=[ring, ring_two_way, halving_doubling, double_binary_tree, two_shot]",
)
ROWS = {
    "ring": Row(
        "choice, all-reduce on a ring",
        lambda ranks: choice("ring1024", "all_reduce", ranks),
        {1024: 0.1, 16384: 0.1, 131072: 0.1},
    ),
    "torus": Row(
        "choice, all-reduce on a square torus",
        lambda ranks: torus("all_reduce", ranks),
        {1024: 0.1, 16384: 0.1},
    ),
    "switch": Row(
        "choice, all-reduce on a switch",
        lambda ranks: choice("ring1024", "all_reduce", ranks, *SWITCH),
        {1024: 0.1, 16384: 0.1},
    ),
    "nodes": Row(
        "choice, all-reduce on nodes of 8",
        lambda ranks: choice(NODES, "all_reduce", ranks),
        {1024: 0.1, 4096: 0.1},
    ),
    "nodes_broadcast": Row(
        "choice, broadcast on nodes of 8",
        lambda ranks: choice(NODES, "broadcast", ranks),
        {1024: 0.1, 4096: 0.1},
    ),
    "subgroups": Row(
        "new_subgroups(8)", lambda ranks: groups(subgroups, ranks), {512: 0.3, 4096: 2.4}
    ),
    "mesh": Row("init_device_mesh", lambda ranks: groups(mesh, ranks), {512: 0.3, 4096: 2.4}),
    "megatron": Row(
        "initialize_model_parallel(8)",
        lambda ranks: groups(model_parallel, ranks),
        {512: 0.3, 4096: 2.4},
    ),
    "all_reduce": Row(
        "all-reduce of 4 MiB on a ring, live", lambda ranks: run(all_reduce, ranks), {16384: 8}, 400
    ),
}


def main(arguments: Sequence[str]) -> None:
    if len(arguments) > 1:
        seconds = ROWS[arguments[0]].seconds(int(arguments[1]))
        print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
        return
    table = []
    for name in arguments or ROWS:
        row = ROWS[name]
        for ranks, asked in row.asked.items():
            command = [sys.executable, __file__, name, str(ranks)]
            done = subprocess.run(command, capture_output=True, check=True)
            seconds, mb = json.loads(done.stdout)
            verdict = _measure.verdict(seconds, asked, at_least=False)
            cells = [row.text, str(ranks), f"{seconds:.2f} s", verdict]
            if row.mb is not None:
                cells += [f"{mb:.0f} MB", _measure.verdict(mb, row.mb, at_least=False)]
            table.append(cells + [""] * (6 - len(cells)))
    header = ["", "ranks", "CPU time", "target", "memory", "target"]
    _measure.show("No square, data off", header, table)


if __name__ == "__main__":
    main(sys.argv[1:])
