"""Elements that hold nothing defined, from where they come up to where they do harm.

A lane that a load's mask leaves out, a quotient by 0 and an element that nothing has written are no
mistake as long as nobody uses them: kernels compute with such lanes and store the others. So they
are marked, the marks go through all operations, and what is told is a marked lane that reaches
memory, an address, or a branch.
"""

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from kernbench.ttir.arithmetic import Array
from kernbench.ttir.compiling import ENDS, Compiler
from kernbench.ttir.frames import Frame, ProgramError, Step
from kernbench.ttir.marked import Cause, Marked, Marks, marks_of, unwritten
from kernbench.ttir.module import Module, Operation, within
from kernbench.ttir.races import Access
from kernbench.ttir.sums import Value, plain
from kernbench.ttir.types import Type

_DIVISIONS: Final = frozenset(
    f"arith.{name}" for name in ("divsi", "divui", "remsi", "remui", "ceildivsi", "floordivsi")
)
_SHAPES: Final = frozenset(
    f"tt.{name}"
    for name in ("cat", "expand_dims", "join", "reshape", "splat", "split", "trans", "unsplat")
)
_BRANCHES: Final = {"cf.cond_br": 1, "scf.condition": 1, "scf.for": 3, "scf.if": 1}
"""Operations that choose where to go on, and how many of their operands say so."""

_CARRIED: Final = frozenset(
    ("scf.while", "tt.broadcast", "tt.call", "tt.int_to_ptr", "tt.print", "tt.ptr_to_int")
)
"""Operations that pass values on as they are, or only show them."""


def may_mark(module: Module) -> bool:
    """Returns whether a kernel may have undefined elements by itself."""
    for function in module.functions.values():
        constant = {
            operation.results[0].number
            for operation in within(function.body)
            if operation.name == "arith.constant" and "0" not in _digits(operation)
        }
        for operation in within(function.body):
            if operation.name == "tt.load" and len(operation.operands) == 2:
                return True
            if operation.name in _DIVISIONS and operation.operands[1].number not in constant:
                return True
    return False


def _digits(operation: Operation) -> Sequence[str]:
    """Returns the numbers of a constant as texts."""
    text = str(operation.attributes.get("value", ""))
    inner = text.partition("<")[2].rpartition(">")[0] if "<" in text else text
    return inner.replace("[", " ").replace("]", " ").replace(",", " ").split()


def marking(compiler: Compiler, operation: Operation, step: Step) -> Step:
    """Returns a step that also takes care of marks."""
    name = operation.name
    if name in _CARRIED or not operation.operands:
        return step
    if name in ENDS - set(_BRANCHES):
        return step
    if name in _BRANCHES:
        return _checked(operation, step, range(_BRANCHES[name]))
    if name == "tt.load":
        return _load(compiler, operation, step)
    if name == "tt.make_tensor_descriptor" or name.startswith("tt.descriptor"):
        # What a descriptor stores of a tile is looked at in its step, which knows what is outside.
        stored = name.endswith(("_store", "_scatter", "_reduce"))
        return _checked(operation, step, range(len(operation.operands) - stored))
    if name.startswith(("tt.store", "tt.atomic")):
        return _store(compiler, operation, step)
    if name in _DIVISIONS:
        return _division(operation, step)
    if name in _SHAPES:
        return _passing(operation, step, functools.partial(_reshaped, step))
    return _passing(operation, step, _RULES.get(name, _each))


# Where marks come from.


