"""What ranks do with tensors that they share, along any dimension, without autograd.

The first half are plain functions. The second half are pairs: `op_fwd(...)` returns the result and
what `op_bwd(saved, dout)` needs to return the gradient; `differentiable` makes operations with a
gradient of them. All advance simulated time and change no argument. None waits on the host: the
collectives have their place in the current stream.
"""

from collections.abc import Sequence
from typing import NamedTuple

import kernbench.torch as torch
import kernbench.torch.distributed as dist
import kernbench.torch.distributed._functional_collectives as funcol
from kernbench.extend import kernel_output
from kernbench.parallel.members import Group, divide, refuse_assertion, size_of

__all__ = [
    "Cut",
    "Exchange",
    "Repartition",
    "all_gather",
    "all_reduce",
    "all_to_all_bwd",
    "all_to_all_fwd",
    "copy_bwd",
    "copy_fwd",
    "exchange",
    "gather_bwd",
    "gather_fwd",
    "hidden_to_sequence",
    "hp2sp_bwd",
    "hp2sp_fwd",
    "reduce_bwd",
    "reduce_fwd",
    "reduce_scatter",
    "reduce_scatter_bwd",
    "reduce_scatter_fwd",
    "repartition",
    "repartition_bwd",
    "repartition_fwd",
    "scatter_bwd",
    "scatter_fwd",
    "sequence_to_hidden",
    "sp2hp_bwd",
    "sp2hp_fwd",
    "take_part",
]

# Plain functions. Groups of one rank give a tensor back as it came, without a message.


