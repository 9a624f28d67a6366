"""The program of the picture of a ring: attention over a sequence that four ranks share."""

from typing import Any

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.cp import cp_attention


def worker(rank: int) -> None:
    """Attends to 32,768 tokens, of which each rank has two chunks."""
    dist.init_process_group("nccl")
    q, k, v = (
        torch.empty(1, 8192, heads, 128, dtype=torch.bfloat16, device="cuda") for heads in (8, 8, 8)
    )
    cp_attention(q, k, v, cp_group=dist.group.WORLD, cp_comm_type="p2p")
    torch.cuda.synchronize()


def run(ctx: Any) -> None:
    """Spawns four ranks."""
    ctx.multiprocessing.spawn(worker, nprocs=4)
