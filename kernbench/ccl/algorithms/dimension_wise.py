"""Around the rings of a torus, one dimension after the other.

A reduce-scatter along each dimension in turn, an all-gather along each in reverse: every message
goes to a neighbour, and there are as many steps as the extents add up to, not as they multiply
(Sack and Gropp, "Collective algorithms for multiported torus networks", 2015; the same in Jain and
Sabharwal, "Optimal bucket algorithms for large MPI collectives on torus interconnects", 2010).
Channel `k` starts with dimension `k`, so that two channels of a square keep both dimensions busy
all the time; when every dimension has had its channel, the next ones go the other way round. On a
grid of one dimension this is a ring.
"""

from kernbench.ccl.algorithms.steps import (
    Line,
    lines,
    stages_of_one_block,
    stages_of_rank_blocks,
)
from kernbench.ccl.plan import Comm, turned


@turned
def all_reduce(comm: Comm) -> None:
    """Reduces the buffers of all ranks; every rank ends with bitwise the same result.

    With extents `d`: `2 sum(d - 1)` steps, `2 (N - 1) / N` of the buffer sent by each rank. May
    wait.
    """
    order, on = _course(comm)
    comm.cut(comm.world_size)
    stages = stages_of_one_block(comm, order)
    for stage in stages:
        stage.ring_reduce_scatter(on)
    for stage in reversed(stages):
        stage.ring_all_gather(on)


@turned
def reduce_scatter(comm: Comm) -> None:
    """Reduces every block; each rank ends with its own.

    Each rank sends `N - 1` blocks: along the first dimension one for every rank of the others in
    each step. May wait.
    """
    order, on = _course(comm)
    for stage in stages_of_rank_blocks(order):
        stage.ring_reduce_scatter(on)


@turned
def all_gather(comm: Comm) -> None:
    """Gives the block of each rank to all; each rank sends `N - 1` blocks. May wait."""
    order, on = _course(comm)
    for stage in reversed(stages_of_rank_blocks(order)):
        stage.ring_all_gather(on)


def _course(comm: Comm) -> tuple[list[Line], int]:
    """Returns the dimensions in a channel's order, and which way round it goes."""
    through = lines(comm)
    round_, first = divmod(comm.channel, len(through))
    return through[first:] + through[:first], -1 if round_ % 2 else 1
