"""Flows through a switch: max-min fair, whatever their order and their names."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import fluid_oracle
import pytest
from fluid_oracle import Flow
from hypothesis import given
from hypothesis import strategies as st

from kernbench.des import EventLoop
from kernbench.hw.fluid import Fluid
from kernbench.hw.network import Network
from kernbench.topology import Topology
from kernbench.units import PS_PER_S, Bandwidth


def rate(thousandths: int) -> Bandwidth:
    """A rate in thousandths of a byte a picosecond."""
    return Bandwidth(PS_PER_S * thousandths // 1000)


def run(
    capacity: Mapping[int, int], flows: Sequence[Flow], order: Sequence[int], owners: Sequence[int]
) -> list[int]:
    """Ends of the flows, started in the given order, each by the given owner."""
    loop, ends = EventLoop(), dict[int, int]()
    fluid = Fluid(loop, loop.owner(0), {port: Bandwidth(value) for port, value in capacity.items()})

    def start(number: int) -> None:
        flow = flows[number]
        fluid.start(
            loop.owner(owners[number]),
            flow.ports,
            Bandwidth(flow.cap),
            flow.size,
            lambda time: ends.update({number: time}),
        )

    for number in order:
        loop.at(flows[number].start, loop.owner(owners[number]), start, number)
    loop.run()
    return [ends[number] for number in range(len(flows))]


def thousandths(
    capacity: Mapping[int, int], flows: Sequence[Flow]
) -> tuple[dict[int, int], list[Flow]]:
    """Reads rates as thousandths of a byte a picosecond."""
    return (
        {port: rate(value).per_second for port, value in capacity.items()},
        [replace(flow, cap=rate(flow.cap).per_second) for flow in flows],
    )


RATES = st.one_of(
    st.sampled_from([1, 3, 7 * 10**9, 48 * 10**9, 10**12]), st.integers(1, 2 * 10**12)
)


@st.composite
def situations(draw: st.DrawFn) -> tuple[dict[int, int], list[Flow]]:
    capacity = {port: draw(RATES) for port in range(draw(st.integers(1, 8)))}
    ways = st.lists(st.sampled_from(sorted(capacity)), min_size=1, max_size=5, unique=True)
    flows = st.builds(
        Flow,
        ways.map(tuple),
        RATES,
        st.integers(0, 5000),
        st.one_of(st.sampled_from([0, 0, 500, 3333]), st.integers(0, 10**5)),
    )
    return capacity, draw(st.lists(flows, min_size=1, max_size=8))


@given(situations(), st.randoms(use_true_random=False))
def test_it_fills_like_water_for_any_order_and_any_names(
    situation: tuple[dict[int, int], list[Flow]], rng: random.Random
) -> None:
    capacity, flows = situation
    numbers = list(range(len(flows)))
    ends = run(capacity, flows, numbers, [n + 1 for n in numbers])
    assert ends == fluid_oracle.ends(capacity, flows)
    order, names = numbers[:], [n + 1 for n in numbers]
    rng.shuffle(order)
    rng.shuffle(names)
    assert run(capacity, flows, order, names) == ends


@given(st.lists(situations(), min_size=2, max_size=3), st.integers(0, 10**6))
def test_groups_that_share_no_port_may_be_at_different_times(
    parts: list[tuple[dict[int, int], list[Flow]]], back_at: int
) -> None:
    """Each further group is run from time 0 when the clock has passed `back_at` already."""
    loop, ends = EventLoop(), dict[tuple[int, int], int]()
    capacity = {
        (part, port): value
        for part, (ports, _) in enumerate(parts)
        for port, value in ports.items()
    }
    index = {name: n for n, name in enumerate(capacity)}
    fluid = Fluid(
        loop, loop.owner(0), {index[name]: Bandwidth(value) for name, value in capacity.items()}
    )

    def begin(part: int) -> None:
        loop.now = 0
        for number, flow in enumerate(parts[part][1]):
            loop.at(flow.start, loop.owner(number + 1), start, part, number)
        if part + 1 < len(parts):
            loop.at(back_at, loop.owner(99), begin, part + 1)

    def start(part: int, number: int) -> None:
        flow = parts[part][1][number]
        fluid.start(
            loop.owner(number + 1),
            [index[part, port] for port in flow.ports],
            Bandwidth(flow.cap),
            flow.size,
            lambda time: ends.update({(part, number): time}),
        )

    begin(0)
    loop.run()
    for part, (ports, flows) in enumerate(parts):
        expected = fluid_oracle.ends(ports, flows)
        assert [ends[part, number] for number in range(len(flows))] == expected


@given(st.permutations(range(6)))
def test_flows_that_end_together_are_told_in_the_order_of_their_senders(
    order: Sequence[int],
) -> None:
    """Flows 0 and 1 share a port, 2 and 3 another; 4 is alone, and 5 is empty and starts late."""
    loop, told = EventLoop(), list[int]()
    fluid = Fluid(loop, loop.owner(0), dict.fromkeys(range(4), rate(1000)))
    owners, ports, sizes = (3, 7, 2, 5, 6, 4), (0, 0, 1, 1, 2, 3), (10, 10, 10, 10, 20, 0)

    def start(number: int) -> None:
        fluid.start(
            loop.owner(owners[number]),
            (ports[number],),
            rate(1000),
            sizes[number],
            lambda _: told.append(owners[number]),
        )

    for number in order:
        loop.at(20 if number == 5 else 0, loop.owner(owners[number]), start, number)
    loop.run()
    assert loop.now == 20
    # The empty flow starts when the others have ended, in the turn of its sender.
    assert told == [2, 3, 5, 6, 7, 4]


def test_flows_of_one_sender_that_end_together_are_told_in_the_order_of_their_starts() -> None:
    loop, told = EventLoop(), list[int]()
    fluid = Fluid(loop, loop.owner(0), dict.fromkeys(range(4), rate(1000)))

    def start(port: int) -> None:
        fluid.start(loop.owner(1), (port,), rate(1000), 9, lambda _: told.append(port))

    for port in (2, 0, 3, 1):
        start(port)
    loop.run()
    assert told == [2, 0, 3, 1]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_flows_into_one_port_share_it_evenly(count: int) -> None:
    capacity = {**dict.fromkeys(range(count), 1000), 99: 1000}
    flows = [Flow((n, 99), 1000, 840, 50) for n in range(count)]
    assert (
        run(*thousandths(capacity, flows), range(count), range(1, count + 1))
        == [50 + 840 * count] * count
    )


def test_short_flows_into_one_port_leave_their_share_to_the_long_ones() -> None:
    sizes = [600, 60, 300, 120]
    capacity = {**dict.fromkeys(range(4), 1000), 99: 1000}
    flows = [Flow((n, 99), 1000, size, 0) for n, size in enumerate(sizes)]
    ends = run(*thousandths(capacity, flows), [2, 0, 3, 1], [1, 2, 3, 4])
    expected, time, before = {}, 0, 0
    for rank, size in enumerate(sorted(sizes)):
        time += (size - before) * (len(sizes) - rank)
        expected[size], before = time, size
    assert ends == [expected[size] for size in sizes]


def test_a_capped_flow_leaves_the_rest_to_others() -> None:
    flows = [Flow((0, 9), 100, 100, 0), Flow((1, 9), 1000, 900, 0)]
    capacity = {0: 1000, 1: 1000, 9: 1000}
    assert run(*thousandths(capacity, flows), [0, 1], [1, 2]) == [1000, 1000]


def test_a_flow_that_others_do_not_slow_takes_what_they_leave() -> None:
    # Two flows leave port 0; one of them shares port 9 with three others.
    flows = [Flow((0, 8), 1000, 750, 0)] + [Flow((n, 9), 1000, 250, 0) for n in range(4)]
    capacity = {**dict.fromkeys(range(4), 1000), 8: 1000, 9: 1000}
    assert run(*thousandths(capacity, flows), range(5), range(1, 6)) == [1000] * 5


def test_a_long_way_shares_each_of_its_ports() -> None:
    """The parking lot: one flow over three ports, and a flow of its own on each of them."""
    capacity = {0: 1000, 1: 600, 2: 1000}
    flows = [Flow((0, 1, 2), 1000, 300, 0)] + [
        Flow((port,), 1000, size, 0) for port, size in ((0, 700), (1, 300), (2, 70))
    ]
    # At 300 of a thousand through the narrow port, both of its flows take 1000 ps.
    assert run(*thousandths(capacity, flows), [3, 1, 0, 2], [1, 2, 3, 4]) == [1000, 1000, 1000, 100]


def test_what_an_end_leaves_is_shared_on() -> None:
    # The flow that both others meet ends first, and they are apart from then on.
    flows = [Flow((0, 1), 1000, 100, 0), Flow((0,), 1000, 300, 0), Flow((1,), 1000, 500, 0)]
    capacity = {0: 1000, 1: 1000}
    assert run(*thousandths(capacity, flows), [0, 1, 2], [1, 2, 3]) == [200, 400, 600]


def test_an_empty_flow_is_through_at_once() -> None:
    flows = [Flow((0, 9), 1000, 0, 30), Flow((1, 9), 1000, 100, 0)]
    capacity = {0: 1000, 1: 1000, 9: 1000}
    assert run(*thousandths(capacity, flows), [0, 1], [1, 2]) == [30, 100]


@pytest.mark.parametrize("size", [0, 1, 1000, 123_457])
@pytest.mark.parametrize(
    ("machine", "source", "destination"),
    [
        ("h200x8", 2, 5),
        ("h200x8_x4_nodes", 18, 21),
        ("h200x8_x4_nodes", 2, 26),
        ("h200x8_x4_nodes", 2, 29),
        ("fattree64", 7, 63),
    ],
)
def test_alone_a_message_through_switches_takes_what_its_path_says(
    topology: Callable[[str], Topology], machine: str, source: int, destination: int, size: int
) -> None:
    loop, arrivals, injected = EventLoop(), list[int](), list[int]()
    network = Network(topology(machine), loop)
    ends = f"sip{source}.cube0", f"sip{destination}.cube0"
    path = network.path(*ends, Bandwidth(400 * 10**9), 4096)
    network.send(path, size, 777, loop.owner(3), injected.append, arrivals.append)
    loop.run()
    bandwidth = min(link.bandwidth.per_second for link in path.route)
    through = 777 - (-size * PS_PER_S // bandwidth)
    latency = sum(link.latency for link in path.route)
    assert (injected, arrivals) == ([through], [through + latency])


@pytest.mark.parametrize(
    ("destinations", "times"),
    [
        ([8, 9, 10, 11], 1),  # a spine each
        ([8, 12, 9, 13], 2),  # two spines, two each
        ([8, 12, 16, 20], 4),  # all over one spine, whose link is as fast as a NIC
    ],
)
def test_an_oversubscribed_tree_slows_those_that_meet_at_a_spine(
    topology: Callable[[str], Topology], destinations: list[int], times: int
) -> None:
    size, loop, arrivals = 1_000_003, EventLoop(), list[int]()
    network = Network(topology("fattree64"), loop)
    for source, destination in enumerate(destinations):
        ends = f"sip{source}.cube0", f"sip{destination}.cube0"
        path = network.path(*ends, Bandwidth(400 * 10**9), 4096)
        network.send(path, size, 0, loop.owner(source + 1), lambda _: None, arrivals.append)
    loop.run()
    assert arrivals == [Bandwidth(50 * 10**9).duration_ps(times * size) + path.latency] * 4


def test_incast_through_a_switch_takes_the_sum_of_the_bytes(
    topology: Callable[[str], Topology],
) -> None:
    size, senders = 1_000_000, [6, 1, 4, 2, 7]
    loop, arrivals = EventLoop(), list[int]()
    network = Network(topology("h200x8"), loop)
    for sip in senders:
        path = network.path(f"sip{sip}.cube0", "sip0.cube0", Bandwidth(400 * 10**9), 4096)
        network.send(path, size, 0, loop.owner(sip + 1), lambda _: None, arrivals.append)
    loop.run()
    port = path.route[-1].bandwidth
    latency = path.latency
    assert arrivals == [port.duration_ps(len(senders) * size) + latency] * len(senders)
