"""All-reduce over all SIPs of the machine, in nccl-tests' manner.

Flags, after `--`, are those of nccl-tests: `-b` and `-e` smallest and largest size, `-f` factor or
`-i` step between sizes, `-d` type, `-o` operation, `-g` ranks, `-n` counted and `-w` warm-up
iterations, `-c` whether values are checked, `-a` whose time is shown.
"""

from collections.abc import Iterator
from typing import Any

from benches.nccl import measure
from benches.nccl.flags import Flags, parse
from kernbench.runtime_api.context import RuntimeContext


def _flags(argv: list[str]) -> Flags:
    return parse(argv, "ccl_allreduce", "all_reduce")


def worker(rank: int, world_size: int, torch: Any) -> Iterator[measure.Result]:
    """Measures every size on one rank."""
    return measure.measure(rank, world_size, torch, _flags(torch.argv))


def run(ctx: RuntimeContext) -> int:
    """Runs the bench; returns 0 if every checked value is right."""
    return measure.run(ctx, _flags(ctx.argv), worker)
