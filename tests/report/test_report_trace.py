"""Traces: Kineto's keys, read as Perfetto reads them."""

import json
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.errors import UsageError, call_site
from kernbench.report import write_trace
from kernbench.report.trace import trace_lines
from kernbench.routing import Load
from kernbench.sim_engine.op_log import Category, OpLog, Record
from kernbench.topology import load_topology

SITE = call_site()
Event = dict[str, Any]


TOPOLOGY = load_topology("sip8").topology_obj
ROUTES = [[link.name for link in TOPOLOGY.sip_route(rank, (rank + 1) % 4)] for rank in range(4)]


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """Logs of four ranks and main: anything may overlap anything."""
    categories: st.SearchStrategy[Category] = st.sampled_from(
        ["compute", "copy", "collective", "kernel", "host", "event"]
    )
    times, lengths = st.integers(2_000, 9_000), st.sampled_from([0, 0, 1, 400, 600, 1_000, 3_500])
    found = []
    for _ in range(draw(st.integers(0, 10))):
        category = draw(categories)
        tracks = ["python"] if category == "host" else ["stream 0", "stream 0.1", "pe0.gemm"]
        start = draw(times)
        end = start + draw(lengths)
        rank, track = draw(st.integers(-1, 3)), draw(st.sampled_from(tracks))
        issued = start - draw(st.integers(0, 1_000))
        found.append(Record("op", category, rank, track, issued, start, end, SITE))
    for flow in range(1, draw(st.integers(0, 8)) + 1):
        rank, start = draw(st.integers(0, 3)), draw(times)
        end = start + draw(lengths)
        arrival = start + draw(st.integers(0, 2_000))
        args = {"bytes": draw(st.integers(0, 999)), "links": ROUTES[rank]}
        found.append(Record("send", "send", rank, "dma.send", 2_000, start, end, SITE, args, flow))
        found.append(
            Record(
                "recv", "recv", (rank + 1) % 4, "dma.recv", 2_000, arrival,
                arrival + draw(lengths), SITE, {}, flow,
            )
        )  # fmt: skip
    return found


def events_of(records: Sequence[Record], dispatch_ps: int = 0) -> list[Event]:
    document = json.loads("\n".join(trace_lines(records, TOPOLOGY, dispatch_ps=dispatch_ps)))
    found: list[Event] = document["traceEvents"]
    return found


def perfetto(events: list[Event]) -> tuple[list[Event], list[tuple[Event, Event]]]:
    """Returns slices and arrows as Perfetto's trace processor imports them.

    Times become whole nanoseconds, `ts` and `dur` apart; events are sorted by time, stably; a slice
    that overlaps an open one is dropped; an arrow binds to the slice opened last on its thread.
    """
    events = [{**event, "ts": round(event["ts"] * 1000.0)} for event in events]
    stacks: dict[tuple[int, int], list[Event]] = defaultdict(list)
    sources: dict[tuple[int, str, str], Event] = {}
    slices, arrows = [], []
    for event in sorted(events, key=lambda event: event["ts"]):
        stack = stacks[event["pid"], event.get("tid", 0)]
        if event["ph"] == "X":
            ts, dur = event["ts"], round(event["dur"] * 1000.0)
            while stack:
                end = stack[-1]["ts"] + stack[-1]["dur"]
                if end < ts or (end == ts and (stack[-1]["dur"] or dur)):
                    stack.pop()
                    continue
                break
            assert all(ts + dur <= open_["ts"] + open_["dur"] for open_ in stack), "dropped"
            stack.append({**event, "dur": dur, "depth": len(stack)})
            slices.append(stack[-1])
        elif event["ph"] == "s":
            identity = event["id"], event["cat"], event["name"]
            assert identity not in sources
            sources[identity] = stack[-1]
        elif event["ph"] == "f":
            assert event["bp"] == "e"
            source = sources.pop((event["id"], event["cat"], event["name"]))
            arrows.append((source, stack[-1]))
    assert not sources
    return slices, arrows


