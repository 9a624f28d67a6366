"""In two steps of messages between all pairs: each rank is in charge of one chunk of `N`.

The algorithm sends as few bytes as a ring, and waits twice instead of `2 (N - 1)` times while
messages are small; it needs a network on which all pairs talk at full speed, such as a switch (the
two-shot all-reduce of TensorRT-LLM; a broadcast as a scatter and an all-gather is Barnett et al.,
"Interprocessor collective communication library (InterCom)", 1994).
"""

from kernbench.ccl.algorithms import direct
from kernbench.ccl.algorithms.steps import everybody
from kernbench.ccl.plan import Comm


def all_reduce(comm: Comm) -> None:
    """Reduces the buffers of all ranks; every rank ends with bitwise the same result.

    A reduce-scatter, then an all-gather; each rank sends `2 (N - 1) / N` of the buffer. May wait.
    """
    comm.cut(comm.world_size)
    shares = everybody(comm, comm.world_size)
    shares.direct_reduce_scatter()
    shares.direct_all_gather()


def reduce(comm: Comm) -> None:
    """Reduces the buffers of all ranks at the root.

    A reduce-scatter, then a gather; each rank sends `(N - 1) / N` of the buffer, and `1 / N` more
    unless it is the root. May wait.
    """
    comm.cut(comm.world_size)
    everybody(comm, comm.world_size).direct_reduce_scatter()
    direct.gather(comm)


def broadcast(comm: Comm) -> None:
    """Gives the root's buffer to all.

    A scatter, then an all-gather, in which each rank sends `(N - 1) / N` of the buffer; the root
    sends as much before, and all send to it as well what it has. May wait.
    """
    comm.cut(comm.world_size)
    direct.scatter(comm)
    everybody(comm, comm.world_size).direct_all_gather()
