"""First come, first served, without an event."""

from bisect import bisect_left, bisect_right
from typing import Final

from kernbench.des.core import EventLoop

_MANY: Final = 1024
"""Holds that are remembered at least, before those are forgotten that are over."""


class Beside(int):
    """A duration, in picoseconds, of a request that leaves room for others beside it.

    Sums and products are plain numbers again, of a request that leaves none.
    """


class Holds:
    """When a resource is held, for those who go beside its requests and give way to them.

    Args:
        loop: The loop whose time is meant.
        notice: Picoseconds; who comes less than this before a hold begins gives way to it, too.

    Attributes:
        notice: As above.
    """

    __slots__ = ("_begins", "_ends", "_loop", "_most", "notice")

    def __init__(self, loop: EventLoop, notice: int) -> None:
        self.notice: Final = notice
        self._loop = loop
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._most = _MANY

    def add(self, begin: int, end: int) -> None:
        """Notes a hold that begins no earlier than the one before it; times in picoseconds."""
        self._begins.append(begin)
        self._ends.append(end)
        if len(self._ends) > self._most:
            over = bisect_right(self._ends, self._loop.now - self.notice)
            del self._begins[:over], self._ends[:over]
            self._most = max(_MANY, 2 * len(self._ends))  # so that the work stays linear

    def room(self, time: int) -> int:
        """Returns when somebody may begin who comes at a time: then, or as a hold ends.

        All holds must be noted that begin less than `notice` after that time. The loop may be that
        far ahead, and no further.

        Args:
            time: When he comes, in picoseconds.
        """
        last = bisect_left(self._begins, time + self.notice) - 1
        return time if last < 0 else max(time, self._ends[last])


class Fifo:
    """A resource that serves one request after the other; each request reserves its time at once.

    With one requester, reservations may come at any moment of the host, for any local time. With
    several requesters, reservations must come in the order of simulated time (ADR 0004); an
    assertion fails when one asks for an earlier time than the one before it, unless its loop clamps
    late calls.

    Args:
        shared: Whether more than one requester exists.
        loop: The loop whose time is meant, which may clamp late calls; None if none does.

    Attributes:
        free: When the last reservation ends, in picoseconds.
        shared: Whether more than one requester exists.
        holds: Notes the reservations that are not `Beside`; None if nobody gives way to them.
    """

    __slots__ = ("_latest", "_loop", "free", "holds", "shared")

    def __init__(self, *, shared: bool = False, loop: EventLoop | None = None) -> None:
        self.free = 0
        self.shared = shared
        self.holds: Holds | None = None
        self._latest = 0
        self._loop = loop

    def share(self, loop: EventLoop) -> None:
        """Lets several requesters use the resource from now on.

        Args:
            loop: The loop that keeps the simulated time, and may clamp late calls.
        """
        self.shared, self._loop = True, loop

    def reserve(self, time: int, duration: int) -> int:
        """Reserves the resource for a request and returns when the request is done, in picoseconds.

        Args:
            time: When the request comes, in picoseconds.
            duration: How long the request takes, in picoseconds.
        """
        if self.shared:
            if time < self._latest:
                time = self._late(time)
            self._latest = time
        start = time if time > self.free else self.free
        self.free = start + duration
        if self.holds is not None and type(duration) is not Beside:
            self.holds.add(start, self.free)
        return self.free

    def _late(self, time: int) -> int:
        loop = self._loop
        assert loop is not None, "a shared resource is reserved in simulated-time order"
        return loop.late(time, self._latest)
