"""Where the time of each rank went: against counting one picosecond after another."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import kernbench.torch as torch
from kernbench.errors import UsageError
from kernbench.report import RankBreakdown, breakdown, print_breakdown
from kernbench.report.intervals import difference, length, union
from kernbench.sim_engine.op_log import Category, OpLog, Record
from kernbench.testing import Kernbench

COMPUTE, COMMUNICATION = {"compute", "kernel"}, {"collective", "send", "recv"}

intervals = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda pair: (pair[0], sum(pair))),
    max_size=12,
)


def instants(of: list[tuple[int, int]]) -> set[int]:
    return {time for start, end in of for time in range(start, end)}


@st.composite
def records(draw: st.DrawFn) -> list[Record]:
    categories: st.SearchStrategy[Category] = st.sampled_from(
        ["compute", "copy", "collective", "kernel", "send", "recv", "host", "event"]
    )
    tracks = st.sampled_from(["stream 0", "stream 0.1", "pe3.gemm", "pe0.dma.load", "dma.send"])
    found = []
    for _ in range(draw(st.integers(0, 12))):
        issued = draw(st.integers(5, 20))
        start = issued + draw(st.integers(0, 10))
        end = start + draw(st.integers(0, 8))
        rank = draw(st.integers(-1, 2))
        found.append(Record("op", draw(categories), rank, draw(tracks), issued, start, end))
    return found


def log_of(found: list[Record]) -> OpLog:
    log = OpLog("full")
    for record in found:
        log.add(record)
    return log


def count(found: list[Record], dispatch: int) -> list[RankBreakdown]:
    """Counts instants one by one."""
    host, kernel, message, copy = (set[tuple[int, int]]() for _ in range(4))
    first, last = 10**9, 0
    for record in found:
        times = (record.start, record.end)
        if record.category != "host":
            times = (record.issued - dispatch, record.issued)
        first, last = min(first, times[0]), max(last, record.end)
        host |= {(record.rank, time) for time in range(*times)}
        covered = {(record.rank, time) for time in range(record.start, record.end)}
        on_stream = record.track.startswith("stream")
        if record.category in COMMUNICATION and on_stream:
            message |= covered
        elif record.category in COMPUTE and on_stream:
            kernel |= covered
        elif record.category == "copy" and on_stream:
            copy |= covered
    rows = []
    for rank in sorted({record.rank for record in found}):
        span = [(rank, time) for time in range(first, last)]
        rows.append(
            RankBreakdown(
                rank,
                len(span),
                sum(at in host for at in span),
                sum(at in kernel for at in span),
                sum(at in message for at in span),
                sum(at in message and at not in kernel for at in span),
                sum(at in copy and at not in kernel and at not in message for at in span),
                sum(at not in kernel | message | copy for at in span),
                sum(
                    at in host and at not in kernel | message | copy and _waits_for_host(found, *at)
                    for at in span
                ),
            )
        )
    return rows


def _waits_for_host(found: list[Record], rank: int, time: int) -> bool:
    """Whether the next work that the rank's streams begin has not been issued yet."""
    work = [
        (record.start, record.issued)
        for record in found
        if record.rank == rank
        and record.track.startswith("stream")
        and record.category in COMPUTE | COMMUNICATION | {"copy"}
        and record.start < record.end
        and record.start > time
    ]
    return bool(work) and min(work)[1] > time


