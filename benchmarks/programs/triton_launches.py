"""One kernel of Triton, launched some times: prints what each launch took and the peak memory.

What it took is process time, and beside it what processes took that it has started.

Runs on simulated devices (`kernbench run`), and on the CPU in Triton's interpreter
(`TRITON_INTERPRET=1`). With `IMPORTED` in the environment it imports what Triton itself imports at
the first launch of a process. Arguments: the case, the number of launches, a size, and any
fourth where no numbers are computed. Results of ones are known, and asserted.
"""

import importlib
import json
import os
import resource
import sys
import time

import torch
import triton
import triton.language as tl

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
HEADS, DEPTH = 4, 64


@triton.jit
def gemm(a, b, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for at in range(0, K, BK):
        left = tl.load(a + m[:, None] * K + (at + k)[None, :])
        right = tl.load(b + (at + k)[:, None] * N + n[None, :])
        total = tl.dot(left, right, total)
    tl.store(c + m[:, None] * N + n[None, :], total)


@triton.jit
def flash(q, k, v, out, scale, T, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    base = tl.program_id(1) * T * D
    m, n, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, D)
    query = tl.load(q + base + m[:, None] * D + d[None, :])
    top = tl.full((BM,), -float("inf"), dtype=tl.float32)
    weight = tl.zeros((BM,), dtype=tl.float32)
    total = tl.zeros((BM, D), dtype=tl.float32)
    for at in range(0, T, BN):
        keys = tl.load(k + base + (at + n)[None, :] * D + d[:, None])
        scores = tl.dot(query, keys) * scale
        above = tl.maximum(top, tl.max(scores, axis=1))
        share = tl.exp(scores - above[:, None])
        fade = tl.exp(top - above)
        weight = weight * fade + tl.sum(share, axis=1)
        values = tl.load(v + base + (at + n)[:, None] * D + d[None, :])
        total = tl.dot(share, values, total * fade[:, None])
        top = above
    tl.store(out + base + m[:, None] * D + d[None, :], total / weight[:, None])


@triton.jit
def softmax(out, given, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(given + row * columns + at).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out + row * columns + at, (e / tl.sum(e, axis=0)).to(tl.bfloat16))


def children() -> float:
    """Returns the CPU seconds of processes that this one has started, and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    case, launches, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if case == "gemm":
        a, b, c = (torch.ones(size, size, device=DEVICE) for _ in range(3))
        tiles, result, expected = (size // 64, size // 64), c, float(size)
        launch = lambda: gemm[tiles](a, b, c, size, size, BM=64, BN=64, BK=32)  # noqa: E731
    elif case == "flash":
        q, k, v, out = (torch.ones(HEADS, size, DEPTH, device=DEVICE) for _ in range(4))
        blocks, result, expected = (size // 64, HEADS), out, 1.0
        launch = lambda: flash[blocks](q, k, v, out, 0.125, size, D=DEPTH, BM=64, BN=64)  # noqa: E731
    else:
        x = torch.ones(size, 4096, dtype=torch.bfloat16, device=DEVICE)
        y = torch.empty_like(x)
        result, expected = y, 1 / 4096
        launch = lambda: softmax[(size,)](y, x, 4096, BLOCK=4096)  # noqa: E731
    if "IMPORTED" in os.environ:
        importlib.import_module("triton.experimental.gluon.nvidia.hopper")
    took, others = [], []
    for _ in range(launches):
        begin, there = time.process_time(), children()
        launch()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        took.append(time.process_time() - begin)
        others.append(children() - there)
    # Before the comparison, whose differences are as large as the result.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if len(sys.argv) == 4:
        off = (result - expected).abs().max().item()
        assert off <= 1e-5 * expected, off
    print(json.dumps({"took": took, "others": others, "peak": peak}))


main()
