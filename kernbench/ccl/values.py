"""What a plan computes: each distinct value once, in the order of additions of the algorithm."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from kernbench.ccl.plan import NOTHING, Chunks, Ints, Plan

_BLOCK: Final = 1 << 19
"""Bytes worked on at a time, so that partial sums stay in the cache."""


@dataclass(frozen=True, eq=False)
class Recipe:
    """How the outputs of a plan come from its inputs.

    Values are numbered: `rank * parts + chunk` is an input, the rest are sums of two values.

    Attributes:
        parts: Chunks of the buffer.
        left: First operand of each sum: what was there.
        right: Second operand of each sum: what arrived.
        final: Value that each rank ends with in each chunk.
    """

    parts: int
    left: Ints
    right: Ints
    final: Ints

    @property
    def same_everywhere(self) -> bool:
        """Whether every rank ends with the very same values."""
        return bool((self.final == self.final[0]).all())

    def order(self, chunk: int, ranks: int) -> list[tuple[int, int, int]]:
        """Returns the sums `(value, left, right)` behind a chunk of the first ranks, in order."""
        inputs = self.final.size
        pending = self.final[:ranks, chunk].tolist()
        needed = set()
        while pending:
            value = pending.pop()
            if value >= inputs and value not in needed:
                needed.add(value)
                pending += [int(self.left[value - inputs]), int(self.right[value - inputs])]
        # A sum is numbered after its operands.
        return [
            (value, int(self.left[value - inputs]), int(self.right[value - inputs]))
            for value in sorted(needed)
        ]


def recipe(plan: Plan) -> Recipe:
    """Follows a plan with numbered values in place of numbers."""
    n = plan.world_size
    state = np.arange(n * n).reshape(n, n)
    left: list[Ints] = [np.empty(0, np.int64)]
    right: list[Ints] = [np.empty(0, np.int64)]
    count = n * n
    for send, receive, source, reduce in zip(
        plan.send, plan.receive, plan.source, plan.reduce, strict=True
    ):
        (to,) = np.nonzero(receive != NOTHING)
        origin = source[to]
        arrived = state[origin, send[origin]]
        here = state[to, receive[to]]
        adds = reduce[to]
        left.append(here[adds])
        right.append(arrived[adds])
        sums = np.arange(count, count + int(adds.sum()))
        count += len(sums)
        arrived[adds] = sums
        state[to, receive[to]] = arrived
    return Recipe(n, np.concatenate(left), np.concatenate(right), state)


def evaluate(
    how: Recipe,
    chunks: Chunks,
    inputs: Sequence[np.ndarray[Any, Any]],
    combine: np.ufunc,
    outputs: Sequence[np.ndarray[Any, Any]],
) -> None:
    """Computes what the ranks end with.

    Args:
        how: The recipe.
        chunks: How the buffer is cut.
        inputs: By rank, flat, of the collective's element type.
        combine: Adds two values; every partial sum is rounded to the element type.
        outputs: By rank, flat, apart from the inputs; one alone if all ranks end alike.
    """
    block = max(1, _BLOCK // outputs[0].itemsize)
    scratch: list[np.ndarray[Any, Any]] = []
    for chunk in range(how.parts):
        order = how.order(chunk, len(outputs))
        finals = how.final[: len(outputs), chunk].tolist()
        places = _places(order, finals)
        while len(outputs) + len(scratch) <= max(places.values(), default=0):
            scratch.append(np.empty(block, outputs[0].dtype))
        wanted = {*finals, *(operand for _, *operands in order for operand in operands)}
        given = wanted.difference(places)
        end = chunks.begin(chunk + 1)
        for low in range(chunks.begin(chunk), end, block):
            high = min(low + block, end)
            blocks = [output[low:high] for output in outputs]
            blocks += [space[: high - low] for space in scratch]
            values = {number: inputs[number // how.parts][low:high] for number in given}
            for number, left, right in order:
                out = blocks[places[number]]
                values[number] = combine(values[left], values[right], out=out)
            for output, number in enumerate(finals):
                if places.get(number) != output:
                    np.copyto(blocks[output], values[number])


def _places(order: Sequence[tuple[int, int, int]], finals: Sequence[int]) -> dict[int, int]:
    """Returns where each sum is kept, by its number: in that output, or in scratch after those.

    A sum takes the place of the operand that arrived, if nobody needs that afterwards; so the
    partial sums of a ring all grow in the output.
    """
    sums = {number for number, _, _ in order}
    places: dict[int, int] = {}
    for output, number in enumerate(finals):
        if number in sums:
            places.setdefault(number, output)
    spare = len(finals)
    # Backwards, an operand is met first where it is used last.
    for number, left, right in reversed(order):
        place = places[number]
        for operand in (right, left):
            if operand in sums and operand not in places:
                places[operand] = place
                place, spare = spare, spare + 1
    return places
