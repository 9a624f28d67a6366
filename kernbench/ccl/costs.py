"""The time that messages of a collective take from the engines of a PE, and records of messages."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kernbench.caches import cached
from kernbench.hw.pe import PeCosts, PeTimeline, Time
from kernbench.hw.queue import QueueSpec
from kernbench.memory import DType, Space
from kernbench.topology.spec import SystemSpec

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class PieceTimes:
    """How long one message keeps the engines of a PE busy.

    Times are in picoseconds: ints, or arrays over ranks.

    Attributes:
        port: Time of the port of the memory that tensors live in.
        dma: Time of the DMA engine.
        copy: Time of the copy out of the slot.
        math: Time of the addition on the MATH engine.
    """

    port: Any
    dma: Any
    copy: Any
    math: Any


class StepCosts:
    """Costs of the pieces of one collective, and the order in which they book the engines.

    Times are in picoseconds: ints for one PE, arrays over ranks for several PEs.

    Args:
        pe: The PE, or the PE of each rank. Ranks whose PEs are alike have the same object.
        queue: How queues are built.

    Attributes:
        queue: How queues are built.
        itemsize: Bytes of an element.
        piece: Elements in a full message.
        issue: Issue time of one tile command.
        poll_interval: Time between two looks at a queue.
        memory_latency: Latency of the memory that tensors live in.
        slot_latency: Latency of the memory that slots live in.
        times: Returns the times of a piece of so many elements; answers are kept.
    """

    def __init__(self, pe: PeCosts | Sequence[PeCosts], queue: QueueSpec, dtype: DType) -> None:
        pes = [pe] if isinstance(pe, PeCosts) else pe
        self._kinds: Final = list({id(one): one for one in pes}.values())
        kinds = {id(one): kind for kind, one in enumerate(self._kinds)}
        self._ranks: Final = np.array([kinds[id(one)] for one in pes])
        self.queue: Final = queue
        self.itemsize: Final = dtype.itemsize
        self.piece: Final = queue.slot_size // dtype.itemsize
        self.issue: Final = self._each(lambda one: one.pe.issue)
        self.poll_interval: Final = self._each(lambda one: one.pe.poll_interval)
        self.memory_latency: Final = self._each(lambda one: one.memory(Space.HBM).latency)
        self.slot_latency: Final = self._each(lambda one: one.memory(queue.space).latency)
        self.times: Final[Callable[[int], PieceTimes]] = cached("ccl.piece_times")(self._times)

    def _each(self, cost: "Callable[[PeCosts], int]") -> Any:
        """Returns a cost of the PE; for PEs that differ, an array over ranks."""
        if len(self._kinds) == 1:
            return cost(self._kinds[0])
        return np.array([cost(one) for one in self._kinds], np.int64)[self._ranks]

    def _times(self, count: int) -> PieceTimes:
        nbytes, space = count * self.itemsize, self.queue.space
        return PieceTimes(
            self._each(lambda one: one.memory(Space.HBM).bandwidth.duration_ps(nbytes)),
            self._each(lambda one: one.dma(nbytes)),
            self._each(lambda one: one.memory(space).bandwidth.duration_ps(nbytes)),
            self._each(lambda one: one.math(count)),
        )

    def load(self, pe: PeTimeline[Time], times: PieceTimes) -> Time:
        """Issues the load of a piece; returns when the piece is there."""
        pe.issue()
        return pe.load(pe.book_port(times.port), times.dma, self.memory_latency)

    def store(
        self, pe: PeTimeline[Time], times: PieceTimes, local: Time | None, arrived: Time
    ) -> None:
        """Issues the store of a piece that has left its slot; with `local`, its addition first.

        Args:
            pe: Engines of the PE.
            local: When the piece to add is loaded; None for no addition.
            arrived: When the piece has left its slot.
        """
        if local is not None:
            pe.issue()
            arrived = pe.math(pe.later(local, arrived), times.math)
        pe.issue()
        pe.store(arrived, pe.book_port(times.port), times.dma, self.memory_latency)

    def move(self, pe: PeTimeline[Time], times: PieceTimes, *, reduce: bool) -> None:
        """Books the move of a piece to another place of the same buffer.

        Args:
            pe: Engines of the PE.
            reduce: Whether the piece is added to the elements at the new place.
        """
        ready = self.load(pe, times)
        local = self.load(pe, times) if reduce else None
        self.store(pe, times, local, ready)


class RankCosts:
    """Costs of the messages of one collective for each of its ranks.

    Args:
        pes: PE of each rank; ranks whose PEs are alike have the same object.
        queue: How queues are built.

    Attributes:
        pes: PE of each rank.
        alike: Whether all PEs are alike.
        together: Costs for all ranks at once: ints if all PEs are alike, else arrays over ranks.
        each: Costs by rank.
    """

    def __init__(self, pes: Sequence[PeCosts], queue: QueueSpec, dtype: DType) -> None:
        found: dict[int, StepCosts] = {}
        for pe in pes:
            if id(pe) not in found:
                found[id(pe)] = StepCosts(pe, queue, dtype)
        self.pes: Final = pes
        self.each: Final[Sequence[StepCosts]] = [found[id(pe)] for pe in pes]
        self.alike: Final = len(found) == 1
        self.together: Final = self.each[0] if self.alike else StepCosts(pes, queue, dtype)


def added_on(pes: Sequence[PeCosts], queue: QueueSpec) -> list[PeCosts]:
    """Returns the PE of each rank, with the additions of all that work on a collective.

    Args:
        pes: PE of each rank; of those that are alike the same object, also in what is returned.
        queue: How queues are built.
    """
    found = {id(pe): pe for pe in pes}
    found = {key: pe.times(queue.pes) for key, pe in found.items()}
    return [found[id(pe)] for pe in pes]


def launches_of(queue: QueueSpec, system: SystemSpec, sips: Sequence[int]) -> list[int]:
    """Returns the start-up time of each rank of a collective, in picoseconds.

    Args:
        queue: How queues are built; a start-up in it holds for all ranks.
        system: The machine.
        sips: Device of each rank.
    """
    if queue.launch is not None:
        return [queue.launch] * len(sips)
    return [system.sip_of(sip).collective_launch for sip in sips]


def pass_over(queue: QueueSpec, own: int, others: int) -> int:
    """Returns how long a rank is busy with shares beside its exchanges, in picoseconds.

    The own share is the part of the data that the rank reduces or forwards itself. NCCL's kernels
    go through a buffer in loops of few chunks. In each loop the first primitive only sends and the
    last one only receives, or copies to the output (src/device/all_gather.h and its neighbours);
    meanwhile a link idles. In measurements a loop takes longer than its messages need on the link,
    by about a third of a chunk's time.

    Grouped sends and receives copy the own share on channels of its own, beside the messages. There
    what the loops lose goes with the bytes that are sent to others, whatever the number of ranks.

    Args:
        queue: How queues are built.
        own: Bytes of the own share.
        others: Bytes that the rank sends to others.
    """
    time = 0 if queue.own_share is None else queue.own_share.duration_ps(own)
    return time if queue.sent_share is None else time + queue.sent_share.duration_ps(others)


@dataclass(frozen=True, slots=True)
class Span:
    """The messages of one rank to a peer in one step; times in picoseconds.

    Attributes:
        sender: Rank in the group.
        receiver: Rank in the group.
        elements: Number of elements in all messages.
        sent: When the first message started into its first link.
        injected: When the last message was in its first link.
        arrived: When the first message was in its slot.
        received: When the last message had left its slot.
    """

    sender: int
    receiver: int
    elements: int
    sent: int
    injected: int
    arrived: int
    received: int
