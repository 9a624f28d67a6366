"""Dropout of `torch.nn.functional`."""

from kernbench.errors import OptionError, UnsupportedError, call_site, site_fact
from kernbench.memory import Array
from kernbench.operations.fused import kernel
from kernbench.operations.random import drawn_mask
from kernbench.tensors.operands import not_a_tensor, read_in_cpp
from kernbench.tensors.tensor import Tensor

read_in_cpp(__name__)

__all__ = ["dropout"]


def check_probability(p: float) -> None:
    """Checks the probability with which elements are dropped.

    Raises:
        OptionError: If `p` is not between 0 and 1.
    """
    if not 0 <= p <= 1:
        raise OptionError(
            f"dropout probability has to be between 0 and 1, but got {p}", [site_fact(call_site())]
        )


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Sets each element to 0 with probability `p`, and multiplies the others with `1 / (1 - p)`.

    The random numbers come from the calling rank's generator, which draws them during the call.

    Args:
        p: Probability with which an element becomes 0.
        training: Whether to drop elements; if not, `input` is returned.
        inplace: Must be False.

    Raises:
        OperandError: If `input` is no tensor.
        OptionError: If `p` is not between 0 and 1.
        UnsupportedError: For `inplace`.
    """
    if not isinstance(input, Tensor):
        raise not_a_tensor("dropout(): argument 'input'", "Tensor", input)
    check_probability(p)
    if inplace:
        raise UnsupportedError("dropout(inplace=True) is not simulated", [site_fact(call_site())])
    if not training or p == 0:
        return input
    mask, write = drawn_mask(input.window.shape, 1 - p, input.device)
    factor = 1 / (1 - p) if p < 1 else 0.0

    def compute(x: Array, kept: Array) -> Array:
        result: Array = x * kept * x.dtype.type(factor)
        return result

    return kernel(
        "native_dropout",
        compute,
        (input, mask),
        input.window.shape,
        input.dtype,
        beside=((mask,), write),
        factor=factor,
    )
