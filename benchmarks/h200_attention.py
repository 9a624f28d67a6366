"""Attention on `h200x8`: microseconds that it was measured at, forward and backward, and predicted.

The reference cells were measured on 2026-11-20 on one NVIDIA H200 (PyTorch 2.11.0, CUDA 13.0, cuDNN
9.19): `scaled_dot_product_attention` in bfloat16 with the backend named, by CUDA events, medians of
repeats. `--more` adds cells of 2026-11-22, from another such host, and decoding: one query for many
keys. `--halves` fits the constants of the machine file on either half of all cells with as many
queries as keys and shows the error on the other half.

Another table of the kind may be named: CSV with columns `backend`, `b`, `h`, `hk`, `s`, `d`,
`causal`, `fwd_us`, `bwd_us` and, if there are fewer queries than keys, `sq`.
"""

import csv
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import _measure

from kernbench import torch
from kernbench.attention.bands import CAUSAL, EVERYTHING, bands
from kernbench.attention.rows import in_order
from kernbench.hw.attention import Direction, Shape
from kernbench.hw.library import Library
from kernbench.testing import Kernbench
from kernbench.topology import load_topology
from kernbench.topology.spec import AttentionSpec, SipSpec
from kernbench.torch.nn.attention import SDPBackend, sdpa_kernel
from kernbench.units import Ps

Backend = Literal["flash", "cudnn"]


class Cell(NamedTuple):
    """Sizes of attention, and the microseconds it took."""

    backend: Backend
    batch: int
    heads: int
    groups: int
    queries: int
    keys: int
    width: int
    causal: bool
    forward: float
    backward: float | None


EVENT = load_topology("h200x8").topology_obj.machine.system.sip.event
"""Picoseconds that are in each time, as it was measured by a pair of events."""

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}

