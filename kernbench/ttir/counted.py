"""A kernel cut down to its ways: which of its blocks programs run, and how often."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from kernbench.errors import UnsupportedError
from kernbench.ttir import flow
from kernbench.ttir.arithmetic import Array
from kernbench.ttir.compiling import LOOPS, Compiler, Handler, used_in
from kernbench.ttir.executing import HANDLERS
from kernbench.ttir.flow import called, run_blocks, run_body
from kernbench.ttir.frames import Frame, Held, Launch, Patience, Step
from kernbench.ttir.memory import Memory
from kernbench.ttir.module import Block, Function, Module, Operation, Region, Value, within
from kernbench.ttir.roots import roots_of
from kernbench.ttir.slicing import Needs, sliced
from kernbench.ttir.tiles import zero
from kernbench.ttir.types import Type

_ENTER: Final = "count.enter"
LOADS: Final = frozenset({"tt.load", "tt.descriptor_load", "tt.descriptor_gather"})
STORES: Final = frozenset({"tt.store", "tt.descriptor_store", "tt.descriptor_scatter"})
ATOMICS: Final = frozenset({"tt.atomic_rmw", "tt.atomic_cas", "tt.descriptor_reduce"})
DOTS: Final = frozenset({"tt.dot", "tt.dot_scaled"})
MASKED: Final = {"tt.load": 1, "tt.store": 2, "tt.atomic_rmw": 2}
"""Place of the mask among the operands, if there is one."""

IN_MEMORY: Final = LOADS | ATOMICS | {"tt.call"}
"""What makes a mask depend on numbers in memory: such a mask counts as if all its lanes were on."""

_FREE: Final = frozenset(
    {"tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "tt.bitcast"}
    | {"scf.for", "scf.if", "scf.while", "tt.call", "arith.select", "tt.unsplat"}
)
"""Operations that make floats of which no instruction is counted."""


def moved(operation: Operation) -> Type:
    """Returns the type of what an access moves."""
    if operation.name in LOADS:
        return operation.results[0].type
    if operation.name in ATOMICS and operation.results:
        return operation.results[0].type
    place = 1 if operation.name == "tt.store" else -1
    return operation.operands[place].type


class Counts(Launch):
    """A launch that is counted.

    Attributes:
        known: Whether there are numbers in memory.
        programs: Numbers of the programs that are counted.
        most: How many these are.
        weight: How often the operations under way are done: by all programs, or by each.
        often: How often all programs have been in a block, and how often each has beyond that.
        seen: Two numbers that are added up, by identity of an operation: lanes of a mask that are
            on, and all of them; or bytes that are fetched for an access, and those asked for.
        asked: Addresses of atomic operations, `[programs, requests, lanes]`, by identity of the
            operation; -1 of a lane that is off.
    """

    def __init__(
        self,
        grid: tuple[int, int, int],
        memory: Memory | None,
        programs: Array,
        blocks: int,
        patience: Patience | None,
    ) -> None:
        given = Memory({}) if memory is None else memory
        super().__init__(grid, given, lambda _: None, patience=patience)
        self.known: Final = memory is not None
        self.programs: Final = programs
        self.most: Final = len(programs)
        self.weight: int | Array = 1
        self.often: Final[list[tuple[int, Array | None]]] = [(0, None)] * blocks
        self.seen: Final[dict[int, list[int]]] = {}
        self.asked: Final[dict[int, list[Array]]] = {}

    def places(self, frame: Frame) -> Any:
        """Returns the places of a frame's programs among those that are counted."""
        if frame.count == self.most:
            return slice(None)
        return np.searchsorted(self.programs, frame.programs)

    def see(self, site: int, *numbers: int) -> None:
        """Adds numbers to those of an operation."""
        before = self.seen.setdefault(site, [0] * len(numbers))
        for place, more in enumerate(numbers):
            before[place] += more

    def ask(self, site: int, addresses: Array) -> None:
        """Adds addresses of programs to those of an operation."""
        self.asked.setdefault(site, []).append(addresses)

    def enter(self, block: int, frame: Frame) -> None:
        """Takes note of programs that are in a block."""
        all_, each = self.often[block]
        weight = self.weight
        if frame.count == self.most and isinstance(weight, int):
            self.often[block] = all_ + weight, each
            return
        each = np.zeros(self.most, np.int64) if each is None else each
        places = self.places(frame)
        each[places] += weight if isinstance(weight, int) else weight[places]
        self.often[block] = all_, each


