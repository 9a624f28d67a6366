"""Sets of time as sorted, disjoint, half-open intervals of integer picoseconds."""

from collections.abc import Iterable

Interval = tuple[int, int]
"""`[start, end)` in picoseconds."""


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Returns the set that the intervals cover; empty intervals cover nothing."""
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
    """Returns the part of one set that is not in another; both must be as `union` returns them."""
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
                break  # the hole may reach into the next interval
            hole = next(holes, None)
        if start < end:
            kept.append((start, end))
    return kept


def length(intervals: Iterable[Interval]) -> int:
    """Returns the picoseconds that a set covers; the set must be as `union` returns it."""
    return sum(end - start for start, end in intervals)