def all_reduce(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Returns the sum over the ranks, the same bits on each of them.

    Args:
        x: Of one shape and dtype on all ranks.
    """
    return x if size_of(group) == 1 else funcol.all_reduce(x.contiguous(), "sum", group)


def all_gather(
    x: torch.Tensor, group: Group, dim: int, sizes: Sequence[int] | None = None
) -> torch.Tensor:
    """Returns the tensors of all ranks, concatenated.

    Args:
        x: Of one shape and dtype on all ranks, unless `sizes` says otherwise.
        dim: Along which dimension.
        sizes: Of dimension 0, by rank; only with `dim=0`.

    Raises:
        ParallelAssertionError: If there is not a size for each rank.
    """
    ranks = size_of(group)
    if ranks == 1:
        return x
    if sizes is None:
        return funcol.all_gather_tensor(x.contiguous(), dim % x.ndim, group)
    _check_sizes("output_split_sizes", sizes, ranks)
    parts = [_like(x, size) for size in sizes]
    dist.all_gather([*parts], x.contiguous(), group)
    return torch.cat(parts)


def reduce_scatter(
    x: torch.Tensor, group: Group, dim: int, sizes: Sequence[int] | None = None
) -> torch.Tensor:
    """Returns the calling rank's part of the sum over the ranks.

    Args:
        x: Of one shape and dtype on all ranks.
        dim: Along which dimension the parts lie.
        sizes: Of the parts, by rank, else they are equal; only with `dim=0`.

    Raises:
        ParallelAssertionError: If the parts do not make up the tensor.
    """
    ranks = size_of(group)
    if ranks == 1:
        return x
    if sizes is None:
        _part_size(x, ranks, dim)
        return funcol.reduce_scatter_tensor(x.contiguous(), "sum", dim % x.ndim, group)
    _check_sizes("input_split_sizes", sizes, ranks, x.shape[0])
    parts = [part.contiguous() for part in x.split([*sizes])]
    out = torch.empty_like(parts[dist.get_rank(group)])
    dist.reduce_scatter(out, [*parts], group=group)
    return out


def take_part(
    x: torch.Tensor, group: Group, dim: int, sizes: Sequence[int] | None = None
) -> torch.Tensor:
    """Returns a copy of the calling rank's part of a tensor that all ranks have.

    Args:
        group: Which ranks share it.
        dim: Along which dimension.
        sizes: Of the parts, by rank; None if they are equal.

    Raises:
        ParallelAssertionError: If the parts do not make up the tensor.
    """
    ranks = size_of(group)
    if ranks == 1:
        return x
    place = dist.get_rank(group)
    if sizes is None:
        size = _part_size(x, ranks, dim)
        start = place * size
    else:
        _check_sizes("output_split_sizes", sizes, ranks, x.shape[dim])
        start, size = sum(sizes[:place]), sizes[place]
    # A copy: nothing that is done to the part may reach the whole.
    part = x.narrow(dim, start, size)
    return part.clone() if part.is_contiguous() else part.contiguous()


def exchange(
    x: torch.Tensor,
    group: Group,
    output_sizes: Sequence[int] | None = None,
    input_sizes: Sequence[int] | None = None,
) -> torch.Tensor:
    """Gives the i-th part of each rank's rows to rank i, and returns what came, by rank.

    Args:
        x: Cut along dimension 0.
        output_sizes: Rows that come from each rank; None for equal parts.
        input_sizes: Rows that go to each rank; None for equal parts.

    Raises:
        ParallelAssertionError: If the parts do not make up the tensor.
    """
    ranks = size_of(group)
    if ranks == 1:
        return x
    if input_sizes is None:
        _part_size(x, ranks, 0)
    else:
        _check_sizes("input_split_sizes", input_sizes, ranks, x.shape[0])
    rows = x.shape[0] if output_sizes is None else sum(output_sizes)
    out = _like(x, rows)
    dist.all_to_all_single(out, x.contiguous(), output_sizes, input_sizes, group)
    return out


def repartition(x: torch.Tensor, group: Group, split_dim: int, cat_dim: int) -> torch.Tensor:
    """Returns the calling rank's part of one dimension, with all of another; an all-to-all.

    Context parallelism goes from a part of the sequence with all heads to all of the sequence with
    a part of the heads, and back: `[s/cp, b, h, d]` to `[s, b, h/cp, d]` with `split_dim=2,
    cat_dim=0`. There is a copy before the message unless `split_dim` is 0, and one after it unless
    `cat_dim` is 0.

    Args:
        x: All of `split_dim`, and the calling rank's part of `cat_dim`; of one shape on all ranks.
        split_dim: Which dimension is dealt out.
        cat_dim: Which dimension is put together, in the order of the ranks.

    Raises:
        ParallelAssertionError: If the ranks cannot share `split_dim` equally.
    """
    ranks = size_of(group)
    if ranks == 1:
        return x
    rows = x
    if split_dim % x.ndim:
        rows = torch.cat(x.split(divide(x.shape[split_dim], ranks), split_dim))
    came = exchange(rows, group)
    return torch.cat(came.chunk(ranks), cat_dim) if cat_dim % x.ndim else came


def sequence_to_hidden(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Returns `[n, h/tp]` of `[n/tp, h]`: all rows of the calling rank's columns."""
    return x if size_of(group) == 1 else repartition(x.reshape(-1, x.shape[-1]), group, -1, 0)


def hidden_to_sequence(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Returns `[n/tp, h]` of `[n, h/tp]`: the calling rank's rows of all columns."""
    return x if size_of(group) == 1 else repartition(x.reshape(-1, x.shape[-1]), group, 0, -1)


def _like(x: torch.Tensor, rows: int) -> torch.Tensor:
    # All of it is written, and nobody reads it before: no element needs a mark.
    if x.is_cpu:
        return torch.empty(rows, *x.shape[1:], dtype=x.dtype, device=x.device)
    return kernel_output([rows, *x.shape[1:]], x.dtype, x.device)


def _part_size(x: torch.Tensor, ranks: int, dim: int) -> int:
    if dim == 0 and x.shape[0] % ranks:
        raise refuse_assertion(
            "First dimension of the tensor should be divisible by tensor parallel size",
            f"it is {x.shape[0]} of {list(x.shape)}, for {ranks} ranks",
        )
    return divide(x.shape[dim], ranks)


def _check_sizes(label: str, sizes: Sequence[int], ranks: int, total: int | None = None) -> None:
    if len(sizes) != ranks:
        raise refuse_assertion(f"{label} has {len(sizes)} sizes for {ranks} ranks")
    if total is not None and sum(sizes) != total:
        raise refuse_assertion(f"{label}={list(sizes)} does not add up to {total} rows")


# Pairs: their results and gradients have the shapes of the table in `differentiable`.


def copy_fwd(x: torch.Tensor, group: Group) -> tuple[torch.Tensor, Group]:
    """Returns the tensor itself."""
    return x, group


def copy_bwd(saved: Group, dout: torch.Tensor) -> torch.Tensor:
    """Sums the gradients."""
    return all_reduce(dout, saved)


def reduce_fwd(x: torch.Tensor, group: Group) -> tuple[torch.Tensor, Group]:
    """Sums the tensors."""
    return all_reduce(x, group), group


def reduce_bwd(saved: Group, dout: torch.Tensor) -> torch.Tensor:
    """Returns the gradient itself."""
    del saved
    return dout


class Cut(NamedTuple):
    """How ranks share a dimension.

    Attributes:
        group: Which ranks.
        dim: Which dimension.
        sizes: Of the parts, by rank; None if they are equal.
        replicated: Whether every rank has the whole gradient, which need not be summed.
    """

    group: Group
    dim: int
    sizes: Sequence[int] | None = None
    replicated: bool = False


def scatter_fwd(x: torch.Tensor, cut: Cut) -> tuple[torch.Tensor, Cut]:
    """Keeps the calling rank's part."""
    return take_part(x, cut.group, cut.dim, cut.sizes), cut


def scatter_bwd(saved: Cut, dout: torch.Tensor) -> torch.Tensor:
    """Gathers the parts of the gradient."""
    return all_gather(dout, saved.group, saved.dim, saved.sizes)


def gather_fwd(x: torch.Tensor, cut: Cut) -> tuple[torch.Tensor, Cut]:
    """Gathers the parts."""
    return all_gather(x, cut.group, cut.dim, cut.sizes), cut


def gather_bwd(saved: Cut, dout: torch.Tensor) -> torch.Tensor:
    """Returns the calling rank's part of the gradients' sum, or of its own one if replicated."""
    part = take_part if saved.replicated else reduce_scatter
    return part(dout, saved.group, saved.dim, saved.sizes)


def reduce_scatter_fwd(x: torch.Tensor, cut: Cut) -> tuple[torch.Tensor, Cut]:
    """Keeps the calling rank's part of the sum."""
    return reduce_scatter(x, cut.group, cut.dim, cut.sizes), cut


def reduce_scatter_bwd(saved: Cut, dout: torch.Tensor) -> torch.Tensor:
    """Gathers the parts of the gradient."""
    return all_gather(dout, saved.group, saved.dim, saved.sizes)


class Exchange(NamedTuple):
    """How ranks exchange rows.

    Attributes:
        group: Which ranks.
        output_sizes: Rows that come from each rank; None for equal parts.
        input_sizes: Rows that go to each rank; None for equal parts.
    """

    group: Group
    output_sizes: Sequence[int] | None = None
    input_sizes: Sequence[int] | None = None


def all_to_all_fwd(x: torch.Tensor, how: Exchange) -> tuple[torch.Tensor, Exchange]:
    """Exchanges rows."""
    return exchange(x, how.group, how.output_sizes, how.input_sizes), how


def all_to_all_bwd(saved: Exchange, dout: torch.Tensor) -> torch.Tensor:
    """Sends the gradients of rows back to where they came from."""
    return exchange(dout, saved.group, saved.input_sizes, saved.output_sizes)


class Repartition(NamedTuple):
    """From which dimension to which other one a tensor is dealt out anew, see `repartition`.

    Attributes:
        group: Which ranks.
        split_dim: Which dimension is dealt out.
        cat_dim: Which dimension is put together.
    """

    group: Group
    split_dim: int
    cat_dim: int


def repartition_fwd(x: torch.Tensor, how: Repartition) -> tuple[torch.Tensor, Repartition]:
    """Deals one dimension out and puts another one together."""
    return repartition(x, how.group, how.split_dim, how.cat_dim), how


def repartition_bwd(saved: Repartition, dout: torch.Tensor) -> torch.Tensor:
    """Goes the other way with the gradient."""
    return repartition(dout, saved.group, saved.cat_dim, saved.split_dim)


def sp2hp_fwd(x: torch.Tensor, group: Group) -> tuple[torch.Tensor, tuple[Group, torch.Size]]:
    """Returns `[n, h/tp]` of `[n/tp, h]`."""
    return sequence_to_hidden(x, group), (group, x.shape)


def sp2hp_bwd(saved: tuple[Group, torch.Size], dout: torch.Tensor) -> torch.Tensor:
    """Returns `[n/tp, h]` of `[n, h/tp]`, in the shape of the input."""
    return hidden_to_sequence(dout, saved[0]).reshape(saved[1])


def hp2sp_fwd(x: torch.Tensor, group: Group) -> tuple[torch.Tensor, tuple[Group, torch.Size]]:
    """Returns `[n/tp, h]` of `[n, h/tp]`."""
    return hidden_to_sequence(x, group), (group, x.shape)


def hp2sp_bwd(saved: tuple[Group, torch.Size], dout: torch.Tensor) -> torch.Tensor:
    """Returns `[n, h/tp]` of `[n/tp, h]`, in the shape of the input."""
    return sequence_to_hidden(dout, saved[0]).reshape(saved[1])
