"""Tensor-parallel operations as pairs of plain functions, without autograd.

`op_fwd(...)` returns the result and what `op_bwd(saved, dout)` needs to return the gradients. Both
advance simulated time; neither records anything or changes its arguments. `mappings`, `layers` and
`cross_entropy` make operations with a gradient of them.

None of them waits on the host: collectives have their place in the current stream, except where a
docstring says that they run beside a product of matrices.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import kernbench.torch as torch
import kernbench.torch.distributed as dist
import kernbench.torch.distributed._functional_collectives as funcol
import kernbench.torch.nn.functional as F
from kernbench.memory import dtypes
from kernbench.operations.fused import kernel as fused_kernel
from kernbench.operations.shaping import check_index, checked
from kernbench.tp.config import GemmKernel
from kernbench.tp.kernels import check_linear, gemm
from kernbench.tp.utils import (
    Group,
    divide,
    refuse,
    refuse_assertion,
    size_of,
    split_tensor_along_last_dim,
)

# What ranks do with a tensor. Groups of one rank give it back as it came, without a message.


def all_reduce(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Returns the sum over the ranks, the same bits on each of them.

    Args:
        x: Of one shape and dtype on all ranks.
        group: Which ranks.
    """
    return x if size_of(group) == 1 else funcol.all_reduce(x.contiguous(), "sum", group)


def all_gather(
    x: torch.Tensor, group: Group, dim: int, sizes: Sequence[int] | None = None
) -> torch.Tensor:
    """Returns the tensors of all ranks, concatenated.

    Args:
        x: Of one shape and dtype on all ranks, unless `sizes` says otherwise.
        group: Which ranks.
        dim: Along which dimension.
        sizes: Of dimension 0, by rank; only with `dim=0`.

    Raises:
        ParallelAssertionError: If there is not a size for each rank.
    """
    if size_of(group) == 1:
        return x
    if sizes is None:
        return funcol.all_gather_tensor(x.contiguous(), dim % x.ndim, group)
    _check_sizes("output_split_sizes", sizes, group)
    parts = [_like(x, size, *x.shape[1:]) for size in sizes]
    dist.all_gather([*parts], x.contiguous(), group)
    return torch.cat(parts)


def reduce_scatter(
    x: torch.Tensor, group: Group, dim: int, sizes: Sequence[int] | None = None
) -> torch.Tensor:
    """Returns the calling rank's part of the sum over the ranks.

    Args:
        x: Of one shape and dtype on all ranks.
        group: Which ranks.
        dim: Along which dimension the parts lie.
        sizes: Of the parts, by rank, else they are equal; only with `dim=0`.

    Raises:
        ParallelAssertionError: If the parts do not make up the tensor.
    """
    if size_of(group) == 1:
        return x
    if sizes is None:
        _part_size(x, group, dim)
        return funcol.reduce_scatter_tensor(x.contiguous(), "sum", dim % x.ndim, group)
    _check_sizes("input_split_sizes", sizes, group, x.shape[0])
    parts = [part.contiguous() for part in x.split([*sizes])]
    out = torch.empty_like(parts[dist.get_rank(group)])
    dist.reduce_scatter(out, [*parts], group=group)
    return out


def take_part(
    x: torch.Tensor, group: Group, dim: int, sizes: Sequence[int] | None = None
) -> torch.Tensor:
    """Returns a copy of the calling rank's part of a tensor that all ranks have.

    Args:
        x: The tensor.
        group: Which ranks share it.
        dim: Along which dimension.
        sizes: Of the parts, by rank; None if they are equal.

    Raises:
        ParallelAssertionError: If the parts do not make up the tensor.
    """
    if size_of(group) == 1:
        return x
    place = dist.get_rank(group)
    if sizes is None:
        size = _part_size(x, group, dim)
        start = place * size
    else:
        _check_sizes("output_split_sizes", sizes, group, x.shape[dim])
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
        group: Which ranks.
        output_sizes: Rows that come from each rank; None for equal parts.
        input_sizes: Rows that go to each rank; None for equal parts.

    Raises:
        ParallelAssertionError: If the parts do not make up the tensor.
    """
    if size_of(group) == 1:
        return x
    if input_sizes is None:
        _part_size(x, group, 0)
    else:
        _check_sizes("input_split_sizes", input_sizes, group, x.shape[0])
    rows = x.shape[0] if output_sizes is None else sum(output_sizes)
    out = _like(x, rows, *x.shape[1:])
    dist.all_to_all_single(out, x.contiguous(), output_sizes, input_sizes, group)
    return out


def sequence_to_hidden(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Returns `[n, h/tp]` of `[n/tp, h]`: all rows of the calling rank's columns."""
    ranks = size_of(group)
    if ranks == 1:
        return x
    return exchange(
        torch.cat(split_tensor_along_last_dim(x.reshape(-1, x.shape[-1]), ranks)), group
    )


