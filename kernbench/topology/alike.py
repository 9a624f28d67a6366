"""Machines on which messages of all SIPs find the same: the ways from one SIP tell those from all.

SIPs may differ in all that no message on its way to another SIP meets, such as when they begin.
On a ring or torus, move every SIP by as many places along each dimension: links go to links of the
same rate and latency, and the way between two SIPs to the way between the two where they come to
lie. On a switch, SIPs may change places in any way. So a link is one of few kinds, as many as one
SIP has links, and there is one link of each kind for each SIP.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, Final

import numpy as np

from kernbench.caches import cached
from kernbench.topology.links import SWITCH, Link, build_links, coordinates, torus_shape
from kernbench.topology.routes import Routes, parse_cube
from kernbench.topology.spec import SystemSpec
from kernbench.topology.topology import Topology

LinkKind = tuple[int, int, tuple[int, ...]]
"""Cubes at both ends of a link, and how many places it goes along each dimension."""

Ints = np.ndarray[Any, np.dtype[np.int64]]

_LEAST: Final = 3
"""Extent from which on both neighbours along a dimension are different SIPs."""


@dataclass(frozen=True)
class Turned:
    """A ring or torus on which messages of all SIPs find the same.

    Attributes:
        system: The machine.
        shape: Extents of the torus, fastest first.
    """

    system: SystemSpec
    shape: tuple[int, ...]

    def takers(self, to: Ints, source: Ints) -> Ints:
        """Returns the SIPs to which SIP 0 is what the senders of its messages are to it.

        Args:
            to: The SIPs that get what SIP 0 sends, message by message.
            source: The SIPs that send what SIP 0 gets.
        """
        peers, which = np.unique(source, return_inverse=True)
        found = np.array([self._opposite(peer) for peer in peers.tolist()], np.int64)
        return found[which].reshape(source.shape)

    def _opposite(self, sip: int) -> int:
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


@dataclass(frozen=True)
class Switched:
    """A switch whose ports are all alike.

    Attributes:
        system: The machine.
    """

    system: SystemSpec

    def takers(self, to: Ints, source: Ints) -> Ints:
        """Returns what `Turned.takers` does, of steps in which each SIP sends and gets a message.

        Whoever sends to SIP 0 may change places with it, and gets what `to` gets.
        """
        return to

    def way(self, sip: int) -> tuple[tuple[Link, bool], ...]:
        """Returns the links from SIP 0 to another one, each with whether it enters the switch.

        They are those of a switch with two ports: indices and names are of no use.
        """
        return self._way

    @cached_property
    def _way(self) -> tuple[tuple[Link, bool], ...]:
        system = replace(self.system, sips=replace(self.system.sips, count=2))
        route = Routes(system, build_links(system)).between((0, 0), (1, 0))
        return tuple((link, link.dst == SWITCH) for link in route)


Alike = Turned | Switched
"""A machine on which messages of all SIPs find the same."""


def _kind_of(link: Link, shape: tuple[int, ...]) -> LinkKind:
    (src, out), (dst, into) = parse_cube(link.src), parse_cube(link.dst)
    places = zip(coordinates(src, shape), coordinates(dst, shape), shape, strict=True)
    # A cable joins neighbours: one place up, or down.
    moves = ((there - here) % extent for here, there, extent in places)
    return out, into, tuple(move if move < _LEAST - 1 else -1 for move in moves)


def has_even_links(system: SystemSpec) -> bool:
    """Returns whether no SIP has slower links than others, between its cubes or to the network."""
    first = system.kinds[0]
    return all(kind.cubes.link == first.cubes.link for kind in system.kinds) and not any(
        changes.values for changes in system.changed_ports.values()
    )


@cached("topology.alike")
def alike_of(topology: Topology) -> Alike | None:
    """Returns the machine as one on which messages of all SIPs find the same; None if it is none.

    Along a dimension of two SIPs one cable joins them: each of the two has another end of it.
    """
    system = topology.machine.system
    first = system.kinds[0]
    fed = all(kind.pe.dma == first.pe.dma for kind in system.kinds)
    if not fed or not has_even_links(system):
        return None
    even = replace(system, sip=first, sips=replace(system.sips, changed=()))
    match system.sips.network.kind:
        case "switch":
            return Switched(even)
        case "ring" | "torus" if 2 not in (shape := torus_shape(system)):
            return Turned(even, shape)
    return None


def alike_in(topology: Topology, sips: tuple[int, ...]) -> Alike | None:
    """Returns what `alike_of` does, if messages of each SIP of a group find what all others do.

    Args:
        sips: SIP of each rank of the group: some of a switch, or all of a torus, in order.
    """
    machine = alike_of(topology)
    if isinstance(machine, Switched):
        return machine
    whole = len(sips) == topology.world_size and (np.asarray(sips) == np.arange(len(sips))).all()
    return machine if whole else None
