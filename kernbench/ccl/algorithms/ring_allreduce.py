"""All-reduce around a ring, in one direction: reduce-scatter, then all-gather.

Every rank sends `2 (N - 1) / N` of its buffer, the least that any all-reduce can do (Patarasuk and
Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).
"""

from kernbench.ccl.plan import Comm


def all_reduce(comm: Comm) -> None:
    """Reduces the buffers of all ranks; every rank ends with bitwise the same result.

    Chunk `c` is summed in the order of ranks `c, c + 1, ..., c - 1`. May wait.
    """
    n = comm.world_size
    after, before = (comm.rank + 1) % n, (comm.rank - 1) % n
    for step in range(n - 1):
        comm.exchange(
            send=(comm.rank - step) % n,
            to=after,
            receive=(comm.rank - step - 1) % n,
            source=before,
            combine="reduce",
        )
    for step in range(n - 1):
        comm.exchange(
            send=(comm.rank + 1 - step) % n,
            to=after,
            receive=(comm.rank - step) % n,
            source=before,
        )
