"""Along a line of ranks that begins or ends at the root, chunk after chunk.

Every rank sends the whole buffer once, all at the same time but for the first and last chunks, so
for large buffers (NCCL's broadcast and reduce go so along its rings). Odd channels go the other way
round, which on a ring uses both ways of every cable.
"""

from kernbench.ccl.algorithms.steps import only, pipeline
from kernbench.ccl.plan import Comm


def broadcast(comm: Comm) -> None:
    """Gives the root's buffer to all, each rank passing on a chunk while it gets the next.

    `k + N - 2` steps with `k` chunks; all but the last of the line send the buffer once. May wait.
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
    """Reduces the buffers of all ranks at the root, each rank adding its own on the way.

    `k + N - 2` steps with `k` chunks; all but the root send the buffer once. The sum begins with
    the rank behind the root (on odd channels before it). May wait.
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
