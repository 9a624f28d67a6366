"""Convolutions, norms, pools and look-ups on `h200x8`: times measured, and what `kernels` says.

`h200_images.csv` beside this file has device times of single calls on one NVIDIA H200 of 2026-11-24
(PyTorch 2.11.0, cuDNN 9.19; sums of kernels in torch.profiler, median of three calls), float32 with
TF32 in convolutions. The constants of products were fitted on half of the cells, all others were
read off the times of the kernels by hand (docs/adr/0046). Prints the mean error of each family on
both halves of its cells, divided by a hash of their keys, its worst cell, and the sum of all times
over the measured one; with `-v` the worst cells themselves.

    python benchmarks/h200_images.py [-v] [FAMILY ...]
"""

import csv
import sys
import zlib
from collections import defaultdict
from pathlib import Path

from kernbench.calibration.images import kind, modelled_ps
from kernbench.hw.library import Library
from kernbench.topology import load_topology

TABLE = Path(__file__).with_name("h200_images.csv")
WORST = 6
Cell = dict[str, str]


def main() -> None:
    """Prints the table."""
    library = Library(load_topology("h200x8").topology_obj.machine.system.sip)
    wanted = [arg for arg in sys.argv[1:] if arg != "-v"]
    found: dict[str, list[tuple[float, bool, float, int, Cell]]] = defaultdict(list)
    with TABLE.open() as lines:
        for cell in csv.DictReader(lines):
            key = ",".join(value for name, value in cell.items() if name != "us")
            us, ps = float(cell["us"]), modelled_ps(library, cell)
            error = max(ps / 1e6 / us, us / (ps / 1e6)) - 1
            second = zlib.crc32(key.encode()) % 2 == 1
            found[kind(cell)].append((error, second, us, ps, cell))
    print(f"{'family':26}{'cells':>6}{'half':>9}{'other':>9}{'worst':>9}{'sum':>9}")
    for name, cells in sorted(found.items()):
        if wanted and not any(name.startswith(each) for each in wanted):
            continue
        halves = [
            [abs(ps / 1e6 / us - 1) for _, half, us, ps, _ in cells if half is second]
            for second in (False, True)
        ]
        means = [100 * sum(half) / max(1, len(half)) for half in halves]
        worst = max(cells, key=lambda each: each[0])[0]
        total = sum(ps for _, _, _, ps, _ in cells) / sum(1e6 * us for _, _, us, _, _ in cells)
        print(f"{name:26}{len(cells):6}{means[0]:8.1f}%{means[1]:8.1f}%", end="")
        print(f"{100 * worst:8.0f}%{total:9.2f}")
        if "-v" in sys.argv:
            for _, _, _, ps, cell in sorted(cells, key=lambda each: -each[0])[:WORST]:
                said = " ".join(f"{key}={value}" for key, value in cell.items() if value)
                print(f"    {said}: {ps / 1e6:.1f}")


if __name__ == "__main__":
    main()
