"""Activations of `torch.nn.functional` that `torch` itself does not have: one kernel each."""

from typing import Any

import numpy as np

from kernbench.autograd import curves
from kernbench.autograd.derivatives_pointwise import sigmoid_values
from kernbench.errors import OptionError, call_site, site_fact, warn_at_call
from kernbench.memory import Array, DType, dtypes
from kernbench.operations import pointwise, reductions
from kernbench.operations.elementwise import elementwise, layout
from kernbench.operations.fused import kernel
from kernbench.operations.unary import refuse_integer
from kernbench.operations.views import dim_of
from kernbench.tensors.errors import TensorError, refuse
from kernbench.tensors.operands import read_in_cpp
from kernbench.tensors.tensor import Tensor

read_in_cpp(__name__)

__all__ = [
    "elu",
    "glu",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "logsigmoid",
    "mish",
    "relu6",
    "selu",
    "sigmoid",
    "softmin",
    "softplus",
    "softsign",
    "tanh",
]


def chosen_dim(name: str, input: Tensor, dim: int | None) -> int:
    """Returns the dimension of a softmax; without one PyTorch's choice, with its warning.

    Args:
        name: Name of the function, for the warning.
        dim: The dimension that was given.
    """
    if dim is not None:
        return dim
    chosen = 0 if len(input.window.shape) in {0, 1, 3} else 1
    warn_at_call(f"Implicit dimension choice for {name} has been deprecated; pass dim=.")
    return chosen


def bent(name: str, curve: curves.Curve, input: Tensor, *, inplace: bool = False) -> Tensor:
    """Applies a curve to each element, as one kernel.

    Args:
        name: Name of the operation, one of `curves.NAMES`, or of `curves.IN_PLACE` without `_`.
        input: The tensor, of floating-point numbers.
        inplace: Whether to write the result into `input`.

    Raises:
        TensorError: For integers, as in PyTorch.
    """
    refuse_integer(name, input.window.dtype)
    label = f"aten::{name}_" if inplace else f"aten::{name}"
    out = input if inplace else None
    return elementwise(label, curve.value, input, out=out, options={"curve": curve})


def tanh(input: Tensor) -> Tensor:
    """Returns the hyperbolic tangent of each element."""
    return pointwise.tanh(input)


def sigmoid(input: Tensor) -> Tensor:
    """Returns `1 / (1 + exp(-x))` for each element."""
    return pointwise.sigmoid(input)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """Returns each element above 0, and `negative_slope` times each one below.

    Args:
        negative_slope: The factor below 0.
        inplace: Whether to write the result into `input`.

    Raises:
        OptionError: For a negative factor in place, from whose result no gradient is found.
    """
    if inplace and negative_slope < 0:
        raise OptionError(
            "leaky_relu in place with a negative slope below 0 has no gradient",
            [site_fact(call_site())],
        )
    return bent("leaky_relu", curves.leaky_relu(negative_slope), input, inplace=inplace)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """Returns each element above 0, and `alpha * (exp(x) - 1)` below.

    Args:
        alpha: The factor below 0.
        inplace: Whether to write the result into `input`.
    """
    return _elu(input, alpha, 1.0, inplace)


def _elu(input: Tensor, alpha: float, scale: float, inplace: bool) -> Tensor:
    curve = curves.elu_of_result if inplace else curves.elu
    return bent("elu", curve(alpha, scale), input, inplace=inplace)


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """Returns `elu` with the constants of self-normalising networks (Klambauer et al. 2017)."""
    return _elu(
        input, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946, inplace
    )


def hardtanh(
    input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Tensor:
    """Returns each element within bounds.

    Args:
        min_val: The lower bound.
        max_val: The upper bound.
        inplace: Whether to write the result into `input`.

    Raises:
        OptionError: If the lower bound is above the upper one.
        TensorError: For unsigned integers with a negative bound.
    """
    if min_val > max_val:
        raise OptionError("min_val cannot be greater than max_val", [site_fact(call_site())])
    dtype = input.window.dtype
    if dtype.is_floating_point or dtype is dtypes.bool_ or dtype.is_complex:
        return bent("hardtanh", curves.hardtanh(min_val, max_val), input, inplace=inplace)
    if min_val < 0 and not dtype.is_signed:
        raise TensorError(
            "cannot do hardtanh on an unsigned type with negative limits", [site_fact(call_site())]
        )
    clamp = pointwise.clamp_ if inplace else pointwise.clamp
    return clamp(input, int(min_val), int(max_val))


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """Returns each element within 0 and 6."""
    return hardtanh(input, 0.0, 6.0, inplace)


def softplus(input: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    """Returns `log(1 + exp(beta * x)) / beta` for each element.

    Args:
        beta: The factor.
        threshold: Value of `beta * x` above which x itself is returned.
    """
    return bent("softplus", curves.softplus(beta, threshold), input)


def logsigmoid(input: Tensor) -> Tensor:
    """Returns the logarithm of the sigmoid of each element."""
    return bent("log_sigmoid_forward", curves.LOG_SIGMOID, input)


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """Returns `x * tanh(softplus(x))` for each element; `inplace` must be False."""
    refuse("mish", inplace=inplace or None)
    return bent("mish", curves.MISH, input)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """Returns `x * relu6(x + 3) / 6` for each element; `inplace` must be False."""
    refuse("hardswish", inplace=inplace or None)
    return bent("hardswish", curves.HARDSWISH, input)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """Returns `relu6(x + 3) / 6` for each element; `inplace` must be False."""
    refuse("hardsigmoid", inplace=inplace or None)
    return bent("hardsigmoid", curves.HARDSIGMOID, input)


def softsign(input: Tensor) -> Tensor:
    """Returns `x / (1 + |x|)` for each element: three kernels, as in PyTorch."""
    return input / (input.abs() + 1)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """Returns the first half of a dimension times the sigmoid of the second half.

    Raises:
        TensorError: If the dimension is odd, or the tensor has none.
    """
    shape = input.window.shape
    if not shape or shape[dim] % 2:
        raise TensorError(
            f"glu: halving dimension must be even, got dimension {dim} of shape {list(shape)}",
            [site_fact(call_site())],
        )
    place = dim_of(dim, len(shape))

    def compute(x: Array) -> Any:
        left, right = np.split(x, 2, place)
        return left * sigmoid_values(right)

    half = (*shape[:place], shape[place] // 2, *shape[place + 1 :])
    lies = layout(half, (input,))
    return kernel("glu", compute, (input,), half, input.dtype, strides=lies, dim=place)


def softmin(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: DType | None = None
) -> Tensor:
    """Returns the softmax of the negated elements along a dimension.

    Args:
        dim: The dimension; None as for `softmax`.
        _stacklevel: Not used, as for `softmax`.
        dtype: Type to which the elements are converted first; the tensor's own by default.
    """
    del _stacklevel
    return reductions.softmax(-input, chosen_dim("softmin", input, dim), dtype)
