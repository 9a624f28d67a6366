"""Elementwise operations on several operands; with `unary`, all of PyTorch's pointwise ones."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from kernbench.errors import OperandError, call_site, site_fact
from kernbench.kernels.names import kernel_name
from kernbench.memory import Array, DType, dtypes
from kernbench.operations import filling, unary
from kernbench.operations.elementwise import (
    NUMBERS,
    Operand,
    check_complex,
    elementwise,
)
from kernbench.operations.filling import *  # noqa: F403 - one namespace for users
from kernbench.operations.filling import number
from kernbench.operations.twins import args_of
from kernbench.operations.unary import *  # noqa: F403 - one namespace for users
from kernbench.operations.unary import describe, refuse_float, refuse_integer
from kernbench.tensors.errors import TensorError
from kernbench.tensors.operands import not_a_tensor
from kernbench.tensors.promotion import (
    FLOATS,
    Scalar,
    category,
    promote_types,
    result_type,
)
from kernbench.tensors.running import check_one_device, plain
from kernbench.tensors.settings import default_dtype
from kernbench.tensors.tensor import Tensor

__all__ = [
    "add",
    "addcdiv",
    "addcmul",
    "bitwise_and",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "clamp",
    "div",
    "divide",
    "eq",
    "floor_divide",
    "fmod",
    "ge",
    "gt",
    "isclose",
    "le",
    "lerp",
    "logaddexp",
    "logaddexp2",
    "logical_and",
    "logical_or",
    "logical_xor",
    "lt",
    "maximum",
    "minimum",
    "mul",
    "multiply",
    "ne",
    "pow",
    "promote_types",
    "remainder",
    "sub",
    "true_divide",
]
__all__ += unary.__all__
__all__ += filling.__all__

Binary = Callable[["Tensor", Operand], Tensor]
Rounding = Literal["floor", "trunc"]


# Operations with two operands


def _binary(
    name: str,
    function: Callable[..., Any],
    result: DType | None = None,
    check: Callable[[str, DType], None] | None = None,
    *,
    numbers: bool = True,
) -> tuple[Binary, Binary]:
    """Returns an operation and its in-place form."""
    label, in_place_label = kernel_name(name), kernel_name(f"{name}_")

    def operation(input: Tensor, other: Operand) -> Tensor:
        if not numbers and not isinstance(other, Tensor):
            raise not_a_tensor(f"{name}(): argument 'other'", "Tensor", other)
        if check is not None:
            check(name, result_type((input, other)))
        return elementwise(label, function, input, other, result=result)

    def in_place(self: Tensor, other: Operand) -> Tensor:
        if not numbers and not isinstance(other, Tensor):
            raise not_a_tensor(f"{name}_(): argument 'other'", "Tensor", other)
        if check is not None:
            check(name, result_type((self, other)))
        return elementwise(in_place_label, function, self, other, result=result, out=self)

    describe(operation, name, f"Returns `{name}` of each pair of elements, as `torch.{name}`.")
    describe(in_place, f"{name}_", f"Does what `{name}` does, in place.")
    return operation, in_place


def _refuse_bool(name: str, dtype: DType) -> None:
    if dtype is dtypes.bool_:
        raise TensorError(f"{name} is not defined for {dtype}", [site_fact(call_site())])


def _refuse_shift(name: str, dtype: DType) -> None:
    _refuse_bool(name, dtype)
    refuse_float(name, dtype)


def add(input: Tensor, other: Operand, *, alpha: Scalar = 1, out: Tensor | None = None) -> Tensor:
    """Returns `input + alpha * other`, as `torch.add`.

    Args:
        other: A tensor or a number; shapes broadcast.
        alpha: Factor of `other`.
        out: Tensor to write the result to; None for a new one.
    """
    return _sum("aten::add", input, other, alpha, out)


def _sum(name: str, input: Tensor, other: Operand, alpha: Scalar, out: Tensor | None) -> Tensor:
    if alpha == 1 and alpha is not True:
        return elementwise(name, np.add, input, other, out=out)
    alpha = plain(alpha)
    _check_alpha((input, other), alpha)
    return elementwise(
        name,
        lambda a, b: a + b * np.asarray(alpha).astype(a.dtype),
        input,
        other,
        out=out,
        options={"alpha": alpha},
    )


def add_(self: Tensor, other: Operand, *, alpha: Scalar = 1) -> Tensor:
    """Adds `alpha * other` to the tensor in place, as `torch.Tensor.add_`."""
    return _sum("aten::add_", self, other, alpha, self)


def _check_alpha(operands: Sequence[Operand], alpha: Scalar) -> None:
    kind = category(result_type(operands))
    if isinstance(alpha, bool) and kind:
        raise TensorError(
            "Boolean alpha only supported for Boolean results.", [site_fact(call_site())]
        )
    if isinstance(alpha, complex) and kind <= FLOATS:
        raise TensorError(
            "For non-complex input tensors, argument alpha must not be a complex number.",
            [site_fact(call_site())],
        )
    if isinstance(alpha, float) and kind < FLOATS:
        raise TensorError(
            "For integral input tensors, argument alpha must not be a floating point number",
            [site_fact(call_site())],
        )


def sub(input: Tensor, other: Operand, *, alpha: Scalar = 1, out: Tensor | None = None) -> Tensor:
    """Returns `input - alpha * other`, as `torch.sub`.

    Args:
        other: A tensor or a number; shapes broadcast.
        alpha: Factor of `other`.
        out: Tensor to write the result to; None for a new one.

    Raises:
        TensorError: For bools, as in PyTorch.
    """
    return _difference("aten::sub", input, other, alpha, out)


def _difference(
    name: str, input: Tensor, other: Operand, alpha: Scalar, out: Tensor | None
) -> Tensor:
    operands = (input, other)
    if input.window.dtype is dtypes.bool_ or _is_bool(other):
        raise _no_bool_sub()
    if alpha == 1 and alpha is not True:
        return elementwise(name, np.subtract, *operands, out=out)
    alpha = plain(alpha)
    _check_alpha(operands, alpha)
    return elementwise(
        name,
        lambda a, b: a - b * np.asarray(alpha).astype(a.dtype),
        *operands,
        out=out,
        options={"alpha": alpha},
    )


def sub_(self: Tensor, other: Operand, *, alpha: Scalar = 1) -> Tensor:
    """Subtracts `alpha * other` from the tensor in place, as `torch.Tensor.sub_`."""
    return _difference("aten::sub_", self, other, alpha, self)


def rsub(input: Tensor, other: Operand) -> Tensor:
    """Returns `other - input`.

    Raises:
        TensorError: For bools, as in PyTorch.
    """
    if input.window.dtype is dtypes.bool_ or _is_bool(other):
        raise _no_bool_sub()
    return elementwise("aten::rsub", np.subtract, other, input)


def _is_bool(operand: Operand) -> bool:
    if isinstance(operand, Tensor):
        return operand.window.dtype is dtypes.bool_
    return operand is True or operand is False


def _no_bool_sub() -> TensorError:
    return TensorError(
        "Subtraction, the `-` operator, with a bool tensor is not supported",
        [site_fact(call_site())],
        hint="use the `^`, `~` or `logical_not()` operator instead",
    )


def mul(input: Tensor, other: Operand, *, out: Tensor | None = None) -> Tensor:
    """Returns `input * other`, as `torch.mul`.

    Args:
        other: A tensor or a number; shapes broadcast.
        out: Tensor to write the result to; None for a new one.
    """
    return elementwise("aten::mul", np.multiply, input, other, out=out)


def mul_(self: Tensor, other: Operand) -> Tensor:
    """Multiplies the tensor with `other` in place, as `torch.Tensor.mul_`."""
    return elementwise("aten::mul_", np.multiply, self, other, out=self)


def div(
    input: Operand,
    other: Operand,
    *,
    rounding_mode: Rounding | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Returns `input / other`, as `torch.div`; integers give float32 unless they are rounded.

    Args:
        input: A tensor or a number.
        other: A tensor or a number; shapes broadcast.
        rounding_mode: `trunc` rounds to 0, `floor` rounds down, None does not round.
        out: Tensor to write the result to; None for a new one.

    Raises:
        TensorError: If `rounding_mode` is none of these.
    """
    return _quotient("aten::div", input, other, rounding_mode, out)


