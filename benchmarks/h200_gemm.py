"""Matrix products on `h200x8`: microseconds that cuBLAS was measured at, and predicted ones.

The reference cells were measured on 2026-11-20 on one NVIDIA H200 (PyTorch 2.11.0, CUDA 13.0):
`torch.matmul` of `a[m, k]` and `b[n, k].T`, tf32 off, by CUDA events, medians of repeats; the L2
was overwritten between calls. Predicted times are with the events' own (`event` of the machine). `--halves` fits the constants of the machine file on either half of
the cells and shows the error on the other half.

Another table of the kind may be named: CSV with columns `dtype`, `m`, `n`, `k` and `us`.
"""

import csv
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import _measure

from kernbench import torch
from kernbench.hw.library import Library
from kernbench.testing import Kernbench
from kernbench.topology import load_topology
from kernbench.topology.spec import SipSpec
from kernbench.units import Bytes, Ps

Cell = tuple[str, int, int, int, float]

MACHINE = {"bfloat16": ("bf16", 2), "float16": ("fp16", 2), "float32": ("fp32", 4)}
"""Name in machine files, and bytes of an element."""

REFERENCE: list[Cell] = [
    ("bfloat16", 256, 256, 256, 5.728),
    ("bfloat16", 512, 512, 512, 6.656),
    ("bfloat16", 1024, 1024, 1024, 9.664),
    ("bfloat16", 2048, 2048, 2048, 27.584),
    ("bfloat16", 4096, 4096, 4096, 191.648),
    ("bfloat16", 8192, 8192, 8192, 1400.128),
    ("bfloat16", 1, 16384, 4096, 43.68),
    ("bfloat16", 1, 4096, 16384, 45.856),
    ("bfloat16", 1, 4096, 8192, 29.088),
    ("bfloat16", 16, 16384, 4096, 43.68),
    ("bfloat16", 16, 4096, 16384, 45.696),
    ("bfloat16", 16, 4096, 8192, 29.312),
    ("bfloat16", 256, 16384, 4096, 51.904),
    ("bfloat16", 256, 4096, 16384, 57.824),
    ("bfloat16", 256, 4096, 8192, 37.2),
    ("bfloat16", 1024, 16384, 4096, 181.408),
    ("bfloat16", 1024, 4096, 16384, 181.152),
    ("bfloat16", 1024, 4096, 8192, 91.808),
    ("bfloat16", 4096, 16384, 4096, 719.808),
    ("bfloat16", 4096, 4096, 16384, 710.656),
    ("bfloat16", 4096, 4096, 8192, 376.256),
    ("bfloat16", 16384, 16384, 4096, 2870.752),
    ("bfloat16", 16384, 4096, 16384, 3129.184),
    ("bfloat16", 16384, 4096, 8192, 1590.96),
    ("bfloat16", 512, 28672, 8192, 324.592),
    ("bfloat16", 512, 7168, 8192, 86.416),
    ("bfloat16", 8192, 28672, 8192, 5330.352),
    ("bfloat16", 8192, 7168, 8192, 1398.336),
    ("float16", 256, 256, 256, 6.08),
    ("float16", 512, 512, 512, 6.624),
    ("float16", 1024, 1024, 1024, 9.568),
    ("float16", 2048, 2048, 2048, 28.992),
    ("float16", 4096, 4096, 4096, 197.264),
    ("float16", 8192, 8192, 8192, 1455.184),
    ("float32", 256, 256, 256, 11.456),
    ("float32", 512, 512, 512, 17.952),
    ("float32", 1024, 1024, 1024, 66.464),
    ("float32", 2048, 2048, 2048, 347.168),
    ("float32", 4096, 4096, 4096, 2702.08),
    ("float32", 8192, 8192, 8192, 21451.616),
]


