"""Products of tiles of few bits with a scale for each group, as of the OCP's microscaling formats.

Formats: OCP Microscaling Formats (MX) Specification 1.0: E2M1 in section 5.3.3, E8M0 in 5.4.1.
"""

from collections.abc import Mapping
from typing import Final

import ml_dtypes
import numpy as np

from kernbench.ttir.arithmetic import Array, not_known, rounded, widened
from kernbench.ttir.compiling import Compiler, Handler
from kernbench.ttir.frames import Frame, Step
from kernbench.ttir.module import Operation, Value
from kernbench.ttir.sums import plain
from kernbench.ttir.tiles import full

_HALF: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M1: Final = np.array([*_HALF, *(-each for each in _HALF)], np.float32)
_EIGHT: Final = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
_FORMATS: Final = ("e2m1", "e4m3", "e5m2", "fp16", "bf16")


def decoded(a: Array, form: str, axis: int) -> Array:
    """Returns the numbers that elements stand for, as float32.

    Args:
        form: `e2m1`, of which a byte has two, the lower four bits first; or a type of one number.
        axis: Axis along which those of a byte are neighbours.
    """
    if form != "e2m1":
        return widened(a.view(_EIGHT[form]) if a.dtype == np.int8 else a)
    octets = a.view(np.uint8)
    both = np.stack([_E2M1[octets & 15], _E2M1[octets >> 4]], axis=axis + 1)
    return both.reshape(*a.shape[:axis], 2 * a.shape[axis], *a.shape[axis + 1 :])


def _powers(a: Array) -> Array:
    """Returns the scales that elements stand for: of bytes, powers of two; 255 is NaN (E8M0)."""
    if a.dtype != np.int8:
        return widened(a)
    octets = a.view(np.uint8)
    found = np.ldexp(np.float32(1), octets.astype(np.int32) - 127).astype(np.float32)
    return np.where(octets == 255, np.float32(np.nan), found)


def _dot_scaled(compiler: Compiler, operation: Operation) -> Step:
    del compiler
    a, a_scale, b, b_scale, c = _operands(operation)
    forms = [operation.said(side) for side in ("lhs", "rhs")]
    for form in forms:
        if form not in _FORMATS:
            raise not_known(operation, f"the format {form}")
    packs = [operation.attributes.get(f"{side}_k_pack") is not False for side in ("lhs", "rhs")]
    result = operation.results[0]
    rank = len(a.type.shape)
    # Along K, unless the text says that the two of a byte are neighbours along M or N.
    axes = (rank if packs[0] else rank - 1, rank - 1 if packs[1] else rank)

    def side(frame: Frame, value: Value, scale: Value | None, form: str, axis: int) -> Array:
        array = decoded(
            np.ascontiguousarray(full(frame.values[value.number], value.type)), form, axis
        )
        if scale is None:
            return array
        powers = _powers(np.ascontiguousarray(full(frame.values[scale.number], scale.type)))
        if value is b:  # scales are [N, K / group], the tile is [K, N]
            array = np.swapaxes(array, -1, -2)
        array = array * np.repeat(powers, array.shape[-1] // powers.shape[-1], axis=-1)
        return np.swapaxes(array, -1, -2) if value is b else array

    def step(frame: Frame) -> None:
        left = side(frame, a, a_scale, forms[0], axes[0])
        right = side(frame, b, b_scale, forms[1], axes[1])
        total = np.matmul(left, right) + widened(plain(frame.values[c.number]))
        frame.values[result.number] = rounded(total, str(result.type.element))

    return step


def _operands(operation: Operation) -> tuple[Value, Value | None, Value, Value | None, Value]:
    """Returns the left tile, its scales or None, the right tile, its scales or None, the sum."""
    count = int(operation.attributes["left"])  # type: ignore[arg-type]
    left, (*right, total) = operation.operands[:count], operation.operands[count:]
    return (
        left[0],
        left[1] if len(left) > 1 else None,
        right[0],
        right[1] if len(right) > 1 else None,
        total,
    )


HANDLERS: Final[Mapping[str, Handler]] = {"tt.dot_scaled": _dot_scaled}
"""Steps of products of scaled tiles."""
