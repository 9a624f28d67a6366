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


def wide(*tensors: torch.Tensor | None) -> list[Any]:
    """Returns tensors in the type in which CUDA sums them: float64, or else float32."""
    return [
        each if each is None or each.dtype is torch.float64 else each.float() for each in tensors
    ]
