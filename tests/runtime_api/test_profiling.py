"""`torch.profiler.profile`: simulated times by name, in steps, and as a file."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import kernbench.torch as torch
from kernbench.errors import OptionError, UnsupportedError
from kernbench.testing import Kernbench
from kernbench.torch.profiler import (
    ProfilerAction,
    ProfilerActivity,
    profile,
    record_function,
    schedule,
    tensorboard_trace_handler,
)


def _work(times: int = 1) -> None:
    x = torch.ones(256, 256, device="cuda")
    with record_function("layer"):
        for _ in range(times):
            x = x @ x


def test_times_are_those_of_the_device(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        def measured(times: int) -> float:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            a = torch.ones(256, 256, device="cuda")
            start.record()
            for _ in range(times):
                a @ a
            end.record()
            end.synchronize()
            return 1e3 * start.elapsed_time(end)

        # The device is never idle from the second product on.
        each = (measured(11) - measured(1)) / 10
        with profile() as prof:
            _work(3)
        rows = {row.key: row for row in prof.key_averages()}
        product = rows["aten::mm"]
        assert (product.count, rows["aten::ones"].count) == (3, 1)
        assert product.device_time == pytest.approx(each)
        layer = rows["layer"]
        assert layer.is_user_annotation
        assert layer.device_time_total == pytest.approx(product.device_time_total)
        assert layer.cpu_time_total == pytest.approx(product.cpu_time_total)
        assert layer.self_device_time_total == 0

    kernbench.spawn(worker, nprocs=1)


def test_a_table_has_the_columns_of_pytorch(kernbench: Kernbench) -> None:
    with kernbench.context():
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
            _work(2)
        text = prof.key_averages().table(sort_by="self_cuda_time_total", row_limit=1)
        lines = text.splitlines()
        for column in ("Name", "Self CPU %", "CPU total", "Self CUDA", "CUDA time avg"):
            assert column in lines[1]
        assert lines[3].split()[0] == "aten::mm"
        assert lines[3].split()[-1] == "2"
        assert lines[-1].startswith("Self CUDA time total: ")
        with profile(activities=[ProfilerActivity.CPU]) as prof:
            _work()
        assert "CUDA" not in prof.key_averages().table()
        with pytest.raises(OptionError, match="cannot be sorted by 'speed'"):
            prof.key_averages().table(sort_by="speed")


def test_steps_follow_the_schedule(kernbench: Kernbench, tmp_path: Path) -> None:
    counts: list[Any] = []

    def worker(rank: int) -> None:
        def ready(prof: profile) -> None:
            rows = {row.key: row.count for row in prof.key_averages()}
            counts.append((rank, prof.step_num, rows.get("aten::mm")))
            assert {key for key in rows if key.startswith("ProfilerStep")} == {
                f"ProfilerStep#{n}" for n in range(prof.step_num - 2, prof.step_num)
            }

        plan = schedule(wait=1, warmup=1, active=2, repeat=2)
        with profile(schedule=plan, on_trace_ready=ready) as prof:
            for step in range(12):
                _work(step)
                prof.step()

    kernbench.spawn(worker, nprocs=2)
    assert sorted(counts) == [(rank, step, n) for rank in (0, 1) for step, n in ((4, 5), (8, 13))]


def test_a_log_keeps_records_while_somebody_records(kernbench: Kernbench) -> None:
    ctx = kernbench.context(record="summary")
    with ctx:
        with profile():
            _work()
            kept = len(ctx.engine.op_log.records)
        assert not ctx.engine.op_log.full
        _work()
        assert len(ctx.engine.op_log.records) == kept > 0


@pytest.mark.torch
def test_a_schedule_is_that_of_pytorch() -> None:
    theirs = pytest.importorskip("torch").profiler
    plans: list[dict[str, int]] = [
        {"wait": 1, "warmup": 1, "active": 2},
        {"wait": 0, "warmup": 2, "active": 1, "repeat": 2, "skip_first": 3},
        {"wait": 3, "warmup": 1, "active": 1, "skip_first": 2, "skip_first_wait": 1},
    ]
    for plan in plans:
        for step in range(25):
            mine, real = (lib.schedule(**plan)(step).name for lib in (torch.profiler, theirs))
            assert mine == real


def test_a_trace_is_written(kernbench: Kernbench, tmp_path: Path) -> None:
    def worker(rank: int) -> None:
        handler = tensorboard_trace_handler(str(tmp_path), use_gzip=True)
        with profile(on_trace_ready=handler) as prof:
            _work()
        prof.export_chrome_trace(str(tmp_path / f"rank{rank}.json"))

    kernbench.spawn(worker, nprocs=2)
    plain = sorted(tmp_path.glob("*.json"))
    packed = sorted(tmp_path.glob("*.pt.trace.json.gz"))
    assert [len(plain), len(packed)] == [2, 2]
    for path, other in zip(plain, packed, strict=True):
        mine = json.loads(path.read_text(encoding="utf-8"))
        theirs = json.loads(gzip.decompress(other.read_bytes()))
        assert mine.pop("traceName") == path.name
        assert theirs.pop("traceName") == other.name
        assert mine == theirs
        assert mine["distributedInfo"]["world_size"] == 2
        names = {event["name"] for event in mine["traceEvents"]}
        assert {"aten::mm", "layer", "cudaLaunchKernel"} <= names


def test_what_is_not_simulated_is_refused(kernbench: Kernbench) -> None:
    with kernbench.context():
        for name in ("record_shapes", "profile_memory", "with_flops"):
            with pytest.raises(UnsupportedError, match=rf"profile\({name}=\)"):
                profile(**{name: True})  # type: ignore[arg-type]
        with pytest.raises(UnsupportedError, match="XPU"):
            profile(activities=[ProfilerActivity.XPU])
        with pytest.raises(AssertionError, match="recorded nothing yet"):
            profile().key_averages()
        with pytest.raises(AssertionError, match="Invalid profiler schedule"):
            schedule(wait=1, warmup=1, active=0)
        prof = profile(schedule=lambda step: ProfilerAction.NONE if step else ProfilerAction.RECORD)
        with pytest.warns(UserWarning, match="Incorrect schedule"), prof:
            prof.step()