def hidden_to_sequence(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Returns `[n/tp, h]` of `[n, h/tp]`: the calling rank's rows of all columns."""
    ranks = size_of(group)
    if ranks == 1:
        return x
    return torch.cat(exchange(x.reshape(-1, x.shape[-1]), group).chunk(ranks), -1)


def _like(x: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=x.dtype, device=x.device)


def _part_size(x: torch.Tensor, group: Group, dim: int) -> int:
    ranks = size_of(group)
    if dim == 0 and x.shape[0] % ranks:
        raise refuse_assertion(
            "First dimension of the tensor should be divisible by tensor parallel size",
            f"it is {x.shape[0]} of {list(x.shape)}, for {ranks} ranks",
        )
    return divide(x.shape[dim], ranks)


def _check_sizes(label: str, sizes: Sequence[int], group: Group, total: int | None = None) -> None:
    ranks = size_of(group)
    if len(sizes) != ranks:
        raise refuse_assertion(f"{label} has {len(sizes)} sizes for {ranks} ranks")
    if total is not None and sum(sizes) != total:
        raise refuse_assertion(f"{label}={list(sizes)} does not add up to {total} rows")


# Mappings: their results and gradients have the shapes of the table in `mappings`.


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


# Linear layers


class LinearOptions(NamedTuple):
    """How a linear layer works together with other ranks.

    Attributes:
        group: Which ranks.
        sequence_parallel: Whether the input is cut along dimension 0.
        allreduce_dgrad: Whether the input's gradient is summed over the ranks.
        kernel: Who multiplies.
    """

    group: Group
    sequence_parallel: bool = False
    allreduce_dgrad: bool = False
    kernel: GemmKernel = "tile"


class LinearSaved(NamedTuple):
    """What the gradients of a linear layer need: the input is that of this rank alone."""

    x: torch.Tensor
    weight: torch.Tensor
    options: LinearOptions


def linear_fwd(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, options: LinearOptions
) -> tuple[torch.Tensor, LinearSaved]:
    """Returns `x @ weight.T + bias`, of the gathered input if that is cut.

    Args:
        x: `[..., in]`; with `sequence_parallel` this rank's part of dimension 0.
        weight: `[out, in]`, this rank's.
        bias: `[out]`, this rank's.
        options: How to work together.

    Raises:
        ParallelError: If both `allreduce_dgrad` and `sequence_parallel` are asked for.
        TensorError: If shapes, types or devices do not fit.
    """
    if options.allreduce_dgrad and options.sequence_parallel:
        raise refuse("`allreduce_dgrad` and `sequence_parallel` cannot be enabled at the same time")
    check_linear(x, weight, bias)
    whole = all_gather(x, options.group, 0) if options.sequence_parallel else x
    flat = whole.reshape(-1, whole.shape[-1])
    out = gemm(flat, weight.T, bias, kernel=options.kernel)
    # The part is kept, not the whole: backward gathers again, and memory stays small.
    return out.reshape(*whole.shape[:-1], weight.shape[0]), LinearSaved(x, weight, options)


def linear_bwd(
    saved: LinearSaved, dout: torch.Tensor, needed: Sequence[bool] = (True, True, True)
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Returns the gradients of input, weight and bias.

    Gathering the input runs beside the product that gives its gradient, and summing that beside
    the product that gives the weight's. If the input's is not needed, no rank may need it.

    Args:
        saved: From `linear_fwd`.
        dout: `[..., out]`.
        needed: Which of the three to compute; None stands for the others.
    """
    x, weight, (group, sequence_parallel, allreduce_dgrad, kernel) = saved
    alone = size_of(group) == 1
    rows = dout.reshape(-1, dout.shape[-1])
    whole, gathering = x, None
    if sequence_parallel and not alone and needed[1]:
        whole = _like(x, x.shape[0] * size_of(group), *x.shape[1:])
        gathering = dist.all_gather_into_tensor(whole, x.contiguous(), group, async_op=True)
    dx = reducing = dweight = None
    if needed[0]:
        dx = total = gemm(rows, weight, kernel=kernel).reshape(*dout.shape[:-1], weight.shape[1])
        # Issued before the other product, so that the link works while the engines do.
        if sequence_parallel and not alone:
            dx = _like(x, *x.shape)
            reducing = dist.reduce_scatter_tensor(dx, total, group=group, async_op=True)
        elif allreduce_dgrad and not alone:
            reducing = dist.all_reduce(dx, group=group, async_op=True)
    if gathering is not None:
        gathering.wait()
    if needed[1]:
        dweight = gemm(rows.T, whole.reshape(-1, whole.shape[-1]), kernel=kernel)
    dbias = rows.sum(0) if needed[2] else None
    if reducing is not None:
        reducing.wait()
    return dx, dweight, dbias


# Embeddings


class EmbeddingSaved(NamedTuple):
    """What the gradient of a vocabulary's rows needs.

    Attributes:
        ids: Rows of this rank's table; those of other ranks lie outside of it.
        rows: How many this rank has.
    """

    ids: torch.Tensor
    rows: int


def _ids_from(name: str, ids: torch.Tensor, first: int, extent: int, dim: int) -> torch.Tensor:
    """Returns `ids - first`; an id that no rank has is an error (M1), when the kernel runs."""
    check_index(name, ids)

    def subtract(values: Any) -> Any:
        return checked(name, values, extent, dim, code="M1") - first

    return fused_kernel("sub", subtract, (ids,), ids.window.shape, ids.dtype)


def embedding_fwd(
    ids: torch.Tensor, weight: torch.Tensor, first: int, vocabulary: int
) -> tuple[torch.Tensor, EmbeddingSaved]:
    """Returns the rows that this rank has of those that `ids` names, and zeros for all others.

    Args:
        ids: Integers, of any shape.
        weight: `[rows, width]`, this rank's part of the vocabulary.
        first: The id of its first row.
        vocabulary: Rows of all ranks together.

    Raises:
        OperandError: If the ids are no integers.
        IndexOutOfBoundsError: If no rank has such a row (M1); found when the kernel runs.
    """
    rows = weight.shape[0]
    local = _ids_from("embedding", ids, first, vocabulary, 0)
    absent = (local < 0) | (local >= rows)
    # Row 0 stands in for rows of others, only so that there is something to read.
    taken = F.embedding(local.masked_fill(absent, 0), weight)
    return taken.masked_fill(absent.unsqueeze(-1), 0), EmbeddingSaved(local, rows)


def embedding_bwd(saved: EmbeddingSaved, dout: torch.Tensor) -> torch.Tensor:
    """Returns the gradient of the weight; ids of other ranks add to none of its rows."""
    shape = (saved.rows, dout.shape[-1])

    def add(grad: Any, ids: Any) -> Any:
        mine = (ids >= 0) & (ids < saved.rows)
        total = np.zeros(shape, grad.dtype)
        np.add.at(total, ids[mine], grad[mine])
        return total

    # The zeros, and each row of the gradient read and added.
    traffic = shape[0] * shape[1] * dout.itemsize + 3 * dout.nbytes + saved.ids.nbytes
    operands = (dout, saved.ids)
    name = "embedding_dense_backward"
    return fused_kernel(name, add, operands, shape, dout.dtype, traffic=traffic)


# Cross entropy


class CrossEntropySaved(NamedTuple):
    """What the gradient of the loss needs.

    Attributes:
        powers: Exponentials of the logits, over that of the largest.
        total: Their sum over the whole vocabulary.
        chosen: Column of the target's logit; 0 where another rank has it.
        absent: Where that is.
        smoothing: Share of the loss that goes to all classes evenly.
        classes: Size of the whole vocabulary.
        dtype: Of the logits.
    """

    powers: torch.Tensor
    total: torch.Tensor
    chosen: torch.Tensor
    absent: torch.Tensor
    smoothing: float
    classes: int
    dtype: torch.dtype


def cross_entropy_fwd(
    logits: torch.Tensor, target: torch.Tensor, label_smoothing: float, group: Group
) -> tuple[torch.Tensor, CrossEntropySaved]:
    """Returns the loss of each token, the same bits on all ranks.

    Three all-reduces of a number per token, four with smoothing.

    Args:
        logits: `[..., V/tp]`, this rank's part of the vocabulary.
        target: `[...]`, ids of the whole vocabulary.
        label_smoothing: From 0 up to 1, without it.
        group: Which ranks share the vocabulary.

    Returns:
        `[...]`, float32 or wider.

    Raises:
        ParallelAssertionError: If the smoothing is out of range, or shapes do not fit.
        OperandError: If the targets are no integers.
        IndexOutOfBoundsError: If there is no such class (M1); found when the kernel runs.
    """
    if not 0 <= label_smoothing < 1:
        raise refuse_assertion(f"label_smoothing must be in [0, 1); got {label_smoothing}")
    if logits.shape[:-1] != target.shape:
        raise refuse_assertion(
            f"a target of shape {list(target.shape)} does not fit logits of shape "
            f"{list(logits.shape)}"
        )
    columns = logits.shape[-1]
    classes = columns * size_of(group)
    if label_smoothing and classes < 2:
        raise refuse_assertion(
            f"label_smoothing={label_smoothing} needs another class to give a share to; the "
            f"vocabulary has {classes}"
        )
    first = dist.get_rank(group) * columns
    chosen = _ids_from("cross_entropy", target, first, classes, logits.ndim - 1)
    wide = logits if logits.dtype is dtypes.float64 else logits.float()
    peak = wide.amax(-1)
    if size_of(group) > 1:
        dist.all_reduce(peak, dist.ReduceOp.MAX, group)
    shifted = wide - peak.unsqueeze(-1)
    absent = (chosen < 0) | (chosen >= columns)
    chosen = chosen.masked_fill(absent, 0)
    picked = shifted.gather(-1, chosen.unsqueeze(-1)).squeeze(-1).masked_fill(absent, 0)
    picked = all_reduce(picked, group)
    powers = shifted.exp()
    total = all_reduce(powers.sum(-1), group)
    lse = total.log()
    # Spread over the other classes, the target keeps 1 - label_smoothing of the whole.
    smoothing = label_smoothing * classes / (classes - 1) if label_smoothing else 0.0
    loss = lse - picked
    if smoothing:
        mean = all_reduce(shifted.sum(-1), group) / classes
        loss = (1 - smoothing) * loss + smoothing * (lse - mean)
    kept = (powers, total, chosen, absent, smoothing, classes, logits.dtype)
    return loss, CrossEntropySaved(*kept)


def cross_entropy_bwd(saved: CrossEntropySaved, dout: torch.Tensor) -> torch.Tensor:
    """Returns the gradient of this rank's logits, in their type; needs no message."""
    powers, total, chosen, absent, smoothing, classes, dtype = saved
    grad = powers / total.unsqueeze(-1)
    if smoothing:
        grad = grad - smoothing / classes
    share = torch.full_like(dout, smoothing - 1).masked_fill(absent, 0)
    grad.scatter_add_(-1, chosen.unsqueeze(-1), share.unsqueeze(-1))
    return (grad * dout.unsqueeze(-1)).to(dtype)
