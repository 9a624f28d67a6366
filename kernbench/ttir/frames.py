"""What programs hold while they run, and how those that part go on apart."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from kernbench.ttir.arithmetic import Array
from kernbench.ttir.marked import Cause, Marked, marks_of
from kernbench.ttir.memory import Memory, OutsideError
from kernbench.ttir.module import Operation
from kernbench.ttir.sums import Shared, Sum, Value, plain


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


Patience = Callable[[], Callable[[], float]]
"""Returns what a loop asks that may never end: the seconds that are too long, or 0 before that."""


class Launch:
    """A grid of programs under way.

    Args:
        grid: Three extents.
        memory: What the programs may touch.
        say: Takes what they print.
        warn: Takes what is used of lanes that a mask leaves out, and what has left them out; None
            if nobody asks.
        wait: Lets a program wait for other launches, given the loop and the program's number; None
            if there are none.
        patience: Returns what tells whether a loop has run too long since then; see `Turns`.

    Attributes:
        grid: See above, as for the others.
    """

    def __init__(
        self,
        grid: tuple[int, int, int],
        memory: Memory,
        say: Callable[[str], None],
        warn: "Callable[[ProgramError, Operation], None] | None" = None,
        wait: Callable[[Operation, int], None] | None = None,
        patience: "Patience | None" = None,
    ) -> None:
        self.grid: Final = grid
        self.memory: Final = memory
        self.say: Final = say
        self.warn: Final = warn
        self.wait: Final = wait
        self.patience: Final = patience

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
    if isinstance(held, Marked):
        return held.marked(lambda part: part if part.shape[0] == 1 else part[places])
    if isinstance(held, Sum):
        return held.each(lambda part: part if part.shape[0] == 1 else part[places])
    if isinstance(held, Shared):
        return Shared(held.tiles, held.places[places])
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
    whole = _joined(
        count, [(places, plain(one)) for places, one in parts if not isinstance(one, BlockOf)]
    )
    keys = dict.fromkeys(key for _, one in parts for key in marks_of(one))
    return Marked(whole, {key: _marks(count, parts, key) for key in keys}) if keys else whole


def _marks(count: int, parts: Sequence[tuple[Array, Held]], key: Operation) -> tuple[Cause, Array]:
    found = [(places, marks_of(one).get(key)) for places, one in parts]
    cause = next(mark[0] for _, mark in found if mark is not None)
    ndim = next(mark[1].ndim for _, mark in found if mark is not None)
    none = np.zeros((1,) * ndim, np.bool_)
    return cause, _joined(count, [(at, none if mark is None else mark[1]) for at, mark in found])


def _joined(count: int, parts: Sequence[tuple[Array, Array]]) -> Array:
    tail = np.broadcast_shapes(*(array.shape[1:] for _, array in parts))
    out = np.empty((count, *tail), parts[0][1].dtype)
    for places, array in parts:
        out[places] = array
    return out


class ProgramError(Exception):
    """A program does what it must not; `reports` makes a report for users of it.

    Args:
        kind: What: `assert`, `descriptor`, which is to make one that GPUs refuse, `endless`, which
            is to go on and on, `outside`, `undefined`, which is to use what is not defined, or
            `wait`, which is to wait for what nobody writes.
        operation: What does it.
        message: What the kernel, or the executor, says of it.
        program: Number of the first program that does it.
        lane: Place of the first element in the tile.
        outside: Which elements are outside of the memory, if some are.
        cause: Why what is used is not defined, if it is not.
        frame: What the program holds, if a report is to look at it.
    """

    def __init__(
        self,
        kind: str,
        operation: Operation,
        message: str,
        program: int,
        lane: tuple[int, ...],
        outside: OutsideError | None = None,
        cause: Cause | None = None,
        frame: Frame | None = None,
    ) -> None:
        super().__init__(message)
        self.frame = frame
        self.kind, self.operation, self.message = kind, operation, message
        self.program, self.lane, self.outside, self.cause = program, lane, outside, cause


_TURNS: Final = 1 << 10
"""Turns between two questions whether a loop has run too long; no loop of fewer is asked."""


class Turns:
    """Counts the turns of a loop that may never end.

    Args:
        launch: What it is a part of.
    """

    def __init__(self, loop: Operation, launch: Launch) -> None:
        self._loop: Final = loop
        self._patience: Final = launch.patience
        self._over: Callable[[], float] | None = None
        self._left = _TURNS

    def turn(self, frame: Frame) -> None:
        """Takes note of a turn.

        Args:
            frame: Of the programs that take it.

        Raises:
            ProgramError: If the loop has run too long.
        """
        self._left -= 1
        if self._left or self._patience is None:
            return
        self._left = _TURNS
        if self._over is None:
            self._over = self._patience()
        elif seconds := self._over():
            message = f"goes on and on in a loop, {seconds:g} s long"
            raise ProgramError("endless", self._loop, message, int(frame.programs[0]), ())