@given(logs(), st.sampled_from([0, 700]))
def test_perfetto_keeps_every_slice_and_arrow(records: list[Record], dispatch: int) -> None:
    events = events_of(records, dispatch)
    slices, arrows = perfetto(events)
    assert len(slices) == sum(event["ph"] == "X" for event in events)
    if not dispatch:
        assert len(slices) == len(records)
    for slice_ in slices:
        args = slice_["args"]
        assert slice_["ts"] == args["start_ps"] // 1000
        assert slice_["ts"] + slice_["dur"] == args["end_ps"] // 1000
    messages = [(a, b) for a, b in arrows if "recv" in b["name"] and a["cat"] == "gpu_memcpy"]
    launches = [(a, b) for a, b in arrows if a["cat"] == "cpu_op"]
    assert len(messages) == sum(record.category == "send" for record in records)
    assert len(messages) + len(launches) == len(arrows)
    assert sorted(
        (a["args"]["start_ps"], a["pid"], b["args"]["start_ps"], b["pid"]) for a, b in messages
    ) == sorted(
        (send.start, send.rank + 1, recv.start, recv.rank + 1)
        for send in records
        for recv in records
        if send.category == "send" and recv.category == "recv" and send.flow == recv.flow
    )
    for launch, command in launches:
        assert launch["args"]["correlation"] == command["args"]["correlation"]
        assert launch["args"]["end_ps"] == command["args"]["issued_ps"]
        assert launch["pid"] == command["pid"]


@given(logs())
def test_devices_show_what_they_do_at_once_side_by_side(records: list[Record]) -> None:
    by_thread: dict[int, list[Event]] = defaultdict(list)
    for event in events_of(records):
        if event["ph"] == "X":
            by_thread[event["tid"]].append(event)
    for events in by_thread.values():
        if events[0]["cat"] != "cpu_op":
            for before, after in pairwise(event["args"] for event in events):
                assert before["end_ps"] <= after["start_ps"]


@given(logs())
def test_counters_come_back_to_zero(records: list[Record]) -> None:
    counters: dict[str, list[Event]] = defaultdict(list)
    for event in events_of(records):
        if event["ph"] == "C":
            counters[event["name"]].append(event)
    used = {
        name
        for record in records
        if record.category == "send" and record.end > record.start and record.args["bytes"]
        for name in record.args["links"]
    }
    assert set(counters) == used
    for events in counters.values():
        values = [event["args"]["GB/s"] for event in events]
        assert min(values) == values[-1] == 0
        assert [event["ts"] for event in events] == sorted(event["ts"] for event in events)


@given(logs(), st.randoms(use_true_random=False))
def test_the_order_of_set_up_does_not_show(records: list[Record], rng: random.Random) -> None:
    text = "\n".join(trace_lines(records, TOPOLOGY, dispatch_ps=500))
    flows = list(range(1, 20))
    rng.shuffle(flows)
    shuffled = [_with_flow(record, flows[record.flow] if record.flow else 0) for record in records]
    rng.shuffle(shuffled)
    assert "\n".join(trace_lines(shuffled, TOPOLOGY, dispatch_ps=500)) == text


def _with_flow(r: Record, flow: int) -> Record:
    return Record(
        r.name, r.category, r.rank, r.track, r.issued, r.start, r.end, r.site, r.args, flow
    )


def small_log() -> OpLog:
    log = OpLog("full")
    link = "sip0->sip1"
    for record in (
        Record("aten::mm", "compute", 0, "stream 0", 2_000_000, 2_000_000, 5_000_400, SITE),
        Record("all_reduce", "collective", 0, "stream 0", 4_000_000, 5_000_400, 9_000_000, SITE),
        Record(
            "send to 1", "send", 0, "dma.send", 4_000_000, 6_000_000, 7_000_000, SITE,
            {"bytes": 65536, "links": [link]}, 1,
        ),
        Record(
            "recv from 0", "recv", 1, "dma.recv", 4_000_000, 6_500_000, 7_500_000, None,
            {"bytes": 65536}, 1,
        ),
        Record("load", "copy", 1, "pe10.dma.load", 0, 1_000, 3_000),
        Record("load", "copy", 1, "pe2.dma.load", 0, 1_000, 3_000),
        Record("load", "copy", 1, "pe2.dma.load", 0, 2_000, 4_000),
        Record("h2d", "copy", -1, "stream 0", 0, 0, 1_000),
    ):  # fmt: skip
        log.add(record)
    return log


