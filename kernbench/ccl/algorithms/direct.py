"""In one step, every message straight from its sender to its receiver.

Fewest steps and most bytes of all algorithms, so it suits small buffers. Rank `r` sends to `r + 1`,
`r + 2`, ..., so that at any time each port has one message to take in.
"""

from typing import Final

from kernbench.ccl.algorithms.steps import everybody, only, swap, turns_of
from kernbench.ccl.plan import NOTHING, Comm

_CHUNKS: Final = 16


def all_reduce(comm: Comm) -> None:
    """Reduces the buffers of all ranks; every rank ends with bitwise the same result.

    Each rank sends its whole buffer to the `N - 1` others and adds up all buffers in the order of
    ranks, so that all ranks do the same additions (the one-shot all-reduce of TensorRT-LLM and of
    FlashInfer). May wait.
    """
    n = comm.world_size
    # Chunks of a single message find a slot free once the one before has been received, so all
    # ranks may send first. Others would wait for each other's slots forever, so that each rank
    # keeps what arrives until it has all.
    if comm.messages > _CHUNKS:
        _all_reduce_long(comm)
        return
    comm.cut(comm.messages, scratch=1)
    for chunk in range(comm.messages):
        total = comm.messages + chunk
        for shift in turns_of(comm, n - 1):
            comm.exchange(send=chunk, to=(comm.rank + shift) % n, receive=NOTHING, source=0)
        for source in range(n):
            # The source moves its own chunk, which is no message.
            comm.exchange(
                send=only(comm.rank == source, chunk),
                to=source,
                receive=total,
                source=source,
                combine="reduce" if source else "copy",
            )
        comm.exchange(send=total, to=comm.rank, receive=chunk, source=comm.rank)


def _all_reduce_long(comm: Comm) -> None:
    """Reduces long buffers: scratch block `r` gets the buffer of rank `r`, and the first the sum.

    May wait.
    """
    n = comm.world_size
    comm.cut(1, scratch=n)
    for shift in turns_of(comm, n - 1):
        source = (comm.rank - shift) % n
        comm.exchange(send=0, to=(comm.rank + shift) % n, receive=1 + source, source=source)
    mine = comm.rank == 0
    comm.exchange(send=only(mine, 0), to=comm.rank, receive=only(mine, 1), source=comm.rank)
    for source in range(1, n):
        comm.exchange(
            send=(comm.rank != source) * (1 + source),
            to=comm.rank,
            receive=1,
            source=comm.rank,
            combine="reduce",
        )
    comm.exchange(send=1, to=comm.rank, receive=0, source=comm.rank)


def reduce(comm: Comm) -> None:
    """Reduces the buffers of all ranks at the root.

    All other ranks send their whole buffer to the root, which adds the buffers to its own, the next
    rank's first (on channel `c`, that of the rank `c` further). May wait.
    """
    n = comm.world_size
    comm.cut(1)
    for shift in turns_of(comm, n - 1):
        source = (comm.root + shift) % n
        comm.exchange(
            send=only(comm.rank == source, 0),
            to=comm.root,
            receive=only(comm.rank == comm.root, 0),
            source=source,
            combine="reduce",
        )


def broadcast(comm: Comm) -> None:
    """Gives the root's buffer to all: the root sends it `N - 1` times. May wait."""
    n = comm.world_size
    comm.cut(1)
    for shift in turns_of(comm, n - 1):
        to = (comm.root + shift) % n
        comm.exchange(
            send=only(comm.rank == comm.root, 0),
            to=to,
            receive=only(comm.rank == to, 0),
            source=comm.root,
        )


def send_recv(comm: Comm) -> None:
    """Sends the root's buffer to the other of two ranks, which is a broadcast. May wait."""
    broadcast(comm)


def gather(comm: Comm) -> None:
    """Gives the block of each rank to the root: each other rank sends one block. May wait."""
    n = comm.world_size
    for shift in turns_of(comm, n - 1):
        source = (comm.root + shift) % n
        comm.exchange(
            send=only(comm.rank == source, source),
            to=comm.root,
            receive=only(comm.rank == comm.root, source),
            source=source,
        )


def scatter(comm: Comm) -> None:
    """Gives each rank one of the root's blocks: the root sends `N - 1` blocks. May wait."""
    n = comm.world_size
    for shift in turns_of(comm, n - 1):
        to = (comm.root + shift) % n
        comm.exchange(
            send=only(comm.rank == comm.root, to),
            to=to,
            receive=only(comm.rank == to, to),
            source=comm.root,
        )


def all_gather(comm: Comm) -> None:
    """Gives the block of each rank to all: each rank sends its block `N - 1` times. May wait."""
    everybody(comm).direct_all_gather()


def reduce_scatter(comm: Comm) -> None:
    """Reduces every block; each rank ends with its own.

    Each rank sends `N - 1` blocks and adds the blocks that arrive to its own block, the previous
    rank's first. May wait.
    """
    everybody(comm).direct_reduce_scatter()


def all_to_all(comm: Comm) -> None:
    """Gives each rank one block of every rank: each rank sends `N - 1` blocks. May wait."""
    n = comm.world_size
    shifts = turns_of(comm, n - 1)
    places = [((comm.rank + shift) % n, (comm.rank - shift) % n) for shift in shifts]
    trades = [(to, to, n + source, source) for to, source in places]
    swap(comm, trades, at_once=comm.messages == 1)
