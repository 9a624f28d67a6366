"""Ranks that end a collective with the same values may share them, and do not notice."""

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import caches, tl
from kernbench.testing import Kernbench


@tl.jit
def add_in_place(pointer: tl.Pointer, value: float, BLOCK: tl.constexpr) -> None:
    offsets = tl.arange(0, BLOCK)
    tl.store(pointer + offsets, tl.load(pointer + offsets) + value)


def _by_kernel(x: torch.Tensor, rank: int) -> None:
    add_in_place[(1,)](x, float(rank), BLOCK=8)


def _by_operation(x: torch.Tensor, rank: int) -> None:
    x.add_(float(rank))


def _by_index(x: torch.Tensor, rank: int) -> None:
    x[torch.arange(8, device="cuda")] = torch.full((8,), 6.0 + rank, device="cuda")


def _by_copy(x: torch.Tensor, rank: int) -> None:
    x.copy_(torch.full((8,), 6.0 + rank))


@pytest.mark.parametrize("write", [_by_kernel, _by_operation, _by_index, _by_copy])
def test_each_rank_writes_its_own(kernbench: Kernbench, write: object) -> None:
    assert callable(write)

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.full((8,), float(rank), device="cuda")
        dist.all_reduce(x)
        if rank != 2:
            write(x, rank)
        dist.barrier()
        assert x.tolist() == [6.0 + (rank if rank != 2 else 0)] * 8
        y = torch.full((8,), float(rank), device="cuda")
        dist.broadcast(y, src=3)
        write(y[:], rank)
        dist.barrier()
        expected = {_by_kernel: 3.0 + rank, _by_operation: 3.0 + rank}.get(write, 6.0 + rank)
        assert y.tolist() == [expected] * 8

    kernbench.spawn(worker, nprocs=4)


def test_ranks_give_different_parts_of_what_they_share(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.arange(8.0, device="cuda")
        dist.all_reduce(x)
        part = x[2 * rank : 2 * rank + 2]
        dist.all_reduce(part)
        expected = [4.0 * value for value in range(8)]
        expected[2 * rank : 2 * rank + 2] = [48.0, 64.0]
        assert x.tolist() == expected
        dist.all_reduce(x.reshape(2, 4) if rank % 2 else x.view(2, 4))
        total = [16.0 * value - 4.0 * value + (48.0, 64.0)[value % 2] for value in range(8)]
        assert x.tolist() == total
        if rank == 1:
            x[0] = 1000.0
        dist.all_reduce(x)
        assert x.tolist()[:2] == [3 * total[0] + 1000.0, 4 * total[1]]

    kernbench.spawn(worker, nprocs=4)


@pytest.mark.parametrize("most", [1, 2, 1000])
def test_what_is_known_of_collectives_may_be_forgotten(
    kernbench: Kernbench, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    limits = {**caches.LIMITS, "distributed.prepared": most}
    monkeypatch.setattr(caches, "LIMITS", limits)

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        for count in (4, 8, 4, 12, 8, 4):
            x = torch.full((count,), float(rank), device="cuda")
            dist.all_reduce(x)
            assert x.tolist() == [6.0] * count
        world = dist.group.WORLD
        assert world is not None
        assert 1 <= len(world.prepared) <= min(most, 3)

    kernbench.spawn(worker, nprocs=4)
