"""Moves of a tensor between ranks, with the move that its gradient takes.

| function | forward | backward |
|---|---|---|
| `copy_to_tensor_model_parallel_region` | identity | all-reduce |
| `reduce_from_tensor_model_parallel_region` | all-reduce | identity |
| `scatter_to_tensor_model_parallel_region` | my part of the last dim | all-gather |
| `gather_from_tensor_model_parallel_region` | all-gather of the last dim | my part |
| `scatter_to_sequence_parallel_region` | my part of dim 0 | all-gather |
| `gather_from_sequence_parallel_region` | all-gather of dim 0 | reduce-scatter, or my part |
| `reduce_scatter_to_sequence_parallel_region` | reduce-scatter of dim 0 | all-gather |
| `all_gather_last_dim_from_tensor_parallel_region` | all-gather of the last dim | reduce-scatter |
| `reduce_scatter_last_dim_to_tensor_parallel_region` | reduce-scatter, last dim | all-gather |
| `all_to_all`, `all_to_all_sp2hp`, `all_to_all_hp2sp` | rows to their ranks | rows back |

Each takes the group, by default the calling rank's tensor-parallel one; in a group of one it is the
identity, without a message. No argument is ever written, and nothing waits on the host. Parts that
do not make up a tensor are refused with a `ParallelAssertionError`.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import kernbench.torch as torch
from kernbench.tensors.operands import guard
from kernbench.tp import primitives
from kernbench.tp.primitives import Cut, Exchange
from kernbench.tp.utils import Group, group_of, size_of

__all__ = [
    "all_gather_last_dim_from_tensor_parallel_region",
    "all_to_all",
    "all_to_all_hp2sp",
    "all_to_all_sp2hp",
    "copy_to_tensor_model_parallel_region",
    "gather_from_sequence_parallel_region",
    "gather_from_tensor_model_parallel_region",
    "reduce_from_tensor_model_parallel_region",
    "reduce_scatter_last_dim_to_tensor_parallel_region",
    "reduce_scatter_to_sequence_parallel_region",
    "scatter_to_sequence_parallel_region",
    "scatter_to_tensor_model_parallel_region",
]


class _Mapping(torch.autograd.Function):
    """A pair of `primitives`, which keeps no tensor.

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
    pair = primitives.copy_fwd, primitives.copy_bwd


class _Reduce(_Mapping):
    pair = primitives.reduce_fwd, primitives.reduce_bwd


class _Scatter(_Mapping):
    pair = primitives.scatter_fwd, primitives.scatter_bwd


class _Gather(_Mapping):
    pair = primitives.gather_fwd, primitives.gather_bwd


class _ReduceScatter(_Mapping):
    pair = primitives.reduce_scatter_fwd, primitives.reduce_scatter_bwd


class _AllToAll(_Mapping):
    pair = primitives.all_to_all_fwd, primitives.all_to_all_bwd


class _SequenceToHidden(_Mapping):
    pair = primitives.sp2hp_fwd, primitives.sp2hp_bwd


class _HiddenToSequence(_Mapping):
    pair = primitives.hp2sp_fwd, primitives.hp2sp_bwd


def _apply(mapping: type[_Mapping], x: torch.Tensor, group: Group, how: Any) -> torch.Tensor:
    if size_of(group) == 1:
        return x
    out: torch.Tensor = mapping.apply(x, how)
    return out


def copy_to_tensor_model_parallel_region(
    input_: torch.Tensor, group: Group | None = None
) -> torch.Tensor:
    """Returns the tensor; its gradient is summed over the ranks."""
    group = group_of(group)
    return _apply(_Copy, input_, group, group)


def reduce_from_tensor_model_parallel_region(
    input_: torch.Tensor, group: Group | None = None
) -> torch.Tensor:
    """Returns the sum over the ranks, the same bits on each."""
    group = group_of(group)
    return _apply(_Reduce, input_, group, group)


