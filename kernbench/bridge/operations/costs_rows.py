"""Operations on rows, columns or places of tensors: which kernel each is."""

from typing import Any, Final

import torch

from kernbench.bridge.operations.costs_operands import (
    OUT,
    Formula,
    by_operands,
    layout,
    layouts,
    operands_of,
)
from kernbench.bridge.tensors.operands import tensors_in
from kernbench.hw.library import Library
from kernbench.kernels import copies, indexing, rows
from kernbench.kernels.operands import total_bytes
from kernbench.kernels.prices import ROWS
from kernbench.kernels.traffic import streamed_ps

_ATEN: Final = torch.ops.aten


def _row(kernel: str) -> Formula:
    def duration(library: Library, args: Any, kwargs: Any, out: Any) -> int:
        return rows.duration_ps(library, kernel, operands_of(args, kwargs), layouts(out))

    return duration


def streamed_copy(kernel: str) -> Formula:
    """Returns the time of an operation that moves pieces between tensors in vectors.

    Args:
        kernel: Name of the kernel: `cat` or `split`.
    """

    def duration(library: Library, args: Any, kwargs: Any, out: Any) -> int:
        return copies.streamed_copy_ps(library, kernel, operands_of(args, kwargs), layouts(out))

    return duration


def _reduction(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    del kwargs
    axes = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else ()
    return rows.sum_ps(library, layout(args[0]), axes, layouts(out))


def _gathered_stats(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    """Reads what each rank has found; the input only tells the type."""
    nbytes = total_bytes(operands_of(args[1:], kwargs)) + total_bytes(layouts(out))
    return streamed_ps(library, library.kernel("pointwise"), nbytes)


def _gathered(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    del kwargs
    return indexing.gather_ps(library, layouts(args[1:]), layouts(out))


def _scattered(name: str) -> Formula:
    """Returns the time of writing elements of a source to places of a target."""
    in_place, kernel = name.endswith("_"), indexing.kernel_of(name)

    def duration(library: Library, args: Any, kwargs: Any, out: Any) -> int:
        del kwargs
        target = layout(args[0])
        copied = [] if in_place else [target, *layouts(out)]
        if "index_put" in name and len(args) > 3 and args[3]:
            indices, values = layouts(args[1]), layout(args[2])
            return indexing.accumulate_ps(library, target, indices, values, copied)
        return indexing.scatter_ps(library, target, layouts(args[1:]), copied, kernel=kernel)

    return duration


def _sorted(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    del kwargs
    return indexing.sort_ps(library, layout(next(tensors_in(args))), layouts(out))


def _top(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    del kwargs
    return indexing.top_ps(library, layout(args[0]), layouts(out))


_REDUCTIONS: Final = (
    *("sum", "mean", "prod", "amax", "amin", "any", "all", "std", "var", "std_mean", "var_mean"),
    *("norm", "linalg_vector_norm", "logsumexp", "nansum", "count_nonzero", "aminmax"),
)
_LOOK_UPS: Final = (*("index", "gather", "take", "take_along_dim", "masked_select", "nonzero"),)
_SCATTERS: Final = (
    *("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put", "scatter", "scatter_"),
    *("scatter_add", "scatter_add_", "scatter_reduce", "index_add", "index_add_", "index_copy"),
    *("index_copy_", "index_fill", "index_fill_", "slice_scatter", "select_scatter"),
    *("masked_scatter", "masked_scatter_"),
)


def _all(names: tuple[str, ...], formula: Formula) -> dict[Any, Formula]:
    return {getattr(_ATEN, name): formula for name in names}


FORMULAS: Final[dict[Any, Formula]] = {
    **{getattr(_ATEN, name): _row(kernel) for name, kernel in ROWS.items()},
    **_all(_REDUCTIONS, _reduction),
    **_all(_LOOK_UPS, _gathered),
    **{getattr(_ATEN, name): _scattered(name) for name in _SCATTERS},
    **_all(("cat", "stack"), streamed_copy("cat")),
    _ATEN.split_with_sizes_copy: streamed_copy("split"),
    **_all(("sort", "argsort"), _sorted),
    **_all(("nll_loss_forward", "nll_loss2d_forward"), by_operands(rows.nll_ps, 0, 1)),
    **_all(
        ("nll_loss_backward", "nll_loss2d_backward"), by_operands(indexing.nll_backward_ps, 2, OUT)
    ),
    _ATEN.batch_norm_stats: _reduction,
    _ATEN.batch_norm_gather_stats_with_counts: _gathered_stats,
    _ATEN.embedding: by_operands(indexing.embedding_ps, 1, OUT),
    _ATEN.embedding_dense_backward: by_operands(indexing.embedding_backward_ps, 0, 1, OUT),
    _ATEN.index_select: by_operands(indexing.select_ps, 2, OUT),
    _ATEN.topk: _top,
}
"""Times of operations on rows and places, by operation."""
