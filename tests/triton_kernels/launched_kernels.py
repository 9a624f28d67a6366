"""Kernels as users write them; Triton reads their source, and takes no annotations but its own."""

import triton
import triton.language as tl
from triton.language.extra import libdevice

SCALE = tl.constexpr(2)


@triton.jit
def square(x):
    return x * x


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    x = tl.load(x_ptr + at, mask=mask)
    y = tl.load(y_ptr + at, mask=mask)
    tl.store(out_ptr + at, square(x) * SCALE + y, mask=mask)


@triton.jit
def rows(out, given, stride, n, T: tl.constexpr, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(given + row * stride + at, mask=at < n, other=-float("inf")).to(T)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out + row * stride + at, e / tl.sum(e, axis=0), mask=at < n)


@triton.jit
def from_libdevice(x, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, libdevice.asin(tl.load(x + at)))


@triton.jit
def of_unknown_assembler(x, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    y = tl.inline_asm_elementwise(
        "bogus.f32 $0, $1;", "=r,r", [tl.load(x + at)], tl.float32, True, 1
    )
    tl.store(x + at, y)


@triton.jit
def refused_by_triton(x):
    at = tl.arange(0, 48)
    tl.store(x + at, 0)


@triton.jit
def says(x):
    tl.device_print("value", tl.load(x))


@triton.jit
def counts(out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.num_programs(0))


@triton.jit
def adds_one(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


@triton.jit
def takes_all(
    out,
    pair,
    nothing,
    flag,
    small,
    long,
    single,
    half: tl.float16,
    whole: tl.int64,
    double: tl.float64,
    KIND: tl.constexpr,
):
    pointer, extent = pair
    total = tl.load(pointer).to(tl.float64) + extent + small + long + whole
    if flag:
        total += single
    if nothing is None:
        total += half + double
    tl.static_assert(KIND == "plain")
    tl.store(out, total)


@triton.jit
def iterates(out, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = place.to(tl.float32)
    for _ in range(n):
        x = x * 1.0001 + 0.5
    tl.store(out + place, x)


@triton.jit
def makes_a_descriptor(given, out, M: tl.constexpr, N: tl.constexpr):
    block = tl.make_tensor_descriptor(given, [M, N], [N, 1], [M, N]).load([0, 0])
    place = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + place, block)


@triton.jit
def never_ends(x):
    i = 0
    while i >= 0:
        i = (i + 1) % 1000
    tl.store(x, i)


@triton.jit
def fills(out, n, BLOCK: tl.constexpr):
    first = tl.program_id(0) * n * BLOCK + tl.arange(0, BLOCK)
    for turn in range(n):
        tl.store(out + first + turn * BLOCK, 1.0)


@triton.jit
def copies(given, out, n, BLOCK: tl.constexpr):
    for first in range(0, n, BLOCK):
        place = first + tl.arange(0, BLOCK)
        tl.store(out + place, tl.load(given + place))


@triton.jit
def of_descriptor(given, out, M: tl.constexpr, N: tl.constexpr):
    block = given.load([tl.program_id(0) * M, 0])
    rows, columns = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    tl.store(out + (tl.program_id(0) * M + rows) * N + columns, block * 2)


@triton.jit
def by_addresses(addresses, out, count):
    total = 0.0
    for number in range(count):
        pointer = tl.load(addresses + number).to(tl.pointer_type(tl.float32))
        total += tl.load(pointer)
    tl.store(out, total)


@triton.jit
def at_addresses(addresses, count):
    for number in range(count):
        tl.store(tl.load(addresses + number).to(tl.pointer_type(tl.float32)), 1.0)


@triton.jit
def turns_of(counts, out):
    total = 0
    for number in range(tl.load(counts + tl.program_id(0))):
        total += number
    tl.store(out + tl.program_id(0), total)


@triton.autotune(
    configs=[
        triton.Config({"BK": 128}, num_warps=8, num_stages=4),  # needs 384 KiB of shared memory
        triton.Config({"BK": 32}, num_warps=8, num_stages=1),
        triton.Config({"BK": 32}, num_warps=8, num_stages=3),
    ],
    key=["K"],
)
@triton.jit
def product(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows, columns, steps = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for first in range(0, K, BK):
        left = tl.load(a + rows[:, None] * K + first + steps[None, :])
        right = tl.load(b + (first + steps[:, None]) * BN + columns[None, :])
        total = tl.dot(left, right, total)
    tl.store(c + rows[:, None] * BN + columns[None, :], total)


@triton.jit
def adds_up(bins, n, BLOCK: tl.constexpr):
    """Adds one to `n` numbers, one after the other and over again."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(bins + at % n, 1)


@triton.jit
def tallies(ids, bins, BLOCK: tl.constexpr):
    """Counts how often there is each number."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(bins + tl.load(ids + at), 1)
