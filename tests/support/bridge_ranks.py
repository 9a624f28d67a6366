"""Ranks of the real PyTorch, each in the group of all: what tests of a rank's own state share."""

from collections.abc import Callable
from typing import Any

import kernbench


def on_ranks(worker: Callable[[int], Any], nprocs: int) -> list[Any]:
    """Returns what `worker(rank)` returns on each rank."""

    def rank_main(rank: int) -> Any:
        import torch
        import torch.distributed as dist

        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        found = worker(rank)
        dist.destroy_process_group()
        return found

    return kernbench.torchrun_spawn(rank_main, nprocs=nprocs).returned


def others() -> None:
    """Lets other ranks run."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(1, device="cuda"))
