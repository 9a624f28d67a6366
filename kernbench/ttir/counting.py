"""Counts what the programs of a launch do, without doing it: bytes, products, turns of loops.

Of a kernel only the numbers are computed that choose its ways, for all programs at once; no tile
is. What masks leave out is counted in some programs, spread evenly over the grid.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Final, NamedTuple

import numpy as np

from kernbench.ttir.arithmetic import Array
from kernbench.ttir.counted import (
    ATOMICS,
    DOTS,
    LOADS,
    STORES,
    CountedBlock,
    Counts,
    Slice,
    moved,
)
from kernbench.ttir.frames import Held, Patience, ProgramError
from kernbench.ttir.looking import LANES_OF_REQUEST, Addresses, Masks, Requests
from kernbench.ttir.memory import Memory
from kernbench.ttir.module import Module, Operation
from kernbench.ttir.reports import report
from kernbench.ttir.rows import once

_RATES: Final = {
    "bf16": "bf16",
    "f16": "fp16",
    "f32": "tf32",
    "f64": "fp64",
    "i8": "int8",
}
"""Types of operands of products, as machines' files name them; others count as `fp8`."""

_PROGRAMS: Final = 1 << 20
"""Programs whose turns are counted; of more, so many that are spread evenly."""

_ELEMENTS: Final = 1 << 18
_FEWEST: Final = 64
"""Elements of masks that are counted, and the fewest programs of which they are."""

_ADDRESSES: Final = 1 << 14
"""Elements whose addresses are looked at."""

_GOLDEN: Final = 0.6180339887498949
"""Multiples of it, without their whole part, are spread evenly however many there are."""


@dataclass(frozen=True, slots=True)
class Access:
    """A load, a store or an atomic operation of a kernel.

    Attributes:
        root: Number of the argument whose memory it is; None if that is not known.
        loads: Whether it reads.
        stores: Whether it writes.
        nbytes: Bytes that are fetched for all programs, in sectors of 32, without what masks leave
            out.
    """

    root: int | None
    loads: bool
    stores: bool
    nbytes: int


@dataclass(frozen=True, slots=True)
class Atomic:
    """An atomic operation of a kernel.

    Attributes:
        root: Number of the argument whose memory it is; None if that is not known.
        itemsize: Bytes of a number.
        requests: How often warps ask for it, in all programs.
        seen: Bytes at which lanes ask in some of these requests, `[programs, requests, lanes]`, of
            programs that are spread evenly; -1 of a lane that is off. None if numbers in memory
            say where.
    """

    root: int | None
    itemsize: int
    requests: int
    seen: Array | None


class TextLoop(NamedTuple):
    """A loop of a kernel's text.

    Attributes:
        innermost: Whether it has no loop inside.
        turns: Its turns in all programs together.
        tiles: Elements and bytes of an element of each tile that a turn loads.
        waits: Whether a turn waits for what it loads, or an atomic operation returns.
        step: What a turn adds to the loop's counter; 0 if that is not known.
    """

    innermost: bool
    turns: int
    tiles: Sequence[tuple[int, int]]
    waits: bool = True
    step: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """What a launch does.

    Attributes:
        turns: How many programs, and turns of innermost loops of each of them; runs of equal ones
            in the order of the grid, or with many programs in the order of turns.
        loops: Its loops, in the order of the text.
        accesses: Loads and stores.
        atomics: Atomic operations among them.
        flop: Operations of products, by type of the operands as a machine's file names it.
        issued: Estimate of what the threads of all programs together issue: outside of innermost
            loops, and inside.
        tiles: Bytes of the tiles of two and more axes that are loaded outside of innermost loops,
            and in a turn of one.
        largest: Elements of the largest tile of floats.
    """

    turns: Sequence[tuple[int, int]]
    loops: Sequence[TextLoop]
    accesses: Sequence[Access]
    atomics: Sequence[Atomic]
    flop: Mapping[str, int]
    issued: tuple[int, int]
    tiles: tuple[int, int]
    largest: int

    @property
    def traffic(self) -> int:
        """Bytes that programs load and store, as often as they do."""
        return sum(each.nbytes * (each.loads + each.stores) for each in self.accesses)

    def distinct(self, extents: Mapping[int, int], same: Mapping[int, int]) -> int:
        """Returns how many different bytes are loaded, and stored: no more than there are.

        Args:
            extents: Bytes of the tensors that are given, by number of the argument.
            same: For each of them the first argument that is of the same memory.
        """
        asked: dict[tuple[int | None, bool], int] = {}
        for each in self.accesses:
            for way, there in ((False, each.loads), (True, each.stores)):
                if there:
                    key = None if each.root is None else same.get(each.root, each.root), way
                    asked[key] = asked.get(key, 0) + each.nbytes
        return sum(
            nbytes if root is None else min(nbytes, extents.get(root, nbytes))
            for (root, _), nbytes in asked.items()
        )


