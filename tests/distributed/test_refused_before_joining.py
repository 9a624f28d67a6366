"""Whoever looks at the blocks of a collective may refuse it before the rank joins it."""

from typing import Any

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.process.access import AccessError
from kernbench.process.process import current_process
from kernbench.ranks.spawn_errors import SpawnException
from kernbench.testing import Kernbench


def test_a_refused_collective_has_called_no_other_rank(kernbench: Kernbench) -> None:
    seen: list[Any] = []

    def refuse(name: str, stream: Any, reads: Any, writes: Any) -> None:
        seen.append((name, stream.sip, [list(each.window.shape) for each in (*reads, *writes)]))
        raise AccessError("rank 1 may not", [], hint="", code="C14")

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        if rank == 1:
            current_process().giving = refuse
        dist.all_reduce(torch.ones(4, device="cuda"))

    with pytest.raises(SpawnException) as failed:
        kernbench.spawn(worker, nprocs=2)
    assert list(failed.value.errors) == [1], "rank 0 was aborted while it waited"
    assert "rank 0 aborted" in str(failed.value)
    assert seen == [("all_reduce", 1, [[4], [4]])]


def test_a_collective_on_a_stream_of_the_program_is_ordered_by_streams(
    kernbench: Kernbench,
) -> None:
    def worker(rank: int) -> None:
        del rank
        dist.init_process_group("nccl")
        x, side = torch.ones(4, device="cuda"), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            dist.all_reduce(x)
        x + 1

    with pytest.raises(SpawnException, match="hint: order the streams with wait_stream") as failed:
        kernbench.spawn(worker, nprocs=2)
    assert "[C15]" in str(failed.value)