# fmt: off
REFERENCE: list[Cell] = [
    Cell("flash", 1, 32, 32, 2048, 2048, 128, True, 167.2, 471.648),
    Cell("cudnn", 1, 32, 32, 2048, 2048, 128, True, 84.128, 260.416),
    Cell("flash", 1, 32, 32, 2048, 2048, 128, False, 206.112, 666.816),
    Cell("cudnn", 1, 32, 32, 2048, 2048, 128, False, 113.6, 348.864),
    Cell("flash", 1, 32, 32, 8192, 8192, 128, True, 1818.96, 4889.504),
    Cell("cudnn", 1, 32, 32, 8192, 8192, 128, True, 891.28, 2588.752),
    Cell("flash", 1, 32, 32, 8192, 8192, 128, False, 3334.08, 9149.568),
    Cell("cudnn", 1, 32, 32, 8192, 8192, 128, False, 1633.76, 4906.176),
    Cell("flash", 1, 32, 8, 8192, 8192, 128, True, 1846.016, 4970.432),
    Cell("cudnn", 1, 32, 8, 8192, 8192, 128, True, 889.888, 2619.328),
    Cell("flash", 1, 32, 8, 8192, 8192, 128, False, 3274.848, 9204.192),
    Cell("cudnn", 1, 32, 8, 8192, 8192, 128, False, 1637.888, 4693.824),
]
MORE: list[Cell] = [
    Cell("flash", 1, 32, 8, 512, 512, 64, True, 18.272, 62.944),
    Cell("cudnn", 1, 32, 8, 512, 512, 64, True, 14.4, 41.824),
    Cell("cudnn", 1, 32, 8, 512, 512, 64, False, 14.304, 40.736),
    Cell("cudnn", 1, 32, 8, 512, 512, 128, False, 17.44, 53.728),
    Cell("flash", 1, 32, 32, 1024, 1024, 64, True, 38.624, 111.008),
    Cell("cudnn", 1, 32, 32, 1024, 1024, 64, True, 27.232, 71.392),
    Cell("flash", 1, 32, 32, 1024, 1024, 64, False, 38.272, 119.52),
    Cell("cudnn", 1, 32, 32, 1024, 1024, 64, False, 29.024, 75.04),
    Cell("flash", 1, 32, 8, 1024, 1024, 128, False, 60.288, 220.672),
    Cell("cudnn", 1, 32, 8, 1024, 1024, 128, False, 37.024, 126.752),
    Cell("flash", 1, 32, 32, 1024, 1024, 128, True, 61.888, 182.016),
    Cell("cudnn", 1, 32, 8, 2048, 2048, 64, True, 62.624, 186.272),
    Cell("flash", 1, 32, 8, 2048, 2048, 64, False, 128.384, 384.64),
    Cell("cudnn", 1, 32, 8, 2048, 2048, 64, False, 83.712, 238.144),
    Cell("cudnn", 1, 32, 8, 2048, 2048, 128, True, 89.728, 281.152),
    Cell("cudnn", 1, 32, 8, 2048, 2048, 128, False, 116.896, 367.616),
    Cell("flash", 1, 32, 8, 4096, 4096, 64, False, 469.6, 1321.568),
    Cell("cudnn", 1, 32, 8, 4096, 4096, 64, False, 299.744, 792.736),
    Cell("flash", 1, 32, 32, 4096, 4096, 64, True, 297.12, 815.136),
    Cell("cudnn", 1, 32, 32, 4096, 4096, 64, True, 188.448, 503.296),
    Cell("cudnn", 1, 32, 32, 4096, 4096, 64, False, 299.872, 778.464),
    Cell("flash", 1, 32, 8, 4096, 4096, 128, True, 502.4, 1466.912),
    Cell("cudnn", 1, 32, 32, 4096, 4096, 128, True, 267.744, 765.664),
    Cell("cudnn", 1, 32, 32, 4096, 4096, 128, False, 416.768, 1230.144),
    Cell("flash", 1, 32, 8, 8192, 8192, 64, True, 997.216, 2812.128),
    Cell("flash", 1, 32, 8, 8192, 8192, 64, False, 1798.4, 4930.208),
    Cell("flash", 1, 32, 8, 8192, 8192, 128, True, 1709.056, 4919.776),
    Cell("cudnn", 1, 32, 8, 8192, 8192, 128, True, 909.792, 2629.984),
    Cell("cudnn", 1, 32, 8, 8192, 8192, 128, False, 1621.92, 4724.896),
    Cell("cudnn", 1, 32, 8, 16384, 16384, 64, True, 2335.936, 6082.496),
    Cell("flash", 1, 32, 8, 16384, 16384, 64, False, 7147.616, 19307.039),
    Cell("cudnn", 1, 32, 8, 16384, 16384, 64, False, 4428.736, 11910.56),
    Cell("flash", 1, 32, 32, 16384, 16384, 64, True, 3948.256, 10093.536),
    Cell("cudnn", 1, 32, 32, 16384, 16384, 64, True, 2335.424, 6035.392),
    Cell("flash", 1, 32, 32, 16384, 16384, 64, False, 7325.152, 19222.752),
    Cell("cudnn", 1, 32, 32, 16384, 16384, 64, False, 4581.472, 11873.312),
    Cell("flash", 1, 32, 8, 16384, 16384, 128, False, 12577.824, 36069.95),
    Cell("flash", 1, 32, 32, 16384, 16384, 128, False, 12679.392, 35945.953),
    Cell("cudnn", 1, 32, 32, 16384, 16384, 128, False, 6403.84, 20142.689),
    Cell("flash", 1, 32, 8, 32768, 32768, 64, True, 14201.536, 39216.606),
    Cell("cudnn", 1, 32, 8, 32768, 32768, 64, True, 9068.864, 26271.809),
    Cell("cudnn", 1, 32, 8, 32768, 32768, 64, False, 18962.496, 48406.879),
    Cell("flash", 1, 32, 8, 32768, 32768, 128, True, 25410.784, 68740.898),
    Cell("cudnn", 1, 32, 8, 32768, 32768, 128, True, 14819.808, 40703.072),
    Cell("cudnn", 1, 32, 8, 32768, 32768, 128, False, 28542.145, 81084.862),
    Cell("flash", 1, 32, 8, 1, 4096, 128, False, 26.88, None),
    Cell("cudnn", 1, 32, 8, 1, 4096, 128, False, 17.408, None),
    Cell("flash", 1, 32, 8, 1, 4096, 64, False, 21.056, None),
    Cell("cudnn", 1, 32, 8, 1, 4096, 64, False, 13.472, None),
    Cell("flash", 1, 32, 8, 1, 8192, 64, False, 26.752, None),
    Cell("flash", 1, 32, 8, 1, 16384, 64, False, 32.48, None),
    Cell("cudnn", 1, 32, 8, 1, 16384, 64, False, 21.184, None),
    Cell("flash", 1, 32, 8, 1, 32768, 128, False, 57.984, None),
    Cell("cudnn", 1, 32, 8, 1, 32768, 128, False, 49.696, None),
    Cell("flash", 1, 32, 8, 1, 32768, 64, False, 42.144, None),
    Cell("flash", 1, 32, 8, 1, 65536, 128, False, 90.912, None),
    Cell("flash", 1, 32, 8, 1, 65536, 64, False, 61.984, None),
    Cell("flash", 1, 32, 8, 1, 131072, 128, False, 158.368, None),
    Cell("cudnn", 1, 32, 8, 1, 131072, 128, False, 137.376, None),
    Cell("cudnn", 1, 32, 8, 1, 131072, 64, False, 77.504, None),
    Cell("cudnn", 8, 32, 8, 1, 4096, 128, False, 49.216, None),
    Cell("cudnn", 8, 32, 8, 1, 4096, 64, False, 30.72, None),
    Cell("cudnn", 8, 32, 8, 1, 16384, 128, False, 137.6, None),
    Cell("flash", 8, 32, 8, 1, 32768, 64, False, 152.832, None),
    Cell("cudnn", 8, 32, 8, 1, 32768, 64, False, 135.648, None),
    Cell("flash", 8, 32, 8, 1, 131072, 128, False, 946.56, None),
    Cell("cudnn", 8, 32, 8, 1, 131072, 128, False, 937.44, None),
    Cell("flash", 8, 32, 8, 1, 131072, 64, False, 518.176, None),
    Cell("cudnn", 8, 32, 8, 1, 131072, 64, False, 477.408, None),
    Cell("flash", 32, 32, 8, 1, 4096, 128, False, 209.984, None),
    Cell("cudnn", 32, 32, 8, 1, 4096, 128, False, 133.888, None),
    Cell("cudnn", 32, 32, 8, 1, 8192, 128, False, 248.192, None),
    Cell("flash", 32, 32, 8, 1, 8192, 64, False, 234.752, None),
    Cell("cudnn", 32, 32, 8, 1, 16384, 128, False, 475.968, None),
    Cell("flash", 32, 32, 8, 1, 16384, 64, False, 450.944, None),
    Cell("cudnn", 32, 32, 8, 1, 16384, 64, False, 246.72, None),
    Cell("flash", 32, 32, 8, 1, 32768, 128, False, 1528.736, None),
    Cell("cudnn", 32, 32, 8, 1, 32768, 128, False, 935.456, None),
]
# fmt: on


