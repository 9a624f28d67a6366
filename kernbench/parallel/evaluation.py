"""Evaluation in any layout: how many microbatches, whose loss it is, and modules set to it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.errors import OptionError, call_site, site_fact
from kernbench.parallel.groups import ProcessGroupCollection
from kernbench.parallel.layout import whole_number
from kernbench.parallel.stages import broadcast_from_last_stage

__all__ = ["average_loss", "evaluating", "microbatches"]


def microbatches(eval_global_batch_size: int, micro_batch_size: int, dp: int) -> int:
    """Returns how many microbatches each rank evaluates.

    `dp` is that of the layout in which they are evaluated, not of training: the layout with more
    ranks for each sequence has more microbatches.

    Args:
        eval_global_batch_size: Sequences that all ranks evaluate together.
        micro_batch_size: Sequences that go through the model at a time.
        dp: How many ranks, or groups of them, evaluate different sequences.

    Raises:
        OptionError: If the batch is no multiple of `micro_batch_size * dp`.
    """
    numbers = {
        "eval_global_batch_size": eval_global_batch_size,
        "micro_batch_size": micro_batch_size,
        "dp": dp,
    }
    for argument, number in numbers.items():
        if not whole_number(number, at_least=1):
            raise OptionError(
                f"microbatches({argument}={number!r})",
                [site_fact(call_site()), "expected a whole number, at least 1"],
            )
    at_once = micro_batch_size * dp
    if eval_global_batch_size % at_once:
        raise OptionError(
            f"eval_global_batch_size={eval_global_batch_size} is not divisible by "
            f"micro_batch_size * dp = {at_once}",
            [site_fact(call_site())],
            hint=f"the next multiple is {-(-eval_global_batch_size // at_once) * at_once}",
        )
    return eval_global_batch_size // at_once


def average_loss(reports: torch.Tensor, pg_collection: ProcessGroupCollection) -> torch.Tensor:
    """Returns the mean loss of all tokens of a layout, the same on all ranks. Does not wait.

    Each rank calls it. Sums and numbers are added up over the layout's `dp_cp`, since ranks that
    share a sequence have different tokens of it; then the last stage of `pp` tells the others.

    Args:
        reports: `[..., 2]`, sums of the losses of the rank's tokens and how many they are;
            overwritten. Only those of the last stage count, others give any of the same shape.
        pg_collection: The layout in which they were computed; no group `pp` is one stage.

    Returns:
        A tensor `[...]` of the type of `reports`.

    Raises:
        OptionError: If the layout has no group `dp_cp`.
        GroupError: If the calling rank may not use a group (C8, C18).
    """
    if pg_collection.dp_cp is None:
        raise OptionError(
            "average_loss: the layout has no group 'dp_cp'",
            [site_fact(call_site()), f"the collection is {pg_collection!r}"],
        )
    dist.all_reduce(reports, group=pg_collection.dp_cp)
    if pg_collection.pp is not None and pg_collection.pp.size() > 1:
        broadcast_from_last_stage(reports, pg_collection.pp)
    return reports[..., 0] / reports[..., 1]


@contextmanager
def evaluating(model: torch.nn.Module | Sequence[torch.nn.Module]) -> Iterator[None]:
    """Sets a model to evaluation inside of a `with` block, and each module back however it ends.

    Args:
        model: A module, or the pieces of a pipeline that the rank holds.
    """
    chunks = [model] if isinstance(model, torch.nn.Module) else [*model]
    before = {
        id(module): (module, module.training) for chunk in chunks for module in chunk.modules()
    }
    try:
        for chunk in chunks:
            chunk.eval()
        yield
    finally:
        for module, training in before.values():
            module.training = training
