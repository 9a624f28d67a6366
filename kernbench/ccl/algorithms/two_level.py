"""Inside the nodes, then across them, then inside again.

The ranks of a node first share out the work, so that each of them has only its part to send to the
ranks at the same place in the other nodes, over a network interface of its own (as in the
hierarchical all-reduce of Jia et al., "Highly scalable deep learning training system with
mixed-precision", 2018, and in BlueConnect, Cho et al., 2019). `L` ranks a node, `M` nodes,
`N = L M`; the grid is `(L, M)`. Both levels are switches, so messages go straight to their
receivers. With one node, or on a grid of one dimension, nothing is left of the second level.
"""

from kernbench.ccl.algorithms.steps import (
    Line,
    Stage,
    only,
    stages_of_one_block,
    stages_of_rank_blocks,
)
from kernbench.ccl.plan import Comm


def all_reduce(comm: Comm) -> None:
    """Reduces the buffers of all ranks; every rank ends with bitwise the same result.

    `2 (L - 1 + M - 1)` steps; each rank sends `2 (N - 1) / N` of the buffer, but only
    `2 (M - 1) / N` of it to other nodes. May wait.
    """
    comm.cut(comm.world_size)
    stages = stages_of_one_block(comm, _levels(comm))
    for stage in stages:
        stage.direct_reduce_scatter()
    for stage in reversed(stages):
        stage.direct_all_gather()


def reduce_scatter(comm: Comm) -> None:
    """Reduces every block; each rank ends with its own.

    Each rank sends `N - 1` blocks, `M - 1` of them to other nodes. May wait.
    """
    for stage in stages_of_rank_blocks(_levels(comm)):
        stage.direct_reduce_scatter()


def all_gather(comm: Comm) -> None:
    """Gives the block of each rank to all.

    Each rank sends `N - 1` blocks, `M - 1` of them to other nodes. May wait.
    """
    for stage in reversed(stages_of_rank_blocks(_levels(comm))):
        stage.direct_all_gather()


def broadcast(comm: Comm) -> None:
    """Gives the root's buffer to all.

    The root deals the buffer out to its node in `L` chunks; each rank of the node sends its chunk
    to all other nodes; every node gathers. The root sends `2 (L - 1) / L + (M - 1) / L` of the
    buffer, the rest of its node `(L - 1) / L` less, all others `(L - 1) / L`. May wait.
    """
    inside, across = _levels(comm)
    comm.cut(inside.extent)
    mine, home = inside.place, comm.root // inside.extent
    first = comm.root % inside.extent
    for shift in range(1, inside.extent):
        chunk = (first + shift) % inside.extent
        to = home * inside.extent + chunk
        comm.exchange(
            send=only(comm.rank == comm.root, chunk),
            to=to,
            receive=only(comm.rank == to, chunk),
            source=comm.root,
        )
    for shift in range(1, across.extent):
        comm.exchange(
            send=only(across.place == home, mine),
            to=across.rank(home + shift),
            receive=only(across.place == (home + shift) % across.extent, mine),
            source=across.rank(home),
        )
    Stage(inside, lambda place: [place], share=inside.extent).direct_all_gather()


def _levels(comm: Comm) -> list[Line]:
    """Returns the ranks of the node, then those at the same place of all nodes."""
    inside = comm.grid[0]
    return [Line(comm, inside, 1), Line(comm, comm.world_size // inside, inside)]
