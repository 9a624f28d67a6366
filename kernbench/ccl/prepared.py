"""Everything known of collectives of one shape before any rank arrives."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final

import numpy as np

from kernbench.ccl.channel import ChannelPlan
from kernbench.ccl.config import Chosen
from kernbench.ccl.costs import RankCosts, added_on, launches_of, pass_over
from kernbench.ccl.machine import Machine
from kernbench.ccl.operations import OPERATIONS, Operation
from kernbench.ccl.programs import most_messages, programs_of
from kernbench.ccl.rails import Pair
from kernbench.ccl.rows import SMALL, Rows
from kernbench.ccl.values import Recipe, recipe
from kernbench.errors import UsageError
from kernbench.hw.path import Path
from kernbench.memory import DType
from kernbench.topology import Topology
from kernbench.units import Bandwidth, format_bytes


@dataclass(frozen=True, slots=True)
class CollectiveShape:
    """All that the timing of a collective depends on, except the arrival of its ranks.

    Attributes:
        chosen: The algorithm and its queues.
        operation: A key of `OPERATIONS`.
        sips: Device of each rank of the group.
        sizes: Elements of each block; for `all_to_all`, a row for each rank with the elements that
            it sends to each rank.
        dtype: Element type.
        root: Root inside the group; 0 for operations without a root.
        one_walk: Whether the first walk, of which no other has more, stands for all, where they
            keep out of each other's way: to choose an algorithm, its time is enough.
    """

    chosen: Chosen
    operation: str
    sips: tuple[int, ...]
    sizes: tuple[Any, ...]
    dtype: DType
    root: int = 0
    one_walk: bool = False


def _check_slot(chosen: Chosen, dtype: DType) -> None:
    """Checks that a slot holds one aligned chunk; algorithms count on it, and would jam otherwise.

    Raises:
        UsageError: If it does not (F12).
    """
    slot, chunk = chosen.queue.slot_size, chosen.align * dtype.itemsize
    if slot < chunk:
        raise UsageError(
            f"a slot of algorithm {chosen.name} holds less than one chunk of {dtype}",
            [
                f"expected slot_size of {chunk} B or more: n_elem is {chosen.align}, and an "
                f"element has {dtype.itemsize} B",
                f"got {format_bytes(slot)}, at {chosen.queue.slot_size_at or chosen.path}",
            ],
            hint="raise slot_size, or lower n_elem",
            code="F12",
        )


class Prepared:
    """Everything about collectives of one shape that does not depend on time.

    Args:
        machine: Machine that the ranks run on.

    Attributes:
        shape: The shape.
        operation: The operation.
        channels: The channels, in order of their numbers.
    """

    def __init__(self, machine: Machine, shape: CollectiveShape) -> None:
        chosen, n = shape.chosen, len(shape.sips)
        _check_slot(chosen, shape.dtype)
        self._machine: Final = machine
        self.shape: Final = shape
        self.operation: Final[Operation] = OPERATIONS[shape.operation]
        self._blocks: Final = self.operation.sizes(shape.sizes, n)
        self._offsets: Final = np.cumsum(self._blocks, axis=1) - self._blocks
        pes = added_on([machine.costs(sip) for sip in shape.sips], chosen.queue)
        costs = RankCosts(pes, chosen.queue, shape.dtype)
        self._launches: Final = launches_of(
            chosen.queue, machine.topology.machine.system, shape.sips
        )
        lead = min(self._launches)
        largest = int(self._blocks.max(initial=0))
        programs = programs_of(
            chosen,
            shape.operation,
            machine.topology,
            shape.sips,
            shape.root,
            most_messages(largest, costs.together.piece, chosen.align),
        )
        first = programs[0]
        if shape.one_walk and first.shares is not None:
            programs = [first]
        self._rows: dict[int, Rows | None] = {}
        self._runs: dict[tuple[int, int], list[tuple[range, slice]]] = {}
        self.channels: Final[list[ChannelPlan]] = []
        for program in programs:
            shares = program.shares
            self.channels.append(
                ChannelPlan(
                    program,
                    shape.sips,
                    self._blocks,
                    chosen.align,
                    costs,
                    partial(self._path, shares or {}),
                    lead,
                    machine.topology,
                    None if shares is None else (program.rails, program.walk),
                )
            )

    @property
    def topology(self) -> Topology:
        """The machine."""
        return self._machine.topology

    def anew(self) -> "Prepared":
        """Returns the same, found once more without costs, paths and routes that are kept."""
        topology = self._machine.topology
        return Prepared(Machine(Topology(topology.machine, topology.spec)), self.shape)

    def _path(self, shares: Mapping[Pair, Bandwidth], sender: int, receiver: int) -> Path:
        sips, share = self.shape.sips, shares.get((sender, receiver))
        return self._machine.path(sips[sender], sips[receiver], self.shape.chosen.queue, share)

    @cached_property
    def alone(self) -> list[int] | None:
        """By rank, the picoseconds it takes if all begin at once and nobody else is on its links.

        None without a plan.
        """
        channels = [channel.alone for channel in self.channels]
        known = [times for times in channels if times is not None]
        if len(known) < len(channels):
            return None
        return [
            start_up + max(times) for start_up, *times in zip(self.start_ups, *known, strict=True)
        ]

    @cached_property
    def start_ups(self) -> list[int]:
        """Time before the first exchange of each rank, in picoseconds.

        The time is the launch plus the pass over the rank's shares (see `costs.pass_over`). The
        end of the rank is the same wherever in the collective the pass lies.
        """
        return [self.start_up(rank) for rank in range(len(self.shape.sips))]

    def start_up(self, rank: int) -> int:
        """Returns the start-up of a rank, see `start_ups`."""
        return self._launches[rank] + pass_over(self.shape.chosen.queue, *self._shares(rank))

    def _shares(self, rank: int) -> tuple[int, int]:
        """Returns the bytes that a rank reduces or forwards itself, and those for the others.

        Rooted operations have no such shares.
        """
        n = len(self.shape.sips)
        if self.operation.rooted or n == 1:
            return 0, 0
        number = rank if len(self._blocks) > 1 else 0
        row = self._blocks[number]
        own = -(-int(row[0]) // n) if self.operation.blocks == "one" else int(row[rank])
        itemsize = self.shape.dtype.itemsize
        return own * itemsize, (self._totals[number] - own) * itemsize

    @cached_property
    def _totals(self) -> list[int]:
        """By row of the blocks, the elements that a rank gives."""
        found: list[int] = self._blocks[:, : len(self.shape.sips)].sum(axis=1).tolist()
        return found

    @cached_property
    def planned(self) -> bool:
        """Whether every channel has a plan, so that no live run is needed."""
        return all(channel.planned for channel in self.channels)

    @cached_property
    def at_once(self) -> bool:
        """Whether ranks that begin at once can be timed as one, in all channels."""
        used: set[Hashable] = set()
        for channel in self.channels:
            once = channel.at_once
            if once is None or not used.isdisjoint(once.ways.kinds):
                return False
            used.update(once.ways.kinds)
        return True

    @cached_property
    def given(self) -> list[tuple[int, int]]:
        """By rank, the first element of its input in its buffer, and the number of elements."""
        root, n = self.shape.root, len(self.shape.sips)
        return [self._region(rank, self.operation.given(rank, n, root)) for rank in range(n)]

    @cached_property
    def begins(self) -> list[int]:
        """By rank, the first element of its input in its buffer."""
        return [begin for begin, _ in self.given]

    @cached_property
    def taken(self) -> list[tuple[int, int]]:
        """By rank, the first element of its output in its buffer, and the number of elements."""
        root, n = self.shape.root, len(self.shape.sips)
        return [self._region(rank, self.operation.taken(rank, n, root)) for rank in range(n)]

    def runs(self, channel: int, rank: int) -> list[tuple[range, slice]]:
        """Returns the chunks of a rank's output in a channel, with their places in the output.

        Chunks that lie side by side form a run; all chunks of a run but the last one are full.

        Args:
            rank: Rank inside the group.
        """
        found = self._runs.get((channel, rank))
        if found is None:
            layout = self.channels[channel].layout
            n, first = len(self.shape.sips), self.taken[rank][0]
            blocks = self.operation.taken(rank, n, self.shape.root)
            found, full = [], False
            for chunk in range(blocks.start * layout.parts, blocks.stop * layout.parts):
                low, high = layout.extent(rank, chunk)
                if low == high:
                    continue
                chunks, begin = range(chunk, chunk + 1), low - first
                if full and found[-1][0].stop == chunk and found[-1][1].stop == begin:
                    before, where = found.pop()
                    chunks, begin = range(before.start, chunk + 1), where.start
                found.append((chunks, slice(begin, high - first)))
                full = high - low == layout.nominal
            self._runs[channel, rank] = found
        return found

    def _region(self, rank: int, blocks: range) -> tuple[int, int]:
        row = rank if len(self._blocks) > 1 else 0
        if not blocks:
            return 0, 0
        begin = int(self._offsets[row, blocks.start])
        return begin, int(self._blocks[row, blocks.start : blocks.stop].sum())

    def kept(self, rank: int) -> tuple[tuple[int, int], tuple[int, int]] | None:
        """Returns the part of the buffer that a rank sends to itself, and the part where it lands.

        Each part is a first element and a number of elements. None for operations without such a
        part.

        Args:
            rank: Rank inside the group.
        """
        moved = self.operation.kept(rank, len(self.shape.sips))
        if moved is None:
            return None
        source, target = (self._region(rank, range(block, block + 1)) for block in moved)
        return source, target

    @cached_property
    def recipes(self) -> list[Recipe]:
        """How each channel computes its outputs; made only while data is on."""
        found = []
        n = len(self.shape.sips)
        for channel in self.channels:
            assert channel.plan is not None
            parts, scratch, *_ = channel.plan.cuts
            chunks = (self.operation.count(n) + scratch) * parts
            kept = []
            for rank in range(n):
                moved = self.operation.kept(rank, n)
                kept += [
                    (rank, moved[0] * parts + part, moved[1] * parts + part)
                    for part in range(parts if moved is not None else 0)
                    if moved is not None
                ]
            found.append(recipe(channel.plan, chunks, kept))
        return found

    def rows(self, channel: int) -> Rows | None:
        """Returns the rows that compute a channel; None if the recipe is too large for rows."""
        if channel not in self._rows:
            how, nominal = self.recipes[channel], self.channels[channel].layout.nominal
            dtype = self.shape.dtype.numpy
            small = nominal is not None and Rows.needed(how, nominal, dtype) <= SMALL
            self._rows[channel] = (
                Rows(how, nominal, dtype, self._machine.scratch)
                if small and nominal is not None
                else None
            )
        return self._rows[channel]

    @cached_property
    def same_everywhere(self) -> bool:
        """Whether all ranks end with the same values."""
        return (
            self.operation.takes == "all"
            and self.operation.blocks != "pairs"
            and all(bool((how.final == how.final[0]).all()) for how in self.recipes)
        )
