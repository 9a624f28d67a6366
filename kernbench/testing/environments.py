"""Environment variables at one moment, as the system has them: to decode all takes a while."""

import os
from collections.abc import Mapping
from typing import Final

Raw = dict[bytes, bytes]
"""Variables by name, encoded."""

CURRENT_TEST: Final = "PYTEST_CURRENT_TEST"
"""Variable that pytest sets to the running test and its phase."""


def raw_environment() -> Raw:
    """Returns the variables of this process."""
    # A copy of what `os.environ` keeps: to read all variables by themselves takes 20 us.
    kept: Raw | None = getattr(os.environ, "_data", None)
    return raw(os.environ) if kept is None else kept.copy()


def raw(variables: Mapping[str, str]) -> Raw:
    """Returns variables, encoded."""
    return {os.fsencode(name): os.fsencode(value) for name, value in variables.items()}


def changed_variables(before: Raw, after: Raw) -> dict[str, str | None]:
    """Returns what leads from one environment to another; None for variables that are gone.

    Args:
        before: The variables.
        after: The same; that which names the running test does not count.
    """
    changed: dict[str, str | None] = {
        os.fsdecode(name): os.fsdecode(value)
        for name, value in after.items()
        if before.get(name) != value
    }
    changed.update(dict.fromkeys(os.fsdecode(name) for name in before if name not in after))
    changed.pop(CURRENT_TEST, None)
    return changed


def change_environment(before: Raw, after: Raw) -> None:
    """Changes what differs between two environments.

    Args:
        before: The variables of this process.
        after: What they are to be.
    """
    if before != after:
        for name, value in after.items():
            if before.get(name) != value:
                os.environ[os.fsdecode(name)] = os.fsdecode(value)
        for name in before.keys() - after.keys():
            os.environ.pop(os.fsdecode(name), None)
