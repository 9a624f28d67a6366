"""Operations that load, store and change memory."""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from kernbench.ttir.arithmetic import Array, rounded, unsigned, widened
from kernbench.ttir.compiling import Compiler, Handler
from kernbench.ttir.frames import BlockOf, Frame, ProgramError, Step
from kernbench.ttir.memory import OutsideError
from kernbench.ttir.module import Operation
from kernbench.ttir.sums import Value, parts_of, plain, summed
from kernbench.ttir.tiles import full
from kernbench.ttir.types import Descriptor, Pointer, Type


def outside(error: OutsideError, operation: Operation, frame: Frame) -> ProgramError:
    """Returns the mistake of the first program and element that are outside of the memory."""
    place = tuple(int(axis) for axis in np.argwhere(error.bad)[0])
    program = int(frame.programs[place[0] if error.bad.shape[0] > 1 else 0])
    return ProgramError("outside", operation, "outside of the memory", program, place[1:], error)


def _addptr(compiler: Compiler, operation: Operation) -> Step:
    pointer, offset = operation.operands
    result = operation.results[0]
    compiler.rooted(result, [pointer])
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
        raise TypeError(f"{type_} is no pointer")
    return element.to.dtype.itemsize


def _load(compiler: Compiler, operation: Operation) -> Step:
    pointer, *more = operation.operands
    result = operation.results[0]
    if isinstance(result.type.element, Pointer):
        compiler.roots[result.number] = None
    mask = more[0].number if more else None
    other = more[1].number if len(more) > 1 else None
    shape, dtype = result.type.shape, result.type.dtype
    number, source = result.number, pointer.number

    def step(frame: Frame) -> None:
        values = frame.values
        try:
            values[number] = frame.launch.memory.load(
                values[source],
                shape,
                dtype,
                None if mask is None else plain(values[mask]),
                None if other is None else plain(values[other]),
                compiler.roots.get(source),
            )
        except OutsideError as error:
            raise outside(error, operation, frame) from None

    return step


def _store(compiler: Compiler, operation: Operation) -> Step:
    pointer, value, *more = operation.operands
    mask = more[0].number if more else None
    shape, target, source = value.type.shape, pointer.number, value.number

    def step(frame: Frame) -> None:
        values = frame.values
        address = values[target]
        if address.shape[0] == 1 and frame.count > 1:  # the last program's stays
            held = plain(values[source])
            held = held[-1:] if mask is None else held
        else:
            held = plain(values[source])
        try:
            frame.launch.memory.store(
                address,
                shape,
                held,
                None if mask is None else plain(values[mask]),
                compiler.roots.get(target),
            )
        except OutsideError as error:
            raise outside(error, operation, frame) from None

    return step