class CountedBlock(NamedTuple):
    """A block of a kernel.

    Attributes:
        number: Its place among all.
        loop: Whether it is the body of a loop.
        innermost: Whether that is an innermost one.
        waits: Whether a turn of it waits for what it loads, or an atomic operation returns.
        step: What a turn adds to the loop's counter; 0 if that is not known.
        inside: Whether it is in an innermost loop.
        operations: What is counted in it, with the argument whose memory it is in.
    """

    number: int
    loop: bool
    innermost: bool
    waits: bool
    step: int
    inside: bool
    operations: Sequence[tuple[Operation, int | None]]


class Slice:
    """A kernel cut down to what is counted.

    Args:
        module: The kernel.

    Attributes:
        blocks: Its blocks, those of called functions among them.
        marked: Whether it has operations at which something is looked at.
        loads: Whether it loads numbers.
        largest: Elements of the largest tile.
    """

    HANDLERS: Mapping[str, Handler] = {}
    """Steps of operations beside those of every slice."""

    def __init__(self, module: Module) -> None:
        self._module: Final = module
        self._needs: Final[dict[tuple[str, bool], Needs]] = {}
        self.blocks: Final[list[CountedBlock]] = []
        self.marked = self.loads = False
        handlers: dict[str, Handler] = {
            **HANDLERS,
            "scf.for": _for,
            "scf.while": _while,
            "tt.call": self._call,
            "tt.load": self._load,
            _ENTER: _enter,
            **dict.fromkeys(ATOMICS, zero),  # as a free lock has it
            **self.HANDLERS,
        }
        self._handlers: Final[Mapping[str, Handler]] = handlers
        self._compiled: Final = self._sliced(module.kernel, returned=False)
        self.largest: Final = max(self._compiled.largest, 1)

    def _of(self, function: Function, *, returned: bool) -> Needs:
        key = function.name, returned
        if key not in self._needs:
            self._needs[key] = Needs(function, self._steers, returned=returned)
        return self._needs[key]

    def _steers(self, operation: Operation) -> Iterator[Value]:
        callee = self._module.functions[called(operation)]
        control = self._of(callee, returned=False).control
        for argument, operand in zip(callee.arguments, operation.operands, strict=True):
            if argument.number in control:
                yield operand

    def _sliced(self, function: Function, *, returned: bool) -> Compiler:
        needs = self._of(function, returned=returned)
        needed = set(needs.control)
        marks = self._marks(needs, needed) if function is self._module.kernel else {}
        self.marked |= bool(marks)
        numbers = self._numbered(function)

        def opening(block: Block) -> Operation | None:
            number = numbers.get(id(block))
            return None if number is None else Operation(_ENTER, attributes={"block": number})

        def mark(operation: Operation) -> Operation | None:
            return marks.get(id(operation))

        return Compiler(self._module, sliced(function, needed, opening, mark), self._handlers)

    def _marks(self, needs: Needs, needed: set[int]) -> dict[int, Operation]:
        """Returns what stands for operations of the kernel, by their identity.

        Args:
            needs: What values depend on.
            needed: Is added to: what these operations need.
        """
        del needs, needed
        return {}

    def _numbered(self, function: Function) -> dict[int, int]:
        """Takes note of the blocks of a function, and returns their numbers by identity."""
        roots = roots_of(function)
        numbers: dict[int, int] = {}
        steps = {
            each.results[0].number: each.attributes["value"]
            for each in within(function.body)
            if each.name == "arith.constant"
        }

        def region(
            blocks: Region, *, inside: bool, of: Operation | None = None, innermost: bool = False
        ) -> None:
            waits = step = 0
            if of is not None:
                waits = any(map(_is_waited_for, _beneath(blocks)))
                told = str(steps.get(of.operands[2].number)) if of.name == "scf.for" else ""
                step = int(told) if told.isdecimal() else 0
            for block in blocks:
                operations = [
                    (operation, roots.get(operation.operands[0].number))
                    for operation in block.operations
                    if _is_counted(operation)
                ]
                number = numbers[id(block)] = len(self.blocks)
                looped = of is not None, innermost, bool(waits), step
                self.blocks.append(CountedBlock(number, *looped, inside, operations))
                for operation in block.operations:
                    if operation.name in LOOPS:
                        deep = not any(each.name in LOOPS for each in _inner(operation))
                        body = operation.regions[-1]
                        for each in operation.regions[:-1]:
                            region(each, inside=deep)
                        region(body, inside=deep, of=operation, innermost=deep)
                    elif operation.name == "scf.if":
                        for each in operation.regions:
                            region(each, inside=inside)

        region(function.body, inside=False)
        return numbers

    def _call(self, compiler: Compiler, operation: Operation) -> Step:
        callee = self._module.functions[called(operation)]
        returned = any(result.number in compiler.used for result in operation.results)
        inner = self._sliced(callee, returned=returned)
        compiler.largest = max(compiler.largest, inner.largest)
        pairs = [
            (argument.number, operand.number)
            for argument, operand in zip(callee.arguments, operation.operands, strict=True)
        ]
        results = [result.number for result in operation.results] if returned else []

        def step(frame: Frame) -> None:
            values: list[Any] = [None] * callee.values
            for argument, operand in pairs:
                values[argument] = frame.values[operand]
            found = run_blocks(inner.blocks, Frame(values, frame.programs, frame.launch))
            for result, held in zip(results, found, strict=bool(results)):
                frame.values[result] = held

        return step

    def _load(self, compiler: Compiler, operation: Operation) -> Step:
        self.loads = True
        step = HANDLERS["tt.load"](compiler, operation)
        names = " of ".join(map(str, operation.sites[:1])) or compiler.function.name

        def checked(frame: Frame) -> None:
            if not counts(frame).known:
                raise UnsupportedError(
                    f"kernel {compiler.module.kernel.name}: how long it takes depends on numbers "
                    "that it loads, and there are none",
                    [f"loaded at {names}"],
                    hint="run with numbers: --data on, or data=True",
                )
            step(frame)  # type: ignore[misc]

        return checked

    def run(
        self,
        programs: Array,
        grid: tuple[int, int, int],
        arguments: Sequence[Held],
        memory: Memory | None,
        patience: Patience | None,
    ) -> Counts:
        """Returns a launch that has been counted."""
        launch = Counts(grid, memory, programs, len(self.blocks), patience)
        values: list[Any] = [None] * self._compiled.function.values
        for value, held in zip(self._compiled.function.arguments, arguments, strict=True):
            values[value.number] = held
        with np.errstate(all="ignore"):
            run_blocks(self._compiled.blocks, Frame(values, programs, launch))
        return launch


