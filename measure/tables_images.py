"""Convolutions, norms, pools, images of another size, bags of embeddings: times of their kernels.

The lines of this table are measured by the profiler, many in one profile: `Row.measure` returns the
call itself.
"""

import functools
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from rows import Group, Row, Table
from tables_kernels import normal
from timing import Call, Timer

aten = torch.ops.aten

# Channels, extent, channels made, window, step, groups. A window that is its step has no padding.
THREE = (
    *((64, 56, 64, 3, 1, 1), (128, 56, 128, 3, 2, 1), (512, 14, 512, 3, 2, 1)),
    *((3, 224, 96, 4, 4, 1), (24, 56, 144, 1, 1, 1), (32, 112, 32, 3, 1, 32)),
    *((672, 14, 672, 5, 1, 672), (96, 56, 96, 7, 1, 96), (128, 56, 128, 3, 1, 32)),
    *((512, 14, 512, 3, 1, 32), (512, 16, 1536, 1, 1, 1)),
)
OTHER_BATCHES_IN_FP32 = (
    *((128, 28, 128, 3, 1, 1), (512, 7, 512, 3, 1, 1), (256, 56, 64, 1, 1, 1)),
    *((512, 28, 128, 1, 1, 1), (256, 56, 512, 1, 2, 1), (1024, 14, 2048, 1, 2, 1)),
    *((3, 224, 64, 7, 2, 1), (3, 224, 32, 3, 2, 1), (3, 224, 768, 16, 16, 1)),
    *((4, 64, 128, 3, 1, 1), (128, 64, 4, 3, 1, 1), (960, 7, 160, 1, 1, 1)),
    *((96, 112, 96, 3, 2, 96), (192, 28, 192, 3, 1, 192), (384, 14, 384, 3, 1, 384)),
    *((576, 14, 576, 3, 2, 576), (960, 7, 960, 3, 1, 960), (384, 14, 384, 7, 1, 384)),
    *((768, 7, 768, 7, 1, 768), (256, 64, 256, 3, 1, 1), (128, 128, 128, 3, 1, 1)),
)
OTHER_BATCHES_IN_HALF = (
    *((2048, 7, 512, 1, 1, 1), (144, 56, 24, 1, 1, 1), (144, 56, 144, 3, 1, 144)),
    *((512, 32, 512, 3, 1, 1), (512, 16, 512, 3, 1, 1), (1024, 16, 256, 3, 1, 1)),
    (384, 28, 128, 3, 1, 1),
)
OTHER_BATCHES = (
    *((256, 14, 256, 3, 1, 1), (64, 56, 256, 1, 1, 1), (256, 14, 1024, 1, 1, 1)),
    *((1024, 14, 256, 1, 1, 1), (96, 28, 96, 1, 1, 1), (240, 28, 240, 5, 1, 240)),
    (64, 112, 128, 3, 1, 1),
)
# Batch, channels, extent.
PLANES = (
    *((32, 64, 112), (64, 64, 56), (32, 256, 56), (128, 96, 112), (32, 128, 28), (8, 512, 28)),
    *((64, 1024, 14), (128, 2048, 7), (128, 160, 7), (128, 32, 112), (64, 24, 56), (64, 480, 14)),
)
ROWS = (
    *((16, 1000), (8192, 768), (4096, 4096), (200704, 96), (50176, 192), (12544, 384)),
    *((3136, 768), (25216, 768), (1024, 8192), (128, 1024), (2048, 512)),
)
# Bags, indices a bag, rows of the table, width.
BAGS = (
    *((512, 4, 200000, 64), (2048, 4, 200000, 64), (8192, 4, 200000, 64), (2048, 20, 200000, 64)),
    *((2048, 1, 50000, 128), (8192, 8, 1000000, 16), (32768, 4, 200000, 64)),
    (4096, 10, 20000, 256),
)
LAYOUTS = (("bf16", 0), ("bf16", 1), ("fp16", 1), ("fp32", 0))


def _image(timer: Timer, dtype: str, last: int, *shape: int, grad: bool = False) -> torch.Tensor:
    found = normal(timer, *shape, dtype=dtype)
    if last:
        found = found.contiguous(memory_format=torch.channels_last)
    return found.requires_grad_(grad)


def _convolution(
    timer: Timer, direction: str, dtype: str, last: int, n: int, sizes: tuple[int, ...]
) -> Call:
    c, h, k, r, s, g = sizes
    x, w = _image(timer, dtype, last, n, c, h, h), _image(timer, dtype, last, k, c // g, r, r)
    padding = 0 if r == s else r // 2
    if direction == "f":
        return lambda: F.conv2d(x, w, None, s, padding, 1, g)
    grad = torch.randn_like(F.conv2d(x, w, None, s, padding, 1, g))
    mask = [direction == "d", direction == "w", False]
    steps = ([s] * 2, [padding] * 2, [1, 1], False, [0, 0], g, mask)
    return lambda: aten.convolution_backward(grad, x, w, None, *steps)


def _planes(timer: Timer, family: str, dtype: str, last: int, n: int, c: int, h: int) -> Call:
    name, _, way = family.partition("_")
    backward = way == "bwd"
    x = _image(timer, dtype, last, n, c, h, h, grad=backward)
    # Norms of batches keep their weights in float32 under autocast.
    kind = "fp32" if name == "bn" else dtype
    weight, bias = (normal(timer, c, dtype=kind, grad=backward) for _ in range(2))
    means, variances = torch.zeros(c, device=timer.device), torch.ones(c, device=timer.device)
    groups = 8 if c % 32 else 32
    training = way != "eval"
    calls: dict[str, Call] = {
        "bn": lambda: F.batch_norm(x, means, variances, weight, bias, training),
        "gn": lambda: F.group_norm(x, groups, weight, bias),
        "maxpool3s2": lambda: F.max_pool2d(x, 3, 2, 1),
        "maxpool2": lambda: F.max_pool2d(x, 2),
        "avgpool2": lambda: F.avg_pool2d(x, 2),
        "adaptive7": lambda: F.adaptive_avg_pool2d(x, 7),
        "nearest2": lambda: F.interpolate(x, scale_factor=2, mode="nearest"),
        "bilinear2": lambda: F.interpolate(x, scale_factor=2, mode="bilinear"),
    }
    if not backward:
        return calls[name]
    out = calls[name]()
    inputs = (x, weight, bias) if name in ("bn", "gn") else (x,)
    grad = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True)


