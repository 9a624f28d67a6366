"""Ranks as text for people: neighbours are joined."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final


def folded(ranks: Sequence[int]) -> str:
    """Returns a text for ascending ranks: `rank 3`, `ranks 0-2, 5`, or `ranks 0, 2, ..., 62`."""
    found = _runs(ranks)
    texts = _texts(found)
    if len(found) >= _MANY_RUNS:
        steps = {after[0] - before[0] for before, after in pairwise(found)}
        widths = {run[-1] - run[0] for run in found}
        if len(steps) == len(widths) == 1:
            texts = [*texts[:2], "...", texts[-1]]
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(texts)}"


_MANY_RUNS: Final = 6
"""Runs of ranks from which on, if they are at equal distances, some are left out."""


def runs(ranks: Sequence[int], separator: str) -> str:
    """Returns ascending ranks as text in which neighbours are joined, such as `0-2,5`."""
    return separator.join(_texts(_runs(ranks)))


def _texts(found: Sequence[Sequence[int]]) -> list[str]:
    return ["-".join(str(end) for end in run) for run in found]


def _runs(ranks: Sequence[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for rank in ranks:
        if found and found[-1][-1] == rank - 1:
            found[-1] = [found[-1][0], rank]
        else:
            found.append([rank])
    return found
