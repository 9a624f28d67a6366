"""Kernels that go through rows, columns or places of tensors: norms, sums, look-ups, copies."""

from typing import Any, Final, NamedTuple

import torch

from kernbench.bridge.operations.costs_traffic import (
    INDEXED,
    Formula,
    bytes_of,
    streamed_ps,
)
from kernbench.bridge.tensors.operands import tensors_in
from kernbench.hw.library import Library

_ATEN: Final = torch.ops.aten


class Row(NamedTuple):
    """What a kernel of row operations takes beside its traffic.

    Attributes:
        share: Percent of the memory's bandwidth that it reaches.
        kernels: How many kernels it is; also what a fixed part of its time is counted in.
        row: Operations for each row, over all MATH engines together.
        beyond: Columns up to which a row costs none.
    """

    share: int
    kernels: int = 1
    row: int = 0
    beyond: int = 0


def rows(what: Row, *, fill: bool = False) -> Formula:
    """Returns the time of a row operation: it reads its operands and writes its results once.

    Args:
        what: What the kernel takes.
        fill: Whether the result is filled with zeros before.
    """

    def duration(library: Library, args: Any, kwargs: Any, out: Any) -> int:
        nbytes = bytes_of(args) + bytes_of(out) * (2 if fill else 1)
        if kwargs:
            nbytes += bytes_of([value for key, value in kwargs.items() if key != "out"])
        operations = 1
        if what.row:
            first = args[0]
            columns = max(1, first.shape[-1] if first.dim() else 1)
            if columns > what.beyond:
                operations = what.row * (first.numel() // columns)
        return streamed_ps(library, nbytes, operations, share=what.share, kernels=what.kernels)

    return duration


_WARP: Final = 1024
"""Up to so many columns, a warp computes the softmax of a row; else a block does."""

_BLOCK: Final = 360_000
"""Operations for a block's row; rowops2.csv: cross_entropy of 4096 columns, 11 ns a row."""

_SOFTMAX: Final = rows(Row(52, 1, _BLOCK, _WARP))
_SOFTMAX_BACKWARD: Final = rows(Row(47, 3, _BLOCK, _WARP))
_LOG_SOFTMAX: Final = rows(Row(63, 1, _BLOCK, _WARP))
_LOG_SOFTMAX_BACKWARD: Final = rows(Row(70))
_LAYER_NORM: Final = rows(Row(57, row=57_000))
_LAYER_NORM_BACKWARD: Final = rows(Row(37, 8))
_RMS_NORM: Final = rows(Row(75, row=20_000))
_RMS_NORM_BACKWARD: Final = rows(Row(37, 8))
_NLL_KERNELS: Final = 8
_NLL_ROW: Final = 23_000
"""rowops2.csv, cross_entropy less its log_softmax: one block adds all rows, 14 us and 0.7 ns each.
"""

_ARGMAX: Final = rows(Row(42, 2))
_BATCH_NORM: Final = rows(Row(57, 2))
_CHANNELS: Final = rows(Row(57))
"""Estimate: the passes of `SyncBatchNorm` reach what those of batch norm do."""
_SCAN: Final = rows(Row(70, 2))
_CAT: Final = rows(Row(90))
_SPLIT: Final = rows(Row(84))
"""Profile of FSDP2: split_with_sizes_copy_out of 907 MB reaches 3.66 TB/s."""


_ROW_SUMS: Final = 86
"""rowops2.csv: sum and mean over the last dimension, of 64 MiB and more; mean error 9 %."""

_COLUMN_SUMS: Final = 50
"""Profile of FSDP2: sums of 4096 x 4096 bfloat16 over the rows, 26 us each."""

_STAGED: Final = 1 << 21
_STAGES: Final = 6
"""Sums of more elements go through memory once more: 8 us, rowops2.csv and the profile."""


def _reduction(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    """Reads all elements; over the last dimension, neighbours are added."""
    del kwargs
    given = args[0]
    axes = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else ()
    last = given.dim() - 1
    along_rows = not axes or -1 in axes or last in axes
    share = _ROW_SUMS if along_rows or last < 1 else _COLUMN_SUMS
    kernels = 1 + _STAGES if given.numel() > _STAGED else 1
    nbytes = bytes_of(given) + bytes_of(out)
    return streamed_ps(library, nbytes, given.numel(), share=share, kernels=kernels)


def _gathered_stats(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    """Reads what each rank has found; the input only tells the type."""
    del kwargs
    return streamed_ps(library, bytes_of(args[1:]) + bytes_of(out))


def _nll(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    """Reads one element of each row, in one block."""
    del kwargs, out
    count = args[1].numel()
    nbytes = bytes_of(args[1]) + count * args[0].element_size()
    return streamed_ps(library, nbytes, _NLL_ROW * count, kernels=_NLL_KERNELS)


def _nll_backward(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    """Fills the gradient with zeros, and writes one element of each row; profile: 10 us."""
    del kwargs
    zeros = streamed_ps(library, bytes_of(out), 20 * out.numel(), share=100)
    return zeros + streamed_ps(library, bytes_of(args[2]), 1, kernels=6)


def _embedding(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    """Reads the rows that are looked up, not the whole table: embedding.csv, mean error 6 %."""
    del kwargs
    nbytes = 2 * bytes_of(out) + bytes_of(args[1])
    return streamed_ps(library, nbytes, out.numel(), share=84)


_FEW_INDICES: Final = 3072
"""Up to so many indices, `embedding_dense_backward_cuda` adds rows without sorting."""

_SORT_KERNELS: Final = 85
"""Sorting the indices and finding where each begins, in launches; embedding.csv: 120 us."""

_ADDED_ELEMENT: Final = 400
"""Operations for each element of the gradient that is added; embedding.csv: 12 ps an element."""


def _embedding_backward(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    """Zeros of the whole table, indices sorted, each row of the gradient added to its place."""
    del kwargs
    grad, indices = args[0], args[1]
    zeros = streamed_ps(library, bytes_of(out), 20 * out.numel(), share=100)
    nbytes = 3 * bytes_of(grad) + bytes_of(indices)
    if indices.numel() <= _FEW_INDICES:
        return zeros + streamed_ps(library, nbytes, INDEXED * grad.numel())
    operations = _ADDED_ELEMENT * grad.numel()
    return zeros + streamed_ps(library, nbytes, operations, kernels=_SORT_KERNELS)


def _gathered(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    """Reads the elements that are looked up, and the indices; estimate: indexed kernels."""
    del kwargs
    nbytes = 2 * bytes_of(out) + bytes_of(args[1:])
    return streamed_ps(library, nbytes, INDEXED * out.numel())


def _scattered(name: str) -> Formula:
    """Returns the time of writing elements of a source to places of a target.

    A target that is written in place is read and written at these places alone; else it is copied
    before.
    """
    in_place = name.endswith("_")

    def duration(library: Library, args: Any, kwargs: Any, out: Any) -> int:
        del kwargs
        moved = max([each.numel() for each in tensors_in(args[1:])], default=0)
        nbytes = 2 * moved * args[0].element_size() + bytes_of(args[1:])
        copy = 0 if in_place else streamed_ps(library, bytes_of(args[0]) + bytes_of(out))
        return copy + streamed_ps(library, nbytes, INDEXED * moved)

    return duration


def _sorted(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    """Estimate: radix sort reads and writes keys and places once for each 8 bits of the key."""
    del kwargs
    first = next(tensors_in(args))
    passes = max(2, first.element_size())
    return streamed_ps(library, passes * (bytes_of(first) + bytes_of(out)), kernels=passes + 4)


def _top(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    """Estimate: radix selection reads the keys once for each 8 bits, and twice to gather."""
    del kwargs
    first = args[0]
    passes = first.element_size() + 2
    return streamed_ps(library, passes * bytes_of(first) + bytes_of(out), kernels=2)


_REDUCTIONS: Final = (
    *("sum", "mean", "prod", "amax", "amin", "any", "all", "std", "var", "std_mean", "var_mean"),
    *("norm", "linalg_vector_norm", "logsumexp", "nansum", "count_nonzero", "aminmax"),
)
_PLACES_FOUND: Final = ("argmax", "argmin", "max", "min", "median", "mode")
_LOOK_UPS: Final = (
    *("index", "index_select", "gather", "take", "take_along_dim", "masked_select", "nonzero"),
)
_SCATTERS: Final = (
    *("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put", "scatter", "scatter_"),
    *("scatter_add", "scatter_add_", "scatter_reduce", "index_add", "index_add_", "index_copy"),
    *("index_copy_", "index_fill", "index_fill_", "slice_scatter", "select_scatter"),
    *("masked_scatter", "masked_scatter_"),
)


def _all(names: tuple[str, ...], formula: Formula) -> dict[Any, Formula]:
    return {getattr(_ATEN, name): formula for name in names}


FORMULAS: Final[dict[Any, Formula]] = {
    _ATEN._softmax: _SOFTMAX,
    _ATEN._safe_softmax: _SOFTMAX,
    _ATEN._softmax_backward_data: _SOFTMAX_BACKWARD,
    _ATEN._log_softmax: _LOG_SOFTMAX,
    _ATEN._log_softmax_backward_data: _LOG_SOFTMAX_BACKWARD,
    _ATEN.native_layer_norm: _LAYER_NORM,
    _ATEN.native_layer_norm_backward: _LAYER_NORM_BACKWARD,
    _ATEN._fused_rms_norm: _RMS_NORM,
    _ATEN._fused_rms_norm_backward: _RMS_NORM_BACKWARD,
    _ATEN.native_group_norm: _LAYER_NORM,
    _ATEN.native_group_norm_backward: _LAYER_NORM_BACKWARD,
    _ATEN.native_batch_norm: _BATCH_NORM,
    _ATEN._native_batch_norm_legit: _BATCH_NORM,
    _ATEN._batch_norm_with_update: _BATCH_NORM,
    _ATEN.native_batch_norm_backward: _BATCH_NORM,
    _ATEN.batch_norm_backward: _BATCH_NORM,
    _ATEN.batch_norm_stats: _reduction,
    _ATEN.batch_norm_gather_stats_with_counts: _gathered_stats,
    _ATEN.batch_norm_elemt: _CHANNELS,
    _ATEN.batch_norm_backward_reduce: _CHANNELS,
    _ATEN.batch_norm_backward_elemt: _CHANNELS,
    _ATEN.cumsum: _SCAN,
    _ATEN.cumprod: _SCAN,
    _ATEN.logcumsumexp: _SCAN,
    _ATEN.cummax: _SCAN,
    _ATEN.cummin: _SCAN,
    _ATEN.cat: _CAT,
    _ATEN.stack: _CAT,
    _ATEN.split_with_sizes_copy: _SPLIT,
    _ATEN.embedding: _embedding,
    _ATEN.embedding_dense_backward: _embedding_backward,
    _ATEN.sort: _sorted,
    _ATEN.argsort: _sorted,
    _ATEN.topk: _top,
    **_all(_REDUCTIONS, _reduction),
    **_all(_PLACES_FOUND, _ARGMAX),
    **_all(_LOOK_UPS, _gathered),
    **{getattr(_ATEN, name): _scattered(name) for name in _SCATTERS},
    _ATEN.nll_loss_forward: _nll,
    _ATEN.nll_loss2d_forward: _nll,
    _ATEN.nll_loss_backward: _nll_backward,
    _ATEN.nll_loss2d_backward: _nll_backward,
}
"""Times of row operations, by operation. Shares and kernels: rowops2.csv, mean error 13 %."""
