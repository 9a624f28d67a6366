"""Operations that make tiles, and change or combine their shapes."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from kernbench.ttir.arithmetic import Array, high_half, rounded
from kernbench.ttir.compiling import Compiler, Handler
from kernbench.ttir.frames import Frame, Step
from kernbench.ttir.module import Operation
from kernbench.ttir.sums import Value, added, multiplied, plain, subtracted
from kernbench.ttir.types import Type

_UNSIGNED: Final = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def full(value: Value, type_: Type) -> Array:
    """Returns a tile with all its elements; the axis of the programs stays as it is."""
    array = plain(value)
    return np.broadcast_to(array, (array.shape[0], *type_.shape))


def constant(text: object, type_: Type) -> Array:
    """Returns the constant that a text of MLIR stands for.

    Args:
        text: A number, a truth value, or `dense < ... >`.
    """
    dtype = type_.dtype
    if not isinstance(text, str):
        return np.full((1,) * (1 + len(type_.shape)), _number(str(text), dtype), dtype)
    inner = text.partition("<")[2].rpartition(">")[0].strip() if text.startswith("dense") else text
    if inner.startswith('"0x'):
        array = np.frombuffer(bytes.fromhex(inner[3:-1]), dtype)
        return array.reshape(1, *type_.shape)
    numbers = re.findall(r"[^\[\],\s]+", inner)
    if "[" in inner:
        array = np.array([_number(number, dtype) for number in numbers], dtype)
        return array.reshape(1, *type_.shape)
    return np.full((1,) * (1 + len(type_.shape)), _number(numbers[0], dtype), dtype)


def _number(text: str, dtype: np.dtype[Any]) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text.startswith("0x"):
        bits = np.array([int(text, 16)], _UNSIGNED[dtype.itemsize])
        return bits.view(dtype)[0]
    if dtype.kind == "i":
        size = dtype.itemsize
        bits = np.array([int(text) & ((1 << 8 * size) - 1)], _UNSIGNED[size])
        return bits.view(dtype)[0]
    return dtype.type(bool(int(text)) if dtype.kind == "b" else float(text))


def _constant(compiler: Compiler, operation: Operation) -> Step:
    del compiler
    result = operation.results[0]
    array = constant(operation.attributes["value"], result.type)
    number = result.number

    def step(frame: Frame) -> None:
        frame.values[number] = array

    return step


def _of_one(operation: Operation, function: Callable[[Value], object]) -> Step:
    source, result = operation.operands[0].number, operation.results[0].number

    def step(frame: Frame) -> None:
        frame.values[result] = function(frame.values[source])

    return step


def _of_two(operation: Operation, function: Callable[[Value, Value], object]) -> Step:
    first, second = (value.number for value in operation.operands[:2])
    result = operation.results[0].number

    def step(frame: Frame) -> None:
        frame.values[result] = function(frame.values[first], frame.values[second])

    return step


def _reshaping(function: Callable[[Array], Array]) -> Callable[[Value], Value]:
    """Returns what changes the shape of each part of a value."""

    def reshape(value: Value) -> Value:
        return function(value) if isinstance(value, np.ndarray) else value.each(function)

    return reshape


def _whole(function: Callable[[Value, Value], Value]) -> Handler:
    def handler(compiler: Compiler, operation: Operation) -> Step | None:
        if operation.results[0].type.element not in ("i32", "i64", "index"):
            return compiler.plain_step(operation)
        return _of_two(operation, function)

    return handler


def _widened_sum(compiler: Compiler, operation: Operation) -> Step | None:
    if operation.operands[0].type.element != "i32":
        return compiler.plain_step(operation)
    dtype = operation.results[0].type.dtype
    return _of_one(operation, _reshaping(lambda array: array.astype(dtype)))


def _program_id(compiler: Compiler, operation: Operation) -> Step:
    del compiler
    axis, result = "xyz".index(operation.words[0]), operation.results[0].number

    def step(frame: Frame) -> None:
        x, y, _ = frame.launch.grid
        programs = frame.programs
        place = (programs % x, programs // x % y, programs // (x * y))[axis].astype(np.int32)
        frame.values[result] = place[:1] if (place == place[0]).all() else place

    return step


def _num_programs(compiler: Compiler, operation: Operation) -> Step:
    del compiler
    axis, result = "xyz".index(operation.words[0]), operation.results[0].number

    def step(frame: Frame) -> None:
        frame.values[result] = np.array([frame.launch.grid[axis]], np.int32)

    return step


def _make_range(compiler: Compiler, operation: Operation) -> Step:
    del compiler
    start, end = operation.attributes["start"], operation.attributes["end"]
    array = np.arange(start, end, dtype=np.int32)[None]  # type: ignore[arg-type]
    number = operation.results[0].number

    def step(frame: Frame) -> None:
        frame.values[number] = array

    return step


def _splat(compiler: Compiler, operation: Operation) -> Step:
    result = operation.results[0]
    del compiler
    axes = (1,) * len(result.type.shape)
    return _of_one(operation, _reshaping(lambda array: array.reshape(array.shape[0], *axes)))


def _broadcast(compiler: Compiler, operation: Operation) -> Step:
    del compiler
    return _of_one(operation, lambda value: value)


def _expand_dims(compiler: Compiler, operation: Operation) -> Step:
    del compiler
    axis = int(operation.attributes["axis"]) + 1  # type: ignore[arg-type]
    return _of_one(operation, _reshaping(lambda array: np.expand_dims(array, axis)))


def _trans(compiler: Compiler, operation: Operation) -> Step:
    del compiler
    order = operation.attributes["order"]
    axes = (0, *(int(axis) + 1 for axis in order))  # type: ignore[union-attr]
    return _of_one(operation, _reshaping(lambda array: array.transpose(axes)))


def _reshape(compiler: Compiler, operation: Operation) -> Step:
    source, result = operation.operands[0].type, operation.results[0]
    del compiler
    shape = result.type.shape

    def function(value: Value) -> Value:
        if isinstance(value, np.ndarray) and value.size == value.shape[0]:
            return value.reshape(value.shape[0], *(1,) * len(shape))
        array = full(value, source)
        return array.reshape(array.shape[0], *shape)

    return _of_one(operation, function)


def _join(compiler: Compiler, operation: Operation) -> Step:
    del compiler
    kind = operation.operands[0].type

    def function(a: Value, b: Value) -> Array:
        return np.stack(np.broadcast_arrays(full(a, kind), full(b, kind)), axis=-1)

    return _of_two(operation, function)


def _split(compiler: Compiler, operation: Operation) -> Step:
    del compiler
    source = operation.operands[0]
    first, second = (result.number for result in operation.results)

    def step(frame: Frame) -> None:
        array = full(frame.values[source.number], source.type)
        frame.values[first], frame.values[second] = array[..., 0], array[..., 1]

    return step


def _cat(compiler: Compiler, operation: Operation) -> Step:
    del compiler
    kind = operation.operands[0].type

    def function(a: Value, b: Value) -> Array:
        return np.concatenate(np.broadcast_arrays(full(a, kind), full(b, kind)), axis=1)

    return _of_two(operation, function)


def _fp_to_fp(compiler: Compiler, operation: Operation) -> Step:
    del compiler
    to, down = str(operation.results[0].type.element), operation.said("rounding") == "rtz"
    return _of_one(operation, lambda value: rounded(plain(value), to, down=down))


def _bitcast(compiler: Compiler, operation: Operation) -> Step:
    del compiler
    dtype = operation.results[0].type.dtype

    def function(value: Value) -> Array:
        array = np.ascontiguousarray(plain(value))
        return array.view(dtype).reshape(array.shape)

    return _of_one(operation, function)


def _clampf(compiler: Compiler, operation: Operation) -> Step:
    del compiler
    numbers = [value.number for value in operation.operands]
    result = operation.results[0].number
    keeps = operation.said("propagateNan") == "all"

    def step(frame: Frame) -> None:
        x, low, high = (plain(frame.values[number]) for number in numbers)
        found = np.minimum(np.maximum(x, low), high) if keeps else np.fmin(np.fmax(x, low), high)
        frame.values[result] = found.astype(x.dtype)

    return step


def zero(compiler: Compiler, operation: Operation) -> Step:
    """Makes the step of a value that is 0, as one is here that nobody may look at."""
    del compiler
    result = operation.results[0]
    array = np.zeros((1,) * (1 + len(result.type.shape)), result.type.dtype)

    def step(frame: Frame) -> None:
        frame.values[result.number] = array

    return step


def _nothing(compiler: Compiler, operation: Operation) -> None:
    """Makes no step: an operation that says something to a compiler, or to a GPU's scheduler."""
    del compiler, operation


