"""The commands between those of attention: what a GPU does in one kernel each.

Arrays that are `[b, rows, heads, width]` or `[rows, b, heads, width]` are seen as `[b, heads, rows,
width]`, as attention has them; logarithms of sums are `[b, heads, rows]`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

import kernbench.torch as torch
from kernbench import extend
from kernbench.cp.problem import wide
from kernbench.cp.sequences import Sequences, places

Array = np.ndarray[Any, Any]


def _heads(array: Array, dim: int) -> Array:
    return array.transpose(0, 2, 1, 3) if dim else array.transpose(1, 2, 0, 3)


def _finite(scores: Array) -> Array:
    """Returns scores with 0 for -inf, from which -inf can be taken."""
    return np.where(np.isneginf(scores), 0, scores)


def merge(
    out: torch.Tensor,
    lse: torch.Tensor,
    more: torch.Tensor,
    its: torch.Tensor,
    first: int,
    dim: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns attention over two sets of keys, of the attention over each; two commands.

    Args:
        out: Over the first set, in float32 or float64, `dim` its dimension of rows.
        lse: Logarithms of its sums, `[b, heads, rows]`.
        more: Over the second set, of some of the rows, `[b, heads, some rows, width]`.
        its: Logarithms of its sums.
        first: The first of these rows.
        dim: See `out`.
    """
    rows = slice(first, first + its.shape[2])

    def merged_out(out: Array, lse: Array, more: Array, its: Array) -> Array:
        before = lse[:, :, rows]
        base = _finite(np.logaddexp(before, its))
        result = out.copy()
        some = _heads(result, dim)[:, :, rows]
        some *= np.exp(before - base)[..., None]
        some += more * np.exp(its - base)[..., None]
        return result

    def merged_lse(lse: Array, its: Array) -> Array:
        result = lse.copy()
        result[:, :, rows] = np.logaddexp(lse[:, :, rows], its)
        return result

    # A GPU writes in place, and only the rows that change.
    sums, values = its.numel() * its.element_size(), more.numel() * more.element_size()
    result = extend.fused(
        "cp::merge_out", merged_out, [out, lse, more, its], traffic=3 * values + 2 * sums
    )
    return result, extend.fused("cp::merge_lse", merged_lse, [lse, its], traffic=3 * sums)


