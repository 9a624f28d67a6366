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
import kernbench.torch.nn.functional as F
from kernbench.extend import check_index, checked_indices, fused
from kernbench.parallel.config import GemmKernel
from kernbench.parallel.exchanges import *  # noqa: F403 - names only
from kernbench.parallel.exchanges import all_gather, all_reduce
from kernbench.parallel.members import Group, refuse, refuse_assertion, size_of
from kernbench.tp.kernels import check_linear, check_sum, gemm, gemm_into

# Linear layers


class LinearOptions(NamedTuple):
    """How a linear layer works together with other ranks.

    Attributes:
        group: Which ranks.
        sequence_parallel: Whether the input is cut along dimension 0.
        allreduce_dgrad: Whether the input's gradient is summed over the ranks.
        kernel: Who multiplies.
        gradient_accumulation_fusion: Whether the weight's gradient is added to its `main_grad`.
        grad_output_buffer: A list that gets the output's gradient when the weight's is put off.
        wgrad_deferral_limit: How many gradients it takes; 0 for any number.
    """

    group: Group
    sequence_parallel: bool = False
    allreduce_dgrad: bool = False
    kernel: GemmKernel = "tile"
    gradient_accumulation_fusion: bool = False
    grad_output_buffer: list[torch.Tensor] | None = None
    wgrad_deferral_limit: int = 0


