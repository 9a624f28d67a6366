"""Operations on lists of tensors: `_foreach_*`, fused optimisers, copies of FSDP."""

from typing import Any, Final

import torch

from kernbench.bridge.operations.costs_operands import Formula, layout, layouts
from kernbench.bridge.operations.costs_rows import streamed_copy
from kernbench.bridge.tensors.operands import tensors_in
from kernbench.hw.library import Library
from kernbench.kernels import copies, lists
from kernbench.kernels.operands import numel, total_bytes
from kernbench.kernels.traffic import streamed_ps

_ATEN: Final = torch.ops.aten


def foreach(name: str) -> Formula:
    """Returns the time of a `_foreach_*` operation: reads its lists, writes the result's once."""
    in_place = name.endswith("_")
    kernel = "foreach_copy" if name == "_foreach_copy_" else "foreach"
    reads_target = name not in {"_foreach_copy_", "_foreach_zero_"}
    reduces = name in {"_foreach_norm", "_foreach_max", "_foreach_powsum"}

    def duration(library: Library, args: Any, kwargs: Any, out: Any) -> int:
        del kwargs
        given = [arg for arg in args if isinstance(arg, list | tuple) and _is_of_tensors(arg)]
        first = layouts(given[0])
        read = (first if reads_target else []) + layouts(given[1:])
        written = first if in_place else layouts(out)
        return lists.duration_ps(
            library,
            kernel,
            [numel(one) for one in first],
            total_bytes(read) + total_bytes(written),
            lists=len(given) + (0 if in_place or reduces else 1),
            passes=len(given) - (not reads_target) + (not reduces),
            reduces=reduces,
        )

    return duration


def _is_of_tensors(value: Any) -> bool:
    return bool(value) and isinstance(value[0], torch.Tensor)


def _fused(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    """A fused optimiser reads all its lists, and writes all but the gradients and the steps."""
    del kwargs, out
    given = [layouts(arg) for arg in args if isinstance(arg, list | tuple) and _is_of_tensors(arg)]
    sizes = [numel(one) for one in given[0]]
    moving = [one for one in given if sum(map(numel, one)) == sum(sizes)]
    nbytes = sum(map(total_bytes, (*given, moving[0], *moving[2:])))
    passes = 2 * len(moving) - 1
    return lists.duration_ps(library, "foreach", sizes, nbytes, lists=len(moving), passes=passes)


def _unscale(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    """Checks gradients for what is not finite, and multiplies them, in place."""
    del kwargs, out
    grads = layouts(args[0])
    sizes, nbytes = [numel(one) for one in grads], 2 * total_bytes(grads)
    return lists.duration_ps(library, "foreach", sizes, nbytes, lists=1, passes=2)


def _gather_in(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    """FSDP copies its shards into the buffer of an all_gather: one `_foreach_copy_`."""
    del kwargs, out
    shards = layouts(args[0])
    sizes, nbytes = [numel(one) for one in shards], 2 * total_bytes(shards)
    return lists.duration_ps(library, "foreach_copy", sizes, nbytes, lists=2, passes=2)


_SPLIT: Final = streamed_copy("split")


def _split(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    """FSDP copies what an all_gather brought to where parameters lie."""
    targets = (kwargs or {}).get("out", out)
    return _SPLIT(library, (args[0],), None, list(tensors_in(targets)))


def _chunk_cat(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    """FSDP copies gradients into the buffer of a reduce_scatter, as its type."""
    given = (kwargs or {}).get("out", out)
    target = next(tensors_in(args[3] if given is None and len(args) > 3 else given))
    return copies.indexed_copy_ps(library, layouts(args[0]), layout(target))


def _copy(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    del kwargs, out
    nbytes = total_bytes((layout(args[1]), layout(args[0])))
    return streamed_ps(library, library.kernel("copy"), nbytes)


_OPTIMISERS: Final = (
    *("_fused_adam_", "_fused_adam", "_fused_adamw_", "_fused_adamw", "_fused_sgd_", "_fused_sgd"),
    *("_fused_adagrad_", "_fused_adagrad"),
)

FORMULAS: Final[dict[Any, Formula]] = {
    **{getattr(_ATEN, name): _fused for name in _OPTIMISERS},
    _ATEN._amp_foreach_non_finite_check_and_unscale_: _unscale,
    _ATEN._amp_foreach_non_finite_check_and_unscale: _unscale,
    _ATEN._chunk_cat: _chunk_cat,
}
"""Times of operations on lists, by operation."""

FSDP: Final[dict[str, Formula]] = {
    "all_gather_copy_in": _gather_in,
    "split_with_sizes_copy": _split,
    "chunk_cat": _chunk_cat,
    "copy_": _copy,
}
"""Times of the operations `torch.ops.fsdp`, by name: they are there when FSDP2 is imported."""
