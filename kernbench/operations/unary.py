"""Elementwise operations on one operand."""

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, Literal

import numpy as np

from kernbench.errors import OperandError, OptionError, call_site, site_fact
from kernbench.kernels.names import kernel_name
from kernbench.memory import Array, DType, dtypes
from kernbench.memory.blocks import in_blocks
from kernbench.memory.special import erf_values, sigmoid_values
from kernbench.operations.elementwise import elementwise
from kernbench.tensors.errors import TensorError
from kernbench.tensors.settings import default_dtype
from kernbench.tensors.tensor import Tensor

__all__ = [
    "abs",
    "bitwise_not",
    "ceil",
    "cos",
    "erf",
    "exp",
    "expm1",
    "floor",
    "isfinite",
    "isinf",
    "isnan",
    "log",
    "log1p",
    "log2",
    "log10",
    "logical_not",
    "neg",
    "reciprocal",
    "relu",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "trunc",
]

Unary = Callable[["Tensor"], Tensor]


def describe(function: Callable[..., Any], name: str, text: str) -> None:
    """Gives a generated function a name and a docstring.

    Args:
        name: Name of the function.
        text: Docstring of the function.
    """
    function.__name__ = function.__qualname__ = name
    function.__doc__ = text


def refuse_float(name: str, dtype: DType) -> None:
    """Checks the type of an operation on bits.

    Raises:
        TensorError: For a floating-point type.
    """
    if dtype.is_floating_point or dtype.is_complex:
        raise TensorError(f"{name} is not defined for {dtype}", [site_fact(call_site())])


def refuse_integer(name: str, dtype: DType) -> None:
    """Checks the type of an operation on floating-point numbers.

    Raises:
        TensorError: For integers and bools.
    """
    if not (dtype.is_floating_point or dtype.is_complex):
        raise TensorError(f"{name} is not implemented for {dtype}", [site_fact(call_site())])


def _unary(
    name: str, function: Callable[[Any], Any], *, to_float: bool = False, bools: bool = True
) -> tuple[Unary, Unary]:
    """Returns an operation and its in-place form.

    Args:
        name: PyTorch's name of the operation.
        function: Takes an array, returns an array.
        to_float: Whether integers are computed in the default type and give it.
        bools: Whether the operation is defined for bool.
    """
    label, in_place_label = kernel_name(name), kernel_name(f"{name}_")

    def apply(input: Tensor, out: Tensor | None) -> Tensor:
        dtype = input.window.dtype
        if dtype is dtypes.bool_ and not bools:
            raise TensorError(f"{name} is not defined for {dtype}", [site_fact(call_site())])
        compute = dtype
        if to_float and not (dtype.is_floating_point or dtype.is_complex):
            compute = default_dtype()
        kernel = label if out is None else in_place_label
        return elementwise(kernel, function, input, compute=compute, out=out)

    def operation(input: Tensor) -> Tensor:
        return apply(input, None)

    def in_place(self: Tensor) -> Tensor:
        return apply(self, self)

    describe(operation, name, f"Returns `{name}` of each element, as `torch.{name}`.")
    describe(in_place, f"{name}_", f"Does what `{name}` does, in place.")
    return operation, in_place


def _test(name: str, function: Callable[[Any], Any]) -> Unary:
    """Returns an operation whose result is bool."""
    label = kernel_name(name)

    def operation(input: Tensor) -> Tensor:
        return elementwise(label, function, input, result=dtypes.bool_)

    describe(operation, name, f"Returns `{name}` of each element, as `torch.{name}`.")
    return operation


def _whole(function: Callable[[Any], Any]) -> Callable[[Array], Array]:
    """Returns a function that applies `function` to floats and returns integers unchanged."""

    def apply(x: Array) -> Array:
        return function(x) if x.dtype.kind == "f" else x.copy()

    return apply


def sign_values(x: Array) -> Array:
    """Returns the sign of each element; 0 for nan."""
    if x.dtype.kind == "b":
        return x.copy()
    return np.where(np.isnan(x), 0, np.sign(x)) if x.dtype.kind == "f" else np.sign(x)


def _rsqrt(x: Array) -> Array:
    result: Array = np.reciprocal(np.sqrt(x))
    return result


def _relu(x: Array) -> Array:
    result: Array = np.maximum(x, x.dtype.type(0))
    return result


