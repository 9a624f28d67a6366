"""What programs hold while they run, and how those that part go on apart."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from kernbench.ttir.arithmetic import Array
from kernbench.ttir.memory import Memory, OutsideError
from kernbench.ttir.module import Operation
from kernbench.ttir.sums import Sum, Value, plain


@dataclass(frozen=True, slots=True)
class BlockOf:
    """A descriptor of a tensor in memory, for each program.

    Attributes:
        base: Address of the first element, `[programs or 1]`.
        shape: Extents, each `[programs or 1]`.
        strides: Bytes between neighbours along each axis, each `[programs or 1]`.
        block: Extents of what is loaded and stored.
        padding: What stands for elements outside: `zero` or `nan`.
        root: Number of the argument whose memory it is; None if that is not known.
    """

    base: Array
    shape: tuple[Array, ...]
    strides: tuple[Array, ...]
    block: tuple[int, ...]
    padding: str
    root: int | None


Held = Value | BlockOf
"""What a program holds."""


class Launch:
    """A grid of programs under way.

    Args:
        grid: Three extents.
        memory: What the programs may touch.
        say: Takes what they print.

    Attributes:
        grid: See above, as for `memory` and `say`.
    """

    def __init__(
        self,
        grid: tuple[int, int, int],
        memory: Memory,
        say: Callable[[str], None],
    ) -> None:
        self.grid: Final = grid
        self.memory: Final = memory
        self.say: Final = say

    def program(self, number: int) -> tuple[int, int, int]:
        """Returns the place in the grid of a program."""
        x, y, _ = self.grid
        return number % x, number // x % y, number // (x * y)


class Frame:
    """Values of a function for some programs.

    Args:
        values: By number of the value; None until defined.
        programs: Numbers of the programs.
        launch: What they are a part of.

    Attributes:
        values: See above, as for `programs` and `launch`.
    """

    __slots__ = ("launch", "programs", "values")

    def __init__(self, values: list[Any], programs: Array, launch: Launch) -> None:
        self.values = values
        self.programs = programs
        self.launch = launch

    @property
    def count(self) -> int:
        """How many programs there are."""
        return len(self.programs)

    def part(self, places: Array, numbers: Iterable[int]) -> "Frame":
        """Returns a frame of some of the programs.

        Args:
            places: Which ones, by place among the programs.
            numbers: Values that they need.
        """
        values: list[Any] = [None] * len(self.values)
        for number in numbers:
            held = self.values[number]
            if held is not None:
                values[number] = taken(held, places)
        return Frame(values, self.programs[places], self.launch)


Step = Callable[[Frame], None]
"""An operation, ready to run."""


def taken(held: Held, places: Array) -> Held:
    """Returns what some of the programs hold."""
    if isinstance(held, BlockOf):
        return BlockOf(
            taken(held.base, places),  # type: ignore[arg-type]
            tuple(taken(one, places) for one in held.shape),  # type: ignore[misc]
            tuple(taken(one, places) for one in held.strides),  # type: ignore[misc]
            held.block,
            held.padding,
            held.root,
        )
    if isinstance(held, Sum):
        return held.each(lambda part: part if part.shape[0] == 1 else part[places])
    return held if held.shape[0] == 1 else held[places]


def merged(count: int, parts: Sequence[tuple[Array, Held]]) -> Held:
    """Returns what programs hold that came together again.

    Args:
        count: How many programs there are.
        parts: Places of programs, and what these hold.
    """
    first = parts[0][1]
    if len(parts) == 1:
        return first
    if isinstance(first, BlockOf):
        held = [(places, one) for places, one in parts if isinstance(one, BlockOf)]
        return BlockOf(
            _joined(count, [(places, one.base) for places, one in held]),
            tuple(
                _joined(count, [(places, one.shape[axis]) for places, one in held])
                for axis in range(len(first.shape))
            ),
            tuple(
                _joined(count, [(places, one.strides[axis]) for places, one in held])
                for axis in range(len(first.shape))
            ),
            first.block,
            first.padding,
            first.root if all(one.root == first.root for _, one in held) else None,
        )
    return _joined(
        count, [(places, plain(one)) for places, one in parts if not isinstance(one, BlockOf)]
    )


def _joined(count: int, parts: Sequence[tuple[Array, Array]]) -> Array:
    tail = np.broadcast_shapes(*(array.shape[1:] for _, array in parts))
    out = np.empty((count, *tail), parts[0][1].dtype)
    for places, array in parts:
        out[places] = array
    return out


class ProgramError(Exception):
    """A program does what it must not; `reports` makes a report for users of it.

    Args:
        kind: What: `assert`, `outside` or `wait`, which is to wait for what nobody writes.
        operation: What does it.
        message: What the kernel, or the executor, says of it.
        program: Number of the first program that does it.
        lane: Place of the first element in the tile.
        outside: Which elements are outside of the memory, if some are.
    """

    def __init__(
        self,
        kind: str,
        operation: Operation,
        message: str,
        program: int,
        lane: tuple[int, ...],
        outside: OutsideError | None = None,
    ) -> None:
        super().__init__(message)
        self.kind, self.operation, self.message = kind, operation, message
        self.program, self.lane, self.outside = program, lane, outside
