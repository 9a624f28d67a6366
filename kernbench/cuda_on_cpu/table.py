"""What computes which operation of CUDA."""

from collections.abc import Callable
from typing import Any, Final

import torch

Tensors = tuple[torch.Tensor, ...]
Function = Callable[..., Any]

SEEDS: Final = 1 << 62
"""Seeds of what is dropped are below."""

FUNCTIONS: Final[list[tuple[str, str, Function]]] = []
"""What computes CUDA's operations: the operation, for which tensors, and the function."""


def implements(name: str, *where: str) -> Callable[[Function], Function]:
    """Returns a decorator of what computes an operation.

    Args:
        name: The operation, without `aten::`.
        where: For which tensors: of the `CPU`, which is the default, or of `Meta`.
    """

    def register(function: Function) -> Function:
        FUNCTIONS.extend((name, each, function) for each in where or ("CPU",))
        return function

    return register


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor in the type in which CUDA sums it: float64, or else float32."""
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def all_wide(*tensors: torch.Tensor | None) -> list[Any]:
    """Returns tensors in the types in which CUDA sums them."""
    return [None if each is None else wide(each) for each in tensors]
