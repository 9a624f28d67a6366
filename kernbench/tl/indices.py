"""Index arithmetic: formulas of operands, and sentences about indices that wrap around."""

from collections.abc import Sequence
from typing import Final

from kernbench.memory import DType
from kernbench.tl import symbols
from kernbench.tl.symbols import Affine, Box, Symbol
from kernbench.tl.tile import Tile
from kernbench.tl.types import Scalar

_SIGNS: Final = {"add": "+", "subtract": "-", "multiply": "*"}


def formula_of(name: str, operands: Sequence[Tile | Scalar]) -> Symbol | None:
    """Returns the formula of a function of operands; None if there is none.

    Args:
        name: Name of the function, see `symbols.combine`.
        operands: One or two tiles and Python's numbers; a number has the type of the tile.

    Raises:
        ValueError: If the shapes do not broadcast.
    """
    if len(operands) != 2:
        only = operands[0].symbol if isinstance(operands[0], Tile) else None
        if name != "negative" or not isinstance(only, Affine):
            return None
        return symbols.combine("subtract", Affine(0, (), (), only.dtype), only)
    left, right = operands
    a = left.symbol if isinstance(left, Tile) else None
    b = right.symbol if isinstance(right, Tile) else None
    if isinstance(a, Affine):
        if type(right) is int:
            b = symbols.constant(right, a.dtype)
        return symbols.combine(name, a, b) if isinstance(b, Affine) else None
    if isinstance(b, Affine):
        number = symbols.constant(left, b.dtype) if type(left) is int else None
        return None if number is None else symbols.combine(name, number, b)
    if name == "bitwise_and" and isinstance(a, Box) and isinstance(b, Box):
        return symbols.intersection(a, b)
    return None


def wrapped_text(
    name: str, operands: Sequence[Tile | Scalar], dtype: DType, beyond: tuple[int, int]
) -> str:
    """Returns a sentence about a sum, difference or product that wraps around.

    Args:
        name: Name of the function.
        operands: Its operands; tiles have values.
        dtype: Type of the result.
        beyond: Range that the result would have in a type without ends.
    """
    shown = f" {_SIGNS[name]} ".join(map(_shown, operands))
    furthest = max(beyond, key=abs)
    return f"{shown} is {dtype.name} and wraps around: it reaches {furthest}, beyond {dtype.name}"


def _shown(operand: Tile | Scalar) -> str:
    """Returns how a report shows an operand: by its name, or by its range."""
    if not isinstance(operand, Tile):
        return str(operand)
    values = operand.values
    assert values is not None
    low, high = values.min(), values.max()
    if low != high:
        return f"({low}..{high})"
    return f"{operand.name} (= {low})" if operand.name else str(low)
