"""Which shapes go together, and the errors of shapes that do not (K2)."""

from collections.abc import Sequence
from typing import Final

from kernbench.errors import KernbenchError, call_site, site_fact
from kernbench.memory import DType, dtypes
from kernbench.tl.symbols import Shape, broadcast

_WHOLE: Final = slice(None)


class TileOperandError(KernbenchError):
    """Operands that no engine accepts (K2)."""


def refusal(summary: str, *facts: str, hint: str = "") -> TileOperandError:
    """Returns the error of wrong operands, with the calling line of the kernel.

    Args:
        summary: First line of the error.
        facts: Further lines.
        hint: Advice to the user; empty for none.
    """
    return TileOperandError(summary, [site_fact(call_site()), *facts], hint=hint, code="K2")


def common_shape(what: str, shapes: Sequence[Shape]) -> Shape:
    """Returns the shape to which several shapes broadcast.

    Args:
        what: Owner of the shapes, for the error, such as `add of tiles`.
        shapes: Shapes of the operands.

    Raises:
        TileOperandError: If the shapes do not broadcast.
    """
    found: Shape = ()
    try:
        for shape in shapes:
            found = broadcast(found, shape)
    except ValueError:
        shown = " and ".join(str(list(shape)) for shape in shapes)
        raise refusal(
            f"{what} of shapes {shown}: these do not broadcast",
            "extents must be equal, or one of them 1, from the last on",
            hint="make them of one tl.arange, or add axes with x[:, None]",
        ) from None
    return found


def check_stored(value: Shape, pointers: Shape) -> None:
    """Refuses a value that has more lanes than there are pointers.

    Args:
        value: Shape of the value.
        pointers: Shape of the pointers.

    Raises:
        TileOperandError: If the value does not broadcast to the pointers.
    """
    if value == pointers or not value:
        return
    if common_shape("tl.store with pointers and a value", [pointers, value]) != pointers:
        raise refusal(
            f"tl.store of a value of shape {list(value)} to pointers of shape {list(pointers)}",
            hint="the pointers need a lane for each element of the value",
        )


def check_mask(verb: str, dtype: DType, mask: Shape, pointers: Shape) -> None:
    """Refuses a mask that Triton does not compile.

    Args:
        verb: `load` or `store`.
        dtype: Type of the mask.
        mask: Shape of the mask.
        pointers: Shape of the pointers.

    Raises:
        TileOperandError: If the mask holds numbers, does not broadcast with the pointers, or has
            lanes where there are no pointers.
    """
    if dtype is not dtypes.bool_:
        raise refusal(
            f"tl.{verb} takes a mask of truth values; got {dtype}", hint="compare: x != 0"
        )
    if mask and not pointers:
        raise refusal(
            f"tl.{verb} of one element got a mask of shape {list(mask)}",
            hint="add the lanes to the pointer: ptr + tl.arange(0, n)",
        )
    if mask == pointers:
        return
    shape = common_shape(f"tl.{verb} with pointers and a mask", [pointers, mask])
    if verb == "store" and shape != pointers:
        raise refusal(
            f"tl.store to pointers of shape {list(pointers)} got a mask of shape {list(mask)}",
            hint="the pointers need a lane for each element of the mask",
        )


def check_axis(name: str, axis: int | None, shape: Shape) -> None:
    """Refuses an axis that a tile does not have.

    Args:
        name: Name of the operation, for the error.
        axis: Axis, counted from the end if negative; None for all axes.
        shape: Shape of the tile.

    Raises:
        TileOperandError: If the tile has no such axis.
    """
    rank = len(shape)
    if axis is not None and not -rank <= axis < rank:
        raise refusal(
            f"{name} along axis {axis} of a tile of shape {list(shape)}",
            f"it has {rank} axes, counted from 0",
        )


def check_key(keys: Sequence[object], shape: Shape) -> None:
    """Refuses an index of a tile other than `None` and `:`.

    Args:
        keys: Entries of the index.
        shape: Shape of the tile.

    Raises:
        TileOperandError: If an entry is another one, or `:` stands more often than the tile has
            axes.
    """
    for key in keys:
        if key is not None and key != _WHOLE:
            raise refusal(
                f"a tile is indexed with None and ':' only; got {', '.join(map(repr, keys))}",
                f"the tile has shape {list(shape)}",
                hint="load what you need instead, or choose with tl.where",
            )
    kept = len(keys) - keys.count(None)
    if kept > len(shape):
        raise refusal(
            f"a tile of shape {list(shape)} was indexed with {kept} times ':'",
            hint="one ':' for each axis; None adds one",
        )