def _load(compiler: Compiler, operation: Operation, step: Step) -> Step:
    pointer, *more = operation.operands
    result = operation.results[0]
    shape, dtype = result.type.shape, result.type.dtype
    root = compiler.root(pointer)
    mask = more[0].number if more else None
    other = more[1].number if len(more) > 1 else None

    def run(frame: Frame) -> None:
        values = frame.values
        held = None if mask is None else plain(values[mask])
        tell(operation, frame, values[pointer.number], held)
        step(frame)
        marks: Marks = {}
        if held is not None and not held.all():
            if other is None:
                marks[operation] = (Cause("masked", operation), ~held)
            else:
                marks = {
                    cause: (what, where & ~held)
                    for cause, (what, where) in marks_of(values[other]).items()
                }
        by, address = Access(operation, frame.programs), values[pointer.number]
        # An operation gives one kind of marks: of two, the one that is a mistake on every GPU.
        marks.update(unwritten(frame.launch.memory, by, address, shape, dtype, held, root))
        if marks:
            values[result.number] = Marked(plain(values[result.number]), marks)

    return run


def _division(operation: Operation, step: Step) -> Step:
    divisor, result = operation.operands[1].number, operation.results[0].number
    passing = _passing(operation, step, _each)

    def run(frame: Frame) -> None:
        passing(frame)
        zero = plain(frame.values[divisor]) == 0
        if zero.any():
            held = frame.values[result]
            marks = {**marks_of(held), operation: (Cause("divided", operation), zero)}
            frame.values[result] = Marked(plain(held), marks)

    return run


# Where they are told.


def tell(operation: Operation, frame: Frame, value: Value, active: Array | None = None) -> None:
    """Tells of marked elements that a program uses.

    Args:
        value: What it uses.
        active: True for the lanes that it uses; None for all.

    Raises:
        ProgramError: If there are some that no GPU defines.
    """
    if type(value) is not Marked:
        return
    for cause, where in value.marks.values():
        found = where if active is None else where & active
        if found.any():
            place = tuple(int(axis) for axis in np.argwhere(found)[0])
            program = int(frame.programs[place[0] if found.shape[0] > 1 else 0])
            error = ProgramError("undefined", operation, "", program, place[1:], cause=cause)
            if cause.kind != "masked":
                raise error
            if frame.launch.warn is not None:
                frame.launch.warn(error, cause.operation)


def _checked(operation: Operation, step: Step, places: Iterable[int]) -> Step:
    numbers = [operation.operands[place].number for place in places]

    def run(frame: Frame) -> None:
        for number in numbers:
            tell(operation, frame, frame.values[number])
        step(frame)

    return run


def _store(compiler: Compiler, operation: Operation, step: Step) -> Step:
    numbers = [value.number for value in operation.operands]
    masked = len(numbers) > 2 and operation.name in ("tt.store", "tt.atomic_rmw")
    adds = operation.name.startswith("tt.atomic")
    pointer, kind = operation.operands[0], operation.operands[1].type if adds else None

    def run(frame: Frame) -> None:
        values = frame.values
        if kind is not None:
            mask = plain(values[numbers[-1]]) if masked else None
            by, address = Access(operation, frame.programs), values[pointer.number]
            found = unwritten(
                frame.launch.memory,
                by,
                address,
                kind.shape,
                kind.dtype,
                mask,
                compiler.root(pointer),
            )
            if found:
                tell(operation, frame, Marked(plain(address), found))
        if any(type(values[number]) is Marked for number in numbers):
            active = plain(values[numbers[-1]]) if masked else None
            if masked:
                tell(operation, frame, values[numbers[-1]])
            for number in numbers:
                tell(operation, frame, values[number], active)
        step(frame)

    return run


# How they go on.

_Rule = Callable[[Operation, Frame, list[Any]], list[Marks]]
"""Makes marks of each result of an operation, what it was given, and the frame after it."""


def _passing(operation: Operation, step: Step, rule: _Rule) -> Step:
    numbers = [value.number for value in operation.operands]
    results = [value.number for value in operation.results]

    def run(frame: Frame) -> None:
        values = frame.values
        for number in numbers:
            if type(values[number]) is Marked:
                break
        else:
            step(frame)
            return
        held = [values[number] for number in numbers]
        step(frame)
        for result, marks in zip(results, rule(operation, frame, held), strict=True):
            left = {cause: mark for cause, mark in marks.items() if mark[1].any()}
            if left:
                values[result] = Marked(plain(values[result]), left)

    return run


