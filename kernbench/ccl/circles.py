"""Circles of ranks that tell each other what they know: whether all learn that all have begun."""

from collections.abc import Sequence

import numpy as np

from kernbench.ccl.operations import Ints


def circles_of(before: list[int]) -> tuple[Ints, int]:
    """Returns the number of each rank's circle, and the ranks in the largest one.

    Args:
        before: The rank before each rank in its circle.
    """
    circle, longest, circles = np.full(len(before), -1), 0, 0
    for first in range(len(before)):
        rank, length = first, 0
        while circle[rank] < 0:
            circle[rank] = circles
            rank, length = before[rank], length + 1
        circles += length > 0
        longest = max(longest, length)
    return circle, longest


def _joined(cells: Ints, circle: Ints) -> Ints | None:
    """Returns the cells of ranks that know of each other's beginning, behind one more stage.

    Args:
        cells: The number of each rank's cell: of all ranks in it, it knows that they have begun.
        circle: The number of each rank's circle, in which ranks tell each other what they know.

    Returns:
        The numbers of the new cells, from 0 on; None if ranks that share what they know do not know
        the same.
    """
    joined, before = cells, None
    while before is None or (joined != before).any():
        before = joined
        for parts in (circle, cells):
            least = np.full(parts.max() + 1, len(parts))
            np.minimum.at(least, parts, joined)
            joined = least[parts]
    joined = np.searchsorted(distinct(joined), joined)

    def each(parts: Ints) -> Ints:
        """Returns how many parts each joined cell has."""
        return np.bincount(distinct(joined * len(joined) + parts) // len(joined))

    both = distinct(circle * len(circle) + cells)  # whose circle has somebody of which cell
    where = np.zeros(len(circle), np.int64)
    where[cells] = joined
    met = np.bincount(where[both % len(circle)])
    return joined if (met == each(cells) * each(circle)).all() else None


def gather(circles: Sequence[Ints]) -> bool:
    """Returns whether every rank gets to know that every rank has begun.

    Args:
        circles: By stage, the number of each rank's circle, in which ranks tell each other all that
            they know.
    """
    cells: Ints | None = None
    for circle in circles:
        cells = circle if cells is None else _joined(cells, circle)
        if cells is None:
            return gather_each(circles)
        if not cells.any():
            return True
    return False


def gather_each(circles: Sequence[Ints]) -> bool:
    """Does what `gather` does, rank by rank."""
    # Of which circles of the first stage each rank knows that all have begun.
    known = np.arange(circles[0].max() + 1) == circles[0][:, None]
    for circle in circles[1:]:
        order = np.argsort(circle, kind="stable")
        firsts = np.searchsorted(circle[order], np.arange(circle.max() + 1))
        known = np.logical_or.reduceat(known[order], firsts, axis=0)[circle]
    return bool(known.all())


def distinct(values: Ints) -> Ints:
    """Returns the different numbers in ascending order.

    `np.unique` would import `numpy.ma`, which takes longer than most first collectives.

    Args:
        values: Numbers that are not negative, in one dimension.
    """
    found = np.sort(values)
    different: Ints = found[np.diff(found, prepend=-1) != 0]
    return different
