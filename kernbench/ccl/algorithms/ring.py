"""Around a ring of ranks: each sends to one neighbour and receives from the other.

Channels take turns in direction, so that two of them use both ways of every cable. An all-reduce is
a reduce-scatter, then an all-gather; each has `N - 1` steps in which every rank sends one chunk,
which is the least that any algorithm can send (Patarasuk and Yuan, "Bandwidth optimal all-reduce
algorithms for clusters of workstations", 2009).
"""

from kernbench.ccl.columns import Around
from kernbench.ccl.plan import Combine, Comm


def all_reduce(comm: Comm) -> None:
    """Reduces the buffers of all ranks; every rank ends with bitwise the same result.

    `2 (N - 1)` steps, in each of which a rank sends `1 / N` of the buffer. Chunk `c` is summed in
    the order of ranks `c, c + 1, ..., c - 1`; on odd channels `c, c - 1, ..., c + 1`. May wait.
    """
    others, on = comm.world_size - 1, _direction(comm)
    _pass_on(comm, others, on, 0, "reduce")
    _pass_on(comm, others, on, -1)


def reduce_scatter(comm: Comm) -> None:
    """Reduces every block; each rank ends with its own.

    `N - 1` steps, in each of which a rank sends one block. Block `r` is summed in the order of
    ranks `r + 1, r + 2, ..., r`; on odd channels `r - 1, r - 2, ..., r`. May wait.
    """
    _pass_on(comm, comm.world_size - 1, _direction(comm), 1, "reduce")


def all_gather(comm: Comm) -> None:
    """Gives the block of each rank to all.

    `N - 1` steps, in each of which a rank passes on one block. May wait.
    """
    _pass_on(comm, comm.world_size - 1, _direction(comm), 0)


def _pass_on(comm: Comm, steps: int, on: int, behind: int, combine: Combine = "copy") -> None:
    """Lets each rank send on what it got in the step before. May wait.

    Args:
        comm: The collective.
        steps: Number of steps.
        on: 1 or -1: how many places further the rank is to which a rank sends.
        behind: A rank first sends the chunk of the rank so many places before it.
        combine: See `Comm.exchange`.
    """
    n, rank = comm.world_size, comm.rank
    after, before = (rank + on) % n, (rank - on) % n
    if isinstance(rank, Around) and steps:
        # All steps are one formula, however many there are.
        send, receive = (rank.turns(-on * (behind + k), -on, steps) for k in (0, 1))
        comm.exchange(send=send, to=after, receive=receive, source=before, combine=combine)
        return
    for step in range(behind, behind + steps):
        comm.exchange(
            send=(rank - on * step) % n,
            to=after,
            receive=(rank - on * (step + 1)) % n,
            source=before,
            combine=combine,
        )


def _direction(comm: Comm) -> int:
    return -1 if comm.channel % 2 else 1
