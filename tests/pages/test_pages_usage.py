"""Utilisation and memory over time: what is drawn adds up to what the log says."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_reader import parts

from kernbench.pages.bins import Bins
from kernbench.pages.page import Bars, Note, Page, Strips
from kernbench.pages.runs import Run, of_run
from kernbench.pages.usage import (
    Ranks,
    busy_times,
    engine_charts,
    link_charts,
    memory_charts,
    span_of,
)
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.op_log import Category, MemoryChange, OpLog, Record
from kernbench.topology import Topology, load_topology
from kernbench.units import format_bytes

TOPOLOGY: Topology = load_topology("sip8").topology_obj
RANKS = Ranks(TOPOLOGY, 5, {})


@st.composite
def records(draw: st.DrawFn) -> list[Record]:
    kinds: st.SearchStrategy[tuple[Category, str]] = st.sampled_from(
        [
            ("compute", "stream 0"),
            ("kernel", "stream 0"),
            ("copy", "stream 0.1"),
            ("collective", "communication 0 WORLD"),
            ("host", "host"),
            ("range", "host"),
            ("compute", "pe3.gemm"),
            ("compute", "pe12.gemm"),
            ("copy", "pe0.dma.load"),
            ("send", "dma.send"),
            ("send", "dma1.send"),
        ]
    )
    found = []
    for _ in range(draw(st.integers(1, 12))):
        issued = draw(st.integers(5, 30))
        start = issued + draw(st.integers(0, 10))
        category, track = draw(kinds)
        end = start + draw(st.integers(0, 40))
        found.append(Record("op", category, draw(st.integers(-1, 1)), track, issued, start, end))
    return found


KINDS = {
    "kernels": ({"compute", "kernel"}, ("stream",)),
    "communication": ({"collective", "send", "recv"}, ("communication",)),
    "copies": ({"copy"}, ("stream",)),
}


@given(records())
def test_busy_times_add_up_to_what_was_busy(found: list[Record]) -> None:
    start, end = span_of(found, 5)
    if start >= end:
        return
    busy = busy_times(found, RANKS, Bins(start, end, 7))
    seen: dict[tuple[str, int], set[tuple[str, int]]] = {}
    for record in found:
        if record.category == "range":
            continue
        engine = record.track.startswith(("pe", "dma"))
        if not engine:
            host = (record.issued - 5, record.issued)
            times = (record.start, record.end) if record.category == "host" else host
            seen.setdefault(("host", record.rank), set()).update(("", t) for t in range(*times))
        for kind, (categories, tracks) in KINDS.items():
            if record.category in categories and record.track.startswith(tracks):
                covered = seen.setdefault((kind, record.rank), set())
                covered.update(("", time) for time in range(record.start, record.end))
        if engine:
            base, _, rest = record.track.partition(".")
            kind = f"{base.rstrip('0123456789')}.{rest}"
            covered = seen.setdefault((kind, record.rank), set())
            covered.update((record.track, time) for time in range(record.start, record.end))
    assert {
        (kind, rank): sum(sums)
        for kind, by_rank in busy.items()
        for rank, (sums, _) in by_rank.items()
    } == {key: len(times) for key, times in seen.items()}


def test_a_share_is_of_all_engines_of_the_kind() -> None:
    pes = TOPOLOGY.num_pes(0)
    found = [Record("dot", "compute", 0, f"pe{n}.gemm", 5, 100, 200) for n in range(pes // 2)]
    found.append(Record("kernel", "kernel", 0, "stream 0", 5, 100, 200))
    found += [Record("send", "send", 0, "dma.send", 5, 100, 200)]
    found += [Record("send", "send", 0, "dma1.send", 5, 100, 150)]
    charts = [c for c in engine_charts(found, RANKS, Bins(0, 200, 2)) if isinstance(c, Strips)]
    shown = {strip.label: (strip.values, strip.said) for chart in charts for strip in chart.strips}
    assert shown == {
        "host": ([50, 0], "mean 2.5%, peak 5.0%"),
        "kernels": ([0, 1000], "mean 50%, peak 100%"),
        "PE gemm": ([0, 500], "mean 25%, peak 50%"),
        "dma.send": ([0, 750], "mean 38%, peak 75%"),
    }


def test_the_height_of_a_chart_follows_its_peak() -> None:
    found = [Record("dot", "compute", 0, "pe0.gemm", 0, 0, 10)]
    (chart,) = (c for c in engine_charts(found, RANKS, Bins(0, 100, 2)) if isinstance(c, Strips))
    share = 200 // TOPOLOGY.num_pes(0)
    assert chart.full == 5
    assert chart.strips[0].values == [share * 20, 0]


def test_links_carry_what_was_sent() -> None:
    first, second = TOPOLOGY.links[:2]
    rate = first.bandwidth.per_second
    took = 10**6
    nbytes = rate * took // 10**12 // 2  # half of the bandwidth
    names = [first.name, second.name]
    found = [
        Record("s", "send", 0, "dma.send", 0, 0, took, args={"bytes": nbytes, "links": names}),
        Record("s", "send", 0, "dma.send", 0, 5, 5, args={"bytes": nbytes, "links": names}),
        Record("r", "recv", 1, "dma.recv", 0, 0, took, args={"bytes": nbytes}),
    ]
    mean, each = (c for c in link_charts(found, TOPOLOGY, (0, took)) if isinstance(c, Strips))
    assert mean.strips[0].label == "mean of 2"
    assert [strip.label for strip in each.strips] == names
    for strip, late in zip(each.strips, (0, first.latency), strict=True):
        assert max(strip.values) in {998, 999, 1000}, "half of the bandwidth, in a chart of 50%"
        # The link begins to carry when the first byte reaches it.
        begin = late * len(strip.values) // (took + first.latency)
        assert not any(strip.values[:begin])
        assert strip.values[begin + 1]
        assert strip.said.startswith(f"{format_bytes(nbytes)}, mean ")
        carried = sum(strip.values) / len(strip.values) / 1000 * 0.5 * rate * each.end / 10**12
        assert carried == pytest.approx(nbytes, rel=0.01)
    assert each.full == 50
    assert each.end == took + first.latency


def test_nothing_is_shown_of_links_and_memories_that_nobody_used() -> None:
    assert link_charts([], TOPOLOGY, (0, 10)) == []
    (note,) = link_charts([], TOPOLOGY, (0, 10), 2)
    assert isinstance(note, Note)
    assert note.text.startswith("Not counted are the messages of 2 collectives")
    assert memory_charts([], TOPOLOGY, Bins(0, 10)) == []
    assert (
        memory_charts([MemoryChange(0, 1, 64), MemoryChange(0, 1, -64)][1:], TOPOLOGY, Bins(0, 9))
        == []
    )


PROGRAM = """
import kernbench.torch as torch

