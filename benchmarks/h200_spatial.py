"""Operations on images, volumes and slices on `h200x8`: times measured, and what a run says.

Programs of kinds that no table had were off by up to 2.4 times: a generator with instance norms, a
network of volumes, one that resizes a pooled image. `h200_spatial.csv` beside this file has 1508
calls of the operations behind that, drawn with a seed, on one NVIDIA H200 of 2026-11-30 (PyTorch
2.11.0, cuDNN 9.19; the sum of a call's kernels in torch.profiler, mean of three calls). Constants
were read off half of the cells, by a hash of their keys; of `nearest` and `bilinear_bwd` off all.

On a GPU this measures anew; in a simulation it predicts; and it compares what both have printed:

    python benchmarks/h200_spatial.py measure > benchmarks/h200_spatial.csv
    kernbench torchrun --nproc-per-node 1 --data fake benchmarks/h200_spatial.py measure > said.csv
    python benchmarks/h200_spatial.py said.csv [FAMILY ...]
"""

import csv
import sys
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from random import Random
from typing import Any

TABLE = Path(__file__).with_name("h200_spatial.csv")
SMALLEST, LARGEST = 1 << 12, 1 << 28
MOST_WORK = 4e11
Run = Callable[[], Callable[[], Any]]
Made = tuple[tuple[Any, ...], dict[str, Run], int]
"""What tells a cell, how to make each of its operations, and the elements of the largest tensor."""


def _torch() -> Any:
    import torch

    return torch


def _tensor(*shape: int, dtype: str = "f32", last: bool = False) -> Any:
    torch = _torch()
    types = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    found = torch.randn(*shape, device="cuda").to(types[dtype])
    return found.contiguous(memory_format=torch.channels_last) if last else found


def _places(count: int, shape: tuple[int, ...]) -> Any:
    return _torch().randint(0, count, shape, device="cuda")


def _nll(draw: Random) -> Made:
    n, c = draw.choice([1, 2, 4, 8, 16]), draw.choice([2, 3, 12, 21, 80, 150])
    h = draw.choice([64, 96, 128, 256, 512])
    aten = _torch().ops.aten

    def forward() -> Callable[[], Any]:
        x, y = _tensor(n, c, h, h), _places(c, (n, h, h))
        return lambda: aten.nll_loss2d_forward(x, y, None, 1, -100)

    def backward() -> Callable[[], Any]:
        x, y = _tensor(n, c, h, h), _places(c, (n, h, h))
        one = _torch().ones((), device="cuda")
        total = one * float(y.numel())
        return lambda: aten.nll_loss2d_backward(one, x, y, None, 1, -100, total)

    return (n, c, h), {"nll2": forward, "nll2_bwd": backward}, n * c * h * h


def _group_norm(draw: Random) -> Made:
    n, g = draw.choice([1, 2, 4, 8, 32, 64]), draw.choice([1, 4, 8, 32])
    c, rank = g * draw.choice([1, 2, 4, 8, 16]), draw.choice([2, 3])
    h = draw.choice([8, 16, 32, 64, 128, 256] if rank == 2 else [8, 16, 32, 64, 96])
    dtype = draw.choice(["f32", "bf16"])
    shape, plane, aten = (n, c, *[h] * rank), h**rank, _torch().ops.aten

    def forward() -> Callable[[], Any]:
        x, w, b = _tensor(*shape, dtype=dtype), _tensor(c, dtype=dtype), _tensor(c, dtype=dtype)
        return lambda: aten.native_group_norm(x, w, b, n, c, plane, g, 1e-5)

    def backward() -> Callable[[], Any]:
        x, w, b = _tensor(*shape, dtype=dtype), _tensor(c, dtype=dtype), _tensor(c, dtype=dtype)
        _, mean, rstd = aten.native_group_norm(x, w, b, n, c, plane, g, 1e-5)
        y, wanted = _tensor(*shape, dtype=dtype), [True] * 3
        return lambda: aten.native_group_norm_backward(y, x, mean, rstd, w, n, c, plane, g, wanted)

    return (dtype, n, c, g, h, rank), {"gn2": forward, "gn2_bwd": backward}, prod(shape)