def _joined(held: Sequence[Any], where: Callable[[int, Array], Array]) -> Marks:
    """Returns the marks of several operands together.

    Args:
        where: Makes of the number of an operand, and of its marks, those of the result.
    """
    found: Marks = {}
    for place, one in enumerate(held):
        for key, (cause, marked) in marks_of(one).items():
            mine = where(place, marked)
            found[key] = (cause, found[key][1] | mine if key in found else mine)
    return found


def _each(operation: Operation, frame: Frame, held: list[Any]) -> list[Marks]:
    """Marks elements of which an operand's element is marked."""
    marks = _joined(held, lambda _, marked: marked)
    return [marks for _ in operation.results]


def _product(operation: Operation, frame: Frame, held: list[Any]) -> list[Marks]:
    """As `_each`, but what is multiplied by 0 counts as 0."""
    a, b = (plain(one) != 0 for one in held)
    nonzero = (b | _any(held[1]), a | _any(held[0]))
    return [_joined(held, lambda place, marked: marked & nonzero[place])]


def _both(operation: Operation, frame: Frame, held: list[Any]) -> list[Marks]:
    """As `_each`, but `false and` anything is false."""
    return (
        _product(operation, frame, held)
        if operation.results[0].type.element == "i1"
        else _each(operation, frame, held)
    )


def _either(operation: Operation, frame: Frame, held: list[Any]) -> list[Marks]:
    """As `_each`, but `true or` anything is true."""
    if operation.results[0].type.element != "i1":
        return _each(operation, frame, held)
    a, b = (~plain(one) for one in held)
    unsure = (b | _any(held[1]), a | _any(held[0]))
    return [_joined(held, lambda place, marked: marked & unsure[place])]


def _any(value: Any) -> Any:
    """Returns which elements have any mark."""
    return functools.reduce(operator.or_, (where for _, where in marks_of(value).values()), False)


def _select(operation: Operation, frame: Frame, held: list[Any]) -> list[Marks]:
    """Marks what is chosen, and what an undefined condition chooses."""
    condition, rank = plain(held[0]), len(operation.results[0].type.shape)
    lower = rank if condition.ndim == 1 else 0
    condition = condition.reshape(-1, *(1,) * lower) if lower else condition

    def where(place: int, marked: Array) -> Array:
        if place == 0:
            return marked.reshape(-1, *(1,) * lower) if lower else marked
        chosen: Array = marked & (condition if place == 1 else ~condition)
        return chosen

    return [_joined(held, where)]


def _reshaped(step: Step, operation: Operation, frame: Frame, held: list[Any]) -> list[Marks]:
    """Moves marks as the step moves elements."""
    values = frame.values
    numbers = [value.number for value in operation.operands]
    results = [value.number for value in operation.results]
    moved = [values[number] for number in results]
    found: list[Marks] = [{} for _ in results]
    for key, (cause, _) in _joined(held, lambda _, marked: marked).items():
        for number, one in zip(numbers, held, strict=True):
            mark = marks_of(one).get(key)
            where = np.asarray(False) if mark is None else mark[1]
            # Elements that agree are held once, even where their marks differ.
            shape = np.broadcast_shapes(plain(one).shape, where.shape)
            values[number] = np.broadcast_to(where, shape)
        step(frame)
        for marks, number in zip(found, results, strict=True):
            marks[key] = (cause, plain(values[number]))
    for number, one in zip((*numbers, *results), (*held, *moved), strict=True):
        values[number] = one
    return found


def _some(marked: Array, axis: int | tuple[int, ...], *, kept: bool = False) -> Array:
    return np.asarray(marked.any(axis=axis, keepdims=kept))


