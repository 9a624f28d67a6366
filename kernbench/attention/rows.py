"""Which tokens the rows of a tensor are."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias


class Segment(NamedTuple):
    """Tokens that are neighbours, both in memory and in their sequence.

    Attributes:
        row: Of the first of them.
        position: Of the first of them, in the whole sequence.
        length: How many, at least 1.
        sequence: Which sequence they belong to.
    """

    row: int
    position: int
    length: int
    sequence: int


Rows: TypeAlias = tuple[Segment, ...]
"""All tokens of a tensor, ascending by row; a row in no segment is padding."""


def in_order(length: int) -> Rows:
    """Returns the rows of one sequence that lies in memory as it is."""
    return (Segment(0, 0, length, 0),) if length else ()


def share(
    cu_seqlens: Sequence[int], cu_seqlens_padded: Sequence[int], parts: int = 1, part: int = 0
) -> Rows:
    """Returns the rows of one rank among several that share all sequences in a zigzag.

    The room of each sequence is cut into `2 * parts` equal chunks; rank r holds chunk r and then
    chunk `2 * parts - 1 - r`, sequence behind sequence.

    Args:
        cu_seqlens: Cumulative numbers of tokens, from 0 on.
        cu_seqlens_padded: Cumulative rows of memory, from 0 on, of all ranks together; each
            sequence's are a multiple of `2 * parts`, and begin with its tokens.
        parts: Ranks.
        part: The rank.
    """
    segments: list[Segment] = []
    used = [stop - start for start, stop in pairwise(cu_seqlens)]
    for sequence, (start, stop) in enumerate(pairwise(cu_seqlens_padded)):
        if parts == 1:
            chunks = [(0, stop - start)]
        else:
            size = (stop - start) // (2 * parts)
            chunks = [(chunk * size, size) for chunk in (part, 2 * parts - 1 - part)]
        row = start // parts
        for position, size in chunks:
            length = min(max(used[sequence] - position, 0), size)
            if length:
                segments.append(Segment(row, position, length, sequence))
            row += size
    return tuple(segments)