def _instance_norm(draw: Random) -> Made:
    n, c = draw.choice([1, 4, 16, 64, 256]), draw.choice([3, 64, 128, 256, 512])
    h, dtype = draw.choice([4, 8, 16, 32, 64, 128]), draw.choice(["f32", "f16", "bf16"])
    torch = _torch()
    norm = torch.nn.functional.instance_norm

    def forward() -> Callable[[], Any]:
        x, w, b = _tensor(n, c, h, h, dtype=dtype), _tensor(c), _tensor(c)
        return lambda: norm(x, weight=w, bias=b)

    def backward() -> Callable[[], Any]:
        x, w, b = _tensor(n, c, h, h, dtype=dtype), _tensor(c), _tensor(c)
        given = [each.requires_grad_() for each in (x, w, b)]
        y = norm(x, weight=w, bias=b)
        g = torch.randn_like(y)
        return lambda: torch.autograd.grad(y, given, g, retain_graph=True)

    return (dtype, n, c, h), {"in": forward, "in_bwd": backward}, n * c * h * h


def _resized(mode: str) -> Callable[[Random], Made]:
    torch = _torch()
    options = {"mode": mode} | ({"align_corners": False} if mode == "bilinear" else {})

    def family(draw: Random) -> Made:
        n, c = draw.choice([1, 2, 8, 32]), draw.choice([3, 21, 64, 128, 256])
        h = draw.choice([1, 2, 4, 8, 16, 32, 64, 128])
        out, dtype = draw.choice([8, 16, 32, 64, 128, 256, 512]), draw.choice(["f32", "bf16"])

        def forward() -> Callable[[], Any]:
            x = _tensor(n, c, h, h, dtype=dtype)
            return lambda: torch.nn.functional.interpolate(x, (out, out), **options)

        def backward() -> Callable[[], Any]:
            x = _tensor(n, c, h, h, dtype=dtype).requires_grad_()
            y = torch.nn.functional.interpolate(x, (out, out), **options)
            g = torch.randn_like(y)
            return lambda: torch.autograd.grad(y, x, g, retain_graph=True)

        runs = {mode: forward, f"{mode}_bwd": backward}
        return (dtype, n, c, h, out), runs, n * c * max(h, out) ** 2

    return family


def _roll(draw: Random) -> Made:
    n, h, c = draw.choice([8, 32, 64, 128]), draw.choice([14, 28, 56]), draw.choice([96, 192, 384])
    dtype, count = draw.choice(["f32", "bf16"]), draw.choice([1, 2])

    def forward() -> Callable[[], Any]:
        x = _tensor(n, h, h, c, dtype=dtype)
        return lambda: x.roll((-3,) * count, (1, 2)[:count])

    return (dtype, n, h, c, count), {"roll": forward}, n * h * h * c


def _slices(draw: Random) -> Made:
    rows = draw.choice([1000, 10_000, 100_000, 1_000_000])
    columns = draw.choice([1, 8, 16, 32, 64, 128, 256, 512])
    count = draw.choice([10_000, 100_000, 1_000_000, 4_000_000])
    dtype = draw.choice(["f32", "bf16"])

    def run(call: Callable[[Any, Any, Any], Any], adds: bool = False) -> Run:
        def made() -> Callable[[], Any]:
            x, places = _tensor(rows, columns, dtype=dtype), _places(rows, (count,))
            value = _tensor(count, columns, dtype=dtype) if adds else None
            return lambda: call(x, places, value)

        return made

    runs = {
        "index_select": run(lambda x, i, _: x.index_select(0, i)),
        "index": run(lambda x, i, _: x[i]),
        "index_add": run(lambda x, i, v: x.index_add_(0, i, v), True),
        "scatter_add": run(lambda x, i, v: x.scatter_add_(0, i[:, None].expand_as(v), v), True),
        "gather": run(lambda x, i, _: x.gather(0, i[:, None].expand(-1, columns))),
    }
    return (dtype, rows, columns, count), runs, count * columns


def _channels(draw: Random) -> Made:
    n, c = draw.choice([1, 8, 32, 128]), draw.choice([3, 32, 64, 128, 256, 512])
    h, dtype = draw.choice([7, 14, 28, 56, 112, 224]), draw.choice(["f32", "bf16"])
    last, aten = draw.choice([False, True]), _torch().ops.aten

    def run(call: Callable[[Any, Any], Any]) -> Run:
        def made() -> Callable[[], Any]:
            x, w = _tensor(n, c, h, h, dtype=dtype, last=last), _tensor(1, c, 1, 1, dtype=dtype)
            return lambda: call(x, w)

        return made

    runs = {
        "channel_sum": run(lambda x, _: x.sum((0, 2, 3))),
        "channel_prelu": run(aten._prelu_kernel),
        "channel_add": run(lambda x, w: x.add_(w)),
    }
    return (dtype, n, c, h, int(last)), runs, n * c * h * h


