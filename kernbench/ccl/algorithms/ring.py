"""Around a ring of ranks: each sends to one neighbour and receives from the other.

Channels take turns in direction, so that two of them use both ways of every cable. An all-reduce is
a reduce-scatter, then an all-gather; each has `N - 1` steps in which every rank sends one chunk,
which is the least that any algorithm can send (Patarasuk and Yuan, "Bandwidth optimal all-reduce
algorithms for clusters of workstations", 2009).
"""

from kernbench.ccl.plan import Comm


def all_reduce(comm: Comm) -> None:
    """Reduces the buffers of all ranks; every rank ends with bitwise the same result.

    `2 (N - 1)` steps, in each of which a rank sends `1 / N` of the buffer. Chunk `c` is summed in
    the order of ranks `c, c + 1, ..., c - 1`; on odd channels `c, c - 1, ..., c + 1`. May wait.
    """
    n, on = comm.world_size, _direction(comm)
    after, before = (comm.rank + on) % n, (comm.rank - on) % n
    for step in range(n - 1):
        comm.exchange(
            send=(comm.rank - on * step) % n,
            to=after,
            receive=(comm.rank - on * (step + 1)) % n,
            source=before,
            combine="reduce",
        )
    for step in range(n - 1):
        comm.exchange(
            send=(comm.rank - on * (step - 1)) % n,
            to=after,
            receive=(comm.rank - on * step) % n,
            source=before,
        )


def reduce_scatter(comm: Comm) -> None:
    """Reduces every block; each rank ends with its own.

    `N - 1` steps, in each of which a rank sends one block. Block `r` is summed in the order of
    ranks `r + 1, r + 2, ..., r`; on odd channels `r - 1, r - 2, ..., r`. May wait.
    """
    n, on = comm.world_size, _direction(comm)
    for step in range(n - 1):
        comm.exchange(
            send=(comm.rank - on * (step + 1)) % n,
            to=(comm.rank + on) % n,
            receive=(comm.rank - on * (step + 2)) % n,
            source=(comm.rank - on) % n,
            combine="reduce",
        )


def all_gather(comm: Comm) -> None:
    """Gives the block of each rank to all.

    `N - 1` steps, in each of which a rank passes on one block. May wait.
    """
    n, on = comm.world_size, _direction(comm)
    for step in range(n - 1):
        comm.exchange(
            send=(comm.rank - on * step) % n,
            to=(comm.rank + on) % n,
            receive=(comm.rank - on * (step + 1)) % n,
            source=(comm.rank - on) % n,
        )


def _direction(comm: Comm) -> int:
    return -1 if comm.channel % 2 else 1
