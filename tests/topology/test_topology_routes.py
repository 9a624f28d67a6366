"""Routes against networkx: as short as can be, joined end to end, and always the same."""

import random
from collections.abc import Callable, Sequence
from itertools import pairwise, product
from math import prod
from pathlib import Path

import networkx as nx
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kernbench.topology import Link, Topology, load_topology, shipped_machines

BASE = yaml.safe_load(shipped_machines()["sip8"].read_text())


def machine(
    folder: Path, count: int, network: dict[str, object], cubes: Sequence[int] = (1, 1)
) -> Topology:
    spec = {**BASE["system"]}
    spec["sips"] = {
        "count": count,
        "network": {"bandwidth": "50 GB/s", "latency": "100 ns", **network},
    }
    grid = {"shape": list(cubes), "link": {"bandwidth": "200 GB/s", "latency": "20 ns"}}
    spec["sip"] = {**spec["sip"], "cubes": grid}
    file = folder / "machine.yaml"
    file.write_text(yaml.safe_dump({"system": spec}))
    return load_topology(file).topology_obj


def names(route: Sequence[Link]) -> list[str]:
    return [link.name for link in route]


def assert_joined(route: Sequence[Link], src: str, dst: str) -> None:
    nodes = [src, *(link.dst for link in route)]
    assert [link.src for link in route] == nodes[:-1]
    assert nodes[-1] == dst
    assert len(set(nodes)) == len(nodes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("machines")


grids = st.tuples(st.integers(1, 3), st.integers(1, 3))


def parted(kind: str, size: int, parts: int, spines: int) -> tuple[int, dict[str, object]]:
    """A machine of nodes, or of leaves of a fat tree, of the given size."""
    spine: dict[str, object] = {"count": spines, "latency": "7 ns"}
    if kind == "nodes":
        node = {"size": size, "bandwidth": "300 GB/s", "latency": "3 ns"}
        return size * parts, {"kind": kind, "node": node, "spine": spine}
    return size * parts, {"kind": kind, "leaf": {"size": size}, "spine": spine}


networks = st.one_of(
    st.builds(
        parted,
        st.sampled_from(["nodes", "fat_tree"]),
        st.integers(1, 3),
        st.integers(1, 3),
        st.integers(1, 3),
    ),
    st.integers(1, 9).map(lambda n: (n, {"kind": "ring"})),
    st.integers(1, 9).map(lambda n: (n, {"kind": "switch"})),
    st.lists(st.integers(1, 3), min_size=1, max_size=3).map(
        lambda shape: (
            prod(shape),
            {"kind": "torus", "shape": shape},
        )
    ),
)


@given(network=networks)
def test_routes_between_single_cubes_are_shortest(
    folder: Path, network: tuple[int, dict[str, object]]
) -> None:
    topology = machine(folder, *network)
    lengths = dict(nx.all_pairs_shortest_path_length(topology.graph))
    for a, b in product(range(topology.world_size), repeat=2):
        route = topology.sip_route(a, b)
        src, dst = topology.cube_node(a), topology.cube_node(b)
        assert_joined(route, src, dst)
        assert len(route) == lengths[src][dst]


@given(cubes=grids)
def test_routes_inside_a_sip_are_shortest_and_along_the_row_first(
    folder: Path, cubes: tuple[int, int]
) -> None:
    topology = machine(folder, 1, {"kind": "ring"}, cubes)
    lengths = dict(nx.all_pairs_shortest_path_length(topology.graph))
    columns = cubes[0]
    for a, b in product(range(topology.num_cubes), repeat=2):
        route = topology.route(f"sip0.cube{a}", f"sip0.cube{b}")
        assert_joined(route, f"sip0.cube{a}", f"sip0.cube{b}")
        assert len(route) == lengths[f"sip0.cube{a}"][f"sip0.cube{b}"]
        visited = [a, *(int(link.dst.removeprefix("sip0.cube")) for link in route)]
        along_rows = [
            abs(y - x) == 1 and x // columns == y // columns for x, y in pairwise(visited)
        ]
        assert along_rows == sorted(along_rows, reverse=True)


@given(network=networks, cubes=grids, seed=st.integers(0, 99))
def test_any_two_cubes_are_joined_whatever_was_asked_before(
    folder: Path, network: tuple[int, dict[str, object]], cubes: tuple[int, int], seed: int
) -> None:
    first, second = machine(folder, *network, cubes), machine(folder, *network, cubes)
    nodes = [node for node in first.graph if first.graph.nodes[node]["kind"] == "cube"]
    pairs = random.Random(seed).sample(list(product(nodes, repeat=2)), min(20, len(nodes) ** 2))
    routes = {(a, b): first.route(a, b) for a, b in pairs}
    for (a, b), route in routes.items():
        assert_joined(route, a, b)
    assert {(a, b): second.route(a, b) for a, b in reversed(pairs)} == routes


@given(cubes=grids, network=networks)
def test_every_link_has_its_reverse_and_the_machine_is_connected(
    folder: Path, network: tuple[int, dict[str, object]], cubes: tuple[int, int]
) -> None:
    topology = machine(folder, *network, cubes)
    ends = {(link.src, link.dst) for link in topology.links}
    assert ends == {(b, a) for a, b in ends}
    assert len({link.name for link in topology.links}) == len(ends) == len(topology.links)
    assert topology.graph.number_of_edges() == len(topology.links)
    assert nx.is_strongly_connected(topology.graph)


def sips(topology: Topology, a: int, b: int) -> str:
    """Names the SIPs that a route passes, without its links inside a SIP."""
    return " ".join(name for name in names(topology.sip_route(a, b)) if "cube" not in name)


def test_a_ring_goes_the_shorter_way_and_east_on_a_tie(folder: Path) -> None:
    ring = machine(folder, 6, {"kind": "ring"})
    assert sips(ring, 0, 2) == "sip0->sip1 sip1->sip2"
    assert sips(ring, 0, 4) == "sip0->sip5 sip5->sip4"
    assert sips(ring, 5, 2) == "sip5->sip0 sip0->sip1 sip1->sip2"


def test_a_torus_goes_dimension_by_dimension_and_up_on_a_tie() -> None:
    torus = load_topology("torus4x4").topology_obj
    assert sips(torus, 0, 10) == "sip0->sip1 sip1->sip2 sip2->sip6 sip6->sip10"
    assert sips(torus, 15, 0) == "sip15->sip12 sip12->sip0"


@pytest.mark.parametrize(("count", "links"), [(1, 0), (2, 2), (3, 6)])
def test_small_rings_have_no_doubled_links(folder: Path, count: int, links: int) -> None:
    assert len(machine(folder, count, {"kind": "ring"}).links) == links


def test_ring_links_leave_east_and_arrive_at_the_first_cube() -> None:
    ring = load_topology("sip8").topology_obj
    assert names(ring.route("sip0.cube0", "sip2.cube3")) == [
        "sip0.cube0->sip0.cube1",
        "sip0->sip1",
        "sip1.cube0->sip1.cube1",
        "sip1->sip2",
        "sip2.cube0->sip2.cube1",
        "sip2.cube1->sip2.cube3",
    ]
    assert names(ring.route("sip1.cube0", "sip0.cube1")) == ["sip1->sip0"]
    (east,) = ring.route("sip7.cube1", "sip0.cube0")
    assert (east.src, east.dst, east.kind) == ("sip7.cube1", "sip0.cube0", "fifo")


def test_torus_links_leave_from_the_end_of_the_axis_they_go_along(folder: Path) -> None:
    torus = machine(folder, 27, {"kind": "torus", "shape": [3, 3, 3]}, (2, 3))
    ends = {link.name: link.src for link in torus.links}
    assert [ends[f"sip0->sip{n}"] for n in (1, 3, 9)] == ["sip0.cube1", "sip0.cube4", "sip0.cube0"]


def test_a_switch_crossing_costs_the_latency_once() -> None:
    egress, ingress = load_topology("h200x8").topology_obj.sip_route(2, 5)
    assert names((egress, ingress)) == ["sip2->switch", "switch->sip5"]
    assert (egress.latency, ingress.latency) == (240_000, 0)
    assert egress.kind == ingress.kind == "fluid"
    assert egress.bandwidth == ingress.bandwidth


def test_nodes_have_rails_between_them() -> None:
    topology = load_topology("h200x8_x4_nodes").topology_obj
    ways = {
        (10, 15): ["sip10->node1", "node1->sip15"],
        (10, 26): ["sip10->leaf2", "leaf2->sip26"],
        # sip15 is the second NIC on the eighth leaf, so number 29 of all: spine 29 % 4.
        (2, 15): ["sip2->leaf2", "leaf2->spine1", "spine1->leaf7", "leaf7->sip15"],
        (31, 15): ["sip31->leaf7", "leaf7->sip15"],
    }
    for (a, b), expected in ways.items():
        assert names(topology.sip_route(a, b)) == expected
    nvlink, rail, crossing = (topology.sip_route(10, b) for b in (15, 26, 15 + 16))
    for way, gb_per_s, ns in ((nvlink, 361, 240), (rail, 48, 2200), (crossing, 48, 2800)):
        assert {link.bandwidth.per_second for link in way} == {gb_per_s * 10**9}
        assert sum(link.latency for link in way) == ns * 1000
        assert {link.kind for link in way} == {"fluid"}
    assert [topology.node_of(sip) for sip in (0, 7, 8, 31)] == [0, 0, 1, 3]


def test_a_fat_tree_has_neighbours_on_a_leaf() -> None:
    topology = load_topology("fattree64").topology_obj
    assert names(topology.sip_route(9, 14)) == ["sip9->leaf1", "leaf1->sip14"]
    assert names(topology.sip_route(9, 63)) == [
        "sip9->leaf1",
        "leaf1->spine3",
        "spine3->leaf7",
        "leaf7->sip63",
    ]
    assert topology.graph.nodes["spine3"]["kind"] == "switch"


@pytest.mark.parametrize("machine_name", ["h200x8_x4_nodes", "fattree64"])
def test_destinations_on_a_leaf_take_the_spines_in_turn(machine_name: str) -> None:
    topology = load_topology(machine_name).topology_obj
    uses: dict[str, set[int]] = {}
    for a, b in product(range(topology.world_size), repeat=2):
        for link in topology.sip_route(a, b):
            if link.name.startswith("spine"):
                uses.setdefault(link.name, set()).add(b)
    sizes = {len(destinations) for destinations in uses.values()}
    assert sizes == {1 if machine_name == "h200x8_x4_nodes" else 2}


@pytest.mark.parametrize(
    ("oversubscription", "per_second"), [(1, 100 * 10**9), (2, 50 * 10**9), (3, 33_333_333_334)]
)
def test_links_to_spines_share_what_the_nics_bring(oversubscription: int, per_second: int) -> None:
    override = f"system.sips.network.spine.oversubscription={oversubscription}"
    topology = load_topology("fattree64", [override]).topology_obj
    _, up, down, _ = topology.sip_route(0, 63)
    assert up.bandwidth.per_second == down.bandwidth.per_second == per_second
    assert (up.latency, down.latency) == (600_000, 0)


@pytest.mark.parametrize(
    ("name", "sips", "extents"),
    [
        ("torus4x4", range(16), (4, 4)),
        ("torus4x4", range(4, 12), (4, 2)),
        ("torus4x4", range(4, 8), (4,)),
        ("torus4x4", [1, 5, 9, 13], (4,)),
        ("torus4x4", [5, 9], (2,)),
        ("torus4x4", [0, 1, 4, 5], (4,)),  # rows that do not close
        ("torus4x4", [*range(4), *range(8, 12)], (8,)),
        ("torus4x4", range(2, 10), (8,)),
        ("torus4x4", [1, 0, *range(2, 16)], (16,)),
        ("torus4x4", range(15, -1, -1), (16,)),
        ("torus4x4", [7], (1,)),
        ("torus4x4", [], (0,)),
        ("h200x8_x4_nodes", range(32), (8, 4)),
        ("h200x8_x4_nodes", range(8, 24), (8, 2)),
        ("h200x8_x4_nodes", [2, 3, 7, 10, 11, 15, 24, 25, 31], (3, 3)),
        ("h200x8_x4_nodes", [3, 11, 19, 27], (4,)),
        ("h200x8_x4_nodes", [0, 8, 1, 9], (4,)),
        ("h200x8_x4_nodes", [0, 1, 8], (3,)),
        ("h200x8_x4_nodes", range(8), (8,)),
        ("fattree64", range(64), (8, 8)),
        ("fattree64", [*range(4), *range(56, 60)], (4, 2)),
        ("h200x8", range(8), (8,)),
        ("sip8", range(8), (8,)),
    ],
)
def test_the_grid_that_sips_form(name: str, sips: Sequence[int], extents: tuple[int, ...]) -> None:
    assert load_topology(name).topology_obj.grid(sips) == extents


def test_the_grid_of_a_torus_of_three_dimensions(folder: Path) -> None:
    torus = machine(folder, 24, {"kind": "torus", "shape": [2, 3, 4]})
    assert torus.grid(range(24)) == (2, 3, 4)
    assert torus.grid(range(6, 18)) == (2, 3, 2)
    assert torus.grid(range(1, 24, 2)) == (3, 4)
    assert torus.grid([2, 3, 8, 9, 14, 15]) == (2, 3)
    assert torus.grid([0, 1, 2, 3, 6, 7, 8, 9]) == (8,)


def test_a_sip_that_is_not_there_has_no_place() -> None:
    topology = load_topology("h200x8_x4_nodes").topology_obj
    with pytest.raises(ValueError, match="has SIPs 0 to 31"):
        topology.node_of(32)
    with pytest.raises(ValueError, match="has SIPs 0 to 31"):
        topology.grid([0, -1])
    assert load_topology("sip8").topology_obj.node_of(7) == 0


@given(seed=st.integers(0, 200), count=st.integers(2, 7), routers=st.integers(0, 3))
def test_graph_routes_are_the_best_of_all_paths(
    folder: Path, seed: int, count: int, routers: int
) -> None:
    """Fewest links, then least latency, then first nodes in order of declaration."""
    draw = random.Random(seed)
    nodes = [f"sip{i}" for i in range(count)] + [f"r{i}" for i in range(routers)]
    pairs = {frozenset(pair) for pair in pairwise(draw.sample(nodes, len(nodes)))}
    for node in nodes:
        pairs |= {frozenset((node, other)) for other in draw.sample(nodes, 2) if other != node}
    ordered = sorted(sorted(pair) for pair in pairs)
    draw.shuffle(ordered)
    edges: list[dict[str, object]] = [
        {"ends": ends, "latency": f"{draw.randint(1, 3)} ns"} for ends in ordered
    ]
    cables = [end for ends in ordered for end in ends]
    if any(cables.count(node) < 2 for node in nodes if node.startswith("r")):
        return
    topology = machine(folder, count, {"kind": "graph", "edges": edges})
    declared = [f"sip{i}.cube0" for i in range(count)]
    declared += [end for end in dict.fromkeys(cables) if end.startswith("r")]

    def cost(path: list[str]) -> tuple[int, int, list[int]]:
        latency = sum(topology.graph.edges[a, b]["link"].latency for a, b in pairwise(path))
        return len(path), latency, [declared.index(node) for node in path]

    for a, b in product(range(count), repeat=2):
        src, dst = topology.cube_node(a), topology.cube_node(b)
        best = min(nx.all_shortest_paths(topology.graph, src, dst), key=cost)
        route = topology.sip_route(a, b)
        assert [src, *(link.dst for link in route)] == best


def test_a_cable_may_have_its_own_numbers(folder: Path) -> None:
    edges = [
        {"ends": ["sip0", "spine"], "bandwidth": "1 GB/s", "latency": "0 ns"},
        {"ends": ["spine", "sip1"]},
    ]
    topology = machine(folder, 2, {"kind": "graph", "edges": edges}, (2, 1))
    up, down = topology.sip_route(0, 1)
    assert (up.bandwidth.per_second, up.latency) == (10**9, 0)
    assert (down.bandwidth.per_second, down.latency) == (50 * 10**9, 100_000)
    assert topology.graph.nodes["spine"]["kind"] == "router"
    assert names(topology.route("sip0.cube1", "sip1.cube1")) == [
        "sip0.cube1->sip0.cube0",
        "sip0->spine",
        "spine->sip1",
        "sip1.cube0->sip1.cube1",
    ]


@pytest.mark.parametrize("node", ["sip8.cube0", "sip0.cube4"])
def test_a_cube_that_is_not_there_is_refused(node: str) -> None:
    with pytest.raises(ValueError, match="sip8 has SIPs 0 to 7"):
        load_topology("sip8").topology_obj.route("sip0.cube0", node)


@pytest.mark.parametrize("node", ["sip0", "cube0", "sip00.cube0", "sip-1.cube0", "", "switch"])
def test_what_is_no_cube_is_refused(node: str) -> None:
    with pytest.raises(
        ValueError, match=r"a cube is named such as sip0\.cube0|no cube 0 in SIP -1"
    ):
        load_topology("sip8").topology_obj.route(node, "sip0.cube0")


def test_routes_are_found_once_and_links_only_when_asked_for() -> None:
    topology = load_topology("ring1024").topology_obj
    assert "links" not in vars(topology)
    assert topology.sip_route(0, 512) is topology.sip_route(0, 512)
    assert len(topology.sip_route(0, 512)) == 512


def test_a_mesh_has_a_link_between_each_two(topology: Callable[[str], Topology]) -> None:
    mesh, ring, nodes = (topology(name) for name in ("mi300x8", "sip8", "h200x8_x4_nodes"))
    assert mesh.meshed(range(8))
    assert mesh.meshed([7, 2, 4])
    assert not mesh.meshed([0, 1])  # all ways of two ranks are one link
    assert not ring.meshed(range(8))
    assert not ring.meshed([0, 1, 2])
    assert not nodes.meshed([0, 1, 2])  # two links each: a port of the node's switch, and a NIC
    assert [machine.links_out(range(8)) for machine in (mesh, ring, nodes)] == [7, 2, 2]
    assert mesh.links_out([0, 1, 2]) == 2
