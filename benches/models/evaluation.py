"""Evaluation of a model by the groups of any layout."""

from collections.abc import Sequence

import kernbench.torch as torch
from benches.models.gpt import GPTConfig, GPTModel, forward_step
from kernbench.parallel.evaluation import average_loss, evaluating
from kernbench.parallel.groups import ProcessGroupCollection
from kernbench.pp import get_forward_backward_func

Batch = tuple[torch.Tensor, torch.Tensor]
"""Ids and labels `[b, s/cp]` of a microbatch."""


def wide_type(config: GPTConfig) -> torch.dtype:
    """Returns the type of losses."""
    return torch.float64 if config.params_dtype is torch.float64 else torch.float32


def evaluate(
    model: GPTModel, batches: Sequence[Batch], groups: ProcessGroupCollection
) -> torch.Tensor:
    """Returns the mean loss over all tokens of all ranks, the same on all of them. Does not wait.

    Args:
        model: The calling rank's stage; it is set to evaluate, and back.
        batches: The calling rank's part, by microbatch.
        groups: Of the layout in which the model is.
    """
    step = get_forward_backward_func(groups.pp.size())
    rows, tokens = batches[0][0].shape
    with evaluating(model), torch.no_grad():
        reports = step(
            forward_step_func=forward_step,
            data_iterator=iter(batches),
            model=model,
            num_microbatches=len(batches),
            seq_length=tokens * groups.cp.size(),
            micro_batch_size=rows,
            forward_only=True,
            pg_collection=groups,
        )
        zeros = torch.zeros(2, dtype=wide_type(model.config), device="cuda")
        return average_loss(sum(reports, zeros), groups)
