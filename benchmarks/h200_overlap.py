"""Collectives beside compute on `h200x8`: microseconds measured and predicted.

The reference cells were measured on 2026-11-20 and 2026-11-22 on 8 and 4 NVIDIA H200 (PyTorch
2.11.0, CUDA 13.0, NCCL 2.28.9 with NVLS off), in bfloat16: some kernels on one stream and some
collectives on NCCL's, both ready at the same instant, while the host runs ahead. `compute` and
`comm` are the spans of each, alone and beside the other, until the last of them ends.

Another table of the kind may be named: CSV with columns `compute`, `compute_calls`, `comm`, `n`,
`bytes`, `comm_calls`, `compute_us`, `comm_us`, `compute_beside_us`, `comm_beside_us`.
"""

import csv
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import _measure

from kernbench import torch
from kernbench.testing import Kernbench

dist = torch.distributed
flash = torch.ops.aten._scaled_dot_product_flash_attention


class Cell(NamedTuple):
    """What runs, and the microseconds of both parts: alone, and beside the other."""

    compute: str
    calls: int
    comm: str
    ranks: int
    nbytes: int
    comm_calls: int
    alone: tuple[float, float]
    beside: tuple[float, float]


GEMM, LARGE = "gemm 4096^3 bf16", "gemm 8192^3 bf16"
FULL, CAUSAL = "flash2 h32 s4096 d128 full", "flash2 h32 s8192 d128 causal"
MIB = 1 << 20

REFERENCE = [
    Cell(LARGE, 4, "all_reduce", 8, 256 * MIB, 1, (6498.0, 1400.6), (6878.1, 0.0)),
    Cell(GEMM, 12, "all_reduce", 4, 16 * MIB, 16, (2081.3, 1515.4), (2538.6, 3026.2)),
    Cell(GEMM, 12, "reduce_scatter", 4, 16 * MIB, 16, (2113.0, 968.9), (2483.2, 2762.9)),
    Cell(LARGE, 2, "all_reduce", 4, 64 * MIB, 4, (2808.1, 1315.2), (2887.9, 3849.6)),
    Cell(LARGE, 2, "all_gather", 4, 64 * MIB, 4, (2811.4, 783.1), (2820.6, 3337.3)),
    Cell(GEMM, 12, "reduce_scatter", 4, 64 * MIB, 4, (2110.5, 760.2), (2390.1, 1084.3)),
    Cell(GEMM, 12, "all_reduce", 4, 256 * MIB, 1, (2111.1, 1187.1), (2504.8, 1488.0)),
    Cell(GEMM, 12, "all_gather", 4, 256 * MIB, 1, (2157.2, 683.1), (2364.7, 931.2)),
    Cell(FULL, 4, "ring_exchange", 4, 64 * MIB, 4, (3127.8, 1700.3), (3188.8, 3596.7)),
    Cell(CAUSAL, 2, "ring_exchange", 4, 64 * MIB, 4, (3423.5, 1720.8), (3439.7, 4474.7)),
    Cell(FULL, 4, "ring_exchange", 4, 256 * MIB, 1, (3092.4, 892.5), (3210.9, 1676.1)),
    Cell(CAUSAL, 2, "ring_exchange", 4, 256 * MIB, 1, (3433.4, 893.7), (3515.6, 2449.1)),
]
"""The first one was measured as a whole; its collective ends first."""


def compute_of(text: str) -> Callable[[], Any]:
    """Returns the kernel of a cell, such as `gemm 4096^3 bf16`."""
    words = text.split()
    if words[0] == "gemm":
        side = int(words[1].split("^")[0])
        a = torch.empty(side, side, dtype=torch.bfloat16, device="cuda")
        return lambda: torch.matmul(a, a.t())
    heads, tokens, width = (int(word[1:]) for word in words[1:4])
    q = torch.empty(1, heads, tokens, width, dtype=torch.bfloat16, device="cuda")
    return lambda: flash(q, q, q, 0.0, words[4] == "causal")


