"""NCCL's tree algorithm, which NCCL uses for all-reduce only.

Between nodes it is a pair of binary trees. Inside a node a tree is a chain, the same in all
channels (`ncclTopoTreeGraph` and `connectTrees` in src/graph/connect.cc).
"""

from kernbench.ccl.algorithms import double_binary_tree
from kernbench.ccl.algorithms.double_binary_tree import Place
from kernbench.ccl.plan import Comm


def all_reduce(comm: Comm) -> None:
    """Reduces the buffers of all ranks; every rank ends with bitwise the same result.

    In a node, sums go from the last rank along the chain to rank 0 and results come back: with `k`
    chunks in `k + 2 (N - 1)` turns, and all ranks but the ends send twice the buffer. May wait.
    """
    if comm.nodes > 1:
        double_binary_tree.all_reduce(comm)
        return
    rank, last = comm.rank, comm.world_size - 1
    below = (rank + 1,) if rank < last else ()
    double_binary_tree.up_and_down(comm, Place(rank - 1 if rank > 0 else None, below, rank, last))
