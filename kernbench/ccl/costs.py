"""What the messages of a collective cost the engines of a PE, and what was sent when."""

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from kernbench.hw.pe import PeCosts, PeTimeline, Time
from kernbench.hw.queue import QueueSpec
from kernbench.memory import DType, Space

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class PieceTimes:
    """What one message costs the engines of a PE, in picoseconds; ints or arrays over ranks.

    Attributes:
        port: Port of the memory that tensors live in.
        dma: DMA engine.
        copy: Out of the slot.
        math: Addition.
    """

    port: Any
    dma: Any
    copy: Any
    math: Any


class StepCosts:
    """Costs of the pieces of one collective, and the order in which they book the engines.

    Args:
        pe: The PE.
        queue: How queues are built.
        dtype: Element type.

    Attributes:
        piece: Elements in a full message.
        memory_latency: Of the memory that tensors live in.
        slot_latency: Of the memory that slots live in.
    """

    def __init__(self, pe: PeCosts, queue: QueueSpec, dtype: DType) -> None:
        self.pe: Final = pe
        self.queue: Final = queue
        self.itemsize: Final = dtype.itemsize
        self.piece: Final = queue.slot_size // dtype.itemsize
        self.memory_latency: Final = pe.memory(Space.HBM).latency
        self.slot_latency: Final = pe.memory(queue.space).latency
        self.times: Final[Callable[[int], PieceTimes]] = cache(self._times)

    def _times(self, count: int) -> PieceTimes:
        nbytes = count * self.itemsize
        return PieceTimes(
            self.pe.memory(Space.HBM).bandwidth.duration_ps(nbytes),
            self.pe.dma(nbytes),
            self.pe.memory(self.queue.space).bandwidth.duration_ps(nbytes),
            self.pe.math(count),
        )

    def load(self, pe: PeTimeline[Time], times: PieceTimes) -> Time:
        """Issues the load of a piece; returns when it is there."""
        pe.issue()
        return pe.load(pe.book_port(times.port), times.dma, self.memory_latency)

    def store(
        self, pe: PeTimeline[Time], times: PieceTimes, local: Time | None, arrived: Time
    ) -> None:
        """Issues the store of a piece that has left its slot, added to `local` if that is given."""
        if local is not None:
            pe.issue()
            arrived = pe.math(pe.later(local, arrived), times.math)
        pe.issue()
        pe.store(arrived, pe.book_port(times.port), times.dma, self.memory_latency)

    def move(self, pe: PeTimeline[Time], times: PieceTimes, *, reduce: bool) -> None:
        """Books the move of a piece to another place of the buffer, added to what is there."""
        ready = self.load(pe, times)
        local = self.load(pe, times) if reduce else None
        self.store(pe, times, local, ready)


def pass_over(queue: QueueSpec, own: int) -> int:
    """Returns how long a rank is busy with the share that it has in charge, and with nothing else.

    NCCL's kernels go through a buffer in loops of few chunks. In each loop the first primitive only
    sends and the last only receives, or copies to the output (src/device/all_gather.h and its
    neighbours); meanwhile a link idles. Measured, a loop takes about a third of a chunk's time on
    the link longer than its messages.

    Args:
        queue: How queues are built.
        own: Bytes of the share.
    """
    return 0 if queue.own_share is None else queue.own_share.duration_ps(own)


@dataclass(frozen=True, slots=True)
class Span:
    """What one rank sent to a peer in one step, in picoseconds.

    Attributes:
        sender: Rank in the group.
        receiver: Rank in the group.
        elements: How many went over.
        sent: When the first message started into its first link.
        injected: When the last one was in it.
        arrived: When the first one was in its slot.
        received: When the last one had left its slot.
    """

    sender: int
    receiver: int
    elements: int
    sent: int
    injected: int
    arrived: int
    received: int
