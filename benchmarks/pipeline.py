"""A pipeline of 4 stages and 16 microbatches without data: what the host's part of a step costs.

Each stage has a few linear layers, in one chunk or, interleaved, in two. All ranks are on their way
at once, and the clock runs from the first rank's call to the moment when the last rank has seen its
device done; the ratio is that of the process's time, which others on the machine do not lengthen.
"""

import time
from typing import Any

import _measure

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import caches
from kernbench.parallel import parallel_state
from kernbench.parallel.config import ModelParallelConfig
from kernbench.pp.schedules import get_forward_backward_func
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext

STAGES, MICROBATCHES = 4, 16
SEQUENCE, BATCH, HIDDEN, LAYERS = 2048, 1, 4096, 4
REPEATS = 10
LIMIT_MS = 200
SCHEDULES = {"1f1b": 1, "gpipe": 1, "interleaved": 2}
"""Schedules, and how many chunks a stage has."""


class Chunk(torch.nn.Module):
    """Linear layers, one after the other; activations are `[s, b, h]`."""

    def __init__(self, layers: int, config: ModelParallelConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = torch.nn.Sequential()
        for _ in range(layers):
            layer = torch.nn.Linear(HIDDEN, HIDDEN, dtype=torch.bfloat16, device="cuda")
            self.layers.append(layer)
        self.given: Any = None

    def set_input_tensor(self, input_tensor: list[Any]) -> None:
        (self.given,) = input_tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x if self.given is None else self.given)
        return out


def forward_step(data_iterator: Any, model: Any) -> Any:
    """Returns the output, and a loss that takes the host little."""
    return model(next(data_iterator)), lambda output: (output.sum(), None)


def measured(schedule: str) -> list[tuple[float, float]]:
    """Returns wall and process seconds of each step."""
    chunks = SCHEDULES[schedule]
    found: list[tuple[float, float]] = []
    clocks: list[tuple[tuple[float, float], tuple[float, float]]] = []

    def now() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()

    def worker(rank: int) -> None:
        del rank
        dist.init_process_group("nccl")
        parallel_state.initialize_model_parallel(
            pipeline_model_parallel_size=STAGES,
            virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
        )
        config: Any = ModelParallelConfig(pipeline_dtype=torch.bfloat16)
        config.hidden_size = HIDDEN
        models: Any = [Chunk(LAYERS // chunks, config) for _ in range(chunks)]
        x = torch.empty(SEQUENCE, BATCH, HIDDEN, dtype=torch.bfloat16, device="cuda")
        named: Any = schedule
        step = get_forward_backward_func(schedule=named)
        for _ in range(REPEATS):
            data: Any = [iter([x] * MICROBATCHES) for _ in models]
            for model in models:
                model.zero_grad()
            dist.barrier()
            torch.cuda.synchronize()
            begin = now()
            step(
                forward_step_func=forward_step,
                data_iterator=data if chunks > 1 else data[0],
                model=models if chunks > 1 else models[0],
                num_microbatches=MICROBATCHES,
                seq_length=SEQUENCE,
                micro_batch_size=BATCH,
            )
            torch.cuda.synchronize()
            clocks.append((begin, now()))
            if len(clocks) == STAGES:
                begins, ends = zip(*clocks, strict=True)
                first, last = min(begins), max(ends)
                found.append((last[0] - first[0], last[1] - first[1]))
                clocks.clear()
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()

    with RuntimeContext(RunSpec(topology="h200x8", data=False)) as ctx:
        _measure.seconds(lambda: ctx.multiprocessing.spawn(worker, nprocs=STAGES))
    return found


def main() -> None:
    measured("1f1b")  # everything that is imported at first use
    rows = []
    for schedule in SCHEDULES:
        caches.clear()
        cold = measured(schedule)[0]
        warm = measured(schedule)
        cases = (("first, caches empty", [cold]), ("first", warm[:1]), ("again", warm[1:]))
        for kind, steps in cases:
            wall, process = (min(times) * 1e3 for times in zip(*steps, strict=True))
            rows.append(
                [
                    f"{schedule}, {kind}",
                    f"{LIMIT_MS}",
                    f"{wall:.0f}",
                    f"{process:.0f}",
                    f"{process / LIMIT_MS:.1f}x",
                    _measure.verdict(process / LIMIT_MS, 1, at_least=False),
                ]
            )
    header = ["", "limit", "kernbench", "process time", "ratio", "target"]
    _measure.show(f"{STAGES} stages, {MICROBATCHES} microbatches, ms", header, rows)


if __name__ == "__main__":
    main()
