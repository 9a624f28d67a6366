"""First come, first served, without an event."""


class Fifo:
    """A resource that serves one request after the other, as a reservation.

    With one requester it may be reserved at any host moment, for any local time. With several it
    may be reserved only in simulated-time order (ADR 0004), which is asserted: a reservation may
    not ask for an earlier time than the one before it.

    Attributes:
        free: When the last reservation ends, in picoseconds.
        shared: Whether more than one requester exists.
    """

    __slots__ = ("_latest", "free", "shared")

    def __init__(self, *, shared: bool = False) -> None:
        self.free = 0
        self.shared = shared
        self._latest = 0

    def reserve(self, time: int, duration: int) -> int:
        """Returns when a request of `time` that takes `duration` is done."""
        if self.shared:
            assert time >= self._latest, "a shared resource is reserved in simulated-time order"
            self._latest = time
        start = time if time > self.free else self.free
        self.free = start + duration
        return self.free