def scatter_to_tensor_model_parallel_region(
    input_: torch.Tensor, group: Group | None = None
) -> torch.Tensor:
    """Returns the calling rank's part of the last dimension: `[..., n]` to `[..., n/tp]`."""
    group = group_of(group)
    return _apply(_Scatter, input_, group, Cut(group, -1))


def gather_from_tensor_model_parallel_region(
    input_: torch.Tensor, group: Group | None = None
) -> torch.Tensor:
    """Returns the parts of the last dimension side by side: `[..., n]` to `[..., n*tp]`.

    The work that follows is replicated, so each rank keeps its part of its own gradient.
    """
    group = group_of(group)
    return _apply(_Gather, input_, group, Cut(group, -1, replicated=True))


def scatter_to_sequence_parallel_region(
    input_: torch.Tensor, group: Group | None = None
) -> torch.Tensor:
    """Returns the calling rank's part of dimension 0: `[n, ...]` to `[n/tp, ...]`."""
    group = group_of(group)
    return _apply(_Scatter, input_, group, Cut(group, 0))


def gather_from_sequence_parallel_region(
    input_: torch.Tensor,
    tensor_parallel_output_grad: bool = True,
    group: Group | None = None,
    output_split_sizes: Sequence[int] | None = None,
) -> torch.Tensor:
    """Returns the parts of dimension 0 below each other: `[n, ...]` to `[n*tp, ...]`.

    Args:
        input_: This rank's part.
        tensor_parallel_output_grad: Whether the ranks do different work with the result, so that
            its gradients must be summed; False if the work is replicated.
        group: Which ranks.
        output_split_sizes: Rows of each rank; None if they have equally many.
    """
    group = group_of(group)
    replicated = not tensor_parallel_output_grad
    return _apply(_Gather, input_, group, Cut(group, 0, output_split_sizes, replicated))


def reduce_scatter_to_sequence_parallel_region(
    input_: torch.Tensor,
    group: Group | None = None,
    input_split_sizes: Sequence[int] | None = None,
) -> torch.Tensor:
    """Returns the calling rank's part of the sum: `[n, ...]` to `[n/tp, ...]`.

    Args:
        input_: Of one shape on all ranks.
        group: Which ranks.
        input_split_sizes: Rows that each rank gets; None for equal parts.
    """
    group = group_of(group)
    return _apply(_ReduceScatter, input_, group, Cut(group, 0, input_split_sizes))


def all_gather_last_dim_from_tensor_parallel_region(
    input_: torch.Tensor, group: Group | None = None
) -> torch.Tensor:
    """Returns the parts of the last dimension side by side; its gradients are summed."""
    group = group_of(group)
    return _apply(_Gather, input_, group, Cut(group, -1))


def reduce_scatter_last_dim_to_tensor_parallel_region(
    input_: torch.Tensor, group: Group | None = None
) -> torch.Tensor:
    """Returns the calling rank's part of the sum: `[..., n]` to `[..., n/tp]`."""
    group = group_of(group)
    return _apply(_ReduceScatter, input_, group, Cut(group, -1))


def all_to_all(
    group: Group | None,
    input_: torch.Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
) -> torch.Tensor:
    """Gives the i-th part of each rank's rows to rank i, and returns what came, by rank.

    Args:
        group: Which ranks.
        input_: Cut along dimension 0.
        output_split_sizes: Rows that come from each rank; None for equal parts.
        input_split_sizes: Rows that go to each rank; None for equal parts.
    """
    group = group_of(group)
    return _apply(_AllToAll, input_, group, Exchange(group, output_split_sizes, input_split_sizes))


def all_to_all_sp2hp(input_: torch.Tensor, group: Group | None = None) -> torch.Tensor:
    """Returns `[n, h/tp]` of `[n/tp, h]`: all rows of the calling rank's columns."""
    group = group_of(group)
    return _apply(_SequenceToHidden, input_, group, group)


def all_to_all_hp2sp(input_: torch.Tensor, group: Group | None = None) -> torch.Tensor:
    """Returns `[n/tp, h]` of `[n, h/tp]`: the calling rank's rows of all columns."""
    group = group_of(group)
    return _apply(_HiddenToSequence, input_, group, group)


guard(globals())