def _convolution(
    image: tuple[int, ...],
    weight: tuple[int, ...],
    stride: int,
    padding: int,
    dilation: int,
    dtype: str,
    family: str,
    gradients: bool = True,
) -> Made | None:
    rank, aten = len(image) - 2, _torch().ops.aten
    lies = ([stride] * rank, [padding] * rank, [dilation] * rank, False, [0] * rank, 1)
    pairs = zip(image[2:], weight[2:], strict=True)
    out = [(a + 2 * padding - dilation * (b - 1) - 1) // stride + 1 for a, b in pairs]
    if min(out) < 1:
        return None
    result = (image[0], weight[0], *out)

    def forward() -> Callable[[], Any]:
        x, w = _tensor(*image, dtype=dtype), _tensor(*weight, dtype=dtype)
        return lambda: aten.convolution(x, w, None, *lies)

    def backward(data: bool) -> Run:
        def made() -> Callable[[], Any]:
            x, w = _tensor(*image, dtype=dtype), _tensor(*weight, dtype=dtype)
            g, wanted = _tensor(*result, dtype=dtype), [data, not data, False]
            return lambda: aten.convolution_backward(g, x, w, None, *lies, wanted)

        return made

    runs: dict[str, Run] = {family: forward}
    if gradients:
        runs |= {f"{family}_data": backward(True), f"{family}_weight": backward(False)}
    work = prod(result) * image[1] * weight[2] ** rank
    size = max(prod(image), result[0] * result[1] * out[0] ** rank)
    key = (dtype, "x".join(map(str, image)), "x".join(map(str, weight)), stride, padding, dilation)
    return key, runs, size if work < MOST_WORK else LARGEST + 1


def _lines(draw: Random) -> Made | None:
    n, c = draw.choice([4, 8, 16, 32]), draw.choice([1, 32, 64, 128, 256, 512])
    k, w = draw.choice([32, 64, 128, 256, 512]), draw.choice([1, 2, 3, 5, 7])
    stride, length = draw.choice([1, 1, 2]), draw.choice([500, 1500, 3000, 8000, 16000])
    dtype = draw.choice(["f32", "f16", "bf16"])
    dilation = draw.choice([1, 1, 2, 4, 16, 64]) if stride == 1 else 1
    return _convolution((n, c, length), (k, c, w), stride, w // 2, dilation, dtype, "conv1d")


def _volumes(draw: Random) -> Made | None:
    n, c = draw.choice([1, 2, 4]), draw.choice([1, 16, 32, 64, 128])
    k, w, stride = draw.choice([16, 32, 64, 128]), draw.choice([1, 3, 3]), draw.choice([1, 1, 2])
    h, dtype = draw.choice([16, 24, 32, 48, 64, 96]), draw.choice(["f32", "f16", "bf16"])
    return _convolution((n, c, h, h, h), (k, c, w, w, w), stride, w // 2, 1, dtype, "conv3d")


def _dilated(draw: Random) -> Made | None:
    n, c = draw.choice([2, 8, 16]), draw.choice([64, 128, 256, 512])
    k, h = draw.choice([64, 128, 256, 512]), draw.choice([28, 32, 64, 65, 128])
    dtype, apart = draw.choice(["f32", "f16", "bf16"]), draw.choice([2, 4, 6, 12, 18])
    return _convolution((n, c, h, h), (k, c, 3, 3), 1, apart, apart, dtype, "conv2d_dilated")


def _by_gradient(draw: Random) -> Made | None:
    n, c = draw.choice([16, 64, 128, 256]), draw.choice([3, 64, 128, 256])
    k, h = draw.choice([64, 128, 256, 512]), draw.choice([8, 16, 32, 64])
    draw.choice([3, 4])  # a number that no cell uses, of the same sequence
    weight = (k, n, h // 2, h // 2)
    return _convolution((c, n, h, h), weight, 1, 1, 2, "f32", "conv_by_gradient", gradients=False)


def _long(draw: Random) -> Made:
    sizes, dtype = [32, 64, 128, 256, 384, 512, 768, 1024], draw.choice(["f32", "f32", "bf16"])
    m, n = draw.choice(sizes), draw.choice(sizes)
    k = draw.choice([4096, 8192, 16384, 65536, 262144])

    def forward() -> Callable[[], Any]:
        a, b = _tensor(k, m, dtype=dtype), _tensor(k, n, dtype=dtype)
        return lambda: a.t() @ b

    return (dtype, m, n, k), {"mm_long": forward}, k * max(m, n)


def _batches(draw: Random) -> Made:
    sizes, dtype = [16, 32, 49, 64, 128, 196], draw.choice(["f32", "bf16"])
    batch, m, n = draw.choice([64, 512, 4096, 24576]), draw.choice(sizes), draw.choice(sizes)
    k = draw.choice([16, 32, 49, 64, 128])

    def forward() -> Callable[[], Any]:
        x, y = _tensor(batch, m, k, dtype=dtype), _tensor(batch, k, n, dtype=dtype)
        return lambda: _torch().bmm(x, y)

    key = (dtype, batch, m, n, k)
    return key, {"bmm_small": forward}, batch * max(m * n, m * k, n * k)


def _cells() -> Iterator[tuple[str, str, Run]]:
    families: list[tuple[Callable[[Random], Made | None], int]] = [
        *((_nll, 30), (_group_norm, 70), (_instance_norm, 60), (_resized("bilinear"), 70)),
        *((_resized("nearest"), 40), (_roll, 24), (_slices, 50), (_channels, 60), (_lines, 50)),
        *((_volumes, 50), (_dilated, 30), (_by_gradient, 24), (_long, 50), (_batches, 50)),
    ]
    for number, (family, count) in enumerate(families):
        draw = Random(number)
        seen: set[tuple[Any, ...]] = set()
        while len(seen) < count:
            made = family(draw)
            if made is None or made[0] in seen or not SMALLEST <= made[2] <= LARGEST:
                continue
            seen.add(made[0])
            for name, run in made[1].items():
                yield name, " ".join(map(str, made[0])), run


def measure() -> None:
    """Prints family, key and microseconds of each cell, on the device that there is."""
    torch = _torch()
    lines = csv.writer(sys.stdout)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    kernels = torch.autograd.DeviceType.CUDA
    for name, key, run in _cells():
        torch.manual_seed(0)
        call = run()
        for _ in range(2):
            call()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=activities) as profiled:
            for _ in range(3):
                call()
            torch.cuda.synchronize()
        rows = [
            each
            for each in profiled.key_averages()
            if getattr(each, "device_type", None) != kernels  # counted with their operations
        ]
        us = sum(each.self_device_time_total for each in rows) / 3
        lines.writerow([name, key, round(us, 2)])


def _read(path: Path) -> dict[tuple[str, str], float]:
    with path.open() as lines:
        rows = [row for row in csv.reader(lines) if len(row) == 3]
    return {(name, key): float(us) for name, key, us in rows}


def compare(said: Path, wanted: list[str]) -> None:
    """Prints how far a prediction is off, by family and half; the cells of those that are named."""
    measured, predicted = _read(TABLE), _read(said)
    found: dict[str, list[tuple[bool, float, float, str]]] = defaultdict(list)
    for (name, key), us in measured.items():
        second = zlib.crc32(f"{name},{key}".encode()) % 2 == 1
        found[name].append((second, us, predicted[name, key], key))
    print(f"{'family':24}{'cells':>6}{'half':>7}{'other':>7}{'worst':>8}{'sum':>7}")
    for name, cells in found.items():
        if wanted and name not in wanted:
            continue
        means = []
        for half in (False, True):
            errors = [abs(ps / us - 1) for second, us, ps, _ in cells if second is half]
            means.append(100 * sum(errors) / max(1, len(errors)))
        worst = max(max(ps / us, us / ps) for _, us, ps, _ in cells)
        total = sum(ps for _, _, ps, _ in cells) / sum(us for _, us, _, _ in cells)
        print(f"{name:24}{len(cells):6}{means[0]:6.0f}%{means[1]:6.0f}%{worst:7.1f}x{total:7.2f}")
        for _, us, ps, key in sorted(cells, key=lambda each: each[1]) if wanted else ():
            print(f"    {key:48} measured {us:9.1f} predicted {ps:9.1f} {ps / us:6.2f}")


if __name__ == "__main__":
    if sys.argv[1:] == ["measure"]:
        measure()
    else:
        compare(Path(sys.argv[1]), sys.argv[2:])
