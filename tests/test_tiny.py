"""What kernbench is, in eight small tests. Read this file first.

Programs of many GPUs run in one Python process, on simulated machines. The numbers are computed and
the time is predicted, in the same run. Whoever waits for somebody who never comes is told why.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import tl
from kernbench.parallel import parallel_state
from kernbench.parallel.config import ModelParallelConfig
from kernbench.pp import get_forward_backward_func
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench
from kernbench.tp.layers import ColumnParallelLinear, RowParallelLinear


def all_reduce_us(kernbench: Kernbench, **machine: Any) -> float:
    """Returns the microseconds of an all-reduce of 64 MiB, measured with events as on a GPU."""
    times = []

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(16 << 20, device="cuda")
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        dist.all_reduce(x)
        end.record()
        end.synchronize()
        times.append(1000 * start.elapsed_time(end))

    kernbench.spawn(worker, nprocs=4, data=False, **machine)
    return max(times)


def test_ranks_have_a_device_each_and_right_numbers(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        assert torch.cuda.current_device() == rank
        x = torch.full((4,), float(rank), device="cuda")
        dist.all_reduce(x)
        assert x.tolist() == [0 + 1 + 2 + 3] * 4

    kernbench.spawn(worker, nprocs=4)


def test_time_follows_from_the_machine(kernbench: Kernbench) -> None:
    bandwidth = "system.sips.network.bandwidth"
    slow = all_reduce_us(kernbench, overrides=[f"{bandwidth}=50 GB/s"])
    fast = all_reduce_us(kernbench, overrides=[f"{bandwidth}=100 GB/s"])
    assert slow == all_reduce_us(kernbench, overrides=[f"{bandwidth}=50 GB/s"])
    assert fast == pytest.approx(slow / 2, rel=0.05)
    assert all_reduce_us(kernbench, machine="h200x8") < fast  # a host with 8 H200


def test_a_hang_is_explained_with_the_lines_of_all_ranks(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        if rank != 2:
            dist.all_reduce(torch.ones(4, device="cuda"))

    with pytest.raises(SpawnException) as failed:
        kernbench.spawn(worker, nprocs=4)
    assert "all_reduce #1 of group WORLD: ranks 0-1, 3 wait for rank 2" in str(failed.value)
    assert re.search(r"at .*test_tiny.py:\d+.*: dist.all_reduce", str(failed.value))


def test_a_read_that_nothing_orders_is_a_mistake_and_not_luck(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(4, device="cuda")
        dist.all_reduce(x, async_op=True)
        x.add_(1)  # without work.wait()

    with pytest.raises(SpawnException, match=r"\[C1[45]\]"):
        kernbench.spawn(worker, nprocs=2)


@tl.jit
def doubled(x_ptr: tl.Pointer, BLOCK: tl.constexpr) -> None:
    pointers = x_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(pointers, 2 * tl.load(pointers))


def test_a_kernel_is_written_as_in_triton(kernbench: Kernbench) -> None:
    with kernbench.context():
        x = torch.arange(1024, dtype=torch.float32, device="cuda")
        doubled[(1024 // 256,)](x, BLOCK=256)
        assert x.tolist() == [2 * i for i in range(1024)]


def test_a_tensor_parallel_layer_is_the_whole_one(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=4)
        ones = torch.nn.init.ones_
        both: Any = {"config": ModelParallelConfig(), "init_method": ones, "bias": False}
        up = ColumnParallelLinear(8, 16, **both)
        down = RowParallelLinear(16, 8, input_is_parallel=True, skip_bias_add=False, **both)
        assert up.weight is not None
        assert tuple(up.weight.shape) == (16 // 4, 8)
        x = torch.ones(3, 1, 8, device="cuda")
        assert (down(up(x)[0])[0] == 8 * 16).all().item()
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=4)


class Stage(torch.nn.Module):
    """One stage of a pipeline: it doubles what the stage before it sends."""

    def __init__(self) -> None:
        super().__init__()
        self.config = ModelParallelConfig(pipeline_dtype=torch.float32)
        setattr(self.config, "hidden_size", 2)  # noqa: B010 - a field of Megatron's subclasses
        self.factor = torch.nn.Parameter(torch.full((1,), 2.0, device="cuda"))
        self.sent: torch.Tensor | None = None

    def set_input_tensor(self, sent: list[torch.Tensor | None]) -> None:
        (self.sent,) = sent

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * (x if self.sent is None else self.sent)


def test_a_pipeline_is_the_whole_model(kernbench: Kernbench) -> None:
    def forward_step(batches: Any, stage: Any) -> Any:
        return stage(next(batches)), lambda out: (out.mean(), {"loss": out.detach().mean()})

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        parallel_state.initialize_model_parallel(pipeline_model_parallel_size=4)
        stage, batches = Stage(), iter([torch.ones(1, 1, 2, device="cuda")] * 6)
        losses = get_forward_backward_func()(
            forward_step_func=forward_step, data_iterator=batches, model=stage,
            num_microbatches=6, seq_length=1, micro_batch_size=1,
        )  # fmt: skip
        assert [loss["loss"].item() for loss in losses] == ([2.0**4] * 6 if rank == 3 else [])
        assert stage.factor.grad is not None
        assert stage.factor.grad.item() == 2.0**3  # the mean over the microbatches
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=4)


def test_a_trace_shows_what_ran_when(kernbench: Kernbench, tmp_path: Path) -> None:
    with kernbench.context(), torch.profiler.profile() as profiler:
        a = torch.ones(512, 512, device="cuda")
        (a @ a).sum().item()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    _, product, total = (each for each in events if each.get("cat") == "kernel")
    assert product["dur"] > total["dur"] > 0
    assert total["ts"] >= product["ts"] + product["dur"]
