"""Searches a schedule for a machine: rounds of transfers that share no link.

An all-gather is packed round by round: in each, as many chunks as links carry go to ranks that lack
them, over the shortest routes first. A reduce-scatter is the same backwards, and an all-reduce is
both. No schedule is said to be the best; `ccl.cut_bound` says how much better one could be.
"""

from collections.abc import Sequence
from typing import Final

from kernbench.ccl.plan import NOTHING, Algorithm, Comm, Plan, Setting, plan_of
from kernbench.errors import UnsupportedError, UsageError
from kernbench.topology import Topology

MOST_RANKS: Final = 16

Transfers = list[tuple[int, int, int]]
"""Sender, receiver and chunk, which is the number of the rank that has it at first or at last."""

HALVES: Final = {
    "all_gather": 1,
    "reduce_scatter": 1,
    "all_reduce": 2,
}
"""Operations that are searched, with how often every block must come to every rank, or leave it."""


def gathering_rounds(topology: Topology, ranks: int) -> list[Transfers]:
    """Returns the rounds of an all-gather among a machine's first SIPs.

    Args:
        ranks: How many; each has one chunk.

    Raises:
        UsageError: If the ranks are too many, or more than the machine has (F4).
    """
    most = min(MOST_RANKS, topology.world_size)
    if not 2 <= ranks <= most:
        raise UsageError(f"expected 2 to {most} ranks to search for; got {ranks}", code="F4")
    routes = {
        (a, b): tuple(link.index for link in topology.sip_route(a, b))
        for a in range(ranks)
        for b in range(ranks)
        if a != b
    }
    # Of equal routes those of equal shift come together: they are a matching.
    order = sorted(routes, key=lambda pair: (len(routes[pair]), (pair[1] - pair[0]) % ranks, pair))
    has = [{rank} for rank in range(ranks)]
    found: list[Transfers] = []
    while any(len(chunks) < ranks for chunks in has):
        used: set[int] = set()
        coming: list[set[int]] = [set() for _ in range(ranks)]
        transfers: Transfers = []
        for a, b in order:
            lacks = has[a] - has[b] - coming[b]
            if lacks and used.isdisjoint(routes[a, b]):
                # The chunk that fewest ranks have, so that none is left for the last rounds.
                chunk = min(lacks, key=lambda one: (sum(one in each for each in has), one))
                coming[b].add(chunk)
                used.update(routes[a, b])
                transfers.append((a, b, chunk))
        for rank, chunks in enumerate(coming):
            has[rank] |= chunks
        found.append(transfers)
    return found


def plan_for(operation: str, rounds: Sequence[Transfers], ranks: int) -> Plan:
    """Returns the plan of an operation that follows the rounds of an all-gather.

    Args:
        operation: A key of `HALVES`.
        rounds: As `gathering_rounds` returns them.
        ranks: Ranks that take part.

    Raises:
        UnsupportedError: If the operation is not searched.
    """
    if operation not in HALVES:
        raise UnsupportedError(
            f"{operation} is not searched", hint=f"operations are {', '.join(HALVES)}"
        )
    gathers: list[tuple[Transfers, bool]] = [(transfers, False) for transfers in rounds]
    # Backwards, what came to a rank leaves it, and is added where it came from.
    reduces = [([(b, a, chunk) for a, b, chunk in each], True) for each in reversed(rounds)]
    steps = {
        "all_gather": gathers,
        "reduce_scatter": reduces,
        "all_reduce": [*reduces, *gathers],
    }[operation]
    found = plan_of(_following(steps), Setting(operation, ranks, 0, (ranks,)))
    assert found is not None, "it exchanges chunks, and does nothing else"
    return found


def _following(steps: Sequence[tuple[Transfers, bool]]) -> Algorithm:
    def follow(comm: Comm) -> None:
        rank = int(comm.rank)  # one by one: ranks send to different numbers of others
        for transfers, adds in steps:
            for sender, receiver, chunk in transfers:
                if sender == rank:
                    comm.exchange(send=chunk, to=receiver, receive=NOTHING, source=receiver)
            for sender, receiver, chunk in transfers:
                if receiver == rank:
                    comm.exchange(
                        send=NOTHING,
                        to=sender,
                        receive=chunk,
                        source=sender,
                        combine="reduce" if adds else "copy",
                    )

    return follow
