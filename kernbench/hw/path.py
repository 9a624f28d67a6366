"""How long a message takes along a route that nobody else uses: cut-through, hop by hop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from kernbench.caches import Table
from kernbench.hw.pe import PeTimeline, Time
from kernbench.topology import Link
from kernbench.units import Bandwidth, Rate


@dataclass(frozen=True, slots=True)
class Hop:
    """One stage of a path.

    Attributes:
        bandwidth: Rate of the stage.
        latency: Time until the first byte is at the next stage, in picoseconds.
        link: Index of the stage's link, or of the last link for a crossing of switches; -1 inside a
            cube.
        fluid: Whether the stage is a crossing of switches.
    """

    bandwidth: Rate
    latency: int
    link: int
    fluid: bool = False


@dataclass(frozen=True, slots=True)
class HopTimes:
    """How long one message occupies one hop: picoseconds, or arrays of them over ranks.

    Attributes:
        full: Time of the whole message.
        head: Time of the first virtual-channel chunk, after which the next hop may begin.
        tail: Time of the last virtual-channel chunk.
    """

    full: Any
    head: Any
    tail: Any


def hops_of(route: Sequence[Link], dma: Bandwidth) -> tuple[Hop, ...]:
    """Returns the stages of a route.

    The sender's DMA engine feeds the first link directly, so the two are one stage as fast as the
    slower of them. Consecutive fluid links (the two ports of a switch, the way through leaves and
    spines) are one stage too: a flow alone on them goes at the rate of the slowest.
    """
    if not route:
        return (Hop(dma, 0, -1),)
    stages: list[Hop] = []
    for link in route:
        previous = stages[-1] if stages else None
        if link.kind == "fluid" and previous is not None and previous.fluid:
            slower = min(previous.bandwidth, link.bandwidth, key=lambda rate: rate.per_second)
            stages[-1] = Hop(slower, previous.latency + link.latency, link.index, fluid=True)
        else:
            fluid = link.kind == "fluid"
            stages.append(Hop(link.bandwidth, link.latency, link.index, fluid))
    first = stages[0]
    slower = min(first.bandwidth, dma, key=lambda rate: rate.per_second)
    stages[0] = replace(first, bandwidth=slower)
    return tuple(stages)


class Path:
    """The stages between two PEs, with the cost of messages by size.

    Args:
        route: Links in order; empty between PEs of one cube.
        dma: Rate of the sender's DMA engine.
        vc_chunk: Size of the virtual-channel chunks into which messages are cut, in bytes.
    """

    def __init__(self, route: Sequence[Link], dma: Bandwidth, vc_chunk: int) -> None:
        self.links: Final = tuple(link.index for link in route)
        self.route: Final = tuple(route)
        self.hops: Final = hops_of(route, dma)
        self._dma = dma
        self._vc_chunk = vc_chunk
        self._costs: Final[Table[int, tuple[HopTimes, ...]]] = Table("hw.message_times")

    @property
    def injecting(self) -> tuple[int, ...]:
        """Indices of the links of the first stage, into which the sender's engine sends."""
        fifos = (number for number, link in enumerate(self.route) if link.kind != "fluid")
        return self.links[: max(next(fifos, len(self.route)), 1)]

    def like(self, other: "Path") -> bool:
        """Returns whether messages cost the same on both."""
        return self is other or (
            self.links == other.links
            and self.hops == other.hops
            and (self._dma, self._vc_chunk) == (other._dma, other._vc_chunk)
        )

    @property
    def latency(self) -> int:
        """Time of flight of the first byte over all hops, in picoseconds."""
        return sum(hop.latency for hop in self.hops)

    def times(self, nbytes: int) -> tuple[HopTimes, ...]:
        """Returns how long a message of `nbytes` occupies each hop."""
        times = self._costs.get(nbytes)
        if times is None:
            head = min(nbytes, self._vc_chunk)
            tail = nbytes - (-(-nbytes // self._vc_chunk) - 1) * self._vc_chunk if nbytes else 0
            times = tuple(
                HopTimes(*(hop.bandwidth.duration_ps(part) for part in (nbytes, head, tail)))
                for hop in self.hops
            )
            self._costs.keep(nbytes, times)
        return times

    def tail(self, messages: int, nbytes: int) -> int:
        """Returns how long later hops may be busy after the sender is done, in picoseconds.

        The last messages queue up before the slowest hop, and each hop may begin a head late.

        Args:
            messages: Most messages under way at once.
            nbytes: Size of the largest message.
        """
        times = self.times(nbytes)
        slowest = max((hop.full for hop in times[1:]), default=0)
        return messages * slowest + sum(hop.head for hop in times) if slowest else 0

    def credit_delay(self, nbytes: int) -> int:
        """Returns the picoseconds that a credit travels; credits do not contend with messages."""
        slowest = min((hop.bandwidth for hop in self.hops), key=lambda rate: rate.per_second)
        return self.latency + slowest.duration_ps(nbytes)


def transmit(
    pe: PeTimeline[Time],
    ready: Time,
    times: Sequence[HopTimes],
    latencies: Sequence[Any],
    free: list[Time],
    later: Callable[[Time, Time], Time],
    onward: Callable[[Time, Time], Time] | None = None,
) -> Time:
    """Sends a message along hops that nobody else uses, and returns when it has arrived.

    Times are in picoseconds: ints for one sender, arrays over ranks for all of them.

    Args:
        pe: Engines of the sender.
        ready: When the tile may leave.
        times: How long the message occupies each hop.
        latencies: Latency of each hop.
        free: Next free time of each hop after the first, which the sender's engine keeps; brought
            up to date.
        later: The maximum for this kind of time.
        onward: Takes the message over hops that come after all of these, given when it starts into
            the last of these and when that one is free again; returns when the message has
            arrived. None if there are no more.
    """
    first = times[0]
    start = pe.send(ready, first.full)
    end = start + first.full
    previous, latency = first, latencies[0]
    for index, hop in enumerate(times[1:]):
        start = later(start + previous.head + latency, free[index])
        end = later(start + hop.full, end + latency + hop.tail)
        free[index] = end
        previous, latency = hop, latencies[index + 1]
    if onward is not None:
        return onward(start, end)
    arrival: Time = end + latency
    return arrival


@dataclass(frozen=True, slots=True)
class FarTimes:
    """How long messages occupy the later hops of some paths: arrays over paths and hops.

    Attributes:
        full: Time of the whole message on each hop, in picoseconds.
        starts: Picoseconds from the start into the hop before the first of these until the start
            into each hop, if all are free.
        ends: Least picoseconds from the end of the hop before the first of these until the end of
            each hop.
    """

    full: Any
    starts: Any
    ends: Any


class FarHops:
    """The later hops of paths that have many of them, which nobody else uses.

    Does what `transmit` does, on all these hops at once. Both its recurrences are maxima of what
    comes before plus a constant; less the sum of the constants so far, they are running maxima.

    Args:
        paths: The paths; missing hops take no time.
        first: Index of the first of these hops; every path has one before it.

    Attributes:
        free: Next free time of each hop, in picoseconds, array over paths and hops; brought up to
            date.
    """

    def __init__(self, paths: Sequence[Path], first: int) -> None:
        self._paths: Final = paths
        self._first: Final = first
        hops = max(len(path.hops) for path in paths)
        latencies = [[hop.latency for hop in path.hops] for path in paths]
        self._latencies: Final = np.array(
            [[*row, *([0] * (hops - len(row)))] for row in latencies], np.int64
        )
        self.free = np.zeros((len(paths), hops - first), np.int64)

    def times(self, nbytes: int) -> FarTimes:
        """Returns how long a message of `nbytes` occupies each hop."""
        first, before = self._first, self._latencies[:, self._first - 1 : -1]
        hops = stack([path.times(nbytes) for path in self._paths])
        heads = np.stack([hop.head for hop in hops[first - 1 : -1]], axis=1)
        tails = np.stack([hop.tail for hop in hops[first:]], axis=1)
        return FarTimes(
            np.stack([hop.full for hop in hops[first:]], axis=1),
            np.cumsum(heads + before, axis=1),
            np.cumsum(tails + before, axis=1),
        )

    def pass_on(self, times: FarTimes, start: Any, end: Any) -> Any:
        """Sends a message over the hops; returns when it has arrived.

        Args:
            times: How long the message of each path occupies each hop.
            start: When the message of each path starts into the hop before, in picoseconds.
            end: When that hop is free again.
        """
        starts = np.maximum(start[:, None], np.maximum.accumulate(self.free - times.starts, axis=1))
        starts += times.starts + times.full - times.ends
        ends = np.maximum(end[:, None], np.maximum.accumulate(starts, axis=1)) + times.ends
        self.free = ends
        return ends[:, -1] + self._latencies[:, -1]


def stack(times: Sequence[Sequence[HopTimes]]) -> list[HopTimes]:
    """Returns the times of one message per rank as arrays over ranks, hop by hop.

    Args:
        times: For each rank, the times of its message on each hop; missing hops take no time.
    """
    hops = max(len(row) for row in times)
    none = HopTimes(0, 0, 0)
    padded = [[*row, *([none] * (hops - len(row)))] for row in times]
    return [
        HopTimes(
            *(
                np.array([getattr(row[hop], part) for row in padded], np.int64)
                for part in ("full", "head", "tail")
            )
        )
        for hop in range(hops)
    ]
