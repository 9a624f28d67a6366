"""Operations on whole numbers with two results: sums with a carry, products of twice the width."""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from kernbench.ttir.arithmetic import Array, high_half, unsigned
from kernbench.ttir.compiling import Compiler, Handler
from kernbench.ttir.frames import Frame, Step
from kernbench.ttir.module import Operation
from kernbench.ttir.sums import plain


def _sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Returns sums, and whether they are past the largest number without a sign."""
    total = a + b
    return total, unsigned(total) < unsigned(a)


def _product(a: Array, b: Array) -> tuple[Array, Array]:
    """Returns the lower and the upper halves of products of numbers without a sign."""
    return a * b, high_half(a, b)


def _signed_product(a: Array, b: Array) -> tuple[Array, Array]:
    # A negative number is 2^width less than the same bits without a sign.
    zero = a.dtype.type(0)
    return a * b, high_half(a, b) - np.where(a < 0, b, zero) - np.where(b < 0, a, zero)


def _handler(function: Callable[[Array, Array], tuple[Array, Array]]) -> Handler:
    def handler(compiler: Compiler, operation: Operation) -> Step:
        del compiler
        first, second = (value.number for value in operation.operands)
        low, high = (value.number for value in operation.results)

        def step(frame: Frame) -> None:
            values = frame.values
            values[low], values[high] = function(plain(values[first]), plain(values[second]))

        return step

    return handler


HANDLERS: Final[Mapping[str, Handler]] = {
    "arith.addui_extended": _handler(_sum),
    "arith.mulsi_extended": _handler(_signed_product),
    "arith.mului_extended": _handler(_product),
}
"""Steps of operations with two results."""