def _full(marked: Array, kind: Type) -> Array:
    return np.broadcast_to(marked, (marked.shape[0], *kind.shape))


def _reduced(operation: Operation, frame: Frame, held: list[Any]) -> list[Marks]:
    """Marks what is made of any marked element."""
    axis = int(operation.attributes["axis"]) + 1  # type: ignore[arg-type]
    kinds = [value.type for value in operation.operands]
    marks = _joined(held, lambda place, marked: _some(_full(marked, kinds[place]), axis))
    return [marks for _ in operation.results]


def _scanned(operation: Operation, frame: Frame, held: list[Any]) -> list[Marks]:
    """Marks what comes after a marked element."""
    axis = int(operation.attributes["axis"]) + 1  # type: ignore[arg-type]
    backwards = operation.attributes.get("reverse") is True
    kinds = [value.type for value in operation.operands]

    def where(place: int, marked: Array) -> Array:
        array = _full(marked, kinds[place])
        array = np.flip(array, axis) if backwards else array
        found = np.logical_or.accumulate(array, axis=axis)
        return np.flip(found, axis) if backwards else found

    marks = _joined(held, where)
    return [marks for _ in operation.results]


def _dotted(operation: Operation, frame: Frame, held: list[Any]) -> list[Marks]:
    """Marks sums with a marked factor whose other factor is not 0."""
    a, b = (
        _full(plain(one) != 0, value.type)
        for one, value in zip(held[:2], operation.operands[:2], strict=True)
    )
    kinds = [value.type for value in operation.operands]
    left, right = a | _any(held[0]), b | _any(held[1])

    def where(place: int, marked: Array) -> Array:
        if place > 1:
            return marked
        one = _full(marked, kinds[place]).astype(np.float32)
        pair = (one, right) if place == 0 else (left, one)
        sums: Array = np.matmul(*(each.astype(np.float32) for each in pair))
        return sums > 0

    return [_joined(held, where)]


def _scaled(operation: Operation, frame: Frame, held: list[Any]) -> list[Marks]:
    """Marks all that is made of scaled tiles with a marked element."""
    rank = len(operation.results[0].type.shape)
    axes = tuple(range(1, 1 + rank))
    last = len(held) - 1

    def where(place: int, marked: Array) -> Array:
        return marked if place == last else _some(marked, axes, kept=True)

    return [_joined(held, where)]


def _counted(operation: Operation, frame: Frame, held: list[Any]) -> list[Marks]:
    """Marks all counts if what is counted is marked."""
    active = plain(held[1]) if len(held) > 1 else True
    return [_joined(held[:1], lambda _, marked: _some(marked & active, 1, kept=True))]


def _gathered(operation: Operation, frame: Frame, held: list[Any]) -> list[Marks]:
    """Marks elements that are marked where they are taken from, or whose places are."""
    axis = int(operation.attributes["axis"]) + 1  # type: ignore[arg-type]
    kinds = [value.type for value in operation.operands]
    places = _full(plain(held[1]), kinds[1]).astype(np.int64)

    def where(place: int, marked: Array) -> Array:
        if place == 1:
            return marked
        source = _full(marked, kinds[0])
        count = max(len(source), len(places))
        source = np.broadcast_to(source, (count, *source.shape[1:]))
        return np.take_along_axis(source, np.broadcast_to(places, (count, *places.shape[1:])), axis)

    return [_joined(held, where)]


_RULES: Final[Mapping[str, _Rule]] = {
    "arith.andi": _both,
    "arith.mulf": _product,
    "arith.muli": _product,
    "arith.ori": _either,
    "arith.select": _select,
    "tt.dot": _dotted,
    "tt.dot_scaled": _scaled,
    "tt.gather": _gathered,
    "tt.histogram": _counted,
    "tt.reduce": _reduced,
    "tt.scan": _scanned,
}
"""How marks go through operations that do not treat each element alone."""
