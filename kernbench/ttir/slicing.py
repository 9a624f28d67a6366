"""Cuts a function down to what some of its values depend on, and to its branches and loops."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from kernbench.ttir.module import Block, Function, Operation, Region, Value, within

Opening = Callable[[Block], Operation | None]
"""What a block of a slice begins with, if anything."""

Mark = Callable[[Operation], Operation | None]
"""What stands in a slice for an operation whose result nobody needs, if anything."""

_ENDS: Final = frozenset({"scf.yield", "scf.condition", "tt.return", "cf.br", "cf.cond_br"})
_LOOPS: Final = frozenset({"scf.for", "scf.while"})


class Needs:
    """Which values of a function others depend on.

    Args:
        function: Of which they are.
        steers: Which operands of a call choose a way in what is called.
        returned: Whether what it returns is wanted.

    Attributes:
        operations: All of the function.
        control: Numbers of the values that choose a way, and of all that they depend on.
    """

    def __init__(
        self,
        function: Function,
        steers: Callable[[Operation], Iterable[Value]],
        *,
        returned: bool,
    ) -> None:
        self._steers: Final = steers
        self.operations: Final = list(within(function.body))
        self._made: Final[dict[int, Operation]] = {}
        self._passed: Final[dict[int, list[Value]]] = {}
        self._region(function.body)
        self.control: Final = self.of([*self._steering(function.body, returned=returned)])

    def of(self, values: Iterable[Value]) -> set[int]:
        """Returns the numbers of values, and of all that they depend on."""
        found: set[int] = set()
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            if value.number in found:
                continue
            found.add(value.number)
            waiting += self._passed.get(value.number, ())
            operation = self._made.get(value.number)
            if operation is None or operation.name in _LOOPS or operation.name == "scf.if":
                continue
            waiting += operation.operands
            for inner in operation.regions:
                for each in within(inner):
                    waiting += each.operands
        return found

    def makers(self, numbers: Iterable[int]) -> Iterable[Operation]:
        """Returns the operations that make values."""
        return (self._made[number] for number in numbers if number in self._made)

    def _steering(self, region: Region, *, returned: bool) -> Iterable[Value]:
        """Yields the values that choose a way, and what a function returns if that is wanted."""
        for operation in within(region):
            if operation.name == "scf.for":
                yield from operation.operands[:3]
            elif operation.name in ("scf.if", "scf.condition", "cf.cond_br"):
                yield operation.operands[0]
            elif operation.name == "tt.return" and returned:
                yield from operation.operands
            elif operation.name == "tt.call":
                yield from self._steers(operation)

    def _pairs(self, sources: Sequence[Value], targets: Sequence[Value]) -> None:
        for source, target in zip(sources, targets, strict=True):
            self._passed.setdefault(target.number, []).append(source)

    def _region(self, region: Region) -> None:
        blocks = {block.label: block for block in region}
        for block in region:
            for operation in block.operations:
                for result in operation.results:
                    self._made[result.number] = operation
                for inner in operation.regions:
                    self._region(inner)
                for successor in operation.successors:
                    self._pairs(successor.operands, blocks[successor.label].arguments)
                self._carried(operation)

    def _carried(self, operation: Operation) -> None:
        results, regions = operation.results, operation.regions
        if operation.name == "scf.for":
            carried = regions[0][0].arguments[1:]
            for sources in (operation.operands[3:], passed(regions[0][0])):
                self._pairs(sources, carried)
                self._pairs(sources, results)
        elif operation.name == "scf.while":
            before, after = regions[0][0], regions[1][0]
            self._pairs(operation.operands, before.arguments)
            self._pairs(passed(after), before.arguments)
            self._pairs(passed(before)[1:], after.arguments)
            self._pairs(passed(before)[1:], results)
        elif operation.name == "scf.if":
            for region in regions if results else ():
                self._pairs(passed(region[0]), results)


def passed(block: Block) -> Sequence[Value]:
    """Returns what a block passes on; nothing if the text leaves out its end."""
    last = block.operations[-1] if block.operations else None
    return last.operands if last and last.name in ("scf.yield", "scf.condition") else ()


def sliced(function: Function, needed: set[int], opening: Opening, mark: Mark) -> Function:
    """Returns a function with the operations alone whose results are needed, and all its ways.

    Args:
        needed: Numbers of values, with all that they depend on, the conditions of ways among them.
    """
    return replace(function, body=_Slicer(needed, opening, mark).region(function.body))


def _kept(values: Sequence[Value], needed: Collection[int]) -> list[Value]:
    return [value for value in values if value.number in needed]


def _where(values: Sequence[Value], like: Sequence[Value], needed: Collection[int]) -> list[Value]:
    """Returns the values that become needed ones."""
    return [value for value, other in zip(values, like, strict=True) if other.number in needed]


class _Slicer:
    def __init__(self, needed: set[int], opening: Opening, mark: Mark) -> None:
        self._needed: Final = set(needed)
        self._opening, self._mark = opening, mark

    def region(self, region: Region, into: Sequence[Value] = ()) -> Region:
        """Returns a region of the slice.

        Args:
            into: What the values become that it passes on.
        """
        arguments = {block.label: block.arguments for block in region}
        found = []
        for block in region:
            opened = self._opening(block)
            operations = [] if opened is None else [opened]
            for operation in block.operations:
                operations += self._operation(operation, arguments, into)
            found.append(Block(block.label, _kept(block.arguments, self._needed), operations))
        return found

    def _operation(
        self,
        operation: Operation,
        arguments: Mapping[str, Sequence[Value]],
        into: Sequence[Value],
    ) -> Iterator[Operation]:
        name, results, regions = operation.name, operation.results, operation.regions
        if name in _ENDS:
            yield self._end(operation, arguments, into)
        elif name == "scf.for":
            counter, *carried = regions[0][0].arguments
            self._both(carried, results)
            inner = self.region(regions[0], carried)
            inner[0].arguments = [counter, *_kept(carried, self._needed)]
            operands = [
                *operation.operands[:3],
                *_where(operation.operands[3:], carried, self._needed),
            ]
            yield self._with(operation, operands, [inner])
        elif name == "scf.while":
            before, after = regions[0][0].arguments, regions[1][0].arguments
            self._both(after, results)
            operands = _where(operation.operands, before, self._needed)
            inner_regions = [self.region(regions[0], after), self.region(regions[1], before)]
            yield self._with(operation, operands, inner_regions)
        elif name == "scf.if":
            inner_regions = [self.region(region, results) for region in regions]
            yield self._with(operation, operation.operands, inner_regions)
        elif name == "tt.call" or any(each.number in self._needed for each in results):
            yield operation
        else:
            mark = self._mark(operation)
            if mark is not None:
                yield mark

    def _both(self, carried: Sequence[Value], results: Sequence[Value]) -> None:
        """Needs what a loop carries wherever it needs its result, and the other way round."""
        for pair in zip(carried, results, strict=True):
            if any(each.number in self._needed for each in pair):
                self._needed.update(each.number for each in pair)

    def _with(
        self, operation: Operation, operands: Sequence[Value], regions: Sequence[Region]
    ) -> Operation:
        results = _kept(operation.results, self._needed)
        return replace(operation, operands=operands, results=results, regions=regions)

    def _end(
        self,
        operation: Operation,
        arguments: Mapping[str, Sequence[Value]],
        into: Sequence[Value],
    ) -> Operation:
        operands, needed = operation.operands, self._needed
        if operation.name == "scf.yield":
            operands = _where(operands, into, needed)
        elif operation.name == "scf.condition":
            operands = [operands[0], *_where(operands[1:], into, needed)]
        successors = [
            replace(each, operands=_where(each.operands, arguments[each.label], needed))
            for each in operation.successors
        ]
        return replace(operation, operands=operands, successors=successors)
