"""Who holds a resource when, and who goes beside: each gives way to the other (ADR 0047)."""

from bisect import bisect_left, bisect_right
from typing import Final, Protocol

from kernbench.des.core import EventLoop

_MANY: Final = 1024
"""Holds that are remembered at least, before those are forgotten that are over."""


class Beside(int):
    """A duration, in picoseconds, of a request that leaves room for others beside it.

    Sums and products are plain numbers again, of a request that leaves none.
    """


class Guest(Protocol):
    """What goes on beside the requests of a resource.

    Attributes:
        start: When it begins, in picoseconds.
        slows: By how many percent of their rate it slows the requests that begin beside it.
        slowed: By how many percent of its rate such a request slows it.
    """

    start: int
    slows: int
    slowed: int

    def ends(self) -> int | None:
        """Returns when it is expected to end, in picoseconds; None if nobody knows."""
        ...

    def put_off(self, by: int) -> None:
        """Lets it end later, by so many picoseconds."""
        ...


class Holds:
    """When a resource is held, for those who go beside its requests and give way to them.

    Requests that are `Beside` do not count.

    Args:
        loop: The loop whose time is meant.
        notice: Picoseconds; who comes less than this before a hold begins gives way to it, too.

    Attributes:
        notice: As above.
        guests: Those who have begun, or are about to, and are not over.
    """

    __slots__ = ("_begins", "_ends", "_loop", "_most", "guests", "notice")

    def __init__(self, loop: EventLoop, notice: int) -> None:
        self.notice: Final = notice
        self.guests: Final[dict[Guest, None]] = {}
        self._loop = loop
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._most = _MANY

    def add(self, begin: int, end: int) -> None:
        """Notes a hold that begins no earlier than the one before it; times in picoseconds."""
        self._begins.append(begin)
        self._ends.append(end)
        if len(self._ends) > self._most:
            self._forget()

    def _forget(self) -> None:
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

    def take(self, begin: int, duration: int) -> int:
        """Notes a hold, and returns how long it lasts beside the guests of that moment.

        Nobody becomes a guest before it is over, since all give way to it. Each guest puts its end
        off. Of several guests, the one that slows most counts, until the last one ends.

        Args:
            begin: When it begins, in picoseconds.
            duration: How long it takes alone, in picoseconds.
        """
        if type(duration) is Beside:
            return duration
        if self.guests:
            duration = self._slowed(begin, duration)
        ends = self._ends  # as `add`, without a call: every kernel comes here
        ends.append(begin + duration)
        self._begins.append(begin)
        if len(ends) > self._most:
            self._forget()
        return duration

    def _slowed(self, begin: int, duration: int) -> int:
        rests = [
            (guest, end - begin)
            for guest in self.guests
            if guest.start <= begin and (end := guest.ends()) is not None and end > begin
        ]
        if not rests:
            return duration
        rate = 100 - max(guest.slows for guest, _ in rests)
        # How long each guest goes on if the hold lasts as long.
        spans = [-(-100 * rest // (100 - guest.slowed)) for guest, rest in rests]
        longest = max(spans)
        done = longest * rate // 100  # until the last guest ends
        lasts = longest + duration - done if duration > done else -(-100 * duration // rate)
        for (guest, rest), span in zip(rests, spans, strict=True):
            guest.put_off(span - rest if span <= lasts else lasts * guest.slowed // 100)
        return lasts
