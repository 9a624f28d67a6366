"""Compiles kernels to machine code of several architectures, as Triton does outside of ranks.

Argument: the folder into which the files go, each named by its architecture and kernel.
"""

import os
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1])
os.environ["TRITON_CACHE_DIR"] = str(FOLDER / "cache")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402


@triton.jit
def product(a, b, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n, k = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for at in range(0, K, BK):
        left = tl.load(a + m[:, None] * K + (at + k)[None, :])
        right = tl.load(b + (at + k)[:, None] * N + n[None, :])
        total = tl.dot(left, right, total)
    tl.store(c + m[:, None] * N + n[None, :], total)


@triton.jit
def blocks(a, b, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    left = tl.make_tensor_descriptor(a, [BM, K], [K, 1], [BM, BK])
    right = tl.make_tensor_descriptor(b, [BN, K], [K, 1], [BN, BK])
    total = tl.zeros((BM, BN), tl.float32)
    for at in range(0, K, BK):
        total = tl.dot(left.load([0, at]), right.load([0, at]).T, total)
    m, n = tl.arange(0, BM), tl.arange(0, BN)
    tl.store(c + m[:, None] * N + n[None, :], total)


@triton.jit
def sums(a, b, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    n = tl.arange(0, BN)
    total = tl.zeros((BN,), tl.float32)
    for at in range(K):
        total += tl.load(a + at * BM + n) * tl.sum(tl.load(b + at + n * BK))
        while tl.max(total) > N:
            total -= tl.load(b + n)
    tl.store(c + n, total)


@triton.jit
def turns(a, b, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    n = tl.arange(0, BN)
    number = n
    for _ in range(K):
        number = number * 3 + 1
    for at in range(0, N, BM):
        number += tl.atomic_add(a + at + n, 1)
        tl.atomic_add(a + n, 1)
        number += tl.atomic_cas(a + at, 1, 2)
    tl.store(b + n, number)


@triton.jit
def many(a, b, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    n = tl.arange(0, BM * BN * 8)  # 256 numbers a thread
    total = tl.load(a + n)
    for at in range(K):
        total = total * total + tl.load(b + at + n)
    tl.store(c + n, total)


def compiled(kernel: Any, arch: int, element: str, aligned: int) -> None:
    types = [f"*{element}", f"*{element}", "*fp32", "i32", "i32"]
    kinds = dict(zip(kernel.arg_names, [*types, *["constexpr"] * 3], strict=True))
    attrs = {(place,): [["tt.divisibility", aligned]] for place in range(5)}
    source = triton.compiler.ASTSource(kernel, kinds, {(5,): 64, (6,): 64, (7,): 64}, attrs)
    binary = triton.compile(source, target=GPUTarget("cuda", arch, 32)).asm["cubin"]
    name = f"{arch}_{kernel.__name__}_{element}_{aligned}.cubin"
    (FOLDER / name).write_bytes(binary)


for arch in (80, 90, 100):
    compiled(product, arch, "fp16", 16)
    compiled(product, arch, "fp32", 2)
    compiled(blocks, arch, "bf16", 16)
    compiled(sums, arch, "i8", 1)
    compiled(turns, arch, "i32", 16)
    compiled(many, arch, "fp32", 16)
