"""Operations on blocks of tensors: what is outside of the tensor reads as 0 and is not written."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from kernbench.ttir.accesses import outside
from kernbench.ttir.arithmetic import Array
from kernbench.ttir.atomics import changed, combination
from kernbench.ttir.compiling import Compiler, Handler
from kernbench.ttir.frames import BlockOf, Frame, ProgramError, Step
from kernbench.ttir.marked import Marked, unwritten
from kernbench.ttir.marks import tell
from kernbench.ttir.memory import OutsideError
from kernbench.ttir.module import Operation
from kernbench.ttir.module import Value as Named
from kernbench.ttir.races import Access
from kernbench.ttir.sums import Value, plain, summed
from kernbench.ttir.tiles import full
from kernbench.ttir.types import Descriptor, Type

_GRAIN: Final = 16
"""Bytes of which addresses and strides of a tensor with a descriptor are multiples."""

_NAN: Final = 2
"""What `padding` says if elements outside are NaN; 1 is that they are 0."""


def _make(compiler: Compiler, operation: Operation) -> Step:
    result = operation.results[0]
    block = _block_of(result.type)
    rank, size = len(block.shape), block.dtype.itemsize
    base, *numbers = (value.number for value in operation.operands)
    padding = "nan" if operation.attributes.get("padding") == _NAN else "zero"
    root = compiler.root(result)

    def step(frame: Frame) -> None:
        values = frame.values
        held = [plain(values[number]).astype(np.int64) for number in numbers]
        _fits(operation, frame, plain(values[base]), held[:rank], held[rank:], size)
        frame.values[result.number] = BlockOf(
            plain(values[base]),
            tuple(held[:rank]),
            tuple(stride * size for stride in held[rank:]),
            block.shape,
            padding,
            root,
        )

    return step


def _fits(
    operation: Operation,
    frame: Frame,
    base: Array,
    extents: Sequence[Array],
    strides: Sequence[Array],
    size: int,
) -> None:
    """Checks what GPUs ask of a descriptor (CUDA driver API, `cuTensorMapEncodeTiled`).

    Args:
        base: Address of the first element, `[programs or 1]`, as for extents and strides.
        strides: In elements.
        size: Bytes of an element.

    Raises:
        ProgramError: If GPUs take no such address, extent or stride.
    """
    asked = [
        (base % _GRAIN == 0, f"begins at an address that is no multiple of {_GRAIN}"),
        *((extent > 0, f"has an extent of {int(extent.min())}") for extent in extents),
        *(
            (stride * size % _GRAIN == 0, f"has a stride that is no multiple of {_GRAIN} bytes")
            for stride in strides[:-1]
        ),
        (strides[-1] == 1, "has elements along its last axis that are no neighbours"),
    ]
    for held, message in asked:
        if not held.all():
            program = int(frame.programs[int(np.argmin(held)) if len(held) > 1 else 0])
            raise ProgramError("descriptor", operation, message, program, ())


def _descriptor_of(type_: Type) -> Descriptor:
    element = type_.element
    if not isinstance(element, Descriptor):
        raise TypeError(f"{type_.element} is no descriptor")
    return element


def _block_of(type_: Type) -> Type:
    return _descriptor_of(type_).block


def _addressed(
    held: BlockOf, offsets: Sequence[Array], shape: tuple[int, ...]
) -> tuple[Value, Array | None]:
    """Returns the addresses of a block's elements, and which of them are inside of the tensor.

    Args:
        offsets: Where the block begins along each axis, or, as a tile, the place of each row.
        shape: Shape of the block.
    """
    rank = len(shape)
    ones = (-1, *(1,) * rank)
    parts: list[Array] = [held.base.reshape(ones)]
    inside: Array | None = None
    for axis, offset in enumerate(offsets):
        place = offset.astype(np.int64)
        if place.ndim == 1:
            place = place[:, None] + np.arange(shape[axis], dtype=np.int64)
        place = np.broadcast_to(place, (place.shape[0], shape[axis]))
        place = place.reshape(-1, *(1,) * axis, shape[axis], *(1,) * (rank - axis - 1))
        parts.append(place * held.strides[axis].reshape(ones))
        within = (place >= 0) & (place < held.shape[axis].reshape(ones))
        if not within.all():
            inside = within if inside is None else inside & within
    return summed(parts), inside


def _places(frame: Frame, offsets: Sequence[Named]) -> list[Array]:
    return [plain(frame.values[each.number]) for each in offsets]


def _load(compiler: Compiler, operation: Operation) -> Step:
    del compiler
    descriptor, *offsets = operation.operands
    result = operation.results[0]
    kind = result.type
    # Rows that are gathered; else a block, whose first axes of extent 1 the result may lack.
    shape = (
        kind.shape if operation.name == "tt.descriptor_gather" else _block_of(descriptor.type).shape
    )

    def step(frame: Frame) -> None:
        held: BlockOf = frame.values[descriptor.number]
        address, inside = _addressed(held, _places(frame, offsets), shape)
        other = None
        if held.padding == "nan":
            other = np.full((1,) * (1 + len(shape)), np.nan).astype(kind.dtype)
        try:
            by = Access(operation, frame.programs)
            found = plain(
                frame.launch.memory.load(address, shape, kind.dtype, inside, other, held.root, by)
            )
        except OutsideError as error:
            raise outside(error, operation, frame) from None
        memory = frame.launch.memory
        marks = unwritten(memory, by, address, shape, kind.dtype, inside, held.root)
        lacking = len(shape) - len(kind.shape)

        def without(array: Array) -> Array:
            return array.reshape(array.shape[0], *array.shape[1 + lacking :])

        frame.values[result.number] = (
            Marked(found, marks).marked(without) if marks else without(found)
        )

    return step


def _store(compiler: Compiler, operation: Operation) -> Step:
    del compiler
    descriptor, *offsets, value = operation.operands
    kind, combine = value.type, None
    if operation.name == "tt.descriptor_reduce":
        smaller = operation.words[0] in ("max", "min") and _descriptor_of(descriptor.type).unsigned
        combine = combination(operation, "u" * smaller + operation.words[0], kind)
    scattered = operation.name == "tt.descriptor_scatter"
    shape = kind.shape if scattered else _block_of(descriptor.type).shape

    def step(frame: Frame) -> None:
        held: BlockOf = frame.values[descriptor.number]
        address, inside = _addressed(held, _places(frame, offsets), shape)
        array = full(frame.values[value.number], kind)
        array = array.reshape(array.shape[0], *shape)
        if type(frame.values[value.number]) is Marked:
            marked = frame.values[value.number].marked(
                lambda part: full(part, kind).reshape(-1, *shape)
            )
            tell(operation, frame, marked, inside)
        memory = frame.launch.memory
        try:
            if combine is None:
                if inside is None and address.shape[0] == 1 and memory.races is None:
                    array = array[-1:]  # the last program's stays
                by = Access(operation, frame.programs)
                memory.store(address, shape, array, inside, held.root, by)
                return
            joint = (frame.count, *shape)
            changed(
                memory,
                np.broadcast_to(plain(address), joint),
                [np.broadcast_to(array, joint)],
                None if inside is None else np.broadcast_to(inside, joint),
                held.root,
                combine,
                wanted=False,
            )
        except OutsideError as error:
            raise outside(error, operation, frame) from None

    return step


HANDLERS: Final[Mapping[str, Handler]] = {
    "tt.descriptor_gather": _load,
    "tt.descriptor_load": _load,
    "tt.descriptor_reduce": _store,
    "tt.descriptor_scatter": _store,
    "tt.descriptor_store": _store,
    "tt.make_tensor_descriptor": _make,
}
"""Steps of operations on descriptors."""
