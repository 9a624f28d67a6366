"""Losses that compare element by element, with their slopes: one kernel each."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from kernbench.memory import Array


class Comparison(NamedTuple):
    """The loss of a pair of elements.

    Attributes:
        value: The loss, of arrays of one shape.
        slopes: Its derivatives, by the first element and by the second one.
    """

    value: Callable[[Array, Array], Any]
    slopes: tuple[Callable[[Array, Array], Any], Callable[[Array, Array], Any]]


class Loss(NamedTuple):
    """A comparison of tensors.

    Attributes:
        comparison: What is compared how.
        reduction: `none`, `mean` or `sum`.
    """

    comparison: Comparison
    reduction: str

    def value(self, x: Array, y: Array) -> Any:
        """Returns the loss of each pair, or their mean or sum."""
        values = self.comparison.value(x, y)
        if self.reduction == "none":
            return values
        total = np.sum(values)
        return total if self.reduction == "sum" else total / _count(values.size, total)

    def slope(self, at: int, grad: Array, x: Array, y: Array) -> Any:
        """Returns the gradient of the first or of the second tensor.

        Args:
            at: 0 or 1.
            grad: Gradient of the loss.
            x: The first tensor.
            y: The second tensor.
        """
        slopes = self.comparison.slopes[at](x, y)
        if self.reduction == "mean":
            slopes = slopes / _count(slopes.size, slopes)
        return grad * slopes


def _count(size: int, like: Any) -> Any:
    return like.dtype.type(size)


def _of_difference(value: Callable[[Array], Any], slope: Callable[[Array], Any]) -> Comparison:
    return Comparison(
        lambda x, y: value(x - y), (lambda x, y: slope(x - y), lambda x, y: -slope(x - y))
    )


SQUARE = _of_difference(np.square, lambda d: 2 * d)


def smooth_l1(beta: float) -> Comparison:
    """Returns half the square over `beta` near 0, and the distance less half of `beta` beyond."""
    return _of_difference(
        lambda d: np.where(np.abs(d) < beta, d * d * (0.5 / beta), np.abs(d) - 0.5 * beta),
        lambda d: np.where(np.abs(d) < beta, d / beta, np.sign(d)),
    )


def huber(delta: float) -> Comparison:
    """Returns half the square near 0, and `delta` times the distance less half of it beyond."""
    return _of_difference(
        lambda d: np.where(np.abs(d) < delta, d * d * 0.5, delta * (np.abs(d) - 0.5 * delta)),
        lambda d: np.clip(d, -delta, delta),
    )


def _entropy(x: Array, y: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        right, left = np.maximum(np.log(x), -100), np.maximum(np.log1p(-x), -100)
    result: Array = (y - 1) * left - y * right
    return result


ENTROPY = Comparison(
    _entropy,
    (
        lambda x, y: (x - y) / np.maximum((1 - x) * x, x.dtype.type(1e-12)),
        lambda x, y: np.log1p(-x) - np.log(x),
    ),
)
"""Cross entropy of probabilities of two classes."""


def _of_logits(x: Array, y: Array) -> Any:
    return (1 - y) * x - (np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x))))


def _likelihood(x: Array) -> Any:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)


LOGITS = Comparison(_of_logits, (lambda x, y: _likelihood(x) - y, lambda x, y: -x))
"""Cross entropy of the sigmoid of logits."""