def add_sink(
    out: torch.Tensor, lse: torch.Tensor, sink: torch.Tensor, dtype: torch.dtype, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns attention with one score more in each row, whose value is 0; two commands.

    Args:
        out: Without it, in float32 or float64, `dim` its dimension of rows.
        lse: Logarithms of the sums, `[b, heads, rows]`.
        sink: The scores, `[heads]`.
        dtype: Type of the result.
        dim: See `out`.
    """

    def with_sink(lse: Array, sink: Array) -> Array:
        result: Array = np.logaddexp(lse, sink[None, :, None].astype(lse.dtype))
        return result

    def shrunk(out: Array, lse: Array, sink: Array) -> Array:
        result = out.copy()
        some = _heads(result, dim)
        some *= np.exp(lse - _finite(with_sink(lse, sink)))[..., None]
        return result

    result = extend.fused("cp::sink_out", shrunk, [out, lse, sink], dtype=dtype)
    return result, extend.fused("cp::sink_lse", with_sink, [lse, sink])


def sink_gradient(
    grad: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    sink: torch.Tensor,
    rows: tuple[extend.Rows, ...],
    dim: int,
) -> torch.Tensor:
    """Returns the gradient of the sink that passes through the tokens of a rank, `[heads]`.

    Args:
        grad: Gradient of `out`; only rows that are tokens are read.
        out: With the sink, `dim` its dimension of rows.
        lse: With the sink.
        sink: The scores.
        rows: Which rows are tokens: of all batch elements, or of each.
        dim: See `out`.
    """

    def gradient(grad: Array, out: Array, lse: Array, sink: Array) -> Array:
        grad, out = _heads(grad, dim), _heads(out, dim)
        total = np.zeros(sink.shape, lse.dtype)
        for number, every in enumerate(rows):
            batch = slice(None) if len(rows) == 1 else slice(number, number + 1)
            for each in every:
                at = batch, slice(None), slice(each.row, each.row + each.length)
                along = np.einsum("bhsd,bhsd->bhs", grad[at], out[at])
                share = np.exp(sink[None, :, None].astype(lse.dtype) - lse[at])
                total -= (share * along).sum((0, 2))
        return total

    return extend.fused(
        "cp::sink_gradient", gradient, [grad, out, lse, sink], shape=sink.shape, dtype=lse.dtype
    )


def largest(peaks: Sequence[torch.Tensor], query: torch.Tensor) -> torch.Tensor:
    """Returns the largest scores of each head, of those of several calls of attention.

    Args:
        peaks: Those of each call, `[heads]`; none if no call was needed.
        query: Of all calls, `[.., heads, width]`.
    """
    if not peaks:
        kind = wide(query.dtype)
        return torch.full((query.shape[2],), float("-inf"), dtype=kind, device=query.device)
    if len(peaks) == 1:
        return peaks[0]
    return extend.fused("cp::largest", lambda *each: np.max(each, axis=0), peaks)


def joined(
    parts: Sequence[tuple[int, torch.Tensor]],
    shape: Sequence[int],
    dtype: torch.dtype,
    dim: int,
) -> torch.Tensor:
    """Returns rows put together, 0 where there are none.

    Args:
        parts: First rows, and tensors `[b, heads, some rows, width]`. Of two tensors that have the
            same row, one has 0 there.
        shape: Of the result, `dim` its dimension of rows.
        dtype: Of the result.
        dim: See `shape`.
    """

    def put(*arrays: Array) -> Array:
        result = np.zeros(shape, arrays[0].dtype)
        rows = _heads(result, dim)
        for (first, _), array in zip(parts, arrays, strict=True):
            rows[:, :, first : first + array.shape[2]] += array
        return result

    return extend.fused("cp::join", put, [each for _, each in parts], shape=shape, dtype=dtype)


def add_gradients(
    before: torch.Tensor | None,
    parts: Sequence[tuple[int, torch.Tensor]],
    shapes: Sequence[Sequence[int]],
    dtype: torch.dtype,
    dim: int,
) -> torch.Tensor:
    """Returns gradients of tensors that lie one behind the other, with what was added to them.

    Args:
        before: Gradients so far, flat; None for 0.
        parts: For each tensor the first row of what is added, and that, `[b, heads, some rows,
            width]`.
        shapes: Of the tensors, `dim` the dimension of rows.
        dtype: Of the result.
        dim: See `shapes`.
    """
    sizes = [int(np.prod(shape)) for shape in shapes]

    def add(before: Array | None, *arrays: Array) -> Array:
        given = arrays if before is None else (before, *arrays)
        kind = np.result_type(*given)
        total = np.zeros(sum(sizes), kind) if before is None else before.astype(kind)
        start = 0
        for (first, _), array, shape, size in zip(parts, arrays, shapes, sizes, strict=True):
            rows = _heads(total[start : start + size].reshape(shape), dim)
            rows[:, :, first : first + array.shape[2]] += array
            start += size
        return total

    return extend.fused(
        "cp::add_gradients",
        add,
        [before, *[each for _, each in parts]],
        shape=(sum(sizes),),
        dtype=dtype,
    )


def in_order(x: torch.Tensor, sequences: Sequences, parts: int, dim: int) -> torch.Tensor:
    """Returns whole sequences, of the parts of all ranks.

    Args:
        x: `[parts, *part]`, the parts in the order of the ranks.
        sequences: What the ranks share.
        parts: How many ranks.
        dim: The dimension of rows in a part.
    """
    _, *part = x.shape
    shape = [size * parts if at == dim else size for at, size in enumerate(part)]

    def order(array: Array) -> Array:
        return np.moveaxis(array, 0, dim).reshape(shape).take(places(sequences, parts), axis=dim)

    return extend.fused("cp::in_order", order, [x], shape=shape)


def by_rank(
    pieces: Sequence[tuple[int, torch.Tensor]],
    shape: Sequence[int],
    sequences: Sequences,
    parts: int,
    dtype: torch.dtype,
    dim: int,
) -> torch.Tensor:
    """Returns the sum of some rows of whole sequences, as `[parts, *part]`: undoes `in_order`.

    Args:
        pieces: First rows, and tensors `[b, heads, some rows, width]`; other rows are 0.
        shape: Of whole sequences, `dim` the dimension of rows.
        sequences: What the ranks share.
        parts: How many ranks.
        dtype: Of the result.
        dim: See `shape`.
    """
    part = [size // parts if at == dim else size for at, size in enumerate(shape)]

    def deal(*arrays: Array) -> Array:
        total = np.zeros(shape, np.result_type(*arrays))
        rows = _heads(total, dim)
        for (first, _), array in zip(pieces, arrays, strict=True):
            rows[:, :, first : first + array.shape[2]] += array
        dealt = np.empty_like(total)
        np.moveaxis(dealt, dim, 0)[places(sequences, parts)] = np.moveaxis(total, dim, 0)
        cut = [*part[:dim], parts, *part[dim:]]
        return np.moveaxis(dealt.reshape(cut), dim, 0)

    return extend.fused(
        "cp::by_rank", deal, [each for _, each in pieces], shape=(parts, *part), dtype=dtype
    )
