"""Training of a model by the groups of its layout."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import kernbench.torch as torch
from benches.models.evaluation import Batch, wide_type
from benches.models.gpt import GPTModel, forward_step
from kernbench.parallel.data_parallel import DistributedDataParallel, DistributedDataParallelConfig
from kernbench.pp import get_forward_backward_func
from kernbench.pp.schedules import ScheduleName
from kernbench.tp.gradients import clip_grad_norm_, finalize_model_grads

_BUCKET: Final = 10_000_000
"""Elements; less than Megatron-Core's 40 million, since models of benches have few layers."""


class Trainer:
    """Does training steps.

    Args:
        chunks: What the calling rank holds of the model.
        optimizer: Of its parameters.
        clip: Largest norm of the whole model's gradients.
        schedule: Of the stages; by default Megatron-Core's.
    """

    def __init__(
        self,
        chunks: Sequence[GPTModel],
        optimizer: torch.optim.Optimizer,
        clip: float,
        schedule: ScheduleName | None = None,
    ) -> None:
        config, self._groups = chunks[0].config, chunks[0].pg_collection
        self._optimizer, self._clip = optimizer, clip
        self._dtype = wide_type(config)
        self._parameters: list[Any] = [each for chunk in chunks for each in chunk.parameters()]
        options = DistributedDataParallelConfig(
            overlap_grad_reduce=self._groups.dp_cp.size() > 1,
            average_in_collective=True,
            bucket_size=_BUCKET,
        )
        self._chunks = [
            DistributedDataParallel(config, options, chunk, number > 0, self._groups)
            for number, chunk in enumerate(chunks)
        ]
        config.no_sync_func = [chunk.no_sync for chunk in self._chunks]
        virtual = config.virtual_pipeline_model_parallel_size
        self._step = get_forward_backward_func(self._groups.pp.size(), virtual, schedule)

    def step(
        self,
        batches: Sequence[Batch],
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> torch.Tensor:
        """Does a step; returns this rank's sum of losses and their number, for `average_loss`.

        Args:
            batches: The rank's part of the batch, by microbatch.
            around: Makes what is around each forward pass.
        """
        with torch.profiler.record_function("gradients"):
            for parameter in self._parameters:
                parameter.grad = None
            for chunk in self._chunks:
                chunk.zero_grad_buffer()

        def forward(batches: Iterator[Batch], chunk: torch.nn.Module) -> Any:
            with around():
                return forward_step(batches, chunk)

        rows, tokens = batches[0][0].shape
        data = [iter(batches) for _ in self._chunks]
        alone = len(data) == 1
        reports = self._step(
            forward_step_func=forward,
            data_iterator=data[0] if alone else data,
            model=self._chunks[0] if alone else self._chunks,
            num_microbatches=len(batches),
            seq_length=tokens * self._groups.cp.size(),
            micro_batch_size=rows,
            pg_collection=self._groups,
        )
        with torch.profiler.record_function("gradients"):
            finalize_model_grads(self._chunks, pg_collection=self._groups)
            clip_grad_norm_(self._parameters, self._clip, pg_collection=self._groups)
        with torch.profiler.record_function("optimizer"):
            for parameter in self._parameters:
                parameter.grad = parameter.main_grad
            self._optimizer.step()
        report: torch.Tensor = sum(reports, torch.zeros(2, dtype=self._dtype, device="cuda"))
        return report
