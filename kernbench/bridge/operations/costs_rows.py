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
from kernbench.hw.library import Library
from kernbench.kernels import copies, indexing, rows
from kernbench.kernels.names import LOOK_UPS, REDUCTIONS, SCATTERS
from kernbench.kernels.operands import total_bytes
from kernbench.kernels.traffic import streamed_ps

_ATEN: Final = torch.ops.aten


def streamed_copy(kernel: str) -> Formula:
    """Returns the time of an operation that moves pieces between tensors in vectors.

    Args:
        kernel: Name of the kernel: `cat` or `split`.
    """

    def duration(library: Library, args: Any, kwargs: Any, out: Any) -> int:
        return copies.streamed_copy_ps(library, kernel, operands_of(args, kwargs), layouts(out))

    return duration


def _reduction(place: int) -> Formula:
    """Returns the time of a reduction.

    Args:
        place: Which argument says the dimensions.
    """

    def duration(library: Library, args: Any, kwargs: Any, out: Any) -> int:
        axes = args[place] if len(args) > place else (kwargs or {}).get("dim")
        if isinstance(axes, int) and not isinstance(axes, bool):
            axes = (axes,)
        axes = axes if isinstance(axes, list | tuple) else ()
        return rows.sum_ps(library, layout(args[0]), axes, layouts(out))

    return duration


def _gathered_stats(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    """Reads what each rank has found; the input only tells the type."""
    nbytes = total_bytes(operands_of(args[1:], kwargs)) + total_bytes(layouts(out))
    return streamed_ps(library, library.kernel("pointwise"), nbytes)


def _gathered(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    del kwargs
    return indexing.gather_ps(library, layouts(args[1:]), layouts(out))


def _rolled(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    del kwargs
    shifts = args[1] if isinstance(args[1], list | tuple) else (args[1],)
    return copies.rolled_ps(library, layout(args[0]), layout(out), len(shifts))


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


_NOWHERE: Final = 9
_PLACES: Final = {"norm": 2, "linalg_vector_norm": 2, "bincount": _NOWHERE, "histc": _NOWHERE}
"""Which argument of a reduction says the dimensions, if not the second one."""


_IN_FORMULAS: Final = frozenset(
    (
        *("GatherBackward0", "IndexBackward0", "IndexSelectBackward0", "TopkBackward0"),
        *("SortBackward0", "SortBackward1", "KthvalueBackward0", "ModeBackward0"),
        *("MaxBackward0", "MinBackward0", "MedianBackward1", "NanmedianBackward1"),
        *("CummaxBackward0", "CumminBackward0"),
    )
)
"""Gradients that PyTorch adds to zeros in place, but out of place if a dispatch mode looks on
(`areAnyTensorSubclassLike` in torch/csrc/autograd/FunctionsManual.cpp)."""


def adds_to_zeros() -> bool:
    """Returns whether an operation out of place is one in place without a dispatch mode."""
    node = torch._C._current_autograd_node()
    return node is not None and node.name() in _IN_FORMULAS


def _all(names: tuple[str, ...], formula: Formula) -> dict[Any, Formula]:
    return {getattr(_ATEN, name): formula for name in names}


FORMULAS: Final[dict[Any, Formula]] = {
    **{getattr(_ATEN, name): _reduction(_PLACES.get(name, 1)) for name in REDUCTIONS},
    **_all(LOOK_UPS, _gathered),
    **{getattr(_ATEN, name): _scattered(name) for name in SCATTERS},
    _ATEN.split_with_sizes_copy: streamed_copy("split"),
    **_all(
        ("nll_loss_backward", "nll_loss2d_backward"), by_operands(indexing.nll_backward_ps, 2, OUT)
    ),
    _ATEN.batch_norm_stats: _reduction(_NOWHERE),
    _ATEN.batch_norm_gather_stats_with_counts: _gathered_stats,
    _ATEN.roll: _rolled,
    _ATEN.index_select: by_operands(indexing.select_ps, 2, OUT),
}
"""Times of operations on rows and places, by operation."""
