"""Gradients of elementwise operations: one kernel each, rounded once."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from kernbench.memory import Array
from kernbench.operations.creation import zeros_like
from kernbench.operations.curves import IN_PLACE, NAMES, Curve
from kernbench.operations.elementwise import elementwise
from kernbench.operations.special import erf_values
from kernbench.tensors.tape import derivative, names_of
from kernbench.tensors.tensor import Tensor

_ARRAYS: Final = ("a", "b", "c", "out")


def same(g: Tensor) -> Tensor:
    """Returns the gradient unchanged."""
    return g


def nothing(g: Tensor) -> Tensor:
    """Returns zeros, as PyTorch does where the derivative is 0 everywhere."""
    return zeros_like(g)


def _fused(name: str, function: Callable[..., Any]) -> Callable[..., Tensor]:
    """Returns a formula that is one kernel.

    Args:
        name: Name of the operation.
        function: Takes arrays: the gradient and, by parameter name, operands, result and options.
    """
    label, parameters = f"aten::{name}_backward", names_of(function)
    arrays = [name for name in parameters if name in _ARRAYS]
    rest = [name for name in parameters[1:] if name not in _ARRAYS]

    def formula(g: Tensor, **given: Any) -> Tensor:
        names = [name for name in arrays if name in given]
        options = {name: given[name] for name in rest if name in given}
        bound = partial(function, **options) if options else function

        def apply(grad: Array, *values: Array) -> Any:
            return bound(grad, **dict(zip(names, values, strict=True)))

        return elementwise(label, apply, g, *[given[name] for name in names])

    # These names tell the tape which operands to keep.
    formula.names = parameters  # type: ignore[attr-defined]
    return formula


def _pointwise(name: str, *functions: Callable[..., Any] | None) -> None:
    """Registers formulas, each as one kernel; `same` and `nothing` need no kernel of their own."""
    parts = [f if f in {None, same, nothing} else _fused(name, f) for f in functions]
    derivative(name, *parts)


# One operand


def sigmoid_values(a: Array) -> Array:
    """Returns the logistic function, which never overflows."""
    small = np.exp(-np.abs(a))
    result: Array = np.where(a >= 0, 1, small) / (1 + small)
    return result


def _silu(g: Array, a: Array) -> Any:
    s = sigmoid_values(a)
    return g * s * (1 + a * (1 - s))


def _gelu(g: Array, a: Array, approximate: str) -> Any:
    if approximate == "none":
        density = np.exp(-0.5 * a * a) * a.dtype.type(1 / np.sqrt(2 * np.pi))
        below = 0.5 * (1 + erf_values(a * a.dtype.type(np.sqrt(0.5))))
        return g * (below + a * density)
    root = a.dtype.type(np.sqrt(2 / np.pi))
    t = np.tanh(root * (a + 0.044715 * a * a * a))
    slope = root * (1 + 3 * 0.044715 * a * a)
    return g * (0.5 * (1 + t) + 0.5 * a * (1 - t * t) * slope)


_UNARY: Final[dict[str, Callable[..., Any]]] = {
    "exp": lambda g, out: g * out,
    "expm1": lambda g, out: g * (out + 1),
    "log": lambda g, a: g / a,
    "log1p": lambda g, a: g / (a + 1),
    "log2": lambda g, a: g / (a * a.dtype.type(np.log(2))),
    "log10": lambda g, a: g / (a * a.dtype.type(np.log(10))),
    "sqrt": lambda g, out: g / (2 * out),
    "rsqrt": lambda g, out: -0.5 * g * out * out * out,
    "reciprocal": lambda g, out: -g * out * out,
    "square": lambda g, a: 2 * g * a,
    "sin": lambda g, a: g * np.cos(a),
    "cos": lambda g, a: -g * np.sin(a),
    "tan": lambda g, out: g * (1 + out * out),
    "tanh": lambda g, out: g * (1 - out * out),
    "sigmoid": lambda g, out: g * out * (1 - out),
    "erf": lambda g, a: g * np.exp(-a * a) * a.dtype.type(2 / np.sqrt(np.pi)),
    "neg": lambda g: -g,
    "abs": lambda g, a: g * ((a > 0).astype(g.dtype) - (a < 0)),
    "relu": lambda g, out: np.where(out <= 0, 0, g),
    "silu": _silu,
    "gelu": _gelu,
    "angle": nothing,
    "sign": nothing,
    "floor": nothing,
    "ceil": nothing,
    "trunc": nothing,
    "round": nothing,
}
for _name, _function in _UNARY.items():
    _pointwise(_name, _function)


# Two operands


def _scaled(g: Tensor, alpha: float = 1) -> Tensor:
    return g if alpha == 1 else g * alpha


def _negated(g: Tensor, alpha: float = 1) -> Tensor:
    return g * -alpha


derivative("add", same, _scaled)
derivative("sub", same, _negated)
derivative("rsub", same, _negated)
_pointwise("mul", lambda g, b: g * b, lambda g, a: g * a)


def _quotient(g: Tensor, b: Any, rounding_mode: str | None = None) -> Tensor:
    return nothing(g) if rounding_mode else g / b


_divisor = _fused("div", lambda g, a, b: -g * (a / b) / b)


def _quotient_by(g: Tensor, a: Any, b: Any, rounding_mode: str | None = None) -> Tensor:
    return nothing(g) if rounding_mode else _divisor(g, a=a, b=b)


derivative("div", _quotient, _quotient_by)
_pointwise("remainder", same, lambda g, a, b: -g * np.floor(a / b))
_pointwise("fmod", same, lambda g, a, b: -g * np.trunc(a / b))


def _base(g: Array, a: Array, b: Any = 2) -> Any:
    return np.where(np.equal(b, 0), 0, g * b * np.power(a, b - 1))


def _exponent(g: Array, a: Array, b: Array, out: Array) -> Any:
    return g * np.where((a == 0) & (b >= 0), 0, out * np.log(a))


_pointwise("pow", _base, _exponent)


def _larger(x: Array, y: Array) -> Array:
    """Weights of the larger one; equal ones share."""
    result: Array = (x > y) + (x == y) * x.dtype.type(0.5)
    return result


_pointwise("maximum", lambda g, a, b: g * _larger(a, b), lambda g, a, b: g * _larger(b, a))
_pointwise("minimum", lambda g, a, b: g * _larger(b, a), lambda g, a, b: g * _larger(a, b))
_pointwise(
    "logaddexp", lambda g, a, b: g / (1 + np.exp(b - a)), lambda g, a, b: g / (1 + np.exp(a - b))
)
_pointwise(
    "logaddexp2",
    lambda g, a, b: g / (1 + np.exp2(b - a)),
    lambda g, a, b: g / (1 + np.exp2(a - b)),
)
_pointwise("clamp_min", lambda g, a, b: g * (a >= b), lambda g, a, b: g * (a < b))
_pointwise("clamp_max", lambda g, a, b: g * (a <= b), lambda g, a, b: g * (a > b))


# Three operands

_pointwise(
    "clamp",
    lambda g, a, b, c: g * ((a >= b) & (a <= c)),
    lambda g, a, b, c: g * ((a < b) & (b < c)),
    lambda g, a, b, c: g * ((a > c) | (c < b)),
)
_pointwise("where", None, lambda g, a: np.where(a, g, 0), lambda g, a: np.where(a, 0, g))
for _name in ("masked_fill", "masked_fill_"):
    _pointwise(_name, None, lambda g, a: np.where(a, g, 0), lambda g, a: np.where(a, 0, g))
_pointwise("lerp", lambda g, c: g * (1 - c), lambda g, c: g * c, lambda g, a, b: g * (b - a))
_pointwise(
    "addcmul", same, lambda g, c, value: g * (c * value), lambda g, b, value: g * (b * value)
)
_pointwise(
    "addcdiv",
    same,
    lambda g, c, value: g * value / c,
    lambda g, b, c, value: -g * value * b / (c * c),
)
derivative("fill", nothing, same)
derivative("random", nothing)


# Curves, and losses of one kernel


def _at_operand(g: Array, a: Array, curve: Curve) -> Any:
    return g * curve.slope(a)


def _at_result(g: Array, out: Array, curve: Curve) -> Any:
    return g * curve.slope(out)


for _name in NAMES:
    _pointwise(_name, _at_operand)
for _name in IN_PLACE:
    _pointwise(_name, _at_result)


def _binary_cross_entropy(g: Array, a: Array, b: Array) -> Any:
    return g * (a - b) / np.maximum((1 - a) * a, a.dtype.type(1e-12))


def _of_target(g: Array, a: Array) -> Any:
    return g * (np.log1p(-a) - np.log(a))


_pointwise("binary_cross_entropy", _binary_cross_entropy, _of_target)
