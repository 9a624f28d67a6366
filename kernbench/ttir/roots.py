"""Tells which argument's memory the pointers of a function are in.

A kernel may move a pointer, choose one of two, or swap two in a loop: a pointer's sources are
followed through all of it until nothing new is found.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from kernbench.ttir.module import Block, Function, Operation, Region, Value, within
from kernbench.ttir.types import Descriptor, Pointer

_ELSEWHERE: Final = -1
"""Stands for memory that no argument tells, such as that of an address which a kernel loads."""


def roots_of(function: Function) -> dict[int, int | None]:
    """Returns the argument whose memory a pointer or descriptor is in, by number of the value.

    None stands for one that may be in the memory of several, or of an unknown one. What a function
    is given that is no kernel is unknown.
    """
    flow = _Flow()
    for place, value in enumerate(function.arguments):
        flow.starts(value, place if function.public else _ELSEWHERE)
    flow.region(function.body)
    return flow.settled()


_LOADS: Final = frozenset(
    {"tt.atomic_cas", "tt.atomic_rmw", "tt.descriptor_gather", "tt.descriptor_load"}
    | {"tt.descriptor_reduce", "tt.load"}
)
_STORES: Final = frozenset(
    {"tt.atomic_cas", "tt.atomic_rmw", "tt.descriptor_reduce", "tt.descriptor_scatter"}
    | {"tt.descriptor_store", "tt.store"}
)


def touched(
    function: Function, roots: Mapping[int, int | None]
) -> tuple[frozenset[int] | None, frozenset[int] | None]:
    """Returns of whose memory a function loads, and in whose it stores, by number of the argument.

    Args:
        roots: What `roots_of` has returned.

    Returns:
        None for all memory: of an address that no argument tells, or by a function that is called.
    """
    found: tuple[set[int | None], set[int | None]] = set(), set()
    for operation in within(function.body):
        called = operation.name == "tt.call"
        for names, places in zip((_LOADS, _STORES), found, strict=True):
            if called:
                places.add(None)
            elif operation.name in names:
                places.add(roots.get(operation.operands[0].number))
    loads, stores = (
        None if None in places else frozenset(place for place in places if place is not None)
        for places in found
    )
    return loads, stores


def _passed(block: Block) -> Sequence[Value]:
    """Returns what a block passes on; nothing if the text leaves out its end."""
    last = block.operations[-1] if block.operations else None
    return last.operands if last and last.name in ("scf.yield", "scf.condition") else ()


class _Flow:
    """Where pointers come from: values, and the values that these may become."""

    def __init__(self) -> None:
        self._into: Final[dict[int, set[int]]] = defaultdict(set)
        self._found: Final[dict[int, set[int]]] = defaultdict(set)

    def starts(self, value: Value, root: int) -> None:
        """Takes note of a value that comes from no other."""
        if isinstance(value.type.element, Pointer | Descriptor):
            self._found[value.number].add(root)

    def pairs(self, sources: Sequence[Value], targets: Sequence[Value]) -> None:
        """Takes note of values that become others, one by one."""
        for source, target in zip(sources, targets, strict=True):
            if isinstance(target.type.element, Pointer | Descriptor):
                self._into[source.number].add(target.number)

    def region(self, region: Region) -> None:
        """Takes note of what the operations of a region do."""
        blocks = {block.label: block for block in region}
        for block in region:
            for operation in block.operations:
                for inner in operation.regions:
                    self.region(inner)
                for successor in operation.successors:
                    self.pairs(successor.operands, blocks[successor.label].arguments)
                self._operation(operation)

    def _operation(self, operation: Operation) -> None:
        results, regions = operation.results, operation.regions
        if operation.name == "scf.for":
            carried, given = regions[0][0].arguments[1:], operation.operands[3:]
            for sources in (given, _passed(regions[0][0])):
                self.pairs(sources, carried)
                self.pairs(sources, results)
        elif operation.name == "scf.while":
            before, after = regions[0][0], regions[1][0]
            passed = _passed(before)[1:]
            self.pairs(operation.operands, before.arguments)
            self.pairs(_passed(after), before.arguments)
            self.pairs(passed, after.arguments)
            self.pairs(passed, results)
        elif operation.name == "scf.if":
            for region in regions if results else ():
                self.pairs(_passed(region[0]), results)
        else:
            self._plain(operation)

    def _plain(self, operation: Operation) -> None:
        pointers = [
            value
            for value in operation.operands
            if isinstance(value.type.element, Pointer | Descriptor)
        ]
        if operation.name in ("tt.load", "tt.call", "tt.descriptor_load") or not pointers:
            for result in operation.results:
                self.starts(result, _ELSEWHERE)
            return
        for pointer in pointers:
            for result in operation.results:
                self.pairs([pointer], [result])

    def settled(self) -> dict[int, int | None]:
        """Returns the only source of each value, or None."""
        changed = list(self._found)
        while changed:
            source = changed.pop()
            for target in self._into[source]:
                if not self._found[source] <= self._found[target]:
                    self._found[target] |= self._found[source]
                    changed.append(target)
        return {
            number: next(iter(roots)) if len(roots) == 1 and _ELSEWHERE not in roots else None
            for number, roots in self._found.items()
        }
