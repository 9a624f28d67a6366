"""Times all ranks of a channel as one, where each does what rank 0 does at the same times.

On a machine on which messages of all SIPs find the same, with PEs that are alike, chunks of one
size and an algorithm in which rank 0 tells of all, nothing tells one rank from another but its
place. If all begin at once, what rank 0 gets, it gets when others get it from rank 0 (ADR 0076, ADR
0082). So time and memory do not go with the ranks. If they do not, their ways are alike still.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from kernbench.ccl.costs import RankCosts
from kernbench.ccl.lanes import vectorised
from kernbench.ccl.layout import Layout
from kernbench.ccl.operations import Ints
from kernbench.ccl.plan import NOTHING, Plan
from kernbench.ccl.waves import of_rank_0
from kernbench.hw.claims import Ways
from kernbench.hw.path import Path
from kernbench.topology.alike import Alike


@dataclass(frozen=True, eq=False)
class AtOnce:
    """A channel of which rank 0 tells what all ranks do.

    Attributes:
        picoseconds: How long each rank takes, if all begin at once and nobody else is on its links.
        ways: The links that it sends over.
        paths: Returns the path that stands for those of all ranks in a stage, given the receivers:
            that from rank 0. See `vectorised`.
    """

    picoseconds: int
    ways: Ways
    paths: Callable[[Ints], Sequence[Path]]


def at_once(machine: Alike, told: Plan, layout: Layout, costs: RankCosts) -> AtOnce | None:
    """Times a channel from what rank 0 does; None if that does not tell of all ranks.

    Args:
        machine: The machine, on which messages of all SIPs find the same.
        told: A plan of which what rank 0 exchanges tells of all.
        layout: Cuts of the buffers; the channel has a share of each block, and not of each chunk.
        costs: Costs of the channel's messages.
    """
    plan = of_rank_0(told)
    if not (costs.alike and layout.uniform and _in_step(plan, machine)):
        return None
    queue, feed = costs.together.queue, costs.pes[0].pe.dma
    peers = sorted({int(stage.to[0, 0]) for stage in plan.stages})
    paths: dict[int, Path] = {}
    kinds: dict[Hashable, tuple[int, Path]] = {}
    private = told.turned  # else peers of other ranks do not follow from those of rank 0
    for peer in peers:
        way = machine.way(peer)
        if len({kind for _, kind in way}) < len(way):
            return None  # two ranks send over one link
        path = Path([link for link, _ in way], queue.feed(feed), queue.vc_chunk_size)
        paths[peer] = path
        for _, kind in way:
            # A link that a stage sends over is free again behind it: when rank 0 has got its last
            # message, what it sent has arrived, too, since others got it from rank 0 by then.
            private = private and kind not in kinds
            kinds[kind] = peer, path

    def from_rank_0(to: Ints) -> list[Path]:
        return [paths[int(to[0])]]

    ends, _ = vectorised(plan, layout, costs.together, from_rank_0, (0,), moved=True)
    largest = queue.on_links(queue.slot_size)
    tail = max(path.tail(queue.n_slots, largest) for path in paths.values())
    return AtOnce(ends[0], Ways(kinds, tail, private), from_rank_0)


def _in_step(plan: Plan, machine: Alike) -> bool:
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
        and (machine.takers(stage.to[:1], stage.source[:1]) == stage.to[:1]).all()
        for stage in plan.stages
    )
