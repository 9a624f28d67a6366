"""How many examples hypothesis takes, and which of many chunks of programs run where."""

from collections.abc import Collection

import pytest
from hypothesis import settings

SLOW = 300
"""Random programs that the slow tests take; `pytest -m at_length` takes those after them."""


def examples(count: int) -> int:
    """Returns how many examples a test takes that wants `count`; fewer while coverage is measured.

    Args:
        count: Examples in a plain run.
    """
    return max(1, count * settings().max_examples // 100)


def slow_or_at_length(first: int) -> Collection[pytest.MarkDecorator]:
    """Returns the markers of a chunk of random programs: the first chunk runs by default.

    Args:
        first: Number of its first program.
    """
    if not first:
        return ()
    return (pytest.mark.slow if first < SLOW else pytest.mark.at_length,)
