"""Operations that combine the elements of a tile: sums, scans, products, sorts of counts."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from kernbench.ttir.arithmetic import Array, rounded, widened
from kernbench.ttir.compiling import Body, Compiler, Handler
from kernbench.ttir.flow import run_blocks
from kernbench.ttir.frames import Frame, Step
from kernbench.ttir.module import Operation
from kernbench.ttir.products import Product, reducing
from kernbench.ttir.sums import Shared, Value, plain
from kernbench.ttir.tiles import full
from kernbench.ttir.types import Type

_REDUCED: Final[Mapping[str, "np.ufunc"]] = {
    "arith.addf": np.add,
    "arith.addi": np.add,
    "arith.andi": np.bitwise_and,
    "arith.maximumf": np.maximum,
    "arith.maxnumf": np.fmax,
    "arith.maxsi": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.minnumf": np.fmin,
    "arith.minsi": np.minimum,
    "arith.mulf": np.multiply,
    "arith.muli": np.multiply,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
}
"""Regions of one operation that numpy reduces with."""

_ROUNDED: Final = frozenset({"arith.addf", "arith.mulf"})


class Region:
    """What a reduction or a scan combines two elements with, on arrays of elements.

    Each pair of elements runs as a program of its own, so that its conditions may differ.
    """

    def __init__(self, compiler: Compiler, operation: Operation) -> None:
        (region,) = operation.regions
        self._needed: Final = compiler.outside(operation.regions)
        self._bodies: Final[dict[str, Body]] = compiler.bodies(region)
        self._given: Final = [value.number for value in region[0].arguments]
        self._values: Final = compiler.function.values

    def __call__(self, outer: Frame, operands: Sequence[Array]) -> list[Array]:
        """Returns what the region makes of arrays of one shape."""
        shape = np.broadcast_shapes(*(array.shape for array in operands))
        values: list[Any] = [None] * self._values
        for number in self._needed:
            values[number] = outer.values[number]
        count = int(np.prod(shape))
        for number, array in zip(self._given, operands, strict=True):
            values[number] = np.broadcast_to(array, shape).reshape(count)
        frame = Frame(values, np.arange(count), outer.launch)
        found = [plain(held) for held in run_blocks(self._bodies, frame)]  # type: ignore[arg-type]
        return [np.broadcast_to(array, (count,)).reshape(shape) for array in found]


def _simple(operation: Operation) -> str | None:
    """Returns the name of the only operation of a region that combines its two arguments."""
    (region,) = operation.regions
    if len(operation.operands) != 1 or len(region) != 1 or len(region[0].operations) != 2:
        return None
    only = region[0].operations[0]
    if list(only.operands) != list(region[0].arguments):
        return None
    return only.name if only.name in _REDUCED else None


def _reduce(compiler: Compiler, operation: Operation) -> Step:
    axis = int(operation.attributes["axis"]) + 1  # type: ignore[arg-type]
    types = [value.type for value in operation.operands]
    numbers = [value.number for value in operation.operands]
    results = [value.number for value in operation.results]
    simple = _simple(operation)
    if simple is not None and types[0].element != "i1":
        reduced = reducing(_REDUCED[simple], str(types[0].element), exact=simple not in _ROUNDED)

        def simply(frame: Frame) -> None:
            frame.values[results[0]] = reduced(full(frame.values[numbers[0]], types[0]), axis)

        return simply
    region = Region(compiler, operation)

    def step(frame: Frame) -> None:
        arrays = [full(frame.values[n], t) for n, t in zip(numbers, types, strict=True)]
        count = max(array.shape[0] for array in arrays)
        arrays = [np.moveaxis(np.broadcast_to(a, (count, *a.shape[1:])), axis, 0) for a in arrays]
        while len(arrays[0]) > 1:  # halves, as a GPU's shuffles do
            half = len(arrays[0]) // 2
            arrays = region(frame, [*(a[:half] for a in arrays), *(a[half:] for a in arrays)])
        for result, array in zip(results, arrays, strict=True):
            frame.values[result] = array[0]

    return step


def _scan(compiler: Compiler, operation: Operation) -> Step:
    axis = int(operation.attributes["axis"]) + 1  # type: ignore[arg-type]
    backwards = operation.attributes.get("reverse") is True
    types = [value.type for value in operation.operands]
    numbers = [value.number for value in operation.operands]
    results = [value.number for value in operation.results]
    simple = _simple(operation)
    narrow = types[0].is_float and types[0].dtype.itemsize < 4
    if simple is not None and types[0].element != "i1":
        ufunc, element = _REDUCED[simple], str(types[0].element)

        def simply(frame: Frame) -> None:
            array = full(frame.values[numbers[0]], types[0])
            array = np.flip(array, axis) if backwards else array
            array = widened(array) if narrow else array
            found = ufunc.accumulate(array, axis=axis, dtype=array.dtype)
            found = rounded(found, element) if narrow else found
            frame.values[results[0]] = np.flip(found, axis) if backwards else found

        return simply
    region = Region(compiler, operation)

    def step(frame: Frame) -> None:
        arrays = [full(frame.values[n], t) for n, t in zip(numbers, types, strict=True)]
        count = max(array.shape[0] for array in arrays)
        arrays = [np.moveaxis(np.broadcast_to(a, (count, *a.shape[1:])), axis, 0) for a in arrays]
        if backwards:
            arrays = [array[::-1] for array in arrays]
        reach = 1
        while reach < len(arrays[0]):  # distances double, as with a GPU's shuffles
            joined = region(frame, [*(a[:-reach] for a in arrays), *(a[reach:] for a in arrays)])
            arrays = [
                np.concatenate((array[:reach], rest))
                for array, rest in zip(arrays, joined, strict=True)
            ]
            reach *= 2
        for result, array in zip(results, arrays, strict=True):
            frame.values[result] = np.moveaxis(array[::-1] if backwards else array, 0, axis)

    return step


def _dot(compiler: Compiler, operation: Operation) -> Step:
    del compiler
    a, b, c = operation.operands
    result = operation.results[0]
    short = operation.said("inputPrecision") == "tf32"
    product = Product(str(a.type.element), str(result.type.element), short=short)

    def step(frame: Frame) -> None:
        values = frame.values
        held = plain(values[c.number])
        left, right = values[a.number], values[b.number]
        if isinstance(left, Shared) or isinstance(right, Shared):
            tiles = [_tiles(one, of.type, frame.count) for one, of in ((left, a), (right, b))]
            values[result.number] = one_by_one(product, tiles, held, frame.count)
            return
        left, right = full(left, a.type), full(right, b.type)
        values[result.number] = product(left, right, held)

    return step


def one_by_one(
    product: Product, tiles: list[tuple[Array, Array]], held: Array, count: int
) -> Array:
    """Returns the product of each program's tiles, of which those that programs share are few."""
    (left, first), (right, second) = tiles
    left, right = product.prepared(left), product.prepared(right)
    found = np.empty((count, *left.shape[1:-1], right.shape[-1]), held.dtype)
    pairs = zip(first.tolist(), second.tolist(), strict=True)
    if product.whole:
        inner = max(_alike(first), _alike(second))
        rows, columns = _by_runs(left, first, inner), _by_runs(right, second, inner)
        if rows is not None and columns is not None:
            np.matmul(rows, columns, out=found.reshape(-1, inner, *found.shape[1:]))
            return np.add(found, held, out=found)
        for program, (row, column) in enumerate(pairs):
            np.matmul(left[row], right[column], out=found[program])
        return np.add(found, held, out=found)
    added = np.broadcast_to(held, (count, *held.shape[1:]))
    for program, (row, column) in enumerate(pairs):
        found[program] = product.multiplied(left[row], right[column], added[program])
    return found


