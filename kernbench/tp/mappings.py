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

from collections.abc import Sequence

import kernbench.torch as torch
from kernbench.errors import UnsupportedError, call_site, site_fact
from kernbench.extend import guard
from kernbench.parallel import differentiable
from kernbench.parallel.exchanges import Cut, Exchange
from kernbench.tp.utils import Group, group_of

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


def copy_to_tensor_model_parallel_region(
    input_: torch.Tensor, group: Group | None = None
) -> torch.Tensor:
    """Returns the tensor; its gradient is summed over the ranks."""
    return differentiable.copy(input_, group_of(group))


def reduce_from_tensor_model_parallel_region(
    input_: torch.Tensor, group: Group | None = None
) -> torch.Tensor:
    """Returns the sum over the ranks, the same bits on each."""
    return differentiable.reduce(input_, group_of(group))


def scatter_to_tensor_model_parallel_region(
    input_: torch.Tensor, group: Group | None = None
) -> torch.Tensor:
    """Returns the calling rank's part of the last dimension: `[..., n]` to `[..., n/tp]`.

    Raises:
        ParallelAssertionError: If the ranks cannot share it equally.
    """
    return differentiable.scatter(input_, Cut(group_of(group), -1))


def gather_from_tensor_model_parallel_region(
    input_: torch.Tensor, group: Group | None = None
) -> torch.Tensor:
    """Returns the parts of the last dimension side by side: `[..., n]` to `[..., n*tp]`.

    The work that follows is replicated, so each rank keeps its part of its own gradient.
    """
    return differentiable.gather(input_, Cut(group_of(group), -1, replicated=True))


def scatter_to_sequence_parallel_region(
    input_: torch.Tensor, group: Group | None = None
) -> torch.Tensor:
    """Returns the calling rank's part of dimension 0: `[n, ...]` to `[n/tp, ...]`.

    Raises:
        ParallelAssertionError: If the ranks cannot share it equally.
    """
    return differentiable.scatter(input_, Cut(group_of(group), 0))


def gather_from_sequence_parallel_region(
    input_: torch.Tensor,
    tensor_parallel_output_grad: bool = True,
    group: Group | None = None,
    output_split_sizes: Sequence[int] | None = None,
    use_global_buffer: bool = False,
) -> torch.Tensor:
    """Returns the parts of dimension 0 below each other: `[n, ...]` to `[n*tp, ...]`.

    Args:
        input_: This rank's part.
        tensor_parallel_output_grad: Whether the ranks do different work with the result, so that
            its gradients must be summed; False if the work is replicated.
        output_split_sizes: Rows of each rank; None if they have equally many.
        use_global_buffer: Must be False: the result has memory of its own.

    Raises:
        ParallelAssertionError: If the parts do not make up the tensor.
        UnsupportedError: If it is to lie in the global memory buffer.
    """
    _refuse_buffer("gather_from_sequence_parallel_region", use_global_buffer)
    replicated = not tensor_parallel_output_grad
    return differentiable.gather(input_, Cut(group_of(group), 0, output_split_sizes, replicated))


def reduce_scatter_to_sequence_parallel_region(
    input_: torch.Tensor,
    group: Group | None = None,
    input_split_sizes: Sequence[int] | None = None,
    use_global_buffer: bool = False,
) -> torch.Tensor:
    """Returns the calling rank's part of the sum: `[n, ...]` to `[n/tp, ...]`.

    Args:
        input_: Of one shape on all ranks.
        input_split_sizes: Rows that each rank gets; None for equal parts.
        use_global_buffer: Must be False: the result has memory of its own.

    Raises:
        ParallelAssertionError: If the parts do not make up the tensor.
        UnsupportedError: If it is to lie in the global memory buffer.
    """
    _refuse_buffer("reduce_scatter_to_sequence_parallel_region", use_global_buffer)
    return differentiable.reduce_scatter(input_, Cut(group_of(group), 0, input_split_sizes))


def all_gather_last_dim_from_tensor_parallel_region(
    input_: torch.Tensor, group: Group | None = None
) -> torch.Tensor:
    """Returns the parts of the last dimension side by side; its gradients are summed."""
    return differentiable.gather(input_, Cut(group_of(group), -1))


def reduce_scatter_last_dim_to_tensor_parallel_region(
    input_: torch.Tensor, group: Group | None = None
) -> torch.Tensor:
    """Returns the calling rank's part of the sum: `[..., n]` to `[..., n/tp]`.

    Raises:
        ParallelAssertionError: If the ranks cannot share the last dimension equally.
    """
    return differentiable.reduce_scatter(input_, Cut(group_of(group), -1))


def all_to_all(
    group: Group | None,
    input_: torch.Tensor,
    output_split_sizes_: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
) -> torch.Tensor:
    """Gives the i-th part of each rank's rows to rank i, and returns what came, by rank.

    Args:
        input_: Cut along dimension 0.
        output_split_sizes_: Rows that come from each rank; None for equal parts.
        input_split_sizes: Rows that go to each rank; None for equal parts.

    Raises:
        ParallelAssertionError: If the parts do not make up the tensor.
    """
    return differentiable.exchange(
        input_, Exchange(group_of(group), output_split_sizes_, input_split_sizes)
    )


def all_to_all_sp2hp(input_: torch.Tensor, group: Group | None = None) -> torch.Tensor:
    """Returns `[n, h/tp]` of `[n/tp, h]`: all rows of the calling rank's columns.

    Raises:
        ParallelAssertionError: If the ranks cannot share the columns equally.
    """
    return differentiable.sequence_to_hidden(input_, group_of(group))


def all_to_all_hp2sp(input_: torch.Tensor, group: Group | None = None) -> torch.Tensor:
    """Returns `[n/tp, h]` of `[n, h/tp]`: the calling rank's rows of all columns.

    Raises:
        ParallelAssertionError: If the ranks cannot share the rows equally.
    """
    return differentiable.hidden_to_sequence(input_, group_of(group))


def _refuse_buffer(name: str, use_global_buffer: bool) -> None:
    if use_global_buffer:
        raise UnsupportedError(
            f"{name}(use_global_buffer=True) is not simulated",
            [site_fact(call_site())],
            hint="leave it out: the values are the same, in memory that the result alone has",
        )


guard(globals())
