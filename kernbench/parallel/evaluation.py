"""Evaluation in another layout: what must divide, how many microbatches, and whose loss it is."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.errors import OptionError, call_site, site_fact
from kernbench.parallel.groups import ProcessGroupCollection
from kernbench.parallel.layout import whole_number

__all__ = [
    "average_loss",
    "check_evaluation",
    "evaluating",
    "microbatches",
]


def check_evaluation(
    *,
    world_size: int,
    seq_length: int,
    train_cp: int,
    eval_cp: int,
    tp: int = 1,
    pp: int = 1,
    eval_global_batch_size: int,
    micro_batch_size: int = 1,
) -> int:
    """Checks that a model can be evaluated in another layout; asks nobody and sends nothing.

    Args:
        world_size: All ranks.
        seq_length: Tokens of each sequence.
        train_cp: Ranks that share a sequence while training.
        eval_cp: The same while evaluating.
        tp: Ranks that share each layer.
        pp: Stages of the pipeline.
        eval_global_batch_size: Sequences that all ranks evaluate together.
        micro_batch_size: Sequences that go through the model at a time.

    Returns:
        How many ranks, or groups of them, evaluate different sequences.

    Raises:
        OptionError: If a number is not a whole one, at least 1; if `seq_length` is no multiple of
            `2 * max(train_cp, eval_cp)`, the world none of `tp * pp * cp` in one of the layouts,
            or the batch none of `micro_batch_size * dp`.
    """
    numbers = {
        "world_size": world_size,
        "seq_length": seq_length,
        "train_cp": train_cp,
        "eval_cp": eval_cp,
        "tp": tp,
        "pp": pp,
    }
    _check_numbers("check_evaluation", numbers)
    widest = max(train_cp, eval_cp)
    _check_divides(
        "seq_length", seq_length, 2 * widest, f"2 * max(train_cp, eval_cp) = {2 * widest}"
    )
    for name, cp in (("train_cp", train_cp), ("eval_cp", eval_cp)):
        ranks = tp * pp * cp
        _check_divides("world_size", world_size, ranks, f"tp * pp * {name} = {ranks}")
    dp = world_size // (tp * pp * eval_cp)
    microbatches(eval_global_batch_size, micro_batch_size, dp)
    return dp


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
    _check_numbers("microbatches", numbers)
    at_once = micro_batch_size * dp
    _check_divides(
        "eval_global_batch_size",
        eval_global_batch_size,
        at_once,
        f"micro_batch_size * dp = {at_once}",
    )
    return eval_global_batch_size // at_once


def _check_numbers(name: str, numbers: dict[str, int]) -> None:
    for argument, number in numbers.items():
        if not whole_number(number, at_least=1):
            raise OptionError(
                f"{name}({argument}={number!r})",
                [site_fact(call_site()), "expected a whole number, at least 1"],
            )


def _check_divides(name: str, number: int, divisor: int, rule: str) -> None:
    if number % divisor:
        raise OptionError(
            f"{name}={number} is not divisible by {rule}",
            [site_fact(call_site())],
            hint=f"the next multiple is {-(-number // divisor) * divisor}",
        )


def average_loss(
    loss_sum: torch.Tensor, tokens: torch.Tensor | float, pg_collection: ProcessGroupCollection
) -> torch.Tensor:
    """Returns the mean loss of all tokens of a layout, the same on all ranks of a stage.

    Each rank of a stage calls it. Sum and number are added up over the layout's `dp_cp`: ranks
    that share a sequence have different tokens of it.

    Args:
        loss_sum: Sum of the losses of the rank's tokens, of one element.
        tokens: How many there are.
        pg_collection: The layout in which they were computed.

    Returns:
        A scalar of the type of `loss_sum`, without gradients.

    Raises:
        OptionError: If the layout has no group `dp_cp`.
        GroupError: If the calling rank may not use the group (C8, C18).
    """
    if pg_collection.dp_cp is None:
        raise OptionError(
            "average_loss: the layout has no group 'dp_cp'",
            [site_fact(call_site()), f"the collection is {pg_collection!r}"],
        )
    with torch.no_grad():
        pair = torch.stack(
            [
                loss_sum.detach().reshape(()),
                torch.as_tensor(tokens, dtype=loss_sum.dtype, device=loss_sum.device).reshape(()),
            ]
        )
        if pg_collection.dp_cp.size() > 1:
            dist.all_reduce(pair, group=pg_collection.dp_cp)
        return pair[0] / pair[1]


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
