"""Shared links: alone as fast as private ones, together in the order of time and owner."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.des import EventLoop
from kernbench.hw.claims import Claim, Use
from kernbench.hw.network import Network
from kernbench.hw.path import Path, transmit
from kernbench.hw.pe import PeTimeline, later
from kernbench.hw.queue import Message, Sender
from kernbench.topology import Topology
from kernbench.units import Bandwidth

DMA = Bandwidth(200 * 10**9)
VC = 256


@dataclass
class Flow:
    source: str
    destination: str
    start: int
    sizes: list[int]
    arrivals: list[int] = field(default_factory=list)
    injected: list[int] = field(default_factory=list)


def four_behind_two_routers(
    make_topology: Callable[..., Topology], rates: Sequence[int]
) -> Topology:
    ends = [("sip0", "a"), ("sip1", "b"), ("sip2", "a"), ("sip3", "b"), ("a", "b")]
    edges = [
        {"ends": list(pair), "latency": f"{10 * n + 5} ns", "bandwidth": f"{rate} GB/s"}
        for n, (pair, rate) in enumerate(zip(ends, rates, strict=True))
    ]
    return make_topology(4, {"kind": "graph", "edges": edges})


@pytest.fixture(scope="session")
def tree(make_topology: Callable[..., Topology]) -> Topology:
    """Four SIPs behind two routers, so that flows share the link between the routers."""
    return four_behind_two_routers(make_topology, [50] * 5)


@pytest.fixture(scope="session")
def uneven_tree(make_topology: Callable[..., Topology]) -> Topology:
    """The same with links of different speeds: the last byte of a message may come late."""
    return four_behind_two_routers(make_topology, [50, 20, 200, 33, 100])


def run(topology: Topology, flows: Sequence[Flow], order: Sequence[int] | None = None) -> None:
    """Sends each flow's messages one after the other, flows set up in the given order."""
    loop = EventLoop()
    network = Network(topology, loop)
    for number in order if order is not None else range(len(flows)):
        flow = flows[number]
        path = network.path(flow.source, flow.destination, DMA, VC)
        pe = PeTimeline(flow.start, 0, later)
        sender = Sender(network, pe, loop.owner(number + 1))
        flow.arrivals.clear()
        for size in flow.sizes:
            sender.submit(flow.start, path, Message(size), flow.arrivals.append)
    loop.run()


def alone(path: Path, flow: Flow) -> list[int]:
    pe, free = PeTimeline(flow.start, 0, later), [0] * (len(path.hops) - 1)
    latencies = [hop.latency for hop in path.hops]
    return [
        transmit(pe, flow.start, path.times(size), latencies, free, later) for size in flow.sizes
    ]


def referee(topology: Topology, flows: Sequence[Flow]) -> list[list[int]]:
    """Every message on every link as an event of its own, from a heap of the referee's own."""
    free: dict[int, int] = {}
    arrivals: list[list[int]] = [[] for _ in flows]
    paths = [Path(topology.route(flow.source, flow.destination), DMA, VC) for flow in flows]
    queue: list[tuple[int, int, int, int, int, int]] = []  # time, flow, seq, message, hop, end
    sequence = 0

    def ask(time: int, flow: int, message: int, hop: int, end: int) -> None:
        nonlocal sequence
        sequence += 1
        heappush(queue, (time, flow, sequence, message, hop, end))

    for number, flow in enumerate(flows):
        if flow.sizes:
            ask(flow.start, number, 0, 0, 0)
    while queue:
        time, number, _, message, hop, end_before = heappop(queue)
        path, sizes = paths[number], flows[number].sizes
        stage, size = path.hops[hop], sizes[message]
        head, whole = min(size, VC), stage.bandwidth.duration_ps(size)
        tail = size if size <= VC else (size % VC or VC)
        begin = max(time, free.get(stage.link, 0))
        end = begin + whole
        if hop:
            flight = path.hops[hop - 1].latency
            end = max(end, end_before + flight + stage.bandwidth.duration_ps(tail))
        elif message + 1 < len(sizes):
            ask(end, number, message + 1, 0, 0)
        free[stage.link] = end
        if hop + 1 < len(path.hops):
            ask(
                begin + stage.bandwidth.duration_ps(head) + stage.latency,
                number,
                message,
                hop + 1,
                end,
            )
        else:
            arrivals[number].append(end + stage.latency)
    return arrivals


def cube(sip: int) -> str:
    return f"sip{sip}.cube0"


pairs = st.permutations(range(4)).map(lambda p: (cube(p[0]), cube(p[1])))
flows = st.builds(
    lambda ends, start, sizes: Flow(ends[0], ends[1], start, sizes),
    pairs,
    st.integers(0, 100_000),
    st.lists(st.sampled_from([0, 1, 16, 255, 256, 257, 1000, 4096]), min_size=1, max_size=4),
)


