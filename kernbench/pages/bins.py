"""Simulated time cut into bins of nearly equal length; all sums are of integers, so exact."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

from kernbench.report.intervals import Interval

MOST: Final = 160
"""Bins of a chart: as many as are still told apart on paper."""


class Bins:
    """Bins of a span of time.

    Args:
        start: Begin of the span in picoseconds.
        end: End of the span; after its begin.
        most: Most bins; there are fewer if the span has fewer picoseconds.

    Attributes:
        edges: Begin of each bin, and the end of the last.
    """

    def __init__(self, start: int, end: int, most: int = MOST) -> None:
        span = end - start
        count = min(most, span)
        self.edges: Final = [start + span * place // count for place in range(count + 1)]

    @property
    def start(self) -> int:
        """Begin of the span in picoseconds."""
        return self.edges[0]

    @property
    def end(self) -> int:
        """End of the span in picoseconds."""
        return self.edges[-1]

    @property
    def span(self) -> int:
        """Length of the span in picoseconds."""
        return self.edges[-1] - self.edges[0]

    def lengths(self) -> list[int]:
        """Returns the length of each bin in picoseconds."""
        edges = self.edges
        return [edges[place + 1] - edges[place] for place in range(len(edges) - 1)]

    def busy(self, intervals: Iterable[Interval]) -> list[int]:
        """Returns how many picoseconds of each bin some intervals cover.

        Args:
            intervals: Disjoint intervals; what is outside of the span does not count.
        """
        sums = [0] * (len(self.edges) - 1)
        for start, end in intervals:
            self.spread(sums, start, end, end - start)
        return sums

    def spread(self, sums: list[int], start: int, end: int, amount: int) -> None:
        """Adds an amount that flows evenly during an interval to the bins in which it flows.

        The parts are integers, and add up to the amount if the interval lies in the span.

        Args:
            sums: Sum of each bin.
            start: Begin of the interval in picoseconds.
            end: End of the interval.
            amount: The amount, such as bytes.
        """
        edges = self.edges
        first, last = max(start, edges[0]), min(end, edges[-1])
        if first >= last:
            return
        place = bisect_right(edges, first) - 1
        length = end - start
        before = amount * (first - start) // length
        while first < last:
            first = min(edges[place + 1], last)
            now = amount * (first - start) // length
            sums[place] += now - before
            before = now
            place += 1

    def highest(self, changes: Sequence[tuple[int, int]]) -> list[int]:
        """Returns the highest level in each bin of a figure that changes in steps from 0.

        The level at which a bin begins is that of the moment before.

        Args:
            changes: Times in picoseconds and what is added then, ordered by time; what changes
                outside of the span counts at its nearer end.
        """
        edges, level = self.edges, 0
        found: list[int] = []
        coming = iter(changes)
        change = next(coming, None)
        for place in range(1, len(edges)):
            highest = level
            while change is not None and (change[0] < edges[place] or place == len(edges) - 1):
                level += change[1]
                highest = max(highest, level)
                change = next(coming, None)
            found.append(highest)
        return found
