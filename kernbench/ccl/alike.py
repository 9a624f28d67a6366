"""Whether groups of a machine are alike, so that a collective takes the same times in each."""

from collections.abc import Sequence

import numpy as np

from kernbench.ccl.prepared import Prepared
from kernbench.classes.partition import WAY_OUT, Ints, NotAlikeError
from kernbench.topology import Topology
from kernbench.topology.links import torus_shape


def check_alike(prepared: Prepared, tiles: Ints, devices: Sequence[int]) -> None:
    """Checks that a collective takes the same times in several groups, and shares no link.

    The groups are moved copies of each other: from node to node, along a ring or a torus, or to
    other ports of a switch, which are automorphisms of the machine. Each message goes over ports of
    its sender and its receiver only, so that groups without a common rank share no link. A group
    that no other one is like may use any links.

    Args:
        prepared: The collective, of the group whose ranks run.
        tiles: Global ranks of the groups that are to be alike, shape `[groups, places]`.
        devices: SIP of each rank.

    Raises:
        NotAlikeError: If this cannot be proved.
    """
    topology = prepared.topology
    if not prepared.planned:
        raise NotAlikeError(
            f"algorithm {prepared.shape.chosen.name} has no plan, so that only ranks that run know "
            "what it does",
            hint=f"choose another algorithm: kernbench list ccl; or {WAY_OUT}",
        )
    if len(tiles) == 1:
        return
    _check_moved(topology, np.asarray(devices)[tiles])
    for channel in prepared.channels:
        for (sender, receiver), path in zip(channel.pairs, channel.use.paths, strict=True):
            ends = {f"sip{prepared.shape.sips[rank]}" for rank in (sender, receiver)}
            for link in path.route:
                if not ends & {link.src.partition(".")[0], link.dst.partition(".")[0]}:
                    raise NotAlikeError(
                        f"{prepared.shape.operation} by {prepared.shape.chosen.name} goes over link "
                        f"{link.name}, which groups of other ranks use, too",
                        [f"{len(tiles)} groups of {tiles.shape[1]} ranks do the same at once"],
                        hint="choose groups inside a node, or on one rail; or an algorithm that "
                        f"sends between neighbours; or {WAY_OUT}",
                    )


def _check_moved(topology: Topology, sips: Ints) -> None:
    """Checks that groups of SIPs are copies of each other, moved by automorphisms.

    Raises:
        NotAlikeError: If they are not, or if automorphisms of such a network are not known.
    """
    system = topology.machine.system
    network = system.sips.network
    kind, moved = network.kind, True
    if kind in ("nodes", "fat_tree"):
        part = network.node or network.leaf
        assert part is not None
        for numbers in (sips // part.size, sips % part.size):
            moved &= _alike(numbers - numbers[:, :1])
    elif kind in ("ring", "torus"):
        stride = 1
        for extent in torus_shape(system):
            numbers = sips // stride % extent
            moved &= _alike((numbers - numbers[:, :1]) % extent)
            stride *= extent
    elif kind != "switch":
        raise NotAlikeError(
            f"a network of kind {kind}, of which no two parts are known to be alike",
            hint=f"choose a machine with a ring, a torus, a switch, nodes or a fat tree, or {WAY_OUT}",
        )
    if not moved:
        raise NotAlikeError(
            f"groups of {sips.shape[1]} ranks lie in different ways on {topology.name}",
            [f"SIPs {sips[0].tolist()[:8]} and {sips[-1].tolist()[:8]}, for two of them"],
            hint=f"choose sizes of groups that divide a node, or are divided by one, or {WAY_OUT}",
        )


def _alike(rows: Ints) -> bool:
    return bool((rows == rows[0]).all())
