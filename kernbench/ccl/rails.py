"""Rings between nodes: one for each NIC of a node, so that all NICs are used at once.

NCCL's search for channels gives each its own way into a node and out of it, and on odd nodes swaps
the two, so that what leaves over a NIC of one node arrives at the NIC of the same rail in the next
("Alternate rings to avoid crossing rails", src/graph/connect.cc). See ADR 0039.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from kernbench.caches import cached
from kernbench.ccl.operations import Ints
from kernbench.topology import Topology
from kernbench.topology.ways import ways_of
from kernbench.units import Bandwidth

Pair = tuple[int, int]
"""The ranks of a sender and a receiver."""

Walk = tuple[int, ...]
"""All ranks of a group in the order in which a ring goes through them."""


def walks_of(places: Sequence[tuple[int, int]], most: int) -> tuple[Walk, ...]:
    """Returns the walks of the rings of a group.

    There are as many as the node with the fewest ranks has ranks. A walk goes from node to node, in
    the order in which the ranks come to them, and through all ranks of a node. As many NICs of each
    node, first those on rails of all nodes, are the way in of one walk and the way out of another;
    a single walk leaves a node of several ranks over another NIC than it came.

    Args:
        places: Node and rail of each rank.
        most: The most walks.

    Returns:
        The walks; none if all ranks are in one node.
    """
    nodes: dict[int, dict[int, int]] = {}
    for rank, (node, rail) in enumerate(places):
        nodes.setdefault(node, {})[rail] = rank
    if len(nodes) < 2:
        return ()
    common = set.intersection(*(set(ranks) for ranks in nodes.values()))
    lined_up = [
        [ranks[rail] for rail in sorted(ranks, key=lambda rail: (rail not in common, rail))]
        for ranks in nodes.values()
    ]
    count = min(most, *map(len, lined_up))
    return tuple(
        tuple(
            rank
            for number, ranks in enumerate(lined_up)
            for rank in _through(ranks, walk, count, back=number % 2 == 1)
        )
        for walk in range(count)
    )


def _through(ranks: Sequence[int], walk: int, count: int, *, back: bool) -> list[int]:
    """Returns the ranks of a node in the order in which a walk goes through them.

    Args:
        ranks: The ranks; the first ones, as many as there are walks, have the ways in and out.
        walk: Number of the walk.
        count: Number of walks.
        back: Whether the way in is the way out of other nodes.
    """
    if len(ranks) == 1:
        return list(ranks)
    first, last = walk, (walk + 1) % max(count, 2)
    # Each walk meets the others in another order, so that no GPU always waits for the same one.
    turned = [*ranks[first:], *ranks[:first]]
    between = [rank for rank in turned if rank not in (ranks[first], ranks[last])]
    way = [ranks[first], *between, ranks[last]]
    return way[::-1] if back else way


@dataclass(frozen=True)
class Rails:
    """The rings of a group over several nodes, and what each of them has of the links.

    Rings of a group share the links inside the nodes. Each has an equal share of every link that it
    is on, whether the others are busy or not: a fixed bound of its rate, which keeps the rings out
    of each other's way. Between even nodes no bound costs anything: the NIC, which a ring has to
    itself, is slower than its share of the links inside.

    Attributes:
        topology: The machine.
        sips: Device of each rank.
        walks: See `walks_of`; at least one.
    """

    topology: Topology
    sips: tuple[int, ...]
    walks: tuple[Walk, ...]

    @cached_property
    def along(self) -> "tuple[Bounds, ...]":
        """By walk, what it has of the links."""
        sips = np.array(self.sips, np.int64)
        after = [_after(np.array(walk, np.int64)) for walk in self.walks]
        ways = [ways_of(self.topology, sips, sips[following]) for following in after]
        users = np.bincount(np.concatenate([way.links for way in ways]))
        # All links of a way are one stage (ADR 0010), so a bound at its start holds on all of it.
        return tuple(
            Bounds(following, np.minimum.reduceat(way.rates // users[way.links], way.first))
            for following, way in zip(after, ways, strict=True)
        )

    @cached_property
    def shares(self) -> tuple[dict[Pair, Bandwidth], ...]:
        """By walk, the bound of the rate from each rank to the next, in bytes a second."""
        return tuple(
            {(rank, int(bounds.after[rank])): Bandwidth(int(bounds.rates[rank])) for rank in walk}
            for walk, bounds in zip(self.walks, self.along, strict=True)
        )


class Bounds(NamedTuple):
    """What the ring along a walk has of the links, as arrays over ranks.

    Attributes:
        after: The rank behind each rank.
        rates: Bound of the rate from each rank to the one behind it, in bytes a second.
    """

    after: Ints
    rates: Ints

    def hold(self, senders: Ints, receivers: Ints) -> bool:
        """Returns whether messages keep to the walk."""
        return bool((self.after[senders] == receivers).all())


def _after(walk: Ints) -> Ints:
    """Returns the rank behind each rank."""
    found = np.empty_like(walk)
    found[walk] = np.roll(walk, -1)
    return found


@cached("ccl.rails")
def rails_of(topology: Topology, sips: tuple[int, ...], most: int) -> Rails | None:
    """Returns the rings of a group; None if it is in one node, or uses one NIC only anyway.

    Args:
        sips: Device of each rank.
        most: The most rings; 1 for algorithms that know nothing of nodes.
    """
    network = topology.machine.system.sips.network
    if most == 1 or network.node is None:
        return None
    size: Final = network.node.size
    walks = walks_of([divmod(sip, size) for sip in sips], most)
    return Rails(topology, sips, walks) if walks else None
