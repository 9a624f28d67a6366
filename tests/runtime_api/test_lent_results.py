"""Ranks that end a collective with the same values may share them, and do not notice."""

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import tl
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
