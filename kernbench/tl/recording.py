"""The effect of a launch on bytes: numpy calls, noted once and repeated for each launch."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from kernbench.caches import Table, cached
from kernbench.memory import Array, DType, View
from kernbench.tl.access import Region, Scattered, Unknown, Window, extent, flags, flat
from kernbench.tl.arithmetic import Function
from kernbench.tl.notices import Notice
from kernbench.tl.tile import Tile
from kernbench.tl.types import Scalar, convert
from kernbench.topology import Topology

_Call = Callable[..., Any]

Step = tuple[_Call, tuple[int, ...], int]
"""A function, the registers of its arguments, and the register of its result."""

Spans = Sequence[tuple[int, tuple[Any, ...]]]
"""Activities of the engines of PEs: the index of the PE, and the arguments of `Trace`."""

_MOST_NOTES: Final = 1 << 17
_MOST_BYTES: Final = 1 << 26
"""A launch with more steps or larger offset lists is not recorded, to save memory: it runs anew."""


@dataclass(frozen=True, eq=False)
class Calls:
    """The effect of a launch on the bytes of its arguments: numpy calls in order.

    Attributes:
        loads: Names of the arguments from which the launch loads.
        steps: Calls in order. They go program by program where this changes no result, so that the
            data of one program stays in the cache.
        careful: The calls in simulated order, with copies of loaded elements; for arguments that
            share memory.
        arguments: Name of the argument in each of the first registers.
        constants: Contents of the registers behind the arguments.
        registers: Number of registers.
        writes: For each written argument, its written elements; None for all, gaps included.
    """

    loads: frozenset[str]
    steps: Sequence[Step]
    careful: Sequence[Step]
    arguments: Sequence[str]
    constants: Sequence[Any]
    registers: int
    writes: Mapping[str, Array | None]

    def play(self, views: Mapping[str, View]) -> bool:
        """Makes the calls on the bytes of other tensors of the same shapes and types.

        Args:
            views: Tensors by argument name.

        Returns:
            Whether the calls were made. They are not made if a loaded argument is not written in
            full, since only a run of the programs can name the line that reads unwritten elements.
        """
        for name in self.arguments:
            buffer = views[name].buffer
            if name in self.loads and buffer.unwritten is not None:
                return False
            if name not in self.writes and buffer.data is None:
                return False
        for name, elements in self.writes.items():
            _prepare(views[name], elements)
        registers: list[Any] = [flat(views[name]) for name in self.arguments]
        registers += self.constants
        registers += [None] * (self.registers - len(registers))
        shared = len({views[name].buffer for name in self.arguments}) < len(self.arguments)
        with np.errstate(all="ignore"):
            for function, inputs, output in self.careful if shared else self.steps:
                registers[output] = function(*[registers[index] for index in inputs])
        for name, elements in self.writes.items():
            _mark(views[name], elements)
        return True


def _prepare(view: View, elements: Array | None) -> None:
    buffer, nbytes = view.buffer, view.buffer.allocation.nbytes
    if buffer.data is not None:
        buffer.own()
    elif elements is None and extent(view) * view.dtype.itemsize == nbytes:
        buffer.adopt(np.empty(nbytes, np.uint8))
    else:
        buffer.poison(view.dtype)


def _mark(view: View, elements: Array | None) -> None:
    marks = flags(view)
    if marks is None:
        return
    marks = marks[: extent(view)]
    if elements is not None:
        marks[elements] = False
    elif marks.nbytes == view.buffer.allocation.nbytes:
        view.buffer.unwritten = None
    else:
        marks[...] = False


@dataclass(frozen=True, eq=False)
class Recording:
    """Actions of a launch that do not depend on the contents of its arguments.

    Attributes:
        loads: Names of the arguments from which the launch may load; None if this depends on
            contents, or the launch fails.
        stores: Names of the arguments to which the launch may store; None if this depends on
            contents, or the launch fails.
        duration: Duration in picoseconds; None if it depends on more than the arguments' shapes.
        spans: Activities of the engines of each PE, if they are logged.
        calls: Effect on bytes; None if calls alone cannot repeat it.
        notices: Warnings about the programs, given at each launch.
    """

    loads: frozenset[str] | None = None
    stores: frozenset[str] | None = None
    duration: int | None = None
    spans: Spans = ()
    calls: Calls | None = None
    notices: Sequence[Notice] = ()


@cached("tl.machines")
def recordings_of(_topology: Topology) -> Table[Hashable, Recording]:
    """Returns the recorded launches of a machine; of equal machines, the same object."""
    return Table("tl.recordings")


class _Note(NamedTuple):
    """A step of a program.

    Attributes:
        program: Index of the program on each axis of the grid.
        function: The step; loads give elements in place.
        careful: The step; loads give copies.
        inputs: Names of arguments, numbers of results from 1 up, and numbers of constants from -1
            down.
        output: Number of the result; None for a store.
        window: Key of the elements that a load gives in place; None for other steps.
    """

    program: tuple[int, ...]
    function: _Call
    careful: _Call
    inputs: tuple[int | str, ...]
    output: int | None
    window: Hashable = None


class Recorder:
    """Takes notes while the programs of a launch run without data.

    Args:
        views: Tensors among the arguments, by name; no two the same object.
        calls: Whether to note calls, too.

    Attributes:
        loads: Names of the arguments from which programs loaded.
        stores: Names of the arguments to which programs stored.
    """

    def __init__(self, views: Mapping[str, View], *, calls: bool) -> None:
        self._names: Final = {id(view): name for name, view in views.items()}
        self.loads: Final[set[str]] = set()
        self.stores: Final[set[str]] = set()
        self._written: Final[dict[str, Array]] = {}
        self._stored = 0
        self._seen: set[Hashable] = set()
        self._notes: list[_Note] = []
        self._constants: list[Any] = []
        self._results = 0
        self._nbytes = 0
        self._refused = not calls

    def refuse(self) -> None:
        """Marks the launch as one that calls alone cannot repeat."""
        self._refused = True

    def compute(
        self, program: tuple[int, ...], function: Function, operands: Sequence[Tile | Array]
    ) -> int:
        """Notes a computation, and returns the number of its result.

        Args:
            program: Index of the program on each axis of the grid.
            function: Function of the values of the operands.
            operands: Tiles and arrays.
        """
        self._results += 1
        if not self._refused:
            inputs = tuple([self._reference(each) for each in operands])
            self._note(_Note(program, function, function, inputs, self._results))
        return self._results

    def load(self, program: tuple[int, ...], view: View, region: Region, other: Scalar) -> int:
        """Notes a load, and returns the number of its result.

        Args:
            program: Index of the program on each axis of the grid.
            region: Elements that are loaded.
            other: Value of masked lanes.
        """
        name = self._names[id(view)]
        self._results += 1
        if region.count:
            self.loads.add(name)
        if isinstance(region, Unknown):
            self.refuse()
        if self._refused or isinstance(region, Unknown):
            return self._results
        if isinstance(region, Scattered):
            self._nbytes += region.nbytes
        copy = _loader(region, other)
        if isinstance(region, Window) and region.plain and self._looks(name, region):
            note = _Note(program, region.place, copy, (name,), self._results, region.key)
        else:
            note = _Note(program, copy, copy, (name,), self._results)
        self._note(note)
        return self._results

    def _looks(self, name: str, window: Window) -> bool:
        """Returns whether a product may use a window in place.

        Numpy multiplies a matrix with its own transpose in another order when it recognises the
        two, so such windows are copied.
        """
        self._seen.add((name, window.key))
        return (name, window.transposed_key) not in self._seen

    def store(self, program: tuple[int, ...], view: View, region: Region, tile: Tile) -> None:
        """Notes a store.

        Args:
            program: Index of the program on each axis of the grid.
            region: Elements that are stored to.
            tile: The values.
        """
        name = self._names[id(view)]
        if region.count:
            self.stores.add(name)
        if isinstance(region, Unknown):
            self.refuse()
        if self._refused or isinstance(region, Unknown):
            return
        if isinstance(region, Scattered):
            self._nbytes += region.nbytes
        put = _storer(region, view.dtype)
        self._note(_Note(program, put, put, (name, self._reference(tile)), None))
        if name not in self._written:
            self._written[name] = np.zeros(extent(view), np.bool_)
        region.fill(self._written[name], True)
        self._stored += region.count

    def _reference(self, operand: Tile | Array) -> int:
        value: Any = operand
        if isinstance(operand, Tile):
            if operand.number is not None:
                return operand.number
            value = operand.values
            if value is None:
                self.refuse()
        self._constants.append(value)
        return -len(self._constants)

    def _note(self, note: _Note) -> None:
        if len(self._notes) >= _MOST_NOTES or self._nbytes > _MOST_BYTES:
            self.refuse()
        if self._refused:
            self._notes.clear()
            self._constants.clear()
        else:
            self._notes.append(note)

    def calls(self) -> Calls | None:
        """Returns the noted calls; None if calls alone cannot repeat the launch."""
        if self._refused:
            return None
        writes = {name: None if marks.all() else marks for name, marks in self._written.items()}
        arguments = sorted({n for note in self._notes for n in note.inputs if isinstance(n, str)})
        fixed: dict[int | str, int] = {name: index for index, name in enumerate(arguments)}
        for index in range(len(self._constants)):
            fixed[-1 - index] = len(fixed)
        # The order of programs changes no result if no loaded argument is stored to, and no element
        # is stored to twice.
        free = not self.loads & self._written.keys() and self._stored == sum(
            int(marks.sum()) for marks in self._written.values()
        )
        order = self._notes
        if free:
            order = _deduplicated(sorted(order, key=lambda note: note.program))
        steps, registers = _allocate(order, fixed, careful=not free)
        careful, more = _allocate(self._notes, fixed, careful=True)
        return Calls(
            frozenset(self.loads),
            steps,
            careful,
            arguments,
            self._constants,
            max(registers, more),
            writes,
        )


def _deduplicated(notes: Sequence[_Note]) -> list[_Note]:
    """Drops repeated loads of one window in place."""
    first: dict[Hashable, int] = {}
    same: dict[int | str, int] = {}
    kept = []
    for note in notes:
        if note.window is not None and note.output is not None:
            found = first.setdefault((note.inputs, note.window), note.output)
            if found != note.output:
                same[note.output] = found
                continue
        kept.append(note._replace(inputs=tuple([same.get(each, each) for each in note.inputs])))
    return kept


def _allocate(
    notes: Sequence[_Note], fixed: Mapping[int | str, int], *, careful: bool
) -> tuple[list[Step], int]:
    """Assigns registers to results, preferably registers whose contents are no longer used.

    Returns:
        The steps, and the number of registers.
    """
    last = {
        reference: index
        for index, note in enumerate(notes)
        for reference in note.inputs
        if reference not in fixed
    }
    places = dict(fixed)
    nowhere, registers = len(fixed), len(fixed) + 1
    free: list[int] = []
    steps = []
    for index, note in enumerate(notes):
        where = tuple([places[reference] for reference in note.inputs])
        free += [places[each] for each in dict.fromkeys(note.inputs) if last.get(each) == index]
        target = nowhere
        if note.output in last:
            if free:
                target = free.pop()
            else:
                target, registers = registers, registers + 1
            places[note.output] = target
        steps.append((note.careful if careful else note.function, where, target))
    return steps, registers


def _loader(region: Window | Scattered, other: Scalar) -> Function:
    return lambda elements: region.fetch(elements, other)


def _storer(region: Window | Scattered, dtype: DType) -> _Call:
    return lambda elements, values: region.put(elements, convert(values, dtype))
