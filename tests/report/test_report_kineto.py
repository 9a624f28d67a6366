"""Traces as PyTorch's profiler writes them: read by an own reader, figures as the breakdown's."""

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kineto_program import STEPS, worker, write
from kineto_reader import Event, RankFile, end, rank_files, start

import kernbench.torch.distributed as dist
from kernbench.errors import UsageError, call_site
from kernbench.report import RankBreakdown, write_kineto_files, write_kineto_rank
from kernbench.sim_engine.op_log import OpLog, Record, Together, TogetherArgs, Wait
from kernbench.testing import Kernbench
from kernbench.topology import load_topology

TOPOLOGY = load_topology("sip8").topology_obj
NS = 1000


class Run(NamedTuple):
    files: dict[int, RankFile]
    rows: list[RankBreakdown]
    records: list[Record]


@pytest.fixture(scope="module", params=["sip8", "h200x8"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("kineto")
    ctx = Kernbench().spawn(worker, nprocs=4, topology=request.param, data=False, record="full")
    rows = write(ctx, folder)
    return Run(rank_files(folder), rows, ctx.engine.op_log.records)


def only(found: list[Event]) -> Event:
    (event,) = found
    return event


def test_figures_are_those_of_the_breakdown(run: Run) -> None:
    assert sorted(run.files) == [row.rank for row in run.rows] == [0, 1, 2, 3]
    for row in run.rows:
        file = run.files[row.rank]
        figures = file.figures()
        # Each interval that a figure adds up loses less than a nanosecond at either end.
        near = len(file.of("kernel", "gpu_memcpy"))
        assert figures.compute == pytest.approx(row.compute_ps / NS, abs=near)
        assert figures.communication == pytest.approx(row.communication_ps / NS, abs=near)
        assert figures.non_compute == pytest.approx(
            (row.exposed_ps + row.copy_ps) / NS, abs=2 * near
        )
        hidden = row.communication_ps - row.exposed_ps
        assert hidden > 0
        assert figures.overlap == pytest.approx(hidden / NS, abs=2 * near)
        # Readers of Kineto's files count from a rank's first kernel to its last; the breakdown
        # from the first action of any rank.
        around = row.span_ps / NS - figures.kernel_time
        assert figures.idle + around == pytest.approx(row.idle_ps / NS, abs=2 * near)


def test_each_command_is_launched_once_and_waits_as_long_as_the_log_says(run: Run) -> None:
    for rank, file in run.files.items():
        delays = Counter(start(work) - end(call) for call, work in file.launches().values())
        expected = Counter(
            record.start // NS - record.issued // NS
            for record in run.records
            if record.rank == rank
            and record.category in {"compute", "copy", "collective"}
            and not record.track.startswith(("dma", "pe"))
        )
        assert delays == expected
        assert min(delays) >= 0
        for call, work in file.launches().values():
            named = {
                "gpu_memcpy": {"cudaMemcpyAsync"},
                "kernel": {"cudaLaunchKernel", "cudaLaunchKernelExC"},
            }
            assert call["name"] in named[work["cat"]]
            assert call["args"].get("External id") == work["args"].get("External id")


def test_arrows_go_from_calls_to_what_they_launched(run: Run) -> None:
    for file in run.files.values():
        arrows: dict[str, dict[int, Event]] = {"s": {}, "f": {}}
        for event in file.events:
            if event["ph"] in arrows:
                assert event["cat"] == event["name"] == "ac2g"
                arrows[event["ph"]][event["id"]] = event
        launches = file.launches()
        assert arrows["s"].keys() == arrows["f"].keys() == launches.keys()
        for number, (call, work) in launches.items():
            for end_of_arrow, event in (("s", call), ("f", work)):
                arrow = arrows[end_of_arrow][number]
                assert [arrow[key] for key in ("pid", "tid", "ts")] == [
                    event[key] for key in ("pid", "tid", "ts")
                ]


def test_slices_of_a_thread_nest(run: Run) -> None:
    """Perfetto drops a slice that overlaps another one without being inside it."""
    for file in run.files.values():
        threads: dict[Any, list[Event]] = defaultdict(list)
        for event in file.events:
            if event["ph"] == "X":
                threads[event["pid"], event["tid"]].append(event)
        for events in threads.values():
            open_ends: list[int] = []
            # The sort keeps the order of the file where slices begin together.
            for event in sorted(events, key=start):
                while open_ends and open_ends[-1] <= start(event):
                    open_ends.pop()
                assert not open_ends or end(event) <= open_ends[-1]
                open_ends.append(end(event))


def test_steps_and_ranges_are_on_the_host_and_on_each_stream(run: Run) -> None:
    for file in run.files.values():
        host = [event["name"] for event in file.of("user_annotation")]
        assert host.count("forward") == STEPS
        assert [name for name in host if name != "forward"] == [
            f"ProfilerStep#{step}" for step in range(STEPS)
        ]
        step = only([e for e in file.of("user_annotation") if e["name"] == "ProfilerStep#1"])
        inside = [
            work
            for call, work in file.launches().values()
            if start(step) <= start(call) and end(call) <= end(step)
        ]
        marks = [e for e in file.of("gpu_user_annotation") if e["name"] == "ProfilerStep#1"]
        spans = {(mark["pid"], mark["tid"]): (start(mark), end(mark)) for mark in marks}
        assert len(spans) == len(marks)
        for place in {(work["pid"], work["tid"]) for work in inside}:
            works = [work for work in inside if (work["pid"], work["tid"]) == place]
            assert spans.pop(place) == (min(map(start, works)), max(map(end, works)))
        assert not spans
        assert all("stream" not in mark["args"] for mark in marks)


def test_collectives_are_kernels_of_nccl_with_their_facts(run: Run) -> None:
    for rank, file in run.files.items():
        kernels = [e for e in file.of("kernel") if "Collective name" in e["args"]]
        facts = {
            (str(e["args"]["Collective name"]), int(e["args"]["Group size"])): (
                e["name"],
                e["args"],
            )
            for e in kernels
        }
        wide, own = 4 << 20, 1 << 20
        storage = "(ncclDevKernelArgsStorage<4096ul>)"
        world, pair = "[0, 1, 2, 3]", f"[{rank % 2}, {rank % 2 + 2}]"
        peer = rank - 1 if rank % 2 else rank + 1
        way = "send" if rank % 2 else "recv"
        ends = {"Src Rank": max(rank, peer), "Dst Rank": min(rank, peer)}
        for key, kernel, sizes, ranks in (
            (("allreduce", 4), "AllReduce_Sum_bf16_RING_LL", (own, own), world),
            (("allreduce", 2), "AllReduce_Sum_bf16_RING_LL", (own, own), pair),
            (("_allgather_base", 4), "AllGather_RING_LL", (own, wide), world),
            (("_reduce_scatter_base", 4), "ReduceScatter_Sum_bf16_RING_LL", (wide, own), world),
            (("broadcast", 4), "Broadcast_RING_LL", (own, own), world),
            ((way, 4), "SendRecv", (own, own), world),
        ):
            name, said = facts.pop(key)
            assert name == f"ncclDevKernel_{kernel}{storage}"
            assert (said["In msg nelems"], said["Out msg nelems"]) == sizes
            assert said["Process Group Ranks"] == ranks
            assert said["dtype"] == ("Float" if key[0] == way else "BFloat16")
            if key[0] == way:
                assert ends.items() <= said.items()
        assert facts.keys() == {("barrier", 4)}
        by_id = {e["args"]["External id"]: e for e in file.of("cpu_op")}
        for event in kernels:
            operation = by_id[event["args"]["External id"]]
            assert operation["name"] == "record_param_comms"
            assert operation["args"]["Collective name"] == event["args"]["Collective name"]


def test_the_head_tells_who_and_where(run: Run) -> None:
    for rank, file in run.files.items():
        document = file.document
        assert document["schemaVersion"] == 1
        assert document["baseTimeNanoseconds"] == 0
        who = document["distributedInfo"]
        assert (who["backend"], who["rank"], who["world_size"]) == ("nccl", rank, 4)
        assert [group["pg_size"] for group in who["pg_config"]] == [2, 4]
        assert [group["ranks"] for group in who["pg_config"]] == [
            [rank % 2, rank % 2 + 2],
            [0, 1, 2, 3],
        ]
        (device,) = document["deviceProperties"]
        assert device["id"] == rank
        assert device["totalGlobalMem"] > 0


def test_default_streams_are_stream_7_and_called_so(run: Run) -> None:
    for rank, file in run.files.items():
        names = {
            (e["pid"], e["tid"]): e["args"]["name"]
            for e in file.events
            if e["ph"] == "M" and e["name"] == "thread_name"
        }
        assert names[rank, 7] == "stream 7 (default stream)"
        assert "(communication stream)" in " ".join(names.values())
        for event in file.of("kernel", "gpu_memcpy"):
            assert event["tid"] == event["args"]["stream"]
            assert event["pid"] == event["args"]["device"] == rank
            assert (event["pid"], event["tid"]) in names


def test_waits_of_the_host_are_calls_of_cuda(run: Run) -> None:
    for file in run.files.values():
        calls = file.of("cuda_runtime")
        names = Counter(event["name"] for event in calls)
        assert names["cudaEventRecord"] == 2 * STEPS  # one of them by wait_stream
        assert names["cudaEventSynchronize"] == STEPS
        assert names["cudaStreamSynchronize"] >= 2 * STEPS  # the copy and the barrier
        numbers = [event["args"]["correlation"] for event in calls]
        assert len(set(numbers)) == len(numbers)


def log_of(records: list[Record]) -> OpLog:
    log = OpLog("full")
    for record in records:
        log.add(record)
    return log


SITE = call_site()
RECORDS = [
    Record("aten::mm", "compute", 0, "stream 0", 2_000_000, 2_000_000, 5_000_400, SITE),
    Record("add", "kernel", 0, "stream 0.1", 4_000_000, 4_000_000, 6_000_000, SITE),
    Record("Memcpy HtoD", "copy", 0, "stream 0", 6_000_000, 6_000_000, 8_000_000, None,
           {"bytes": 4000}),
    Record("send", "copy", 0, "stream 0", 8_000_000, 8_000_000, 8_000_000),
    Record("event", "event", 0, "stream 0", 9_000_000, 9_000_000, 9_000_000),
    Record("tokens", "host", 0, "host", 9_000_000, 9_000_000, 9_500_000),
    Record("step", "range", 0, "host", 1_000_000, 1_000_000, 6_000_000, None, {"args": "x"}),
    Record("add", "compute", 0, "pe0.math", 4_000_000, 4_000_000, 6_000_000),
    Record("send to 1", "send", 0, "dma1.send", 4_000_000, 4_000_000, 6_000_000),
    Record("all_reduce", "collective", 0, "gloo WORLD", 9_000_000, 9_000_000, 9_900_000),
    Record("aten::ones", "compute", -1, "stream 0", 2_000_000, 2_000_000, 3_000_000),
]  # fmt: skip


def written(path: Path, records: list[Record], **options: Any) -> RankFile:
    defaults: dict[str, Any] = {"rank": 0, "dispatch_ps": 1_000_000}
    write_kineto_rank(log_of(records), TOPOLOGY, path, **(defaults | options))
    return RankFile(path)


def test_a_file_is_these_events(tmp_path: Path) -> None:
    file = written(tmp_path / "t.json", RECORDS)
    seen = [(e["cat"], e["name"], start(e), end(e)) for e in file.of(*CATEGORIES)]
    assert seen == [
        ("user_annotation", "step", 1000, 6000),
        ("gpu_user_annotation", "step", 2000, 8000),
        ("gpu_user_annotation", "step", 4000, 6000),
        ("cpu_op", "aten::mm", 1000, 2000),
        ("cuda_runtime", "cudaLaunchKernel", 1000, 2000),
        ("kernel", "mm_kernel", 2000, 5000),
        ("cuda_runtime", "cudaLaunchKernel", 3000, 4000),
        ("kernel", "add", 4000, 6000),
        ("cpu_op", "aten::copy_", 5000, 6000),
        ("cuda_runtime", "cudaMemcpyAsync", 5000, 6000),
        ("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 6000, 8000),
        ("cpu_op", "send", 7000, 8000),
        ("cuda_runtime", "cudaMemcpyAsync", 7000, 8000),
        ("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 8000, 8000),
        ("cuda_runtime", "cudaEventRecord", 8000, 9000),
        ("cpu_op", "tokens", 9000, 9500),
        ("cpu_op", "gloo:all_reduce", 9000, 9900),
    ]
    copy = only([e for e in file.of("gpu_memcpy") if e["args"].get("bytes")])
    assert copy["args"]["memory bandwidth (GB/s)"] == 2
    assert only(file.of("user_annotation"))["args"]["args"] == "x"
    assert file.of("cpu_op")[0]["args"]["Call stack"].endswith(f"test_report_kineto.py:{LINE}")


CATEGORIES = (
    "user_annotation",
    "gpu_user_annotation",
    "cpu_op",
    "cuda_runtime",
    "kernel",
    "gpu_memcpy",
)
LINE = SITE.line if SITE is not None else 0


def test_a_window_holds_what_the_host_did_within_it(tmp_path: Path) -> None:
    log = log_of(RECORDS)
    for wait in (Wait(0, "event", 2_500_000, 2_900_000), Wait(0, "stream", 9_000_000, 9_100_000)):
        log.add_wait(wait)
    path = tmp_path / "t.json"
    write_kineto_rank(
        log, TOPOLOGY, path, rank=0, dispatch_ps=1_000_000, start_ps=1_500_000, end_ps=6_000_000,
        sip=5, world_size=16,
    )  # fmt: skip
    file = RankFile(path)
    assert [(e["name"], start(e)) for e in file.of(*CATEGORIES)] == [
        ("cudaLaunchKernel", 3000),
        ("add", 4000),
        ("aten::copy_", 5000),
        ("cudaMemcpyAsync", 5000),
        ("Memcpy HtoD (Pageable -> Device)", 6000),  # issued within, and over after the end
        ("cudaEventSynchronize", 2500),
    ]
    assert file.document["distributedInfo"]["world_size"] == 16
    assert [device["id"] for device in file.document["deviceProperties"]] == [0, 5]


def test_an_empty_window_is_a_file_without_commands(tmp_path: Path) -> None:
    file = written(tmp_path / "t.json", RECORDS, start_ps=10**9)
    assert file.of(*CATEGORIES) == []
    assert file.rank == 0


def test_equal_runs_give_equal_files_whatever_the_order_of_set_up(tmp_path: Path) -> None:
    first, second = (
        written(tmp_path / "t.json", records).text for records in (RECORDS, RECORDS[::-1])
    )
    assert first == second


def test_main_is_rank_0_only_if_there_is_no_rank(tmp_path: Path) -> None:
    for count, names in ((0, ["aten::ones"]), (len(RECORDS) - 1, ["aten::mm", "aten::copy_"])):
        log = log_of(RECORDS[:count] + RECORDS[-1:])
        paths = write_kineto_files(log, TOPOLOGY, tmp_path / str(count), dispatch_ps=1_000_000)
        assert [path.name for path in paths] == ["rank-0.pt.trace.json"]
        operations = [e["name"] for e in RankFile(paths[0]).of("cpu_op")]
        assert [name for name in operations if name.startswith("aten")] == names


def test_long_groups_are_listed_in_short(tmp_path: Path) -> None:
    together = Together("all_reduce", range(64), "undefined", 8, 8)
    args = TogetherArgs({"group": "WORLD", "dtype": "int64", "algorithm": "tree"}, together)
    record = Record("all_reduce", "collective", 0, "stream 0", 1, 1, 2, None, args)
    file = written(tmp_path / "t.json", [record], dispatch_ps=0)
    kernel = only(file.of("kernel"))
    assert kernel["name"].startswith("ncclDevKernel_AllReduce_Sum_u64_TREE_LL(")
    first = ", ".join(map(str, range(29)))
    assert kernel["args"]["Process Group Ranks"] == f"[{first}, ..., 63]"
    assert kernel["args"]["Process Group Description"] == "default_pg"
    assert file.document["distributedInfo"]["world_size"] == 64


def test_a_log_that_was_cut_says_so(tmp_path: Path) -> None:
    log = log_of([])
    log.limit = 2
    for record in RECORDS[:3]:
        log.add(record)
    write_kineto_rank(log, TOPOLOGY, tmp_path / "t.json", rank=0, dispatch_ps=0)
    assert json.loads((tmp_path / "t.json").read_text())["droppedRecords"] == 1


def test_a_log_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a trace needs every record"):
        write_kineto_files(OpLog("summary"), TOPOLOGY, tmp_path / "new", dispatch_ps=0)
    assert not (tmp_path / "new").exists()


def test_files_appear_together_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernbench.report import kineto

    monkeypatch.setattr(kineto, "_time", interrupting_after(40, kineto._time))
    records = [Record("aten::mm", "compute", rank, "stream 0", 1, 1, 2) for rank in range(40)]
    with pytest.raises(KeyboardInterrupt):
        write_kineto_files(log_of(records), TOPOLOGY, tmp_path, dispatch_ps=0)
    assert list(tmp_path.iterdir()) == []


def interrupting_after(calls: int, function: Any) -> Any:
    left = [calls]

    def called(*args: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return function(*args)

    return called


def test_messages_of_a_batch_are_kernels_of_their_own(tmp_path: Path) -> None:
    def ring(rank: int) -> None:
        import kernbench.torch as torch

        dist.init_process_group("nccl")
        x, y = torch.ones(64, device="cuda"), torch.empty(64, device="cuda")
        right, left = (rank + 1) % 3, (rank - 1) % 3
        ops = [dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, y, left)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    ctx = Kernbench().spawn(ring, nprocs=3, record="full")
    write(ctx, tmp_path)
    for file in rank_files(tmp_path).values():
        kernels = [e for e in file.of("kernel") if e["name"].startswith("ncclDevKernel_SendRecv")]
        assert [e["args"]["Collective name"] for e in kernels] == ["send", "recv"]
        assert len({e["tid"] for e in kernels}) == 2
