"""Kernels that work on lists of tensors: `_foreach_*`, fused optimisers, copies of FSDP.

CUDA runs them by `multi_tensor_apply`, with as many tensors and chunks in a launch as fit into its
arguments (PyTorch, aten/src/ATen/native/cuda/MultiTensorApply.cuh).
"""

from typing import Any, Final

import torch

from kernbench.bridge.operations.costs_rows import Row, rows
from kernbench.bridge.operations.costs_traffic import (
    INDEXED,
    Formula,
    bytes_of,
    elements_of,
    streamed_ps,
)
from kernbench.bridge.tensors.operands import tensors_in
from kernbench.hw.library import Library

_ATEN: Final = torch.ops.aten
_CHUNK: Final = 65536
"""Elements of a tensor that one block works on: `kChunkSize`."""

_BLOCKS: Final = 320
"""Chunks of one launch: `depth_to_max_blocks`."""

_TENSORS: Final = (110, 64, 48, 36, 30)
"""Tensors of one launch, by how many lists there are: `depth_to_max_tensors`."""

_SHARE: Final = 80
"""Percent of the bandwidth: optim.csv, adamw_fused 78, sgd_foreach 84, clip_grad_norm 77."""

_PASS: Final = 22
"""Operations for an element read or written; optim.csv: sgd_foreach and clipping of bfloat16."""

_COPIED: Final = 41
"""The same of `_foreach_copy_`; profile of FSDP2: 0.39 and 0.43 elements a nanosecond."""


def launches_of(sizes: list[int], lists: int) -> int:
    """Returns how many launches `multi_tensor_apply` makes.

    Args:
        sizes: Elements of the tensors of one list.
        lists: How many lists go through the kernel together.
    """
    most = _TENSORS[min(max(lists, 1), len(_TENSORS)) - 1]
    chunks = sum([-(-size // _CHUNK) for size in sizes])
    return max(1, -(-chunks // _BLOCKS), -(-len(sizes) // most))


def _list_ps(
    library: Library, tensors: Any, lists: int, passes: int, nbytes: int, each: int = _PASS
) -> int:
    sizes = [one.numel() for one in tensors]
    launches = launches_of(sizes, lists)
    operations = each * passes * sum(sizes)
    return streamed_ps(library, nbytes, operations, share=_SHARE, kernels=launches)


def foreach(name: str) -> Formula:
    """Returns the time of a `_foreach_*` operation: reads its lists, writes the result's once.

    Args:
        name: Name of the operation.
    """
    in_place = name.endswith("_")
    each = _COPIED if name == "_foreach_copy_" else _PASS
    reads_target = name not in {"_foreach_copy_", "_foreach_zero_"}
    reduces = name in {"_foreach_norm", "_foreach_max", "_foreach_powsum"}

    def duration(library: Library, args: Any, kwargs: Any, out: Any) -> int:
        del kwargs
        lists = [arg for arg in args if isinstance(arg, list | tuple) and _is_of_tensors(arg)]
        nbytes = sum([bytes_of(one) for one in lists]) if reads_target else bytes_of(lists[1:])
        nbytes += bytes_of(lists[0] if in_place else out)
        depth = len(lists) + (0 if in_place or reduces else 1)
        passes = len(lists) - (not reads_target) + (not reduces)
        found = _list_ps(library, lists[0], depth, passes, nbytes, each)
        if reduces:  # a kernel more adds what the blocks have found
            found += library.elementwise(0, 0)
        return found

    return duration


def _is_of_tensors(value: Any) -> bool:
    return bool(value) and isinstance(value[0], torch.Tensor)


def _fused(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    """A fused optimiser reads all its lists, and writes all but the gradients and the steps."""
    del kwargs, out
    lists = [arg for arg in args if isinstance(arg, list | tuple) and _is_of_tensors(arg)]
    params = lists[0]
    count = elements_of(params)
    moving = [one for one in lists if elements_of(one) == count]
    nbytes = bytes_of(lists)
    nbytes += bytes_of([moving[0], *moving[2:]])
    return _list_ps(library, params, len(moving), 2 * len(moving) - 1, nbytes)


def _unscale(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    """Checks gradients for what is not finite, and multiplies them, in place."""
    del kwargs, out
    return _list_ps(library, args[0], 1, 2, 2 * bytes_of(args[0]))


def _gather_in(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    """FSDP copies its shards into the buffer of an all_gather: one `_foreach_copy_`."""
    del kwargs, out
    shards = list(tensors_in(args[0]))
    return _list_ps(library, shards, 2, 2, 2 * bytes_of(shards), _COPIED)


_SPLIT: Final = rows(Row(84))


def _split(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    """FSDP copies what an all_gather brought to where parameters lie.

    Profile of FSDP2: `split_with_sizes_copy_out` of 907 MB reaches 3.66 TB/s.
    """
    targets = (kwargs or {}).get("out", out)
    return _SPLIT(library, (args[0],), None, list(tensors_in(targets)))


def _chunk_cat(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    """FSDP copies gradients into the buffer of a reduce_scatter, as its type.

    Profile of FSDP2: 0.34 elements a nanosecond, as kernels that compute each element's place.
    """
    given = (kwargs or {}).get("out", out)
    target = next(tensors_in(args[3] if given is None and len(args) > 3 else given))
    nbytes = bytes_of(args[0]) + bytes_of(target)
    return streamed_ps(library, nbytes, INDEXED * target.numel())


def _copy(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    del kwargs, out
    return streamed_ps(library, bytes_of(args[1]) + bytes_of(args[0]))


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
