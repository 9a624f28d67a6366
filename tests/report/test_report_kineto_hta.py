"""Traces as PyTorch's profiler writes them: read by HolisticTraceAnalysis."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from kineto_program import STEPS, worker, write
from kineto_reader import end, rank_files, start

from kernbench.report import RankBreakdown
from kernbench.testing import Kernbench

pytestmark = [pytest.mark.hta, pytest.mark.filterwarnings("ignore")]

US, NS = 1_000_000, 1_000
NEAR = 0.5  # microseconds: each of some hundred intervals is rounded to the nanosecond


@pytest.fixture(scope="module", params=["sip8", "h200x8"])
def run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Any, list[RankBreakdown]]:
    analysis = pytest.importorskip("hta.trace_analysis")
    folder = tmp_path_factory.mktemp("kineto")
    ctx = Kernbench().spawn(worker, nprocs=4, topology=request.param, data=False, record="full")
    rows = write(ctx, folder)
    with pytest.MonkeyPatch.context() as patch:
        # Else it rounds to microseconds, and loses kernels that take less.
        patch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
        traces = analysis.TraceAnalysis(trace_dir=str(folder), include_last_profiler_step=True)
    return folder, traces, rows


def by_rank(table: Any) -> dict[int, dict[str, float]]:
    return {row["rank"]: row for row in table.to_dict("records")}


def test_the_temporal_breakdown_is_the_breakdown(run: Any) -> None:
    _, traces, rows = run
    found = by_rank(traces.get_temporal_breakdown(visualize=False))
    assert sorted(found) == [row.rank for row in rows]
    for row in rows:
        of = found[row.rank]
        around = row.span_ps / US - of["kernel_time(us)"]
        for said, expected in (
            (of["compute_time(us)"], row.compute_ps),
            (of["non_compute_time(us)"], row.exposed_ps + row.copy_ps),
            (of["idle_time(us)"] + around, row.idle_ps),
        ):
            assert said == pytest.approx(expected / US, abs=NEAR)


def test_the_overlap_is_communication_that_is_not_exposed(run: Any) -> None:
    _, traces, rows = run
    found = by_rank(traces.get_comm_comp_overlap(visualize=False))
    for row in rows:
        hidden = 1 - row.exposed_ps / row.communication_ps
        assert hidden > 0.01
        assert found[row.rank]["comp_comm_overlap_pctg"] == pytest.approx(100 * hidden, abs=0.2)


def test_launches_take_the_dispatch_and_wait_as_long_as_the_log_says(run: Any) -> None:
    folder, traces, _ = run
    files = rank_files(folder)
    found = traces.get_cuda_kernel_launch_stats(ranks=list(files), visualize=False)
    for rank, file in files.items():
        stats = {int(row["correlation"]): row for row in found[rank].to_dict("records")}
        launches = file.launches()
        assert stats.keys() == launches.keys()
        for number, (call, work) in launches.items():
            for key, expected in (
                ("cpu_duration", end(call) - start(call)),
                ("gpu_duration", end(work) - start(work)),
                ("launch_delay", start(work) - end(call)),
            ):
                assert stats[number][key] == pytest.approx(expected / NS, abs=0.002)


def test_kernels_are_told_apart_by_kind_and_name(run: Any) -> None:
    folder, traces, _ = run
    _, table = traces.get_gpu_kernel_breakdown(
        visualize=False, num_kernels=1000, include_memory_kernels=True
    )
    found = {
        (row["kernel_type"], row["name"], row["rank"]): row["sum (us)"]
        for row in table.to_dict("records")
    }
    expected: dict[tuple[str, str, int], float] = defaultdict(float)
    for rank, file in rank_files(folder).items():
        for event in file.of("kernel", "gpu_memcpy"):
            kind = "COMMUNICATION" if "Collective name" in event["args"] else "COMPUTATION"
            kind = "MEMORY" if event["cat"] == "gpu_memcpy" else kind
            expected[kind, event["name"], rank] += (end(event) - start(event)) / NS
    assert found == pytest.approx(expected, abs=0.01)
    assert {kind for kind, _, _ in expected} == {"COMMUNICATION", "COMPUTATION", "MEMORY"}


def test_queues_and_annotations_are_found(run: Any) -> None:
    folder, traces, _ = run
    files = rank_files(folder)
    queues = traces.get_queue_length_time_series(ranks=list(files))
    for rank, file in files.items():
        table = queues[rank]
        # A kernel leaves the queue when it begins, as it was put in before.
        assert len(table) == 2 * len(file.launches())
        ends = table.groupby("stream").tail(1)
        assert (ends["queue_length"] == 0).all()
    names = set(traces.get_gpu_user_annotation_breakdown(visualize=False)["name"])
    assert names == {"forward", *(f"ProfilerStep#{step}" for step in range(STEPS))}


def test_the_layout_is_valid(run: Any) -> None:
    folder, _, _ = run
    validate = pytest.importorskip("hta.utils.validate_trace").validate_trace_format
    for path in folder.iterdir():
        assert validate(str(path), "complete") == (True, {})
