"""Counts of collectives: by kind, group, bytes and rank."""

import pytest
from goldens import ones

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.errors import KernbenchError
from kernbench.testing import Kernbench
from kernbench.torch.distributed.comm_debug import CommDebugMode


def _program(rank: int) -> None:
    dist.init_process_group("nccl")
    pair = dist.new_group([0, 1])
    dist.all_reduce(ones(256))
    dist.all_gather_into_tensor(torch.empty(12, device="cuda"), ones())
    if rank < 2:
        dist.all_reduce(ones(), group=pair)
    dist.barrier()
    dist.destroy_process_group()


def test_a_rank_counts_its_own_calls(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        mode = CommDebugMode()
        with mode, CommDebugMode() as inner:
            _program(rank)
        assert mode.get_comm_counts() == inner.get_comm_counts()
        counts = {"all_gather": 1, "all_reduce": 2 if rank < 2 else 1, "barrier": 1}
        assert mode.get_comm_counts() == counts
        assert mode.get_total_counts() == sum(counts.values())
        assert mode.get_comm_bytes()["all_gather"] == 48
        world = {"all_gather": 1, "all_reduce": 1, "barrier": 1}
        pair = {"G1{0-1}": {"all_reduce": 1}} if rank < 2 else {}
        assert mode.get_group_counts() == {"WORLD": world, **pair}
        assert repr(mode) == f"CommDebugMode(get_total_counts()={sum(counts.values())})"
        with mode, pytest.raises(KernbenchError, match="active already"):
            mode.__enter__()
        assert mode.get_total_counts() == 0

    kernbench.spawn(worker, nprocs=3)


def test_main_counts_those_of_all_ranks(kernbench: Kernbench) -> None:
    ctx = kernbench.context()
    with ctx, CommDebugMode() as mode:
        ctx.multiprocessing.spawn(_program, nprocs=3)
    ctx.multiprocessing.spawn(_program, nprocs=3)
    assert mode.get_comm_counts() == {"all_gather": 3, "all_reduce": 5, "barrier": 3}
    assert mode.get_comm_counts(rank=2) == {"all_gather": 1, "all_reduce": 1, "barrier": 1}
    assert mode.get_comm_bytes(rank=2)["all_reduce"] == 1024
    assert mode.get_group_counts(rank=0)["G1{0-1}"] == {"all_reduce": 1}
