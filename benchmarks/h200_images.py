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

from kernbench.hw.library import Library
from kernbench.kernels import convolutions, indexing, norms, pooling
from kernbench.kernels.convolutions import Convolution
from kernbench.kernels.operands import Layout, channels_last, row_major
from kernbench.memory import DType, dtypes
from kernbench.topology import load_topology

TABLE = Path(__file__).with_name("h200_images.csv")
DTYPES = {"bf16": dtypes.bfloat16, "fp16": dtypes.float16, "fp32": dtypes.float32}
WORST = 6
Cell = dict[str, str]


def _plain(dtype: DType, *shape: int) -> Layout:
    return row_major(Layout(shape, shape, dtype))


def _image(cell: Cell, channels: int, extent: int) -> Layout:
    found = _plain(DTYPES[cell["dtype"]], int(cell["n"]), channels, extent, extent)
    return channels_last(found) if cell["last"] == "1" else found


def _convolution(library: Library, cell: Cell) -> int:
    c, h, k, r, s, g = (int(cell[name]) for name in "chkrsg")
    padding = 0 if r == s else r // 2
    image, result = _image(cell, c, h), _image(cell, k, (h + 2 * padding - r) // s + 1)
    weight = _plain(image.dtype, k, c // g, r, r)
    weight = channels_last(weight) if cell["last"] == "1" else weight
    given = Convolution(image, weight, result, (s, s), g, tf32=True)
    if cell["direction"] == "f":
        return convolutions.forward_ps(library, given)
    data = cell["direction"] == "d"
    return convolutions.backward_ps(library, given, data=data, weight=not data)


def _norm(library: Library, cell: Cell, family: str) -> int:
    image = _image(cell, int(cell["c"]), int(cell["h"]))
    if family == "bn":
        return norms.batch_norm_ps(library, image)
    if family == "bn_eval":
        return norms.batch_norm_ps(library, image, training=False)
    if family == "bn_bwd":
        return norms.batch_norm_backward_ps(library, image)
    if family == "gn":
        return norms.group_norm_ps(library, image)
    return norms.group_norm_backward_ps(library, image)


POOLS = {"maxpool3s2": (3, 2, 1), "maxpool2": (2, 2, 0), "avgpool2": (2, 2, 0)}


def _pool(library: Library, cell: Cell, family: str) -> int:
    name, _, backward = family.partition("_")
    c, h = int(cell["c"]), int(cell["h"])
    image = _image(cell, c, h)
    if name in POOLS:
        window, step, padding = POOLS[name]
        small = _image(cell, c, (h + 2 * padding - window) // step + 1)
        kernel = "max_pool" if name[0] == "m" else "avg_pool"
        if backward:
            return pooling.pool_backward_ps(library, kernel, small, image, window * window)
        return pooling.pool_ps(library, kernel, image, small, window * window)
    if name == "adaptive7":
        kernel = "adaptive_pool_backward" if backward else "adaptive_pool"
        return pooling.adaptive_ps(library, kernel, image, _image(cell, c, 7))
    kernel, large = name[:-1], _image(cell, c, 2 * h)
    if backward:
        return pooling.resized_ps(library, f"{kernel}_backward", large, image)
    return pooling.resized_ps(library, kernel, image, large)


def _rows(library: Library, cell: Cell, family: str) -> int:
    rows, columns = int(cell["n"]), int(cell["c"])
    dtype = DTYPES[cell["dtype"]]
    given, weight = _plain(dtype, rows, columns), _plain(dtype, columns)
    if family == "ln":
        return norms.layer_norm_ps(library, [given, weight, weight, given], given, columns)
    if family == "ln_bwd":
        moved = [given, given, weight, given, weight, weight]
        return norms.layer_norm_backward_ps(library, moved, given, columns, weights=True)
    places = _plain(dtypes.int64, rows, columns)
    if family == "sort":
        return indexing.sort_ps(library, given, [given, places])
    if family == "topk":
        few = _plain(dtype, rows, 8)
        return indexing.top_ps(library, given, [few, _plain(dtypes.int64, rows, 8)])
    wide = _plain(dtypes.float32, rows, columns)
    return indexing.nll_backward_ps(library, _plain(dtypes.int64, rows), wide)


def _bag(library: Library, cell: Cell, family: str) -> int:
    bags, each, rows, width = (int(cell[name]) for name in "nchk")
    table, out = (_plain(dtypes.float32, count, width) for count in (rows, bags))
    ids = _plain(dtypes.int64, bags * each)
    if family == "bag":
        return indexing.bag_ps(library, table, ids, out)
    return indexing.bag_backward_ps(library, out, ids, table)


def modelled_ps(library: Library, cell: Cell) -> int:
    """Returns what the machine's file says of a cell.

    Args:
        cell: A line of the table.
    """
    family = cell["family"]
    if family == "conv":
        return _convolution(library, cell)
    if family.startswith(("bn", "gn")):
        return _norm(library, cell, family)
    if family.startswith("bag"):
        return _bag(library, cell, family)
    if family in ("ln", "ln_bwd", "sort", "topk", "nll_bwd"):
        return _rows(library, cell, family)
    return _pool(library, cell, family)


def kind(cell: Cell) -> str:
    """Returns the family of a cell, convolutions by what they are."""
    if cell["family"] != "conv":
        return cell["family"]
    c, k, g = (int(cell[name]) for name in "ckg")
    what = "depthwise" if g == c else "grouped" if g > 1 else "few" if min(c, k) < 8 else ""
    what = what or ("point" if cell["r"] == cell["s"] == "1" else "window")
    return f"conv_{what}_{cell['direction']}"


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
