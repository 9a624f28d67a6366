"""A module of Triton's IR: functions made of blocks of operations on values."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kernbench.ttir.types import Type

Attribute = bool | int | float | str | tuple[int, ...]
"""What an operation says beside its operands."""


class Site(NamedTuple):
    """A place in the source of a kernel.

    Attributes:
        file: Path of the file.
        line: Counted from 1.
        column: Counted from 1; 0 if it is not known.
    """

    file: str
    line: int
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(slots=True, eq=False)
class Value:
    """What an operation results in, or what a block is given.

    Attributes:
        number: Place among all values of the function, in the order of the text.
        type: Its type.
        name: As the text calls it: the variable of the kernel, where there is one.
    """

    number: int
    type: Type
    name: str


@dataclass(slots=True, eq=False)
class Successor:
    """Where a block goes on.

    Attributes:
        label: Label of the next block of the region.
        operands: What that block is given.
    """

    label: str
    operands: Sequence[Value]


@dataclass(slots=True, eq=False)
class Operation:
    """One operation.

    Attributes:
        name: Dialect and name, such as `arith.addi`.
        operands: What it works on. Of loops: the bounds and the step, then the initial values.
        results: What it results in.
        attributes: By name.
        words: Words and strings of the text that are neither, in order: predicates, rounding modes.
        regions: Its regions: bodies of loops, branches, what a reduction combines with.
        successors: Where a terminator goes on.
        sites: Where the kernel asks for it: innermost function first.
    """

    name: str
    operands: Sequence[Value] = ()
    results: Sequence[Value] = ()
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    words: Sequence[str] = ()
    regions: "Sequence[Region]" = ()
    successors: Sequence[Successor] = ()
    sites: Sequence[Site] = ()

    def said(self, name: str) -> str:
        """Returns the word after `name =`, such as that of `rounding`; empty without one."""
        for place, word in enumerate(self.words):
            if word == name and place + 1 < len(self.words):
                return self.words[place + 1]
        found = self.attributes.get(name, "")
        return found if isinstance(found, str) else ""


@dataclass(slots=True, eq=False)
class Block:
    """Operations one after another; the last one says where to go on.

    Attributes:
        label: As the text calls it.
        arguments: What it is given.
        operations: In order.
    """

    label: str
    arguments: list[Value] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)


Region = list[Block]
"""Blocks, of which the first is entered."""


@dataclass(slots=True, eq=False)
class Function:
    """A kernel, or a function that kernels call.

    Attributes:
        name: Its name.
        arguments: What it is given.
        results: Types of what it returns.
        body: Its blocks.
        values: How many values it has.
        public: Whether it is the kernel.
    """

    name: str
    arguments: Sequence[Value]
    results: Sequence[Type]
    body: Region
    values: int
    public: bool


def within(region: Region) -> Iterator[Operation]:
    """Yields the operations of a region and of the regions inside."""
    for block in region:
        for operation in block.operations:
            yield operation
            for inner in operation.regions:
                yield from within(inner)


@dataclass(slots=True, eq=False)
class Module:
    """What a compiled kernel consists of.

    Attributes:
        functions: By name.
        kernel: The one that is launched.
    """

    functions: Mapping[str, Function]
    kernel: Function
