"""Operations on addresses: loads, stores, and what moves a pointer."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from kernbench.ttir.arithmetic import unsigned
from kernbench.ttir.compiling import Compiler, Handler
from kernbench.ttir.frames import Frame, ProgramError, Step
from kernbench.ttir.memory import OutsideError
from kernbench.ttir.module import Operation
from kernbench.ttir.races import Access
from kernbench.ttir.sums import parts_of, plain, summed
from kernbench.ttir.types import Pointer, Type


def outside(error: OutsideError, operation: Operation, frame: Frame) -> ProgramError:
    """Returns the mistake of the first program and element that are outside of the memory."""
    place = tuple(int(axis) for axis in np.argwhere(error.bad)[0])
    program = int(frame.programs[place[0] if error.bad.shape[0] > 1 else 0])
    message = "outside of the memory"
    return ProgramError("outside", operation, message, program, place[1:], error, frame=frame)


def _addptr(compiler: Compiler, operation: Operation) -> Step:
    pointer, offset = operation.operands
    result = operation.results[0]
    size = _pointee_bytes(pointer.type)
    first, second, number = pointer.number, offset.number, result.number
    narrow = offset.type.element == "i1"

    def step(frame: Frame) -> None:
        values = frame.values
        moved = [
            (unsigned(part) if narrow else part).astype(np.int64) * size
            for part in parts_of(values[second])
        ]
        values[number] = summed((*parts_of(values[first]), *moved))

    return step


def _pointee_bytes(type_: Type) -> int:
    element = type_.element
    if not isinstance(element, Pointer):
        raise TypeError(f"{type_.element} is no pointer")
    return element.to.dtype.itemsize


def _load(compiler: Compiler, operation: Operation) -> Step:
    pointer, *more = operation.operands
    result = operation.results[0]
    mask = more[0].number if more else None
    other = more[1].number if len(more) > 1 else None
    shape, dtype = result.type.shape, result.type.dtype
    number, source = result.number, pointer.number
    polls = operation.attributes.get("isVolatile") is True

    def step(frame: Frame) -> None:
        values, by = frame.values, Access(operation, frame.programs)
        try:
            values[number] = frame.launch.memory.load(
                values[source],
                shape,
                dtype,
                None if mask is None else plain(values[mask]),
                None if other is None else plain(values[other]),
                compiler.roots.get(source),
                by,
            )
        except OutsideError as error:
            raise outside(error, operation, frame) from None
        if polls:
            held = None if mask is None else plain(values[mask])
            root, address = compiler.roots.get(source), plain(values[source])
            frame.launch.memory.turned(address, shape, dtype, held, root, looked=True, by=by)

    return step


def _store(compiler: Compiler, operation: Operation) -> Step:
    pointer, value, *more = operation.operands
    mask = more[0].number if more else None
    shape, target, source = value.type.shape, pointer.number, value.number

    def step(frame: Frame) -> None:
        values = frame.values
        address, held = values[target], plain(values[source])
        if mask is None and address.shape[0] == 1 and frame.launch.memory.races is None:
            held = held[-1:]  # the last program's stays
        try:
            frame.launch.memory.store(
                address,
                shape,
                held,
                None if mask is None else plain(values[mask]),
                compiler.roots.get(target),
                Access(operation, frame.programs),
            )
        except OutsideError as error:
            raise outside(error, operation, frame) from None

    return step


def _int_to_ptr(compiler: Compiler, operation: Operation) -> Step:
    result = operation.results[0]
    source, number = operation.operands[0].number, result.number

    def step(frame: Frame) -> None:
        frame.values[number] = frame.values[source]

    return step


def _ptr_to_int(compiler: Compiler, operation: Operation) -> Step:
    del compiler
    source, number = operation.operands[0].number, operation.results[0].number

    def step(frame: Frame) -> None:
        frame.values[number] = frame.values[source]

    return step


HANDLERS: Final[Mapping[str, Handler]] = {
    "tt.addptr": _addptr,
    "tt.int_to_ptr": _int_to_ptr,
    "tt.load": _load,
    "tt.ptr_to_int": _ptr_to_int,
    "tt.store": _store,
}
"""Steps of operations on memory."""
