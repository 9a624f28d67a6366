"""The links of a machine: the node that each leaves, the node that it reaches, its speed."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from kernbench.topology.spec import EdgeSpec, LinkSpec, NetworkSpec, PortSpec, SystemSpec
from kernbench.units import Bandwidth, Bytes, Ps

LinkKind = Literal["fifo", "fluid"]

SWITCH = "switch"


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a link.

    Attributes:
        index: Place in `Topology.links`.
        name: The two ends, `sip0->sip1`, as tables and traces show them.
        src: Node that the link leaves.
        dst: Node that the link reaches.
        bandwidth: Payload bytes a second.
        latency: Time of flight of the first byte, in picoseconds.
        kind: `fifo` links serve chunks in order, cut-through; `fluid` links share their bandwidth
            fairly among all flows that are under way.
        chunk: Largest piece, in bytes, that holds a `fifo` link before another flow may have it.
    """

    index: int
    name: str
    src: str
    dst: str
    bandwidth: Bandwidth
    latency: Ps
    kind: LinkKind
    chunk: Bytes


def sip_name(sip: int) -> str:
    """Returns the name of a SIP, such as `sip3`."""
    return f"sip{sip}"


def cube_name(sip: int, cube: int) -> str:
    """Returns the name of the node of a cube, such as `sip3.cube1`."""
    return f"sip{sip}.cube{cube}"


