"""Along a line of ranks that begins or ends at the root, chunk after chunk.

Every rank sends the whole buffer once. All ranks send at the same time, except during the first and
the last chunks, so the algorithm suits large buffers (NCCL's broadcast and reduce go along its
rings in this way). Odd channels go the other way round, which on a ring uses both ways of every
cable.
"""

from kernbench.ccl.algorithms.steps import only, pipeline
from kernbench.ccl.plan import Comm


def broadcast(comm: Comm) -> None:
    """Gives the root's buffer to all: each rank passes on a chunk while it gets the next.

    `k + N - 2` steps with `k` chunks; every rank but the last of the line sends the buffer once.
    May wait.
    """
    n, on = comm.world_size, -1 if comm.channel % 2 else 1
    chunks = pipeline(comm.messages, n - 2)
    comm.cut(chunks)
    place = (comm.rank - comm.root) * on % n
    for turn in range(chunks + 1):
        comm.exchange(
            send=only((place < n - 1) & (turn > 0), turn - 1),
            to=(comm.rank + on) % n,
            receive=only((place > 0) & (turn < chunks), turn),
            source=(comm.rank - on) % n,
        )


def reduce(comm: Comm) -> None:
    """Reduces the buffers of all ranks at the root; each rank adds its own buffer on the way.

    `k + N - 2` steps with `k` chunks; every rank but the root sends the buffer once. The sum begins
    with the rank behind the root (on odd channels before it). May wait.
    """
    n, on = comm.world_size, -1 if comm.channel % 2 else 1
    chunks = pipeline(comm.messages, n - 2)
    comm.cut(chunks)
    place = (comm.rank - comm.root) * on % n  # the root's is the last, but counted as 0
    for turn in range(chunks + 1):
        comm.exchange(
            send=only((place > 0) & (turn > 0), turn - 1),
            to=(comm.rank + on) % n,
            receive=only((place != 1 % n) & (turn < chunks), turn),
            source=(comm.rank - on) % n,
            combine="reduce",
        )


def send_recv(comm: Comm) -> None:
    """Sends the root's buffer to the other of two ranks, a line of two. May wait."""
    broadcast(comm)
