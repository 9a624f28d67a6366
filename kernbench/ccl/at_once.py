"""Times all ranks of a channel as one, where each does what rank 0 does at the same times.

On a ring or torus whose SIPs are all alike, with an algorithm that is one formula in the rank, and
chunks of one size, nothing tells one rank from another but its place. If all begin at once, what
rank 0 gets, it gets when others get it from rank 0 (ADR 0076). So time and memory do not go with
the ranks.
"""

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from kernbench.ccl.costs import RankCosts
from kernbench.ccl.lanes import vectorised
from kernbench.ccl.layout import Layout
from kernbench.ccl.plan import NOTHING, Plan
from kernbench.ccl.waves import of_rank_0
from kernbench.hw.claims import Ways
from kernbench.hw.path import Path
from kernbench.hw.queue import QueueSpec
from kernbench.topology import Topology
from kernbench.topology.turned import Turned, turned_of
from kernbench.units import Bandwidth


@dataclass(frozen=True, eq=False)
class AtOnce:
    """A channel of which rank 0 tells what all ranks do.

    Attributes:
        picoseconds: How long each rank takes, if all begin at once and nobody else is on its links.
        ways: The links that it sends over.
    """

    picoseconds: int
    ways: Ways


def whole_of(topology: Topology, sips: tuple[int, ...]) -> Turned | None:
    """Returns a machine whose SIPs are all alike, if a group has all of it, in order; else None.

    Args:
        sips: SIP of each rank of the group.
    """
    machine = turned_of(topology) if len(sips) == topology.world_size else None
    in_order = machine is not None and (np.asarray(sips) == np.arange(len(sips))).all()
    return machine if in_order else None


def at_once(machine: Turned, formula: Plan, layout: Layout, costs: RankCosts) -> AtOnce | None:
    """Times a channel from what rank 0 does; None if that does not tell of all ranks.

    Args:
        machine: The machine, whose SIPs are the ranks, in order.
        formula: What rank 0 exchanges, which tells of all.
        layout: Cuts of the buffers; the channel has a share of each block, and not of each chunk.
        costs: Costs of the channel's messages.
    """
    plan = of_rank_0(formula)
    if not layout.even or not _in_step(plan, machine):
        return None
    queue, feed = costs.together.queue, costs.pes[0].pe.dma
    peers = sorted({int(stage.to[0, 0]) for stage in plan.stages})
    paths = {peer: _path(machine, peer, queue, queue.feed(feed)) for peer in peers}
    kinds: dict[Hashable, tuple[int, Path]] = {}
    for peer in peers:
        for _, kind in machine.way(peer):
            if kind in kinds:
                return None  # two ranks send over one link
            kinds[kind] = peer, paths[peer]
    ends, _ = vectorised(
        plan, layout, costs.together, lambda _, peer: paths[peer], (0,), moved=True
    )
    largest = queue.on_links(queue.slot_size)
    tail = max(path.tail(queue.n_slots, largest) for path in paths.values())
    return AtOnce(ends[0], Ways(kinds, tail))


def _in_step(plan: Plan, machine: Turned) -> bool:
    """Returns whether ranks always send to one peer, and get from the one that they are that for.

    Args:
        plan: That of rank 0.
    """
    return bool(len(plan.send)) and all(
        (stage.to == stage.to[0]).all()
        and (stage.source == stage.source[0]).all()
        and (stage.send != NOTHING).all()
        and (stage.receive != NOTHING).all()
        and stage.to[0, 0] != 0
        and machine.opposite(int(stage.source[0, 0])) == stage.to[0, 0]
        for stage in plan.stages
    )


def _path(machine: Turned, peer: int, queue: QueueSpec, feed: Bandwidth) -> Path:
    return Path([link for link, _ in machine.way(peer)], feed, queue.vc_chunk_size)
