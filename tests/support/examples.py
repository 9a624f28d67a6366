"""How many examples hypothesis takes."""

from hypothesis import settings


def examples(count: int) -> int:
    """Returns how many examples a test takes that wants `count`; fewer while coverage is measured.

    Args:
        count: Examples in a plain run.
    """
    return max(1, count * settings().max_examples // 100)