exp, exp_ = _unary("exp", np.exp, to_float=True)
expm1, expm1_ = _unary("expm1", np.expm1, to_float=True)
log, log_ = _unary("log", np.log, to_float=True)
log1p, log1p_ = _unary("log1p", np.log1p, to_float=True)
log2, log2_ = _unary("log2", np.log2, to_float=True)
log10, log10_ = _unary("log10", np.log10, to_float=True)
sqrt, sqrt_ = _unary("sqrt", np.sqrt, to_float=True)
rsqrt, rsqrt_ = _unary("rsqrt", _rsqrt, to_float=True)
reciprocal, reciprocal_ = _unary("reciprocal", np.reciprocal, to_float=True)
sin, sin_ = _unary("sin", np.sin, to_float=True)
cos, cos_ = _unary("cos", np.cos, to_float=True)
tan, tan_ = _unary("tan", np.tan, to_float=True)
tanh, tanh_ = _unary("tanh", np.tanh, to_float=True)
sigmoid, sigmoid_ = _unary("sigmoid", sigmoid_values, to_float=True)
erf, erf_ = _unary("erf", erf_values, to_float=True)
neg, neg_ = _unary("neg", np.negative, bools=False)
_abs, _abs_in_place = _unary("abs", np.abs, bools=False)
relu, relu_ = _unary("relu", _relu, bools=False)
sign, sign_ = _unary("sign", sign_values)
floor, floor_ = _unary("floor", _whole(np.floor), bools=False)
ceil, ceil_ = _unary("ceil", _whole(np.ceil), bools=False)
trunc, trunc_ = _unary("trunc", _whole(np.trunc), bools=False)
isnan = _test("isnan", np.isnan)
isinf = _test("isinf", np.isinf)
logical_not = _test("logical_not", np.logical_not)
_equal = partial(elementwise, "aten::eq", np.equal, result=dtypes.bool_)
_unequal = partial(elementwise, "aten::ne", np.not_equal, result=dtypes.bool_)
_both = partial(elementwise, "aten::mul", np.multiply)


def isfinite(input: Tensor) -> Tensor:
    """Returns whether each element is a number and not infinite, as `torch.isfinite`: 4 kernels."""
    dtype = input.window.dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        return elementwise("aten::ones_like", np.isfinite, input, result=dtypes.bool_)
    return _both(_equal(input, input), _unequal(abs(input), inf))


def bitwise_not(input: Tensor) -> Tensor:
    """Returns the bitwise complement of each element, as `torch.bitwise_not`; negates bools.

    Raises:
        OperandError: For a type other than integers and bool.
    """
    dtype = input.window.dtype
    if dtype.is_floating_point or dtype.is_complex:
        raise OperandError(
            "~ (operator.invert) is only implemented on integer and Boolean-type tensors",
            [site_fact(call_site())],
        )
    return elementwise("aten::bitwise_not", np.invert, input)


def abs(input: Tensor) -> Tensor:
    """Returns the absolute value of each element, as `torch.abs`; real also for complex numbers."""
    dtype = input.window.dtype
    if dtype.is_complex:
        return elementwise("aten::abs", np.abs, input, result=dtypes.real_type(dtype))
    return _abs(input)


def abs_(self: Tensor) -> Tensor:
    """Replaces each element by its absolute value, as `torch.Tensor.abs_`.

    Raises:
        TensorError: For complex numbers, as in PyTorch.
    """
    if self.window.dtype.is_complex:
        raise TensorError(
            "In-place abs is not supported for complex tensors.", [site_fact(call_site())]
        )
    return _abs_in_place(self)


def square(input: Tensor) -> Tensor:
    """Returns the square of each element, as `torch.square`."""
    dtype = input.window.dtype
    compute = dtypes.int64 if dtype is dtypes.bool_ else dtype
    return elementwise("aten::square", np.square, input, compute=compute)


def round(input: Tensor, *, decimals: int = 0) -> Tensor:
    """Returns each element rounded, halves to the even number, as `torch.round`."""
    return _round(input, decimals, None)


def round_(self: Tensor, *, decimals: int = 0) -> Tensor:
    """Rounds each element in place, as `torch.Tensor.round_`."""
    return _round(self, decimals, self)


def _round(input: Tensor, decimals: int, out: Tensor | None) -> Tensor:
    dtype = input.window.dtype
    if dtype is dtypes.bool_ or (decimals and not dtype.is_floating_point):
        raise TensorError(f"round is not defined for {dtype}", [site_fact(call_site())])
    function = _whole(np.rint) if not decimals else lambda x: np.round(x, decimals)
    name = "aten::round" if out is None else "aten::round_"
    return elementwise(name, function, input, out=out)


def silu(input: Tensor) -> Tensor:
    """Returns `x * sigmoid(x)` for each element x."""
    refuse_integer("silu", input.dtype)
    return elementwise("aten::silu", _silu, input)


@in_blocks
def _silu(x: Array) -> Array:
    result = sigmoid_values(x)
    result *= x
    return result


def gelu(input: Tensor, *, approximate: Literal["none", "tanh"] = "none") -> Tensor:
    """Returns `x * Phi(x)` for each element x, where Phi is the standard normal distribution.

    Args:
        approximate: `none` for the exact function, `tanh` for the approximation by tanh.

    Raises:
        OptionError: For another value of `approximate`.
    """
    if approximate not in {"none", "tanh"}:
        raise OptionError(
            f"approximate argument must be either none or tanh, got {approximate!r}",
            [site_fact(call_site())],
        )
    refuse_integer("gelu", input.dtype)
    function = _gelu if approximate == "none" else _gelu_tanh
    return elementwise("aten::gelu", function, input, options={"approximate": approximate})


@in_blocks
def _gelu(x: Array) -> Array:
    half = x.dtype.type(0.5)
    result: Array = half * x * (1 + erf_values(x * half**half))
    return result


@in_blocks
def _gelu_tanh(x: Array) -> Array:
    root = x.dtype.type(np.sqrt(2 / np.pi))
    inner = root * (x + x.dtype.type(0.044715) * x * x * x)
    result: Array = x.dtype.type(0.5) * x * (1 + np.tanh(inner))
    return result
