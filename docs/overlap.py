"""The program of the README's timeline: two matmuls beside an all-reduce, on two ranks."""

from typing import Any

import kernbench.torch as torch
import kernbench.torch.distributed as dist


def worker(rank: int) -> None:
    """Multiplies while a buffer is being summed, then uses both."""
    dist.init_process_group("nccl")
    a = torch.ones(512, 512, dtype=torch.bfloat16, device="cuda")
    gradient = torch.full((64 << 10,), float(rank), dtype=torch.bfloat16, device="cuda")
    work = dist.all_reduce(gradient, async_op=True)
    b = a @ a
    b = b @ a
    assert work is not None
    work.wait()
    gradient.mul_(0.5)
    torch.cuda.synchronize()


def run(ctx: Any) -> None:
    """Spawns two ranks."""
    ctx.multiprocessing.spawn(worker, nprocs=2)
