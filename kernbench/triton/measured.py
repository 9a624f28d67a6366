"""The kernels of Triton that the tables `triton_*` measure, as a user writes them.

They are written as a user writes them, after what validation/README.md says of the tables.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803 - Triton types the arguments, and their names are the language's
import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    """Adds two vectors, a block each program."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    """Softmax of rows, a row each program; a block is the next power of two."""
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * columns + at, mask=inside, other=float("-inf")).to(tl.float32)
    powers = tl.exp(values - tl.max(values, axis=0))
    found = powers / tl.sum(powers, axis=0)
    tl.store(out + row * columns + at, found.to(tl.bfloat16), mask=inside)


@triton.jit
def gemm(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Multiplies a[M, K] and b[K, N], an output tile each program, in the order of rows."""
    tiles = tl.cdiv(N, BN)
    i, j = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    rows, columns, steps = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    at_a = a + rows[:, None] * K + steps[None, :]
    at_b = b + steps[:, None] * N + columns[None, :]
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(0, K, BK):
        total = tl.dot(tl.load(at_a), tl.load(at_b), total)
        at_a += BK
        at_b += BK * N
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(tl.bfloat16), mask=inside)


@triton.jit
def flash(
    q,
    k,
    v,
    out,
    length,
    scale,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """Attention forward: BM queries of a head each program, a loop over keys in tiles of BN."""
    start, head = tl.program_id(0) * BM, tl.program_id(1)
    rows, columns, width = start + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, D)
    base = head * length * D
    queries = tl.load(q + base + rows[:, None] * D + width[None, :])
    most = tl.full((BM,), float("-inf"), tl.float32)
    norm = tl.zeros((BM,), tl.float32)
    total = tl.zeros((BM, D), tl.float32)
    end = start + BM if CAUSAL else length
    for first in range(0, end, BN):
        at = first + columns
        keys = tl.load(k + base + at[None, :] * D + width[:, None])
        scores = tl.dot(queries, keys) * scale
        if CAUSAL:
            scores = tl.where(rows[:, None] >= at[None, :], scores, float("-inf"))
        higher = tl.maximum(most, tl.max(scores, axis=1))
        powers = tl.exp(scores - higher[:, None])
        less = tl.exp(most - higher)
        norm = norm * less + tl.sum(powers, axis=1)
        values = tl.load(v + base + at[:, None] * D + width[None, :])
        total = tl.dot(powers.to(tl.bfloat16), values, total * less[:, None])
        most = higher
    found = total / norm[:, None]
    tl.store(out + base + rows[:, None] * D + width[None, :], found.to(tl.bfloat16))
