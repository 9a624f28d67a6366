"""Collectives between nodes of 8 GPUs, a 400 Gb/s NIC each: published and predicted bandwidths.

The published ones are of nccl-tests on nodes of 8 H100 or H200, as their sources give them; nobody
here measured them, fabrics and versions differ, and the machine is not fitted to them. Sizes are
8 GiB or more unless a source says otherwise; predictions are for 8 GiB. With NVLink SHARP (NVLS),
which is NCCL's default there and is not modelled, an all-reduce gets more than the NICs carry.
"""

from dataclasses import dataclass
from typing import Any

import _measure

from kernbench import torch
from kernbench.testing import Kernbench

dist = torch.distributed
GIB = 1 << 30
NODE = 8

NCCL_TESTS, NCCL = "github.com/NVIDIA/nccl-tests/issues", "github.com/NVIDIA/nccl/issues"
VOLTAGE_PARK = "git.onestrm.cn/aigatech/vpbenchmarking"


@dataclass(frozen=True)
class Row:
    """A published figure.

    Attributes:
        operation: Name in `torch.distributed`.
        nodes: Number of nodes.
        gbps: Published bus bandwidth in GB/s: one, or the ends of a range.
        what: What the figure is.
        source: Where it stands.
    """

    operation: str
    nodes: int
    gbps: tuple[float, ...]
    what: str
    source: str


ROWS = [
    Row("all_reduce", 2, (396,), "at best, rings; an engineer of NVIDIA", f"{NCCL_TESTS}/319"),
    Row("all_reduce", 2, (368, 384), "8 NICs of 46 to 48; the same", f"{NCCL_TESTS}/290"),
    Row(
        "all_reduce",
        2,
        (400, 450),
        "to be expected, NVLS on",
        "saturncloud.io/blog/crusoe-nccl-cluster-validation",
    ),
    Row("all_reduce", 4, (331,), "H100, measured, up to 8 GiB", VOLTAGE_PARK),
    Row("all_gather", 4, (324,), "H100, measured, up to 8 GiB", VOLTAGE_PARK),
    Row("broadcast", 4, (286,), "H100, measured, up to 8 GiB", VOLTAGE_PARK),
    Row("reduce_scatter", 4, (360,), "H100, measured, no size given", f"{NCCL}/1229"),
    Row("reduce_scatter", 8, (345,), "H100, measured, no size given", f"{NCCL}/1229"),
    Row("reduce_scatter", 16, (320,), "H100, measured, no size given", f"{NCCL}/1229"),
]


def bus_factor(operation: str, ranks: int) -> float:
    """Returns bus bandwidth over algorithm bandwidth, as nccl-tests' PERFORMANCE.md has it."""
    share = (ranks - 1) / ranks
    return {"all_reduce": 2 * share, "broadcast": 1.0}.get(operation, share)


def predicted(operation: str, nodes: int, nbytes: int) -> float:
    """Returns the microseconds of a call, with its launch and without its dispatch."""
    ranks, times = NODE * nodes, []

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")

        def tensor(size: int) -> Any:
            return torch.empty(size // 2, dtype=torch.bfloat16, device="cuda")

        whole, part = tensor(nbytes), tensor(nbytes // ranks)
        calls = {
            "all_reduce": lambda: dist.all_reduce(whole),
            "broadcast": lambda: dist.broadcast(whole, 0),
            "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
        }
        busy = torch.empty(8192, 8192, dtype=torch.bfloat16, device="cuda")
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        dist.barrier()
        torch.matmul(busy, busy)  # until its end, the host has issued all that follows
        start.record()
        calls[operation]()
        end.record()
        end.synchronize()
        times.append(1000 * start.elapsed_time(end))

    options = [f"system.sips.count={ranks}"]
    Kernbench().spawn(
        worker, nprocs=ranks, topology="h200x8_x4_nodes", overrides=options, data=False
    )
    return max(times)


def bandwidth(operation: str, nodes: int, nbytes: int) -> float:
    """Returns the predicted bus bandwidth in GB/s."""
    us = predicted(operation, nodes, nbytes)
    return nbytes / us / 1e3 * bus_factor(operation, NODE * nodes)


def main() -> None:
    """Prints the published figures beside those that are predicted."""
    rows = []
    for row in ROWS:
        ours = bandwidth(row.operation, row.nodes, 8 * GIB)
        given = " to ".join(f"{figure:.0f}" for figure in row.gbps)
        near = min(max(ours, row.gbps[0]), row.gbps[-1])
        what = f"{row.operation}, {row.nodes} nodes: {row.what}"
        rows.append([what, given, f"{ours:.0f}", f"{ours / near - 1:+.0%}", row.source])
    header = ["", "published", "predicted", "difference", "source"]
    _measure.show("Bus bandwidth between nodes of 8 GPUs, GB/s", header, rows)


if __name__ == "__main__":
    main()
