"""Padding, one-hot codes, lengths and angles of vectors, made of other operations."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from kernbench.autograd.derivatives_shaping import padded
from kernbench.errors import OptionError, call_site, site_fact
from kernbench.memory import Array, dtypes
from kernbench.operations.creation import zeros
from kernbench.operations.elementwise import broadcast
from kernbench.operations.from_values import tensor
from kernbench.operations.pointwise import clamp, clamp_
from kernbench.operations.reductions import norm
from kernbench.operations.shaping import index_select, moved
from kernbench.operations.views import ints_of
from kernbench.tensors.errors import TensorError, refuse
from kernbench.tensors.grad_modes import no_grad
from kernbench.tensors.operands import read_in_cpp
from kernbench.tensors.tensor import Tensor

read_in_cpp(__name__)

__all__ = ["cosine_similarity", "normalize", "one_hot", "pad", "pairwise_distance"]

PadMode = Literal["constant", "reflect", "replicate", "circular"]


def pad(
    input: Tensor, pad: Sequence[int], mode: PadMode = "constant", value: float | None = None
) -> Tensor:
    """Returns a tensor with elements added around it, or taken away.

    The end of the other side takes a kernel for each dimension, any other mode one operation.

    Args:
        pad: How many elements to add before and after the last dimension, before and after the one
            before it, and so on; negative numbers take elements away.
        mode: What to add: a `constant`, the elements `reflect`ed at the first and last ones,
            `replicate`s of these, or those of the other end (`circular`).
        value: The constant; 0 by default.

    Raises:
        OptionError: If there are not two numbers a dimension, the mode is unknown, or it needs
            more elements than there are.
        TensorError: If elements are taken away that are not there.
    """
    counts, shape = ints_of((pad,)), input.window.shape
    if len(counts) % 2 or len(counts) > 2 * len(shape):
        raise OptionError(
            f"Padding length must be divisible by 2 and at most twice the number of dimensions of "
            f"the input, got {list(counts)} for a shape of {list(shape)}",
            [site_fact(call_site())],
        )
    sides = {len(shape) - 1 - k: counts[2 * k : 2 * k + 2] for k in range(len(counts) // 2)}
    extents = [n + sum(sides.get(dim, (0, 0))) for dim, n in enumerate(shape)]
    if min(extents, default=0) < 0:
        raise TensorError(
            f"The input size {list(shape)}, plus the padding {list(counts)}, resulted in a "
            f"negative output size {extents}",
            [site_fact(call_site())],
        )
    if mode == "constant":
        ends = [sides.get(dim, (0, 0)) for dim in range(len(shape))]
        return padded(input, ends, value or 0)
    if mode not in {"reflect", "replicate", "circular"}:
        raise OptionError(f"Unrecognised padding mode {mode}", [site_fact(call_site())])
    if value is not None:
        raise OptionError(
            f'Padding mode "{mode}" doesn\'t take in value argument', [site_fact(call_site())]
        )
    rows = {dim: _rows(mode, shape[dim], *side) for dim, side in sides.items()}
    if mode == "circular":
        for dim, places in rows.items():
            if sides[dim] != (0, 0) or dim == len(shape) - 1:
                index = tensor(places, dtype=dtypes.int64, device=input.device)
                input = index_select(input, dim, index)
        return input

    def found(x: Array) -> Array:
        for dim, places in rows.items():
            x = np.take(x, places, dim)
        return x

    stem = {"reflect": "reflection", "replicate": "replication"}[mode]
    return moved(f"{stem}_pad{len(sides)}d", input, tuple(extents), found, rows=rows)


def _rows(mode: str, extent: int, before: int, after: int) -> list[int]:
    """Returns the index of the element that stands at each place of a padded dimension."""
    places = range(-before, extent + after)
    most = {"reflect": extent - 1, "replicate": max(before, after), "circular": extent}[mode]
    if max(before, after) > most or not extent:
        raise OptionError(
            f"Padding size should be at most {most} for mode {mode!r} and a dimension of {extent}, "
            f"got ({before}, {after})",
            [site_fact(call_site())],
        )
    if mode == "replicate":
        return [min(max(place, 0), extent - 1) for place in places]
    if mode == "circular":
        return [place % extent for place in places]
    last = extent - 1
    return [last - abs(last - abs(place)) for place in places]


def one_hot(input: Tensor, num_classes: int = -1) -> Tensor:
    """Returns int64 codes: 1 at the class of each element, 0 elsewhere.

    Args:
        input: Classes, int64 of any shape.
        num_classes: Number of classes; -1 for one more than the largest element, for which the host
            waits.

    Returns:
        A tensor of shape `[*input.shape, num_classes]`.

    Raises:
        TensorError: If the elements are not int64, or `num_classes` is out of range.
        IndexOutOfBoundsError: If a class does not exist (M2); found when the kernel runs.
    """
    shape = input.window.shape
    if input.window.dtype is not dtypes.int64:
        raise TensorError(
            f"one_hot is only applicable to index tensor of type LongTensor, got "
            f"{input.window.dtype}",
            [site_fact(call_site())],
        )
    if num_classes == -1 and input.window.numel:
        num_classes = int(input.max().item()) + 1
    if num_classes <= 0:
        raise TensorError(
            "one_hot: the number of classes must be positive"
            if input.window.numel
            else "Can not infer total number of classes from empty tensor.",
            [site_fact(call_site())],
        )
    out = zeros((*shape, num_classes), dtype=dtypes.int64, device=input.device)
    return out.scatter_(-1, input.unsqueeze(-1), 1)


def normalize(
    input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: None = None
) -> Tensor:
    """Returns the tensor over its norms along a dimension.

    Args:
        p: Exponent of the norm.
        eps: Least norm to divide by.
        out: Must be None.

    Raises:
        UnsupportedError: For `out`.
    """
    refuse("normalize", out=out)
    return input / clamp(norm(input, p, dim, keepdim=True), min=eps).expand_as(input)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Returns the cosine of the angles between vectors.

    Args:
        x1: Vectors along `dim`.
        x2: Others; shapes broadcast.
        eps: Least length to divide by.
    """
    shape = broadcast("cosine_similarity", [x1.window.shape, x2.window.shape])
    both = x1.expand(shape), x2.expand(shape)
    lengths = [norm(each, 2, dim, keepdim=True).clone() for each in both]
    with no_grad():  # the least length has the gradient of the length
        for length in lengths:
            clamp_(length, min=eps)
    first, second = (each / length for each, length in zip(both, lengths, strict=True))
    found: Tensor = first * second
    return found.sum(dim)


def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """Returns the norms of the differences of vectors along the last dimension.

    Args:
        x1: Vectors.
        x2: Others; shapes broadcast.
        p: Exponent of the norm.
        eps: Number added to each difference.
        keepdim: Whether the dimension stays, with extent 1.
    """
    return norm(x1 - x2 + eps, p, -1, keepdim=keepdim)