def worker(rank, world_size):
    with torch.cuda.nvtx.range("kept"):
        kept = torch.ones(1 << (10 + rank), device="cuda")
    for _ in range(3):
        lost = kept + kept
        del lost
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == kept.nbytes

def run(ctx):
    ctx.multiprocessing.spawn(worker, args=(2,), nprocs=2)
"""


@pytest.fixture(scope="module")
def ran() -> RuntimeContext:
    names: dict[str, Callable[[RuntimeContext], None]] = {}
    exec(compile(PROGRAM, "program.py", "exec"), names)
    with RuntimeContext(RunSpec(record="full"), quiet=True) as ctx:
        names["run"](ctx)
    return ctx


def test_the_log_tells_of_every_block_of_memory(ran: RuntimeContext) -> None:
    changes = ran.engine.op_log.memory
    for sip in (0, 1):
        mine = [change for change in changes if change.sip == sip]
        size = 4 << (10 + sip)
        assert [change.nbytes for change in mine] == [size, *[size, -size] * 3, -size]
        assert [change.time for change in mine] == sorted(change.time for change in mine)
        level = peak = 0
        for change in mine:
            level += change.nbytes
            peak = max(peak, level)
        hbm = ran.engine.devices[sip].hbm
        assert (level, peak) == (hbm.allocated, hbm.peak)
        assert mine[-1].time <= max(record.end for record in ran.engine.op_log.records)


def test_a_chart_of_memory_shows_the_peak(ran: RuntimeContext) -> None:
    page = page_of(ran)
    (chart,) = parts(page, Strips, "Memory over time")
    assert (chart.full, chart.unit) == (16 << 10, "B")
    assert [(strip.label, strip.said, max(strip.values)) for strip in chart.strips] == [
        ("sip0", "peak 8 KiB of 32 GiB", 500),
        ("sip1", "peak 16 KiB of 32 GiB", 1000),
    ]


def page_of(ctx: RuntimeContext, op_log: OpLog | None = None) -> Page:
    engine = ctx.engine
    document = {"run": "program", "spec": ctx.spec.to_json(), "results": ctx.results}
    return of_run(
        Run(
            document=document,
            op_log=op_log or engine.op_log,
            topology=engine.topology,
            dispatch_ps=engine.dispatch_ps,
        )
    )


def test_a_log_that_keeps_no_records_keeps_no_memory_either() -> None:
    with RuntimeContext(RunSpec(), quiet=True) as ctx:
        ctx.zeros(3, device="cuda")
    assert ctx.engine.op_log.memory == []


def test_the_limit_of_the_log_holds_for_memory(ran: RuntimeContext) -> None:
    log = OpLog("full")
    log.limit = 2
    for change in ran.engine.op_log.memory[:5]:
        log.add_memory(change.sip, change.nbytes)
    assert len(log.memory) == 2


def test_bars_of_ranks_add_up_to_the_span(ran: RuntimeContext) -> None:
    page = page_of(ran)
    (bars,) = parts(page, Bars, "Where the time went")
    start, end = span_of(ran.engine.op_log.records, ran.engine.dispatch_ps)
    assert {sum(bar.parts) for bar in bars.bars} == {end - start}
    (ranges,) = parts(page, Bars, "By range of the program")
    assert [bar.label for bar in ranges.bars] == ["kept", "(no range)"]
    assert sum(sum(bar.parts) for bar in ranges.bars) == end - start


def test_the_order_of_the_log_does_not_matter(ran: RuntimeContext) -> None:
    before = ran.engine.op_log
    rng = random.Random(3)
    for _ in range(5):
        log = OpLog("full")
        log.records = rng.sample(before.records, len(before.records))
        by_sip = [[c for c in before.memory if c.sip == sip] for sip in (1, 0)]
        log.memory = [change for changes in by_sip for change in changes]
        assert page_of(ran, log) == page_of(ran)
