"""A random program that grows: its tensors, and what is still under way."""

import random
from collections.abc import Iterable, Sequence

from programs_steps import (
    DTYPES,
    FLOATS,
    INEXACT,
    INTEGERS,
    Call,
    Event,
    Local,
    Program,
    Read,
    Ref,
    Slot,
    Split,
    Step,
    Wait,
    conflict,
    independent,
    pattern,
    reads_of,
    writes_of,
)

_MESHES = {4: [(2, 2)], 6: [(2, 3), (3, 2)], 8: [(2, 4), (4, 2)], 9: [(3, 3)], 16: [(4, 4), (2, 8)]}
"""Device meshes of two dimensions, by the number of ranks."""

_RANKS = (1, *[2] * 6, *[3] * 6, *[4] * 5, 5, 5, 6, 6, 7, 8, 8, 9, 11, 13, 16)
_SIZES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 17, 24, 31)

_LONG = (600, 1100)
"""More elements than fit into one message of the default queues."""

_LARGEST = 2.0**40
_LARGEST_HALF = 2.0**13
"""Floats stay smaller, so that no operation overflows."""


class State:
    """What there is of a program.

    Args:
        rng: Makes all choices.

    Attributes:
        rng: The same.
        ranks: How many there are.
        groups: Ranks of each group; the first one is all ranks.
        slots: Tensors that each rank has.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.ranks = rng.choice(_RANKS)
        everybody = tuple(range(self.ranks))
        self.groups = [everybody]
        for _ in range(rng.choice((0, 1, 2, 3)) if self.ranks > 1 else 0):
            members = rng.sample(everybody, rng.randint(1, self.ranks))
            self.groups.append(tuple(sorted(members)))
        self.splits: list[Split] = []
        if self.ranks > 1 and rng.random() < 0.3:
            self._split()
        if (shapes := _MESHES.get(self.ranks)) and rng.random() < 0.4:
            self._mesh(rng.choice(shapes))
        self.scoped = rng.random() < 0.25
        # Values need a single choice, so that a failure is shrunk by what happens.
        self._any = random.Random(rng.randint(0, 1 << 16))
        self.slots: list[Slot] = []
        self._filled: list[set[int]] = []
        self._bounds: list[float] = []
        self._events: list[Event] = []
        self._pending: list[dict[int, Call]] = [{} for _ in everybody]
        self._number = 0
        for _ in range(rng.randint(2, 4)):
            dtype = rng.choice(DTYPES)
            size = rng.choice(_LONG if rng.random() < 0.02 else _SIZES)
            values = tuple(tuple(self._values(dtype, size, rank)) for rank in everybody)
            self.slots.append(Slot(dtype, size, values))
            self._filled.append(set(everybody))
            self._bounds.append(4.0)

    def _split(self) -> None:
        """Adds groups that `split_group` makes of all ranks, each in at most one."""
        order = self.rng.sample(range(self.ranks), self.ranks)
        cuts = sorted(self.rng.sample(range(1, self.ranks + 1), min(self.ranks, 2)))
        parts = [order[: cuts[0]], *([order[cuts[0] : cuts[1]]] if len(cuts) > 1 else [])]
        self._add_groups([sorted(part) for part in parts])

    def _mesh(self, shape: tuple[int, int]) -> None:
        """Adds the groups of a device mesh of all ranks, along each dimension."""
        rows, columns = shape
        lines = [[[r * columns + c for r in range(rows)] for c in range(columns)]]
        lines.append([[r * columns + c for c in range(columns)] for r in range(rows)])
        for dim, parts in enumerate(lines):
            self._add_groups(parts, shape, dim)

    def _add_groups(self, parts: list[list[int]], mesh: tuple[int, ...] = (), dim: int = 0) -> None:
        first = len(self.groups)
        self.groups += [tuple(part) for part in parts]
        self.splits.append(Split(range(first, len(self.groups)), mesh, dim))

    def _values(self, dtype: str, size: int, rank: int) -> list[complex]:
        # Every type holds them without rounding.
        if size in _LONG:
            return (
                [bool(value) for value in pattern(size, rank)]
                if dtype == "bool"
                else pattern(size, rank)
            )
        draw = self._any.randint
        match dtype:
            case "bool":
                return [draw(0, 3) > 0 for _ in range(size)]
            case "uint8":
                return [draw(0, 255) for _ in range(size)]
            case "complex64":
                return [complex(draw(-8, 8) / 4, draw(-8, 8) / 4) for _ in range(size)]
        if dtype in INTEGERS:
            return [draw(-50, 50) for _ in range(size)]
        return [draw(-16, 16) / 4 for _ in range(size)]

    # Tensors

    def source(self, ranks: Iterable[int]) -> Ref:
        """Returns elements that hold values on some ranks."""
        slot = self.rng.choice(self.slots_with(ranks))
        size = self.slots[slot].size
        ref = self.region(slot, self.rng.randint(0, size) if self.rng.random() < 0.3 else size)
        widths = [width for width in (1, 2, 3, 4, 5) if ref.size % width == 0]
        if self.rng.random() < 0.3:
            return Ref(slot, ref.start, ref.stop, self.rng.choice(widths))
        return ref

    def slots_with(
        self, ranks: Iterable[int], dtype: str = "", size: int = 0, avoid: Iterable[Ref] = ()
    ) -> list[int]:
        """Returns slots that hold values on some ranks, large enough and of a type if given."""
        needed, shut = set(ranks), {ref.slot for ref in avoid}
        return [
            index
            for index, slot in enumerate(self.slots)
            if self._filled[index] >= needed and index not in shut
            if slot.size >= size and dtype in {"", slot.dtype}
        ]

    def target(self, ranks: Iterable[int], dtype: str, size: int, avoid: Iterable[Ref]) -> Ref:
        """Returns elements that may be written: some of a slot that is in use, or a new one."""
        known = self.slots_with(ranks, dtype, size, avoid)
        if known and self.rng.random() < 0.5:
            return self.region(self.rng.choice(known), size)
        return self.new(dtype, size)

    def new(self, dtype: str, size: int) -> Ref:
        """Returns a new slot that nobody has written to."""
        self.slots.append(Slot(dtype, size, None))
        self._filled.append(set())
        self._bounds.append(0.0)
        return Ref(len(self.slots) - 1, 0, size)

    def region(self, slot: int, size: int) -> Ref:
        """Returns some elements of a slot."""
        start = self.rng.randint(0, self.slots[slot].size - size)
        return Ref(slot, start, start + size)

    # Sizes of floats

    def bound(self, ref: Ref) -> float:
        """Returns what no element of a slot exceeds; only floats are looked after."""
        return self._bounds[ref.slot] if self.slots[ref.slot].dtype in INEXACT else 0.0

    def grow(self, ref: Ref, bound: float) -> None:
        """Takes note that elements of a slot may be larger from now on."""
        self._bounds[ref.slot] = max(bound, self._bounds[ref.slot])

    def operation(self, ref: Ref, count: int) -> str:
        """Returns a way to combine the values of some ranks."""
        dtype = self.slots[ref.slot].dtype
        largest = self._largest(ref)
        ops = [] if dtype not in (*INTEGERS, *FLOATS, "bool") else ["MIN", "MAX"]
        if dtype in INTEGERS or dtype == "bool":
            ops += ["SUM", "SUM", "PRODUCT", "BAND", "BOR", "BXOR"]
        elif self.bound(ref) * count * 2 < largest:
            ops += ["SUM", "SUM", "AVG", "PREMUL_SUM(0.5)", "PREMUL_SUM(-1.5)"]
            if dtype in FLOATS and self.bound(ref) ** count < largest:
                ops.append("PRODUCT")
        return self.rng.choice(ops or [""])

    def _largest(self, ref: Ref) -> float:
        return _LARGEST_HALF if self.slots[ref.slot].dtype == "float16" else _LARGEST

    def combined_bound(self, ref: Ref, op: str, count: int) -> float:
        """Returns the bound of what an operation makes of the values of some ranks."""
        bound = self.bound(ref)
        if op.startswith("PREMUL"):
            return bound * count * 1.5
        return bound * count if op == "SUM" else bound**count if op == "PRODUCT" else bound

    def is_large(self, ref: Ref) -> bool:
        """Returns whether elements should not grow any more."""
        return self.bound(ref) * 8 > self._largest(ref)

    # Events

    def number(self) -> int:
        """Returns the number of the next event."""
        self._number += 1
        return self._number

    def add(self, event: Event) -> None:
        """Adds an event, behind waits for what its steps would meddle with."""
        for rank, step in event.items():
            mine = (reads_of(step), writes_of(step))
            for number, call in list(self._pending[rank].items()):
                if conflict(mine, (call.reads(), call.writes())):
                    self.wait(rank, number)
            for slot in {ref.slot for ref in mine[1]}:
                if sum(r.size for r in mine[1] if r.slot == slot) == self.slots[slot].size:
                    self._filled[slot].add(rank)
        for rank, step in event.items():
            if isinstance(step, Call) and step.handle:
                self._pending[rank][step.event] = step
        self._events.append(event)

    def wait(self, rank: int, number: int) -> None:
        """Lets a rank wait for an asynchronous call."""
        call = self._pending[rank].pop(number)
        self._events.append({rank: Wait(number, call.name == "batch_isend_irecv")})

    def wait_for_some(self, share: float) -> None:
        """Lets ranks wait for some of what is under way, in any order."""
        for rank, pending in enumerate(self._pending):
            numbers = [number for number in pending if self.rng.random() < share]
            self.rng.shuffle(numbers)
            for number in numbers:
                self.wait(rank, number)

    def finished(self) -> Program:
        """Returns the program: at its end each rank reads what it has given or got."""
        self.wait_for_some(1)
        touched: list[dict[int, None]] = [{} for _ in range(self.ranks)]
        for event in self._events:
            for rank, step in event.items():
                if isinstance(step, Call):
                    used = reads_of(step) + writes_of(step)
                    touched[rank].update(dict.fromkeys(ref.slot for ref in used))
        for rank, slots in enumerate(touched):
            for slot in slots:
                if rank in self._filled[slot]:
                    self.add({rank: Read(Ref(slot, 0, self.slots[slot].size))})
        steps: list[list[Step]] = [[] for _ in range(self.ranks)]
        for event in self._events:
            for rank, step in event.items():
                steps[rank].append(step)
        return Program(
            self.ranks,
            tuple(self.groups),
            tuple(self.splits),
            self.scoped,
            tuple(self.slots),
            tuple(self._events),
            tuple(tuple(self._shuffled(mine)) for mine in steps),
        )

    def _shuffled(self, steps: list[Step]) -> list[Step]:
        """Lets neighbours change places where no other rank can tell."""
        for _ in range(2):
            for i in range(len(steps) - 1):
                if self.rng.random() < 0.5 and _may_swap(steps[i], steps[i + 1]):
                    steps[i], steps[i + 1] = steps[i + 1], steps[i]
        return steps


def blocks(ref: Ref, sizes: Sequence[int], width: int = 0) -> tuple[Ref, ...]:
    """Returns elements cut into neighbouring parts."""
    found, start = [], ref.start
    for size in sizes:
        found.append(Ref(ref.slot, start, start + size, width))
        start += size
    return tuple(found)


def _may_swap(first: Step, second: Step) -> bool:
    for one, other in ((first, second), (second, first)):
        if isinstance(one, Read | Local) and isinstance(other, Call):
            # What is noted down by both is noted in this order.
            return independent(one, other) and not (isinstance(one, Read) and other.notes)
    # Messages that start at the same place, to or from different ranks, pass each other.
    both = [s for s in (first, second) if isinstance(s, Call) and s.name in {"isend", "irecv"}]
    if len(both) == 2:
        one, other = both
        apart = one.peer != other.peer and None not in {one.peer, other.peer}
        return apart and independent(one, other)
    return False
