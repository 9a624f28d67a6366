"""The cut bound: worked out by hand, and against every cut of small machines."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import networkx
import pytest
from ccl_operations import even, simulate

from kernbench.ccl.cut_bound import CutBound, cut_bound, shortfall
from kernbench.ccl.operations import OPERATIONS
from kernbench.ccl.tuner import Choices
from kernbench.topology import Topology

Make = Callable[..., Topology]

MiB = 1 << 20


def mesh(count: int) -> dict[str, Any]:
    """A link of 64 GB/s between each two."""
    pairs = combinations([f"sip{sip}" for sip in range(count)], 2)
    return {
        "kind": "graph",
        "bandwidth": "64 GB/s",
        "latency": "500 ns",
        "edges": [{"ends": list(pair)} for pair in pairs],
    }


@pytest.mark.parametrize(
    ("operation", "seconds"),
    [
        ("all_reduce", 2 * 7 * 64 * MiB / (8 * 7 * 64e9)),  # all ranks send 2 x 7 buffers
        ("broadcast", 64 * MiB / (7 * 64e9)),  # one buffer over the root's 7 links
        ("all_gather", 7 * 8 * MiB / (7 * 64e9)),  # 7 blocks of 8 MiB reach a rank
        ("reduce_scatter", 7 * 8 * MiB / (7 * 64e9)),
        ("all_to_all", 7 * 8 * MiB / (7 * 64e9)),
        ("scatter", 7 * 8 * MiB / (7 * 64e9)),
    ],
)
def test_the_bound_of_a_mesh(make_topology: Make, operation: str, seconds: float) -> None:
    bound = cut_bound(make_topology(8, mesh(8)), operation, 64 * MiB, range(8))
    assert bound is not None
    assert bound.time == pytest.approx(seconds * 1e12)


def test_a_ring_is_cut_in_halves_by_an_all_to_all(topology: Callable[[str], Topology]) -> None:
    """4 x 4 blocks of 8 MiB go over two links of 50 GB/s from one half of `sip8` to the other."""
    bound = cut_bound(topology("sip8"), "all_to_all", 64 * MiB, range(8))
    assert bound is not None
    assert bound.time == pytest.approx(16 * 8 * MiB / 100e9 * 1e12)
    assert str(bound) == "1342 us: 128 MiB must leave ranks 0, 1, 2, 3, over 100 GB/s"


@pytest.mark.parametrize("root", [0, 2])
@pytest.mark.parametrize("operation", [name for name in OPERATIONS if name != "send_recv"])
def test_no_min_cut_says_more(make_topology: Make, operation: str, root: int) -> None:
    """Two pairs at a router each, joined by a slow cable: every set of ranks, by maximum flows."""
    ends = [("sip0", "a"), ("sip1", "a"), ("sip2", "b"), ("sip3", "b"), ("sip0", "sip1")]
    edges: list[dict[str, Any]] = [{"ends": list(pair)} for pair in ends]
    edges.append({"ends": ["a", "b"], "bandwidth": "7 GB/s"})
    network = {"kind": "graph", "bandwidth": "20 GB/s", "latency": "0 ns", "edges": edges}
    machine = make_topology(4, network)
    flows: networkx.DiGraph[str] = networkx.DiGraph()
    for link in machine.links:
        flows.add_edge(link.src, link.dst, capacity=link.bandwidth.per_second)
    for sip in range(4):
        flows.add_edge("from", f"sip{sip}.cube0", capacity=0)
        flows.add_edge(f"sip{sip}.cube0", "to", capacity=0)
    everybody, most = set(range(4)), 0.0
    block = 4 * MiB / 4
    for size in (1, 2, 3):
        for near in map(set, combinations(range(4), size)):
            for sip in range(4):
                flows["from"][f"sip{sip}.cube0"]["capacity"] = 10**15 * (sip in near)
                flows[f"sip{sip}.cube0"]["to"]["capacity"] = 10**15 * (sip not in near)
            far = everybody - near
            must_cross = {
                "all_reduce": 4 * block,
                "reduce": 4 * block * (root in far),
                "broadcast": 4 * block * (root in near),
                "all_gather": block * len(near),
                "reduce_scatter": block * len(far),
                "gather": block * len(near) * (root in far),
                "scatter": block * len(far) * (root in near),
                "all_to_all": block * len(near) * len(far),
            }[operation]
            most = max(most, must_cross / networkx.maximum_flow_value(flows, "from", "to"))
    bound = cut_bound(machine, operation, 4 * MiB, range(4), root)
    assert bound is not None
    assert bound.time == pytest.approx(most * 1e12)


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        ("all_to_all", "direct_links"),
        ("all_gather", "direct_links"),
        ("reduce_scatter", "direct_links"),
        ("all_reduce", "two_shot_links"),
        ("broadcast", "split_links"),
    ],
)
def test_a_mesh_gives_all_of_its_links(
    topology: Callable[[str], Topology], operation: str, name: str
) -> None:
    """Of 16 MiB at least 80 % of the bound, beside the launch, and `auto` takes it."""
    machine = topology("mi300x8")
    chosen = Choices(None, (), machine).choose(operation, 16 * MiB, range(8))
    assert chosen.name == name
    blocks = 1 if OPERATIONS[operation].blocks == "one" else 8
    time = simulate(machine, chosen, even(operation, 8, 16 * MiB // 4 // blocks)).time
    bound = cut_bound(machine, operation, 16 * MiB, range(8))
    assert bound is not None
    assert bound.time >= 0.8 * (time - 18.5e6)


def test_what_a_ring_leaves_on_a_mesh_is_said(make_topology: Make) -> None:
    """A ring of 8 uses one of 7 links: 14 steps of 8 MiB over 64 GB/s."""
    choices = Choices(None, ("defaults.algorithm=ring",), make_topology(8, mesh(8)))
    time = 14 * 8 * MiB * 10**12 // (64 * 10**9)
    assert choices.shortfall("all_reduce", 64 * MiB, range(8), time) == (
        "limited by the messages of ring: 14.3 % of the bound of the links, 262.1 us: 896 MiB must "
        "leave the 8 ranks, added up, over 3584 GB/s"
    )
    assert choices.shortfall("all_reduce", 64 * MiB, range(8), time // 4) is None
    small = choices.shortfall("all_reduce", 1024, range(8), 8 * 10**6)
    assert small is not None
    assert small.startswith("limited by launch and latencies")


def test_amounts_of_large_machines_have_no_exponents() -> None:
    bound = CutBound(9999.4 * 1e6, 32_736.4 * MiB, 460_800e9, "the parts")
    assert str(bound) == "9999 us: 32,736 MiB must leave the parts, over 460,800 GB/s"
    said = shortfall(bound, 10**12, 1_900_400 * 1e6, "ring")
    assert said is not None
    assert said.startswith("limited by launch and latencies (1,900,400 us): ")


def test_what_the_host_takes_is_not_laid_on_the_messages(
    topology: Callable[[str], Topology],
) -> None:
    """An all-gather of 1 MiB takes 49 us, latencies 41 of them, and its host 56 us before.

    As long as the host takes half, no other link and no other launch makes it much shorter.
    """
    choices = Choices(None, (), topology("h200x8_x4_nodes"))
    said = choices.shortfall("all_gather", MiB, range(32), 113 * 10**6)
    assert said is not None
    assert said.startswith("limited by launch and latencies (40.7 us)")
    said = choices.shortfall("all_gather", MiB, range(32), 112 * 10**6)
    assert said is not None
    assert said.startswith("limited by the host, which issues one in 56 us: ")


def test_small_messages_of_a_library_do_not_keep_others_out(
    topology: Callable[[str], Topology],
) -> None:
    """Blocks of 512 KiB are small to NCCL's LL, which sends them over one link after another."""
    choices = Choices(None, (), topology("mi300x8"))
    assert choices.choose("all_to_all", 4 * MiB, range(8)).name == "direct_links"
    assert Choices(None, (), topology("h200x8")).choose("all_to_all", 4 * MiB, range(8)).name == (
        "nccl_p2p_ll"
    )
