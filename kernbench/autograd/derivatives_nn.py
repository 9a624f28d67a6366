"""Gradients of the fused kernels of `torch.nn.functional`: one kernel per operand."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod
from typing import Any, Final

import numpy as np

from kernbench.autograd.class_loss import ClassLoss
from kernbench.autograd.comparisons import Loss
from kernbench.autograd.derivatives_pointwise import sigmoid_values
from kernbench.autograd.kernels import kernels_of
from kernbench.memory import Array
from kernbench.operations.fused import kernel
from kernbench.tensors.nodes import Like
from kernbench.tensors.tape import derivative
from kernbench.tensors.tensor import Tensor


def _embedding(g: Tensor, b: Tensor, like: Like, padding_idx: int | None) -> Tensor:
    def add(grad: Array, ids: Array) -> Array:
        total = np.zeros(like.shape, grad.dtype)
        np.add.at(total, ids.reshape(-1), grad.reshape(ids.size, like.shape[1]))
        if padding_idx is not None:
            total[padding_idx] = 0
        return total

    return kernel("embedding_dense_backward", add, (g, b), like.shape, g.dtype)


derivative("embedding", _embedding)


def _swiglu(g: Tensor, a: Tensor, like: Like) -> Tensor:
    def slope(grad: Array, x: Array) -> Array:
        gate, up = np.split(x, 2, axis=-1)
        s = sigmoid_values(gate)
        left = grad * up * s * (1 + gate * (1 - s))
        return np.concatenate([left, grad * gate * s], axis=-1)

    return kernel("swiglu_backward", slope, (g, a), like.shape, g.dtype)


def _dropout(g: Tensor, b: Tensor, like: Like, factor: float) -> Tensor:
    def slope(grad: Array, kept: Array) -> Any:
        return grad * kept * grad.dtype.type(factor)

    return kernel("native_dropout_backward", slope, (g, b), like.shape, g.dtype)


def _glu(g: Tensor, a: Tensor, like: Like, dim: int) -> Tensor:
    def slope(grad: Array, x: Array) -> Array:
        left, right = np.split(x, 2, dim)
        s = sigmoid_values(right)
        return np.concatenate([grad * s, grad * left * s * (1 - s)], dim)

    return kernel("glu_backward", slope, (g, a), like.shape, g.dtype)


derivative("swiglu", _swiglu)
derivative("glu", _glu)
derivative("native_dropout", _dropout)


# Normalisation

_Axes = tuple[int, ...]


def _centred(x: Array, axes: _Axes, eps: float) -> tuple[Array, Array]:
    """Returns normalised values and the reciprocal of their standard deviation."""
    if not x.size:
        return x, x
    gap = x - np.mean(x, axis=axes, keepdims=True)
    size = np.mean(gap * gap, axis=axes, keepdims=True) + x.dtype.type(eps)
    return gap / np.sqrt(size), 1 / np.sqrt(size)


def _scaled(x: Array, axes: _Axes, eps: float) -> tuple[Array, Array]:
    """Returns values over their root mean square, and the reciprocal of the root mean square."""
    if not x.size:
        return x, x
    size = np.mean(x * x, axis=axes, keepdims=True) + x.dtype.type(eps)
    return x / np.sqrt(size), 1 / np.sqrt(size)


_NORMS: Final[dict[str, Callable[[Array, _Axes, float], tuple[Array, Array]]]] = {
    "batch_norm": _centred,
    "group_norm": _centred,
    "layer_norm": _centred,
    "rms_norm": _scaled,
}


def _summed(values: Array, shape: tuple[int, ...]) -> Array:
    """Returns values added up over the dimensions along which a shape was repeated."""
    missing = values.ndim - len(shape)
    axes = [*range(missing)]
    axes += [missing + d for d, n in enumerate(shape) if n == 1 != values.shape[missing + d]]
    total: Array = np.sum(values, axis=tuple(axes))
    return total.reshape(shape)


def _norm(name: str) -> None:
    normal = _NORMS[name]
    centred = normal is _centred

    def back(
        g: Tensor,
        a: Tensor,
        likes: Sequence[Like | None],
        axes: _Axes,
        eps: float,
        b: Tensor | None = None,
    ) -> Sequence[Tensor | None]:
        def slopes(grad: Array, x: Array, w: Array | None) -> Iterator[Any]:
            y, factor = normal(x, axes, eps)
            if likes[0] is not None:
                yield _slope(grad if w is None else grad * w, y, factor) if x.size else grad
            yield from _affine(grad, y, likes)

        def _slope(grad: Array, y: Array, factor: Array) -> Any:
            along = y * np.mean(grad * y, axis=axes, keepdims=True)
            mean = np.mean(grad, axis=axes, keepdims=True) if centred else 0
            return factor * (grad - along - mean)

        return kernels_of(f"{name}_backward", slopes, (g, a, b), likes, g.dtype)

    derivative(name, joint=back)


def _affine(grad: Array, y: Array, likes: Sequence[Like | None]) -> Iterator[Any]:
    """Returns the gradients of factors and summands of normalised values, if they are wanted."""
    for like, values in zip(likes[1:3], (grad * y, grad), strict=False):
        if like is not None:
            yield _summed(values, like.shape)


for _name in _NORMS:
    _norm(_name)


# Batch norm with statistics that are given


def _batch_norm_back(
    g: Tensor,
    a: Tensor,
    likes: Sequence[Like | None],
    mean: Tensor,
    var: Tensor,
    eps: float,
    b: Tensor | None = None,
) -> Sequence[Tensor | None]:
    def slopes(grad: Array, x: Array, w: Array | None, centre: Array, size: Array) -> Iterator[Any]:
        factor = 1 / np.sqrt(size + size.dtype.type(eps))
        if likes[0] is not None:
            yield grad * (factor if w is None else factor * w)
        yield from _affine(grad, (x - centre) * factor, likes)

    return kernels_of("batch_norm_elemt_backward", slopes, (g, a, b, mean, var), likes, g.dtype)


derivative("batch_norm_elemt", joint=_batch_norm_back)


# Losses


def _nll_loss(g: Tensor, b: Tensor, like: Like, law: ClassLoss, c: Tensor | None = None) -> Tensor:
    return kernel("nll_loss_backward", law.slope, (g, b, c), like.shape, g.dtype)


def _nll_loss2d(
    g: Tensor, b: Tensor, like: Like, law: ClassLoss, c: Tensor | None = None
) -> Tensor:
    return kernel("nll_loss2d_backward", law.slope, (g, b, c), like.shape, g.dtype)


derivative("nll_loss", _nll_loss)
derivative("nll_loss2d", _nll_loss2d)


def _compared(name: str) -> None:
    def of(at: int, g: Tensor, a: Tensor, b: Tensor, like: Like, loss: Loss) -> Tensor:
        return kernel(f"{name}_backward", partial(loss.slope, at), (g, a, b), like.shape, g.dtype)

    def of_input(g: Tensor, a: Tensor, b: Tensor, like: Like, loss: Loss) -> Tensor:
        return of(0, g, a, b, like, loss)

    def of_target(g: Tensor, a: Tensor, b: Tensor, like: Like, loss: Loss) -> Tensor:
        return of(1, g, a, b, like, loss)

    derivative(name, of_input, of_target)


for _name in ("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"):
    _compared(_name)


def _shared(g: Tensor, like: Like, loss: Loss) -> Tensor:
    """Returns a gradient divided in place by the number of elements if the loss is a mean."""
    return g.div_(max(prod(like.shape), 1)) if loss.reduction == "mean" else g


derivative(
    "binary_cross_entropy_with_logits",
    lambda g, a, b, like, loss: _shared((a.sigmoid() - b) * g, like, loss),
    lambda g, a, like, loss: _shared(-a * g, like, loss),
)