def _quotient(
    name: str,
    input: Operand,
    other: Operand,
    rounding_mode: Rounding | None,
    out: Tensor | None,
) -> Tensor:
    if rounding_mode is None:
        dtype = result_type((input, other))
        compute = dtype if dtype.is_floating_point or dtype.is_complex else default_dtype()
        return elementwise(name, np.divide, input, other, compute=compute, out=out)
    if rounding_mode not in {"floor", "trunc"}:
        raise TensorError(
            "div expected rounding_mode to be one of None, 'trunc', or 'floor' but found "
            f"{rounding_mode!r}",
            [site_fact(call_site())],
        )
    kind = result_type((input, other))
    _refuse_bool("div", kind)
    if kind.is_complex:
        check_complex(f"div_{rounding_mode}", kind, frozenset())
    function = _floor_divide if rounding_mode == "floor" else _trunc_divide
    options = {"rounding_mode": rounding_mode}
    return elementwise(name, function, input, other, out=out, options=options)


def div_(self: Tensor, other: Operand, *, rounding_mode: Rounding | None = None) -> Tensor:
    """Divides the tensor by `other` in place, as `torch.Tensor.div_`."""
    return _quotient("aten::div_", self, other, rounding_mode, self)


def rdiv(input: Tensor, other: Operand) -> Tensor:
    """Returns `other / input` with two kernels, a reciprocal and a product, as in PyTorch."""
    return mul(unary.reciprocal(input), other)


