import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
import triton
import triton.language as tl


@triton.jit
def product(
    a,
    b,
    out,
    inboxes,
    rank,
    N,
    K,
    SHARE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """A tile of a @ b: into `out`, or, with `inboxes`, into slot `rank` of whose rows they are."""
    im, jn = tl.program_id(0) * BM, tl.program_id(1) * BN
    i, j, k = im + tl.arange(0, BM), jn + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for first in range(0, K, BK):
        acc = tl.dot(
            tl.load(a + i[:, None] * K + first + k[None, :]),
            tl.load(b + (first + k)[:, None] * N + j[None, :]),
            acc,
        )
    if SHARE:
        table = inboxes.to(tl.pointer_type(tl.uint64))
        out = tl.load(table + im // SHARE).to(tl.pointer_type(tl.bfloat16)) + rank * SHARE * N
        i = i % SHARE
    tl.store(out + i[:, None] * N + j[None, :], acc.to(tl.bfloat16))


@triton.jit
def add_up(inbox, out, n, WORLD: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = tl.zeros((BLOCK,), tl.float32)
    for peer in tl.static_range(WORLD):
        found += tl.load(inbox + peer * n + at)
    tl.store(out + at, found.to(tl.bfloat16))


@triton.jit
def attend(
    q,
    keys,
    out,
    rank,
    steps,
    LENGTH: tl.constexpr,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    WORLD: tl.constexpr,
):
    """Attention of a block of queries to the keys and values of `steps` ranks, its own first."""
    table, i, d = (
        keys.to(tl.pointer_type(tl.uint64)),
        tl.program_id(0) * BM + tl.arange(0, BM),
        tl.arange(0, D),
    )
    j = tl.arange(0, BN)
    queries = tl.load(q + i[:, None] * D + d[None, :])
    top, total = tl.full((BM,), float("-inf"), tl.float32), tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for step in range(steps):
        theirs = tl.load(table + (rank + step) % WORLD).to(tl.pointer_type(tl.bfloat16))
        for first in range(0, LENGTH, BN):
            key = tl.load(theirs + (first + j)[None, :] * D + d[:, None])
            score = tl.dot(queries, key) * D**-0.5
            high = tl.maximum(top, tl.max(score, 1))
            part, keep = tl.exp(score - high[:, None]), tl.exp(top - high)
            total, top = total * keep + tl.sum(part, 1), high
            value = tl.load(theirs + LENGTH * D + (first + j)[:, None] * D + d[None, :])
            acc = tl.dot(part.to(tl.bfloat16), value, acc * keep[:, None])
    tl.store(out + i[:, None] * D + d[None, :], (acc / total[:, None]).to(tl.bfloat16))


def microseconds(work):
    work()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.zeros(1 << 29, dtype=torch.uint8, device="cuda")  # the hosts get ahead
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3


def symmetric(*shape):
    block = symm_mem.empty(*shape, dtype=torch.bfloat16, device="cuda")
    return block, symm_mem.rendezvous(block, dist.group.WORLD)


def reduce_scatter(rows, columns, depth):
    share = rows // world
    a, b = (
        torch.randn(*shape, device="cuda").bfloat16() for shape in ((rows, depth), (depth, columns))
    )
    inbox, handle = symmetric(world, share, columns)
    whole, one, two = a.new_empty(rows, columns), *(a.new_empty(share, columns) for _ in range(2))
    tiles, grid = {"BM": 64, "BN": 128, "BK": 32}, (rows // 64, columns // 128)

    def apart():
        product[grid](a, b, whole, 0, rank, columns, depth, SHARE=0, **tiles)
        dist.reduce_scatter_single(one, whole)

    def fused():
        handle.barrier()  # nobody reads the last ones any more
        product[grid](
            a, b, whole, handle.buffer_ptrs_dev, rank, columns, depth, SHARE=share, **tiles
        )
        handle.barrier()
        add_up[(two.numel() // 1024,)](inbox, two, two.numel(), WORLD=world, BLOCK=1024)

    yield microseconds(apart)
    yield microseconds(fused)
    torch.testing.assert_close(one, two, rtol=0.02, atol=0.5)
    dist.all_reduce(whole := a @ b)
    torch.testing.assert_close(two, whole[rank * share :][:share], rtol=0.02, atol=0.5)


def attention(length, width):
    q = torch.randn(length, width, device="cuda").bfloat16()
    mine, handle = symmetric(2, length, width)
    mine.copy_(torch.randn(2, length, width, device="cuda"))
    everybody = torch.empty(world, 2, length, width, dtype=torch.bfloat16, device="cuda")
    one, two = torch.empty_like(q), torch.empty_like(q)
    local = torch.tensor([part.data_ptr() for part in everybody], dtype=torch.uint64, device="cuda")
    sizes, grid = (
        {"LENGTH": length, "D": width, "BM": 64, "BN": 64, "WORLD": world},
        (length // 64,),
    )

    def apart():
        dist.all_gather_single(everybody, mine)
        attend[grid](q, local, one, rank, world, **sizes)

    def fused():
        handle.barrier()
        attend[grid](q, handle.buffer_ptrs_dev, two, rank, world, **sizes)
        handle.barrier()

    yield microseconds(apart)
    yield microseconds(fused)
    keys, values = (everybody[:, part].reshape(-1, width).float() for part in range(2))
    right = torch.softmax(q.float() @ keys.T * width**-0.5, 1) @ values
    for found in (one, two):
        torch.testing.assert_close(found.float(), right, rtol=0.02, atol=0.02)


dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
torch.manual_seed(rank)
if rank == 0:
    print("                                apart     fused   (us)")
for what, times in {
    "product and reduce-scatter": reduce_scatter(1024, 1024, 128),
    "attention to all ranks": attention(256, 64),
}.items():
    row = "  ".join(f"{time:8.1f}" for time in times)
    if rank == 0:
        print(f"{what:26}  {row}")
dist.destroy_process_group()