def predicted(cells: Iterable[Cell]) -> list[tuple[float, float]]:
    """Returns the microseconds of each forward and backward on the device, dispatch hidden."""
    times = []

    def worker(rank: int) -> None:
        busy = torch.empty(16384, 16384, dtype=torch.bfloat16, device="cuda")
        first, middle, last = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        for cell in cells:
            size = (cell.batch, cell.heads, cell.queries, cell.width)
            kept = (cell.batch, cell.groups, cell.keys, cell.width)
            q, k, v = (
                torch.empty(*each, dtype=torch.bfloat16, device="cuda", requires_grad=True)
                for each in (size, kept, kept)
            )
            grad = torch.empty(*size, dtype=torch.bfloat16, device="cuda")
            torch.matmul(busy, busy)  # until its end, the host has issued all that follows
            first.record()
            with sdpa_kernel(BACKENDS[cell.backend]):
                out = torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=cell.causal, enable_gqa=True
                )
            middle.record()
            torch.autograd.grad(out, (q, k, v), grad)
            last.record()
            last.synchronize()
            times.append((1000 * first.elapsed_time(middle), 1000 * middle.elapsed_time(last)))

    Kernbench().spawn(worker, nprocs=1, topology="h200x8", data=False)
    return times


def error(library: Library, cell: Cell, direction: Direction) -> float:
    """Returns `predicted / measured - 1` of one cell."""
    measured = cell.forward if direction == "forward" else cell.backward
    assert measured is not None
    seen = bands(in_order(cell.queries), in_order(cell.keys), CAUSAL if cell.causal else EVERYTHING)
    rows = cell.heads * cell.queries
    elements = 2 * cell.width * (rows + cell.groups * cell.keys)
    nbytes = cell.batch * (2 * elements * (1 if direction == "forward" else 2) + 4 * rows)
    if direction == "backward" and cell.groups < cell.heads:
        nbytes += cell.batch * 2 * 2 * 2 * cell.heads * cell.keys * cell.width
    shape = Shape(cell.batch, cell.heads, cell.groups, cell.width, cell.width)
    ps = library.attention(cell.backend, direction, "bf16", shape, (seen,), nbytes)
    return (ps + EVENT) / 1e6 / measured - 1


