"""Windows on memory: shapes and strides, whether they are contiguous, how many elements."""

from collections.abc import Sequence
from math import prod

from kernbench.caches import cached
from kernbench.memory.storage import View


def is_contiguous(view: View) -> bool:
    """Returns whether the elements lie in row-major order without gaps."""
    return has_no_gaps(view.shape, view.strides)


@cached("memory.gaps")
def has_no_gaps(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Returns whether strides are those of a row-major tensor."""
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1:
            if stride != step:
                return 0 in shape
            step *= extent
    return True


def numel(shape: Sequence[int]) -> int:
    """Returns the number of elements."""
    return prod(shape)
