"""`torch.profiler`, `torch.compile` and processes in ranks."""

import json
from pathlib import Path
from typing import Any

import pytest
from bridge_devices import on_ranks

from kernbench.errors import UnsupportedError

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")


def _work() -> Any:
    x = torch.ones(512, 512, device="cuda")
    return x @ x


def test_each_rank_has_a_profile_of_its_own(tmp_path: Path) -> None:
    def worker(rank: int) -> Any:
        torch.cuda.set_device(rank)
        kinds = torch.profiler.ProfilerActivity
        profiler = torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA])
        with profiler, torch.profiler.record_function("mine"):
            for _ in range(rank + 1):
                _work()
        profiler.export_chrome_trace(str(tmp_path / f"{rank}.json"))
        rows = {row.key: row.count for row in profiler.key_averages()}
        assert "aten::mm" in profiler.key_averages().table(sort_by="cuda_time_total", row_limit=10)
        return rows

    first, second = on_ranks(worker, 2)
    assert (first["aten::mm"], second["aten::mm"]) == (1, 2)
    assert first["mine"] == second["mine"] == 1
    names = [
        event["name"] for event in json.loads((tmp_path / "1.json").read_text())["traceEvents"]
    ]
    assert names.count("mine") >= 1
    assert {"aten::mm", "mm_kernel"} <= set(names)  # the operator on the host, and its kernel


def test_a_schedule_and_a_handler_of_pytorch_work(tmp_path: Path) -> None:
    def worker(_: int) -> Any:
        with torch.profiler.profile(
            schedule=torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1),
            on_trace_ready=torch.profiler.tensorboard_trace_handler(str(tmp_path)),
        ) as profiler:
            for _ in range(5):
                _work()
                profiler.step()

    on_ranks(worker)
    (file,) = tmp_path.iterdir()
    names = {event["name"] for event in json.loads(file.read_text())["traceEvents"]}
    assert {"ProfilerStep#2", "ProfilerStep#3"} <= names
    assert "ProfilerStep#1" not in names


def test_the_old_profiler_works_and_what_is_not_recorded_is_told() -> None:
    def worker(_: int) -> Any:
        with torch.autograd.profiler.profile(use_cuda=True) as profiler:
            _work()
        with pytest.warns(UserWarning, match="without record_shapes, with_flops"):
            torch.profiler.profile(record_shapes=True, with_flops=True)
        with pytest.raises(UnsupportedError, match=r"profile\.export_stacks is not simulated"):
            profiler.export_stacks("stacks")
        return [row.key for row in profiler.key_averages()]

    assert "aten::mm" in on_ranks(worker)[0]


def test_compiled_functions_run_as_they_are() -> None:
    def worker(_: int) -> Any:
        def double(x: Any) -> Any:
            return x * 2

        with pytest.warns(UserWarning, match="torch.compile is not simulated"):
            compiled = torch.compile(double, mode="max-autotune")
        decorated = torch.compile(fullgraph=True)(double)  # a second warning would be an error
        model = torch.nn.Linear(2, 2).cuda()
        x = torch.ones(2, device="cuda")
        return compiled(x).tolist(), decorated(x).tolist(), torch.compile(model) is model

    assert on_ranks(worker) == [([2, 2], [2, 2], True)]


def test_pools_are_refused_by_name() -> None:
    def worker(_: int) -> Any:
        with pytest.raises(UnsupportedError, match=r"multiprocessing\.Pool is not simulated"):
            torch.multiprocessing.Pool()

    on_ranks(worker)
