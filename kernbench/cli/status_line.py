"""The line on a terminal that says how far a run is, while it runs."""

import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from shutil import get_terminal_size
from typing import Final, TypeVar

from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.ranges import steps_of
from kernbench.units import format_bytes, format_time

T = TypeVar("T")

_PER_SECOND: Final = 4
"""Times a second that the line is drawn anew."""

_WIDE: Final = 1 << 16
"""Columns of a terminal whose lines nothing fills."""

_RATE_WINDOW_S: Final = 2.0
"""Seconds of wall time over which commands a second are counted."""


_LONG_S: Final = 2.0
"""Seconds of wall time after which the memory of this process is shown."""


def _memory() -> int:
    """Returns the most bytes that this process has held."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most << 10


class StatusLine:
    """What a run has done so far, in wall time and in simulated time.

    Nothing here changes what is simulated: a thread of the terminal reads the clocks.

    Args:
        clock: Returns seconds of wall time.
        steps: Steps of an optimizer that the program will do; None if that is unknown.

    Attributes:
        context: The context of the run; None before there is one.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, steps: int | None = None
    ) -> None:
        self.context: RuntimeContext | None = None
        self._clock: Final = clock
        self._began: Final = clock()
        self._items = ""
        self._done = self._total = 0
        self._items_began: float | None = None
        self._steps: Final = steps
        self._step_seen: list[tuple[float, int]] = []
        self._counted: list[tuple[float, int]] = []

    def track(self, items: Sequence[T], description: str, *, alike: bool) -> Iterator[T]:
        """Yields the items, and notes how many are done.

        Args:
            description: What one of them is called.
            alike: Whether each of them takes about as long as any other; then the time that is
                left is known.
        """
        self._items, self._done, self._total = description, 0, len(items)
        self._items_began = self._clock() if alike else None
        for item in items:
            yield item
            self._done += 1
        self._items = ""

    def text(self) -> str:
        """Returns the line for this moment."""
        now = self._clock()
        parts = [f"{now - self._began:.0f} s"]
        context = self.context
        if context is not None:
            if context.engine.timed:
                # Hosts run ahead of the events.
                clocks = [process.host.clock for process in list(context.processes)]
                now_ps = max([context.engine.loop.now, *clocks])
                parts.append(f"simulated {format_time(now_ps)}")
            parts.append(f"{self._rate(now, context):,.0f} commands/s")
            if steps := max(map(steps_of, list(context.processes)), default=0):
                known = self._steps is not None and steps <= self._steps
                parts.append(f"optimizer steps {steps}{f' of {self._steps}' if known else ''}")
                if not self._step_seen or steps > self._step_seen[-1][1]:
                    self._step_seen.append((now, steps))
            if now - self._began > _LONG_S:
                parts.append(f"memory {format_bytes(_memory())}")
        if self._items:
            parts.append(f"{self._items} {min(self._done + 1, self._total)} of {self._total}")
        left = self._left(now)
        if left is not None:
            parts.append(f"about {left:.0f} s left")
        return ", ".join(parts)

    def _rate(self, now: float, context: RuntimeContext) -> float:
        """Returns the recent rate of issued commands, per second."""
        issued = sum([process.host.issued for process in list(context.processes)])
        counted = self._counted
        if counted and issued < counted[-1][1]:
            counted.clear()  # another spawn
        counted.append((now, issued))
        while now - counted[0][0] > _RATE_WINDOW_S and len(counted) > 2:
            del counted[0]
        before, seconds = counted[0][1], now - counted[0][0]
        return (issued - before) / seconds if seconds else 0.0

    def _left(self, now: float) -> float | None:
        """Returns the seconds of wall time that are left; None if they cannot be known."""
        if self._items and self._items_began is not None and self._done:
            return (now - self._items_began) / self._done * (self._total - self._done)
        if self._steps is None or len(self._step_seen) < 2:
            return None  # the first step holds the set-up, too
        (first, of_first), (last, done) = self._step_seen[0], self._step_seen[-1]
        if done > self._steps:
            return None
        all_of_them = (last - first) / (done - of_first) * (self._steps - done)
        return max(0.0, all_of_them - (now - last))


@contextmanager
def shown(text: Callable[[], str]) -> Iterator[None]:
    """Draws a line below all other output until the end, when it vanishes.

    Args:
        text: Returns the line for this moment.
    """
    # rich takes longer to import than most of the package, and most runs have no such line.
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    live = Live(
        get_renderable=lambda: Text(text()[: get_terminal_size().columns - 1]),
        # What the program prints passes through this console, which must not break its lines.
        console=Console(stderr=True, width=_WIDE),
        transient=True,
        refresh_per_second=_PER_SECOND,
        # Standard output may go elsewhere; on the same terminal it must pass above the line.
        redirect_stdout=sys.stdout.isatty(),
    )
    with live:
        yield
