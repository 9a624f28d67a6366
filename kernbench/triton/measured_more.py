"""The kernels of Triton that the table `triton_more` measures.

They were chosen after the law of times had been fitted on those of `measured`.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803, PIE808 - Triton types the arguments, and their names are the language's
import triton
import triton.language as tl


@triton.jit
def layer_norm(x, y, w, b, n, eps, BLOCK: tl.constexpr):
    """Layer norm of rows, a row each program, which is loaded once."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    keep = at < n
    v = tl.load(x + row * n + at, mask=keep, other=0.0).to(tl.float32)
    mean = tl.sum(v, 0) / n
    d = tl.where(keep, v - mean, 0.0)
    var = tl.sum(d * d, 0) / n
    o = d / tl.sqrt(var + eps)
    o = o * tl.load(w + at, mask=keep, other=0.0) + tl.load(b + at, mask=keep, other=0.0)
    tl.store(y + row * n + at, o, mask=keep)


@triton.jit
def rms_loop(x, y, w, n, eps, BLOCK: tl.constexpr):
    """RMS norm of rows, a row each program, which is loaded twice in blocks."""
    row = tl.program_id(0)
    acc = tl.zeros([BLOCK], tl.float32)
    for first in range(0, n, BLOCK):
        at = first + tl.arange(0, BLOCK)
        v = tl.load(x + row * n + at, mask=at < n, other=0.0).to(tl.float32)
        acc += v * v
    scale = 1 / tl.sqrt(tl.sum(acc, 0) / n + eps)
    for first in range(0, n, BLOCK):
        at = first + tl.arange(0, BLOCK)
        v = tl.load(x + row * n + at, mask=at < n, other=0.0).to(tl.float32)
        o = v * scale * tl.load(w + at, mask=at < n, other=0.0)
        tl.store(y + row * n + at, o, mask=at < n)


@triton.jit
def swiglu(a, b, c, n, BLOCK: tl.constexpr):
    """SwiGLU, a block each program."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = at < n
    u = tl.load(a + at, mask=keep, other=0.0).to(tl.float32)
    v = tl.load(b + at, mask=keep, other=0.0).to(tl.float32)
    tl.store(c + at, u * tl.sigmoid(u) * v, mask=keep)


@triton.jit
def dropout(x, y, n, p, seed, BLOCK: tl.constexpr):
    """Dropout by `tl.rand`, a block each program."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = at < n
    v = tl.load(x + at, mask=keep, other=0.0)
    r = tl.rand(seed, at)
    tl.store(y + at, tl.where(r > p, v / (1 - p), 0.0), mask=keep)


@triton.jit
def transpose(x, y, m, n, B: tl.constexpr):
    """Transpose, a square tile each program."""
    i = tl.program_id(0) * B + tl.arange(0, B)
    j = tl.program_id(1) * B + tl.arange(0, B)
    v = tl.load(x + i[:, None] * n + j[None, :], mask=(i[:, None] < m) & (j[None, :] < n))
    tl.store(y + j[:, None] * m + i[None, :], tl.trans(v), mask=(j[:, None] < n) & (i[None, :] < m))


@triton.jit
def gather_rows(ids, table, out, d, BLOCK: tl.constexpr):
    """Looks rows up, a row each program."""
    row = tl.program_id(0)
    source = tl.load(ids + row)
    at = tl.arange(0, BLOCK)
    tl.store(out + row * d + at, tl.load(table + source * d + at, mask=at < d), mask=at < d)


