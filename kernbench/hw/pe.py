"""When the engines of one PE do things, as recurrences of maxima and sums.

The same lines run on integers (one PE) and on int64 arrays (the PEs of all ranks at once), so the
live run, the replay of a plan and its vectorised form cannot drift apart (ADR 0005).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar

import numpy as np

from kernbench.memory import Space
from kernbench.topology.spec import CubeSpec, MemorySpec, PeSpec, SipSpec
from kernbench.units import FlopRate

Ints = np.ndarray[Any, np.dtype[np.int64]]

Time = TypeVar("Time", int, np.ndarray[Any, np.dtype[np.int64]])
"""Picoseconds: an int, or an array over ranks."""


def later(a: int, b: int) -> int:
    """Returns the later of two times; cheaper than `max`."""
    return a if a > b else b


@dataclass(frozen=True, slots=True)
class PeCosts:
    """Durations of a PE, from the description of its SIP.

    Attributes:
        pe: Engines and scratch memory of the PE.
        cube: Memories of the cube that holds the PE.
    """

    pe: PeSpec
    cube: CubeSpec

    @staticmethod
    def of(sip: SipSpec) -> "PeCosts":
        """Returns the durations of every PE of a SIP."""
        return PeCosts(sip.pe, sip.cube)

    def times(self, pes: int) -> "PeCosts":
        """Returns the durations of several such PEs that add together, as if they were one.

        Args:
            pes: Number of PEs.
        """
        if pes == 1:
            return self
        return replace(self, pe=replace(self.pe, math=FlopRate(pes * self.pe.math.per_second)))

    def memory(self, space: Space) -> MemorySpec:
        """Returns the memory behind an address space of the PE."""
        return {Space.HBM: self.cube.hbm, Space.SRAM: self.cube.sram, Space.TCM: self.pe.tcm}[space]

    def dma(self, nbytes: int) -> int:
        """Returns how long the DMA engine is busy with `nbytes`, in picoseconds."""
        return self.pe.dma.duration_ps(nbytes)

    def math(self, elements: int) -> int:
        """Returns how long the MATH engine is busy with `elements`, in picoseconds."""
        return self.pe.math.duration_ps(elements)

    def multiplies(self, machine_dtype: str) -> bool:
        """Returns whether the machine file gives a rate of products of a type."""
        return machine_dtype in self.pe.gemm.rate

    def gemm(self, machine_dtype: str, m: int, n: int, k: int) -> int:
        """Returns how long the GEMM engine is busy with an m x n x k product, in picoseconds.

        Args:
            machine_dtype: Element type as the machine file names it, such as `bf16`.
            m: Rows of the result.
            n: Columns of the result.
            k: Extent that is summed over.
        """
        return self.pe.gemm.rate[machine_dtype].duration_ps(2 * m * n * k)


_STATE: Final = (
    "clock",
    "port_free",
    "load_free",
    "store_free",
    "send_free",
    "receive_free",
    "math_free",
    "gemm_free",
    "stored",
)


class PeTimeline(Generic[Time]):
    """The clock of a PE's program and the next free times of its engines.

    Each method is one tile command: the program spends `issue`, the engine is booked, and the
    method returns when the result is there. The program itself does not wait for the result. The
    memory port is booked in the order of issue, so that a store whose value is late leaves no hole.

    Times and durations are in picoseconds: ints for one PE, arrays over ranks for all PEs at once.

    Attributes:
        clock: Local time of the program.
        port_free: Next free time of the port of the memory that tensors live in.
        stored: When the last issued store is done.
        later: The maximum for this kind of time.
    """

    __slots__ = (*_STATE, "_issue", "later")

    def __init__(self, start: Time, issue: Time | int, later: Callable[[Time, Time], Time]) -> None:
        self._issue: Time | int = issue
        self.later: Callable[[Time, Time], Time] = later
        self.clock: Time = start
        self.port_free: Time = start
        self.load_free: Time = start
        self.store_free: Time = start
        self.send_free: Time = start
        self.receive_free: Time = start
        self.math_free: Time = start
        self.gemm_free: Time = start
        self.stored: Time = start

    def issue(self) -> Time:
        """Spends the issue of one command; returns the program's time afterwards."""
        self.clock = self.clock + self._issue
        return self.clock

    def book_port(self, duration: Time | int) -> Time:
        """Books the memory port from the program's time on; returns when the bytes are through."""
        self.port_free = self.later(self.clock, self.port_free) + duration
        return self.port_free

    def load(self, through_port: Time, dma: Time | int, latency: Time | int) -> Time:
        """Books the DMA engine for a load; returns when the tile is there.

        Args:
            through_port: When the tile's bytes are through the memory port.
            dma: How long the DMA engine is busy with the bytes.
            latency: Latency of the memory.
        """
        engine = self.later(self.clock, self.load_free) + dma
        self.load_free = self.later(engine, through_port)
        return self.load_free + latency

    def store(self, ready: Time, through_port: Time, dma: Time | int, latency: Time | int) -> Time:
        """Books the DMA engine for a store; returns when the tile is in memory.

        Args:
            ready: When the tile is computed.
            through_port: When the tile's bytes are through the memory port.
            dma: How long the DMA engine is busy with the bytes.
            latency: Latency of the memory.
        """
        later = self.later
        self.store_free = later(later(self.clock, self.store_free), ready) + dma
        done = later(self.store_free, through_port) + latency
        self.stored = later(self.stored, done)
        return done

    def send(self, ready: Time, injection: Time | int) -> Time:
        """Returns when a tile starts into the first link of its path.

        Args:
            ready: When the tile is computed.
            injection: How long the first link is busy with the tile.
        """
        later = self.later
        start = later(later(self.clock, self.send_free), ready)
        self.send_free = start + injection
        return start

    def receive(self, arrival: Time, copy: Time | int, latency: Time | int) -> Time:
        """Waits in local time for a message; returns when the message has left its slot.

        Args:
            arrival: When the message is in its slot.
            copy: How long the copy out of the slot takes.
            latency: Latency of the memory that holds the slots.
        """
        self.clock = self.later(self.clock, arrival)
        self.receive_free = self.later(self.clock, self.receive_free) + copy
        return self.receive_free + latency

    def math(self, ready: Time, duration: Time | int) -> Time:
        """Returns when the MATH engine has worked on operands that are there at `ready`."""
        later = self.later
        self.math_free = later(later(self.clock, self.math_free), ready) + duration
        return self.math_free

    def gemm(self, ready: Time, duration: Time | int) -> Time:
        """Returns when the GEMM engine has worked on operands that are there at `ready`."""
        later = self.later
        self.gemm_free = later(later(self.clock, self.gemm_free), ready) + duration
        return self.gemm_free

    def fence(self) -> Time:
        """Waits in local time until every issued store is done."""
        self.clock = self.later(self.clock, self.stored)
        return self.clock

    def wait_until(self, time: Time) -> Time:
        """Moves the local time to `time`, unless the local time is later."""
        self.clock = self.later(self.clock, time)
        return self.clock

    def state(self) -> list[Time]:
        """Returns every time that later commands depend on."""
        return [getattr(self, name) for name in _STATE]

    def shift(self, by: int) -> None:
        """Moves every time by the same number of picoseconds."""
        for name in _STATE:
            setattr(self, name, getattr(self, name) + by)

    def take(self: "PeTimeline[Ints]", others: Ints) -> None:
        """Gives each PE the times that another one has.

        Args:
            others: By PE, the number of the other one.
        """
        for name in _STATE:
            setattr(self, name, getattr(self, name)[others])


