"""Attention over 131,072 tokens on 8 ranks, forward and backward, without data: wall time.

Causal, bfloat16, 32 query heads, 8 of keys and values, width 128. The clock runs around the spawn
of all 8 ranks on a machine that is made already.
"""

from typing import Any

import _measure

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import caches, cp
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext

RANKS, SEQUENCE, HEADS, GROUPS, WIDTH = 8, 131072, 32, 8, 128
REPEATS = 7
LIMIT_MS = 500


def worker(rank: int, scheme: str) -> None:
    """Runs one pass forward and one back.

    Args:
        rank: Of the process.
        scheme: `cp_comm_type`.
    """
    del rank
    dist.init_process_group("nccl")
    group: Any = dist.group.WORLD
    if scheme == "a2a+p2p":
        near = [[i, i + 1] for i in range(0, RANKS, 2)]
        far = [[*range(i, RANKS, 2)] for i in range(2)]
        group = [dist.new_subgroups_by_enumeration(each)[0] for each in (near, far)]
    q, k, v, grad = (
        torch.empty(1, SEQUENCE // RANKS, heads, WIDTH, dtype=torch.bfloat16, device="cuda")
        for heads in (HEADS, GROUPS, GROUPS, HEADS)
    )
    for each in (q, k, v):
        each.requires_grad_()
    cp.cp_attention(q, k, v, cp_group=group, cp_comm_type=scheme).backward(grad)
    dist.destroy_process_group()


def seconds(scheme: str) -> float:
    """Returns the wall time of a spawn."""
    with RuntimeContext(RunSpec(topology="h200x8", data=False)) as ctx:
        return _measure.seconds(
            lambda: ctx.multiprocessing.spawn(worker, args=(scheme,), nprocs=RANKS)
        )


def main() -> None:
    seconds("p2p")  # everything that is imported at first use
    rows = []
    for scheme in ("p2p", "all_gather", "a2a", "a2a+p2p"):
        caches.clear()
        for kind, best in (
            ("first, caches empty", seconds(scheme)),
            ("again", min(seconds(scheme) for _ in range(REPEATS))),
        ):
            ms = best * 1e3
            verdict = _measure.verdict(ms / LIMIT_MS, 1, at_least=False)
            rows.append(
                [f"{scheme}, {kind}", LIMIT_MS, f"{ms:.0f}", f"{ms / LIMIT_MS:.2f}x", verdict]
            )
    _measure.show(
        f"Attention over {SEQUENCE} tokens on {RANKS} ranks, ms",
        ["", "limit", "kernbench", "ratio", "target"],
        rows,
    )


if __name__ == "__main__":
    main()
