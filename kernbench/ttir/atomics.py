"""Operations that change elements of memory in turn: one program, one lane after the other."""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from kernbench.ttir.accesses import outside
from kernbench.ttir.arithmetic import Array, not_known, rounded, unsigned, widened
from kernbench.ttir.compiling import Compiler, Handler
from kernbench.ttir.frames import Frame, Step
from kernbench.ttir.memory import Memory, OutsideError
from kernbench.ttir.module import Operation
from kernbench.ttir.races import Access
from kernbench.ttir.sums import plain
from kernbench.ttir.types import Type

Combine = Callable[..., Array]
"""Makes new elements of old ones and of operands."""

_COMBINED: Final[Mapping[str, Combine]] = {
    "add": np.add,
    "fadd": np.add,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "max": np.maximum,
    "min": np.minimum,
    "umax": lambda a, b: np.maximum(unsigned(a), unsigned(b)).view(a.dtype),
    "umin": lambda a, b: np.minimum(unsigned(a), unsigned(b)).view(a.dtype),
    "exch": lambda a, b: b,
}
"""What an atomic operation leaves of an element and its operand, by its kind."""


_RELEASING: Final = frozenset(("release", "acq_rel"))
"""Orders of memory by which all that a program has written comes first."""


def combination(operation: Operation, kind: str, type_: Type) -> Combine:
    """Returns what an operation combines elements with.

    Args:
        kind: `add`, `fadd`, `max` and so on.
        type_: Type of the elements; those of less than 32 bits are computed in float32.

    Raises:
        UnsupportedError: If the kind is not known.
    """
    found = _COMBINED.get(kind)
    if found is None:
        raise not_known(operation, f"the kind {kind}")
    if type_.is_float and type_.dtype.itemsize < 4 and kind != "exch":
        exact, to = found, str(type_.element)
        return lambda a, b: rounded(exact(widened(a), widened(b)), to)
    return found


def changed(
    memory: Memory,
    address: Array,
    operands: list[Array],
    active: Array | None,
    root: int | None,
    combine: Combine,
    *,
    wanted: bool,
    fences: bool = False,
    by: Access | None = None,
) -> Array:
    """Changes elements of memory in the order of the programs and lanes.

    Args:
        address: Byte addresses of all programs and lanes, as for the other arrays.
        operands: What the elements are combined with.
        active: True for the lanes that take part; None for all.
        root: Number of the argument whose memory it is; None if that is not known.
        wanted: Whether anybody uses what is returned.
        fences: Whether all that the program has written before comes first.
        by: Who does it; None if no races are to be looked for.

    Returns:
        What each lane found before its turn; 0 where none took part, or if it is not wanted.

    Raises:
        OutsideError: If an element is in no memory of the kernel's.
    """
    dtype = operands[-1].dtype
    out = np.zeros(address.shape, dtype)
    for allocation, places in memory.place(address, active, dtype, root):
        allocation.read = allocation.written = True
        elements = allocation.view(dtype)
        indices = ((address[places] - allocation.start) // dtype.itemsize).reshape(-1)
        allocation.stored += indices.size * dtype.itemsize
        news = [each[places].reshape(-1) for each in operands]
        before = elements[indices]
        if not wanted and isinstance(combine, np.ufunc):
            combine.at(elements, indices, news[0])
            memory.changes += 1
        else:
            found, differs = _in_turn(elements, indices, news, combine)
            memory.changes += differs
            out[places] = found.reshape(out[places].shape)
        if memory.beside is not None:
            offsets, changed = indices * dtype.itemsize, elements[indices] != before
            memory.beside.turned(
                allocation, offsets, changed, memory.touched, looked=wanted, fences=fences, by=by
            )
    memory.wrote(address, address.shape[1:], dtype, active, root)
    return out


def _in_turn(
    elements: Array, indices: Array, news: list[Array], combine: Combine
) -> tuple[Array, bool]:
    """Changes elements in order; those that meet at one element go in rounds.

    Returns:
        What each found, and whether an element is another one now.
    """
    before = np.empty(len(indices), elements.dtype)
    order = np.argsort(indices, kind="stable")
    ordered = indices[order]
    fresh = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]][: len(ordered)])
    lengths = np.diff(np.r_[fresh, len(ordered)])
    differs = False
    for turn in range(int(lengths.max(initial=0))):
        mine = order[fresh[lengths > turn] + turn]
        old = elements[indices[mine]]
        new = combine(old, *(each[mine] for each in news))
        before[mine] = old
        elements[indices[mine]] = new
        differs = differs or old.tobytes() != new.tobytes()
    return before, differs


def _read_modify_write(compiler: Compiler, operation: Operation) -> Step:
    _, value, *more = operation.operands
    combine = combination(operation, operation.words[0], value.type)
    mask = more[0].number if more else None
    return _changing(compiler, operation, [value.number], mask, combine)


def _compare_and_swap(compiler: Compiler, operation: Operation) -> Step:
    _, expected, value = operation.operands

    def combine(a: Array, wanted: Array, new: Array) -> Array:
        return np.where(unsigned(a) == unsigned(wanted), new, a)

    return _changing(compiler, operation, [expected.number, value.number], None, combine)


def _changing(
    compiler: Compiler,
    operation: Operation,
    operands: list[int],
    mask: int | None,
    combine: Combine,
) -> Step:
    pointer, result = operation.operands[0], operation.results[0].number
    shape, source, root = pointer.type.shape, pointer.number, compiler.root(pointer)
    wanted = result in compiler.used
    fences = not _RELEASING.isdisjoint(operation.words)

    def step(frame: Frame) -> None:
        values = frame.values
        joint = (frame.count, *shape)
        address = np.broadcast_to(plain(values[source]), joint)
        given = [np.broadcast_to(plain(values[number]), joint) for number in operands]
        active = None if mask is None else np.broadcast_to(plain(values[mask]), joint)
        try:
            memory, how = frame.launch.memory, {"wanted": wanted, "fences": fences}
            by = Access(operation, frame.programs)
            values[result] = changed(memory, address, given, active, root, combine, by=by, **how)
        except OutsideError as error:
            raise outside(error, operation, frame) from None
        races = frame.launch.memory.races
        if wanted and races is not None:
            races.order(frame.programs if active is None else _with_any(frame.programs, active))

    return step


def _with_any(programs: Array, active: Array) -> Array:
    """Returns the programs that have a lane that takes part."""
    found: Array = programs[active.reshape(len(programs), -1).any(axis=1)]
    return found


HANDLERS: Final[Mapping[str, Handler]] = {
    "tt.atomic_cas": _compare_and_swap,
    "tt.atomic_rmw": _read_modify_write,
}
"""Steps of atomic operations."""
