"""Attention as one kernel forward and one backward."""

from kernbench.attention.bands import Bands
from kernbench.hw.attention import Direction, Shape
from kernbench.hw.library import Library
from kernbench.kernels.operands import Operand, bytes_of


def duration_ps(
    library: Library,
    backend: str,
    direction: Direction,
    operands: tuple[Operand, Operand, Operand],
    patterns: tuple[Bands, ...],
    nbytes: int,
) -> int:
    """Returns the picoseconds of attention.

    Args:
        backend: Whose kernel: `flash`, `cudnn` or `efficient`.
        direction: Forward, or backward.
        operands: Query, key and value, `[batch, heads, rows, width]`; keys and values may have
            fewer heads.
        patterns: Which rows see which: bands of all batch elements, or of each.
        nbytes: Bytes of all operands and results.
    """
    query, key, value = operands
    batch, heads, _, width = query.shape
    shape = Shape(batch, heads, key.shape[1], width, value.shape[3])
    if direction == "backward" and shape.groups < heads:
        # Of keys and values, the gradients of every head are written, and read to be added.
        nbytes += 2 * heads // max(1, shape.groups) * (bytes_of(key) + bytes_of(value))
    name = query.dtype.machine_name
    return library.attention(backend, direction, name, shape, patterns, nbytes)