def _alike(places: Array) -> int:
    """Returns how many programs have the tile of the first one, before one has another."""
    return int(np.argmax(places != places[0])) or len(places)


def _by_runs(tiles: Array, places: Array, inner: int) -> Array | None:
    """Returns tiles by run of so many programs and by place in it; None if these do not say which.

    An axis along which the tile is the same has the extent 1, so that no tile is copied.
    """
    outer, rest = divmod(len(places), inner)
    if rest:
        return None
    for shape in ((outer, 1), (1, inner), (outer, inner)):
        count = shape[0] * shape[1]
        order = np.arange(count).reshape(shape)
        if count <= len(tiles) and (places.reshape(outer, inner) == order).all():
            return tiles[:count].reshape(*shape, *tiles.shape[1:])
    return None


def _tiles(value: Value, of: Type, count: int) -> tuple[Array, Array]:
    """Returns tiles, and which of them each program has."""
    if isinstance(value, Shared):
        return value.tiles, value.places
    array = full(value, of)
    return array, np.arange(count) if len(array) > 1 else np.zeros(count, np.int64)


def _gather(compiler: Compiler, operation: Operation) -> Step:
    del compiler
    axis = int(operation.attributes["axis"]) + 1  # type: ignore[arg-type]
    source, places = operation.operands
    result = operation.results[0].number

    def step(frame: Frame) -> None:
        array = full(frame.values[source.number], source.type)
        where = full(frame.values[places.number], places.type)
        count = max(array.shape[0], where.shape[0])
        array = np.broadcast_to(array, (count, *array.shape[1:]))
        where = np.broadcast_to(where, (count, *where.shape[1:]))
        frame.values[result] = np.take_along_axis(array, where.astype(np.int64), axis)

    return step


def _histogram(compiler: Compiler, operation: Operation) -> Step:
    del compiler
    source, *more = operation.operands
    result = operation.results[0]
    bins = result.type.shape[0]

    def step(frame: Frame) -> None:
        array = full(frame.values[source.number], source.type)
        inside = (array >= 0) & (array < bins)
        if more:
            inside = inside & plain(frame.values[more[0].number])
        count = inside.shape[0]
        places = array.astype(np.int64) + bins * np.arange(count)[:, None]
        found = np.bincount(places[inside], minlength=count * bins)
        frame.values[result.number] = found.reshape(count, bins).astype(result.type.dtype)

    return step


def _map_elementwise(compiler: Compiler, operation: Operation) -> Step:
    pack = int(operation.attributes.get("pack", 1))  # type: ignore[arg-type]
    region = Region(compiler, operation)
    sources, results = operation.operands, operation.results

    def step(frame: Frame) -> None:
        arrays = [full(frame.values[each.number], each.type) for each in sources]
        count = max(array.shape[0] for array in arrays)
        arrays = [np.broadcast_to(a, (count, *a.shape[1:])) for a in arrays]
        shape = arrays[0].shape
        columns = [a.reshape(-1, pack)[:, place] for a in arrays for place in range(pack)]
        found = region(frame, columns)
        for number, result in enumerate(results):
            mine = found[number * pack : (number + 1) * pack]
            frame.values[result.number] = np.stack(mine, axis=-1).reshape(shape)

    return step


HANDLERS: Final[Mapping[str, Handler]] = {
    "tt.dot": _dot,
    "tt.gather": _gather,
    "tt.histogram": _histogram,
    "tt.map_elementwise": _map_elementwise,
    "tt.reduce": _reduce,
    "tt.scan": _scan,
}
"""Steps of operations that combine elements."""