def lines_of(phases: str) -> Iterator[str]:
    for line in trace_lines(small_log().records, TOPOLOGY):
        event = line.rstrip(",")
        if event.startswith('{"ph"') and json.loads(event)["ph"] in phases:
            yield event


def test_a_trace_has_kinetos_keys() -> None:
    assert SITE is not None
    site = f"{SITE.file}:{SITE.line}"
    lines = [*lines_of("Xsf")]
    assert lines[5:] == [
        '{"ph":"X","cat":"kernel","name":"all_reduce","pid":1,"tid":5,"ts":5.000,"dur":4.000,'
        '"args":{"stream":0,"device":0,"correlation":3,"start_ps":5000400,"end_ps":9000000,'
        f'"issued_ps":4000000,"call_site":"{site}"}}}}',
        '{"ph":"X","cat":"gpu_memcpy","name":"send to 1","pid":1,"tid":6,"ts":6.000,"dur":1.000,'
        '"args":{"bytes":65536,"links":["sip0->sip1"],"stream":1,"device":0,"correlation":3,'
        f'"start_ps":6000000,"end_ps":7000000,"issued_ps":4000000,"call_site":"{site}"}}}}',
        '{"ph":"s","id":1,"cat":"message","name":"message","pid":1,"tid":6,"ts":6.000}',
        '{"ph":"X","cat":"gpu_memcpy","name":"recv from 0","pid":2,"tid":7,"ts":6.500,"dur":1.000,'
        '"args":{"bytes":65536,"stream":0,"device":1,"correlation":5,'
        '"start_ps":6500000,"end_ps":7500000,"issued_ps":4000000}}',
        '{"ph":"f","id":1,"cat":"message","name":"message","pid":2,"tid":7,"ts":6.500,"bp":"e"}',
    ]


def test_processes_are_ranks_and_threads_are_tracks() -> None:
    names: dict[tuple[int, int], str] = {}
    order: dict[tuple[int, int], int] = {}
    for event in map(json.loads, lines_of("M")):
        target = order if event["name"].endswith("sort_index") else names
        target[event["pid"], event["tid"]] = next(iter(event["args"].values()))
    assert names.keys() == order.keys()
    assert [names[key] for key in sorted(names, key=lambda key: (key[1] > 0, order[key]))] == [
        "main",
        "rank 0 (sip0)",
        "rank 1 (sip1)",
        "links",
        "default stream",
        "default stream",
        "dma.send",
        "dma.recv",
        "pe2.dma.load",
        "pe2.dma.load (2)",
        "pe10.dma.load",
    ]


def test_a_counter_follows_the_message_along_its_route() -> None:
    assert [*lines_of("C")] == [
        '{"ph":"C","name":"sip0->sip1","pid":3,"tid":0,"ts":6.000,"args":{"GB/s":65.536000000}}',
        '{"ph":"C","name":"sip0->sip1","pid":3,"tid":0,"ts":7.000,"args":{"GB/s":0.000000000}}',
    ]
    first, second = TOPOLOGY.sip_route(0, 2)[:2]
    args = {"bytes": 1000, "links": [first.name, second.name]}
    send = Record("send", "send", 0, "dma.send", 0, 0, 10**6, None, args)
    counters = [event for event in events_of([send]) if event["ph"] == "C"]
    later = first.latency / 10**6
    assert [event["ts"] for event in counters if event["name"] == second.name] == [later, later + 1]


