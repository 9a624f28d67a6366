"""Gradients of reductions, of operations along a dimension, and of products of matrices."""

from typing import Any

import numpy as np

from kernbench.autograd.derivatives_pointwise import same
from kernbench.autograd.derivatives_shaping import added_along
from kernbench.errors import UnsupportedError, call_site, site_fact
from kernbench.memory import Array
from kernbench.operations.fused import kernel
from kernbench.operations.linalg import contracted
from kernbench.tensors.host_time import spend_views
from kernbench.tensors.nodes import Like
from kernbench.tensors.tape import derivative
from kernbench.tensors.tensor import Tensor

Axes = tuple[int, ...]


def _kept(g: Tensor, like: Like, axes: Axes) -> Tensor:
    """Returns a view in which the reduced dimensions have extent 1."""
    return g.reshape([1 if dim in axes else n for dim, n in enumerate(like.shape)])


def _spread(g: Tensor, like: Like, axes: Axes) -> Tensor:
    return _kept(g, like, axes).expand(like.shape)


def _count(like: Like, axes: Axes) -> int:
    return int(np.prod([like.shape[axis] for axis in axes]))


def _mean(g: Tensor, like: Like, axes: Axes) -> Tensor:
    return _spread(g, like, axes) / max(_count(like, axes), 1)


derivative("sum", _spread)
derivative("mean", _mean)


def _prod(g: Tensor, a: Tensor, like: Like, axes: Axes) -> Tensor:
    def others(grad: Array, x: Array) -> Any:
        # The product of all other elements, without a division, since some may be 0: the running
        # product from the left times that from the right.
        flat = np.moveaxis(x, axes, range(x.ndim - len(axes), x.ndim))
        row = flat.reshape(*flat.shape[: x.ndim - len(axes)], -1)
        one = np.ones((*row.shape[:-1], 1), x.dtype)
        left = np.cumprod(np.concatenate([one, row[..., :-1]], -1), -1)
        right = np.cumprod(np.concatenate([one, row[..., :0:-1]], -1), -1)[..., ::-1]
        both = (left * right).reshape(flat.shape)
        return grad * np.moveaxis(both, range(x.ndim - len(axes), x.ndim), axes)

    if 0 in like.shape:
        return _spread(g, like, axes)
    return kernel("prod_backward", others, (_kept(g, like, axes), a), like.shape, g.dtype)


derivative("prod", _prod)


def _extreme(g: Tensor, a: Tensor, out: Tensor, like: Like, axes: Axes) -> Tensor:
    mask = a == _kept(out, like, axes)
    if not axes:
        return g * mask
    return _kept(g, like, axes) / mask.sum(axes, keepdim=True) * mask


def _extreme_of_all(g: Tensor, a: Tensor, out: Tensor) -> Tensor:
    # Unlike `amax`, nan gives nan a gradient.
    nan = a.isnan().logical_and(out.isnan())
    mask = (a == out).logical_or_(nan)
    return mask * (g / mask.sum())


derivative("amax", _extreme)
derivative("amin", _extreme)
derivative("max.1", _extreme_of_all)
derivative("min.1", _extreme_of_all)


def _chosen(g: Tensor, like: Like, axes: Axes, chosen: Tensor) -> Tensor:
    rows, grad = _kept(chosen, like, axes), _kept(g, like, axes)
    return added_along("scatter_", grad, like, (*axes, 0)[0], rows)


derivative("max", _chosen)
derivative("min", _chosen)


def _var(g: Tensor, a: Tensor, like: Like, axes: Axes, correction: int) -> Tensor:
    return _of_variance(_kept(g, like, axes), a, like, axes, correction)


def _of_variance(g: Tensor, a: Tensor, like: Like, axes: Axes, correction: int) -> Tensor:
    rest = _count(like, axes) - correction
    factor = 2 / rest if rest > 0 else float("inf")
    return factor * g * (a - a.mean(axes or None, keepdim=True))


def _std(g: Tensor, a: Tensor, out: Tensor, like: Like, axes: Axes, correction: int) -> Tensor:
    spread = _kept(out, like, axes)
    share = (_kept(g, like, axes) / (spread * 2)).masked_fill_(spread == 0, 0)
    return _of_variance(share, a, like, axes, correction)


def _norm(g: Tensor, a: Tensor, out: Tensor, like: Like, axes: Axes, order: float) -> Tensor:
    def slope(grad: Array, x: Array, length: Array) -> Any:
        if order == 0:
            return np.zeros_like(x)
        if abs(order) == float("inf"):
            mask = np.abs(x) == length
            share = np.sum(mask, axis=axes, keepdims=True, dtype=x.dtype)
            return grad * np.sign(x) * mask / share
        if order == 1:
            return grad * np.sign(x)
        weight = np.sign(x) * np.abs(x) ** (order - 1)
        return np.where((length == 0) | (x == 0), 0, grad * weight * length ** (1 - order))

    if order == 2:
        length = _kept(out, like, axes)
        return _kept(g, like, axes) * (a / length).masked_fill_(length == 0, 0)
    operands = (_kept(g, like, axes), a, _kept(out, like, axes))
    return kernel("norm_backward", slope, operands, like.shape, g.dtype)


