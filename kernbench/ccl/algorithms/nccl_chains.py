"""NCCL's trees inside a node, which are chains, the same in all channels.

Each rank of a node is the only child of the one before (`ncclTopoPreset` in src/graph/connect.cc).
Some of NCCL's threads reduce up the chain, while the others broadcast down (`runTreeSplit` in
src/device/all_reduce.h). NCCL uses trees for all-reduce only.
"""

from kernbench.ccl.plan import NOTHING, Comm


def all_reduce(comm: Comm) -> None:
    """Reduces the buffers of all ranks; every rank ends with bitwise the same result.

    Sums go from the last rank to rank 0, message after message, and results come back. All ranks
    but the ends send the buffer twice. With `k` messages there are `k + 4 (N - 1)` turns. In a turn
    a rank first sends a sum and a result, then receives others, which leave it two turns after they
    have left its neighbour, so that messages under way overlap; queues need two slots. Channels
    take turns in what they send first, which keeps links busy both ways. May wait.
    """
    rank, last, chunks = comm.rank, comm.world_size - 1, comm.messages
    comm.cut(chunks)

    def chunk(number: int, there: bool) -> int:
        return number if there and 0 <= number < chunks else NOTHING

    for turn in range(chunks + 4 * last):
        up, down = turn - 2 * (last - rank), turn - 2 * (last + rank)
        leaving = [(chunk(up, rank > 0), rank - 1), (chunk(down, rank < last), rank + 1)]
        for send, to in leaving[::-1] if comm.channel % 2 else leaving:
            if send != NOTHING:
                comm.exchange(send=send, to=to, receive=NOTHING, source=to)
        total, result = chunk(up + 1, rank < last), chunk(down + 1, rank > 0)
        if total != NOTHING:
            above = rank + 1
            comm.exchange(send=NOTHING, to=above, receive=total, source=above, combine="reduce")
        if result != NOTHING:
            comm.exchange(send=NOTHING, to=rank - 1, receive=result, source=rank - 1)