@given(intervals, intervals)
def test_interval_sets_are_sets(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    a, b = union(left), union(right)
    assert instants(a) == instants(left)
    assert length(a) == len(instants(left))
    assert instants(difference(a, b)) == instants(left) - instants(right)
    for merged in (a, difference(a, b)):
        assert merged == sorted(merged)
        assert all(start < end for start, end in merged)


@given(records(), st.integers(0, 5))
def test_a_breakdown_counts_every_picosecond_once(found: list[Record], dispatch: int) -> None:
    rows = breakdown(log_of(found), dispatch)
    assert rows == count(found, dispatch)
    for row in rows:
        assert row.compute_ps + row.exposed_ps + row.copy_ps + row.idle_ps == row.span_ps
        assert row.exposed_ps <= row.communication_ps
        assert row.host_ps <= row.span_ps
        assert row.exposed_host_ps <= min(row.idle_ps, row.host_ps)


def test_an_empty_log_has_no_rows() -> None:
    assert breakdown(OpLog("full"), 1) == []


def test_what_engines_do_in_a_collective_hides_no_communication() -> None:
    log = log_of(
        [
            Record("all_reduce", "collective", 0, "stream 0", 0, 0, 100),
            Record("add", "compute", 0, "pe0.math", 0, 40, 60),
        ]
    )
    assert breakdown(log, 0)[0].exposed_ps == 100


def test_what_a_peer_sends_before_a_rank_has_begun_is_no_communication_of_the_rank() -> None:
    log = log_of(
        [
            Record("all_reduce", "collective", 0, "stream 0", 0, 0, 100),
            Record("all_reduce", "collective", 1, "stream 1", 0, 50, 100),
            Record("recv from 0", "recv", 1, "dma.recv", 0, 20, 60),
            Record("recv from 0", "recv", 1, "dma1.recv", 0, 30, 60),
        ]
    )
    row = breakdown(log, 0)[1]
    assert (row.communication_ps, row.exposed_ps, row.idle_ps) == (50, 50, 50)


def test_a_device_waits_for_its_host_until_the_command_is_issued() -> None:
    log = log_of(
        [
            Record("mm", "compute", 0, "stream 0", 10, 10, 30),
            Record("all_reduce", "collective", 0, "stream 0", 20, 30, 50),
            Record("mm", "compute", 0, "stream 0", 60, 90, 95),  # waited for something else
            Record("mm", "compute", 0, "stream 0", 70, 95, 100),
            Record("print", "host", 0, "host", 100, 100, 200),
        ]
    )
    (row,) = breakdown(log, 10)
    assert (row.span_ps, row.idle_ps) == (200, 150)
    assert row.exposed_host_ps == 10 + 10  # before the first command, and from 50 to 60


def test_a_program_that_the_host_bounds_shows_it(kernbench: Kernbench) -> None:
    def worker(size: int) -> RankBreakdown:
        def rank_main(rank: int) -> None:
            del rank
            x = torch.ones(size, device="cuda")
            for _ in range(50):
                x = x * 2

        ctx = kernbench.spawn(rank_main, nprocs=1, data=False, record="full")
        (row,) = breakdown(ctx.engine.op_log, ctx.engine.dispatch_ps)
        return row

    small, large = worker(4), worker(1 << 24)
    assert small.exposed_host_ps > 0.9 * small.idle_ps > 0.4 * small.span_ps
    assert large.exposed_host_ps < 0.05 * large.span_ps


def test_a_log_without_records_is_refused() -> None:
    with pytest.raises(UsageError, match="a breakdown needs every record") as caught:
        breakdown(OpLog("summary"), 0)
    assert str(caught.value) == (
        "a breakdown needs every record, but this run kept record='summary'\n"
        "  hint: run with record='full'"
    )


def test_the_table_shows_shares_of_the_span() -> None:
    log = log_of(
        [
            Record("mm", "compute", 0, "stream 0", 1_000_000, 1_000_000, 4_000_000),
            Record("all_reduce", "collective", 0, "stream 0", 2_000_000, 3_000_000, 5_000_000),
            Record("h2d", "copy", -1, "stream 0", 1_000_000, 1_000_000, 2_000_000),
        ]
    )
    text = io.StringIO()
    print_breakdown(breakdown(log, 1_000_000), Console(file=text, width=120))
    assert [" ".join(line.split()) for line in text.getvalue().splitlines() if "us" in line] == [
        "Simulated time per rank, of 5 us",
        "│ main │ 0 ps 0% │ 0 ps 0% │ 1 us 20% │ 4 us 80% │ 0 ps 0% │ 1 us 20% │ 1 us 20% │",
        "│ 0 │ 3 us 60% │ 1 us 20% │ 0 ps 0% │ 1 us 20% │ 2 us 40% │ 2 us 40% │ 1 us 20% │",
    ]


def test_a_table_without_time_has_no_shares() -> None:
    text = io.StringIO()
    rows = breakdown(log_of([Record("mm", "compute", 0, "stream 0", 0, 0, 0)]), 0)
    print_breakdown(rows, Console(file=text, width=100))
    print_breakdown([], Console(file=text, width=100))
    assert "%" not in text.getvalue()