class LinearSaved(NamedTuple):
    """What the gradients of a linear layer need.

    Attributes:
        x: The input of this rank alone; None if the weight's gradient is not needed.
        weight: None if neither the input's gradient nor `main_grad` is needed.
        options: How to work together.
    """

    x: torch.Tensor | None
    weight: torch.Tensor | None
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
        ParallelError: If both `allreduce_dgrad` and `sequence_parallel` are asked for; if the
            weight's gradient is to be added to a `main_grad` that there is not.
        TensorError: If shapes, types or devices do not fit.
    """
    if options.gradient_accumulation_fusion and weight.requires_grad:
        _main_grad(weight)
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

    With `gradient_accumulation_fusion` the weight's is added to `weight.main_grad`. What is
    returned in its place is None; or, if the weight has an attribute `grad_added_to_main_grad`,
    which is then set, a tensor that was never written: zeros if `weight.zero_out_wgrad` is set.
    While the `grad_output_buffer` has room it gets `dout` instead, and nothing is added yet.

    Args:
        saved: From `linear_fwd`.
        dout: `[..., out]`.
        needed: Which of the three to compute; None stands for the others.
    """
    x, weight, options = saved
    group, sequence_parallel, allreduce_dgrad, kernel, fused_accumulation, later, limit = options
    put_off = needed[1] and later is not None and not 0 < limit <= len(later)
    alone = size_of(group) == 1
    rows = dout.reshape(-1, dout.shape[-1])
    whole, gathering = x, None
    if sequence_parallel and not alone and needed[1] and not put_off:
        assert x is not None
        whole = _like(x, x.shape[0] * size_of(group))
        gathering = dist.all_gather_into_tensor(whole, x.contiguous(), group, async_op=True)
    dx = reducing = dweight = None
    if needed[0]:
        assert weight is not None
        dx = total = gemm(rows, weight, kernel=kernel).reshape(*dout.shape[:-1], weight.shape[1])
        # Issued before the other product, so that the link works while the engines do.
        if sequence_parallel and not alone:
            dx = _like(total, total.shape[0] // size_of(group))
            reducing = dist.reduce_scatter_tensor(dx, total, group=group, async_op=True)
        elif allreduce_dgrad and not alone:
            reducing = dist.all_reduce(dx, group=group, async_op=True)
    if gathering is not None:
        gathering.wait()
    if needed[1]:
        assert whole is not None
        if put_off:
            assert later is not None
            later.append(dout)
        elif fused_accumulation:
            assert weight is not None
            add_to_main_grad(weight, whole, dout)
        else:
            dweight = gemm(rows.T, whole.reshape(-1, whole.shape[-1]), kernel=kernel)
        if fused_accumulation:
            assert weight is not None
            dweight = _placeholder(weight)
    dbias = rows.sum(0) if needed[2] else None
    if reducing is not None:
        reducing.wait()
    return dx, dweight, dbias


def add_to_main_grad(weight: torch.Tensor, x: torch.Tensor, dout: torch.Tensor) -> None:
    """Adds the gradient of a weight to its `main_grad`.

    Args:
        weight: `[out, in]`.
        x: `[..., in]`, the whole input.
        dout: `[..., out]`, the gradient of the output.

    Raises:
        ParallelError: If the weight has no `main_grad`.
    """
    rows, columns = dout.reshape(-1, dout.shape[-1]), x.reshape(-1, x.shape[-1])
    gemm_into(_main_grad(weight), rows.T, columns)


def _main_grad(weight: torch.Tensor) -> torch.Tensor:
    held: torch.Tensor | None = getattr(weight, "main_grad", None)
    if held is None:
        raise refuse(
            "gradient_accumulation_fusion adds to weight.main_grad, and the weight has none",
            hint="wrap the model in kernbench.parallel.data_parallel.DistributedDataParallel, "
            "which gives each parameter one; or set weight.main_grad = torch.zeros(weight.shape, "
            "device='cuda'); or leave gradient_accumulation_fusion out",
        )
    check_sum(held, weight.shape)
    return held


def _placeholder(weight: Any) -> torch.Tensor | None:
    if not hasattr(weight, "grad_added_to_main_grad"):
        return None
    weight.grad_added_to_main_grad = True
    make = torch.zeros if getattr(weight, "zero_out_wgrad", False) else torch.empty
    return make(weight.shape, dtype=weight.dtype, device=weight.device)


def _like(x: torch.Tensor, rows: int) -> torch.Tensor:
    return torch.empty(rows, *x.shape[1:], dtype=x.dtype, device=x.device)


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
        return checked_indices(name, values, extent, dim) - first

    return fused("aten::sub", subtract, (ids,))


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
    name = "aten::embedding_dense_backward"
    return fused(name, add, (dout, saved.ids), shape=shape, traffic=traffic)


# Cross entropy


class CrossEntropySaved(NamedTuple):
    """What the gradient of the loss needs.

    Backward takes the exponentials anew: until then no tensor of the logits' size is kept but the
    logits, and a pass makes one in float32 at a time.

    Attributes:
        logits: This rank's part.
        peak: The largest logit of the whole vocabulary.
        total: The sum of the exponentials of all logits, each over that of the largest.
        chosen: Column of the target's logit; 0 where this rank has none.
        absent: Where that is.
        smoothing: Share of the loss that goes to all classes evenly.
        classes: Size of the whole vocabulary.
    """

    logits: torch.Tensor
    peak: torch.Tensor
    total: torch.Tensor
    chosen: torch.Tensor
    absent: torch.Tensor
    smoothing: float
    classes: int


def cross_entropy_fwd(
    logits: torch.Tensor, target: torch.Tensor, label_smoothing: float, group: Group
) -> tuple[torch.Tensor, CrossEntropySaved]:
    """Returns the loss of each token, the same bits on all ranks.

    Three all-reduces of a number per token, four with smoothing.

    Args:
        logits: `[..., V/tp]`, this rank's part of the vocabulary.
        target: `[...]`, ids of the whole vocabulary; a negative one names none, see
            `vocab_parallel_cross_entropy`.
        label_smoothing: From 0 up to 1, without it.
        group: Which ranks share the vocabulary.

    Returns:
        `[...]`, float32 or wider.

    Raises:
        ParallelAssertionError: If the smoothing is out of range, or shapes do not fit.
        OperandError: If the targets are no integers.
        IndexOutOfBoundsError: If a target lies above the vocabulary (M1); found when the kernel
            runs.
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
    chosen = _targets_from(target, first, classes, logits.ndim - 1)
    absent = (chosen < 0) | (chosen >= columns)
    chosen = chosen.masked_fill(absent, 0)
    # 16-bit logits have their largest one exactly: only what is subtracted from them is wider.
    peak = _wide(logits.amax(-1))
    if size_of(group) > 1:
        dist.all_reduce(peak, dist.ReduceOp.MAX, group)
    shifted = logits - peak.unsqueeze(-1)
    picked = shifted.gather(-1, chosen.unsqueeze(-1)).squeeze(-1).masked_fill(absent, 0)
    picked = all_reduce(picked, group)
    # Spread over the other classes, the target keeps 1 - label_smoothing of the whole.
    smoothing = label_smoothing * classes / (classes - 1) if label_smoothing else 0.0
    mean = shifted.sum(-1) if smoothing else None
    total = all_reduce(shifted.exp_().sum(-1), group)
    lse = total.log()
    loss = lse - picked
    if mean is not None:
        mean = all_reduce(mean, group) / classes
        loss = (1 - smoothing) * loss + smoothing * (lse - mean)
    kept = (logits, peak, total, chosen, absent, smoothing, classes)
    return loss, CrossEntropySaved(*kept)


def cross_entropy_bwd(saved: CrossEntropySaved, dout: torch.Tensor) -> torch.Tensor:
    """Returns the gradient of this rank's logits, in their type; needs no message."""
    logits, peak, total, chosen, absent, smoothing, classes = saved
    grad = (logits - peak.unsqueeze(-1)).exp_()
    grad.mul_((dout / total).unsqueeze(-1))
    if smoothing:
        grad.sub_((dout * (smoothing / classes)).unsqueeze(-1))
    share = (dout * (smoothing - 1)).masked_fill(absent, 0)
    grad.scatter_add_(-1, chosen.unsqueeze(-1), share.unsqueeze(-1))
    return grad.to(logits.dtype)


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype is torch.float64 else x.float()


def _targets_from(target: torch.Tensor, first: int, classes: int, dim: int) -> torch.Tensor:
    """Returns `target - first`; one above the vocabulary is an error, when the kernel runs (M1).

    A negative one stays negative: no rank has it.
    """
    check_index("cross_entropy", target)

    def subtract(values: Any) -> Any:
        named = values >= 0
        checked_indices("cross_entropy", np.where(named, values, 0), classes, dim)
        return np.where(named, values - first, -1)

    return fused("aten::sub", subtract, (target,))
