"""Collectives and messages on `h200x8`: microseconds that NCCL was measured at, and predicted ones.

The reference cells were measured on 2026-11-20 on one host with 8 NVIDIA H200, all pairs through
NVSwitch (PyTorch 2.11.0, CUDA 13.0, NCCL 2.28.9 with NVLS off): bfloat16, CUDA events, mean over
ranks, medians of repeats; up to 4 MiB 20 calls from a CUDA graph, above back to back. Sizes are as
nccl-tests counts them. `all_to_all` among 2 and 4 was measured so on 2026-11-22, on another host
with 4 H200. `ring_exchange` is a send to the next and a receive from the previous rank in one
`batch_isend_irecv`; `incast` one from all other ranks to rank 0. Smaller cells of `send` and
`incast` are left out: they were called eagerly and are bound by the host's dispatch.

Another table of the kind may be named: CSV with columns `op`, `n`, `bytes` and `us` (and `algo`, of
which only `default` is read).
"""

import csv
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _measure

from kernbench import torch
from kernbench.testing import Kernbench

dist = torch.distributed
MIB = 1 << 20
ITERATIONS = 4
LARGE, SMALL = 0.1, 0.2

Cell = tuple[str, int, int, float]
Call = Callable[[], object]

SIZES = [1 << (10 + 2 * step) for step in range(11)]
"""Bytes, 1 KiB to 1 GiB."""

# The first size, then microseconds from there on.
MEASURED = {
    ("all_reduce", 2): (0, [11.5, 11.7, 12.2, 12.2, 13.6, 18.9, 36.3, 76.7, 248.9, 899.5, 3238]),
    ("all_gather", 2): (0, [10.6, 10.1, 11.1, 11.1, 11.9, 15.9, 29.7, 56.8, 160.4, 557.0, 2022]),
    ("reduce_scatter", 2): (0, [9.9, 10.0, 10.4, 10.7, 11.6, 14.6, 26.3, 55.3, 168.9, 599.7, 2032]),
    ("ring_exchange", 2): (0, [12.1, 12.2, 13.4, 13.7, 15.4, 20.5, 34.9, 98.7, 258.6, 900.2, 3014]),
    ("all_reduce", 8): (0, [20.6, 20.7, 21.6, 23.4, 23.9, 29.9, 51.9, 116.0, 371.6, 1360, 5240]),
    ("all_gather", 8): (0, [15.4, 15.4, 16.3, 18.4, 18.5, 21.9, 37.4, 68.2, 208.4, 732.3, 2748]),
    ("reduce_scatter", 8): (
        0,
        [15.4, 15.4, 16.0, 16.7, 17.1, 19.1, 34.8, 70.9, 204.4, 728.0, 2756],
    ),
    ("all_to_all", 8): (0, [12.4, 12.5, 12.6, 13.8, 14.5, 20.1, 43.3, 75.5, 221.3, 770.9, 2930]),
    ("all_to_all", 2): (0, [11.0, 11.1, 12.5, 12.8, 12.9, 17.4, 24.9, 48.9, 137.6, 472.0, 1615]),
    ("all_to_all", 4): (0, [11.1, 11.1, 11.7, 12.8, 13.3, 18.7, 27.6, 87.0, 189.7, 665.4, 2389]),
    ("ring_exchange", 8): (
        0,
        [13.4, 14.0, 14.8, 16.3, 24.2, 29.8, 65.8, 225.2, 830.6, 909.3, 3010],
    ),
    ("send", 8): (7, [132.3, 521.4, 759.5, 2917]),
    ("incast", 8): (7, [314.6, 1254, 4981]),
}

REFERENCE: list[Cell] = [
    (operation, ranks, nbytes, us)
    for (operation, ranks), (first, row) in MEASURED.items()
    for nbytes, us in zip(SIZES[first:], row, strict=False)
]


def batch(messages: list[tuple[Any, Any, int]]) -> Call:
    """Returns what sends and receives messages together, each a function, a tensor and a peer."""

    def call() -> None:
        for work in dist.batch_isend_irecv([dist.P2POp(*message) for message in messages]):
            work.wait()

    return call


def prepare(operation: str, rank: int, ranks: int, nbytes: int) -> Call:
    """Returns what a rank calls again and again."""

    def tensor(size: int) -> Any:
        return torch.empty(size // 2, dtype=torch.bfloat16, device="cuda")

    if operation == "all_reduce":
        x = tensor(nbytes)
        return lambda: dist.all_reduce(x)
    if operation == "all_gather":
        x, y = tensor(nbytes // ranks), tensor(nbytes)
        return lambda: dist.all_gather_into_tensor(y, x)
    if operation == "reduce_scatter":
        x, y = tensor(nbytes), tensor(nbytes // ranks)
        return lambda: dist.reduce_scatter_tensor(y, x)
    if operation == "all_to_all":
        x, y = tensor(nbytes), tensor(nbytes)
        return lambda: dist.all_to_all_single(y, x)
    x, y = tensor(nbytes), tensor(nbytes)
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    if operation == "ring_exchange":
        return batch([(dist.isend, x, after), (dist.irecv, y, before)])
    if operation == "incast":
        arriving = [(dist.irecv, tensor(nbytes), source) for source in range(1, ranks)]
        return batch([(dist.isend, x, 0)] if rank else arriving)
    if operation != "send":
        raise SystemExit(f"no such operation: {operation}")
    return {0: lambda: dist.send(x, 1), 1: lambda: dist.recv(x, 0)}.get(rank, lambda: None)


def predicted(operation: str, ranks: int, nbytes: int) -> float:
    """Returns the microseconds of a call on the devices, its dispatch hidden."""
    times = []

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        call = prepare(operation, rank, ranks, nbytes)
        busy = torch.empty(8192, 8192, dtype=torch.bfloat16, device="cuda")
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        call()
        dist.barrier()
        torch.matmul(busy, busy)  # until its end, the host has issued all that follows
        start.record()
        for _ in range(ITERATIONS):
            call()
        end.record()
        end.synchronize()
        times.append(1000 * start.elapsed_time(end) / ITERATIONS)

    Kernbench().spawn(worker, nprocs=ranks, topology="h200x8", data=False)
    return max(times)


def read(path: Path) -> list[Cell]:
    """Returns the cells of a table."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            (row["op"], int(row["n"]), int(row["bytes"]), float(row["us"]))
            for row in csv.DictReader(file)
            if row.get("algo", "default") == "default"
        ]


def size(nbytes: int) -> str:
    """Returns a size as people read it."""
    return f"{nbytes // MIB} MiB" if nbytes >= MIB else f"{nbytes >> 10} KiB"


def main() -> None:
    cells = read(Path(sys.argv[1])) if len(sys.argv) > 1 else REFERENCE
    rows, within = [], 0
    for operation, ranks, nbytes, us in cells:
        ours = predicted(operation, ranks, nbytes)
        error, limit = ours / us - 1, LARGE if nbytes >= 64 * MIB else SMALL
        within += abs(error) <= limit
        verdict = f"{limit:.0%} {'yes' if abs(error) <= limit else 'NO'}"
        rows.append(
            [operation, ranks, size(nbytes), f"{us:.1f}", f"{ours:.1f}", f"{error:+.0%}", verdict]
        )
    header = ["", "ranks", "size", "measured", "predicted", "difference", "within"]
    _measure.show("Collectives on 8 H200, microseconds", header, rows)
    print(f"{within} of {len(rows)} within")


if __name__ == "__main__":
    main()
