"""First come, first served, without an event."""

from kernbench.des.core import EventLoop
from kernbench.des.holds import Holds


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
        timely: Whether reservations come in the order of simulated time; they do if it is shared.
        holds: Notes the reservations for those who go beside them; None if nobody asks.
    """

    __slots__ = ("_latest", "_loop", "free", "holds", "shared", "timely")

    def __init__(self, *, shared: bool = False, loop: EventLoop | None = None) -> None:
        self.free = 0
        self.shared = self.timely = shared
        self.holds: Holds | None = None
        self._latest = 0
        self._loop = loop

    def share(self, loop: EventLoop) -> None:
        """Lets several requesters use the resource from now on.

        Args:
            loop: The loop that keeps the simulated time, and may clamp late calls.
        """
        self.shared = True
        self.keep_order(loop)

    def keep_order(self, loop: EventLoop) -> None:
        """Takes reservations in the order of simulated time from now on.

        Args:
            loop: As for `share`.
        """
        self.timely, self._loop = True, loop

    def reserve(self, time: int, duration: int) -> int:
        """Reserves the resource for a request and returns when the request is done, in picoseconds.

        Args:
            time: When the request comes, in picoseconds.
            duration: How long the request takes, in picoseconds, alone.
        """
        if self.timely:
            if time < self._latest:
                time = self._late(time)
            self._latest = time
        start = time if time > self.free else self.free
        self.free = start + (duration if self.holds is None else self.holds.take(start, duration))
        return self.free

    def _late(self, time: int) -> int:
        loop = self._loop
        assert loop is not None, "a shared resource is reserved in simulated-time order"
        return loop.late(time, self._latest)