def comm_of(name: str, rank: int, ranks: int, nbytes: int) -> Callable[[], list[Any]]:
    """Returns what starts a collective, whose larger buffer has so many bytes, or a message."""
    whole = torch.empty(nbytes // 2, dtype=torch.bfloat16, device="cuda")
    part = torch.empty(nbytes // 2 // ranks, dtype=torch.bfloat16, device="cuda")
    if name == "all_reduce":
        return lambda: [dist.all_reduce(whole, async_op=True)]
    if name == "all_gather":
        return lambda: [dist.all_gather_into_tensor(whole, part, async_op=True)]
    if name == "reduce_scatter":
        return lambda: [dist.reduce_scatter_tensor(part, whole, async_op=True)]
    to, source = (rank + 1) % ranks, (rank - 1) % ranks
    return lambda: dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, whole, to),
            dist.P2POp(dist.irecv, torch.empty_like(whole), source),
        ]
    )


def spans(cell: Cell, *, compute: bool, comm: bool) -> tuple[float, float]:
    """Returns the spans of kernels and of collectives in microseconds, the mean over ranks."""
    found: list[tuple[float, float]] = []

    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", rank=rank, world_size=cell.ranks)
        kernel = compute_of(cell.compute)
        start_comm = comm_of(cell.comm, rank, cell.ranks, cell.nbytes)
        busy, other = compute_of(LARGE), torch.cuda.Stream()
        start, end, end_comm = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        dist.barrier()
        busy()  # so that the host runs ahead
        busy()
        start.record()
        works = [start_comm() for _ in range(cell.comm_calls)] if comm else []
        for _ in range(cell.calls if compute else 0):
            kernel()
        end.record()
        with torch.cuda.stream(other):
            for work in works[-1] if works else []:
                work.wait()
            end_comm.record()
        torch.cuda.synchronize()
        found.append((1000 * start.elapsed_time(end), 1000 * start.elapsed_time(end_comm)))

    Kernbench().spawn(worker, nprocs=cell.ranks, topology="h200x8", data=False)
    compute_us, comm_us = (sum(part) / len(found) for part in zip(*found, strict=True))
    return compute_us, comm_us


def read(path: Path) -> list[Cell]:
    """Returns the cells of a table."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Cell(
                row["compute"],
                int(row["compute_calls"]),
                row["comm"],
                int(row["n"]),
                int(row["bytes"]),
                int(row["comm_calls"]),
                (float(row["compute_us"]), float(row["comm_us"])),
                (float(row["compute_beside_us"]), float(row["comm_beside_us"])),
            )
            for row in csv.DictReader(file)
        ]


def main() -> None:
    cells = read(Path(sys.argv[1])) if len(sys.argv) > 1 else REFERENCE
    rows = []
    errors: dict[str, list[float]] = {}
    for cell in cells:
        kernel, _ = spans(cell, compute=True, comm=False)
        _, comm = spans(cell, compute=False, comm=True)
        both = spans(cell, compute=True, comm=True)
        shown = []
        pairs = [
            ("compute", cell.alone[0], kernel),
            ("comm", cell.alone[1], comm),
            ("compute beside", cell.beside[0], both[0]),
            ("comm beside", cell.beside[1], both[1]),
            ("both", max(cell.beside), max(both)),
        ]
        for what, measured, ours in pairs:
            if measured:
                errors.setdefault(what, []).append(ours / measured - 1)
                shown.append(f"{measured:.0f} {ours / measured - 1:+.0%}")
            else:
                shown.append("")
        name = f"{cell.calls} x {cell.compute}"
        rows.append([name, f"{cell.comm_calls} x {cell.comm}", cell.nbytes // MIB, *shown])
    header = ["compute", "comm", "MiB", "compute", "comm", "beside", "beside", "both"]
    _measure.show(
        "Collectives beside compute on H200: measured microseconds, and how far off", header, rows
    )
    for what, found in errors.items():
        mean = sum(map(abs, found)) / len(found)
        print(f"{what}: mean error {mean:.1%}, from {min(found):+.0%} to {max(found):+.0%}")


if __name__ == "__main__":
    main()
