"""Cut-through paths against closed forms and a referee that moves every chunk by itself."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.hw.path import FarHops, Path, stack, transmit
from kernbench.hw.pe import PeTimeline, later
from kernbench.topology import Link
from kernbench.units import PS_PER_S, Bandwidth, Bytes, Ps

CHUNK = 64
FAST = Bandwidth(PS_PER_S)  # one picosecond a byte


def link(index: int, ps_per_byte: int, latency: int, kind: str = "fifo") -> Link:
    assert kind in {"fifo", "fluid"}
    return Link(
        index,
        f"link {index}",
        f"n{index}",
        f"n{index + 1}",
        Bandwidth(PS_PER_S // ps_per_byte),
        Ps(latency),
        "fifo" if kind == "fifo" else "fluid",
        Bytes(1 << 16),
    )


def path(hops: Sequence[tuple[int, int]], dma: Bandwidth = FAST) -> Path:
    return Path([link(n, *hop) for n, hop in enumerate(hops)], dma, CHUNK)


@dataclass
class Sent:
    injected: int
    arrival: int


def send(way: Path, messages: Sequence[tuple[int, int]]) -> list[Sent]:
    """Sends `(ready, size)` messages one after the other over a path of their own."""
    pe = PeTimeline(0, 0, later)
    free = [0] * (len(way.hops) - 1)
    latencies = [hop.latency for hop in way.hops]
    sent = []
    for ready, size in messages:
        arrival = transmit(pe, ready, way.times(size), latencies, free, later)
        sent.append(Sent(pe.send_free, arrival))
    return sent


def chunk_by_chunk(
    hops: Sequence[tuple[int, int]], messages: Sequence[tuple[int, int]]
) -> list[int]:
    """Arrival of each message when every chunk waits for the one before it on each link."""
    free, arrivals, last = [0] * len(hops), list[int](), 0
    for ready, size in messages:
        for number in range(max(1, -(-size // CHUNK))):
            length = min(CHUNK, size - number * CHUNK)
            time = ready
            for hop, (ps_per_byte, latency) in enumerate(hops):
                time = max(time, free[hop]) + length * ps_per_byte
                free[hop] = time
                time += latency
            last = time
        arrivals.append(last)
    return arrivals


hop = st.tuples(st.sampled_from([1, 2, 4, 5]), st.integers(0, 90))


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1000])
def test_one_hop_takes_its_bytes_and_its_latency(size: int) -> None:
    (sent,) = send(path([(4, 70)]), [(10, size)])
    assert (sent.injected, sent.arrival) == (10 + 4 * size, 10 + 4 * size + 70)


def test_the_first_hop_is_as_slow_as_the_dma_engine_that_feeds_it() -> None:
    (slow_dma,) = send(path([(1, 0)], Bandwidth(PS_PER_S // 5)), [(0, 100)])
    (slow_link,) = send(path([(5, 0)], FAST), [(0, 100)])
    assert slow_dma.arrival == slow_link.arrival == 500


def test_inside_a_cube_only_the_dma_engine_counts() -> None:
    way = path([], Bandwidth(PS_PER_S // 2))
    assert (way.links, way.latency) == ((), 0)
    assert send(way, [(3, 100)])[0].arrival == 203


@given(st.integers(1, 5), st.sampled_from([1, 2, 4]), st.integers(0, 50), st.integers(0, 999))
def test_equal_hops_add_one_chunk_and_one_latency_each(
    count: int, ps_per_byte: int, latency: int, size: int
) -> None:
    (sent,) = send(path([(ps_per_byte, latency)] * count), [(0, size)])
    head = min(size, CHUNK)
    assert sent.injected == size * ps_per_byte
    assert sent.arrival == (size + (count - 1) * head) * ps_per_byte + count * latency


@given(
    st.lists(hop, min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 9)), min_size=1, max_size=4),
)
def test_whole_chunks_arrive_as_if_each_travelled_by_itself(
    hops: list[tuple[int, int]], messages: list[tuple[int, int]]
) -> None:
    messages = [(ready, count * CHUNK) for ready, count in sorted(messages)]
    assert [sent.arrival for sent in send(path(hops), messages)] == chunk_by_chunk(hops, messages)


@given(st.lists(hop, min_size=1, max_size=4), st.integers(0, 700))
def test_a_short_last_chunk_errs_by_at_most_a_chunk_a_hop(
    hops: list[tuple[int, int]], size: int
) -> None:
    (sent,) = send(path(hops), [(0, size)])
    (exact,) = chunk_by_chunk(hops, [(0, size)])
    # On each further hop it may queue behind the chunk before it, which the model does not see.
    behind = CHUNK * sum(ps_per_byte for ps_per_byte, _ in hops[1:])
    assert exact - behind <= sent.arrival <= exact


@given(st.lists(hop, min_size=1, max_size=4), st.integers(1, 500))
def test_nothing_is_faster_than_the_slowest_hop(hops: list[tuple[int, int]], size: int) -> None:
    count = 6
    sent = send(path(hops), [(0, size)] * count)
    slowest = max(ps_per_byte for ps_per_byte, _ in hops)
    assert sent[-1].arrival >= count * size * slowest + sum(latency for _, latency in hops)


def test_odd_rates_round_each_duration_up() -> None:
    way = Path([link(0, 1, 0)], Bandwidth(3 * 10**11), CHUNK)  # 3.33.. ps a byte
    assert way.times(1)[0].full == 4
    assert way.times(3)[0].full == 10
    assert (way.times(65)[0].head, way.times(65)[0].tail) == (214, 4)


def test_a_credit_flies_over_all_hops_at_the_slowest_rate() -> None:
    assert path([(1, 30), (4, 50), (2, 7)]).credit_delay(16) == 30 + 50 + 7 + 64


def test_the_two_ports_of_a_switch_are_one_stage_and_cube_links_are_not_part_of_it() -> None:
    route = [link(0, 1, 20), link(1, 4, 800, "fluid"), link(2, 2, 0, "fluid"), link(3, 1, 20)]
    way = Path(route, FAST, CHUNK)
    assert [(PS_PER_S // h.bandwidth.per_second, h.latency, h.link, h.fluid) for h in way.hops] == [
        (1, 20, 0, False),
        (4, 800, 2, True),
        (1, 20, 3, False),
    ]


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 900)), min_size=1, max_size=6),
    st.integers(1, 9),
    st.integers(0, 1000),
)
def test_a_way_over_any_number_of_switches_is_one_stage(
    links: list[tuple[int, int]], dma: int, size: int
) -> None:
    route = [link(n, *numbers, "fluid") for n, numbers in enumerate(links)]
    way = Path(route, Bandwidth(PS_PER_S // dma), CHUNK)
    (stage,) = way.hops
    slowest = max([dma, *(ps_per_byte for ps_per_byte, _ in links)])
    assert (PS_PER_S // stage.bandwidth.per_second, stage.fluid) == (slowest, True)
    assert stage.latency == way.latency == sum(latency for _, latency in links)
    assert way.links == tuple(range(len(links)))
    (sent,) = send(way, [(17, size)])
    assert sent.arrival == 17 + way.times(size)[0].full + stage.latency


@given(
    st.lists(st.lists(hop, min_size=1, max_size=3), min_size=1, max_size=4),
    st.lists(st.integers(0, 300), min_size=1, max_size=3),
)
def test_arrays_over_ranks_give_each_rank_its_own_times(
    ways: list[list[tuple[int, int]]], sizes: list[int]
) -> None:
    paths = [path(hops) for hops in ways]
    longest = max(len(way.hops) for way in paths)
    latencies = [
        np.array([way.hops[n].latency if n < len(way.hops) else 0 for way in paths])
        for n in range(longest)
    ]
    none = np.zeros(len(paths), np.int64)
    pe, free = PeTimeline(none, 0, np.maximum), [none] * (longest - 1)
    starts = np.arange(len(paths)) * 17
    together = [
        transmit(pe, starts, stack([way.times(size) for way in paths]), latencies, free, np.maximum)
        for size in sizes
    ]
    for rank, way in enumerate(paths):
        alone = send(way, [(17 * rank, size) for size in sizes])
        assert [int(times[rank]) for times in together] == [sent.arrival for sent in alone]


@given(
    st.lists(st.lists(hop, min_size=2, max_size=6), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 300)), min_size=1, max_size=8),
    st.data(),
)
def test_all_later_hops_at_once_take_as_long_as_one_by_one(
    ways: list[list[tuple[int, int]]], messages: list[tuple[int, int]], data: st.DataObject
) -> None:
    messages = sorted(messages)
    paths = [path(hops) for hops in ways]
    first = data.draw(st.integers(1, min(len(hops) for hops in ways) - 1))
    far = FarHops(paths, first)
    pes = [PeTimeline(0, 0, later) for _ in paths]
    free = [[0] * (first - 1) for _ in paths]
    arrivals = []
    for ready, size in messages:
        begins: list[tuple[int, int]] = []

        def note(start: int, end: int, begins: list[tuple[int, int]] = begins) -> int:
            begins.append((start, end))
            return 0

        for pe, way, busy in zip(pes, paths, free, strict=True):
            latencies = [hop.latency for hop in way.hops]
            transmit(pe, ready, way.times(size)[:first], latencies, busy, later, note)
        start, end = np.array(begins).T
        arrivals.append(far.pass_on(far.times(size), start, end).tolist())
    one_by_one = [[sent.arrival for sent in send(way, messages)] for way in paths]
    assert np.array(arrivals).T.tolist() == one_by_one