_COMBINED: Final[Mapping[str, Callable[[Array, Array], Array]]] = {
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


def _atomic(compiler: Compiler, operation: Operation) -> Step:
    kind = operation.words[0]
    _, value, *more = operation.operands
    combine = _COMBINED[kind]
    if value.type.is_float and value.type.dtype.itemsize < 4:
        exact, to = combine, str(value.type.element)
        combine = lambda a, b: rounded(exact(widened(a), widened(b)), to)  # noqa: E731
    return _changing(compiler, operation, [value.number], more[0].number if more else None, combine)


def _compare_and_swap(compiler: Compiler, operation: Operation) -> Step:
    _, expected, value = operation.operands
    return _changing(
        compiler,
        operation,
        [expected.number, value.number],
        None,
        lambda a, expected, new: np.where(_bits(a) == _bits(expected), new, a),
    )


def _bits(a: Array) -> Array:
    return unsigned(a) if a.dtype != np.bool_ else a


def _changing(
    compiler: Compiler,
    operation: Operation,
    operands: list[int],
    mask: int | None,
    combine: Callable[..., Array],
) -> Step:
    """Returns a step that changes elements one program, and one element, after the other."""
    pointer = operation.operands[0]
    shape = pointer.type.shape
    dtype = pointer.type.pointee.dtype
    result = operation.results[0].number

    def step(frame: Frame) -> None:
        values = frame.values
        joint = (frame.count, *shape)
        address = np.broadcast_to(plain(values[pointer.number]), joint)
        given = [np.broadcast_to(plain(values[number]), joint) for number in operands]
        active = None
        if mask is not None:
            active = np.broadcast_to(plain(values[mask]), joint)
        out = np.zeros(joint, dtype)
        memory = frame.launch.memory
        try:
            found = memory.place(address, active, dtype, compiler.roots.get(pointer.number))
        except OutsideError as error:
            raise outside(error, operation, frame) from None
        for allocation, places in found:
            allocation.read = allocation.written = True
            elements = allocation.view(dtype)
            indices = ((address[places] - allocation.start) // dtype.itemsize).reshape(-1)
            news = [each[places].reshape(-1) for each in given]
            out[places] = _in_turn(elements, indices, news, combine).reshape(out[places].shape)
        values[result] = out

    return step


def _in_turn(
    elements: Array, indices: Array, news: list[Array], combine: Callable[..., Array]
) -> Array:
    """Changes elements in order, and returns what each found; those that meet go in rounds."""
    before = np.empty(len(indices), elements.dtype)
    left = np.arange(len(indices))
    while len(left):
        _, first = np.unique(indices[left], return_index=True)
        if len(first) == len(left):
            turn, left = left, left[:0]
        else:
            turn = left[first]
            left = np.delete(left, first)
        old = elements[indices[turn]]
        before[turn] = old
        elements[indices[turn]] = combine(old, *(new[turn] for new in news))
    return before


def _int_to_ptr(compiler: Compiler, operation: Operation) -> Step:
    result = operation.results[0]
    compiler.roots[result.number] = None
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


# Descriptors: blocks of a tensor, of which what is outside reads as 0 and is not written.


def _make_descriptor(compiler: Compiler, operation: Operation) -> Step:
    result = operation.results[0]
    compiler.rooted(result, operation.operands[:1])
    block = _block_of(result.type)
    rank = len(block.shape)
    numbers = [value.number for value in operation.operands]
    size = block.dtype.itemsize
    padding = "nan" if "nan" in str(operation.attributes.get("padding", "")).lower() else "zero"
    base = numbers[0]

    def step(frame: Frame) -> None:
        values = frame.values
        frame.values[result.number] = BlockOf(
            plain(values[base]),
            tuple(plain(values[each]).astype(np.int64) for each in numbers[1 : 1 + rank]),
            tuple(plain(values[each]).astype(np.int64) * size for each in numbers[1 + rank :]),
            block.shape,
            padding,
            compiler.root(result),
        )

    return step


def _block_of(type_: Type) -> Type:
    element = type_.element
    if not isinstance(element, Descriptor):
        raise TypeError(f"{type_} is no descriptor")
    return element.block


def _addressed(
    held: BlockOf, offsets: list[Array], shape: tuple[int, ...]
) -> tuple[Value, Array | None]:
    """Returns the addresses of a block's elements, and which of them are inside of the tensor.

    Args:
        offsets: Where the block begins along each axis, or, along the first, each row's place.
        shape: Shape of the block.
    """
    rank = len(shape)
    parts: list[Array] = [held.base.reshape(-1, *(1,) * rank)]
    inside: Array | None = None
    for axis, (offset, extent, stride) in enumerate(
        zip(offsets, held.shape, held.strides, strict=True)
    ):
        place = offset.astype(np.int64)
        if place.ndim == 1:
            place = place[:, None] + np.arange(shape[axis], dtype=np.int64)
        place = place.reshape(place.shape[0], *(1,) * axis, shape[axis], *(1,) * (rank - axis - 1))
        ones = (-1, *(1,) * rank)
        parts.append(place * stride.reshape(ones))
        within = (place >= 0) & (place < extent.reshape(ones))
        if not within.all():
            inside = within if inside is None else inside & within
    return summed(parts), inside


def _descriptor_load(compiler: Compiler, operation: Operation) -> Step:
    del compiler
    descriptor, *offsets = operation.operands
    result = operation.results[0]
    kind = result.type

    def step(frame: Frame) -> None:
        held: BlockOf = frame.values[descriptor.number]
        places = [plain(frame.values[each.number]) for each in offsets]
        extra = len(held.block) - len(kind.shape)
        shape = (
            (*(1,) * extra, *kind.shape) if operation.name == "tt.descriptor_load" else kind.shape
        )
        if extra <= 0 or operation.name != "tt.descriptor_load":
            shape = kind.shape
        address, inside = _addressed(held, places, shape)
        other = None
        if held.padding == "nan":
            other = np.full((1,) * (1 + len(shape)), np.nan).astype(kind.dtype)
        elif inside is not None:
            other = np.zeros((1,) * (1 + len(shape)), kind.dtype)
        try:
            found = frame.launch.memory.load(address, shape, kind.dtype, inside, other, held.root)
        except OutsideError as error:
            raise outside(error, operation, frame) from None
        frame.values[result.number] = found.reshape(
            found.shape[0], *found.shape[1 + extra :] if extra > 0 else found.shape[1:]
        )

    return step


def _descriptor_store(compiler: Compiler, operation: Operation) -> Step:
    del compiler
    descriptor, value, *offsets = operation.operands
    if operation.name == "tt.descriptor_scatter":
        descriptor, *offsets, value = operation.operands
    kind = value.type

    def step(frame: Frame) -> None:
        held: BlockOf = frame.values[descriptor.number]
        places = [plain(frame.values[each.number]) for each in offsets]
        extra = max(0, len(held.block) - len(kind.shape))
        shape = (*(1,) * extra, *kind.shape)
        address, inside = _addressed(held, places, shape)
        array = full(frame.values[value.number], kind)
        array = array.reshape(array.shape[0], *shape)
        try:
            frame.launch.memory.store(address, shape, array, inside, held.root)
        except OutsideError as error:
            raise outside(error, operation, frame) from None

    return step


HANDLERS: Final[Mapping[str, Handler]] = {
    "tt.addptr": _addptr,
    "tt.atomic_cas": _compare_and_swap,
    "tt.atomic_rmw": _atomic,
    "tt.descriptor_gather": _descriptor_load,
    "tt.descriptor_load": _descriptor_load,
    "tt.descriptor_scatter": _descriptor_store,
    "tt.descriptor_store": _descriptor_store,
    "tt.int_to_ptr": _int_to_ptr,
    "tt.load": _load,
    "tt.make_tensor_descriptor": _make_descriptor,
    "tt.ptr_to_int": _ptr_to_int,
    "tt.store": _store,
}
"""Steps of operations on memory."""
