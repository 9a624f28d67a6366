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

STAGES, ROWS, WIDTH, LAYERS = 4, 2048, 2048, 16
"""Layers of the whole model; a message takes a few hundredths of a layer's time."""


class Chunk(torch.nn.Module):
    def __init__(self, layers: int, config: ModelParallelConfig) -> None:
        super().__init__()
        self.config = config
        shared: Any = {"bias": False, "dtype": torch.bfloat16, "device": "cuda"}
        self.layers = torch.nn.ModuleList()
        for _ in range(layers):
            self.layers.append(torch.nn.Linear(WIDTH, 16 * WIDTH, **shared))
            self.layers.append(torch.nn.Linear(16 * WIDTH, WIDTH, **shared))
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
        for model in models:
            for value in model.parameters():
                value.grad = torch.empty_like(value)  # so that the first microbatch adds, too
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
        dist.destroy_process_group()

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
    assert taken * STAGES / alone == pytest.approx(1 / (1 - ideal), rel=0.03)
    assert measured_bubble_fraction(rows) == pytest.approx(ideal, abs=0.03)


def test_microbatches_are_ranges_of_every_rank(kernbench: Kernbench) -> None:
    _, rows, ctx = step_of(kernbench, "1f1b", 2, 2)
    for rank in range(2):
        names = {row.name for row in rows if row.rank == rank and row.name}
        assert names == {"microbatch 0", "microbatch 1", "exchange"}
    _, _, chunked = step_of(kernbench, "interleaved", 2, 2, 2)
    for log, ways in ((ctx, ["", ""]), (chunked, [" of chunk 0", " of chunk 1"])):
        paths = {record.ranges for record in log.engine.op_log.records}
        for way in ways:
            for microbatch in range(2):
                assert ("step", f"microbatch {microbatch}", f"forward{way}") in paths


def test_the_measured_bubble_counts_microbatches_only() -> None:
    rows = [
        RangeBreakdown(0, "microbatch 0", compute_ps=30, exposed_ps=5, copy_ps=5, idle_ps=10),
        RangeBreakdown(0, "exchange", exposed_ps=40),
        RangeBreakdown(0, "", idle_ps=10),
        RangeBreakdown(1, "microbatch 1", compute_ps=60),
        RangeBreakdown(1, "microbatches", compute_ps=40),
    ]
    assert measured_bubble_fraction(rows) == 0.5


def test_a_run_without_passes_has_no_bubble() -> None:
    with pytest.raises(OptionError, match="no row is of a microbatch"):
        measured_bubble_fraction([RangeBreakdown(0, "exchange", exposed_ps=40)])
