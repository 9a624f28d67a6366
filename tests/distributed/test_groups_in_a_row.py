"""Groups that ranks make in a row meet once a rank; what is told of them is as of one by one."""

from collections.abc import Callable
from typing import Any

import pytest

from kernbench.process.process import current_process
from kernbench.ranks.group_creation import Creations
from kernbench.ranks.world import world_of
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.torch import distributed as dist
from kernbench.torch.distributed.device_mesh import init_device_mesh

RANKS = 8


def alike(rank: int) -> None:
    dist.new_subgroups(2)


def one_by_one_on_a_rank(rank: int) -> None:
    if rank != 5:
        dist.new_subgroups(2)
        return
    for first in range(0, RANKS, 2):
        dist.new_group([first, first + 1])


def after_a_group(rank: int) -> None:
    dist.new_group([0, 3])
    init_device_mesh("cuda", (2, 4))


def of_another_size(rank: int) -> None:
    dist.new_subgroups(4 if rank == 3 else 2)


def left_out(rank: int) -> None:
    if rank != 2:
        dist.new_subgroups(2)


def too_few(rank: int) -> None:
    if rank < 6:
        dist.new_subgroups(2)
    else:
        dist.new_group([0, 1])


def told(make: Callable[[int], None]) -> tuple[Any, ...]:
    """Returns the names of the groups that each rank holds, and the report of a run that fails."""
    held: dict[int, list[str]] = {}

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        make(rank)
        dist.barrier()
        held[rank] = list(world_of(current_process()).held[rank])
        dist.destroy_process_group()

    try:
        with RuntimeContext(RunSpec(topology="sip8", data=False)) as ctx:
            ctx.multiprocessing.spawn(worker, nprocs=RANKS)
    except SpawnException as failed:
        return held, str(failed)
    return held, None


@pytest.mark.parametrize(
    "make", [alike, one_by_one_on_a_rank, after_a_group, of_another_size, left_out, too_few]
)
def test_a_row_is_told_as_single_groups(
    make: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_row = told(make)
    monkeypatch.setattr(Creations, "enter_row", lambda *_: None)
    assert told(make) == in_row
    assert (in_row[1] is None) == (make in {alike, one_by_one_on_a_rank, after_a_group})
