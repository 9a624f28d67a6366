"""Branches and loops: programs that agree stay together, those that part go on by themselves."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from kernbench.ttir.arithmetic import Array, unsigned
from kernbench.ttir.compiling import Body, Compiler, Handler
from kernbench.ttir.frames import BlockOf, Frame, Held, ProgramError, Step, Turns, merged, taken
from kernbench.ttir.module import Operation, Region, Successor, within
from kernbench.ttir.sums import Value, plain


def run_body(body: Body, frame: Frame) -> list[Held]:
    """Runs a block, and returns what it passes on."""
    for step in body.steps:
        step(frame)
    return [frame.values[number] for number in body.given]


def run_blocks(blocks: Mapping[str, Body], frame: Frame) -> list[Held]:
    """Runs the blocks of a function, and returns what it returns.

    Programs that a condition parts run one part after the other, each to its end.
    """
    entry = next(iter(blocks))
    waiting: list[tuple[str, Frame, Array | None]] = [(entry, frame, None)]
    ended: list[tuple[Array | None, list[Held]]] = []
    while waiting:
        label, current, places = waiting.pop()
        while True:
            body = blocks[label]
            given = run_body(body, current)
            end = body.end
            if end is None or not end.successors:
                ended.append((places, given))
                break
            chosen: Successor | None
            if len(end.successors) == 1:
                chosen = end.successors[0]
            else:
                condition = plain(current.values[body.given[0]])
                chosen = _agreed(condition, end.successors)
                if chosen is None:
                    condition = np.broadcast_to(condition, (current.count,))
                    for successor, mine in zip(
                        end.successors, (condition, ~condition), strict=True
                    ):
                        inside = np.flatnonzero(mine)
                        part = current.part(inside, range(len(current.values)))
                        _enter(blocks, successor, part)
                        where = inside if places is None else places[inside]
                        waiting.append((successor.label, part, where))
                    break
            _enter(blocks, chosen, current)
            label = chosen.label
    if len(ended) == 1:
        return ended[0][1]
    return [
        merged(frame.count, [(_known(places), given[place]) for places, given in ended])
        for place in range(len(ended[0][1]))
    ]


def _known(places: Array | None) -> Array:
    if places is None:
        raise AssertionError("all programs ended where some parted")
    return places


def _agreed(condition: Array, successors: Sequence[Any]) -> Any:
    """Returns what all programs choose; None if they differ."""
    if condition.size == 1 or condition.all() or not condition.any():
        return successors[0 if condition.flat[0] else 1]
    return None


def _enter(blocks: Mapping[str, Body], successor: Successor, frame: Frame) -> None:
    held = [frame.values[value.number] for value in successor.operands]
    for number, one in zip(blocks[successor.label].arguments, held, strict=True):
        frame.values[number] = one


def _if(compiler: Compiler, operation: Operation) -> Step:
    condition = operation.operands[0].number
    needed = compiler.outside(operation.regions)
    bodies = [compiler.body(region[0]) for region in operation.regions]
    results = [result.number for result in operation.results]

    def step(frame: Frame) -> None:
        values = frame.values
        chosen = plain(values[condition])
        if chosen.size == 1 or chosen.all() or not chosen.any():
            way = 0 if chosen.flat[0] else 1
            if way < len(bodies):
                for result, held in zip(results, run_body(bodies[way], frame), strict=False):
                    values[result] = held
            return
        chosen = np.broadcast_to(chosen, (frame.count,))
        parts: list[tuple[Array, list[Held]]] = []
        for body, mine in zip(bodies, (chosen, ~chosen), strict=False):
            places = np.flatnonzero(mine)
            parts.append((places, run_body(body, frame.part(places, needed))))
        for place, result in enumerate(results):
            values[result] = merged(frame.count, [(where, held[place]) for where, held in parts])

    return step


def _for(compiler: Compiler, operation: Operation) -> Step:
    low, high, by = (value.number for value in operation.operands[:3])
    initial = operation.operands[3:]
    (region,) = operation.regions
    counter, *carried = region[0].arguments
    alike, made, body = compiler.turn(region[0])
    needed = [*compiler.outside(operation.regions), *made]
    signless = "unsigned" in operation.words
    dtype = counter.type.dtype
    first = [value.number for value in initial]
    inner = [argument.number for argument in carried]
    results = [result.number for result in operation.results]
    number = counter.number

    def step(frame: Frame) -> None:
        values = frame.values
        begin, end, stride = (_whole(plain(values[each]), signless) for each in (low, high, by))
        turns = _turns(begin, end, stride)
        most = int(turns.max())
        held = [values[each] for each in first]
        if most:
            run_body(alike, frame)
        if turns.size == 1 or turns.min() == most:
            for turn in range(most):
                values[number] = (begin + turn * stride).astype(dtype)
                for argument, one in zip(inner, held, strict=True):
                    values[argument] = one
                held = run_body(body, frame)
            for result, one in zip(results, held, strict=True):
                values[result] = one
            return
        count = frame.count
        begin, stride, turns = (
            np.broadcast_to(array, (count,)) for array in (begin, stride, turns)
        )
        left = np.arange(count)
        current = frame.part(left, needed)
        done: list[list[tuple[Array, Held]]] = [[] for _ in results]
        for turn in range(most + 1):
            going = turns[left] > turn
            if not going.all():
                stop, stay = np.flatnonzero(~going), np.flatnonzero(going)
                for collected, one in zip(done, held, strict=True):
                    collected.append((left[stop], taken(one, stop)))
                if turn == most:
                    break
                held = [taken(one, stay) for one in held]
                left = left[stay]
                current = frame.part(left, needed)
            current.values[number] = (begin[left] + turn * stride[left]).astype(dtype)
            for argument, one in zip(inner, held, strict=True):
                current.values[argument] = one
            held = run_body(body, current)
        for result, collected in zip(results, done, strict=True):
            values[result] = merged(count, collected)

    return step


def _while(compiler: Compiler, operation: Operation) -> Step:
    before_region, after_region = operation.regions
    needed = compiler.outside(operation.regions)
    before = compiler.body(before_region[0])
    after = compiler.body(after_region[0])
    synchronises = _synchronises(compiler, operation.regions)
    compiler.waits |= synchronises
    first = [value.number for value in operation.operands]
    results = [result.number for result in operation.results]

    def step(frame: Frame) -> None:
        held: list[Held] = [frame.values[each] for each in first]
        current, left = frame, None
        done: list[list[tuple[Array, Held]]] = [[] for _ in results]
        memory, turns = frame.launch.memory, Turns(operation, frame.launch)
        while True:
            turns.turn(current)
            given, changes = held, memory.changes
            for argument, one in zip(before.arguments, held, strict=True):
                current.values[argument] = one
            condition, *rest = run_body(before, current)
            going = plain(condition)  # type: ignore[arg-type]
            if not going.any():
                if left is None:
                    for result, one in zip(results, rest, strict=True):
                        frame.values[result] = one
                    return
                for collected, one in zip(done, rest, strict=True):
                    collected.append((left, one))
                break
            if not going.all():
                left = np.arange(frame.count) if left is None else left
                stop, stay = np.flatnonzero(~going), np.flatnonzero(going)
                for collected, one in zip(done, rest, strict=True):
                    collected.append((left[stop], taken(one, stop)))
                rest = [taken(one, stay) for one in rest]
                left = left[stay]
                current = frame.part(left, needed)
                given = []
            for argument, one in zip(after.arguments, rest, strict=True):
                current.values[argument] = one
            held = run_body(after, current)
            if memory.changes == changes and _same(given, held):
                if synchronises and frame.launch.wait is not None:
                    frame.launch.wait(operation, int(current.programs[0]))
                    continue
                message = "waits for what no program before it writes"
                raise ProgramError("wait", operation, message, int(current.programs[0]), ())
        for result, collected in zip(results, done, strict=True):
            frame.values[result] = merged(frame.count, collected)

    return step


def _call(compiler: Compiler, operation: Operation) -> Step:
    function = compiler.module.functions[called(operation)]
    callee = Compiler(compiler.module, function, compiler.handlers, compiler.watch)
    compiler.largest = max(compiler.largest, callee.largest)
    compiler.waits |= callee.waits
    given = [value.number for value in operation.operands]
    taken_by = [value.number for value in callee.function.arguments]
    results = [result.number for result in operation.results]

    def step(frame: Frame) -> None:
        values: list[Any] = [None] * callee.function.values
        for argument, number in zip(taken_by, given, strict=True):
            values[argument] = frame.values[number]
        returned = run_blocks(callee.blocks, Frame(values, frame.programs, frame.launch))
        for result, held in zip(results, returned, strict=True):
            frame.values[result] = held

    return step


def turns_of(begin: Value, end: Value, stride: Value, *, signless: bool) -> Array:
    """Returns how many turns a loop takes, for each program, or once for all."""
    return _turns(*(_whole(plain(each), signless) for each in (begin, end, stride)))


def _turns(begin: Array, end: Array, stride: Array) -> Array:
    found: Array = np.maximum(0, -((begin - end) // np.where(stride == 0, 1, stride)))
    return found


def _whole(a: Array, signless: bool) -> Array:
    return (unsigned(a) if signless else a).astype(np.int64)


def _same(before: Sequence[Held], after: Sequence[Held]) -> bool:
    """Returns whether a turn of a loop has left everything as it was, and so will the next one."""
    if len(before) != len(after):
        return False
    for old, new in zip(before, after, strict=True):
        if old is not new:
            if isinstance(old, BlockOf) or isinstance(new, BlockOf):
                return False
            if not np.array_equal(plain(old), plain(new)):
                return False
    return True


def _synchronises(compiler: Compiler, regions: Sequence[Region]) -> bool:
    """Returns whether a loop may wait for what another program writes."""
    for operation in (each for region in regions for each in within(region)):
        if operation.name.startswith("tt.atomic") or operation.attributes.get("isVolatile") is True:
            return True
        if operation.name == "tt.call":
            callee = compiler.module.functions[called(operation)]
            if _synchronises(compiler, [callee.body]):
                return True
    return False


def called(operation: Operation) -> str:
    """Returns the name of the function that an operation calls."""
    return next(word for word in operation.words if word[0] == "@").lstrip("@").strip('"')


HANDLERS: Final[Mapping[str, Handler]] = {
    "scf.for": _for,
    "scf.if": _if,
    "scf.while": _while,
    "tt.call": _call,
}
"""Steps of branches, loops and calls."""