@given(flow=flows)
def test_a_flow_alone_is_as_fast_as_on_a_private_path(
    tree: Topology, uneven_tree: Topology, flow: Flow
) -> None:
    for topology in (tree, uneven_tree):
        run(topology, [flow])
        route = topology.route(flow.source, flow.destination)
        assert flow.arrivals == alone(Path(route, DMA, VC), flow)


@given(together=st.lists(flows, min_size=2, max_size=5), rng=st.randoms(use_true_random=False))
def test_flows_that_share_links_equal_an_event_per_message_and_hop(
    tree: Topology, uneven_tree: Topology, together: list[Flow], rng: random.Random
) -> None:
    order = list(range(len(together)))
    rng.shuffle(order)
    for topology in (tree, uneven_tree):
        run(topology, together, order)
        assert [flow.arrivals for flow in together] == referee(topology, together)


def test_two_messages_at_once_go_by_owner_and_the_second_waits_a_whole_message(
    tree: Topology,
) -> None:
    size, starts = 4096, 1000
    both = [Flow(cube(0), cube(1), starts, [size]), Flow(cube(2), cube(3), starts, [size])]
    run(tree, both, order=[1, 0])
    (first,), (second,) = both[0].arrivals, both[1].arrivals
    whole = Bandwidth(50 * 10**9).duration_ps(size)
    # The uplink of sip2 is 20 ns longer than that of sip0, the downlink of sip3 20 ns longer than
    # that of sip1; between them the first message holds the shared link.
    alone_first = Flow(cube(0), cube(1), starts, [size])
    run(tree, [alone_first])
    assert [first] == alone_first.arrivals
    assert second == first + whole + 20_000


def test_opposite_directions_do_not_meet(tree: Topology) -> None:
    both = [Flow(cube(0), cube(1), 0, [4096] * 3), Flow(cube(1), cube(0), 0, [4096] * 3)]
    run(tree, both)
    for flow in both:
        single = Flow(flow.source, flow.destination, 0, flow.sizes)
        run(tree, [single])
        assert flow.arrivals == single.arrivals


@pytest.mark.parametrize(("nbytes", "chunk"), [(10_000, 1000), (10_500, 1000), (0, 1000), (7, 64)])
def test_a_bulk_copy_lets_others_between_its_chunks(
    tree: Topology, nbytes: int, chunk: int
) -> None:
    loop = EventLoop()
    network = Network(tree, loop)
    bulk = network.path(cube(0), cube(1), DMA, VC)
    done = network.copy(bulk, nbytes, chunk, 0, loop.owner(1))
    small = network.path(cube(2), cube(3), DMA, VC)
    arrivals: list[int] = []
    network.send(small, 16, 30_000, loop.owner(2), lambda _: None, arrivals.append)
    loop.run()
    sizes = [chunk] * (nbytes // chunk) + [nbytes % chunk] * (nbytes % chunk > 0) or [0]
    flows = [Flow(cube(0), cube(1), 0, sizes), Flow(cube(2), cube(3), 30_000, [16])]
    expected = referee(tree, flows)
    assert [[done.time], arrivals] == [expected[0][-1:], expected[1]]


def test_links_that_two_activities_claim_are_nobodys_own(tree: Topology) -> None:
    network = Network(tree, EventLoop())
    path = {(a, b): network.path(cube(a), cube(b), DMA, VC) for a in range(4) for b in range(4)}
    claims, told = network.claims, list[str]()

    def take(name: str, line: str, *pairs: tuple[int, int], alone: bool = True) -> Claim:
        def repeat() -> tuple[int, Callable[[], None]]:
            return 0, lambda: told.append(name)

        use = Use([path[pair] for pair in pairs])
        claim = claims.take(use, line, repeat, alone=alone)
        if claim.alone and claims.busy(use, line, use.links, 0):
            claims.share(claim, begun=False)
        elif claim.alone:
            claims.hold(claim, use.links)
        return claim

    first = take("first", "A", (0, 2), (1, 3))
    second = take("second", "A", (1, 3))  # the same path, later in the same line
    assert [first.alone, second.alone] == [True, True]
    assert not take("third", "B", (0, 1)).alone  # shares sip0 -> a with the first
    assert told == ["first", "second"]  # who is in line with it meets its messages
    assert [first.alone, second.alone] == [False, False]
    assert not take("fourth", "A", (1, 3)).alone  # in line with one that has company
    assert told == ["first", "second"]
    claims.clear()
    assert not claims
    assert not take("fifth", "A", (0, 1), (2, 1)).alone  # in its own way
    assert not take("sixth", "A", (2, 3), alone=False).alone
    claims.clear()
    assert take("seventh", "A", (0, 1), (1, 0)).alone
    for pair, line, expected in (((0, 2), "B", True), ((0, 1), "A", False)):
        use = Use([path[pair]])
        assert claims.busy(use, line, use.links, 0) is expected
    assert told == ["first", "second"]
