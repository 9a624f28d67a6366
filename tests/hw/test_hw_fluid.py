"""Flows through a switch: max-min fair, whatever their order and their names."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.des import EventLoop
from kernbench.hw.fluid import Fluid
from kernbench.hw.network import Network
from kernbench.topology import Topology
from kernbench.units import PS_PER_S, Bandwidth


@dataclass(frozen=True)
class Flow:
    ports: tuple[int, ...]
    cap: int  # bytes a picosecond, in thousandths
    size: int
    start: int


def rate(thousandths: int) -> Bandwidth:
    return Bandwidth(PS_PER_S * thousandths // 1000)


def run(
    capacity: dict[int, int], flows: Sequence[Flow], order: Sequence[int], owners: Sequence[int]
) -> list[int]:
    """Ends of the flows, started in the given order, each by the given owner."""
    loop, ends = EventLoop(), dict[int, int]()
    fluid = Fluid(loop, loop.owner(0), {port: rate(value) for port, value in capacity.items()})

    def start(number: int) -> None:
        flow = flows[number]
        fluid.start(
            loop.owner(owners[number]),
            flow.ports,
            rate(flow.cap),
            flow.size,
            lambda time: ends.update({number: time}),
        )

    for number in order:
        loop.at(flows[number].start, loop.owner(owners[number]), start, number)
    loop.run()
    return [ends[number] for number in range(len(flows))]


def water_filling(capacity: dict[int, int], flows: Sequence[Flow]) -> list[float]:
    """Ends of the flows when all rates rise together until a port or a cap stops them."""
    left = [float(flow.size) for flow in flows]
    ends = [-1.0] * len(flows)
    now = 0.0
    while any(end < 0 for end in ends):
        running = [n for n, flow in enumerate(flows) if ends[n] < 0 and flow.start <= now]
        rates = dict.fromkeys(running, 0.0)
        rising = set(running)
        while rising:
            spare = [
                (capacity[port] / 1000 - sum(r for n, r in rates.items() if port in flows[n].ports))
                / sum(port in flows[n].ports for n in rising)
                for port in capacity
                if any(port in flows[n].ports for n in rising)
            ]
            step = min([*spare, *(flows[n].cap / 1000 - rates[n] for n in rising)])
            for n in rising:
                rates[n] += step
            full = {
                port
                for port, value in capacity.items()
                if sum(r for n, r in rates.items() if port in flows[n].ports)
                > value / 1000 * (1 - 1e-12)
            }
            rising = {
                n
                for n in rising
                if rates[n] < flows[n].cap / 1000 * (1 - 1e-12) and not full & set(flows[n].ports)
            }
        events = [now + left[n] / rates[n] for n in running]
        events += [flow.start for flow in flows if flow.start > now]
        then = min(events)
        for n in running:
            left[n] -= rates[n] * (then - now)
            if left[n] < 1e-6:
                ends[n] = then
        now = then
    return ends


@st.composite
def situations(draw: st.DrawFn) -> tuple[dict[int, int], list[Flow]]:
    capacity = {port: draw(st.sampled_from([100, 250, 400, 1000])) for port in range(8)}
    flows = draw(
        st.lists(
            st.builds(
                Flow,
                st.tuples(st.integers(0, 3), st.integers(4, 7)),
                st.sampled_from([50, 200, 1000]),
                st.integers(1, 5000),
                st.sampled_from([0, 0, 500, 3333]),
            ),
            min_size=1,
            max_size=6,
        )
    )
    return capacity, flows


@pytest.mark.slow
@given(situations(), st.randoms(use_true_random=False))
def test_it_fills_like_water_for_any_order_and_any_names(
    situation: tuple[dict[int, int], list[Flow]], rng: random.Random
) -> None:
    capacity, flows = situation
    numbers = list(range(len(flows)))
    ends = run(capacity, flows, numbers, [n + 1 for n in numbers])
    # Each end is rounded up to a picosecond, and delays those that wait for its share by less.
    expected = water_filling(capacity, flows)
    slack = 40 * len(flows)
    for end, exact in zip(ends, expected, strict=True):
        assert exact - slack <= end <= exact + slack
    order, names = numbers[:], [n + 1 for n in numbers]
    rng.shuffle(order)
    rng.shuffle(names)
    assert run(capacity, flows, order, names) == ends


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_flows_into_one_port_share_it_evenly(count: int) -> None:
    capacity = {**dict.fromkeys(range(count), 1000), 99: 1000}
    flows = [Flow((n, 99), 1000, 840, 50) for n in range(count)]
    assert run(capacity, flows, range(count), range(1, count + 1)) == [50 + 840 * count] * count


def test_short_flows_into_one_port_leave_their_share_to_the_long_ones() -> None:
    sizes = [600, 60, 300, 120]
    capacity = {**dict.fromkeys(range(4), 1000), 99: 1000}
    flows = [Flow((n, 99), 1000, size, 0) for n, size in enumerate(sizes)]
    ends = run(capacity, flows, [2, 0, 3, 1], [1, 2, 3, 4])
    expected, time, before = {}, 0, 0
    for rank, size in enumerate(sorted(sizes)):
        time += (size - before) * (len(sizes) - rank)
        expected[size], before = time, size
    assert ends == [expected[size] for size in sizes]


def test_a_capped_flow_leaves_the_rest_to_others() -> None:
    flows = [Flow((0, 9), 100, 100, 0), Flow((1, 9), 1000, 900, 0)]
    assert run({0: 1000, 1: 1000, 9: 1000}, flows, [0, 1], [1, 2]) == [1000, 1000]


def test_a_flow_that_others_do_not_slow_takes_what_they_leave() -> None:
    # Two flows leave port 0; one of them shares port 9 with three others.
    flows = [Flow((0, 8), 1000, 750, 0)] + [Flow((n, 9), 1000, 250, 0) for n in range(4)]
    capacity = {**dict.fromkeys(range(4), 1000), 8: 1000, 9: 1000}
    assert run(capacity, flows, range(5), range(1, 6)) == [1000] * 5


def test_an_empty_flow_is_through_at_once() -> None:
    flows = [Flow((0, 9), 1000, 0, 30), Flow((1, 9), 1000, 100, 0)]
    assert run({0: 1000, 1: 1000, 9: 1000}, flows, [0, 1], [1, 2]) == [30, 100]


@pytest.mark.parametrize("size", [0, 1, 1000, 123_457])
def test_alone_a_message_through_a_switch_takes_what_its_path_says(
    topology: Callable[[str], Topology], size: int
) -> None:
    loop, arrivals, injected = EventLoop(), list[int](), list[int]()
    network = Network(topology("h200x8"), loop)
    path = network.path("sip2.cube0", "sip5.cube0", Bandwidth(400 * 10**9), 4096)
    network.send(path, size, 777, loop.owner(3), injected.append, arrivals.append)
    loop.run()
    bandwidth = min(link.bandwidth.per_second for link in path.route)
    through = 777 - (-size * PS_PER_S // bandwidth)
    latency = sum(link.latency for link in path.route)
    assert (injected, arrivals) == ([through], [through + latency])


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
