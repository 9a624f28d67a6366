"""Gradients of elementwise operations: one kernel each, rounded once."""

from collections.abc import Callable
from functools import partial
from math import inf, log, nan, pi, sqrt
from typing import Any, Final

import numpy as np

from kernbench.autograd.curves import IN_PLACE, NAMES, Curve, xlogy
from kernbench.memory import Array
from kernbench.memory.special import erf_values
from kernbench.operations.creation import scalar_tensor, zeros_like
from kernbench.operations.elementwise import elementwise
from kernbench.operations.pointwise import div, where
from kernbench.operations.unary import sign_values
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


_pointwise("tanh", lambda g, out: g * (1 - out * out))
_pointwise("sigmoid", lambda g, out: g * out * (1 - out))
_pointwise("relu", lambda g, out: np.where(out <= 0, 0, g))
_pointwise("silu", _silu)
_pointwise("gelu", _gelu)
for _name in ("angle", "sign", "floor", "ceil", "trunc", "round"):
    derivative(_name, nothing)


def _sgn(x: Tensor) -> Tensor:
    return elementwise("aten::sgn", sign_values, x)


derivative("exp", lambda g, out: g * out)
derivative("expm1", lambda g, out: g * (out + 1))
derivative("log", lambda g, a: g / a)
derivative("log1p", lambda g, a: g / (a + 1))
derivative("log2", lambda g, a: g / (a * log(2)))
derivative("log10", lambda g, a: g / (a * log(10)))
derivative("sqrt", lambda g, out: g / (2 * out))
derivative("rsqrt", lambda g, out: -0.5 * g * out.pow(3))
derivative("reciprocal", lambda g, out: -g * (out * out))
derivative("square", lambda g, a: g * (2 * a.pow(1)))
derivative("sin", lambda g, a: g * a.cos())
derivative("cos", lambda g, a: g * -a.sin())
derivative("tan", lambda g, out: g * (1 + out.pow(2)))
derivative("erf", lambda g, a: 2 / sqrt(pi) * (-a.pow(2)).exp() * g)
derivative("neg", lambda g: -g)
derivative("abs", lambda g, a: g * _sgn(a))


# Two operands


def _scaled(g: Tensor, alpha: float = 1) -> Tensor:
    return g if alpha == 1 else g * alpha


def _negated(g: Tensor, alpha: float = 1) -> Tensor:
    return _scaled(-g, alpha)


derivative("add", same, _scaled)
derivative("sub", same, _negated)
derivative("rsub", same, _negated)
derivative("mul", lambda g, b: g * b, lambda g, a: g * a)


def _quotient(g: Tensor, b: Any, rounding_mode: str | None = None) -> Tensor:
    return nothing(g) if rounding_mode else g / b


def _quotient_by(g: Tensor, a: Any, b: Any, rounding_mode: str | None = None) -> Tensor:
    return nothing(g) if rounding_mode else -g * (a / b / b)


derivative("div", _quotient, _quotient_by)
derivative("remainder", same, lambda g, a, b: -g * div(a, b, rounding_mode="floor"))
derivative("fmod", same, lambda g, a, b: -g * div(a, b, rounding_mode="trunc"))


def _zero(g: Tensor) -> Tensor:
    """Returns the zero that PyTorch chooses in place of elements: a kernel writes it."""
    return scalar_tensor(0, g)


def _base(g: Tensor, a: Any, b: Any = 2) -> Tensor:
    if isinstance(b, Tensor):
        return where(b == 0, _zero(g), g * (b * a.pow(b - 1)))
    return zeros_like(g) if b == 0 else g * (b * a.pow(b - 1))


def _exponent(g: Tensor, a: Any, b: Tensor, out: Tensor) -> Tensor:
    if isinstance(a, Tensor):
        held = (a == 0).logical_and(b >= 0)
        return g * where(held, _zero(g), out * a.log())
    if a == 0:
        return where(b >= 0, _zero(g), g * (out * -inf))
    return g * (out * (log(a) if a > 0 else nan))


derivative("pow", _base, _exponent)


def _shared(g: Tensor, a: Tensor, b: Tensor, lost: Tensor) -> Tensor:
    """Returns the gradient but where an operand was not chosen; equal ones share it."""
    return where(a == b, g / 2, g).masked_fill_(lost, 0)


derivative(
    "maximum", lambda g, a, b: _shared(g, a, b, a < b), lambda g, a, b: _shared(g, a, b, a > b)
)
derivative(
    "minimum", lambda g, a, b: _shared(g, a, b, a > b), lambda g, a, b: _shared(g, a, b, a < b)
)
derivative(
    "logaddexp", lambda g, a, b: g / (1 + (b - a).exp()), lambda g, a, b: g / (1 + (a - b).exp())
)
derivative(
    "logaddexp2", lambda g, a, b: g / (1 + 2 ** (b - a)), lambda g, a, b: g / (1 + 2 ** (a - b))
)


def _kept_where(g: Tensor, condition: Tensor) -> Tensor:
    return where(condition, g, _zero(g))


derivative(
    "clamp_min", lambda g, a, b: _kept_where(g, a >= b), lambda g, a, b: _kept_where(g, a < b)
)
derivative(
    "clamp_max", lambda g, a, b: _kept_where(g, a <= b), lambda g, a, b: _kept_where(g, a > b)
)


# Three operands

derivative(
    "clamp",
    lambda g, a, b, c: _kept_where(g, (a >= b).logical_and_(a <= c)),
    lambda g, a, b, c: _kept_where(g, (a < b).logical_and_(b < c)),
    lambda g, a, b, c: _kept_where(g, (a > c).logical_or_(c < b)),
)
derivative(
    "where",
    None,
    lambda g, a: where(a, g, _zero(g)),
    lambda g, a: where(a, _zero(g), g),
)
derivative(
    "masked_fill", None, lambda g, a: where(a, g, _zero(g)), lambda g, a: g.masked_fill(a, 0)
)
derivative(
    "xlogy",
    lambda g, a, b: elementwise("aten::xlogy", xlogy, g, b).masked_fill((a == 0) & (b <= 0), 0),
    lambda g, a, b: g * a / b,
)
derivative("lerp", lambda g, c: g * (1 - c), lambda g, c: g * c, lambda g, a, b: g * (b - a))
derivative(
    "addcmul", same, lambda g, c, value: g * (c * value), lambda g, b, value: g * (b * value)
)
derivative(
    "addcdiv",
    same,
    lambda g, c, value: g * (value / c),
    lambda g, b, c, value: -g * (value * b / (c * c)),
)
derivative("fill", nothing, same)
derivative("random", nothing)


# Curves


def _at_operand(g: Array, a: Array, curve: Curve) -> Any:
    return g * curve.slope(a)


def _at_result(g: Array, out: Array, curve: Curve) -> Any:
    return g * curve.slope(out)


for _name in NAMES:
    _pointwise(_name, _at_operand)
for _name in IN_PLACE:
    _pointwise(_name, _at_result)
