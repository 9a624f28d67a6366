"""Places of labels beside the ends of lines, in files of pictures and in pages."""

from collections.abc import Sequence
from itertools import pairwise


def apart(places: Sequence[float], gap: float) -> list[float]:
    """Returns places that are `gap` apart at least, in the same order, as near as may be.

    Args:
        places: Where labels would stand, from 0 to 1.
        gap: The least distance.
    """
    order = sorted(range(len(places)), key=lambda each: places[each])
    found = list(places)
    for before, each in pairwise(order):
        found[each] = max(found[each], found[before] + gap)
    most = 1.0
    for each in reversed(order):
        found[each] = min(found[each], most)
        most = found[each] - gap
    return found
