"""The turns of an exchange as runs of turns that are all alike."""

from itertools import pairwise
from typing import Final

from kernbench.ccl.layout import Layout
from kernbench.ccl.plan import NOTHING

Sizes = tuple[tuple[int, int], ...]
"""Elements of a message, and how many such messages follow each other."""

Run = tuple[int | None, int | None, int]
"""Elements that leave in a turn, elements that arrive (None: no message), and number of turns."""


class Runs:
    """The turns of exchanges of chunks.

    Args:
        layout: Cuts of the buffers.
        piece: Elements of the largest message.
        n_slots: Slots of each queue.
    """

    def __init__(self, layout: Layout, piece: int, n_slots: int) -> None:
        self._layout: Final = layout
        self._piece: Final = piece
        self._n_slots: Final = n_slots
        # Chunks of equal sizes share a number, so that few exchanges differ.
        self._known: dict[tuple[int, int, int], int] = {}
        self._numbers: dict[Sizes, int] = {}
        self._runs: dict[tuple[int, int], tuple[Run, ...]] = {}

    def of(self, rank: int, send: int, receive: int, span: int) -> tuple[Run, ...]:
        """Returns the turns of an exchange.

        Args:
            rank: Rank inside the group.
            send: First chunk that leaves; `NOTHING` for none.
            receive: First chunk that arrives; `NOTHING` for none.
            span: Number of chunks that leave, and that arrive.
        """
        row = 0 if self._layout.alike else rank
        out = self._known.get((row, send, span))
        if out is None:
            out = self._number(row, send, span)
        into = self._known.get((row, receive, span))
        if into is None:
            into = self._number(row, receive, span)
        found = self._runs.get((out, into))
        if found is None:
            sizes = list(self._numbers)
            found = self._runs[out, into] = runs(sizes[out], sizes[into], self._n_slots)
        return found

    def _number(self, row: int, chunk: int, span: int) -> int:
        """Returns the number of the sizes of the messages of some chunks."""
        layout, piece = self._layout, self._piece
        sizes = () if chunk == NOTHING else layout.sizes_of(row, chunk, span, piece)
        number = self._numbers.setdefault(sizes, len(self._numbers))
        self._known[row, chunk, span] = number
        return number


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
