"""Ways through a machine: one fixed way for each pair of cubes."""

import heapq
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise

from kernbench.topology.links import (
    SWITCH,
    Link,
    coordinates,
    cube_name,
    leaf_name,
    leaves_of,
    node_name,
    sip_name,
    spine_name,
    torus_shape,
)
from kernbench.topology.spec import SystemSpec


class Routes:
    """Finds the links between two cubes.

    A ring and a torus are crossed dimension by dimension, each the shorter way round, upward if
    both ways are equal. A `switch` network is crossed through the switch. On a graph the way with
    the fewest links is taken, among equals the one with the least latency, then the one whose
    nodes are declared first. On `nodes` and a `fat_tree` a message goes through the switch of a
    common node, or a common leaf, or from leaf to leaf over the spine that the destination
    decides. Inside a SIP a message goes along the row of cubes, then along the column.
    """

    def __init__(self, system: SystemSpec, links: Sequence[Link]) -> None:
        self._system = system
        self._links = {link.name: link for link in links}

    def between(self, src: tuple[int, int], dst: tuple[int, int]) -> tuple[Link, ...]:
        """Returns the links from one cube to another, in order.

        Args:
            src: SIP and cube index of the first cube.
            dst: SIP and cube index of the last cube.
        """
        here, end = cube_name(*src), cube_name(*dst)
        path: list[Link] = []
        for link in self._network(src[0], dst[0]):
            path += self._mesh(here, link.src)
            path.append(link)
            here = link.dst
        path += self._mesh(here, end)
        return tuple(path)

    def _network(self, src: int, dst: int) -> Iterator[Link]:
        if src == dst:
            return
        match self._system.sips.network.kind:
            case "ring" | "torus":
                names = self._torus(src, dst)
            case "switch":
                names = [sip_name(src), SWITCH, sip_name(dst)]
            case "graph":
                names = self._shortest(sip_name(src), sip_name(dst))
            case "nodes" | "fat_tree":
                names = [sip_name(src), *self._switches(src, dst), sip_name(dst)]
        for a, b in pairwise(names):
            yield self._links[f"{a}->{b}"]

    def _torus(self, src: int, dst: int) -> list[str]:
        shape = torus_shape(self._system)
        names = [sip_name(src)]
        stride, sip = 1, src
        target = coordinates(dst, shape)
        for here, there, extent in zip(coordinates(src, shape), target, shape, strict=True):
            up = (there - here) % extent
            down = (here - there) % extent
            step = 1 if up <= down else -1
            place = here
            for _ in range(min(up, down)):
                following = (place + step) % extent
                sip += (following - place) * stride
                place = following
                names.append(sip_name(sip))
            stride *= extent
        return names

    def _switches(self, src: int, dst: int) -> list[str]:
        """Returns the switches between two SIPs of a network of nodes or a fat tree."""
        network = self._system.sips.network
        if network.node is not None and src // network.node.size == dst // network.node.size:
            return [node_name(src // network.node.size)]
        leaves = leaves_of(self._system)
        up, down = leaves.of(src), leaves.of(dst)
        if up == down:
            return [leaf_name(up)]
        assert network.spine is not None
        spine = leaves.spine(dst, network.spine.count)
        return [leaf_name(up), spine_name(spine), leaf_name(down)]

    @cached_property
    def _neighbours(self) -> dict[str, list[tuple[str, int, int]]]:
        """Cables of each node: the node at the other end, its order of declaration, latency."""
        order = {sip_name(sip): sip for sip in range(self._system.sips.count)}
        neighbours: dict[str, list[tuple[str, int, int]]] = {}
        for edge in self._system.sips.network.edges or ():
            for a, b in (edge.ends, edge.ends[::-1]):
                order.setdefault(a, len(order))
                order.setdefault(b, len(order))
                latency = self._links[f"{a}->{b}"].latency
                neighbours.setdefault(a, []).append((b, order[b], latency))
        return neighbours

    def _shortest(self, src: str, dst: str) -> list[str]:
        heap: list[tuple[int, int, tuple[int, ...], list[str]]] = [(0, 0, (), [src])]
        done: set[str] = set()
        while True:
            hops, latency, orders, names = heapq.heappop(heap)
            here = names[-1]
            if here == dst:
                return names
            if here in done:
                continue
            done.add(here)
            for node, order, cost in self._neighbours[here]:
                if node not in done:
                    step = (hops + 1, latency + cost, (*orders, order), [*names, node])
                    heapq.heappush(heap, step)

    def _mesh(self, src: str, dst: str) -> Iterator[Link]:
        # Network links leave and arrive at cubes of one SIP, or pass through routers.
        if src == dst:
            return
        (sip, here), (_, there) = parse_cube(src), parse_cube(dst)
        columns = self._system.sip.cubes.shape[0]
        while here != there:
            if here % columns != there % columns:
                following = here + (1 if here % columns < there % columns else -1)
            else:
                following = here + (columns if here < there else -columns)
            yield self._links[f"{cube_name(sip, here)}->{cube_name(sip, following)}"]
            here = following


def parse_cube(name: str) -> tuple[int, int]:
    """Returns the SIP and the cube index that the name of a cube's node stands for.

    Raises:
        ValueError: If the text is no such name.
    """
    sip, _, cube = name.partition(".")
    place = int(sip.removeprefix("sip")), int(cube.removeprefix("cube"))
    if cube_name(*place) != name:
        raise ValueError(name)
    return place
