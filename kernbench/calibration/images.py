"""What the room `kernels` says of a line of `images.csv`: convolutions, norms, pools, bags."""

from kernbench.calibration.lines import Line, dtype_of
from kernbench.hw.library import Library
from kernbench.kernels import convolutions, indexing, norms, pooling
from kernbench.kernels.convolutions import Convolution
from kernbench.kernels.operands import Layout, channels_last, row_major
from kernbench.memory import DType, dtypes


def _plain(dtype: DType, *shape: int) -> Layout:
    return row_major(Layout(shape, shape, dtype))


def _image(line: Line, channels: int, extent: int) -> Layout:
    found = _plain(dtype_of(line), int(line["n"]), channels, extent, extent)
    return channels_last(found) if line["last"] == "1" else found


def _convolution(library: Library, line: Line) -> int:
    c, h, k, r, s, g = (int(line[name]) for name in "chkrsg")
    padding = 0 if r == s else r // 2
    image, result = _image(line, c, h), _image(line, k, (h + 2 * padding - r) // s + 1)
    weight = _plain(image.dtype, k, c // g, r, r)
    weight = channels_last(weight) if line["last"] == "1" else weight
    given = Convolution(image, weight, result, (s, s), g, tf32=True)
    if line["direction"] == "f":
        return convolutions.forward_ps(library, given)
    data = line["direction"] == "d"
    return convolutions.backward_ps(library, given, data=data, weight=not data)


def _norm(library: Library, line: Line, family: str) -> int:
    image = _image(line, int(line["c"]), int(line["h"]))
    if family == "bn":
        return norms.batch_norm_ps(library, image)
    if family == "bn_eval":
        return norms.batch_norm_ps(library, image, training=False)
    if family == "bn_bwd":
        return norms.batch_norm_backward_ps(library, image)
    if family == "gn":
        return norms.group_norm_ps(library, image, min(_GROUPS, int(line["c"])))
    return norms.group_norm_backward_ps(library, image)


_GROUPS = 32
"""Groups of a group norm; of so many images as the cells have, more or fewer take as long."""

POOLS = {"maxpool3s2": (3, 2, 1), "maxpool2": (2, 2, 0), "avgpool2": (2, 2, 0)}


def _pool(library: Library, line: Line, family: str) -> int:
    name, _, backward = family.partition("_")
    c, h = int(line["c"]), int(line["h"])
    image = _image(line, c, h)
    if name in POOLS:
        window, step, padding = POOLS[name]
        small = _image(line, c, (h + 2 * padding - window) // step + 1)
        kernel = "max_pool" if name[0] == "m" else "avg_pool"
        if backward:
            return pooling.pool_backward_ps(library, kernel, small, image, window * window)
        return pooling.pool_ps(library, kernel, image, small, window * window)
    if name == "adaptive7":
        kernel = "adaptive_pool_backward" if backward else "adaptive_pool"
        return pooling.adaptive_ps(library, kernel, image, _image(line, c, 7))
    kernel, large = name[:-1], _image(line, c, 2 * h)
    if backward:
        return pooling.resized_ps(library, f"{kernel}_backward", large, image)
    return pooling.resized_ps(library, kernel, image, large)


def _rows(library: Library, line: Line, family: str) -> int:
    rows, columns = int(line["n"]), int(line["c"])
    dtype = dtype_of(line)
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


def _bag(library: Library, line: Line, family: str) -> int:
    bags, each, rows, width = (int(line[name]) for name in "nchk")
    table, out = (_plain(dtypes.float32, count, width) for count in (rows, bags))
    ids = _plain(dtypes.int64, bags * each)
    if family == "bag":
        return indexing.bag_ps(library, table, ids, out)
    return indexing.bag_backward_ps(library, out, ids, table)


def modelled_ps(library: Library, line: Line) -> int:
    """Returns what a machine's file says of a line.

    Args:
        line: Texts by column.
    """
    family = line["family"]
    if family == "conv":
        return _convolution(library, line)
    if family.startswith(("bn", "gn")):
        return _norm(library, line, family)
    if family.startswith("bag"):
        return _bag(library, line, family)
    if family in ("ln", "ln_bwd", "sort", "topk", "nll_bwd"):
        return _rows(library, line, family)
    return _pool(library, line, family)


def kind(line: Line) -> str:
    """Returns the family of a line, convolutions by what they are."""
    if line["family"] != "conv":
        return line["family"]
    c, k, g = (int(line[name]) for name in "ckg")
    what = "depthwise" if g == c else "grouped" if g > 1 else "few" if min(c, k) < 8 else ""
    what = what or ("point" if line["r"] == line["s"] == "1" else "window")
    return f"conv_{what}_{line['direction']}"