def test_counters_follow_the_rows_of_a_rank_and_of_its_experts(tmp_path: Path) -> None:
    log = small_log()
    of_layer = Load(1, 3, 0, "forward", 3_000_000, (0, 1), 7, (5, 2), 0, 0, 64)
    uneven = Load(0, -1, -1, "exchange", 2_500_000, (0, 1), 4, (), None, None, 8)
    log.loads = [of_layer._replace(step=1, time=6_000_000, rows=2, by_expert=(0, 2)), of_layer]
    log.loads.append(uneven)
    write_trace(log, TOPOLOGY, tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = {
        event["pid"]: event["args"]["name"] for event in events if "process_name" in event["name"]
    }
    experts = "rows of moe 3, by the rank's experts"
    assert [
        (names[event["pid"]], event["name"], event["ts"], event["args"])
        for event in events
        if event["ph"] == "C" and names[event["pid"]] != "links"
    ] == [
        ("rank 0 (sip0)", "rows of uneven exchanges", 2.5, {"rows": 4}),
        ("rank 1 (sip1)", "rows of moe 3", 3.0, {"rows": 7}),
        ("rank 1 (sip1)", experts, 3.0, {"expert 0": 5, "expert 1": 2}),
        ("rank 1 (sip1)", "rows of moe 3", 6.0, {"rows": 2}),
        ("rank 1 (sip1)", experts, 6.0, {"expert 0": 0, "expert 1": 2}),
    ]


def test_a_launch_shows_on_the_host() -> None:
    """A command alone is launched: the parts of it that engines do are not."""
    records = small_log().records
    slices, arrows = perfetto(events_of(records, dispatch_ps=1_000_000))
    hosts = [slice_ for slice_ in slices if slice_["cat"] == "cpu_op"]
    assert sorted(host["name"] for host in hosts) == ["all_reduce", "aten::mm", "h2d"]
    assert [(a["name"], b["name"]) for a, b in arrows if b["name"] == "all_reduce"] == [
        ("all_reduce", "all_reduce")
    ]
    (launch,) = (host for host in hosts if host["name"] == "all_reduce")
    assert (launch["ts"], launch["dur"]) == (3_000, 1_000)


def test_calls_nest() -> None:
    records = [
        Record("inner", "host", 0, "python", 0, 1_000, 2_000),
        Record("outer", "host", 0, "python", 0, 1_000, 9_000),
    ]
    slices, _ = perfetto(events_of(records))
    assert [(slice_["name"], slice_["depth"]) for slice_ in slices] == [("outer", 0), ("inner", 1)]


def test_a_rank_may_be_on_another_sip() -> None:
    text = "\n".join(trace_lines(small_log().records, TOPOLOGY, sips={1: 5}))
    assert '"rank 1 (sip5)"' in text
    assert '"device":5' in text


def test_a_file_is_the_same_each_time(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.json", "b.json", "a.json.gz", "b.json.gz")]
    for path in paths:
        write_trace(small_log(), TOPOLOGY, path)
    a, b, packed_a, packed_b = (path.read_bytes() for path in paths)
    assert a == b
    assert packed_a == packed_b
    assert len(packed_a) < len(a)
    document = json.loads(a)
    assert {key: value for key, value in document.items() if key != "traceEvents"} == {
        "schemaVersion": 1,
        "machine": "sip8",
        "clock": "simulated",
        "displayTimeUnit": "ns",
        "baseTimeNanoseconds": 0,
    }


def test_an_empty_trace_is_a_trace() -> None:
    assert events_of([]) == []


def test_a_log_without_records_writes_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a trace needs every record"):
        write_trace(OpLog("summary"), TOPOLOGY, tmp_path / "t.json")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("track", ["pe0.gemm", "pe12.math", "dma.send", "dma1.recv", "dma12.send"])
def test_what_engines_do_is_no_launch_of_the_host(track: str) -> None:
    """A second channel has engines of its own, which work for the same command."""
    category: Category = "send" if track.endswith("send") else "compute"
    command = Record("all_reduce", "collective", 0, "stream 0", 3_000, 3_000, 9_000, SITE)
    part = Record("part", category, 0, track, 3_000, 4_000, 5_000, SITE, {"bytes": 4})
    launched = [e["name"] for e in events_of([command, part], 1_000) if e.get("cat") == "cpu_op"]
    assert launched == ["all_reduce"]
