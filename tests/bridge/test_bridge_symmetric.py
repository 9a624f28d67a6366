"""Symmetric memory: `torch.distributed._symmetric_memory` on simulated devices."""

import re
from typing import Any

import pytest
from bridge_devices import milliseconds, on_ranks

from kernbench.errors import UnsupportedError
from kernbench.ranks.spawn_errors import SpawnException
from kernbench.symmetric.regions import SymmetricMemoryError

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
dist: Any = torch.distributed

LINK = 361_000_000_000
"""Bytes a second through the switch of h200x8."""
HOP = 240_000
"""Picoseconds from a device to another one of h200x8."""
COPY = 5e-6
"""Seconds that a copy between devices takes to start there."""


def begin(rank: int, ranks: int) -> Any:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=ranks, init_method="tcp://x:1")
    import torch.distributed._symmetric_memory as symmetric

    return symmetric


def test_ranks_read_and_write_each_others_memory() -> None:
    def work(rank: int) -> list[Any]:
        symmetric = begin(rank, 4)
        mine = symmetric.empty(8, dtype=torch.float32, device="cuda")
        handle = symmetric.rendezvous(mine, dist.group.WORLD)
        mine.fill_(rank)
        handle.barrier()
        after = handle.get_buffer((rank + 1) % 4, (2, 2), torch.float32, 4)
        read = (after + 0.5).tolist()
        handle.barrier()
        after.copy_(torch.full((2, 2), 10.0 + rank, device="cuda"))
        handle.barrier()
        told = [handle.rank, handle.world_size, handle.buffer_size, str(after.device)]
        assert symmetric.rendezvous(mine, dist.group.WORLD) is handle
        assert symmetric.is_symm_mem_tensor(mine)
        assert not symmetric.is_symm_mem_tensor(torch.empty(2, device="cuda"))
        return [read, mine.tolist(), told]

    for rank, (read, mine, told) in enumerate(on_ranks(work, 4)):
        assert read == [[(rank + 1) % 4 + 0.5] * 2] * 2
        assert mine == [float(rank)] * 4 + [10.0 + (rank - 1) % 4] * 4
        assert told == [rank, 4, 32, f"cuda:{rank}"]


@pytest.mark.parametrize("data", [True, False])
def test_bytes_of_a_peer_take_the_time_of_the_link(data: bool) -> None:
    size = 64 << 20

    def work(rank: int) -> tuple[float, float]:
        symmetric = begin(rank, 2)
        mine = symmetric.empty(size, dtype=torch.uint8, device="cuda")
        handle = symmetric.rendezvous(mine, dist.group.WORLD)
        mine.zero_()
        other = torch.zeros(size, dtype=torch.uint8, device="cuda")
        peer = handle.get_buffer(1 - rank, (size,), torch.uint8)
        handle.barrier()
        read = milliseconds(lambda: other.copy_(peer))
        handle.barrier()
        return read, milliseconds(lambda: peer.copy_(other))

    # Both devices at once, each in a direction of its own; `event` of the machine is 4.2 us.
    for read, written in on_ranks(work, 2, data=data):
        assert read == pytest.approx(
            (COPY + size / LINK + 2 * HOP * 1e-12 + 4.2e-6) * 1e3, abs=1e-5
        )
        assert written == pytest.approx((COPY + size / LINK + HOP * 1e-12 + 4.2e-6) * 1e3, abs=1e-5)


def test_two_that_read_one_device_share_its_link() -> None:
    size = 32 << 20

    def work(rank: int) -> float:
        symmetric = begin(rank, 3)
        mine = symmetric.empty(size, dtype=torch.uint8, device="cuda").zero_()
        handle = symmetric.rendezvous(mine, dist.group.WORLD)
        other, peer = torch.empty_like(mine), handle.get_buffer(0, (size,), torch.uint8)
        handle.barrier()
        return milliseconds(lambda: other.copy_(peer)) if rank else 0.0

    _, one, two = on_ranks(work, 3)
    assert one == pytest.approx((COPY + 2 * size / LINK) * 1e3, rel=0.03)
    assert two == pytest.approx((COPY + 2 * size / LINK) * 1e3, rel=0.03)


