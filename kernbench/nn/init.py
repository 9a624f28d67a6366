"""`torch.nn.init`: first values of parameters, written in place; the tape does not record them."""

from math import sqrt
from typing import Final, Literal

from kernbench.errors import OptionError, call_site, site_fact
from kernbench.operations import filling, random
from kernbench.operations.random import Generator
from kernbench.process.process import current_process
from kernbench.tensors.nodes import recording
from kernbench.tensors.tensor import Tensor

__all__ = [
    "calculate_gain",
    "constant_",
    "kaiming_normal_",
    "kaiming_uniform_",
    "normal_",
    "ones_",
    "uniform_",
    "xavier_normal_",
    "xavier_uniform_",
    "zeros_",
]

Fan = Literal["fan_in", "fan_out"]

_GAINS: Final = {
    "linear": 1.0,
    "sigmoid": 1.0,
    "tanh": 5.0 / 3,
    "relu": sqrt(2.0),
    "selu": 3.0 / 4,
}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Returns the factor that keeps variances through a nonlinearity.

    Raises:
        OptionError: If the nonlinearity is not known.
    """
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        return sqrt(2.0 / (1 + slope**2))
    if nonlinearity not in _GAINS:
        raise OptionError(
            f"Unsupported nonlinearity {nonlinearity}",
            [site_fact(call_site())],
            hint=f"one of {', '.join([*_GAINS, 'leaky_relu'])}",
        )
    return _GAINS[nonlinearity]


def uniform_(
    tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Fills a tensor with numbers from a uniform distribution, and returns the tensor.

    Args:
        tensor: The tensor to fill.
        a: Lower bound.
        b: Upper bound, excluded.
        generator: Source of the numbers; by default the calling rank's generator.
    """
    with recording(current_process(), False):
        return random.uniform_(tensor, a, b, generator=generator)


def normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Fills a tensor with numbers from a normal distribution, and returns the tensor.

    Args:
        tensor: The tensor to fill.
        mean: Mean of the distribution.
        std: Standard deviation of the distribution.
        generator: Source of the numbers; by default the calling rank's generator.
    """
    with recording(current_process(), False):
        return random.normal_(tensor, mean, std, generator=generator)


def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fills a tensor with a number, and returns the tensor."""
    with recording(current_process(), False):
        return filling.fill_(tensor, val)


def zeros_(tensor: Tensor) -> Tensor:
    """Fills a tensor with zeros, and returns the tensor."""
    return constant_(tensor, 0)


def ones_(tensor: Tensor) -> Tensor:
    """Fills a tensor with ones, and returns the tensor."""
    return constant_(tensor, 1)


def fans(tensor: Tensor) -> tuple[int, int]:
    """Returns fan-in and fan-out of a weight: how many inputs and outputs each unit has.

    Raises:
        OptionError: If the weight has fewer than two dimensions.
    """
    shape = tensor.window.shape
    if len(shape) < 2:
        raise OptionError(
            "Fan in and fan out can not be computed for tensor with fewer than 2 dimensions",
            [site_fact(call_site())],
        )
    field = 1
    for extent in shape[2:]:
        field *= extent
    return shape[1] * field, shape[0] * field


def xavier_uniform_(
    tensor: Tensor, gain: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Fills a weight from a uniform distribution, after Glorot and Bengio, and returns the weight.

    Args:
        tensor: The weight to fill, of two or more dimensions.
        gain: Factor of the bound, see `calculate_gain`.
        generator: Source of the numbers; by default the calling rank's generator.
    """
    bound = gain * sqrt(6.0 / sum(fans(tensor)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fills a weight from a normal distribution, after Glorot and Bengio, and returns the weight.

    Args:
        tensor: The weight to fill, of two or more dimensions.
        gain: Factor of the standard deviation, see `calculate_gain`.
        generator: Source of the numbers; by default the calling rank's generator.
    """
    return normal_(tensor, 0.0, gain * sqrt(2.0 / sum(fans(tensor))), generator)


def _kaiming(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    """Returns the standard deviation, after He and others."""
    if mode not in {"fan_in", "fan_out"}:
        raise OptionError(
            f"Mode {mode} not supported, please use one of ['fan_in', 'fan_out']",
            [site_fact(call_site())],
        )
    fan = fans(tensor)[0 if mode == "fan_in" else 1]
    return calculate_gain(nonlinearity, a) / sqrt(fan) if fan else 0.0


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0,
    mode: Fan = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Fills a weight from a uniform distribution, after He and others, and returns the weight.

    Args:
        tensor: The weight to fill, of two or more dimensions.
        a: Slope below 0 of the `leaky_relu` that follows.
        mode: Whether to keep variances in the forward pass (`fan_in`) or backward (`fan_out`).
        nonlinearity: Function that follows, see `calculate_gain`.
        generator: Source of the numbers; by default the calling rank's generator.
    """
    bound = sqrt(3.0) * _kaiming(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0,
    mode: Fan = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Fills a weight from a normal distribution, after He and others, and returns the weight.

    Args:
        tensor: The weight to fill, of two or more dimensions.
        a: Slope below 0 of the `leaky_relu` that follows.
        mode: Whether to keep variances in the forward pass (`fan_in`) or backward (`fan_out`).
        nonlinearity: Function that follows, see `calculate_gain`.
        generator: Source of the numbers; by default the calling rank's generator.
    """
    return normal_(tensor, 0.0, _kaiming(tensor, a, mode, nonlinearity), generator)