def mean_error(sip: SipSpec, cells: Sequence[Cell], direction: Direction) -> float:
    """Returns the mean of `|predicted / measured - 1|`."""
    library = Library(sip)
    return sum(abs(error(library, cell, direction)) for cell in cells) / len(cells)


def with_kernel(sip: SipSpec, kernel: AttentionSpec) -> SipSpec:
    """Returns a machine with another kernel of attention."""
    return replace(sip, pe=replace(sip.pe, attention=(kernel,)))


def fitted(sip: SipSpec, kernel: AttentionSpec, cells: Sequence[Cell]) -> AttentionSpec:
    """Returns a kernel with constants changed one by one for as long as that lowers the error."""
    best, step = mean_error(with_kernel(sip, kernel), cells, kernel.direction), 0.16
    while step > 0.01:
        before = best
        for name in ("start", "program", "share", "scores"):
            for factor in (1 + step, 1 / (1 + step)):
                value = getattr(kernel, name)
                shifted = value + (1 if factor > 1 else -1)
                changed: dict[str, Any] = {
                    name: min(max(shifted, 1), 100)
                    if name in {"share", "scores"}
                    else Ps(int(value * factor))
                }
                tried = replace(kernel, **changed)
                found = mean_error(with_kernel(sip, tried), cells, kernel.direction)
                if found < best:
                    kernel, best = tried, found
        if before - best < 1e-4:
            step /= 2
    return kernel


def halves() -> None:
    """Prints what each half of the cells leads to, and how far the other half is off then."""
    sip = load_topology("h200x8").topology_obj.machine.system.sip
    square = [cell for cell in REFERENCE + MORE if cell.backward is not None]
    for kernel in sip.pe.attention:
        cells = [cell for cell in square if cell.backend == kernel.backend]
        if not cells:
            continue
        print(kernel.backend, kernel.direction)
        for some, rest in (cells[::2], cells[1::2]), (cells[1::2], cells[::2]), (cells, cells):
            found = fitted(sip, kernel, some)
            machine = with_kernel(sip, found)
            errors = [mean_error(machine, each, kernel.direction) for each in (some, rest)]
            print(
                f"  fitted on {len(some)} cells: {errors[0]:.1%}, the others {errors[1]:.1%} "
                f"(start {found.start / 1e6:.1f} us, program {found.program / 1e6:.1f} us, share "
                f"{found.share} %, scores {found.scores} %)"
            )


def read(path: Path) -> list[Cell]:
    """Returns the cells of a table."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Cell(
                "flash" if row["backend"].startswith("flash") else "cudnn",
                int(row["b"]),
                int(row["h"]),
                int(row["hk"]),
                int(row.get("sq", row["s"])),
                int(row["s"]),
                int(row["d"]),
                row["causal"] in {"True", "1"},
                float(row["fwd_us"]),
                float(row["bwd_us"]) if row["bwd_us"] else None,
            )
            for row in csv.DictReader(file)
        ]


def main() -> None:
    if "--halves" in sys.argv:
        halves()
        return
    given = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    cells = read(Path(given[0])) if given else REFERENCE
    if "--more" in sys.argv:
        cells = cells + MORE
    rows, errors = [], []
    for cell, ours in zip(cells, predicted(cells), strict=True):
        for direction, us, found in zip(
            ("forward", "backward"), (cell.forward, cell.backward), ours, strict=True
        ):
            if us is not None:
                errors.append(found / us - 1)
                sizes = [*cell[1:7], "causal" if cell.causal else ""]
                told = f"{us:.1f}", f"{found:.1f}", f"{errors[-1]:+.0%}"
                rows.append([f"{cell.backend} {direction}", *sizes, *told])
    header = ["", "b", "h", "hk", "queries", "keys", "width", "", "measured", "predicted", "off"]
    _measure.show("Attention on an H200, microseconds", header, rows)
    mean = sum(map(abs, errors)) / len(errors)
    print(f"mean error {mean:.1%}, from {min(errors):+.0%} to {max(errors):+.0%}")


if __name__ == "__main__":
    main()