def _inner(operation: Operation) -> Iterator[Operation]:
    for region in operation.regions:
        yield from within(region)


def _beneath(region: Region) -> Iterator[Operation]:
    """Yields the operations of a region, without those of loops inside."""
    for block in region:
        for operation in block.operations:
            yield operation
            if operation.name not in LOOPS:
                for inner in operation.regions:
                    yield from _beneath(inner)


def _is_waited_for(operation: Operation) -> bool:
    return operation.name in LOADS | {"tt.call"} or (
        operation.name in ATOMICS and bool(operation.results)
    )


def _is_counted(operation: Operation) -> bool:
    if operation.name in LOADS | STORES | ATOMICS | DOTS:
        return True
    made = operation.results[0].type if operation.results and operation.operands else None
    return made is not None and made.is_float and operation.name not in _FREE


def counts(frame: Frame) -> Counts:
    """Returns the launch that a frame is of.

    Raises:
        TypeError: If it is not counted.
    """
    launch = frame.launch
    if not isinstance(launch, Counts):
        raise TypeError("this launch is not counted")
    return launch


def _enter(compiler: Compiler, operation: Operation) -> Step:
    del compiler
    block = int(operation.attributes["block"])  # type: ignore[arg-type]
    return lambda frame: counts(frame).enter(block, frame)


def _for(compiler: Compiler, operation: Operation) -> Step:
    """Makes the step of a loop; one that computes nothing anew is entered once, for all turns."""
    (region,) = operation.regions
    if operation.results or region[0].arguments[0].number in used_in(region):
        return flow.HANDLERS["scf.for"](compiler, operation)  # type: ignore[return-value]
    bounds = [value.number for value in operation.operands[:3]]
    signless = "unsigned" in operation.words
    body = compiler.body(region[0])

    def step(frame: Frame) -> None:
        launch, outer = counts(frame), counts(frame).weight
        turns = flow.turns_of(*(frame.values[number] for number in bounds), signless=signless)
        if turns.size == 1 or turns.min() == turns.max():
            launch.weight = outer * int(turns.flat[0])
        else:
            weight = np.zeros(launch.most, np.int64)
            weight[launch.places(frame)] = turns
            launch.weight = outer * weight
        run_body(body, frame)
        launch.weight = outer

    return step


def _while(compiler: Compiler, operation: Operation) -> Step:
    """Makes the step of a loop; one that waits for others takes no turn."""
    if not any(
        each.name in ATOMICS or each.attributes.get("isVolatile") is True
        for each in _inner(operation)
    ):
        return flow.HANDLERS["scf.while"](compiler, operation)  # type: ignore[return-value]
    before = compiler.body(operation.regions[0][0])
    given = [value.number for value in operation.operands]
    results = [result.number for result in operation.results]

    def step(frame: Frame) -> None:
        values = frame.values
        for argument, number in zip(before.arguments, given, strict=True):
            values[argument] = values[number]
        _, *rest = run_body(before, frame)
        for result, held in zip(results, rest, strict=True):
            values[result] = held

    return step
