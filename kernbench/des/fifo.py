"""First come, first served, without an event."""


class Fifo:
    """A resource that serves one request after the other; each request reserves its time at once.

    With one requester, reservations may come at any moment of the host, for any local time. With
    several requesters, reservations must come in the order of simulated time (ADR 0004); an
    assertion fails when one asks for an earlier time than the one before it.

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
        """Reserves the resource for a request and returns when the request is done, in picoseconds.

        Args:
            time: When the request comes, in picoseconds.
            duration: How long the request takes, in picoseconds.
        """
        if self.shared:
            assert time >= self._latest, "a shared resource is reserved in simulated-time order"
            self._latest = time
        start = time if time > self.free else self.free
        self.free = start + duration
        return self.free
