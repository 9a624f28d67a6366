"""Simulated time: steps of equal stages take what the formula of the bubble says."""

from typing import Any

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.errors import OptionError
from kernbench.parallel import parallel_state
from kernbench.parallel.config import ModelParallelConfig
from kernbench.pp.bubble import ideal_bubble_fraction, measured_bubble_fraction
from kernbench.pp.schedules import get_forward_backward_func
from kernbench.report import RangeBreakdown, range_breakdown
from kernbench.runtime_api.context import RuntimeContext
from kernbench.testing import Kernbench

STAGES, ROWS, WIDTH, LAYERS = 4, 2048, 2048, 64
"""Layers of the whole model; each takes about 0.05 ms forward on an H200, a message 0.03 ms."""


class Chunk(torch.nn.Module):
    def __init__(self, layers: int, config: ModelParallelConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = torch.nn.ModuleList([
            torch.nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16, device="cuda")
            for _ in range(layers)
        ])  # fmt: skip
        self.given: Any = None

    def set_input_tensor(self, input_tensor: list[Any]) -> None:
        (self.given,) = input_tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x if self.given is None else self.given
        for layer in self.layers:
            x = layer(x)
        return x


def step_of(
    kernbench: Kernbench, schedule: str, stages: int, microbatches: int, chunks: int = 1
) -> tuple[int, list[RangeBreakdown], RuntimeContext]:
    """Returns the picoseconds of a step, its breakdown by range, and the context."""

    def worker(rank: int) -> None:
        del rank
        dist.init_process_group("nccl")
        parallel_state.initialize_model_parallel(
            pipeline_model_parallel_size=stages,
            virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
        )
        config: Any = ModelParallelConfig(pipeline_dtype=torch.bfloat16)
        config.hidden_size = WIDTH
        models = [Chunk(LAYERS // stages // chunks, config) for _ in range(chunks)]
        # The first stage, too, goes back to its input, so that all stages do the same.
        x = torch.empty(ROWS, 1, WIDTH, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        data = [iter([x] * microbatches) for _ in range(chunks)]

        def forward_step(data_iterator: Any, model: Any) -> Any:
            return model(next(data_iterator)), lambda y: (y.flatten()[0], None)

        dist.barrier()
        torch.cuda.synchronize()
        named: Any = schedule
        with torch.profiler.record_function("step"):
            get_forward_backward_func(schedule=named)(
                forward_step_func=forward_step,
                data_iterator=data if schedule == "interleaved" else data[0],
                model=models if schedule == "interleaved" else models[0],
                num_microbatches=microbatches,
                seq_length=ROWS,
                micro_batch_size=1,
            )

    ctx = kernbench.spawn(worker, nprocs=stages, machine="h200x8", data=False, record="full")
    rows = range_breakdown(ctx.engine.op_log, 0, ["step"])
    spans = dict.fromkeys(range(stages), 0)
    for row in rows:
        spans[row.rank] += row.device_ps
    assert len(set(spans.values())) == 1
    return spans[0], rows, ctx


@pytest.mark.parametrize(
    ("schedule", "microbatches", "chunks"),
    [("1f1b", 8, 1), ("gpipe", 8, 1), ("interleaved", 8, 2), ("1f1b", 2, 1)],
)
def test_steps_take_the_time_of_the_formula(
    kernbench: Kernbench, schedule: str, microbatches: int, chunks: int
) -> None:
    alone, _, _ = step_of(kernbench, "1f1b", 1, microbatches)
    taken, rows, _ = step_of(kernbench, schedule, STAGES, microbatches, chunks)
    ideal = ideal_bubble_fraction(STAGES, microbatches, chunks)
    assert taken * STAGES / alone == pytest.approx(1 / (1 - ideal), rel=0.05)
    assert measured_bubble_fraction(rows) == pytest.approx(ideal, abs=0.04)


def test_passes_are_ranges_of_every_rank(kernbench: Kernbench) -> None:
    _, rows, _ = step_of(kernbench, "1f1b", 2, 2)
    for rank in range(2):
        names = [row.name for row in rows if row.rank == rank and row.name]
        passes = [name for name in names if name != "exchange"]
        assert set(passes) == {"forward 0", "forward 1", "backward 0", "backward 1"}
        assert "exchange" in names
    _, rows, _ = step_of(kernbench, "interleaved", 2, 2, 2)
    names = [row.name for row in rows if row.rank == 0]
    assert {"forward 1 of chunk 0", "backward 0 of chunk 1"} <= {*names}


def test_the_measured_bubble_counts_passes_only() -> None:
    rows = [
        RangeBreakdown(0, "forward 0", compute_ps=30, exposed_ps=5, copy_ps=5, idle_ps=10),
        RangeBreakdown(0, "exchange", exposed_ps=40),
        RangeBreakdown(0, "", idle_ps=10),
        RangeBreakdown(1, "backward 0", compute_ps=60),
        RangeBreakdown(1, "forwarding", compute_ps=40),
    ]
    assert measured_bubble_fraction(rows) == 0.5


def test_a_run_without_passes_has_no_bubble() -> None:
    with pytest.raises(OptionError, match="no row is of a forward or backward pass"):
        measured_bubble_fraction([RangeBreakdown(0, "exchange", exposed_ps=40)])
