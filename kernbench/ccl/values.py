"""Values of a plan: each distinct sum once, in the order of additions of the algorithm."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from kernbench.ccl.deliveries import follow
from kernbench.ccl.layout import Layout
from kernbench.ccl.operations import Ints
from kernbench.ccl.plan import NOTHING, AlgorithmError, Exchange, Plan
from kernbench.memory.arithmetic import Function

Array = np.ndarray[Any, np.dtype[Any]]

_BLOCK: Final = 1 << 19
"""Bytes that are computed at a time, so that partial sums stay in the cache."""

Run = tuple[int, range, Array]
"""A rank, chunks of it that lie side by side (all but the last one full), and their output."""


@dataclass(frozen=True, eq=False)
class Recipe:
    """How the outputs of a plan come from its inputs.

    Values are numbered: `rank * chunks + chunk` is an input, the rest are sums of two values. A sum
    is numbered after its operands.

    Attributes:
        chunks: Chunks of a rank's buffer.
        left: First operand of each sum: the value present at the receiver.
        right: Second operand of each sum: the value that arrived.
        final: Number of the value with which each rank ends in each chunk, shape
            `[ranks, chunks]`.
    """

    chunks: int
    left: Ints
    right: Ints
    final: Ints

    @cached_property
    def inputs(self) -> int:
        """Number of values that are inputs."""
        return int(self.final.size)

    def order(self, values: Iterable[int]) -> list[tuple[int, int, int]]:
        """Returns the sums `(value, left, right)` that some values need, operands first."""
        inputs = self.inputs
        pending = list(values)
        needed = set()
        while pending:
            value = pending.pop()
            if value >= inputs and value not in needed:
                needed.add(value)
                pending += [int(self.left[value - inputs]), int(self.right[value - inputs])]
        return [
            (value, int(self.left[value - inputs]), int(self.right[value - inputs]))
            for value in sorted(needed)
        ]

    @cached_property
    def depths(self) -> Ints:
        """Longest chain of sums up to each value; 0 for inputs."""
        depths = [0] * (self.inputs + len(self.left))
        for number, (left, right) in enumerate(
            zip(self.left.tolist(), self.right.tolist(), strict=True), self.inputs
        ):
            depths[number] = max(depths[left], depths[right]) + 1
        return np.array(depths)


class _Values:
    """Numbered values in every chunk of every rank, while a plan is followed."""

    def __init__(self, ranks: int, chunks: int, kept: Sequence[tuple[int, int, int]]) -> None:
        self.ranks = ranks
        self.chunks = chunks
        self.state = np.arange(ranks * chunks).reshape(ranks, chunks)
        self.left: list[Ints] = [np.empty(0, np.int64)]
        self.right: list[Ints] = [np.empty(0, np.int64)]
        self.count = ranks * chunks
        for rank, source, target in kept:
            self.state[rank, target] = self.state[rank, source]

    def recipe(self) -> Recipe:
        left, right = np.concatenate(self.left), np.concatenate(self.right)
        return Recipe(self.chunks, left, right, self.state)

    def follow_step(self, plan: Plan, step: int) -> None:
        """Follows one step of all ranks; a message of the step leaves before any arrives."""
        (to,) = np.nonzero(plan.receive[step] != NOTHING)
        origin = plan.source[step][to]
        sent, received = plan.send[step][origin], plan.receive[step][to]
        spans, adds = plan.span[step][to], plan.reduce[step][to]
        before = self.state.copy() if (spans > 1).any() else self.state
        for chunk in range(int(spans.max(initial=0))):
            here = chunk < spans
            ranks, places = to[here], received[here] + chunk
            arrived = before[origin[here], sent[here] + chunk]
            self._put(ranks, places, arrived, adds[here])

    def _put(self, ranks: Ints, places: Ints, arrived: Ints, adds: Ints) -> None:
        if adds.any():
            self.left.append(self.state[ranks[adds], places[adds]])
            self.right.append(arrived[adds])
            sums = np.arange(self.count, self.count + len(self.right[-1]))
            self.count += len(sums)
            arrived = arrived.copy()
            arrived[adds] = sums
        self.state[ranks, places] = arrived

    def follow_freely(self, plan: Plan) -> None:
        """Follows all ranks of a plan that fits through queues; each goes on until it must wait."""
        steps = [plan.of(rank) for rank in range(self.ranks)]

        def send(rank: int, number: int) -> Ints:
            step = steps[rank][number]
            leaves: Ints = self.state[rank, step.send : step.send + step.span].copy()
            return leaves

        def receive(rank: int, number: int, arrived: Ints) -> None:
            self._receive(rank, steps[rank][number], arrived)

        follow(steps, send, receive)

    def _receive(self, rank: int, step: Exchange, arrived: Ints) -> None:
        places = np.arange(step.receive, step.receive + step.span)
        adds = np.full(step.span, step.combine == "reduce")
        self._put(np.full(step.span, rank), places, arrived, adds)


def recipe(plan: Plan, chunks: int, kept: Sequence[tuple[int, int, int]]) -> Recipe:
    """Returns the recipe of a plan that fits, by following the plan with numbered values.

    Args:
        plan: See `fitting.check_fits`.
        chunks: Chunks of a rank's buffer.
        kept: Copies before the first step: a rank, a chunk of it, and the chunk that gets a copy.
    """
    values = _Values(plan.world_size, chunks, kept)
    if plan.aligned:
        for step in range(len(plan.send)):
            values.follow_step(plan, step)
    else:
        values.follow_freely(plan)
    return values.recipe()


class Operands(NamedTuple):
    """The flat inputs of all ranks, chunk by chunk.

    Attributes:
        layout: Cuts of the buffers.
        flat: Input of each rank, as a flat array of elements; None for a rank that has not arrived.
        begin: By rank, the first element of its input in its buffer.
    """

    layout: Layout
    flat: Sequence[Array | None]
    begin: Sequence[int]

    def chunk(self, rank: int, chunk: int) -> Array:
        """Returns a chunk of a rank's input.

        Args:
            rank: Rank inside the group.
            chunk: Number of the chunk.

        Raises:
            AlgorithmError: If the rank gives no such chunk.
        """
        flat = self.flat[rank]
        low, high = self.layout.extent(rank, chunk)
        low, high = low - self.begin[rank], high - self.begin[rank]
        if flat is None or low < 0 or high > len(flat):
            raise AlgorithmError(
                f"the algorithm uses chunk {chunk} of rank {rank}, which nobody has filled"
            )
        return flat[low:high]

    def spread(self, values: Array, chunks: int) -> None:
        """Copies all inputs, chunk by chunk, to rows of full chunks.

        Args:
            values: Rows, shape `[ranks * chunks, nominal]`; missing elements become 0.
            chunks: Chunks of a rank's buffer.
        """
        ranks = len(self.flat)
        rows = values.reshape(ranks, -1)
        full = [flat for flat in self.flat if flat is not None and flat.size == rows.shape[1]]
        if len(full) == ranks and self.layout.dense:
            np.concatenate(full, out=values.reshape(-1))
            return
        values.fill(0)
        _, end = self.layout.extent(0, chunks - 1)
        for rank, flat in enumerate(self.flat):
            if flat is None:
                continue
            if self.layout.dense:
                begin = self.begin[rank]
                share = flat[: max(end - begin, 0)]  # of this channel
                rows[rank, begin : begin + len(share)] = share
                continue
            for chunk in range(chunks):
                low, high = self.layout.extent(rank, chunk)
                low, high = low - self.begin[rank], high - self.begin[rank]
                if 0 <= low < high <= len(flat):
                    values[rank * chunks + chunk, : high - low] = flat[low:high]


def evaluate(
    how: Recipe,
    operands: Operands,
    combine: Function | None,
    runs: Sequence[Run],
) -> None:
    """Computes the final values of chunks, chunk by chunk.

    Args:
        operands: The inputs.
        combine: Combines two arrays of values and rounds to the element type; None for operations
            without reduction.
        runs: Chunks to compute, and arrays for the results, which share no memory with the inputs.
    """
    places, outputs = _cut(operands.layout, runs)
    numbers = [int(how.final[rank, chunk]) for rank, chunk in places]
    if combine is None or max(numbers) < how.inputs:
        for number, output in zip(numbers, outputs, strict=True):
            np.copyto(output, operands.chunk(*divmod(number, how.chunks)))
        return
    # Final values of different chunks have no sums in common.
    by_chunk: dict[int, list[int]] = {}
    for index, (_, chunk) in enumerate(places):
        by_chunk.setdefault(chunk, []).append(index)
    scratch: list[Array] = []
    for indices in by_chunk.values():
        _in_blocks(
            how,
            operands,
            combine,
            [numbers[index] for index in indices],
            [outputs[index] for index in indices],
            scratch,
        )


def _cut(layout: Layout, runs: Sequence[Run]) -> tuple[list[tuple[int, int]], list[Array]]:
    """Returns each chunk of some runs as a rank and a number, and the part of the output for it."""
    places, outputs = [], []
    for rank, chunks, output in runs:
        first, _ = layout.extent(rank, chunks.start)
        for chunk in chunks:
            low, high = layout.extent(rank, chunk)
            places.append((rank, chunk))
            outputs.append(output[low - first : high - first])
    return places, outputs


def _in_blocks(
    how: Recipe,
    operands: Operands,
    combine: Function,
    finals: Sequence[int],
    outputs: Sequence[Array],
    scratch: list[Array],
) -> None:
    """Computes values of equally large chunks, one block that fits into the cache at a time."""
    block = max(1, _BLOCK // outputs[0].itemsize)
    order = how.order(finals)
    places = _places(order, finals)
    while len(outputs) + len(scratch) <= max(places.values(), default=0):
        scratch.append(np.empty(block, outputs[0].dtype))
    wanted = {*finals, *(operand for _, *pair in order for operand in pair)}
    given = {
        number: operands.chunk(*divmod(number, how.chunks)) for number in wanted.difference(places)
    }
    for low in range(0, len(outputs[0]), block):
        high = min(low + block, len(outputs[0]))
        blocks = [output[low:high] for output in outputs]
        blocks += [space[: high - low] for space in scratch]
        values = {number: whole[low:high] for number, whole in given.items()}
        for number, left, right in order:
            out = blocks[places[number]]
            values[number] = combine(values[left], values[right], out=out)
        for output, number in enumerate(finals):
            if places.get(number) != output:
                np.copyto(blocks[output], values[number])


def _places(order: Sequence[tuple[int, int, int]], finals: Sequence[int]) -> dict[int, int]:
    """Returns the buffer of each sum, by the sum's number: an output, or scratch after the outputs.

    A sum takes the buffer of the operand that arrived, if no later sum needs this operand; so the
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