HANDLERS: Final[Mapping[str, Handler]] = {
    "arith.addi": _whole(added),
    "arith.constant": _constant,
    "arith.extsi": _widened_sum,
    "arith.muli": _whole(multiplied),
    "arith.subi": _whole(subtracted),
    "gpu.barrier": _nothing,
    "llvm.intr.assume": _nothing,
    "nvvm.griddepcontrol.launch.dependents": _nothing,
    "nvvm.griddepcontrol.wait": _nothing,
    "tt.bitcast": _bitcast,
    "tt.broadcast": _broadcast,
    "tt.cat": _cat,
    "tt.clampf": _clampf,
    "tt.expand_dims": _expand_dims,
    "tt.fp_to_fp": _fp_to_fp,
    "tt.get_num_programs": _num_programs,
    "tt.grid_dependency_launch_dependents": _nothing,
    "tt.grid_dependency_wait": _nothing,
    "tt.get_program_id": _program_id,
    "tt.join": _join,
    "tt.make_range": _make_range,
    "tt.mulhiui": lambda _, operation: _of_two(
        operation, lambda a, b: high_half(plain(a), plain(b))
    ),
    "tt.precise_divf": lambda _, operation: _of_two(operation, lambda a, b: plain(a) / plain(b)),
    "tt.precise_sqrt": lambda _, operation: _of_one(operation, lambda a: np.sqrt(plain(a))),
    "tt.reshape": _reshape,
    "tt.splat": _splat,
    "tt.split": _split,
    "tt.trans": _trans,
    "tt.unsplat": _reshape,
    "ttg.barrier": _nothing,
    "ub.poison": zero,
    "ttg.local_barrier": _nothing,
}
"""Steps of operations on shapes."""
