"""A machine as a graph: its cubes, its links, and the ways between them."""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cached_property
from itertools import groupby, permutations
from typing import TYPE_CHECKING, Any

from kernbench.caches import cached
from kernbench.topology.links import Link, build_links, coordinates, cube_name, torus_shape
from kernbench.topology.routes import Routes, parse_cube
from kernbench.topology.spec import MachineSpec

if TYPE_CHECKING:
    import networkx


class Topology:
    """A checked machine.

    The nodes of its graph are cubes, named `sip3.cube1`, and the switches and routers between SIPs:
    routers by their own names, `switch`, and `node0`, `leaf0`, `spine0` for the switches inside
    nodes, the leaves and the spines. Links and routes are made at their first use.

    Machines are equal if every value of theirs is: of equal machines, all that follows is the same.

    Args:
        machine: Description of the machine, checked.
        spec: The machine file as YAML gives it, with `--set` applied.

    Attributes:
        machine: Description of the machine, checked.
        spec: The machine file as YAML gives it, with `--set` applied.
    """

    def __init__(self, machine: MachineSpec, spec: Mapping[str, Any]) -> None:
        self.machine = machine
        self.spec = spec
        self._cached_route = cached("topology.routes")(self._find_route)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Topology) and (self is other or self._key == other._key)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _key(self) -> Hashable:
        return _frozen(self.machine)

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    @property
    def name(self) -> str:
        """Name of the machine in tables and traces."""
        return self.machine.system.name

    @property
    def world_size(self) -> int:
        """Number of SIPs: the most ranks that a program may have."""
        return self.machine.system.sips.count

    @property
    def num_cubes(self) -> int:
        """Cubes of one SIP; all SIPs have the same number."""
        return math.prod(self.machine.system.sip.cubes.shape)

    def num_pes(self, sip: int) -> int:
        """Returns the number of PEs of a SIP."""
        return self.num_cubes * self.machine.system.sip_of(sip).cube.pes

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """All links, each at its `index`."""
        return build_links(self.machine.system)

    @cached_property
    def _routes(self) -> Routes:
        return Routes(self.machine.system, self.links)

    def cube_node(self, sip: int, cube: int = 0) -> str:
        """Returns the node of a cube.

        Raises:
            ValueError: The machine has no such cube.
        """
        self._check(sip, cube)
        return cube_name(sip, cube)

    def _check(self, sip: int, cube: int = 0) -> None:
        """Raises ValueError if the machine has no such cube."""
        if not (0 <= sip < self.world_size and 0 <= cube < self.num_cubes):
            raise ValueError(
                f"no cube {cube} in SIP {sip}: {self.name} has SIPs 0 to {self.world_size - 1} "
                f"with cubes 0 to {self.num_cubes - 1}"
            )

    def pe_node(self, sip: int, pe: int) -> str:
        """Returns the node of the cube that holds a PE.

        Args:
            sip: Number of the SIP.
            pe: Number of the PE in its SIP, counted through all cubes.
        """
        return self.cube_node(sip, pe // self.machine.system.sip_of(sip).cube.pes)

    def route(self, src: str, dst: str) -> tuple[Link, ...]:
        """Returns the links from one cube to another, in order; none from a cube to itself.

        Raises:
            ValueError: The machine has no such cube.
        """
        return self._cached_route(self._place(src), self._place(dst))

    def sip_route(self, src_sip: int, dst_sip: int) -> tuple[Link, ...]:
        """Returns the route between the first cubes of two SIPs."""
        return self._cached_route((src_sip, 0), (dst_sip, 0))

    def _find_route(self, src: tuple[int, int], dst: tuple[int, int]) -> tuple[Link, ...]:
        self._check(*src)
        self._check(*dst)
        return self._routes.between(src, dst)

    def _place(self, node: str) -> tuple[int, int]:
        try:
            place = parse_cube(node)
        except ValueError:
            raise ValueError(f"{node!r} is no cube; a cube is named such as sip0.cube0") from None
        self.cube_node(*place)
        return place

    def node_of(self, sip: int) -> int:
        """Returns the index of the node that a SIP is in; 0 on a machine without nodes.

        Raises:
            ValueError: The machine has no such SIP.
        """
        self._check(sip)
        node = self.machine.system.sips.network.node
        return sip // node.size if node is not None else 0

    def links_out(self, sips: Sequence[int]) -> int:
        """Returns how many links each of some SIPs has to neighbours, at most one to each other.

        A switch has one port for a SIP, so it is one link.

        Args:
            sips: Numbers of the SIPs; the one with the fewest links decides.
        """
        return max(1, min(len(sips) - 1, *(self._cables[sip] for sip in sips)))

    def meshed(self, sips: Sequence[int]) -> bool:
        """Returns whether each of some SIPs, three or more, has a link of its own to each other.

        Args:
            sips: Numbers of the SIPs.
        """
        if len(sips) < 3 or len(sips) - 1 > self.links_out(sips):
            return False
        return self.linked(permutations(sips, 2))

    def linked(self, pairs: Iterable[tuple[int, int]]) -> bool:
        """Returns whether each pair of SIPs has a link of its own.

        Args:
            pairs: Numbers of two SIPs each.
        """
        return self._joined.issuperset(pairs)

    @cached_property
    def _joined(self) -> frozenset[tuple[int, int]]:
        """SIPs between which there is a link, both ways round."""
        ends = ((link.src, link.dst) for link in self.links if link.kind == "fifo")
        pairs = ([end.partition(".") for end in pair] for pair in ends)
        return frozenset(
            (int(src[0].removeprefix("sip")), int(dst[0].removeprefix("sip")))
            for src, dst in pairs
            if src[1] and dst[1] and src[0] != dst[0]
        )

    @cached_property
    def _cables(self) -> Counter[int]:
        """Links that leave each SIP for another one, or for a switch or a router."""
        ends = ((link.src.split("."), link.dst.split(".")) for link in self.links)
        return Counter(
            int(src[0].removeprefix("sip")) for src, dst in ends if src[1:] and src[0] != dst[0]
        )

    def grid(self, sips: Sequence[int]) -> tuple[int, ...]:
        """Returns the extents, fastest first, of the regular grid that SIPs form in this order.

        On a torus the grid is a box along the axes, in order of the SIPs' numbers, that spans every
        dimension but the last. On a machine of nodes or a fat tree the grid is SIPs of each node
        (leaf) by nodes (leaves); the SIPs must come node by node, equally many from each. Extents
        of 1 are left out, unless all are 1. SIPs that form no such grid, or on a machine of another
        kind, form one row.

        Args:
            sips: Numbers of the SIPs.

        Raises:
            ValueError: The machine has no such SIP.
        """
        if len(sips):
            self._check(min(sips))
            self._check(max(sips))
        system = self.machine.system
        network, extents = system.sips.network, None
        if network.kind == "torus":
            extents = _box(sips, torus_shape(system))
        elif network.node is not None:
            extents = _groups([sip // network.node.size for sip in sips])
        elif network.leaf is not None:
            extents = _groups([sip // network.leaf.size for sip in sips])
        return tuple(extent for extent in extents or () if extent > 1) or (len(sips),)

    @cached_property
    def graph(self) -> "networkx.DiGraph[str]":
        """The machine as a directed graph; an edge holds its `link`, a node its `kind`."""
        import networkx

        graph: networkx.DiGraph[str] = networkx.DiGraph()
        for sip in range(self.world_size):
            for cube in range(self.num_cubes):
                graph.add_node(cube_name(sip, cube), kind="cube", sip=sip, cube=cube)
        for link in self.links:
            for node in (link.src, link.dst):
                if node not in graph:
                    graph.add_node(node, kind="switch" if link.kind == "fluid" else "router")
            graph.add_edge(link.src, link.dst, link=link)
        return graph


def _frozen(value: Any) -> Hashable:
    """Returns a key that is equal for equal values of the same type, all through."""
    if is_dataclass(value):
        parts = [_frozen(getattr(value, field.name)) for field in fields(value)]
        return type(value), tuple(parts)
    if isinstance(value, Mapping):
        return frozenset((key, _frozen(part)) for key, part in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    assert isinstance(value, Hashable)
    return type(value), value


def _box(sips: Sequence[int], shape: Sequence[int]) -> tuple[int, ...] | None:
    """Returns the extents of the box that SIPs fill in order; None if they fill no box."""
    if not sips:
        return None
    if len(sips) == math.prod(shape) and tuple(sips) == tuple(range(len(sips))):
        return tuple(shape)
    first, last = coordinates(sips[0], shape), coordinates(sips[-1], shape)
    extents = [high - low + 1 for low, high in zip(first, last, strict=True)]
    if min(extents) < 1 or math.prod(extents) != len(sips):
        return None
    used = [dimension for dimension, extent in enumerate(extents) if extent > 1]
    if any(extents[dimension] != shape[dimension] for dimension in used[:-1]):
        return None
    strides = [math.prod(shape[:dimension]) for dimension in range(len(shape))]
    for place, sip in enumerate(sips):
        steps = zip(coordinates(place, extents), strides, strict=True)
        if sip != sips[0] + sum(step * stride for step, stride in steps):
            return None
    return tuple(extents)


def _groups(owners: Sequence[int]) -> tuple[int, ...] | None:
    """Returns the size and the number of runs of equal owners.

    None if there is only one run, runs differ in length, or an owner has several runs.
    """
    runs = [(owner, len(list(run))) for owner, run in groupby(owners)]
    sizes = {size for _, size in runs}
    if len(runs) < 2 or len(sizes) != 1 or len({owner for owner, _ in runs}) != len(runs):
        return None
    return sizes.pop(), len(runs)
