"""Tiles some of whose elements hold nothing defined; `marks` says how these come and go."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from kernbench.ttir.arithmetic import Array
from kernbench.ttir.memory import Memory
from kernbench.ttir.module import Operation
from kernbench.ttir.races import Access
from kernbench.ttir.sums import Sum, Value, plain


@dataclass(frozen=True)
class Cause:
    """Why elements hold nothing defined.

    Attributes:
        kind: A mask has left them out of a load, they are quotients by 0, or nothing has written
            what was loaded.
        operation: What has made them.
        program: Of what nothing has written: number of the first program that has loaded it.
        lane: Of that: the lane.
        address: Of that: the address.
        count: How many such elements were loaded.
    """

    kind: Literal["masked", "divided", "unwritten"]
    operation: Operation
    program: int = 0
    lane: tuple[int, ...] = ()
    address: int = 0
    count: int = 0


Marks = dict[Operation, tuple[Cause, Array]]
"""By the operation that has made them: why, and True for each element that is not defined."""


class Marked(Sum):
    """A tile of which some elements hold nothing defined.

    It is a sum of one part: what does not know marks sees a value, and makes one without marks.

    Args:
        array: The tile.
        marks: Its marks, whose axes may have the extent 1, too.

    Attributes:
        marks: See above.
    """

    __slots__ = ("marks",)

    def __init__(self, array: Array, marks: Marks) -> None:
        super().__init__((array,))
        self.marks: Final = marks

    def marked(self, function: Callable[[Array], Array]) -> "Marked":
        """Returns what a function that chooses programs makes of the tile and of its marks."""
        marks = {key: (cause, function(where)) for key, (cause, where) in self.marks.items()}
        return Marked(function(self.array), marks)


def unwritten(
    memory: Memory,
    by: Access,
    address: Value,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    mask: Array | None,
    root: int | None,
) -> Marks:
    """Returns marks of the elements of a load that nothing has written; see `Memory.load`."""
    gaps = memory.gaps(address, shape, dtype, mask, root)
    if gaps is None:
        return {}
    place = tuple(int(axis) for axis in np.argwhere(gaps)[0])
    full = np.broadcast_to(plain(address), (max(gaps.shape[0], address.shape[0]), *shape))
    program = int(by.programs[place[0] if gaps.shape[0] > 1 else 0])
    first = int(np.broadcast_to(full, (full.shape[0], *shape))[place])
    cause = Cause("unwritten", by.operation, program, place[1:], first, int(np.count_nonzero(gaps)))
    return {by.operation: (cause, gaps)}


def marks_of(value: Any) -> Marks:
    """Returns the marks of what a program holds; none if it has none."""
    return value.marks if type(value) is Marked else {}