def _divisible(a: Array, b: Array) -> None:
    if b.dtype.kind in "iu" and not b.all() and np.broadcast(a, b).size:
        raise TensorError("ZeroDivisionError: an integer was divided by zero")


def _floor_divide(a: Array, b: Array) -> Array:
    _divisible(a, b)
    # numpy gives nan for x // 0.0 where IEEE division, and so PyTorch, gives infinity.
    quotient: Array = np.floor_divide(a, b)
    return quotient if b.dtype.kind != "f" else np.where(b == 0, np.divide(a, b), quotient)


def _trunc_divide(a: Array, b: Array) -> Array:
    _divisible(a, b)
    if b.dtype.kind == "f":
        return np.trunc(np.divide(a, b))
    quotient: Array = np.floor_divide(a, b)
    quotient += ((quotient < 0) & (quotient * b != a)).astype(quotient.dtype)
    return quotient


def _remainder(a: Array, b: Array) -> Array:
    _divisible(a, b)
    result: Array = np.remainder(a, b)
    return result


def _fmod(a: Array, b: Array) -> Array:
    _divisible(a, b)
    result: Array = np.fmod(a, b)
    return result


floor_divide, floor_divide_ = _binary("floor_divide", _floor_divide, check=_refuse_bool)
remainder, remainder_ = _binary("remainder", _remainder, check=_refuse_bool)
fmod, fmod_ = _binary("fmod", _fmod, check=_refuse_bool)
maximum, _ = _binary("maximum", np.maximum, numbers=False)
minimum, _ = _binary("minimum", np.minimum, numbers=False)
eq, _ = _binary("eq", np.equal, dtypes.bool_)
ne, _ = _binary("ne", np.not_equal, dtypes.bool_)
lt, _ = _binary("lt", np.less, dtypes.bool_)
le, _ = _binary("le", np.less_equal, dtypes.bool_)
gt, _ = _binary("gt", np.greater, dtypes.bool_)
ge, _ = _binary("ge", np.greater_equal, dtypes.bool_)
logical_and, logical_and_ = _binary("logical_and", np.logical_and, dtypes.bool_, numbers=False)
logical_or, logical_or_ = _binary("logical_or", np.logical_or, dtypes.bool_, numbers=False)
logical_xor, _ = _binary("logical_xor", np.logical_xor, dtypes.bool_, numbers=False)
bitwise_and, bitwise_and_ = _binary("bitwise_and", np.bitwise_and, check=refuse_float)
bitwise_or, bitwise_or_ = _binary("bitwise_or", np.bitwise_or, check=refuse_float)
bitwise_xor, bitwise_xor_ = _binary("bitwise_xor", np.bitwise_xor, check=refuse_float)
bitwise_left_shift, bitwise_left_shift_ = _binary(
    "bitwise_left_shift", np.left_shift, check=_refuse_shift
)
bitwise_right_shift, bitwise_right_shift_ = _binary(
    "bitwise_right_shift", np.right_shift, check=_refuse_shift
)
multiply, divide, true_divide = mul, div, div


