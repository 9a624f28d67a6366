"""Nested plain values as the columns of one row."""

from collections.abc import Iterator, Mapping
from typing import Any


def flat(
    values: Mapping[str, Any], deepest: int | None = None, *, prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yields names and values; of a mapping its own, under names joined with dots.

    Args:
        values: Values by name.
        deepest: How many mappings within mappings are opened; those below stay values. None: all.
        prefix: What every name begins with.
    """
    for name, value in values.items():
        if isinstance(value, Mapping) and value and deepest != 0:
            below = None if deepest is None else deepest - 1
            yield from flat(value, below, prefix=f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
