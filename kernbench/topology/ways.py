"""The ways of many messages at once: what they are made of, and which links they share.

Where no SIP has other links than the rest, ways are alike: on a switch, in nodes and in a fat tree
by the switches that they go through, on a ring or torus by how far they go along each dimension.
One of each form is looked up, and the links of the others are numbered by arithmetic. Elsewhere
each is looked up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from kernbench.topology.alike import Turned, alike_of, has_even_links
from kernbench.topology.links import Link, leaves_of, links_of
from kernbench.topology.routes import Routes
from kernbench.topology.topology import Topology

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class Ways:
    """The ways of some messages.

    Attributes:
        forms: What ways are made of: links in order, of which indices and names are of no use.
        form: The number of each message's form.
        links: A number for each link of each message, one message after another: the same for the
            same link.
    """

    forms: Sequence[Sequence[Link]]
    form: Ints
    links: Ints

    @cached_property
    def counts(self) -> Ints:
        """Number of links of each message."""
        found: Ints = np.array([len(form) for form in self.forms], np.int64)[self.form]
        return found

    @cached_property
    def first(self) -> Ints:
        """Where the links of each message begin in `links`."""
        ends: Ints = np.cumsum(self.counts)
        return ends - self.counts

    @cached_property
    def rates(self) -> Ints:
        """Bytes a second of each entry of `links`."""
        of_forms = [link.bandwidth.per_second for form in self.forms for link in form]
        lengths = np.array([len(form) for form in self.forms], np.int64)
        first = (np.cumsum(lengths) - lengths)[self.form]
        place = np.arange(len(self.links)) + np.repeat(first - self.first, self.counts)
        found: Ints = np.array(of_forms, np.int64)[place]
        return found


def ways_of(topology: Topology, senders: Ints, receivers: Ints) -> Ways:
    """Returns the ways between SIPs.

    Args:
        topology: The machine.
        senders: SIP that sends each message.
        receivers: SIP that gets it.
    """
    system = topology.machine.system
    kind = system.sips.network.kind
    machine = alike_of(topology)
    if isinstance(machine, Turned):
        return _turned(machine, senders, receivers)
    if kind in {"switch", "nodes", "fat_tree"} and has_even_links(system):
        return _through_switches(topology, senders, receivers)
    return _one_by_one(topology, senders, receivers)


def _one_by_one(topology: Topology, senders: Ints, receivers: Ints) -> Ways:
    numbers: dict[tuple[Any, ...], int] = {}
    forms, form, links = list[Sequence[Link]](), list[int](), list[int]()
    for pair in zip(senders.tolist(), receivers.tolist(), strict=True):
        route = topology.sip_route(*pair)
        key = tuple((link.bandwidth, link.latency, link.kind) for link in route)
        number = numbers.setdefault(key, len(forms))
        if number == len(forms):
            forms.append(route)
        form.append(number)
        links += [link.index for link in route]
    return Ways(forms, np.array(form, np.int64), np.array(links, np.int64))


def _turned(machine: Turned, senders: Ints, receivers: Ints) -> Ways:
    """Returns the ways on a ring or torus: those from SIP 0, moved to where their senders are."""
    far, stride = np.zeros_like(senders), 1
    for extent in machine.shape:
        far += (receivers // stride - senders // stride) % extent * stride
        stride *= extent
    offsets, form = np.unique(far, return_inverse=True)
    ways = [machine.way(offset) for offset in offsets.tolist()]
    counts = np.array([len(way) for way in ways], np.int64)[form]
    first = np.cumsum(counts) - counts
    links = np.empty(int(counts.sum()), np.int64)
    kinds: dict[Any, int] = {}
    order = np.argsort(form, kind="stable")
    bounds = np.searchsorted(form[order], np.arange(len(ways) + 1))
    for number, way in enumerate(ways):
        some = order[bounds[number] : bounds[number + 1]]
        at = senders[some]
        for place, (_, kind) in enumerate(way):
            number_of = kinds.setdefault(kind, len(kinds))
            links[first[some] + place] = number_of * stride + at
            at = _moved(at, kind[2], machine.shape)
    return Ways([[link for link, _ in way] for way in ways], form, links)


def _moved(sips: Ints, moves: tuple[int, ...], shape: tuple[int, ...]) -> Ints:
    """Returns the SIPs that are so many places further along each dimension."""
    found, stride = sips, 1
    for move, extent in zip(moves, shape, strict=True):
        if move:
            here = sips // stride % extent
            found = found + ((here + move) % extent - here) * stride
        stride *= extent
    return found


def _through_switches(topology: Topology, senders: Ints, receivers: Ints) -> Ways:
    """Returns the ways between SIPs at ports of switches, all alike."""
    system, n = topology.machine.system, topology.world_size
    network = system.sips.network
    form = np.full(len(senders), -1)
    forms, numbers = list[Sequence[Link]](), list[list[Any]]()

    def add(some: Any, *links: Any) -> None:
        """Adds the form of messages that have none yet, with the numbers of all links of it."""
        new = np.flatnonzero(some & (form < 0))
        if len(new):
            form[new] = len(forms)
            pair = int(senders[new[0]]), int(receivers[new[0]])
            forms.append(
                Routes(system, links_of(system, pair)).between(*((sip, 0) for sip in pair))
            )
            numbers.append(list(links))

    # Of ports and NICs, the ways in are first numbered by SIP, then the ways out.
    ports, nics = (senders, n + receivers), (2 * n + senders, 3 * n + receivers)
    add(senders == receivers)
    if network.kind == "switch":
        add(form < 0, *ports)
    if network.node is not None:
        add(senders // network.node.size == receivers // network.node.size, *ports)
    if (form < 0).any():
        leaves: Any = leaves_of(system)
        up, down = leaves.of(senders), leaves.of(receivers)
        add(up == down, *nics)
        if network.spine is not None:
            spines = network.spine.count
            spine = leaves.spine(receivers, spines)
            rise, fall = up * spines + spine, (leaves.count + down) * spines + spine
            add(form < 0, nics[0], 4 * n + rise, 4 * n + fall, nics[1])
    counts = np.array(list(map(len, numbers)), np.int64)[form]
    first, links = np.cumsum(counts) - counts, np.empty(int(counts.sum()), np.int64)
    for number, way in enumerate(numbers):
        some = np.flatnonzero(form == number)
        for place, found in enumerate(way):
            links[first[some] + place] = found[some]
    return Ways(forms, form, links)