class Counter:
    """Counts launches of a kernel.

    Args:
        module: The kernel.

    Attributes:
        looks: Whether programs look for their ways in memory.

    Raises:
        UnsupportedError: If it has an operation that is not simulated.
    """

    def __init__(self, module: Module) -> None:
        self._module: Final = module
        self._ways: Final = Slice(module)
        self.looks: Final = self._ways.loads
        self._masks: Final = Masks(module)
        self._addresses: Final = Addresses(module)
        self._requests: Final = Requests(module)

    def count(
        self,
        grid: tuple[int, int, int],
        arguments: Sequence[Held],
        memory: Memory | None,
        patience: Patience | None = None,
    ) -> Work:
        """Returns what a launch does.

        Atomic operations find 0 where ways depend on them, as a free lock does, and a loop around
        one takes no turn: what it waits for is there.

        Args:
            arguments: What the kernel is given, as of `Executable.run`.
            memory: What programs may read that choose their ways by it; None without numbers.
            patience: As of `Executable.run`.

        Raises:
            UnsupportedError: If ways depend on numbers in memory, and there are none.
            KernbenchError: If a program looks for its way in other memory (M1), or never ends (K5).
        """
        total = prod(grid)
        try:
            ways = self._ways.run(_spread(total, _PROGRAMS), grid, arguments, memory, patience)
        except ProgramError as error:
            given = Memory({}) if memory is None else memory
            raise report(error, self._module, grid, given) from None
        shares: dict[int, Fraction] = {}
        for part, elements, fewest in (
            (self._masks, _ELEMENTS, _FEWEST),
            (self._addresses, _ADDRESSES, 1),
        ):
            if part.marked:
                few = _spread(total, max(fewest, elements // part.largest))
                for site, (there, whole) in part.run(
                    few, grid, arguments, memory, None
                ).seen.items():
                    shares[site] = shares.get(site, Fraction(1)) * Fraction(there, whole or 1)
        asked: Mapping[int, Sequence[Array]] = {}
        if self._requests.marked:
            few = _spread(total, max(1, _ADDRESSES // self._requests.largest))
            asked = self._requests.run(few, grid, arguments, memory, None).asked
        return _work(self._ways.blocks, ways, shares, asked, total)


def _spread(total: int, most: int) -> Array:
    """Returns numbers of programs, all if they are not many."""
    if total <= most:
        return np.arange(total)
    return once((np.modf(np.arange(most) * _GOLDEN)[0] * total).astype(np.int64))


def _work(
    blocks: Sequence[CountedBlock],
    ways: Counts,
    shares: Mapping[int, Fraction],
    asked: Mapping[int, Sequence[Array]],
    total: int,
) -> Work:
    """Returns what a launch does.

    Args:
        blocks: All blocks of the kernel, in order.
        ways: How often programs have been there.
        shares: What part of its tiles' bytes an access fetches, by identity of the operation.
        asked: Addresses of atomic operations, likewise.
        total: Programs of the launch.
    """
    loops, accesses, atomics, flop, issued = [], [], [], dict[str, int](), [0, 0]
    tiles, largest = [0, 0], 1
    turns: Array = np.zeros(ways.most, np.int64)
    for block in blocks:
        all_, each = ways.often[block.number]
        often = all_ * total
        if each is not None:
            often += int(each.sum()) * total // ways.most
        if block.loop:
            kinds = [moved(each) for each, _ in block.operations if each.name in LOADS]
            loaded_tiles = [(kind.numel, kind.dtype.itemsize) for kind in kinds]
            told = block.innermost, often, loaded_tiles, block.waits, block.step
            loops.append(TextLoop(*told))
            if block.innermost:
                turns += all_ if each is None else all_ + each
        loaded = 0
        for operation, root in block.operations:
            issued[block.inside] += often * _instructions(operation)
            if operation.results and operation.results[0].type.is_float:
                largest = max(largest, operation.results[0].type.numel)
            if operation.name in DOTS:
                name, work = _product(operation)
                flop[name] = flop.get(name, 0) + often * work
            elif operation.name in LOADS | STORES | ATOMICS:
                nbytes = int(often * _tile_bytes(operation) * shares.get(id(operation), 1))
                loads, stores = operation.name not in STORES, operation.name not in LOADS
                accesses.append(Access(root, loads, stores, nbytes))
                if operation.name in ATOMICS:
                    atomics.append(_atomic(operation, root, often, asked.get(id(operation))))
                if operation.name in LOADS and len(moved(operation).shape) > 1:
                    loaded += _tile_bytes(operation)
        tiles[block.inside] = max(loaded, tiles[1]) if block.inside else tiles[0] + loaded
    both = (issued[0], issued[1]), (tiles[0], tiles[1])
    return Work(_runs(turns, total), loops, accesses, atomics, flop, *both, largest)


def _atomic(
    operation: Operation, root: int | None, often: int, asked: Sequence[Array] | None
) -> Atomic:
    kind = moved(operation)
    requests = often * -(-kind.numel // LANES_OF_REQUEST)
    seen = None if asked is None else np.concatenate(asked)
    return Atomic(root, kind.dtype.itemsize, requests, seen)


_ORDERED: Final = 1 << 15
"""Programs up to which the order of their turns is told."""


def _runs(turns: Array, total: int) -> list[tuple[int, int]]:
    counted = len(turns)
    if counted > _ORDERED:
        turns = np.sort(turns)
    begins = np.flatnonzero(np.concatenate([[True], turns[1:] != turns[:-1]]))
    ends = [*begins[1:].tolist(), counted]
    shares = [
        (begin * total // counted, end * total // counted)
        for begin, end in zip(begins.tolist(), ends, strict=True)
    ]
    return [
        (stop - start, int(turns[begin]))
        for begin, (start, stop) in zip(begins.tolist(), shares, strict=True)
    ]


_LINE: Final = 16
"""Most bytes that a thread loads or stores by one instruction."""

_INSTRUCTIONS: Final = {
    **dict.fromkeys(("math.exp", "math.exp2", "math.log", "math.log2", "math.sin", "math.cos"), 4),
    **dict.fromkeys(("arith.divf", "tt.precise_divf", "math.sqrt", "tt.precise_sqrt"), 8),
    "math.erf": 20,
    "tt.extern_elementwise": 20,
}
"""Instructions for an element, of operations on floats that take more than one: estimates."""


def _instructions(operation: Operation) -> int:
    """Returns about how many instructions all threads of a program issue for an operation."""
    if operation.name in DOTS:
        return 0
    if operation.name in LOADS | STORES | ATOMICS:
        return -(-_tile_bytes(operation) // _LINE)
    made = operation.results[0].type.numel
    given = max((each.type.numel for each in operation.operands), default=0)
    return max(made, given) * _INSTRUCTIONS.get(operation.name, 1)


def _product(operation: Operation) -> tuple[str, int]:
    """Returns the type of a product as machines' files name it, and its operations."""
    a, result = operation.operands[0].type, operation.results[0].type
    name = _RATES.get(str(a.element), "fp8")
    inner, often = a.shape[-1], 1
    if operation.name == "tt.dot_scaled":
        name, inner = "fp8", operation.operands[1].type.shape[-2]
    elif a.element == "f32":
        asked = operation.said("inputPrecision")
        name = "fp32" if asked == "ieee" else "tf32"
        often = 3 if asked == "tf32x3" else 1
    return name, 2 * often * inner * result.numel


def _tile_bytes(operation: Operation) -> int:
    kind = moved(operation)
    return kind.numel * kind.dtype.itemsize
