"""Sets of time as sorted, disjoint, half-open intervals of integer picoseconds."""

from collections.abc import Iterable

Interval = tuple[int, int]
"""`[start, end)`."""


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Returns the set that the intervals cover; empty ones cover nothing."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = merged[-1][0], end
        else:
            merged.append((start, end))
    return merged


def difference(left: Iterable[Interval], right: Iterable[Interval]) -> list[Interval]:
    """Returns what of one set is not in another; both as `union` gives them."""
    kept: list[Interval] = []
    holes = iter(right)
    hole = next(holes, None)
    for begin, end in left:
        start = begin
        while hole is not None and hole[0] < end:
            if start < hole[0]:
                kept.append((start, hole[0]))
            start = max(start, hole[1])
            if hole[1] > end:
                break  # it may reach into the next interval
            hole = next(holes, None)
        if start < end:
            kept.append((start, end))
    return kept


def length(intervals: Iterable[Interval]) -> int:
    """Returns how much time a set covers, in picoseconds; the set as `union` gives it."""
    return sum(end - start for start, end in intervals)