def logaddexp(input: Tensor, other: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Returns `log(exp(input) + exp(other))` without overflow, as `torch.logaddexp`.

    Args:
        input: A tensor of floating-point numbers; two -inf give -inf.
        other: A tensor; shapes broadcast.
        out: Tensor to write the result to; None for a new one.

    Raises:
        TensorError: If the common type is of integers or bools, or `out` cannot hold the result.
        OperandError: If `other` is no tensor.
        ComplexError: For complex numbers.
    """
    return _log_sum("logaddexp", np.logaddexp, input, other, out)


@args_of(logaddexp)
def logaddexp2(input: Tensor, other: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Returns `log2(2**input + 2**other)` without overflow, as `torch.logaddexp2`."""
    return _log_sum("logaddexp2", np.logaddexp2, input, other, out)


def _log_sum(
    name: str, function: Callable[..., Any], input: Tensor, other: Tensor, out: Tensor | None
) -> Tensor:
    if not isinstance(other, Tensor):
        raise not_a_tensor(f"{name}(): argument 'other'", "Tensor", other)
    refuse_integer(name, result_type((input, other)))
    return elementwise(f"aten::{name}", function, input, other, out=out)


def rlshift(input: Tensor, other: Operand) -> Tensor:
    """Returns `other << input`."""
    _refuse_shift("bitwise_left_shift", result_type((other, input)))
    return elementwise("aten::bitwise_left_shift", np.left_shift, other, input)


def rrshift(input: Tensor, other: Operand) -> Tensor:
    """Returns `other >> input`."""
    _refuse_shift("bitwise_right_shift", result_type((other, input)))
    return elementwise("aten::bitwise_right_shift", np.right_shift, other, input)


def rfloor_divide(input: Tensor, other: Operand) -> Tensor:
    """Returns `other // input`."""
    _refuse_bool("floor_divide", result_type((other, input)))
    return elementwise("aten::floor_divide", _floor_divide, other, input)


def rremainder(input: Tensor, other: Operand) -> Tensor:
    """Returns `other % input`."""
    _refuse_bool("remainder", result_type((other, input)))
    return elementwise("aten::remainder", _remainder, other, input)


def pow(input: Operand, exponent: Operand) -> Tensor:
    """Returns `input ** exponent`, as `torch.pow`."""
    return _power(input, exponent, None)


def pow_(self: Tensor, exponent: Operand) -> Tensor:
    """Raises the tensor to the power `exponent` in place, as `torch.Tensor.pow_`."""
    return _power(self, exponent, self, "aten::pow_")


def rpow(input: Tensor, other: Operand) -> Tensor:
    """Returns `other ** input`."""
    return _power(other, input, None)


def _power(base: Operand, exponent: Operand, out: Tensor | None, name: str = "aten::pow") -> Tensor:
    dtype = result_type((base, exponent))
    _refuse_bool("pow", dtype)
    if category(dtype) < FLOATS and isinstance(exponent, int) and exponent < 0:
        raise TensorError(
            "Integers to negative integer powers are not allowed.", [site_fact(call_site())]
        )
    function = np.square if type(exponent) in NUMBERS and exponent == 2 else _pow
    operands = (base,) if function is np.square else (base, exponent)
    return elementwise(name, function, *operands, compute=dtype, out=out)


def _pow(a: Array, b: Array) -> Array:
    if b.dtype.kind != "i":
        return np.power(a, b)
    # As in PyTorch, the reciprocal rounds to 0, except for 1 and -1.
    positive = np.power(a, np.abs(b))
    return np.where((b >= 0) | (np.abs(a) == 1), positive, np.zeros_like(positive))


def isclose(
    input: Tensor,
    other: Tensor,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,
) -> Tensor:
    """Returns for each element whether it is close to that of another tensor, as `torch.isclose`.

    Args:
        other: A tensor of the same type; shapes broadcast.
        rtol: Tolerance relative to `other`.
        atol: Absolute tolerance.
        equal_nan: Whether nan is close to nan.

    Raises:
        OperandError: If `other` is no tensor.
        TensorError: If the types differ.
    """
    if not isinstance(other, Tensor):
        raise not_a_tensor("isclose(): argument 'other'", "Tensor", other)
    if input.dtype is not other.dtype:
        raise TensorError(f"{input.dtype} did not match {other.dtype}", [site_fact(call_site())])

    def close(a: Array, b: Array) -> Array:
        return np.isclose(a, b, rtol, atol, equal_nan)

    return elementwise("aten::isclose", close, input, other, result=dtypes.bool_)


# Operations with three operands


def clamp(input: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """Returns `input` limited to `min..max`, as `torch.clamp`; `max` wins if they cross.

    Args:
        min: Lower bound, a tensor or a number; None for no bound.
        max: Upper bound, of the kind of `min`; None for no bound.

    Raises:
        TensorError: If both bounds are None, a bound is a tensor on another device, or the type of
            the result cannot hold one.
        OperandError: If one bound is a tensor and the other a number.
    """
    return _clamp(input, min, max, None)


def clamp_(self: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """Limits the tensor to `min..max` in place, as `torch.Tensor.clamp_`.

    Raises:
        TensorError: If both bounds are None, or the type of the result cannot hold one.
    """
    return _clamp(self, min, max, self)


def _clamp(input: Tensor, low: Operand | None, high: Operand | None, out: Tensor | None) -> Tensor:
    place = "" if out is None else "_"
    name = f"aten::clamp{place}"
    if low is None and high is None:
        raise TensorError(
            "torch.clamp: At least one of 'min' or 'max' must not be None",
            [site_fact(call_site())],
        )
    check_one_device(name, (input, low, high))
    bounds = [bound for bound in (low, high) if bound is not None]
    if len({isinstance(bound, Tensor) for bound in bounds}) > 1:
        raise OperandError(
            "clamp() takes two tensors or two numbers as bounds, not one of each",
            [site_fact(call_site())],
            hint="torch.tensor(number) makes a tensor of the number",
        )
    compute = result_type([input, *bounds])
    for bound in bounds:
        if not isinstance(bound, Tensor):
            number("clamp", bound, compute)
    if high is None and low is not None:
        return elementwise(f"aten::clamp_min{place}", np.maximum, input, low, out=out)
    if low is None and high is not None:
        return elementwise(f"aten::clamp_max{place}", np.minimum, input, high, out=out)
    assert low is not None
    assert high is not None
    return elementwise(
        name, lambda x, lo, hi: np.minimum(np.maximum(x, lo), hi), input, low, high, out=out
    )


def lerp(input: Tensor, end: Tensor, weight: Operand) -> Tensor:
    """Returns `input + weight * (end - input)`, as `torch.lerp`.

    Args:
        input: Value at weight 0.
        end: Value at weight 1, of the input's type; shapes broadcast.
        weight: A tensor of the input's type, or a number.

    Raises:
        TensorError: If the types differ, or are not floating-point types, or if `end` is on another
            device.
    """
    check_one_device("lerp", (input, end))
    _check_lerp(input, end, weight)
    return elementwise("aten::lerp", _lerp, input, end, weight)


def lerp_(self: Tensor, end: Tensor, weight: Operand) -> Tensor:
    """Moves the tensor towards `end` in place, as `torch.Tensor.lerp_`; see `lerp`."""
    check_one_device("lerp_", (self, end))
    _check_lerp(self, end, weight)
    return elementwise("aten::lerp_", _lerp, self, end, weight, out=self)


def _check_lerp(start: Tensor, end: Tensor, weight: Operand) -> None:
    dtype = start.dtype
    for name, other in (("end", end), ("weight", weight)):
        if isinstance(other, Tensor) and other.dtype is not dtype:
            raise TensorError(
                f"lerp: expected dtype {dtype} for `{name}` but got dtype {other.dtype}",
                [site_fact(call_site())],
                hint=f"convert it first: {name}.to({dtype})",
            )
    if not dtype.is_complex:
        refuse_integer("lerp", dtype)


def _lerp(start: Array, end: Array, weight: Array) -> Array:
    # This form is exact at weights 0 and 1.
    span = end - start
    near_start: Array = start + weight * span
    near_end: Array = end - span * (1 - weight)
    return np.where(np.abs(weight) < 0.5, near_start, near_end)


def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Scalar = 1) -> Tensor:
    """Returns `input + value * tensor1 * tensor2`, as `torch.addcmul`; shapes broadcast.

    Args:
        tensor1: First factor.
        tensor2: Second factor.
        value: Factor of the product.
    """
    return _addc(np.multiply, input, tensor1, tensor2, value, None)


@args_of(addcmul)
def addcmul_(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Scalar = 1) -> Tensor:
    """Adds `value * tensor1 * tensor2` to the tensor in place, as `torch.Tensor.addcmul_`."""
    return _addc(np.multiply, self, tensor1, tensor2, value, self)


def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Scalar = 1) -> Tensor:
    """Returns `input + value * tensor1 / tensor2`, as `torch.addcdiv`; shapes broadcast.

    Args:
        tensor1: Dividend.
        tensor2: Divisor.
        value: Factor of the quotient.

    Raises:
        TensorError: For integers, as in PyTorch.
    """
    return _addc(np.divide, input, tensor1, tensor2, value, None)


@args_of(addcdiv)
def addcdiv_(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Scalar = 1) -> Tensor:
    """Adds `value * tensor1 / tensor2` to the tensor in place, as `torch.Tensor.addcdiv_`."""
    return _addc(np.divide, self, tensor1, tensor2, value, self)


def _addc(
    function: np.ufunc,
    input: Tensor,
    a: Tensor,
    b: Tensor,
    value: Scalar,
    out: Tensor | None,
) -> Tensor:
    operands = (input, a, b)
    dtype = result_type(operands)
    if function is np.divide and category(result_type((a, b))) < FLOATS:
        raise TensorError(
            "Integer division with addcdiv is no longer supported", [site_fact(call_site())]
        )
    _refuse_bool("addcmul", dtype)
    factor = number("addcmul", value, dtype)
    name = "addcmul" if function is np.multiply else "addcdiv"
    return elementwise(
        kernel_name(name if out is None else f"{name}_"),
        lambda x, y, z: x + factor.astype(x.dtype) * function(y, z),
        *operands,
        out=out,
        options={"value": value},
    )
