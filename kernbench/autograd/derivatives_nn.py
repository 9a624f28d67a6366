"""Gradients of the fused kernels of `torch.nn.functional`: one kernel per operand."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from kernbench.autograd.derivatives_pointwise import sigmoid_values
from kernbench.memory import Array
from kernbench.operations.class_loss import ClassLoss
from kernbench.operations.fused import kernel, kernel_of_many
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


derivative("swiglu", _swiglu)
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

    def slopes(
        g: Tensor,
        a: Tensor,
        wanted: list[Like | None],
        axes: _Axes,
        eps: float,
        b: Tensor | None = None,
    ) -> list[Tensor | None]:
        own = [None if each is None else each.shape for each in wanted]

        def compute(grad: Array, x: Array, w: Array | None) -> list[Array | None]:
            if not x.size:
                return [None if shape is None else np.zeros(shape, grad.dtype) for shape in own]
            y, factor = normal(x, axes, eps)
            found: list[Array | None] = [None]
            for shape, each in zip(own[1:], (grad * y, grad), strict=False):
                found.append(None if shape is None else _summed(each, shape))
            if own[0] is not None:
                inner = grad if w is None else grad * w
                along = y * np.mean(inner * y, axis=axes, keepdims=True)
                mean = np.mean(inner, axis=axes, keepdims=True) if centred else 0
                found[0] = factor * (inner - along - mean)
            return found

        return kernel_of_many(f"{name}_backward", compute, (g, a, b), own, g.dtype)

    derivative(name, every=slopes, together=True)


for _name in _NORMS:
    _norm(_name)


# Batch norm with statistics that are given


def _of_input(g: Tensor, like: Like, var: Tensor, eps: float, b: Tensor | None = None) -> Tensor:
    def slope(grad: Array, size: Array, w: Array | None) -> Any:
        factor = 1 / np.sqrt(size + size.dtype.type(eps))
        return grad * (factor if w is None else factor * w)

    return kernel("batch_norm_elemt_backward", slope, (g, var, b), like.shape, g.dtype)


def _of_weight(g: Tensor, a: Tensor, like: Like, mean: Tensor, var: Tensor, eps: float) -> Tensor:
    def slope(grad: Array, x: Array, centre: Array, size: Array) -> Any:
        whole = grad * (x - centre) / np.sqrt(size + size.dtype.type(eps))
        return _summed(whole, like.shape)

    operands = (g, a, mean, var)
    return kernel("batch_norm_elemt_weight_backward", slope, operands, like.shape, g.dtype)


derivative("batch_norm_elemt", _of_input, _of_weight, lambda g: g, None, None)


# Attention and losses


def _masked_softmax(g: Tensor, out: Tensor, factor: float) -> Tensor:
    def slope(grad: Array, y: Array) -> Any:
        scaled = grad * y
        return (scaled - y * np.sum(scaled, axis=-1, keepdims=True)) * y.dtype.type(factor)

    name = "scaled_masked_softmax_backward"
    return kernel(name, slope, (g, out), g.window.shape, g.dtype)


derivative(
    "scaled_masked_softmax",
    _masked_softmax,
    lambda g, out: _masked_softmax(g, out, 1.0),
)


def _nll_loss(g: Tensor, b: Tensor, like: Like, law: ClassLoss, c: Tensor | None = None) -> Tensor:
    return kernel("nll_loss_backward", law.slope, (g, b, c), like.shape, g.dtype)


derivative("nll_loss", _nll_loss)