@triton.jit
def column_sum(x, out, m, n, BM: tl.constexpr, BN: tl.constexpr):
    """Sums of columns, a part of the rows each program, added up by atomic operations."""
    j = tl.program_id(0) * BN + tl.arange(0, BN)
    acc = tl.zeros([BN], tl.float32)
    first = tl.program_id(1) * (m // tl.num_programs(1))
    for k in range(0, m // tl.num_programs(1), BM):
        i = first + k + tl.arange(0, BM)
        acc += tl.sum(tl.load(x + i[:, None] * n + j[None, :]).to(tl.float32), 0)
    tl.atomic_add(out + j, acc)


@triton.jit
def column_sum_late(x, out, m, n, BM: tl.constexpr, BN: tl.constexpr):
    """Sums of columns as `column_sum`, but rows of the tile are added up once, after the loop."""
    j = tl.program_id(0) * BN + tl.arange(0, BN)
    acc = tl.zeros([BM, BN], tl.float32)
    first = tl.program_id(1) * (m // tl.num_programs(1))
    for k in range(0, m // tl.num_programs(1), BM):
        i = first + k + tl.arange(0, BM)
        acc += tl.load(x + i[:, None] * n + j[None, :]).to(tl.float32)
    tl.atomic_add(out + j, tl.sum(acc, 0))


@triton.jit
def scan_rows(x, y, n, BLOCK: tl.constexpr):
    """Sums of what is before each element of a row, a row each program."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    tl.store(y + row * n + at, tl.cumsum(tl.load(x + row * n + at), 0))


@triton.jit
def gemm(
    a,
    b,
    c,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    G: tl.constexpr,
    ACT: tl.constexpr,
):
    """Multiplies a[M, K] and b[K, N], programs in groups of G rows of tiles; ACT adds a GELU."""
    pid = tl.program_id(0)
    pm, pn = tl.cdiv(M, BM), tl.cdiv(N, BN)
    group = pid // (G * pn)
    size = min(pm - group * G, G)
    im = group * G + (pid % (G * pn)) % size
    jn = (pid % (G * pn)) // size
    i, j, k = im * BM + tl.arange(0, BM), jn * BN + tl.arange(0, BN), tl.arange(0, BK)
    pa, pb = a + i[:, None] * K + k[None, :], b + k[:, None] * N + j[None, :]
    acc = tl.zeros([BM, BN], tl.float32)
    for _ in range(0, tl.cdiv(K, BK)):
        acc = tl.dot(tl.load(pa), tl.load(pb), acc)
        pa += BK
        pb += BK * N
    if ACT:
        acc = acc * tl.sigmoid(1.702 * acc)
    tl.store(c + i[:, None] * N + j[None, :], acc.to(c.dtype.element_ty))


@triton.jit
def flash(
    q,
    k,
    v,
    o,
    seq,
    scale,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """Attention forward as of `measured`, its sums scaled beside the product and not in it."""
    head = tl.program_id(1) * seq * D
    i, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    qq = tl.load(q + head + i[:, None] * D + d[None, :])
    top = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    end = (tl.program_id(0) + 1) * BM if CAUSAL else seq
    for n in range(0, end, BN):
        j = n + tl.arange(0, BN)
        kk = tl.load(k + head + j[None, :] * D + d[:, None])
        s = tl.dot(qq, kk) * scale
        if CAUSAL:
            s = tl.where(i[:, None] >= j[None, :], s, float("-inf"))
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp(s - new[:, None])
        keep = tl.exp(top - new)
        total = total * keep + tl.sum(p, 1)
        vv = tl.load(v + head + j[:, None] * D + d[None, :])
        acc = acc * keep[:, None] + tl.dot(p.to(vv.dtype), vv)
        top = new
    tl.store(o + head + i[:, None] * D + d[None, :], (acc / total[:, None]).to(o.dtype.element_ty))


@triton.jit
def fma_turns(y, k, BLOCK: tl.constexpr):
    """Products and sums of numbers in registers, turn by turn, a block each program."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = at.to(tl.float32)
    for _ in range(k):
        v = v * 1.0001 + 0.5
    tl.store(y + at, v)


@triton.jit
def store_turns(y, k, BLOCK: tl.constexpr):
    """Stores blocks that follow each other, a block a turn."""
    for turn in range(k):
        at = (tl.program_id(0) * k + turn) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, at.to(tl.float32))


@triton.jit
def copy_turns(x, y, k, BLOCK: tl.constexpr):
    """Copies blocks that follow each other, a block a turn; the compiler can move no load up."""
    for turn in range(k):
        at = (tl.program_id(0) * k + turn) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, tl.load(x + at))


@triton.jit
def chase(following, out, k):
    """Looks up where to look next, turn by turn."""
    at = tl.program_id(0).to(tl.int64)
    for _ in range(k):
        at = tl.load(following + at)
    tl.store(out + tl.program_id(0), at)


@triton.jit
def add_at(out, n, BLOCK: tl.constexpr):
    """Adds one to `n` elements by atomic operations of all lanes of all programs."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + at % n, 1.0)


@triton.jit
def add_apart(out, n, STEP: tl.constexpr, BLOCK: tl.constexpr):
    """Adds one to `n` elements, which lie apart, by atomic operations of all lanes."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + at % n * STEP, 1.0)


@triton.jit
def count_ids(ids, out, BLOCK: tl.constexpr):
    """Counts how often there is each number, by atomic operations: a histogram."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + tl.load(ids + at), 1.0)


@triton.jit
def take_tickets(out, got, n, BLOCK: tl.constexpr):
    """Adds as `add_at`, and stores what there was before."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(got + at, tl.atomic_add(out + at % n, 1.0))


@triton.jit
def sum_within(x, y, k, n, BLOCK: tl.constexpr):
    """Adds up blocks that follow each other, a block a turn, of `n` elements over and over."""
    at = tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], tl.float32)
    for turn in range(k):
        first = (tl.program_id(0) * k + turn) * BLOCK % n
        acc += tl.load(x + first + at)
    tl.store(y + tl.program_id(0) * BLOCK + at, acc)