def coordinates(index: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the place of an index in a grid whose first dimension runs fastest."""
    place = []
    for extent in shape:
        index, here = divmod(index, extent)
        place.append(here)
    return tuple(place)


def torus_shape(system: SystemSpec) -> tuple[int, ...]:
    """Returns the extents of a torus; a ring is a torus of one dimension."""
    return system.sips.network.shape or (system.sips.count,)


def node_name(node: int) -> str:
    """Returns the name of the switch inside a node, such as `node1`."""
    return f"node{node}"


def leaf_name(leaf: int) -> str:
    """Returns the name of a leaf switch, such as `leaf1`."""
    return f"leaf{leaf}"


def spine_name(spine: int) -> str:
    """Returns the name of a spine switch, such as `spine1`."""
    return f"spine{spine}"


@dataclass(frozen=True, slots=True)
class Leaves:
    """Which leaf switch each NIC is on.

    Attributes:
        count: Number of leaves.
        size: NICs on each leaf.
        rails: Whether a leaf joins the NICs that have the same place in their nodes; otherwise a
            leaf joins NICs of neighbouring SIPs.
    """

    count: int
    size: int
    rails: bool

    def of(self, sip: int) -> int:
        """Returns the leaf of a SIP's NIC."""
        return sip % self.count if self.rails else sip // self.size

    def spine(self, destination: int, spines: int) -> int:
        """Returns the spine that carries all traffic to a SIP from other leaves.

        The destinations take the spines in turn, leaf by leaf: d-mod-k routing, which spreads
        shifts evenly (E. Zahavi, "Fat-tree routing and node ordering providing contention free
        traffic for MPI global collectives", J. Parallel Distrib. Comput. 72, 2012).

        Args:
            destination: Number of the SIP.
            spines: Number of spines.
        """
        place = destination // self.count if self.rails else destination % self.size
        return (self.of(destination) * self.size + place) % spines


def leaves_of(system: SystemSpec) -> Leaves:
    """Returns the leaves of a network of `nodes` or a `fat_tree`.

    A network of a single node has no leaves.

    Args:
        system: A machine with such a network.
    """
    network, sips = system.sips.network, system.sips.count
    if network.node is not None:
        nodes = sips // network.node.size
        return Leaves(network.node.size if nodes > 1 else 0, nodes, rails=True)
    assert network.leaf is not None, "only nodes and fat trees have leaves"
    return Leaves(sips // network.leaf.size, network.leaf.size, rails=False)


def build_links(system: SystemSpec) -> tuple[Link, ...]:
    """Returns all links: those between the cubes of each SIP, then the network's."""
    builder = _Builder(system)
    builder.meshes()
    match system.sips.network.kind:
        case "ring" | "torus":
            builder.torus()
        case "switch":
            builder.ports(lambda _: SWITCH)
        case "graph":
            builder.cables()
        case "nodes":
            builder.nodes()
            builder.leaves()
        case "fat_tree":
            builder.leaves()
    return tuple(builder.links)


def links_of(system: SystemSpec, sips: Sequence[int]) -> tuple[Link, ...]:
    """Returns the links of some SIPs to switches, and those of their leaves; indices are of no use.

    Args:
        system: A machine with switches.
        sips: Numbers of the SIPs.
    """
    builder = _Builder(system, sips)
    if system.sips.network.kind == "nodes":
        builder.nodes()
    if system.sips.network.kind == "switch":
        builder.ports(lambda _: SWITCH)
    else:
        builder.leaves()
    return tuple(builder.links)


class _Builder:
    """Makes links.

    Args:
        system: The machine.
        sips: SIPs whose ports, and leaves whose ways up and down, are made; None for all.
    """

    def __init__(self, system: SystemSpec, sips: Sequence[int] | None = None) -> None:
        self.system = system
        self.sips = range(system.sips.count) if sips is None else sips
        self.network: NetworkSpec = system.sips.network
        self.changed = {sip_name(sip): ports for sip, ports in system.changed_ports.items()}
        self.links: list[Link] = []

    def add(
        self,
        name: str,
        src: str,
        dst: str,
        bandwidth: Bandwidth,
        latency: Ps,
        kind: LinkKind = "fifo",
    ) -> None:
        chunk = self.network.chunk
        self.links.append(Link(len(self.links), name, src, dst, bandwidth, latency, kind, chunk))

    def meshes(self) -> None:
        columns, rows = self.system.sip.cubes.shape  # of every SIP: `checks` refuses others
        pairs = [(c, c + 1) for c in range(columns * rows) if (c + 1) % columns]
        pairs += [(c, c + columns) for c in range(columns * (rows - 1))]
        for sip in range(self.system.sips.count):
            link = self.system.sip_of(sip).cubes.link
            if link is None:
                continue
            for low, high in sorted(pairs):
                a, b = cube_name(sip, low), cube_name(sip, high)
                self.add(f"{a}->{b}", a, b, link.bandwidth, link.latency)
                self.add(f"{b}->{a}", b, a, link.bandwidth, link.latency)

    def torus(self) -> None:
        """Adds a cable upward from each SIP in each dimension.

        Cables of the first dimension leave from the east end of the first row of cubes, cables of
        the second from the south end of the first column, further ones from cube 0. All cables
        arrive at cube 0.
        """
        shape = torus_shape(self.system)
        columns, rows = self.system.sip.cubes.shape
        exits = (columns - 1, columns * (rows - 1))
        for sip in range(self.system.sips.count):
            place = coordinates(sip, shape)
            for dimension, extent in enumerate(shape):
                # With two SIPs the wrap-around would double the cable that is already there.
                if extent == 1 or (extent == 2 and place[dimension] == 1):
                    continue
                stride = math.prod(shape[:dimension])
                last = place[dimension] == extent - 1
                up = sip - stride * (extent - 1) if last else sip + stride
                leaves = cube_name(sip, exits[dimension] if dimension < len(exits) else 0)
                self.cable(sip_name(sip), sip_name(up), leaves, cube_name(up, 0))

    def own(self, name: str, plain: PortSpec) -> PortSpec:
        """Returns a port with the changed values of its node.

        Args:
            name: Name of the node, such as `sip3`.
            plain: The port of a node without changes.
        """
        changes = self.changed.get(name)
        return plain if changes is None else changes.applied(plain)

    def cable(self, a: str, b: str, a_node: str, b_node: str, edge: EdgeSpec | None = None) -> None:
        """Adds both directions of a cable, as slow as the slower of its two ends."""
        bandwidth = (edge and edge.bandwidth) or self.network.bandwidth
        latency = self.network.latency if edge is None or edge.latency is None else edge.latency
        ends = [self.own(name, PortSpec(bandwidth, latency)) for name in (a, b)]
        bandwidth = min((end.bandwidth for end in ends), key=lambda rate: rate.per_second)
        latency = max(end.latency for end in ends)
        self.add(f"{a}->{b}", a_node, b_node, bandwidth, latency)
        self.add(f"{b}->{a}", b_node, a_node, bandwidth, latency)

    def port(self, sip: int, switch: str, own: LinkSpec | PortSpec, latency: Ps) -> None:
        """Adds a port of a switch; the link into the switch has the latency of the whole crossing.

        Args:
            sip: SIP at the port.
            switch: Name of the switch.
            own: Bandwidth and latency of this port.
            latency: Latency of unchanged ports; a port with more delays the way out of the switch
                by the difference, too.
        """
        name, node = sip_name(sip), cube_name(sip, 0)
        above = Ps(max(own.latency - latency, 0))
        self.add(f"{name}->{switch}", node, switch, own.bandwidth, own.latency, "fluid")
        self.add(f"{switch}->{name}", switch, node, own.bandwidth, above, "fluid")

    def ports(self, switch_of: Callable[[int], str]) -> None:
        """Adds a port of each SIP with the bandwidth and the latency of the network."""
        plain = self.network.port
        for sip in self.sips:
            self.port(sip, switch_of(sip), self.own(sip_name(sip), plain), plain.latency)

    def nodes(self) -> None:
        node, plain = self.network.node, self.network.port
        assert node is not None
        for sip in self.sips:
            own = self.own(sip_name(sip), plain).node
            assert own is not None
            self.port(sip, node_name(sip // node.size), own, node.latency)

    def leaves(self) -> None:
        """Adds the NICs, then the links between leaves and spines.

        The links of a leaf to the spines share the bandwidth of the leaf's NICs evenly. The way up
        has the latency of a spine, the way down has no latency, as with a port.
        """
        leaves, spine, network = leaves_of(self.system), self.network.spine, self.network
        if leaves.count == 0:
            return
        self.ports(lambda sip: leaf_name(leaves.of(sip)))
        if leaves.count == 1:
            return
        assert spine is not None
        share = spine.count * spine.oversubscription
        bandwidth = Bandwidth(-(-leaves.size * network.bandwidth.per_second // share))
        used = {leaves.of(sip) for sip in self.sips}
        for leaf in map(leaf_name, sorted(used)):
            for top in map(spine_name, range(spine.count)):
                self.add(f"{leaf}->{top}", leaf, top, bandwidth, spine.latency, "fluid")
                self.add(f"{top}->{leaf}", top, leaf, bandwidth, Ps(0), "fluid")

    def cables(self) -> None:
        sips = {sip_name(sip): cube_name(sip, 0) for sip in range(self.system.sips.count)}
        for edge in self.network.edges or ():
            a, b = edge.ends
            self.cable(a, b, sips.get(a, a), sips.get(b, b), edge)
