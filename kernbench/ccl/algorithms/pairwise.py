"""In pairs that exchange blocks, each rank with every other in turn.

`N - 1` steps, in each of which a rank sends one block to the rank that it receives one from, if `N`
is a power of two (Thakur, Rabenseifner and Gropp, "Optimization of collective communication
operations in MPICH", 2005).
"""

from kernbench.ccl.algorithms import direct
from kernbench.ccl.algorithms.steps import swap
from kernbench.ccl.plan import Comm


def all_to_all(comm: Comm) -> None:
    """Gives each rank one block of every rank: each rank sends `N - 1` blocks. May wait."""
    n = comm.world_size
    if n & (n - 1):
        direct.all_to_all(comm)
        return
    peers = [comm.rank ^ step for step in range(1, n)]
    swap(comm, [(peer, peer, n + peer, peer) for peer in peers], at_once=comm.messages == 1)