def test_a_gather_and_a_product_overlap_where_pytorch_fuses_them() -> None:
    rows, inner, columns = 8192, 8192, 4096

    def work(rank: int) -> tuple[float, float]:
        begin(rank, 4)
        shard = torch.ones(rows // 4, inner, dtype=torch.bfloat16, device="cuda")
        weight = torch.ones(inner, columns, dtype=torch.bfloat16, device="cuda")
        whole = torch.ones(rows, inner, dtype=torch.bfloat16, device="cuda")
        name = dist.group.WORLD.group_name

        def apart() -> None:
            dist.all_gather_single(whole, shard)
            _ = whole @ weight

        def fused() -> None:
            torch.ops.symm_mem.fused_all_gather_matmul(shard, [weight], 0, name)

        found = []
        for run in (apart, fused):
            run()
            torch.zeros(1 << 33, dtype=torch.uint8, device="cuda")
            dist.all_reduce(torch.ones(1, device="cuda"))
            found.append(milliseconds(run))
        return found[0], found[1]

    product = 2 * rows * inner * columns / 989e12 * 1e3  # at the full rate of an H200
    for apart, fused in on_ranks(work, 4, data=False):
        assert product < fused < apart
        gathered = 3 * rows // 4 * inner * 2 / LINK * 1e3
        assert apart - fused > 0.5 * gathered


def test_a_fused_product_has_the_numbers_of_the_two_steps() -> None:
    def work(rank: int) -> list[Any]:
        begin(rank, 2)
        shard = torch.arange(8.0, device="cuda").view(2, 4) + rank
        weight = torch.eye(4, device="cuda") * 2
        name = dist.group.WORLD.group_name
        whole, (made,) = torch.ops.symm_mem.fused_all_gather_matmul(shard, [weight], 0, name)
        return [whole.tolist(), made.tolist()]

    rows: list[list[float]] = [[0, 1, 2, 3], [4, 5, 6, 7], [1, 2, 3, 4], [5, 6, 7, 8]]
    twice = [[2 * one for one in row] for row in rows]
    assert on_ranks(work, 2) == [[rows, twice]] * 2


FUSED: list[tuple[Any, ...]] = [
    # A by B is divided among 3 ranks along a dimension, each of which is unlike the others.
    ((6, 7), (7, 5), "sum", 0),
    ((2, 9, 7), (7, 5), "avg", 1),
    ((4, 7), (7, 6), "sum", 1),
    ((3, 2, 7), (7, 5), "sum", 0),
]


@pytest.mark.parametrize(("left", "right", "op", "dim"), FUSED)
def test_a_product_that_is_scattered_as_it_is_made_has_the_numbers_of_both_steps(
    left: Any, right: Any, op: str, dim: int
) -> None:
    def work(rank: int) -> list[Any]:
        begin(rank, 3)
        torch.manual_seed(rank)
        a, b = torch.randn(left, device="cuda"), torch.randn(right, device="cuda")
        fused = torch.ops.symm_mem.fused_matmul_reduce_scatter(a, b, op, dim, "0")
        return [fused.cpu(), (a @ b).cpu()]

    found = on_ranks(work, 3)
    whole = sum(made for _, made in found) / (3 if op == "avg" else 1)
    for (fused, _), part in zip(found, whole.chunk(3, dim), strict=True):
        torch.testing.assert_close(fused, part)


@pytest.mark.parametrize("shared", [True, False])
def test_collectives_of_copies_have_the_numbers_of_collectives(shared: bool) -> None:
    def work(rank: int) -> list[Any]:
        symmetric = begin(rank, 3)
        torch.manual_seed(rank)
        given = (symmetric.empty if shared else torch.empty)(6, 5, device="cuda")
        if shared:
            symmetric.rendezvous(given, dist.group.WORLD)
        given.normal_()
        wait, ops = torch.ops._c10d_functional.wait_tensor, torch.ops.symm_mem
        gathered = wait(ops._low_contention_all_gather(given, "0"))
        scattered = wait(ops._low_contention_reduce_scatter(given, "avg", "0"))
        return [given.cpu(), gathered.cpu(), scattered.cpu()]

    found = on_ranks(work, 3)
    mean = sum(given for given, *_ in found) / 3
    for (_, gathered, scattered), part in zip(found, mean.chunk(3), strict=True):
        assert torch.equal(gathered, torch.cat([given for given, *_ in found]))
        torch.testing.assert_close(scattered, part)


def shots(symmetric: Any, rank: int, ranks: int, dtype: Any, shape: Any) -> dict[str, Any]:
    """Calls each operation; returns what it has made, beside what the rank gave."""
    torch.manual_seed(rank)
    ops, given = torch.ops.symm_mem, torch.randn(shape, device="cuda").to(dtype)
    block = symmetric.empty(given.numel() + 8, dtype=dtype, device="cuda")
    mine, elsewhere = block[8:].view(shape), torch.empty_like(given)
    mine.copy_(given)
    made = {"given": given, "one_shot": ops.one_shot_all_reduce(mine, "sum", "0")}
    made["one_shot_out"] = ops.one_shot_all_reduce_out(mine, "sum", "0", torch.empty_like(given))
    mine.zero_()
    made["copy"] = ops.one_shot_all_reduce_copy(mine, given, "sum", "0")
    out = torch.empty_like(given)
    made["copy_out"] = ops.one_shot_all_reduce_copy_out(mine, given, "sum", "0", out)
    if ranks in (2, 4, 8):
        made["two_shot_out"] = ops.two_shot_all_reduce_out(mine, "sum", "0", elsewhere)
        mine.copy_(given)
    made["two_shot"] = ops.two_shot_all_reduce_(mine, "sum", "0").clone()
    return {name: one.cpu() for name, one in made.items()}


@pytest.mark.parametrize(
    ("ranks", "dtype", "shape"),
    [
        (2, "bfloat16", (3, 10)),
        (3, "bfloat16", (7, 2)),
        (4, "float32", (37,)),  # the last ones have less to add up than the others
        (4, "float32", (5,)),  # or nothing
        (1, "float32", (3,)),
    ],
)
def test_kernels_of_few_shots_add_up_in_the_order_of_ranks(
    ranks: int, dtype: str, shape: Any
) -> None:
    kind = getattr(torch, dtype)
    found = on_ranks(lambda rank: shots(begin(rank, ranks), rank, ranks, kind, shape), ranks)
    total = found[0]["given"]
    for other in found[1:]:
        total = total + other["given"]  # rounded to the type after each, as on a GPU
    for made in found:
        for name, one in made.items():
            assert name == "given" or torch.equal(one, total), name


def test_each_rank_gets_its_part_of_a_sum() -> None:
    def work(rank: int) -> list[Any]:
        symmetric = begin(rank, 2)
        flat = symmetric.empty(24, device="cuda")
        rows = symmetric.empty(3, 16, device="cuda")
        flat.copy_(torch.arange(24.0) + rank)
        rows.copy_(torch.arange(48.0).view(3, 16) * (rank + 1))
        scatter = torch.ops.symm_mem.reduce_scatter_out
        part = scatter(flat, "0", False, torch.empty(12, device="cuda"))
        columns = scatter(rows, "0", True, torch.empty(3, 8, device="cuda"))
        return [part.cpu(), columns.cpu()]

    for rank, (part, columns) in enumerate(on_ranks(work, 2)):
        assert torch.equal(part, (2 * torch.arange(24.0) + 1).chunk(2)[rank])
        assert torch.equal(columns, (3 * torch.arange(48.0)).view(3, 16).chunk(2, 1)[rank])


def timed(rank: int) -> list[float]:
    symmetric, ops, size = begin(rank, 2), torch.ops.symm_mem, 1 << 20
    mine = symmetric.empty(size, dtype=torch.bfloat16, device="cuda").fill_(1)
    handle = symmetric.rendezvous(mine, dist.group.WORLD)
    out, left = torch.ones_like(mine), torch.ones(256, 256, dtype=torch.bfloat16, device="cuda")
    wait = torch.ops._c10d_functional.wait_tensor
    found = []
    for call in (
        lambda: ops.one_shot_all_reduce_out(mine, "sum", "0", out),
        lambda: ops.two_shot_all_reduce_(mine, "sum", "0"),
        lambda: ops.two_shot_all_reduce_out(mine, "sum", "0", out),
        lambda: ops.reduce_scatter_out(mine, "0", False, out[: size // 2]),
        lambda: ops.memset32_(handle.get_signal_pad(1 - rank), 8, 1, 2),
        lambda: wait(ops._low_contention_all_gather(mine, "0")),
        lambda: wait(ops._low_contention_reduce_scatter(out, "sum", "0")),
        lambda: ops.fused_matmul_reduce_scatter(left, left, "sum", 0, "0"),
        lambda: ops.fused_all_gather_matmul(left, [left], 0, "0"),
        lambda: (handle.put_signal(1 - rank), handle.wait_signal(1 - rank)),
    ):
        call()
        handle.barrier()
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(2 * 10**6)  # the hosts get ahead
        handle.barrier()
        first.record()
        call()
        last.record()
        handle.barrier()
        torch.cuda.synchronize()
        found.append(float(first.elapsed_time(last)))
    return found


def test_without_numbers_all_takes_as_long() -> None:
    assert on_ranks(timed, 2, data=False) == on_ranks(timed, 2)


def test_shots_take_the_turns_of_their_threads_or_the_link() -> None:
    one, two, both, part, *_ = on_ranks(timed, 2)[0]
    # 24 blocks of 512 threads load 16 bytes each from both, and wait for the way there and back.
    turns = -(-(1 << 21) // (24 * 512 * 16)) * (612e-9 + 2 * HOP * 1e-12) * 1e3
    assert one == pytest.approx(turns, abs=10e-3)
    # In each direction one device reads half of the bytes, and the other one writes half; each half
    # has the link for itself where ranks read a part, meet, and read the others.
    link = (1 << 21) / LINK * 1e3
    assert link < two < link + 10e-3
    assert part > link / 2
    assert both > 2 * (part - 5e-3)


def test_a_signal_orders_two_streams_and_is_waited_for_once() -> None:
    def work(rank: int) -> float:
        symmetric = begin(rank, 2)
        mine = symmetric.empty(4, dtype=torch.float32, device="cuda")
        handle = symmetric.rendezvous(mine, dist.group.WORLD)
        mine.zero_()
        handle.barrier()
        first = torch.cuda.Event(enable_timing=True)
        first.record()
        for turn in range(2):
            if rank:
                handle.wait_signal(0)
                assert mine.tolist() == [turn + 1.0] * 4
            else:
                torch.zeros(1 << 28, dtype=torch.uint8, device="cuda")
                handle.get_buffer(1, (4,), torch.float32).add_(1)
                handle.put_signal(1)
                handle.wait_signal(1, channel=1)
            if rank:
                handle.put_signal(0, channel=1)
        last = torch.cuda.Event(enable_timing=True)
        last.record()
        torch.cuda.synchronize()
        return float(first.elapsed_time(last))

    slept, waited = on_ranks(work, 2)
    assert waited == pytest.approx(slept, rel=0.2)
    assert waited > 2 * 0.05  # two fills of 256 MiB, at less than 4.8 TB/s


@pytest.mark.parametrize("data", [True, False])
def test_memory_is_free_again_when_tensors_and_handles_are_gone(data: bool) -> None:
    def work(rank: int) -> int:
        symmetric = begin(rank, 2)
        before = torch.cuda.memory_allocated()
        for _ in range(3):
            mine = symmetric.empty(1 << 20, dtype=torch.uint8, device="cuda")
            handle = symmetric.rendezvous(mine, dist.group.WORLD)
            handle.get_buffer(1 - rank, (4,), torch.uint8).fill_(1)
            handle.barrier()
            del mine, handle
        dist.all_reduce(torch.ones(1, device="cuda"))
        torch.cuda.synchronize()
        return int(torch.cuda.memory_allocated() - before)

    assert all(left < 1 << 16 for left in on_ranks(work, 2, data=data))


def test_what_nothing_has_written_is_no_number() -> None:
    def work(rank: int) -> bool:
        return bool(begin(rank, 1).empty(4, dtype=torch.bfloat16, device="cuda").isnan().all())

    assert on_ranks(work, 1) == [True]


def test_what_ranks_touch_in_no_order_is_told() -> None:
    def work(rank: int) -> None:
        symmetric = begin(rank, 2)
        mine = symmetric.empty(2, 8, dtype=torch.float32, device="cuda")
        handle = symmetric.rendezvous(mine, dist.group.WORLD)
        if rank:
            mine[1].fill_(7)
        else:
            theirs = handle.get_buffer(1, (2, 8), torch.float32)
            assert bool(theirs[0].isnan().all())  # which nobody writes
            _ = theirs[:, :4] + 1
        torch.cuda.synchronize()

    with pytest.raises(SpawnException) as raised:
        on_ranks(work, 2)
    told = [line.strip() for line in str(raised.value).splitlines()]
    at = next(place for place, line in enumerate(told) if "[M10]" in line)
    assert told[at].endswith("[M10] rank 0 read symmetric memory that rank 1 wrote, in no order")
    assert told[at + 1].startswith("rank 0: aten::add at ")
    assert told[at + 1].endswith(": _ = theirs[:, :4] + 1")
    assert told[at + 2].startswith("rank 1: aten::fill_ at ")
    assert told[at + 2].endswith(": mine[1].fill_(7)")
    # Half of the second row, which begins at byte 32.
    block = "the block of rank 1 in symmetric memory 1 of group WORLD"
    assert told[at + 3] == f"{block}, bytes 32..48 of 64"
    assert told[at + 4].startswith("hint: let the ranks meet in between: handle.barrier(), or ")


def by_a_collective(mine: Any, other: Any) -> None:
    dist.all_reduce(other)
    dist.all_reduce(mine)  # which goes on once all have come, and so have been here


def by_messages(mine: Any, other: Any) -> None:
    del mine
    for turn in range(2):
        if turn == dist.get_rank():
            dist.send(other, 1 - turn)
        else:
            dist.recv(other, turn)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    torch.cuda.set_stream(side)


def by_the_host(mine: Any, other: Any) -> None:
    del mine, other
    torch.cuda.synchronize()
    dist.barrier(device_ids=[dist.get_rank()])


@pytest.mark.parametrize("meet", [by_a_collective, by_messages, by_the_host])
def test_whatever_ranks_meet_by_puts_them_in_order(meet: Any) -> None:
    def work(rank: int) -> list[float]:
        symmetric = begin(rank, 2)
        mine = symmetric.empty(4, dtype=torch.float32, device="cuda")
        handle = symmetric.rendezvous(mine, dist.group.WORLD)
        mine.fill_(rank)
        meet(mine, torch.ones(1, device="cuda"))
        return list(handle.get_buffer(1 - rank, (4,), torch.float32).tolist())

    assert {len(found) for found in on_ranks(work, 2)} == {4}


def test_a_rank_that_leaves_out_a_barrier_is_named() -> None:
    def work(rank: int) -> None:
        symmetric = begin(rank, 2)
        handle = symmetric.rendezvous(symmetric.empty(4, device="cuda"), dist.group.WORLD)
        handle.barrier(channel=3)
        if rank == 0:
            handle.barrier(channel=3)

    with pytest.raises(SpawnException) as raised:
        on_ranks(work, 2)
    text = str(raised.value)
    assert "[C1] barrier #2 of group symmetric memory 1 of group WORLD, channel 3: " in text
    assert "rank 0 waits for rank 1" in text
    assert "handle.barrier(channel=3)" in text


def test_a_rank_that_leaves_out_an_all_reduce_is_named_and_one_that_meddles_is_told() -> None:
    def leaves_out(rank: int) -> None:
        symmetric = begin(rank, 2)
        mine = symmetric.empty(4, device="cuda").fill_(rank)
        handle = symmetric.rendezvous(mine, dist.group.WORLD)
        if rank:
            handle.get_buffer(0, (4,), torch.float32).zero_()  # which rank 0 may have read already
        else:
            torch.ops.symm_mem.one_shot_all_reduce(mine, "sum", "0")

    with pytest.raises(SpawnException) as raised:
        on_ranks(leaves_out, 2)
    text = str(raised.value)
    assert "[C1] one_shot_all_reduce #1 of group symmetric memory 1 of group WORLD, " in text
    assert "rank 0 waits for rank 1" in text

    def meddles(rank: int) -> None:
        symmetric = begin(rank, 2)
        mine = symmetric.empty(4, device="cuda").fill_(rank)
        handle = symmetric.rendezvous(mine, dist.group.WORLD)
        torch.ops.symm_mem.one_shot_all_reduce(mine, "sum", "0")
        mine.add_(1)  # which nobody reads any more
        if rank:
            handle.get_buffer(0, (4,), torch.float32).zero_()  # but which rank 0 writes

    with pytest.raises(SpawnException, match=r"\[M10\] rank 0 wrote symmetric memory that rank 1"):
        on_ranks(meddles, 2)


def test_a_signal_that_nobody_gives_is_told() -> None:
    def work(rank: int) -> None:
        symmetric = begin(rank, 2)
        handle = symmetric.rendezvous(symmetric.empty(4, device="cuda"), dist.group.WORLD)
        if rank:
            handle.wait_signal(0, channel=2)

    with pytest.raises(SpawnException) as raised:
        on_ranks(work, 2)
    told = "waits for a signal in symmetric memory 1 of group WORLD, channel 2, from rank 0 to "
    assert told in str(raised.value)
    assert "handle.wait_signal(0, channel=2)" in str(raised.value)


def test_blocks_of_different_sizes_are_refused() -> None:
    def work(rank: int) -> None:
        symmetric = begin(rank, 2)
        symmetric.rendezvous(symmetric.empty(4 + rank, device="cuda"), dist.group.WORLD)

    with pytest.raises(SpawnException, match=r"\[C3\] symmetric memory 1 .*different sizes"):
        on_ranks(work, 2)


def test_what_is_outside_or_not_simulated_is_refused_by_name() -> None:
    def work(rank: int) -> list[str]:
        symmetric = begin(rank, 2)
        mine = symmetric.empty(4, device="cuda")
        handle = symmetric.rendezvous(mine, dist.group.WORLD)
        told = []
        calls: list[tuple[type[Exception], Any]] = [
            (SymmetricMemoryError, lambda: handle.get_buffer(1, (5,), torch.float32)),
            (SymmetricMemoryError, lambda: handle.get_buffer(2, (1,), torch.float32)),
            (SymmetricMemoryError, lambda: symmetric.rendezvous(torch.empty(4), dist.group.WORLD)),
            (UnsupportedError, lambda: symmetric.set_backend("NVSHMEM")),
            (UnsupportedError, lambda: symmetric.empty(4, device="cpu")),
            (
                UnsupportedError,
                lambda: torch.ops.symm_mem.nvshmem_put(mine, 1),
            ),
            (UnsupportedError, lambda: torch.ops.symm_mem.multimem_all_reduce_(mine, "sum", "0")),
        ]
        for kind, call in calls:
            with pytest.raises(kind) as raised:
                call()
            told.append(str(raised.value).splitlines()[0])
        return told

    for told in on_ranks(work, 2):
        assert told[0].startswith(
            "[M1] [5] torch.float32 from element 0 on is not inside of a block"
        )
        assert told[1] == "symmetric memory 1 of group WORLD has no rank 2"
        assert told[2].startswith("rendezvous() of a tensor that is no symmetric memory")
        assert told[3].startswith("symmetric memory of NVSHMEM is not simulated")
        assert told[4].startswith("symmetric memory on cpu is not simulated")
        assert told[5].startswith("torch.ops.symm_mem.nvshmem_put is not simulated")
        assert told[6].startswith("torch.ops.symm_mem.multimem_all_reduce_ is not simulated")


def test_what_pytorch_has_no_kernel_for_is_refused_with_what_it_expects() -> None:
    def work(rank: int) -> list[str]:
        symmetric, ops = begin(rank, 3), torch.ops.symm_mem
        mine, half = symmetric.empty(32, device="cuda"), symmetric.empty(32, device="cuda").half()
        pairs = symmetric.empty(32, dtype=torch.bfloat16, device="cuda")
        handle = symmetric.rendezvous(mine, dist.group.WORLD)
        symmetric.rendezvous(pairs, dist.group.WORLD)
        pad = handle.get_signal_pad(rank)
        assert ops.one_shot_all_reduce(mine[:0], "sum", "0").numel() == 0
        calls: list[Any] = [
            lambda: ops.one_shot_all_reduce(mine, "avg", "0"),
            lambda: ops.one_shot_all_reduce(mine[::2], "sum", "0"),
            lambda: ops.one_shot_all_reduce(pairs[1:4], "sum", "0"),
            lambda: ops.one_shot_all_reduce_out(mine, "sum", "0", mine[:8]),
            lambda: ops.one_shot_all_reduce_copy(mine, mine[:8], "sum", "0"),
            lambda: ops.one_shot_all_reduce_out(mine, "sum", "0", half),
            lambda: ops.two_shot_all_reduce_out(mine, "sum", "0", mine.clone()),
            lambda: ops.reduce_scatter_out(mine.view(2, 16), "0", False, mine[:16]),
            lambda: ops.one_shot_all_reduce_out(mine[:8], "sum", "0", mine[1:9]),
            lambda: ops.memset32_(pad, pad.numel() - 1, 1, 2),
            lambda: ops.memset32_(pad, 0, -1, 1),
            lambda: ops.stream_write_value32_(mine, 0, 1),
        ]
        told = []
        for call in calls:
            with pytest.raises(SymmetricMemoryError) as raised:
                call()
            told.append(str(raised.value))
        return told

    kernel = "PyTorch has no kernel for these arguments"
    for told in on_ranks(work, 3):
        assert all(kernel in one and __file__ in one for one in told[:9])
        assert [re.findall(r"expected (.*)", one)[0] for one in told[:9]] == [
            "only sums",
            "tensors without gaps",
            "multiples of 4 bytes, from one on",
            "a result of shape [32]",
            "a result of shape [32]",
            "one type, of torch.float32, torch.bfloat16",
            "2, 4, 8 ranks",
            "one dimension, or split_last_dim=True",
            "multiples of 16 bytes, as in the memory",
        ]
        assert told[9].startswith("[M1] 2 words from word 2303 on are not inside of a tensor")
        assert told[10].startswith("-1 is no word: those are 0 to 4294967295")
        assert told[11].startswith("words are written to a flat tensor of torch.uint32")
