"""Functions of elements, computed in blocks that fit into a cache."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, Any]

_BLOCK: Final = 1 << 14
"""Elements of a block: with its intermediate results it fits into a cache of level 2."""


def in_blocks(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Returns a function of elements that computes large arrays block by block.

    Of a function that makes several arrays as large as its operand, most of the time is that of
    memory: fresh pages, and traffic.

    Args:
        function: Computes each element of its result from the same element of its operand.
    """

    def apply(x: Array) -> Array:
        if x.size <= _BLOCK or not x.flags.c_contiguous:
            return function(x)
        flat = x.reshape(-1)
        first = function(flat[:_BLOCK])
        out = np.empty(x.shape, first.dtype)
        into = out.reshape(-1)
        into[:_BLOCK] = first
        for start in range(_BLOCK, x.size, _BLOCK):
            into[start : start + _BLOCK] = function(flat[start : start + _BLOCK])
        return out

    return apply
