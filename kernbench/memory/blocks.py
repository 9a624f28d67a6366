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
        if not x.ndim:
            return function(x.reshape(1)).reshape(())  # so that functions may work in place
        if x.size <= _BLOCK:
            return function(x)
        out = np.empty(x.shape, function(x[(slice(1),) * x.ndim]).dtype)
        if x.flags.c_contiguous:
            fill(x.reshape(-1), out.reshape(-1))
        else:
            fill(x, out)
        return out

    def fill(x: Array, out: Array) -> None:
        if x.size <= _BLOCK:
            out[...] = function(x)
            return
        step = _BLOCK * len(x) // x.size
        for start in range(0, len(x), max(step, 1)):
            part = slice(start, start + step) if step else start
            fill(x[part], out[part])

    return apply
