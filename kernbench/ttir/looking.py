"""Accesses of some programs: lanes that masks leave on, bytes that are fetched, where they add."""

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Final

import numpy as np

from kernbench.ttir.arithmetic import Array
from kernbench.ttir.compiling import Compiler, Handler
from kernbench.ttir.counted import ATOMICS, IN_MEMORY, MASKED, Slice, counts, moved
from kernbench.ttir.flow import run_body
from kernbench.ttir.frames import Frame, Step
from kernbench.ttir.module import Attribute, Operation, Value
from kernbench.ttir.rows import once
from kernbench.ttir.slicing import Needs
from kernbench.ttir.sums import plain

_LANES: Final = "count.lanes"
_SECTORS: Final = "count.sectors"
_REQUESTS: Final = "count.requests"
_SECTOR: Final = 32
"""Bytes that a GPU's caches fetch at least."""
LANES_OF_REQUEST: Final = 32
"""Lanes whose accesses a GPU makes at once: elements that follow each other, about."""


def _known(needs: Needs, value: Value) -> set[int] | None:
    """Returns what a value depends on; None if numbers in memory are among it."""
    found = needs.of([value])
    return None if any(each.name in IN_MEMORY for each in needs.makers(found)) else found


def _masks(needs: Needs) -> Iterator[tuple[Operation, Value, set[int]]]:
    """Yields the accesses whose masks depend on no numbers in memory."""
    for operation in needs.operations:
        place = MASKED.get(operation.name)
        if place is not None and len(operation.operands) > place:
            mask = operation.operands[place]
            found = _known(needs, mask)
            if found is not None:
                yield operation, mask, found


def _pointing(
    needs: Needs, needed: set[int], wanted: Callable[[Operation], bool]
) -> Iterator[tuple[Operation, list[Value]]]:
    """Yields accesses whose addresses depend on no numbers in memory, with pointer and mask.

    Args:
        needs: Of the function.
        needed: Gets the numbers of what these depend on.
        wanted: Whether an operation is asked for; its first operand is a pointer.
    """
    masks = {id(operation): (mask, found) for operation, mask, found in _masks(needs)}
    for operation in needs.operations:
        if not wanted(operation):
            continue
        pointer = operation.operands[0]
        found = _known(needs, pointer)
        if found is not None:
            mask, also = masks.get(id(operation), (None, set()))
            needed |= found | also
            yield operation, [pointer] if mask is None else [pointer, mask]


def _look(compiler: Compiler, operation: Operation) -> Step:
    del compiler
    site, tile = (int(operation.attributes[name]) for name in ("site", "lanes"))  # type: ignore[arg-type]
    mask = operation.operands[0].number

    def step(frame: Frame) -> None:
        launch = counts(frame)
        lanes = plain(frame.values[mask])
        lanes = lanes.reshape(lanes.shape[0], -1)
        on = lanes.sum(axis=1, dtype=np.int64) * (tile // lanes.shape[1])
        weight = (
            launch.weight if isinstance(launch.weight, int) else launch.weight[launch.places(frame)]
        )
        often = np.broadcast_to(weight, (frame.count,))
        launch.see(site, int((on * often).sum()), tile * int(often.sum()))

    return step


def _fetch(compiler: Compiler, operation: Operation) -> Step:
    del compiler
    site, size = (int(operation.attributes[name]) for name in ("site", "bytes"))  # type: ignore[arg-type]
    shape: tuple[int, ...] = operation.attributes["shape"]  # type: ignore[assignment]
    pointer, *more = (value.number for value in operation.operands)

    def step(frame: Frame) -> None:
        address = np.broadcast_to(plain(frame.values[pointer]), (frame.count, *shape))
        on: Array | None = None
        if more:
            on = np.broadcast_to(plain(frame.values[more[0]]), address.shape)
        for place in range(frame.count):
            each = address[place] if on is None else address[place][on[place]]
            fetched = len(once(each // _SECTOR)) * _SECTOR
            counts(frame).see(site, fetched, each.size * size)

    return step


def _ask(compiler: Compiler, operation: Operation) -> Step:
    del compiler
    site: int = operation.attributes["site"]  # type: ignore[assignment]
    shape: tuple[int, ...] = operation.attributes["shape"]  # type: ignore[assignment]
    pointer, *more = (value.number for value in operation.operands)
    numel = prod(shape)
    lanes = min(LANES_OF_REQUEST, numel)

    def step(frame: Frame) -> None:
        whole = frame.count, *shape
        address = np.broadcast_to(plain(frame.values[pointer]), whole)
        if more:
            address = np.where(np.broadcast_to(plain(frame.values[more[0]]), whole), address, -1)
        counts(frame).ask(site, address.reshape(frame.count, numel // lanes, lanes))

    return step


def _once(compiler: Compiler, operation: Operation) -> Step:
    """Makes the step of a loop of which the first turn is looked at."""
    region = operation.regions[0]
    first, *initial = (value.number for value in (operation.operands[0], *operation.operands[3:]))
    body = compiler.body(region[0])
    results = [result.number for result in operation.results]

    def step(frame: Frame) -> None:
        values = frame.values
        for argument, number in zip(body.arguments, (first, *initial), strict=True):
            values[argument] = values[number]
        for result, held in zip(results, run_body(body, frame), strict=True):
            values[result] = held

    return step


class Masks(Slice):
    """A kernel cut down to its masks: `Counts.seen` has lanes that are on, and all of them."""

    HANDLERS: Mapping[str, Handler] = {_LANES: _look}

    def _marks(self, needs: Needs, needed: set[int]) -> dict[int, Operation]:
        marks = {}
        for operation, mask, found in _masks(needs):
            needed |= found
            told = {"site": id(operation), "lanes": moved(operation).numel}
            marks[id(operation)] = Operation(_LANES, [mask], attributes=told)
        return marks


class Addresses(Slice):
    """A kernel cut down to its addresses: `Counts.seen` has bytes that are fetched, and asked for.

    Loops take one turn: other ones fetch about as much.
    """

    HANDLERS: Mapping[str, Handler] = {_SECTORS: _fetch, "scf.for": _once}

    def _marks(self, needs: Needs, needed: set[int]) -> dict[int, Operation]:
        marks = {}
        for operation, operands in _pointing(
            needs, needed, lambda one: one.name in MASKED and moved(one).numel > 1
        ):
            kind = moved(operation)
            told: dict[str, Attribute] = {
                "site": id(operation),
                "shape": kind.shape,
                "bytes": kind.dtype.itemsize,
            }
            marks[id(operation)] = Operation(_SECTORS, operands, attributes=told)
        return marks


class Requests(Slice):
    """A kernel cut down to where it adds: `Counts.asked` has the addresses of atomic operations.

    Those that depend on numbers in memory are left out. Loops take one turn.
    """

    HANDLERS: Mapping[str, Handler] = {_REQUESTS: _ask, "scf.for": _once}

    def _marks(self, needs: Needs, needed: set[int]) -> dict[int, Operation]:
        marks, pointed = {}, ATOMICS - {"tt.descriptor_reduce"}  # a descriptor is no pointer
        for operation, operands in _pointing(needs, needed, lambda one: one.name in pointed):
            told: dict[str, Attribute] = {"site": id(operation), "shape": moved(operation).shape}
            marks[id(operation)] = Operation(_REQUESTS, operands, attributes=told)
        return marks