def _logsumexp(g: Tensor, a: Tensor, out: Tensor, like: Like, axes: Axes) -> Tensor:
    return _kept(g, like, axes) * (a - _kept(out, like, axes)).exp()


derivative("var", _var)
derivative("std", _std)
derivative("norm", _norm)
derivative("logsumexp", _logsumexp)


# Along one dimension


def _cumsum(g: Tensor, dim: int) -> Tensor:
    shape = g.window.shape
    if g.window.numel <= 1 or shape[dim] == 1:
        return g
    return g.flip(dim).cumsum(dim).flip(dim)


def _softmax(g: Tensor, out: Tensor, dim: int) -> Tensor:
    def back(grad: Array, y: Array) -> Any:
        scaled = grad * y
        return scaled - y * np.sum(scaled, axis=dim if y.ndim else None, keepdims=True)

    return kernel("softmax_backward", back, (g, out), g.window.shape, g.dtype)


def _log_softmax(g: Tensor, out: Tensor, dim: int) -> Tensor:
    def back(grad: Array, y: Array) -> Any:
        return grad - np.exp(y) * np.sum(grad, axis=dim if y.ndim else None, keepdims=True)

    return kernel("log_softmax_backward", back, (g, out), g.window.shape, g.dtype)


def _ranked(g: Tensor, like: Like, dim: int, chosen: Tensor) -> Tensor:
    return added_along("scatter_", g, like, dim, chosen)


derivative("cumsum", _cumsum)
derivative("softmax", _softmax)
derivative("_safe_softmax", _softmax)
derivative("log_softmax", _log_softmax)
derivative("sort", _ranked)
derivative("topk", _ranked)


# Products


def _rows(x: Tensor) -> Tensor:
    """Returns a matrix of all rows of a batch."""
    return x.flatten(0, -2) if x.ndim > 1 else x.unsqueeze(0)


def _left(g: Tensor, b: Tensor, like: Like) -> Tensor:
    if b.ndim == 1:
        return g.unsqueeze(-1) * b if len(like.shape) > 1 else g * b
    if len(like.shape) == 1:
        product = g.unsqueeze(-2) @ b.mT
        return product.reshape(like.shape) if b.ndim == 2 else product
    return g @ b.mT


def _right(g: Tensor, a: Tensor, like: Like) -> Tensor:
    if len(like.shape) == 1:
        if a.ndim <= 2:
            return g * a if a.ndim == 1 else a.mT @ g
        g = g.unsqueeze(-1)
    if a.ndim == 1:
        g, a = g.unsqueeze(-2), a.unsqueeze(-2)
    if len(like.shape) > 2:
        return a.mT @ g
    # One product of all rows of the batch, as the forward pass was.
    return (_rows(a).mT @ _rows(g)).reshape(like.shape)


derivative("matmul", _left, _right)


def _scaled(g: Tensor, beta: float) -> Tensor:
    return g if beta == 1 else g * beta


for _name in ("addmm", "baddbmm"):
    derivative(
        _name,
        _scaled,
        lambda g, c, alpha: _scaled(g @ c.mT, alpha),
        lambda g, b, alpha: _scaled(b.mT @ g, alpha),
    )


def _linear_weight(g: Tensor, a: Tensor) -> Tensor:
    return _rows(g).mT @ _rows(a)


def _linear_input(g: Tensor, b: Tensor) -> Tensor:
    spend_views(g)  # PyTorch turns the weight, which it has turned before
    return g @ b


derivative("linear", _linear_input, _linear_weight, same)


def _contracted_back(
    g: Tensor,
    like: Like,
    result: str,
    own: str,
    others: "list[tuple[str, Tensor]]",
    operator: str | None,
) -> Tensor:
    if len(set(own)) != len(own):
        raise UnsupportedError(
            "the derivative of einsum is not simulated where one operand names a subscript twice",
            [site_fact(call_site()), f"operand {own!r}"],
            hint="take the diagonal() first",
        )
    known = {*result, *(letter for term, _ in others for letter in term)}
    kept = "".join(letter for letter in own if letter in known)
    terms = ",".join([result, *(term for term, _ in others)])
    operands = [g, *[other for _, other in others]]
    partial = contracted(f"{terms}->{kept}", operands, operator)
    # Subscripts that only this operand has were summed over by themselves.
    extents = dict(zip(kept, partial.shape, strict=True))
    shape = [extents.get(letter, 1) for letter in own]
    wide = [max(n, m) if n else 0 for n, m in zip(shape, like.shape, strict=True)]
    return partial.reshape(shape).expand(wide)


def _einsum_first(
    g: Tensor,
    like: Like,
    terms: list[str],
    result: str,
    operator: str | None,
    b: Any = None,
) -> Tensor:
    others = [] if b is None else [(terms[1], b)]
    return _contracted_back(g, like, result, terms[0], others, operator)


def _einsum_second(
    g: Tensor, like: Like, terms: list[str], result: str, operator: str | None, a: Any
) -> Tensor:
    return _contracted_back(g, like, result, terms[1], [(terms[0], a)], operator)


derivative("einsum", _einsum_first, _einsum_second)
