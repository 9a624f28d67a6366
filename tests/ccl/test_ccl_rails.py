"""Rings between nodes use every NIC once, keep out of each other's way, and add in ring order."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from ccl_machine import Outcome, run, skewed, submit, values
from ccl_shipped import shipped
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.ccl.channel import ChannelPlan
from kernbench.ccl.machine import Machine
from kernbench.ccl.plan import record
from kernbench.ccl.prepared import CollectiveShape, Prepared
from kernbench.ccl.programs import programs_of
from kernbench.ccl.rails import rails_of, walks_of
from kernbench.ccl.tuner import Choices
from kernbench.hw.claims import Claims
from kernbench.hw.queue import Queue
from kernbench.memory import dtypes
from kernbench.operations.copies import PeerCopy
from kernbench.sim_engine.command import Command, Stream
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.host import Host
from kernbench.topology import Topology, load_topology

Values = np.ndarray[Any, Any]

NODE, RATE = 8, 48e9
RING, LL, TREE = "nccl_simple", "nccl_ll", "nccl_tree"


@pytest.fixture(scope="module")
def machine() -> Topology:
    return load_topology("h200x8_x4_nodes").topology_obj


groups = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, NODE - 1)), min_size=1, max_size=30, unique=True
)
"""Any groups: nodes of any number of ranks, ranks in any order."""

even_groups = st.builds(
    lambda nodes, rails: [(node, rail) for node in nodes for rail in rails],
    st.lists(st.integers(0, 9), min_size=2, max_size=5, unique=True),
    st.lists(st.integers(0, NODE - 1), min_size=1, max_size=8, unique=True),
)


def crossings(
    places: Sequence[tuple[int, int]], walk: Sequence[int]
) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Returns the steps of a ring from one node to another, as places."""
    steps = pairwise((*walk, walk[0]))
    return [
        (places[one], places[other]) for one, other in steps if places[one][0] != places[other][0]
    ]


@given(groups)
def test_every_walk_has_every_rank_once_and_goes_into_every_node_once(
    places: list[tuple[int, int]],
) -> None:
    walks = walks_of(places, NODE)
    ranks = Counter(node for node, _ in places)
    assert len(walks) == (min(ranks.values()) if len(ranks) > 1 else 0)
    for walk in walks:
        assert sorted(walk) == list(range(len(places)))
        assert len(crossings(places, walk)) == len(ranks)


@given(groups)
def test_every_nic_is_the_way_out_of_one_walk_at_most_and_the_way_in_of_one(
    places: list[tuple[int, int]],
) -> None:
    steps = [step for walk in walks_of(places, NODE) for step in crossings(places, walk)]
    out, into = Counter(one for one, _ in steps), Counter(other for _, other in steps)
    assert not steps or set(out.values()) == set(into.values()) == {1}


@given(even_groups)
def test_even_nodes_use_all_nics_and_an_even_number_of_them_stays_on_rails(
    places: list[tuple[int, int]],
) -> None:
    walks = walks_of(places, NODE)
    steps = [step for walk in walks for step in crossings(places, walk)]
    assert {one for one, _ in steps} == {other for _, other in steps} == set(places)
    nodes = len({node for node, _ in places})
    off = sum(one[1] != other[1] for one, other in steps)
    # Of an odd number of nodes, the way back to the first one crosses from rail to rail.
    assert off == (len(walks) if nodes % 2 and len(walks) > 1 else 0)


@given(even_groups, st.integers(1, 8))
def test_there_are_no_more_walks_than_asked_for(places: list[tuple[int, int]], most: int) -> None:
    assert len(walks_of(places, most)) == min(most, len({rail for _, rail in places}))


