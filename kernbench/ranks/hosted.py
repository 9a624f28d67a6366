"""A collective, or a message, between the hosts of ranks: what Gloo does with tensors on the CPU.

Its time is the textbook's, from the latency and the bandwidth of a message between two hosts
(`HostSpec.gloo`): a ring for all-reduce, all-gather and reduce-scatter, a binomial tree for
broadcast and reduce, one message after the other for gather, scatter and all-to-all. An operation
begins when the last rank arrives and ends for all ranks at once. Operations do not contend for the
link, and reductions take no time. Values are combined in the order of the ranks, each partial
result rounded to the tensor's type (ADR 0019).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import accumulate, pairwise
from typing import Final, Protocol

import numpy as np

from kernbench.ccl.operations import OPERATIONS, Operation, Reduction, average
from kernbench.errors import KernbenchError
from kernbench.hw.pe import later
from kernbench.memory import Array, DType, View
from kernbench.memory.arithmetic import function_named
from kernbench.sim_engine.command import Command
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology.spec import LinkSpec

ALGORITHM: Final = "gloo"
"""Name of the algorithm in the log."""


def duration_ps(link: LinkSpec, operation: str, ranks: int, nbytes: int) -> int:
    """Returns how long an operation takes once all ranks have come, in picoseconds.

    Args:
        link: Latency and bandwidth of a message between two hosts.
        operation: A key of `OPERATIONS`.
        ranks: Number of ranks that take part.
        nbytes: Bytes as nccl-tests counts them; for `all_to_all`, the most bytes that a rank sends
            to, or receives from, the other ranks.
    """
    others = ranks - 1
    if not others:
        return 0
    if operation == "send_recv":
        messages, moved = 1, nbytes
    elif operation in {"broadcast", "reduce"}:
        rounds = others.bit_length()
        messages, moved = rounds, rounds * nbytes
    elif operation == "all_to_all":
        messages, moved = others, nbytes
    else:
        # In a ring, or at the root: all but the rank's own share, a message for each other rank.
        messages, moved = others, -(-nbytes * others // ranks)
        if operation == "all_reduce":
            messages, moved = 2 * messages, 2 * moved
    return messages * link.latency + link.bandwidth.duration_ps(moved)


@dataclass(slots=True, eq=False)
class _Part:
    """One rank of a collective.

    Attributes:
        sends: Elements that go to each rank; only for `all_to_all`.
        fault: Error of reading what the rank gives; None without an error.
    """

    command: Command
    start: int
    sources: Sequence[View]
    targets: Sequence[View]
    sends: Sequence[int]
    fault: KernbenchError | None = None


class Given(Protocol):
    """What one rank gives."""

    @property
    def sources(self) -> Sequence[View]:
        """Views of its blocks, in order."""
        ...

    @property
    def sends(self) -> Sequence[int]:
        """Elements that go to each rank; only for `all_to_all`."""
        ...


@dataclass(frozen=True, slots=True)
class HostExchange:
    """The values of an operation between hosts.

    Attributes:
        operation: The operation.
        dtype: Element type.
        sizes: Elements of each block; empty for `all_to_all`, in which each rank gives its own.
        reduction: How values are combined; None for operations that combine none.
        root: Rank inside the group of the source or destination, for operations that have one.
    """

    operation: Operation
    dtype: DType
    sizes: Sequence[int]
    reduction: Reduction | None
    root: int

    def evaluate(self, parts: Mapping[int, Given]) -> dict[int, Array]:
        """Returns the elements that each rank receives, by rank inside the group.

        Args:
            parts: What each rank of the group gives, by rank inside the group.
        """
        operation, ranks = self.operation, len(parts)
        given = [self._given(parts[rank]) for rank in range(ranks)]
        if operation.blocks == "pairs":
            cuts = [[0, *accumulate(parts[rank].sends)] for rank in range(ranks)]
            return {
                rank: np.concatenate(
                    [flat[at[rank] : at[rank + 1]] for flat, at in zip(given, cuts, strict=True)]
                )
                for rank in range(ranks)
            }
        if operation.reduces:
            whole = self._combined(given)
        elif operation.gives == "own":
            whole = np.concatenate(given)
        else:
            whole = given[self.root]
        if operation.takes != "own":
            return dict.fromkeys(range(ranks), whole)
        ends = pairwise([0, *accumulate(self.sizes)])
        return {rank: whole[begin:end] for rank, (begin, end) in enumerate(ends)}

    def _given(self, part: Given) -> Array:
        arrays = [view.array().reshape(-1) for view in part.sources]
        return np.concatenate([np.empty(0, self.dtype.numpy), *arrays])

    def _combined(self, given: Sequence[Array]) -> Array:
        reduction, number = self.reduction, self.dtype.numpy.type
        assert reduction is not None
        factor, divides = reduction.scaling(self.dtype, len(given))
        if factor is not None:
            multiply = function_named("multiply", self.dtype.numpy)
            given = [multiply(flat, number(factor)) for flat in given]
        total: Array = reduce(function_named(reduction.combine, self.dtype.numpy), given)
        if divides:
            average(total, len(given))
        return total


def take(targets: Sequence[View], values: Array) -> None:
    """Writes the elements that a rank receives to its blocks, one after another.

    Args:
        targets: Views of the blocks.
        values: As many elements, flat; they stay the caller's.
    """
    begin = 0
    for view in targets:
        part = values[begin : begin + view.numel].reshape(view.shape)
        begin += view.numel
        if view.nbytes == view.buffer.allocation.nbytes:
            view.adopt(part.copy())
        else:
            view.store(part)


class HostCollective:
    """One collective of the hosts of a group.

    Args:
        engine: Engine that runs the collective.
        operation: A key of `OPERATIONS`.
        ranks: Number of ranks that take part.
        sizes: Elements of each block; empty for `all_to_all`, in which each rank gives its own.
        nbytes: Bytes as nccl-tests counts them.
        reduction: How values are combined; None for operations that combine none.
        root: Rank inside the group of the source or destination, for operations that have one.

    Attributes:
        arrived: Ranks inside the group whose stream has reached the collective.
    """

    def __init__(
        self,
        engine: GraphEngine,
        operation: str,
        ranks: int,
        sizes: Sequence[int],
        nbytes: int,
        dtype: DType,
        reduction: Reduction | None = None,
        root: int = 0,
    ) -> None:
        self.arrived: Final[set[int]] = set()
        self._engine = engine
        self._operation = OPERATIONS[operation]
        self._ranks = ranks
        self._sizes = sizes
        self._nbytes = nbytes
        self._dtype = dtype
        self._reduction = reduction
        self._root = root
        self._parts: dict[int, _Part] = {}
        self._outputs: Mapping[int, Array] | None = None

    def join(
        self,
        place: int,
        gives: Sequence[View],
        takes: Sequence[View],
        sends: Sequence[int] = (),
    ) -> "HostJoining":
        """Returns the work of one rank's command.

        Args:
            place: Rank inside the group.
            gives: Views that the rank gives, in order.
            takes: Views that receive the rank's results, in order; may be those of `gives`.
            sends: Elements that go to each rank; only for `all_to_all`.
        """
        return HostJoining(self, place, gives, takes, sends)

    @property
    def algorithm(self) -> str:
        """Name of the algorithm."""
        return ALGORITHM

    def needs(self, place: int) -> None:
        """Returns None, for all places: the collective ends for all ranks at once."""

    def jam(self) -> None:
        """Returns None: the collective always ends once all ranks have arrived."""

    def drop(self) -> None:
        """Lets go of its ranks, which will not complete."""
        self._parts.clear()

    def arrive(self, place: int, part: _Part) -> None:
        """Adds a rank whose stream has reached the collective."""
        engine = self._engine
        self._parts[place] = part
        self.arrived.add(place)
        if engine.enable_data:
            try:
                for view in part.sources:
                    view.read()
            except KernbenchError as error:
                part.fault = error
        if len(self._parts) < self._ranks:
            return
        link = engine.topology.machine.system.host.gloo
        lasting = 0
        if engine.timed:
            lasting = duration_ps(link, self._operation.name, self._ranks, self._moved())
        end = max(each.start for each in self._parts.values()) + lasting
        faulty = any(each.fault is not None for each in self._parts.values())
        for rank in sorted(self._parts):
            each = self._parts[rank]
            # A fault makes the results worthless; ranks without a fault are aborted in their wait.
            if each.fault is not None or not faulty:
                owner = engine.command_owner(each.command.host.rank)
                engine.loop.at(later(end, engine.loop.now), owner, self._finish, rank, end)

    def _moved(self) -> int:
        if self._operation.blocks != "pairs":
            return self._nbytes
        sent = np.array([self._parts[rank].sends for rank in range(self._ranks)], np.int64)
        np.fill_diagonal(sent, 0)
        return int(max(sent.sum(0).max(), sent.sum(1).max())) * self._dtype.itemsize

    def _finish(self, rank: int, end: int) -> None:
        part = self._parts[rank]
        self._engine.complete(part.command, part.start, end, partial(self._apply, rank))

    def _apply(self, rank: int) -> None:
        part = self._parts[rank]
        if part.fault is not None:
            raise part.fault
        if self._outputs is None:
            # The results of all ranks, before the first rank writes over what it gave.
            self._outputs = self._evaluate()
        take(part.targets, self._outputs[rank])

    def _evaluate(self) -> dict[int, Array]:
        exchange = HostExchange(
            self._operation, self._dtype, self._sizes, self._reduction, self._root
        )
        return exchange.evaluate(self._parts)


class HostJoining:
    """The work of one rank in a `HostCollective`."""

    __slots__ = ("_collective", "_place", "_sends", "_sources", "_targets")

    def __init__(
        self,
        collective: HostCollective,
        place: int,
        sources: Sequence[View],
        targets: Sequence[View],
        sends: Sequence[int],
    ) -> None:
        self._collective = collective
        self._place = place
        self._sources = sources
        self._targets = targets
        self._sends = sends

    def begin(self, command: Command, start: int) -> None:
        """See `Action`."""
        part = _Part(command, start, self._sources, self._targets, self._sends)
        self._collective.arrive(self._place, part)
