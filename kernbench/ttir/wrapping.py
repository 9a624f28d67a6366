"""Finds the whole number that wrapped around on its way into an address, once a report is made."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from kernbench.ttir.arithmetic import Array
from kernbench.ttir.frames import ProgramError
from kernbench.ttir.module import Module, Operation, Value, within
from kernbench.ttir.sums import plain

_EXACT: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "arith.addi": np.add,
    "arith.muli": np.multiply,
    "arith.subi": np.subtract,
}
_SIGNS: Final = {"arith.addi": "+", "arith.muli": "*", "arith.subi": "-"}
_HAND_ON: Final = frozenset(_EXACT) | {
    *("arith.extsi", "tt.addptr", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.splat"),
    "tt.trans",
}
"""Operations whose results are wrong if their operands are; others may want numbers that wrap."""

_NARROW: Final = ("i8", "i16", "i32")


class Wrapped(NamedTuple):
    """A sum, difference or product that is beyond its type.

    Attributes:
        operation: Which one.
        shown: Its numbers, such as `2 * 1073741824`.
        type: Its type, such as `int32`.
    """

    operation: Operation
    shown: str
    type: str


def wrapped(error: ProgramError, module: Module) -> Wrapped | None:
    """Returns what wrapped around for the element that an access misses; None if nothing did.

    The numbers that the program still holds are put together anew, exactly; those of an earlier
    turn of a loop are gone.
    """
    if error.frame is None or not error.operation.operands:
        return None
    made = {
        result.number: operation
        for function in module.functions.values()
        if any(each is error.operation for each in within(function.body))
        for operation in within(function.body)
        for result in operation.results
    }
    for operation in _before(error.operation.operands[0], made, set()):
        numbers = [_of_program(error, each) for each in (*operation.operands, operation.results[0])]
        a, b, found = numbers
        if a is None or b is None or found is None:
            continue
        exact = _EXACT[operation.name](a.astype(np.int64), b.astype(np.int64))
        place = _first(exact != found, error.lane)
        if place is not None:
            left, right = (int(np.broadcast_to(each, exact.shape)[place]) for each in (a, b))
            shown = f"{left} {_SIGNS[operation.name]} {right}"
            return Wrapped(operation, shown, f"int{8 * found.dtype.itemsize}")
    return None


def _before(value: Value, made: Mapping[int, Operation], seen: set[int]) -> Iterator[Operation]:
    """Yields the sums, differences and products that a value is from, the first ones first."""
    operation = made.get(value.number)
    if operation is None or value.number in seen or operation.name not in _HAND_ON:
        return
    seen.add(value.number)
    for operand in operation.operands:
        yield from _before(operand, made, seen)
    if operation.name in _EXACT and operation.results[0].type.element in _NARROW:
        yield operation


def _of_program(error: ProgramError, value: Value) -> Array | None:
    """Returns what the program holds; None if it is not there any more."""
    frame = error.frame
    held = None if frame is None else frame.values[value.number]
    if frame is None or held is None:
        return None
    array = plain(held)
    if array.shape[0] == 1:
        only: Array = array[0]
        return only
    if array.shape[0] != frame.count:
        return None
    own: Array = array[int(np.flatnonzero(frame.programs == error.program)[0])]
    return own


def _first(wrong: Array, lane: tuple[int, ...]) -> tuple[int, ...] | None:
    """Returns the place of the lane's own number, or else of the first one that is wrong."""
    if wrong.ndim == len(lane):
        own = tuple(min(at, size - 1) for at, size in zip(lane, wrong.shape, strict=True))
        return own if wrong[own] else None
    places = np.argwhere(wrong)
    return tuple(int(axis) for axis in places[0]) if len(places) else None
