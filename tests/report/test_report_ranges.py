"""Where the time went by range: against giving out one picosecond after another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.errors import UsageError
from kernbench.report import RangeBreakdown, breakdown, mean_of_ranks, range_breakdown
from kernbench.report.ranges import OUTSIDE
from kernbench.sim_engine.op_log import Category, OpLog, Record

COMPUTE, COMMUNICATION = {"compute", "kernel"}, {"collective", "send", "recv"}
PATHS = [(), ("a",), ("b",), ("a", "b"), ("b", "a")]
FIELDS = ("compute_ps", "exposed_ps", "copy_ps", "idle_ps", "host_ps")


@st.composite
def records(draw: st.DrawFn) -> list[Record]:
    """Returns records no two of which begin at once on one rank: it is clear who is first."""
    categories: st.SearchStrategy[Category] = st.sampled_from(
        ["compute", "copy", "collective", "kernel", "send", "recv", "event", "range"]
    )
    tracks = st.sampled_from(["stream 0", "stream 0.1", "pe3.gemm", "dma.send"])
    found = []
    for rank in range(-1, 2):
        for start in draw(st.lists(st.integers(12, 40), unique=True, max_size=6)):
            category = draw(categories)
            track = "host" if category == "range" else draw(tracks)
            issued = start - draw(st.integers(0, 6))
            end = start + draw(st.integers(0, 10))
            ranges = draw(st.sampled_from(PATHS))
            found.append(
                Record("op", category, rank, track, issued, start, end, None, {}, 0, ranges)
            )
    return draw(st.permutations(found))


def log_of(found: list[Record]) -> OpLog:
    log = OpLog("full")
    for record in found:
        log.add(record)
    return log


def _kind(record: Record) -> str | None:
    if not record.track.startswith("stream"):
        return None
    if record.category in COMMUNICATION:
        return "exposed_ps"
    if record.category in COMPUTE:
        return "compute_ps"
    return "copy_ps" if record.category == "copy" else None


def count(
    found: list[Record], dispatch: int, within: tuple[str, ...]
) -> dict[int, dict[str, dict[str, int]]]:
    """Gives out instants one by one: by rank, range and kind, what is not 0."""
    depth = len(within)
    mine = [r for r in found if r.category != "range" and r.ranges[:depth] == within]
    name = {id(r): (*r.ranges, *[OUTSIDE] * (depth + 1))[depth] for r in mine}
    if not mine:
        return {}
    first = min(r.issued - dispatch for r in mine)
    last = max(r.end for r in mine)
    rows: dict[int, dict[str, dict[str, int]]] = {}

    def add(rank: int, row: str, field: str) -> None:
        kinds = rows.setdefault(rank, {}).setdefault(row, {})
        kinds[field] = kinds.get(field, 0) + 1

    for rank in {r.rank for r in mine}:
        rows[rank] = {}
        own = [r for r in mine if r.rank == rank]
        for time in range(first, last):
            for row in {name[id(r)] for r in own if r.issued - dispatch <= time < r.issued}:
                add(rank, row, "host_ps")
            now = [r for r in own if r.start <= time < r.end]
            for kind in ("compute_ps", "exposed_ps", "copy_ps"):
                busy = sorted((r for r in now if _kind(r) == kind), key=lambda r: r.start)
                if busy:
                    add(rank, name[id(busy[0])], kind)
                    break
            else:
                coming = [r for r in own if _kind(r) and r.start > time and r.end > r.start]
                nearest = min(coming, key=lambda r: r.start, default=None)
                add(rank, OUTSIDE if nearest is None else name[id(nearest)], "idle_ps")
    return rows


@given(records(), st.integers(0, 5), st.sampled_from([(), ("a",), ("b", "a"), ("c",)]))
def test_every_picosecond_goes_to_one_range(
    found: list[Record], dispatch: int, within: tuple[str, ...]
) -> None:
    rows = range_breakdown(log_of(found), dispatch, within)
    shown: dict[int, dict[str, dict[str, int]]] = {row.rank: {} for row in rows}
    for row in rows:
        kinds = {field: getattr(row, field) for field in FIELDS if getattr(row, field)}
        if kinds:
            shown[row.rank][row.name] = kinds
    expected = count(found, dispatch, within)
    # A rank whose records take no time, in a span without any, has no row.
    assert shown == {rank: kinds for rank, kinds in expected.items() if kinds or rank in shown}
    sums: dict[int, int] = {}
    for row in rows:
        sums[row.rank] = sums.get(row.rank, 0) + row.device_ps
    assert len(set(sums.values())) <= 1


@given(records(), st.integers(0, 5))
def test_ranges_of_a_rank_add_up_to_the_rank(found: list[Record], dispatch: int) -> None:
    log = log_of(found)
    rows = range_breakdown(log, dispatch)
    for whole in breakdown(log, dispatch):
        own = [row for row in rows if row.rank == whole.rank]
        assert sum(row.compute_ps for row in own) == whole.compute_ps
        assert sum(row.exposed_ps for row in own) == whole.exposed_ps
        assert sum(row.copy_ps for row in own) == whole.copy_ps
        assert sum(row.idle_ps for row in own) == whole.idle_ps


def _record(category: Category, start: int, end: int, name: str, issued: int = 0) -> Record:
    return Record("op", category, 0, "stream 0", issued, start, end, None, {}, 0, (name,))


def test_a_step_of_two_layers_by_hand() -> None:
    """Layer 1's all-reduce is hidden by 20 of layer 0's kernel; then 5 of its own are exposed."""
    log = log_of(
        [
            _record("compute", 10, 30, "layer 1", issued=10),
            _record("collective", 30, 60, "layer 1", issued=12),
            _record("compute", 35, 55, "layer 0", issued=14),
            _record("copy", 70, 80, "layer 0", issued=70),
        ]
    )
    assert range_breakdown(log, 2) == [
        RangeBreakdown(0, "layer 1", compute_ps=20, exposed_ps=10, idle_ps=2, host_ps=4),
        RangeBreakdown(0, "layer 0", compute_ps=20, copy_ps=10, idle_ps=10, host_ps=4),
    ]


def test_ranges_are_looked_through() -> None:
    def record(start: int, *ranges: str) -> Record:
        return Record("op", "compute", 0, "stream 0", start, start, start + 5, ranges=ranges)

    log = log_of(
        [
            record(0, "step", "pass 0", "forward", "layer"),
            record(5, "step", "layer"),
            record(10, "step", "pass 1", "layer", "forward"),
            record(15, "step", "pass 1"),
            record(20, "step", "pass 10"),
            record(25, "step", "forward 2", "layer"),
        ]
    )
    rows = range_breakdown(log, 0, ["step"], ["pass ", "forward"])
    assert rows == [
        RangeBreakdown(0, "layer", compute_ps=20),
        RangeBreakdown(0, OUTSIDE, compute_ps=10),
    ]
    # A beginning ends where a word or a number does.
    rows = range_breakdown(log, 0, ["step"], ["pass 0", "pass 1", "for", "forward"])
    assert rows == [
        RangeBreakdown(0, "layer", compute_ps=20),
        RangeBreakdown(0, "pass 10", compute_ps=5),
        RangeBreakdown(0, OUTSIDE, compute_ps=5),
    ]
    names = [row.name for row in range_breakdown(log, 0, ["step"])]
    assert names == ["pass 0", "layer", "pass 1", "pass 10", "forward 2"]


def test_a_mean_counts_ranks_without_the_range() -> None:
    rows = [
        RangeBreakdown(0, "a", compute_ps=10, host_ps=1),
        RangeBreakdown(1, "b", idle_ps=3),
        RangeBreakdown(1, "a", compute_ps=20),
    ]
    assert mean_of_ranks(rows) == [
        RangeBreakdown(-1, "a", compute_ps=15, host_ps=0),
        RangeBreakdown(-1, "b", idle_ps=2),
    ]


def test_no_records_give_no_rows() -> None:
    assert range_breakdown(OpLog("full"), 1) == []
    assert mean_of_ranks([]) == []
    with pytest.raises(UsageError, match="a breakdown by range needs every record"):
        range_breakdown(OpLog("summary"), 0)
