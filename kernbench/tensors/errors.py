"""Errors of operations on tensors, of PyTorch's kinds of exceptions."""

from collections.abc import Sequence
from typing import Any

from kernbench.errors import KernbenchError, OperandError, UnsupportedError, call_site, site_fact


class TensorError(KernbenchError, RuntimeError):
    """An operation on tensors that PyTorch refuses with a RuntimeError."""


class DimensionError(KernbenchError, IndexError):
    """A dimension or an index that a tensor does not have."""


def no_array(device: object) -> OperandError:
    """Returns the error of `numpy()` of a tensor on a device.

    Args:
        device: Where the tensor is.
    """
    return OperandError(
        f"can't convert {device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor "
        "to host memory first.",
        [site_fact(call_site())],
    )


def one_way(several: tuple[Any, ...], sequence: Sequence[int] | None) -> tuple[Any, ...]:
    """Returns integers that were given one by one, or as a sequence by keyword.

    Raises:
        OperandError: If the integers were given both ways.
    """
    if sequence is None:
        return several
    if several:
        raise OperandError(
            f"got {sequence!r} by keyword, and {several!r} by position", [site_fact(call_site())]
        )
    return (sequence,)


def refuse(name: str, **options: object) -> None:
    """Refuses options of PyTorch that are not simulated, unless their value is None.

    Args:
        name: Name of the function that the user called.
        **options: Values of the options.

    Raises:
        UnsupportedError: If an option is not None; the error names the first such option.
    """
    for option, value in options.items():
        if value is not None:
            raise UnsupportedError(f"{name}({option}=) is not simulated", [site_fact(call_site())])
