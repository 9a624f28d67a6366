"""Moves of a tensor between the ranks of any group, with the move that its gradient takes.

| function | forward | backward |
|---|---|---|
| `copy` | identity | all-reduce |
| `reduce` | all-reduce | identity |
| `scatter` | my part of a dimension | all-gather |
| `gather` | all-gather of a dimension | reduce-scatter, or my part if replicated |
| `reduce_scatter` | reduce-scatter of a dimension | all-gather |
| `exchange` | rows to their ranks | rows back |
| `repartition` | a part of one dimension, all of another | the other way |
| `sequence_to_hidden`, `hidden_to_sequence` | the same, for rows and columns | the other way |

In a group of one rank each is the identity, without a message. No argument is ever written, and
nothing waits on the host. Parts that do not make up a tensor are refused with a
`ParallelAssertionError`. `kernbench.tp.mappings` has some of them under Megatron-Core's names.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import kernbench.torch as torch
from kernbench.parallel import exchanges
from kernbench.parallel.exchanges import Cut, Exchange, Repartition
from kernbench.parallel.members import Group, size_of

__all__ = [
    "copy",
    "exchange",
    "gather",
    "hidden_to_sequence",
    "reduce",
    "reduce_scatter",
    "repartition",
    "scatter",
    "sequence_to_hidden",
]


class _Mapping(torch.autograd.Function):
    """A pair of `exchanges`, which keeps no tensor.

    Attributes:
        pair: One takes a tensor and how to move it, and returns the result and what the other one
            needs; that takes it with the gradient, and returns the input's.
    """

    pair: ClassVar[
        tuple[
            Callable[[torch.Tensor, Any], tuple[torch.Tensor, Any]],
            Callable[[Any, torch.Tensor], torch.Tensor],
        ]
    ]

    @classmethod
    def forward(cls, ctx: Any, x: torch.Tensor, how: Any) -> torch.Tensor:
        out, ctx.saved = cls.pair[0](x, how)
        return out

    @classmethod
    def backward(cls, ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return cls.pair[1](ctx.saved, grad), None


class _Copy(_Mapping):
    pair = exchanges.copy_fwd, exchanges.copy_bwd


class _Reduce(_Mapping):
    pair = exchanges.reduce_fwd, exchanges.reduce_bwd


class _Scatter(_Mapping):
    pair = exchanges.scatter_fwd, exchanges.scatter_bwd


class _Gather(_Mapping):
    pair = exchanges.gather_fwd, exchanges.gather_bwd


class _ReduceScatter(_Mapping):
    pair = exchanges.reduce_scatter_fwd, exchanges.reduce_scatter_bwd


class _AllToAll(_Mapping):
    pair = exchanges.all_to_all_fwd, exchanges.all_to_all_bwd


class _Repartition(_Mapping):
    pair = exchanges.repartition_fwd, exchanges.repartition_bwd


class _SequenceToHidden(_Mapping):
    pair = exchanges.sp2hp_fwd, exchanges.sp2hp_bwd


class _HiddenToSequence(_Mapping):
    pair = exchanges.hp2sp_fwd, exchanges.hp2sp_bwd


def _apply(mapping: type[_Mapping], x: torch.Tensor, group: Group, how: Any) -> torch.Tensor:
    if size_of(group) == 1:
        return x
    if not torch.is_grad_enabled():
        return mapping.pair[0](x, how)[0]
    out: torch.Tensor = mapping.apply(x, how)
    return out


def copy(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Returns the tensor; its gradient is summed over the ranks."""
    return _apply(_Copy, x, group, group)


def reduce(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Returns the sum over the ranks, the same bits on each."""
    return _apply(_Reduce, x, group, group)


def scatter(x: torch.Tensor, cut: Cut) -> torch.Tensor:
    """Returns a copy of the calling rank's part of a tensor that all ranks have.

    Raises:
        ParallelAssertionError: If the parts do not make up the tensor.
    """
    return _apply(_Scatter, x, cut.group, cut)


def gather(x: torch.Tensor, cut: Cut) -> torch.Tensor:
    """Returns the parts of all ranks, concatenated.

    Raises:
        ParallelAssertionError: If there is not a size for each rank.
    """
    return _apply(_Gather, x, cut.group, cut)


def reduce_scatter(x: torch.Tensor, cut: Cut) -> torch.Tensor:
    """Returns the calling rank's part of the sum over the ranks.

    Raises:
        ParallelAssertionError: If the parts do not make up the tensor.
    """
    return _apply(_ReduceScatter, x, cut.group, cut)


def exchange(x: torch.Tensor, how: Exchange) -> torch.Tensor:
    """Gives the i-th part of each rank's rows to rank i, and returns what came, by rank.

    Raises:
        ParallelAssertionError: If the parts do not make up the tensor.
    """
    return _apply(_AllToAll, x, how.group, how)


def repartition(x: torch.Tensor, group: Group, split_dim: int, cat_dim: int) -> torch.Tensor:
    """Returns the calling rank's part of one dimension, with all of another; an all-to-all.

    Args:
        x: All of `split_dim`, and the calling rank's part of `cat_dim`; of one shape on all ranks.
        split_dim: Which dimension is dealt out.
        cat_dim: Which dimension is put together, in the order of the ranks.

    Raises:
        ParallelAssertionError: If the ranks cannot share `split_dim` equally.
    """
    return _apply(_Repartition, x, group, Repartition(group, split_dim, cat_dim))


def sequence_to_hidden(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Returns `[n, h/tp]` of `[n/tp, h]`: all rows of the calling rank's columns.

    Raises:
        ParallelAssertionError: If the ranks cannot share the columns equally.
    """
    return _apply(_SequenceToHidden, x, group, group)


def hidden_to_sequence(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Returns `[n/tp, h]` of `[n, h/tp]`: the calling rank's rows of all columns.

    Raises:
        ParallelAssertionError: If the ranks cannot share the rows equally.
    """
    return _apply(_HiddenToSequence, x, group, group)
