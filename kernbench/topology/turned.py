"""Rings and toruses on which all SIPs are alike: the ways from one SIP tell those from all.

Move every SIP by as many places along each dimension: links go to links of the same rate and
latency, and the way between two SIPs to the way between the two where they come to lie. So a link
is one of few kinds, as many as one SIP has links, and there is one link of each kind for each SIP.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Final

from kernbench.caches import cached
from kernbench.topology.links import Link, build_links, coordinates, torus_shape
from kernbench.topology.routes import Routes, parse_cube
from kernbench.topology.spec import SystemSpec
from kernbench.topology.topology import Topology

LinkKind = tuple[int, int, tuple[int, ...]]
"""Cubes at both ends of a link, and how many places it goes along each dimension."""

_LEAST: Final = 3
"""Extent from which on both neighbours along a dimension are different SIPs."""


@dataclass(frozen=True)
class Turned:
    """A ring or torus on which all SIPs are alike.

    Attributes:
        system: The machine.
        shape: Extents of the torus, fastest first.
    """

    system: SystemSpec
    shape: tuple[int, ...]

    def opposite(self, sip: int) -> int:
        """Returns the SIP that is as far from SIP 0 as a SIP, but the other way round."""
        found, stride = 0, 1
        for place, extent in zip(coordinates(sip, self.shape), self.shape, strict=True):
            found += -place % extent * stride
            stride *= extent
        return found

    def way(self, sip: int) -> tuple[tuple[Link, LinkKind], ...]:
        """Returns the links from SIP 0 to another one, in order, each with its kind.

        They are those of the smallest torus that has such a way: indices and names are of no use.
        """
        small, target, stride = [], 0, 1
        for place, extent in zip(coordinates(sip, self.shape), self.shape, strict=True):
            far = min(place, extent - place)
            # Wide enough that the other way round is longer here, too.
            small.append(min(extent, 2 * far + _LEAST))
            target += (place if place == far else small[-1] - far) * stride
            stride *= small[-1]
        shape = tuple(small)
        route = self._routes(shape).between((0, 0), (target, 0))
        return tuple((link, _kind_of(link, shape)) for link in route)

    def _routes(self, shape: tuple[int, ...]) -> Routes:
        found = self._known.get(shape)
        if found is None:
            sips, network = self.system.sips, self.system.sips.network
            if network.shape is not None:
                network = replace(network, shape=shape)
            system = replace(self.system, sips=replace(sips, count=prod(shape), network=network))
            found = self._known[shape] = Routes(system, build_links(system))
        return found

    @cached_property
    def _known(self) -> dict[tuple[int, ...], Routes]:
        return {}


def _kind_of(link: Link, shape: tuple[int, ...]) -> LinkKind:
    (src, out), (dst, into) = parse_cube(link.src), parse_cube(link.dst)
    places = zip(coordinates(src, shape), coordinates(dst, shape), shape, strict=True)
    # A cable joins neighbours: one place up, or down.
    moves = ((there - here) % extent for here, there, extent in places)
    return out, into, tuple(move if move < _LEAST - 1 else -1 for move in moves)


@cached("topology.turned")
def turned_of(topology: Topology) -> Turned | None:
    """Returns the machine as a torus whose SIPs are all alike; None if it is none.

    Along a dimension of two SIPs one cable joins them: each of the two has another end of it.
    """
    system = topology.machine.system
    shape = torus_shape(system)
    if system.sips.network.kind not in {"ring", "torus"} or system.sips.changed or 2 in shape:
        return None
    return Turned(system, shape)
