"""The ways of many messages at once, against the ways that are looked up one by one."""

from math import prod

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.topology import Topology, load_topology
from kernbench.topology.ways import ways_of

MESH = "system.sip.cubes={shape: [2, 2], link: {bandwidth: 30 GB/s, latency: 7 ns}}"


def torus(shape: list[int], *overrides: str) -> Topology:
    kind = ["system.sips.network.kind=torus", f"system.sips.network.shape={shape}"]
    count = f"system.sips.count={prod(shape)}"
    return load_topology("ring1024", [count, *kind, *overrides]).topology_obj


def nodes(count: int, size: int, spines: int, *overrides: str) -> Topology:
    of_nodes = f"system.sips.network.node.size={size}"
    spine = f"system.sips.network.spine.count={spines}"
    sips = f"system.sips.count={count * size}"
    return load_topology("h200x8_x4_nodes", [sips, of_nodes, spine, *overrides]).topology_obj


def fat_tree(leaves: int, size: int, spines: int) -> Topology:
    network = [
        "system.sips.network.kind=fat_tree",
        f"system.sips.network.leaf={{size: {size}}}",
        f"system.sips.network.spine={{count: {spines}, latency: 300 ns}}",
    ]
    count = f"system.sips.count={leaves * size}"
    return load_topology("ring1024", [count, *network]).topology_obj


def ring(count: int, kind: str, *overrides: str) -> Topology:
    sips = f"system.sips.count={count}", f"system.sips.network.kind={kind}"
    return load_topology("ring1024", [*sips, *overrides]).topology_obj


SLOW = "system.sips.changed=[{which: [1], link: {bandwidth: 3 GB/s}}]"

few = st.integers(1, 5)
machines = st.one_of(
    st.builds(torus, st.lists(few, min_size=2, max_size=3).filter(lambda shape: prod(shape) > 2)),
    st.builds(
        lambda shape: torus(shape, MESH), st.lists(few.map(lambda n: n + 2), min_size=2, max_size=2)
    ),
    st.builds(ring, st.integers(3, 20), st.sampled_from(["ring", "switch"])),
    st.builds(lambda count: ring(count, "ring", SLOW), st.integers(3, 9)),
    st.builds(lambda count: ring(count, "switch", SLOW), st.integers(3, 9)),
    st.builds(nodes, st.integers(1, 6), st.integers(2, 8), few),
    st.builds(lambda count: nodes(count, 4, 2, SLOW), st.integers(1, 4)),
    st.builds(fat_tree, st.integers(1, 5), st.integers(2, 5), few),
)


@settings(max_examples=80, deadline=None)
@given(machines, st.integers(0, 1 << 20), st.integers(0, 60))
def test_ways_at_once_are_those_one_by_one(topology: Topology, seed: int, messages: int) -> None:
    rng = np.random.default_rng(seed)
    senders, receivers = rng.integers(0, topology.world_size, (2, messages))
    ways = ways_of(topology, senders, receivers)
    numbers: dict[int, int] = {}
    place = 0
    for message, pair in enumerate(zip(senders.tolist(), receivers.tolist(), strict=True)):
        route = topology.sip_route(*pair)
        form = ways.forms[ways.form[message]]
        assert [(one.bandwidth, one.latency, one.kind, one.chunk) for one in form] == [
            (one.bandwidth, one.latency, one.kind, one.chunk) for one in route
        ]
        assert (ways.first[message], ways.counts[message]) == (place, len(route))
        for link in route:
            assert numbers.setdefault(link.index, int(ways.links[place])) == ways.links[place]
            assert ways.rates[place] == link.bandwidth.per_second
            place += 1
    assert place == len(ways.links)
    assert len(set(numbers.values())) == len(numbers)


def test_ways_of_a_large_machine_need_no_links_of_it() -> None:
    topology = nodes(2048, 8, 4)
    ranks = np.arange(topology.world_size)
    ways = ways_of(topology, ranks, np.roll(ranks, -8))
    assert "links" not in vars(topology)
    assert len(ways.forms) == 1


def test_nobody_has_a_way_without_messages() -> None:
    nothing = np.array([], np.int64)
    for topology in (ring(5, "ring"), nodes(2, 8, 2), ring(5, "ring", SLOW)):
        ways = ways_of(topology, nothing, nothing)
        assert not len(ways.counts)
        assert not len(ways.rates)