def _rows(timer: Timer, family: str, dtype: str, rows: int, columns: int) -> Call:
    backward = family == "ln_bwd"
    x = normal(timer, rows, columns, dtype=dtype, grad=backward)
    weight, bias = (normal(timer, columns, dtype=dtype, grad=backward) for _ in range(2))
    target = torch.randint(0, columns, (rows,), device=timer.device)
    if family == "nll_bwd":
        wide, one = x.float(), torch.ones((), device=timer.device)
        total = torch.full((), float(rows), device=timer.device)
        return lambda: aten.nll_loss_backward(one, wide, target, None, 1, -100, total)
    if backward:
        out = F.layer_norm(x, (columns,), weight, bias)
        grad = torch.randn_like(out)
        return lambda: torch.autograd.grad(out, (x, weight, bias), grad, retain_graph=True)
    calls: dict[str, Call] = {
        "ln": lambda: F.layer_norm(x, (columns,), weight, bias),
        "sort": lambda: x.sort(-1),
        "topk": lambda: x.topk(8, -1),
    }
    return calls[family]


def _bag(timer: Timer, family: str, bags: int, each: int, rows: int, width: int) -> Call:
    table = normal(timer, rows, width, dtype="fp32", grad=family == "bag_bwd")
    ids = torch.randint(0, rows, (bags * each,), device=timer.device)
    offsets = torch.arange(0, bags * each, each, device=timer.device)

    def forward() -> torch.Tensor:
        return F.embedding_bag(ids, table, offsets, mode="sum")

    if family == "bag":
        return forward
    out = forward()
    grad = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, table, grad, retain_graph=True)


def _convolutions() -> Iterator[tuple[Any, ...]]:
    every = (*THREE, *OTHER_BATCHES_IN_FP32, *OTHER_BATCHES_IN_HALF, *OTHER_BATCHES)
    half, single = LAYOUTS[::2], LAYOUTS[3:]
    for batch, shapes, layouts in (
        (32, every, LAYOUTS),
        (8, (*OTHER_BATCHES_IN_FP32, *OTHER_BATCHES), single),
        (96, (*OTHER_BATCHES_IN_FP32, *OTHER_BATCHES), single),
        (8, (*OTHER_BATCHES_IN_HALF, *OTHER_BATCHES), half),
        (96, (*OTHER_BATCHES_IN_HALF, *OTHER_BATCHES), half),
    ):
        for sizes in shapes:
            for dtype, last in layouts:
                for direction in "fdw":
                    yield direction, dtype, last, batch, sizes


def images(timer: Timer, group: Group) -> Iterator[Row]:
    """All lines; each returns its call."""
    del group

    def row(make: Any, *key: Any, **named: Any) -> Row:
        blank = [""] * (len(TABLE.keys) - len(key))
        return Row((*key, *blank), functools.partial(make, timer, **named))

    for direction, dtype, last, n, sizes in _convolutions():
        named = {"direction": direction, "dtype": dtype, "last": last, "n": n, "sizes": sizes}
        yield row(_convolution, "conv", direction, dtype, last, n, *sizes, **named)
    resized = ("nearest2", "bilinear2")
    for family in (
        "bn",
        "bn_eval",
        "gn",
        "maxpool3s2",
        "maxpool2",
        "avgpool2",
        "adaptive7",
        *resized,
    ):
        ways = (family,) if family == "bn_eval" else (family, f"{family}_bwd")
        for way in ways:
            for dtype in ("bf16", "fp32"):
                for last in (0,) if family == "gn" else (0, 1):
                    for n, c, h in PLANES:
                        if family not in resized or h < 112:
                            said = {"n": n, "c": c, "h": h}
                            named = {"family": way, "dtype": dtype, "last": last, **said}
                            yield row(_planes, way, "", dtype, last, n, c, h, **named)
    for family in ("ln", "ln_bwd", "sort", "topk", "nll_bwd"):
        for dtype in ("bf16", "fp32"):
            for rows, columns in ROWS:
                named = {"family": family, "dtype": dtype, "rows": rows, "columns": columns}
                yield row(_rows, family, "", dtype, "", rows, columns, **named)
    for family in ("bag", "bag_bwd"):
        for bags, each, rows, width in BAGS:
            named = {"family": family, "bags": bags, "each": each, "rows": rows, "width": width}
            yield row(_bag, family, "", "fp32", "", bags, each, rows, width, **named)


TABLE = Table(
    "images",
    ("family", "direction", "dtype", "last", "n", "c", "h", "k", "r", "s", "g"),
    ("us",),
    images,
    profiled=True,
)
TABLES = (TABLE,)
