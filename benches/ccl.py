"""Any operation between the SIPs of the machine, in nccl-tests' manner.

`--op` names it: all_reduce, broadcast, reduce, all_gather, reduce_scatter, gather, scatter,
all_to_all, or sendrecv, where every rank sends to the next one. Further flags, after `--`, are
those of nccl-tests: `-b` and `-e` smallest and largest size, `-f` factor or `-i` step between
sizes, `-d` type, `-o` reduction and `-r` root of operations that have one, `-g` ranks, `-n` counted
and `-w` warm-up iterations, `-c` whether values are checked, `-a` whose time is shown.

Size and count are nccl-tests' too: where ranks exchange blocks, `count` is that of one block, a
multiple of 16 bytes, and `size` that of all blocks together. PyTorch has broadcast and reduce in
place only: out of place, their root copies first, which is part of the time. What cannot be called
in place, all_to_all and sendrecv, is not.
"""

from collections.abc import Iterator
from typing import Any

from benches.nccl import measure
from benches.nccl.flags import Flags, parse
from kernbench.runtime_api.context import RuntimeContext


def _flags(argv: list[str]) -> Flags:
    return parse(argv, "ccl")


def worker(rank: int, world_size: int, torch: Any) -> Iterator[measure.Result]:
    """Measures every size on one rank."""
    return measure.measure(rank, world_size, torch, _flags(torch.argv))


def run(ctx: RuntimeContext) -> int:
    """Runs the bench; returns 0 if every checked value is right."""
    return measure.run(ctx, _flags(ctx.argv), worker)
