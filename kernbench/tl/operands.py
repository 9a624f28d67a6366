"""Which shapes go together, and what is said when they do not (K2)."""

from collections.abc import Sequence

from kernbench.errors import KernbenchError, call_site, site_fact
from kernbench.tl.symbols import Shape, broadcast


class TileOperandError(KernbenchError):
    """Operands that no engine takes (K2)."""


def refusal(summary: str, *facts: str, hint: str = "") -> TileOperandError:
    """Returns the error of operands at the calling line of the kernel."""
    return TileOperandError(summary, [site_fact(call_site()), *facts], hint=hint, code="K2")


def common_shape(what: str, shapes: Sequence[Shape]) -> Shape:
    """Returns the shape that others broadcast to.

    Args:
        what: Has these shapes, for the error: `add of tiles`.
        shapes: Of the operands.

    Raises:
        TileOperandError: If there is none.
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
    """Refuses a value that has more lanes than there are pointers."""
    if value == pointers or not value:
        return
    if common_shape("tl.store with pointers and a value", [pointers, value]) != pointers:
        raise refusal(
            f"tl.store of a value of shape {list(value)} to pointers of shape {list(pointers)}",
            hint="the pointers need a lane for each element of the value",
        )


def check_axis(name: str, axis: int | None, shape: Shape) -> None:
    """Refuses an axis that a tile does not have."""
    rank = len(shape)
    if axis is not None and not -rank <= axis < rank:
        raise refusal(
            f"{name} along axis {axis} of a tile of shape {list(shape)}",
            f"it has {rank} axes, counted from 0",
        )


def check_key(keys: Sequence[object], shape: Shape) -> None:
    """Refuses an index of a tile that is more than axes kept and axes added."""
    if any(key is not None and key != slice(None) for key in keys):
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
