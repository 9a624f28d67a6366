"""Makes steps of operations: what runs a function for all programs of a frame."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from kernbench.ttir.arithmetic import elementwise, not_known
from kernbench.ttir.frames import Frame, Step
from kernbench.ttir.module import Block, Function, Module, Operation, Region, Value, within
from kernbench.ttir.roots import roots_of
from kernbench.ttir.sums import plain
from kernbench.ttir.types import Descriptor

ENDS: Final = frozenset(
    {
        "cf.br",
        "cf.cond_br",
        "scf.condition",
        "scf.yield",
        "tt.map_elementwise.return",
        "tt.reduce.return",
        "tt.return",
        "tt.scan.return",
    }
)
"""Operations that end a block."""


class Body:
    """A block, ready to run.

    Attributes:
        steps: Its operations but for the last.
        end: The last one; None if the block has none.
        arguments: Numbers of what it is given.
        given: Numbers of the operands of `end`.
    """

    __slots__ = ("arguments", "end", "given", "steps")

    def __init__(
        self, steps: Sequence[Step], end: Operation | None, arguments: Sequence[Value]
    ) -> None:
        self.steps: Final = steps
        self.end: Final = end
        self.arguments: Final = [value.number for value in arguments]
        self.given: Final = [value.number for value in end.operands] if end is not None else []


LOOPS: Final = frozenset(("scf.for", "scf.while"))

_PLAIN: Final = frozenset(
    {"arith.addi", "arith.constant", "arith.extsi", "arith.muli", "arith.subi"}
    | {"tt.addptr", "tt.broadcast", "tt.expand_dims", "tt.make_range", "tt.splat", "tt.trans"}
)
"""Operations of which addresses are made, and that no program can do wrong."""


class Compiler:
    """Makes the steps of one function.

    Args:
        module: The module that it is of.
        function: What to make steps of.
        handlers: What makes a step of an operation, by its name.
        watch: Makes of a step one that also looks at what it uses; None for as they are.

    Attributes:
        module: See above, as for `function`.
        roots: By number of a pointer or descriptor: the argument whose memory it is in; None if
            that is not known before it runs.
        used: Numbers of the values that some operation takes.
        largest: Elements of its largest tile.
        loops: Whether it has a loop.
        handlers: See above, as for `watch`.
        waits: Whether a program may wait for what another one writes.
    """

    def __init__(
        self,
        module: Module,
        function: Function,
        handlers: "Mapping[str, Handler]",
        watch: "Watch | None" = None,
    ) -> None:
        self.module: Final = module
        self.function: Final = function
        self.handlers: Final = handlers
        self.watch: Final = watch
        self.roots: Final = roots_of(function)
        self.used: Final = used_in(function.body)
        self.largest = 1
        self.loops = False
        self.waits = False
        self.blocks: Final = self.bodies(function.body)

    def bodies(self, region: Region) -> dict[str, Body]:
        """Returns the blocks of a region by label, ready to run."""
        return {block.label: self.body(block) for block in region}

    def turn(self, block: Block) -> tuple[Body, list[int], Body]:
        """Returns the body of a loop in two parts: what each turn does alike, and what is left.

        Triton's own IR has in a loop much that does not depend on the turn: half of the steps to
        the addresses of a product's tiles.

        Returns:
            The first part, the numbers of the values that it makes, and the second part.
        """
        vary = {value.number for value in block.arguments}
        alike, left = [], []
        for operation in block.operations:
            if operation.name in _PLAIN and vary.isdisjoint(v.number for v in operation.operands):
                alike.append(operation)
            else:
                left.append(operation)
                vary.update(value.number for value in operation.results)
        made = [value.number for operation in alike for value in operation.results]
        before = self.body(Block(block.label, [], alike))
        return before, made, self.body(Block(block.label, block.arguments, left))

    def body(self, block: Block) -> Body:
        """Returns a block, ready to run."""
        steps: list[Step] = []
        end = None
        for operation in block.operations:
            if operation.name in ENDS:
                end = operation
                if self.watch is not None and len(operation.operands):
                    steps.append(self.watch(self, operation, _nothing))
                break
            step = self._step(operation)
            if step is not None:
                steps.append(step if self.watch is None else self.watch(self, operation, step))
        return Body(steps, end, block.arguments)

    def _step(self, operation: Operation) -> Step | None:
        for result in operation.results:
            if not isinstance(result.type.element, Descriptor):
                self.largest = max(self.largest, result.type.numel)
        self.loops |= operation.name in LOOPS
        handler = self.handlers.get(operation.name)
        return self.plain_step(operation) if handler is None else handler(self, operation)

    def plain_step(self, operation: Operation) -> Step:
        """Returns the step of an operation that computes each element alone.

        Raises:
            UnsupportedError: If it is not known.
        """
        function = elementwise(operation)
        if function is None:
            raise not_known(operation)
        return _elementwise(function, operation)

    def root(self, value: Value) -> int | None:
        """Returns the argument whose memory a pointer is in; None if it is not known."""
        return self.roots.get(value.number)

    def outside(self, regions: Iterable[Region]) -> list[int]:
        """Returns the numbers of the values that regions use and do not define."""
        used: set[int] = set()
        for region in regions:
            used |= used_in(region)
            used -= _defined_in(region)
        return sorted(used)


def _nothing(frame: Frame) -> None:
    del frame


Watch = Callable[[Compiler, Operation, Step], Step]
"""Makes a step of the step of an operation; of one that ends a block, too, whose step is empty."""

Handler = Callable[[Compiler, Operation], Step | None]
"""Makes a step of an operation; None if there is nothing to do."""


def used_in(region: Region) -> set[int]:
    """Returns the numbers of the values that the operations of a region take."""
    used: set[int] = set()
    for operation in within(region):
        used.update(value.number for value in operation.operands)
        for successor in operation.successors:
            used.update(value.number for value in successor.operands)
    return used


def _defined_in(region: Region) -> set[int]:
    defined: set[int] = set()
    for block in region:
        defined.update(value.number for value in block.arguments)
        for operation in block.operations:
            defined.update(value.number for value in operation.results)
            for inner in operation.regions:
                defined |= _defined_in(inner)
    return defined


def _elementwise(function: Callable[..., object], operation: Operation) -> Step:
    """Returns the step of an operation that looks at each element alone."""
    numbers = [value.number for value in operation.operands]
    result = operation.results[0].number
    if len(numbers) == 1:
        (only,) = numbers

        def of_one(frame: Frame) -> None:
            values = frame.values
            values[result] = function(plain(values[only]))

        return of_one
    if len(numbers) == 2:
        first, second = numbers

        def of_two(frame: Frame) -> None:
            values = frame.values
            values[result] = function(plain(values[first]), plain(values[second]))

        return of_two

    def of_more(frame: Frame) -> None:
        values = frame.values
        values[result] = function(*[plain(values[number]) for number in numbers])

    return of_more
