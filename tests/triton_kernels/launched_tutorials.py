"""Kernels like those of Triton's tutorials 01 to 09, written as a user writes them."""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def vector_add(x_ptr, y_ptr, out_ptr, n, BLOCK_SIZE: tl.constexpr):
    pid = tl.program_id(axis=0)
    offsets = pid * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x + y, mask=mask)


@triton.jit
def fused_softmax(out_ptr, in_ptr, in_stride, out_stride, n_rows, n_cols, BLOCK_SIZE: tl.constexpr):
    for row in tl.range(tl.program_id(0), n_rows, tl.num_programs(0), num_stages=2):
        offsets = tl.arange(0, BLOCK_SIZE)
        mask = offsets < n_cols
        values = tl.load(in_ptr + row * in_stride + offsets, mask=mask, other=-float("inf"))
        numerator = tl.exp(values - tl.max(values, axis=0))
        result = numerator / tl.sum(numerator, axis=0)
        tl.store(out_ptr + row * out_stride + offsets, result, mask=mask)


@triton.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)


def _configs():
    return [
        triton.Config(
            {"BLOCK_M": m, "BLOCK_N": 32, "BLOCK_K": 32, "GROUP_M": 4}, num_stages=3, num_warps=4
        )
        for m in (16, 64)
    ]


@triton.autotune(configs=_configs(), key=["M", "N", "K"])
@triton.jit
def matmul(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    pid = tl.program_id(axis=0)
    num_m, num_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    in_group = GROUP_M * num_n
    group = pid // in_group
    first_m = group * GROUP_M
    size = min(num_m - first_m, GROUP_M)
    pid_m = first_m + (pid % in_group) % size
    pid_n = (pid % in_group) // size
    tl.assume(pid_m >= 0)
    offs_m = (pid_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    offs_n = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + (offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak)
    b_ptrs = b_ptr + (offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn)
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BLOCK_K, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BLOCK_K, other=0.0)
        accumulator = tl.dot(a, b, accumulator)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    if ACTIVATION == "leaky_relu":
        accumulator = leaky_relu(accumulator)
    c = accumulator.to(tl.float16)
    rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + stride_cm * rows[:, None] + stride_cn * columns[None, :]
    tl.store(c_ptrs, c, mask=(rows[:, None] < M) & (columns[None, :] < N))


@triton.jit
def seeded_dropout(x_ptr, out_ptr, n, p, seed, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(axis=0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    keep = tl.rand(seed, offsets) > p
    tl.store(out_ptr + offsets, tl.where(keep, x / (1 - p), 0.0), mask=mask)


@triton.jit
def norm_weight_gradient(
    dy_ptr, x_ptr, mean_ptr, rstd_ptr, locks, dw_ptr, n, GROUPS: tl.constexpr, BLOCK: tl.constexpr
):
    row, columns = tl.program_id(0), tl.arange(0, BLOCK)
    mask = columns < n
    group = row % GROUPS
    lock, count = locks + group, locks + GROUPS + group
    x = tl.load(x_ptr + row * n + columns, mask=mask, other=0).to(tl.float32)
    dy = tl.load(dy_ptr + row * n + columns, mask=mask, other=0).to(tl.float32)
    part = dy * (x - tl.load(mean_ptr + row)) * tl.load(rstd_ptr + row)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    if tl.load(count) == 0:
        tl.atomic_xchg(count, 1)
    else:
        part += tl.load(dw_ptr + group * n + columns, mask=mask)
    tl.store(dw_ptr + group * n + columns, part, mask=mask)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def attention(
    q_desc,
    k_desc,
    v_desc,
    out_desc,
    scale,
    N,
    CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    D: tl.constexpr,
):
    start = tl.program_id(0) * BLOCK_M
    rows = start + tl.arange(0, BLOCK_M)
    most = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, D], dtype=tl.float32)
    q = q_desc.load([start, 0])
    end = start + BLOCK_M if CAUSAL else N
    for first in tl.range(0, end, BLOCK_N):
        scores = tl.dot(q, k_desc.load([first, 0]).T) * (scale * 1.44269504)
        if CAUSAL:
            below = rows[:, None] >= (first + tl.arange(0, BLOCK_N))[None, :]
            scores = tl.where(below, scores, -1.0e6)
        new = tl.maximum(most, tl.max(scores, 1))
        p = tl.math.exp2(scores - new[:, None])
        alpha = tl.math.exp2(most - new)
        total = total * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(tl.float16), v_desc.load([first, 0]), acc * alpha[:, None])
        most = new
    out_desc.store([start, 0], (acc / total[:, None]).to(tl.float16))


@triton.jit
def asin(x_ptr, y_ptr, n, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(axis=0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(y_ptr + offsets, libdevice.asin(x), mask=mask)


@triton.jit
def grouped_matmul(
    a_addresses,
    b_addresses,
    c_addresses,
    sizes,
    groups,
    PROGRAMS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    tile, last = tl.program_id(0), 0
    for group in range(groups):
        m, n = tl.load(sizes + group * 3), tl.load(sizes + group * 3 + 1)
        k = tl.load(sizes + group * 3 + 2)
        tiles = tl.cdiv(m, BLOCK) * tl.cdiv(n, BLOCK)
        while tile >= last and tile < last + tiles:
            a_ptr = tl.load(a_addresses + group).to(tl.pointer_type(tl.float16))
            b_ptr = tl.load(b_addresses + group).to(tl.pointer_type(tl.float16))
            c_ptr = tl.load(c_addresses + group).to(tl.pointer_type(tl.float16))
            place = tile - last
            rows = place // tl.cdiv(n, BLOCK) * BLOCK + tl.arange(0, BLOCK)
            columns = place % tl.cdiv(n, BLOCK) * BLOCK + tl.arange(0, BLOCK)
            inner = tl.arange(0, BLOCK)
            acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
            for first in range(0, k, BLOCK):
                a = tl.load(a_ptr + rows[:, None] * k + first + inner[None, :])
                b = tl.load(b_ptr + (first + inner[:, None]) * n + columns[None, :])
                acc += tl.dot(a, b)
            tl.store(c_ptr + rows[:, None] * n + columns[None, :], acc.to(tl.float16))
            tile += PROGRAMS
        last += tiles


@triton.jit
def persistent_matmul(
    a_ptr, b_ptr, c_ptr, M, N, K, BLOCK: tl.constexpr, SMS: tl.constexpr, FLATTEN: tl.constexpr
):
    a_desc = tl.make_tensor_descriptor(a_ptr, [M, K], [K, 1], [BLOCK, BLOCK])
    b_desc = tl.make_tensor_descriptor(b_ptr, [N, K], [K, 1], [BLOCK, BLOCK])
    c_desc = tl.make_tensor_descriptor(c_ptr, [M, N], [N, 1], [BLOCK, BLOCK])
    across = tl.cdiv(N, BLOCK)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BLOCK) * across, SMS, flatten=FLATTEN):
        row, column = tile // across * BLOCK, tile % across * BLOCK
        acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
        for first in range(0, K, BLOCK):
            acc = tl.dot(a_desc.load([row, first]), b_desc.load([column, first]).T, acc)
        c_desc.store([row, column], acc.to(tl.float16))
