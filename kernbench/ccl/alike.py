"""Whether groups of a machine are alike, so that a collective takes the same times in each."""

from collections.abc import Hashable, Sequence
from operator import floordiv, mod
from typing import Final

import numpy as np

from kernbench.ccl.prepared import Prepared
from kernbench.classes.partition import WAY_OUT, Apart, Ints, NotAlikeError, Standing
from kernbench.classes.tilings import apart_by_group
from kernbench.topology import Topology
from kernbench.topology.links import coordinates, sip_name, torus_shape

ALIKE_HINT: Final = (
    "choose an algorithm in which ranks do the same, such as a ring "
    f"(--set defaults.algorithm=ring), or {WAY_OUT}"
)
"""What a user can do where ranks of a class do not do the same in a collective."""


def check_alike(
    prepared: Prepared, tiles: Ints, devices: Sequence[int], standing: Standing | None
) -> None:
    """Checks that a collective takes the same times in several groups, and shares no link.

    The groups are moved copies of each other: from node to node, along a ring or a torus, or to
    other ports of a switch, which are automorphisms of the machine. Each message goes over ports of
    its sender and its receiver alone, so that groups without a common rank share no link; a group
    without copies may use any links. Ranks of a class use the same ones of their ports, so that
    what one of them meets there, the one that runs meets, too.

    Args:
        prepared: The collective, of the group whose ranks run.
        tiles: Global ranks of the groups that are to be alike, shape `[groups, places]`.
        devices: SIP of each rank.
        standing: Who stands for whom in the group; None if each rank runs.

    Raises:
        NotAlikeError: If this cannot be proved.
    """
    if not prepared.planned:
        raise NotAlikeError(
            f"algorithm {prepared.shape.chosen.name} has no plan, so that only ranks that run know "
            "what it does",
            hint=f"choose another algorithm: kernbench list ccl; or {WAY_OUT}",
        )
    if len(tiles) > 1:
        _check_moved(prepared.topology, tiles, np.asarray(devices))
        _check_ports(prepared, tiles)
    # If rank 0 tells of all, all use their ports as it does.
    if standing is not None and not prepared.at_once:
        _check_use(prepared, standing)


def _check_ports(prepared: Prepared, tiles: Ints) -> None:
    """Checks that messages go over ports of their senders and receivers alone.

    Raises:
        NotAlikeError: If one does not.
    """
    shape = prepared.shape
    sips = {sip_name(sip) for sip in range(prepared.topology.world_size)}
    for channel in prepared.channels:
        for (sender, receiver), path in zip(channel.pairs, channel.use.paths, strict=True):
            ends = {sip_name(shape.sips[rank]) for rank in (sender, receiver)}
            for link in path.route:
                touched = {part for part in map(_part, (link.src, link.dst)) if part in sips}
                if not touched or not touched <= ends:
                    raise NotAlikeError(
                        f"{shape.operation} by {shape.chosen.name} goes over link {link.name}, "
                        "which other ranks use, too",
                        [f"{len(tiles)} groups of {tiles.shape[1]} ranks do the same at once"],
                        hint="choose groups inside a node, or on one rail; or an algorithm that "
                        f"sends between neighbours; or {WAY_OUT}",
                    )


def _check_use(prepared: Prepared, standing: Standing) -> None:
    """Checks that ranks of a class use the same ones of their ports.

    Raises:
        NotAlikeError: If they do not.
    """
    shape, topology = prepared.shape, prepared.topology
    used: dict[str, set[Hashable]] = {sip_name(sip): set() for sip in shape.sips}
    links = {
        link.index: link
        for channel in prepared.channels
        for path in channel.use.paths
        for link in path.route
    }
    for link in links.values():
        src, dst = _part(link.src), _part(link.dst)
        for here, there, way in ((src, dst, "out"), (dst, src, "in")):
            if here in used and src != dst:
                used[here].add((way, _relative(topology, here, there)))
    ports = [used[sip_name(sip)] for sip in shape.sips]
    for place, caller in enumerate(standing.caller):
        if ports[place] != ports[caller]:
            ranks = standing.ranks[caller], standing.ranks[place]
            told = [f"with the ports of rank {standing.ranks[ports.index(use)]}" for use in ports]
            raise NotAlikeError(
                f"ranks {ranks[0]} and {ranks[1]} are of one class, and do not use the same ports "
                f"in {shape.operation} by {shape.chosen.name}",
                hint=ALIKE_HINT,
                apart=Apart(standing.ranks, told),
            )


def _part(node: str) -> str:
    """Returns the SIP, the switch or the router of a node of a machine's graph."""
    return node.partition(".")[0]


def _relative(topology: Topology, here: str, there: str) -> Hashable:
    """Returns where another part of the machine is, seen from a SIP: the kind, or the way to it."""
    if not there.startswith("sip"):
        return there.rstrip("0123456789")
    one, other = (int(name.removeprefix("sip")) for name in (here, there))
    shape = torus_shape(topology.machine.system)
    steps = zip(coordinates(one, shape), coordinates(other, shape), shape, strict=True)
    return tuple((there - here) % extent for here, there, extent in steps)


def crosses(topology: Topology, sips: Sequence[int]) -> bool:
    """Returns whether some of the ways between SIPs are those of other SIPs, too: over spines."""
    network = topology.machine.system.sips.network
    part = network.node or network.leaf
    if part is None:
        return network.kind != "switch"
    parts, places = ({number(sip, part.size) for sip in sips} for number in (floordiv, mod))
    return len(parts) > 1 and (network.node is None or len(places) > 1)


def _check_moved(topology: Topology, tiles: Ints, devices: Ints) -> None:
    """Checks that groups are copies of each other on the machine, moved by automorphisms.

    Args:
        tiles: Global ranks of the groups, shape `[groups, places]`.
        devices: SIP of each rank.

    Raises:
        NotAlikeError: If they are not, or if automorphisms of such a network are not known.
    """
    system, sips = topology.machine.system, devices[tiles]
    network = system.sips.network
    kind, ways = network.kind, list[Ints]()
    if kind in ("nodes", "fat_tree"):
        part = network.node or network.leaf
        assert part is not None
        for numbers in (sips // part.size, sips % part.size):
            ways.append(numbers - numbers[:, :1])
    elif kind in ("ring", "torus"):
        stride = 1
        for extent in torus_shape(system):
            numbers = sips // stride % extent
            ways.append((numbers - numbers[:, :1]) % extent)
            stride *= extent
    elif kind != "switch":
        raise NotAlikeError(
            f"a network of kind {kind}, of which no two parts are known to be alike",
            hint=f"choose a ring, a torus, a switch, nodes or a fat tree, or {WAY_OUT}",
        )
    lies = np.concatenate(ways, axis=1) if ways else sips[:, :0]
    if (lies != lies[0]).any():
        raise NotAlikeError(
            f"groups of {sips.shape[1]} ranks lie in different ways on {topology.name}",
            [f"SIPs {sips[0].tolist()[:8]} and {sips[-1].tolist()[:8]}, for two of them"],
            hint=f"choose sizes of groups that divide a node, or are divided by one, or {WAY_OUT}",
            apart=apart_by_group(len(devices), tiles, lies),
        )
