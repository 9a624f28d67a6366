"""Recurrent networks on `h200x8`: times measured, and what `kernels` says.

`h200_recurrent.csv` beside this file has 150 networks that were drawn with a seed, on one NVIDIA
H200 of 2026-11-29 (PyTorch 2.11.0, cuDNN 9.19; the fastest of three means of up to 20 calls between
events): `forward_us` without gradients, `backward_us` all gradients. The host, which launches two
or three kernels for each step of a layer, takes most of the time of most of them. Half of the
cells, by a hash of their keys, were fitted; prints how far both halves are off, and with `-v` the
worst.

    python benchmarks/h200_recurrent.py [-v]
"""

import csv
import sys
import zlib
from math import exp, log
from pathlib import Path

from kernbench.hw.library import Library
from kernbench.kernels.recurrent import Recurrent, recurrent_ps
from kernbench.memory import dtypes
from kernbench.topology import load_topology

TABLE = Path(__file__).with_name("h200_recurrent.csv")
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
WORST = 8


def main() -> None:
    """Prints the table."""
    library = Library(load_topology("h200x8").topology_obj.machine.system.sip)
    found: dict[tuple[str, int], list[tuple[float, str]]] = {}
    with TABLE.open() as lines:
        for cell in csv.DictReader(lines):
            key = ",".join(value for name, value in cell.items() if not name.endswith("_us"))
            kind, steps, batch, inputs, hidden, layers, directions, dtype = key.split(",")
            network = Recurrent(
                GATES[kind],
                int(steps),
                int(steps) * int(batch),
                int(inputs),
                int(hidden),
                int(layers),
                int(directions),
                getattr(dtypes, dtype),
                tf32=True,
            )
            for way in ("forward", "backward"):
                ps = recurrent_ps(library, network, backward=way == "backward")
                ratio = ps / 1e6 / float(cell[f"{way}_us"])
                found.setdefault((way, zlib.crc32(key.encode()) % 2), []).append((ratio, key))
    print(f"{'direction':10}{'half':>7}{'cells':>7}{'factor':>8}{'mean':>7}{'worst':>16}")
    for (way, half), cells in sorted(found.items(), key=lambda each: (each[0][0] != "forward",)):
        ratios = [ratio for ratio, _ in cells]
        factor = exp(sum(abs(log(ratio)) for ratio in ratios) / len(ratios))
        mean = 100 * sum(abs(ratio - 1) for ratio in ratios) / len(ratios)
        ends = f"{100 * min(ratios) - 100:+.0f} to {100 * max(ratios) - 100:+.0f} %"
        which = ("fitted", "kept")[half]
        print(f"{way:10}{which:>7}{len(cells):7}{factor:8.2f}{mean:6.0f}%{ends:>16}")
        if "-v" in sys.argv:
            for ratio, key in sorted(cells, key=lambda each: -abs(log(each[0])))[:WORST]:
                print(f"    {ratio:.2f} {key}")


if __name__ == "__main__":
    main()
