"""The turns of an exchange as runs of turns that are all alike."""

from collections.abc import Sequence
from itertools import pairwise

Sizes = Sequence[tuple[int, int]]
"""Elements of a message, and how many such messages follow each other."""

Run = tuple[int | None, int | None, int]
"""Elements that leave in a turn, elements that arrive (None: no message), and number of turns."""


def runs(leaving: Sizes, arriving: Sizes, n_slots: int) -> tuple[Run, ...]:
    """Returns what `layout.turns` yields, with equal turns in a row counted.

    Args:
        leaving: Messages that leave.
        arriving: Messages that arrive.
        n_slots: Slots of each queue.
    """
    sent = sum(count for _, count in leaving)
    ahead = min(n_slots - 1, sent)
    outs, ins = _places(leaving, 0), _places(arriving, ahead)
    last = max(sent, sum(count for _, count in arriving) + ahead if arriving else 0)
    ends = {end for begin, end, _ in outs + ins} | {begin for begin, _, _ in outs + ins}
    edges = sorted({0, last, *(edge for edge in ends if edge <= last)})
    return tuple((_at(outs, begin), _at(ins, begin), end - begin) for begin, end in pairwise(edges))


def _places(sizes: Sizes, begin: int) -> list[tuple[int, int, int]]:
    """Returns the first turn, the turn behind the last one, and the elements of the messages."""
    places = []
    for elements, count in sizes:
        places.append((begin, begin + count, elements))
        begin += count
    return places


def _at(places: list[tuple[int, int, int]], turn: int) -> int | None:
    for begin, end, elements in places:
        if begin <= turn < end:
            return elements
    return None