def predicted(cells: Sequence[Cell]) -> list[float]:
    """Returns the microseconds of each product on the device, its dispatch hidden."""
    times = []

    def worker(rank: int) -> None:
        busy = torch.empty(8192, 8192, dtype=torch.bfloat16, device="cuda")
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for dtype, m, n, k, _ in cells:
            a = torch.empty(m, k, dtype=getattr(torch, dtype), device="cuda")
            b = torch.empty(n, k, dtype=getattr(torch, dtype), device="cuda")
            torch.matmul(busy, busy)  # until its end, the host has issued all that follows
            start.record()
            torch.matmul(a, b.T)
            end.record()
            end.synchronize()
            times.append(1000 * start.elapsed_time(end))

    Kernbench().spawn(worker, nprocs=1, topology="h200x8", data=False)
    return times


def mean_error(sip: SipSpec, cells: Sequence[Cell]) -> float:
    """Returns the mean of `|predicted / measured - 1|`."""
    library, total = Library(sip), 0.0
    for dtype, m, n, k, us in cells:
        name, size = MACHINE[dtype]
        ps = library.matmul(name, m, n, k, (m * k + n * k + m * n) * size)
        total += abs((ps + sip.event) / 1e6 / us - 1)
    return total / len(cells)


def variants(sip: SipSpec) -> Iterator[SipSpec]:
    """Yields the machine with other constants of its library of products."""
    library = sip.pe.gemm.library
    assert library is not None
    tensor, plain = library.kernels
    for start, back, parts, edge, other in itertools.product(
        (0, 300_000, 500_000, 800_000),
        (30_000_000, 40_000_000, 50_000_000),
        (1, 2, 4),
        (18, 20, 22, 24, 26),
        (20, 22, 24, 26),
    ):
        changed = replace(
            library,
            start=Ps(start),
            split_k=parts,
            kernels=(replace(tensor, edge=edge), replace(plain, edge=other)),
        )
        gemm = replace(sip.pe.gemm, library=changed)
        sram = replace(sip.cube.sram, written=Bytes(back))
        yield replace(sip, cube=replace(sip.cube, sram=sram), pe=replace(sip.pe, gemm=gemm))


def constants(sip: SipSpec) -> str:
    """Returns what `variants` vary, as text."""
    library: Any = sip.pe.gemm.library
    edges = " and ".join(str(kernels.edge) for kernels in library.kernels)
    return (
        f"start {library.start / 1e6} us, written {sip.cube.sram.written / 1e6:.0f} MB, "
        f"split_k {library.split_k}, edges {edges}"
    )


def halves(cells: Sequence[Cell]) -> None:
    """Prints what each half of the cells leads to, and how far the other half is off then."""
    sip = load_topology("h200x8").topology_obj.machine.system.sip
    for fitted, rest in (cells[::2], cells[1::2]), (cells[1::2], cells[::2]), (cells, cells):
        best = min(variants(sip), key=lambda found: mean_error(found, fitted))
        errors = f"{mean_error(best, fitted):.1%}, the others {mean_error(best, rest):.1%}"
        print(f"fitted on {len(fitted)} cells: {errors} ({constants(best)})")


def read(path: Path) -> list[Cell]:
    """Returns the cells of a table."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            (row["dtype"], int(row["m"]), int(row["n"]), int(row["k"]), float(row["us"]))
            for row in csv.DictReader(file)
        ]


def main() -> None:
    given = [argument for argument in sys.argv[1:] if argument != "--halves"]
    cells = read(Path(given[0])) if given else REFERENCE
    if "--halves" in sys.argv:
        halves(cells)
        return
    rows, errors = [], []
    for (dtype, m, n, k, us), ours in zip(cells, predicted(cells), strict=True):
        errors.append(ours / us - 1)
        rows.append([dtype, m, n, k, f"{us:.1f}", f"{ours:.1f}", f"{errors[-1]:+.0%}"])
    header = ["", "m", "n", "k", "measured", "predicted", "difference"]
    _measure.show("Products on an H200, microseconds", header, rows)
    mean = sum(map(abs, errors)) / len(errors)
    print(f"mean error {mean:.1%}, from {min(errors):+.0%} to {max(errors):+.0%}")


if __name__ == "__main__":
    main()