class Timeless(PeTimeline[int]):
    """A PE whose commands take no time; a command waits only for the values that it uses."""

    def issue(self) -> int:
        """See `PeTimeline`."""
        return self.clock

    def book_port(self, duration: int) -> int:
        """See `PeTimeline`."""
        return self.clock

    def load(self, through_port: int, dma: int, latency: int) -> int:
        """See `PeTimeline`.

        Args:
            through_port: Not used: nothing takes time.
            dma: Not used: nothing takes time.
            latency: Not used: nothing takes time.
        """
        return self.clock

    def store(self, ready: int, through_port: int, dma: int, latency: int) -> int:
        """See `PeTimeline`.

        Args:
            ready: Not used: nothing takes time.
            through_port: Not used: nothing takes time.
            dma: Not used: nothing takes time.
            latency: Not used: nothing takes time.
        """
        return self.clock

    def send(self, ready: int, injection: int) -> int:
        """See `PeTimeline`."""
        return self.clock

    def receive(self, arrival: int, copy: int, latency: int) -> int:
        """See `PeTimeline`.

        Args:
            arrival: Not used: nothing takes time.
            copy: Not used: nothing takes time.
            latency: Not used: nothing takes time.
        """
        return self.clock

    def math(self, ready: int, duration: int) -> int:
        """See `PeTimeline`."""
        return self.clock

    def gemm(self, ready: int, duration: int) -> int:
        """See `PeTimeline`."""
        return self.clock

    def wait_until(self, time: int) -> int:
        """See `PeTimeline`."""
        return self.clock
