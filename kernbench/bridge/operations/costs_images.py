"""Norms, pools and sizes of images, and layer norms: which argument is which."""

from collections.abc import Callable
from math import prod
from typing import Any, Final

import torch

from kernbench.bridge.operations.costs_operands import (
    OUT,
    Formula,
    by_bytes,
    by_operands,
    layout,
    layouts,
    operands_of,
)
from kernbench.bridge.tensors.operands import tensors_in
from kernbench.hw.library import Library
from kernbench.kernels import indexing, norms, pooling

_ATEN: Final = torch.ops.aten


def _batch_norm(training: int | bool) -> Formula:
    """Returns the time of a batch norm, with statistics always or as a place's argument says."""

    def duration(library: Library, args: Any, kwargs: Any, out: Any) -> int:
        del kwargs, out
        trains = training if isinstance(training, bool) else bool(args[training])
        return norms.batch_norm_ps(library, layout(args[0]), training=trains)

    return duration


def _legit(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    """Without running statistics, the place of `training` is two to the left."""
    place = 5 if len(args) > 5 and isinstance(args[5], bool) else 3
    return _batch_norm(place)(library, args, kwargs, out)


def _group_norm(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    del kwargs, out
    return norms.group_norm_ps(library, layout(args[0]), args[6])


def _group_norm_backward(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    del kwargs, out
    data, *weights = args[9]
    given = layout(args[1])
    return norms.group_norm_backward_ps(library, given, data=data, weights=any(weights))


def _layer_norm(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    moved = [*operands_of(args, kwargs), *layouts(out)]
    return norms.layer_norm_ps(library, moved, layout(args[0]), prod(args[1]))


def _layer_norm_backward(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    moved = [*operands_of(args, kwargs), *layouts(out)]
    columns, weights = prod(args[2]), any(args[7][1:])
    given = layout(args[1])
    return norms.layer_norm_backward_ps(library, moved, given, columns, weights=weights)


def _window(kernel_size: Any, dims: int) -> int:
    sizes = [kernel_size] if isinstance(kernel_size, int) else list(kernel_size)
    return prod(sizes) if len(sizes) == dims else sizes[0] ** dims


def _pool(kernel: str, dims: int) -> Formula:
    def duration(library: Library, args: Any, kwargs: Any, out: Any) -> int:
        del kwargs
        window = _window(args[1], dims)
        made = layout(next(tensors_in(out)))
        return pooling.pool_ps(library, kernel, layout(args[0]), made, window)

    return duration


def _pool_backward(kernel: str, dims: int) -> Formula:
    def duration(library: Library, args: Any, kwargs: Any, out: Any) -> int:
        del kwargs
        window = _window(args[2], dims)
        return pooling.pool_backward_ps(library, kernel, layout(args[0]), layout(out), window)

    return duration


def _adaptive(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    del kwargs
    return pooling.adaptive_ps(library, "adaptive_pool", layout(args[0]), layout(out))


def _adaptive_backward(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    del kwargs
    return pooling.adaptive_ps(library, "adaptive_pool_backward", layout(out), layout(args[0]))


def _resized(kernel: str) -> Formula:
    def duration(library: Library, args: Any, kwargs: Any, out: Any) -> int:
        del kwargs
        return pooling.resized_ps(library, kernel, layout(args[0]), layout(out))

    return duration


_bag: Final = by_operands(indexing.bag_ps, 0, 1, OUT)
_bag_backward: Final = by_operands(indexing.bag_backward_ps, 0, 1, OUT)


def _bag_gradient(library: Library, args: Any, kwargs: Any, out: Any) -> int:
    """The operation above it, which tables with sparse gradients call, too."""
    if args[9]:
        return by_bytes(library, args, kwargs, out)
    return _bag_backward(library, args, kwargs, out)


def _each(name: str, make: Callable[[int], Formula]) -> dict[str, Formula]:
    return {name.format(dims): make(dims) for dims in (2, 3)}


_NEAREST: Final = ("nearest1d", "nearest2d", "nearest3d")
_LINEAR: Final = ("linear1d", "bilinear2d", "trilinear3d")


FORMULAS: Final[dict[Any, Formula]] = {
    getattr(_ATEN, name): formula
    for name, formula in {
        "native_batch_norm": _batch_norm(5),
        "cudnn_batch_norm": _batch_norm(5),
        "miopen_batch_norm": _batch_norm(5),
        "_native_batch_norm_legit": _legit,
        "_native_batch_norm_legit_no_training": _batch_norm(False),
        "_batch_norm_with_update": _batch_norm(True),
        "_batch_norm_no_update": _batch_norm(False),
        "native_batch_norm_backward": by_operands(norms.batch_norm_backward_ps, 1),
        "batch_norm_backward": by_operands(norms.batch_norm_backward_ps, 1),
        "cudnn_batch_norm_backward": by_operands(norms.batch_norm_backward_ps, 0),
        "native_group_norm": _group_norm,
        "native_group_norm_backward": _group_norm_backward,
        "native_layer_norm": _layer_norm,
        "native_layer_norm_backward": _layer_norm_backward,
        **_each("max_pool{}d_with_indices", lambda dims: _pool("max_pool", dims)),
        **_each("max_pool{}d_with_indices_backward", lambda dims: _pool_backward("max_pool", dims)),
        **_each("avg_pool{}d", lambda dims: _pool("avg_pool", dims)),
        **_each("avg_pool{}d_backward", lambda dims: _pool_backward("avg_pool", dims)),
        **_each("_adaptive_avg_pool{}d", lambda _: _adaptive),
        **_each("_adaptive_avg_pool{}d_backward", lambda _: _adaptive_backward),
        **{f"upsample_{name}": _resized("nearest") for name in _NEAREST},
        **{f"upsample_{name}_backward": _resized("nearest_backward") for name in _NEAREST},
        **{f"upsample_{name}": _resized("bilinear") for name in _LINEAR},
        **{f"upsample_{name}_backward": _resized("bilinear_backward") for name in _LINEAR},
        "_embedding_bag": _bag,
        "_embedding_bag_forward_only": _bag,
        "_embedding_bag_backward": _bag_gradient,
        "_embedding_bag_dense_backward": _bag_backward,
    }.items()
}
"""Times of norms, pools and sizes of images, by operation."""
