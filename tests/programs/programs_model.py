"""What a program must compute: all ranks at once, one event after the other, in numpy.

Each element carries its value, how far a correct program may be off because of rounding, and its
origin: a number that two elements share if they were made the same way from the same values, so
that they must have the same bits on whatever ranks they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from programs_steps import OBJECTS, Call, Local, Program, Read, Ref

Array = np.ndarray[Any, np.dtype[Any]]

_TYPES = {
    "bool": np.bool_,
    "uint8": np.uint8,
    "int32": np.int32,
    "int64": np.int64,
    "complex64": np.complex128,
}
_ROUNDING = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "complex64": 2.0**-22,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-8,
}
_TINY = {"float16": 2.0**-24}
"""What a result may be off since numbers are not smaller; the other types have smaller ones."""
_METHODS = ("add_", "sub_", "mul_", "fill_")
_MIX = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)


@dataclass(slots=True)
class Cells:
    """Some elements.

    Attributes:
        dtype: As `torch` calls it.
        value: Exact for integers, in double precision for floats and complex numbers.
        slack: How far a correct result may be off.
        origin: Equal for elements that must have equal bits.
    """

    dtype: str
    value: Array
    slack: Array
    origin: Array

    def part(self, start: int, stop: int) -> "Cells":
        """Returns some of them: a view."""
        cut = slice(start, stop)
        return Cells(self.dtype, self.value[cut], self.slack[cut], self.origin[cut])

    def copy(self) -> "Cells":
        """Returns the same elements, apart."""
        return Cells(self.dtype, self.value.copy(), self.slack.copy(), self.origin.copy())

    def put(self, other: "Cells") -> None:
        """Takes over the elements of another one."""
        self.value[:], self.slack[:], self.origin[:] = other.value, other.slack, other.origin


def expected(program: Program) -> list[list[Any]]:
    """Returns by rank what it must read, in order: `Cells`, or lists of objects."""
    slots = range(len(program.slots))
    state = [[_made(program, slot, rank) for slot in slots] for rank in range(program.ranks)]
    seen: list[list[Any]] = [[] for _ in range(program.ranks)]
    for number, event in enumerate(program.events):
        calls = {rank: step for rank, step in event.items() if isinstance(step, Call)}
        if calls:
            _together(program, number * 64, calls, state, seen)
            continue
        for rank, step in event.items():
            if isinstance(step, Local):
                _change(state[rank], step)
            elif isinstance(step, Read):
                seen[rank].append(_at(state[rank], step.ref).copy())
    return seen


def differences(want: Sequence[Sequence[Any]], got: Sequence[Sequence[Any]]) -> list[str]:
    """Returns what ranks have read wrongly, a line each; nothing if all is well."""
    wrong = []
    origins, bits, places = [], [], []
    for rank, (wanted, read) in enumerate(zip(want, got, strict=True)):
        if len(wanted) != len(read):
            wrong.append(f"rank {rank} has read {len(read)} things, not {len(wanted)}")
        for index, (one, other) in enumerate(zip(wanted, read, strict=False)):
            where = f"rank {rank}, read {index}"
            if not isinstance(one, Cells):
                if one != other:
                    wrong.append(f"{where}: {other!r}, not {one!r}")
                continue
            values = np.array(other, one.value.dtype).reshape(-1)
            if values.shape != one.value.shape or not _close(values, one):
                wrong.append(f"{where}: {other}, not {one.value.tolist()}")
            if one.slack.any():
                origins.append(one.origin)
                bits.append(_bits(values))
                places += [where] * len(values)
    if origins:
        origin, bit = np.concatenate(origins), np.concatenate(bits)
        order = np.argsort(origin, kind="stable")
        same = origin[order][1:] == origin[order][:-1]
        parted = np.flatnonzero(same & (bit[order][1:] != bit[order][:-1]))
        wrong += [
            f"{places[order[i]]} and {places[order[i + 1]]}: other bits of the same result"
            for i in parted[:3]
        ]
    return wrong


def _bits(values: Array) -> Array:
    """Returns a number for the bits of each value."""
    if values.dtype.kind != "c":
        return values.view(np.int64)
    parts = values.view(np.uint64).reshape(-1, 2)
    return np.asarray(_mixed(parts[:, 0], 1) ^ parts[:, 1]).view(np.int64)


def _close(values: Array, cells: Cells) -> bool:
    if cells.value.dtype.kind in "biu":
        return np.array_equal(values, cells.value)
    return bool(np.all(abs(values - cells.value) <= cells.slack))


def _made(program: Program, index: int, rank: int) -> Cells:
    slot = program.slots[index]
    values = slot.values[rank] if slot.values is not None else (0,) * slot.size
    first = (rank * len(program.slots) + index) << 16
    kind: Any = _TYPES.get(slot.dtype, np.float64)
    value: Array = np.array(values, kind)
    origin = np.arange(first, first + slot.size, dtype=np.uint64)
    return Cells(slot.dtype, value, np.zeros(slot.size), origin)


def _at(slots: list[Cells], ref: Ref) -> Cells:
    return slots[ref.slot].part(ref.start, ref.stop)


def _mixed(origin: Array, code: int) -> Array:
    mixed = (origin ^ (origin >> _SHIFT)) * _MIX + np.uint64(code % (1 << 64))
    return np.asarray((mixed ^ (mixed >> _SHIFT)) * _MIX)


def _change(slots: list[Cells], step: Local) -> None:
    cells = _at(slots, step.ref)
    rounding = _ROUNDING.get(cells.dtype, 0.0)
    kind = cells.value.dtype.type
    if isinstance(step.other, Ref):
        other = _at(slots, step.other)
        if step.method == "copy_":
            cells.put(other.copy())
            return
        cells.value += other.value
        cells.slack += other.slack
        cells.origin[:] = _mixed(cells.origin ^ _mixed(other.origin, 1), 2)
    else:
        number = kind(step.other)
        code = int(step.other * 64) * 8 + _METHODS.index(step.method)
        if step.method == "fill_":
            cells.value[:], cells.slack[:] = number, 0
            cells.origin[:] = _mixed(np.zeros_like(cells.origin), code)
            return
        if step.method == "mul_":
            cells.value *= number
            cells.slack *= abs(step.other)
        elif step.method == "add_":
            cells.value += number
        else:
            cells.value -= number
        cells.origin[:] = _mixed(cells.origin, code)
    if rounding:
        cells.slack += rounding * (abs(cells.value) + cells.slack) + _TINY.get(cells.dtype, 0.0)


def _together(
    program: Program,
    number: int,
    calls: dict[int, Call],
    state: list[list[Cells]],
    seen: list[list[Any]],
) -> None:
    name = next(iter(calls.values())).name
    if name in OBJECTS:
        _objects(program, calls, seen)
    elif name == "coalesced":
        for k in range(len(next(iter(calls.values())).parts)):
            _together(program, number + k, {r: c.parts[k] for r, c in calls.items()}, state, seen)
    elif any(call.is_message for call in calls.values()):
        _deliver(calls, state)
    elif name != "barrier":
        members = program.groups[next(iter(calls.values())).group]
        results = _collective(number, [calls[rank] for rank in members], members, state)
        for rank, result in zip(members, results, strict=True):
            taken = calls[rank].taken
            for ref, block in zip(taken, _cut(result, [ref.size for ref in taken]), strict=True):
                _at(state[rank], ref).put(block)


def _deliver(calls: dict[int, Call], state: list[list[Cells]]) -> None:
    """Moves messages: what is read is what was there before any of them."""
    parts = [(rank, part) for rank, call in calls.items() for part in call.parts or (call,)]
    sent = {
        (rank, part.peer, part.tag): _at(state[rank], part.given[0]).copy()
        for rank, part in parts
        if part.given
    }
    for rank, part in parts:
        for ref in part.taken:
            (values,) = [
                values
                for (source, destination, tag), values in sent.items()
                if (destination, tag) == (rank, part.tag) and part.peer in {None, source}
            ]
            _at(state[rank], ref).put(values)


def _collective(
    number: int, calls: list[Call], members: tuple[int, ...], state: list[list[Cells]]
) -> list[Cells]:
    """Returns what each rank of the group gets, its outputs one behind the other."""
    first = calls[0]
    given = [
        _joined([_at(state[rank], ref) for ref in call.given])
        for rank, call in zip(members, calls, strict=True)
    ]
    root = 0 if first.root is None else members.index(first.root)
    count = len(members)
    match first.name:
        case "broadcast":
            return [given[root]] * count
        case "all_gather" | "all_gather_into_tensor" | "gather":
            return [_joined(given)] * count
        case "scatter":
            return _cut(given[root], [call.taken[0].size for call in calls])
        case "all_to_all" | "all_to_all_single":
            blocks = [
                _cut(cells, _sends(call, count)) for call, cells in zip(calls, given, strict=True)
            ]
            return [_joined([blocks[i][j] for i in range(count)]) for j in range(count)]
    total = _combined(number, first.op, given)
    if first.name.startswith("reduce_scatter"):
        return _cut(total, [call.taken[0].size for call in calls])
    return [total] * count


def _sends(call: Call, count: int) -> Sequence[int]:
    if call.name == "all_to_all":
        return [ref.size for ref in call.given]
    return call.sends or [call.given[0].size // count] * count


def _joined(parts: list[Cells]) -> Cells:
    if not parts:
        return Cells("int32", np.zeros(0, np.int32), np.zeros(0), np.zeros(0, np.uint64))
    return Cells(
        parts[0].dtype,
        np.concatenate([part.value for part in parts]),
        np.concatenate([part.slack for part in parts]),
        np.concatenate([part.origin for part in parts]),
    )


def _cut(cells: Cells, sizes: Sequence[int]) -> list[Cells]:
    return [cells.part(start, stop) for start, stop in pairwise(np.cumsum([0, *sizes]))]


def _combined(number: int, op: str, given: list[Cells]) -> Cells:
    dtype, count = given[0].dtype, len(given)
    values = np.stack([cells.value for cells in given])
    slacks = np.stack([cells.slack for cells in given])
    kind, rounding, tiny = values.dtype, _ROUNDING.get(dtype, 0.0), _TINY.get(dtype, 0.0)
    largest = abs(values) + slacks if rounding else slacks
    name, _, factor = op.partition("(")
    match name:
        case "SUM" | "AVG" | "PREMUL_SUM":
            value = np.asarray(values.any(0) if dtype == "bool" else values.sum(0, dtype=kind))
            scale = float(factor[:-1]) if factor else 1 / count if op == "AVG" else None
            slack = slacks.sum(0) + count * rounding * largest.sum(0)
            if scale is not None:
                value = value * scale
                slack = abs(scale) * (slack + rounding * largest.sum(0)) + count * tiny
        case "PRODUCT":
            value = values.prod(0, dtype=kind)
            slack = np.zeros(value.shape)
            if rounding:
                slack = largest.prod(0) * (1 + rounding) ** count - abs(values).prod(0)
                slack += count * tiny * np.maximum(largest, 1).prod(0)
        case "MIN" | "MAX":
            value = values.min(0) if op == "MIN" else values.max(0)
            slack = slacks.max(0)
        case _:
            combine = {"BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor}[op]
            value, slack = combine.reduce(values), np.zeros(values.shape[1])
    origin = _mixed(np.arange(value.size, dtype=np.uint64), ((number + 1) << 20) + 7)
    return Cells(dtype, value, slack, origin)


def _objects(program: Program, calls: dict[int, Call], seen: list[list[Any]]) -> None:
    members = program.groups[next(iter(calls.values())).group]
    for place, rank in enumerate(members):
        call = calls[rank]
        gathered = [calls[other].objects[0] for other in members if calls[other].objects]
        source = calls[rank if call.root is None else call.root]
        match call.name:
            case "all_gather_object":
                seen[rank].append(gathered)
            case "gather_object":
                seen[rank].append(gathered if rank == call.root else None)
            case "scatter_object_list":
                seen[rank].append([source.objects[place]])
            case _:
                seen[rank].append(list(source.objects))
