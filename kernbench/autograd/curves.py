"""Functions of one number with their slopes: activations and losses that are one kernel each."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from kernbench.memory import Array


class Curve(NamedTuple):
    """A function of one number.

    Attributes:
        value: The function, of an array.
        slope: Its derivative; of the operand, or of the result where the operation is in place.
    """

    value: Callable[[Array], Any]
    slope: Callable[[Array], Any]


NAMES = (
    "elu",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "log_sigmoid_forward",
    "mish",
    "softplus",
)
"""Names of the operations whose derivative is the slope at the operand."""

IN_PLACE = ("elu_", "hardtanh_", "leaky_relu_")
"""Names of operations in place, whose derivative is found from the result."""


def _logistic(x: Array) -> Array:
    with np.errstate(over="ignore"):
        result: Array = 1 / (1 + np.exp(-x))
    return result


def _soft(x: Array) -> Array:
    """Returns log(1 + exp(x)) without overflow."""
    result: Array = np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))
    return result


def leaky_relu(negative: float) -> Curve:
    """Returns x above 0, and x times a factor below; the slope of the result is the same."""
    return Curve(
        lambda x: np.where(x > 0, x, x * negative),
        lambda x: np.where(x > 0, x.dtype.type(1), x.dtype.type(negative)),
    )


def elu(alpha: float, scale: float = 1.0) -> Curve:
    """Returns `scale * x` above 0, and `scale * alpha * (exp(x) - 1)` below."""
    return Curve(
        lambda x: np.where(x <= 0, np.expm1(np.minimum(x, 0)) * (alpha * scale), x * scale),
        lambda x: np.where(x <= 0, np.exp(np.minimum(x, 0)) * (alpha * scale), scale),
    )


def elu_of_result(alpha: float, scale: float = 1.0) -> Curve:
    """Returns `elu` with its slope by the result."""
    return Curve(
        elu(alpha, scale).value, lambda y: np.where(y <= 0, y + y.dtype.type(alpha * scale), scale)
    )


def hardtanh(low: float, high: float) -> Curve:
    """Returns x within bounds; the slope is 0 at the bounds, so the result has it, too."""
    return Curve(lambda x: np.clip(x, low, high), lambda x: ~((x <= low) | (x >= high)))


def softplus(beta: float, threshold: float) -> Curve:
    """Returns `log(1 + exp(beta * x)) / beta`, and x where `beta * x` is above a threshold."""
    return Curve(
        lambda x: np.where(x * beta > threshold, x, _soft(x * beta) / beta),
        lambda x: np.where(x * beta > threshold, x.dtype.type(1), _logistic(x * beta)),
    )


def _mish_slope(x: Array) -> Any:
    t = np.tanh(_soft(x))
    return t + x * _logistic(x) * (1 - t * t)


LOG_SIGMOID = Curve(
    lambda x: np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x))), lambda x: _logistic(-x)
)
MISH = Curve(lambda x: x * np.tanh(_soft(x)), _mish_slope)
HARDSWISH = Curve(
    lambda x: x * np.clip(x + 3, 0, 6) / 6,
    lambda x: np.where(x <= -3, 0, np.where(x < 3, x / 3 + x.dtype.type(0.5), 1)),
)
HARDSIGMOID = Curve(
    lambda x: np.clip(x + 3, 0, 6) / 6,
    lambda x: np.where((x > -3) & (x < 3), x.dtype.type(1 / 6), x.dtype.type(0)),
)


def xlogy(x: Array, y: Array) -> Array:
    """Returns x times the logarithm of y; 0 where x is."""
    return np.where(x == 0, x, x * np.log(np.where(x == 0, 1, y)))
