"""A command that waits for its turn keeps no memory that the program has dropped."""

from collections.abc import Callable

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
import kernbench.torch.nn.functional as F
from kernbench.testing import Kernbench

CALLS = 12


def add(x: torch.Tensor) -> None:
    (x + 1).add_(1)


def attention(x: torch.Tensor) -> None:
    q = x.view(1, 1, -1, 64) + 1
    F.scaled_dot_product_attention(q, q, q)


def attention_and_back(x: torch.Tensor) -> None:
    q = (x.view(1, 1, -1, 64) + 1).requires_grad_()
    F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()


def scatter(x: torch.Tensor) -> None:
    index = torch.zeros(x.shape, dtype=torch.int64, device="cuda")
    x.scatter_add_(0, index, x + 1)


@pytest.mark.parametrize("step", [add, attention, attention_and_back, scatter])
def test_the_host_runs_ahead_of_dropped_memory(
    kernbench: Kernbench, step: Callable[[torch.Tensor], None]
) -> None:
    """The peak of many calls is that of two, though all wait for another rank's collective."""
    peaks: list[int] = []

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.zeros(1 << 16, device="cuda")
        for calls in (2, CALLS):
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            dist.all_reduce(x)
            if rank == 0:
                for _ in range(calls):
                    step(x)
                peaks.append(torch.cuda.max_memory_allocated())

    kernbench.spawn(worker, nprocs=2, data=False)
    assert peaks[0] == peaks[1]