@given(st.lists(st.integers(0, 31), min_size=2, max_size=32, unique=True))
@settings(max_examples=50)
def test_shares_of_a_link_are_no_more_than_it_carries(sips: list[int]) -> None:
    topology = load_topology("h200x8_x4_nodes").topology_obj
    rails = rails_of(topology, tuple(sips), NODE)
    if rails is None:
        assert len({sip // NODE for sip in sips}) == 1
        return
    used: Counter[int] = Counter()
    for walk, shares in zip(rails.walks, rails.shares, strict=True):
        assert set(shares) == set(pairwise((*walk, walk[0])))
        for (one, other), share in shares.items():
            assert share.per_second > 0
            for link in topology.sip_route(sips[one], sips[other]):
                used[link.index] += share.per_second
    assert all(used[link.index] <= link.bandwidth.per_second for link in topology.links)


GROUPS = {
    "two nodes of two": [0, 1, 8, 9],
    "three of a node and eight of another": [0, 1, 2, *range(8, 16)],
    "nodes with other NICs": [0, 1, 10, 11, 12],
    "one of each node, on a rail": [5, 13, 21, 29],
    "one of each node, in an odd order": [29, 5, 21],
    "one of a node and four of another": [3, 8, 9, 10, 11],
    "odd order": [17, 3, 11, 2, 10, 16],
    "four nodes of four": [node * 8 + rail for node in range(4) for rail in (1, 3, 4, 6)],
}


@pytest.mark.parametrize("sips", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("name", [RING, LL, TREE])
@pytest.mark.parametrize("count", [5, 4_000])
@pytest.mark.parametrize("late", [False, True])
def test_times_are_those_of_a_live_run_over_the_network(
    machine: Topology, sips: list[int], name: str, count: int, late: bool
) -> None:
    """In a live run every message is a flow that competes with the others at every instant."""
    chosen = shipped(name, machine)
    starts = skewed(len(sips)) if late else [0] * len(sips)
    quick = run(machine, chosen, starts, count, sips=sips)
    quick.same(run(machine, chosen, starts, count, sips=sips, fidelity="tile"))


def ends_of_three(
    machine: Topology, sips: Sequence[int], *, alone: bool = True, company: int | None = None
) -> list[int | None]:
    """Runs three all-reduces in a row, and a copy that begins at `company`.

    Args:
        sips: Device of each rank.
        alone: Whether what is alone on its links may be timed without the network.
        company: When the copy begins, in picoseconds; None for no copy.
    """
    engine = GraphEngine(machine, enable_data=False)
    with pytest.MonkeyPatch.context() as patch:
        if not alone:
            patch.setattr(Claims, "busy", lambda *_: True)
        starts = [9_000 * sip for sip in sips]
        commands = submit(engine, shipped(RING, machine), sips, 50_000, 3, starts)
        if company is not None:
            host = Host(engine.loop, -1, engine.rank_owner(-1), company, 64)
            copy = PeerCopy(engine, sips[1], sips[-1], 2_000_000, lambda: None)
            commands.append(Command("copy", "copy", host, Stream("c", sips[1]), copy))
            engine.submit(commands[-1])
        engine.loop.run()
    assert not engine.network.claims
    return [command.done.time for command in commands]


@pytest.mark.parametrize("sips", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("company", [None, 0, 30_000_000, 100_000_000])
def test_times_in_a_row_and_in_company_are_those_of_the_network(
    machine: Topology, sips: list[int], company: int | None
) -> None:
    expected = ends_of_three(machine, sips, company=company, alone=False)
    assert ends_of_three(machine, sips, company=company) == expected


def test_no_ring_of_a_group_counts_as_company_for_another(machine: Topology) -> None:
    """What is timed over the network, or rank by rank, makes queues."""
    made = 0
    begun = ChannelPlan.queue

    def counted(plan: ChannelPlan, sender: int, receiver: int) -> Queue:
        nonlocal made
        made += 1
        return begun(plan, sender, receiver)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChannelPlan, "queue", counted)
        ends_of_three(machine, range(32))
        assert not made
        ends_of_three(machine, range(32), alone=False)
        assert made


def in_ring_order(
    inputs: Sequence[np.ndarray[Any, Any]], walks: Sequence[Sequence[int]]
) -> np.ndarray[Any, Any]:
    """The sum as rings make it: a share for each ring, a chunk for each rank, from this rank on."""
    count, align = len(inputs[0]), 8
    out = np.empty_like(inputs[0])

    def aligned(size: int, parts: int) -> int:
        return math.ceil(math.ceil(size / parts) / align) * align

    share = aligned(count, len(walks))
    for number, walk in enumerate(walks):
        low, high = min(number * share, count), min((number + 1) * share, count)
        chunk = aligned(high - low, len(walk))
        for place in range(len(walk)):
            part = slice(min(low + place * chunk, high), min(low + (place + 1) * chunk, high))
            total = inputs[walk[place]][part]
            for step in range(1, len(walk)):
                after = inputs[walk[(place + step) % len(walk)]][part]
                total = (after + total).astype(out.dtype)
            out[part] = total
    return out


@pytest.mark.parametrize("sips", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("count", [3, 1_001])
def test_sums_are_rounded_in_the_order_of_the_walks(
    machine: Topology, sips: list[int], count: int
) -> None:
    done = run(machine, shipped(RING, machine), [0] * len(sips), count, sips=sips)
    expected = in_ring_order(
        values(dtypes.float32, len(sips), count), walks_of([divmod(s, NODE) for s in sips], NODE)
    )
    assert all((out == expected).all() for out in done.outputs)


def busbw(done: Outcome, nbytes: int) -> float:
    ranks, time = len(done.ends), max(end or 0 for end in done.ends)
    return nbytes / time * 1e3 * 2 * (ranks - 1) / ranks


@pytest.mark.parametrize(
    ("sips", "nics"),
    [
        (range(16), 8),
        (range(32), 8),
        ([*range(3), *range(8, 16)], 3),
        ([4, 12, 20, 28], 1),
        ([*range(4, 8), *range(12, 16)], 4),
    ],
)
def test_the_bandwidth_is_that_of_the_nics(
    machine: Topology, sips: Sequence[int], nics: int
) -> None:
    nbytes = 8 << 30
    done = run(machine, shipped(RING, machine), [0] * len(sips), nbytes // 4, sips=sips, data=False)
    assert 0.97 * nics * RATE / 1e9 < busbw(done, nbytes) <= nics * RATE / 1e9


@pytest.mark.parametrize(
    ("nodes", "count", "expected"),
    [
        (2, 1 << 18, 121_772_222),
        (2, 1 << 28, 5_332_799_639),
        (4, 1 << 18, 227_092_105),
        (4, 1 << 28, 5_474_007_895),
    ],
)
def test_golden(machine: Topology, nodes: int, count: int, expected: int) -> None:
    done = run(machine, shipped(RING, machine), [0] * 8 * nodes, count, data=False)
    assert set(done.ends) == {expected}


def test_inside_a_node_nothing_is_different(machine: Topology) -> None:
    assert rails_of(machine, tuple(range(8, 16)), NODE) is None
    one = load_topology("h200x8").topology_obj
    assert rails_of(one, tuple(range(8)), NODE) is None
    for count in (1_000, 1 << 24):
        ends = [
            run(there, shipped(RING, there), [0] * 8, count, sips=sips, data=False).ends
            for there, sips in ((one, range(8)), (machine, range(8, 16)))
        ]
        assert ends[0] == ends[1]


def test_channels_of_equal_groups_have_one_plan(machine: Topology) -> None:
    """A group of other nodes of the same form costs no second recording."""

    def plans(first: int) -> list[int]:
        sips = tuple(range(8 * first, 8 * first + 16))
        shape = CollectiveShape(
            shipped(RING, machine), "all_gather", sips, (1 << 20,) * 16, dtypes.bfloat16
        )
        return [id(channel.plan) for channel in Prepared(Machine(machine), shape).channels]

    assert plans(0) == plans(2)
    assert len(set(plans(0))) == 8


def test_small_sizes_use_one_ring_and_large_ones_all(machine: Topology) -> None:
    choices = Choices(None, (), machine)
    small, large = (choices.choose("all_gather", size, range(32)) for size in (256, 1 << 30))
    assert small.only_first
    assert not large.only_first
    assert large.name == RING


@pytest.mark.parametrize("operation", ["broadcast", "reduce", "all_reduce", "all_gather"])
def test_a_plan_with_ranks_numbered_anew_is_that_of_the_walk(
    machine: Topology, operation: str
) -> None:
    """Against the algorithm itself along the walk, which every rank runs by itself."""
    sips = (17, 3, 0, 9, 25, 8, 16, 11)
    chosen = shipped(RING, machine)
    for program in programs_of(chosen, operation, machine, sips, 2, lambda _: 20):
        ours = program.plan
        assert ours is not None
        along = program.algorithm
        theirs = record(lambda comm, along=along: along(comm), program.setting).plan
        assert theirs is not None
        assert ours.cuts == theirs.cuts
        for rank in range(len(sips)):
            assert ours.of(rank) == theirs.of(rank)
