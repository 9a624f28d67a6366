"""Plain values: those that JSON can hold."""

import json
from collections.abc import Mapping
from typing import Any, Final

from kernbench.errors import UsageError

_KEYS: Final = (str, int, float, bool, type(None))


def is_plain(value: object) -> bool:
    """Returns whether JSON can hold a value."""
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def check_plain(value: object, name: str) -> None:
    """Checks that JSON can hold a value.

    Args:
        name: What it is called in the error.

    Raises:
        UsageError: If it cannot; the error says which part of the value it is.
    """
    if is_plain(value):
        return
    try:
        where, odd = _first_odd(value, name)
    except RecursionError:
        raise UsageError(f"{name}: expected plain values, got one that holds itself") from None
    raise UsageError(
        f"{where}: expected a plain value, got {odd}",
        ["plain values are texts, numbers, true, false, None, and lists and mappings of them"],
        hint="`.item()` makes a number of one of numpy or torch, `.tolist()` lists of an array",
    )


def _first_odd(value: object, where: str) -> tuple[str, str]:
    """Returns where the first part stands that is not plain, and what it is."""
    parts: dict[str, Any] = {}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, _KEYS):
                return where, f"a key of type {type(key).__name__}"
        parts = {f"{where}[{key!r}]": each for key, each in value.items()}
    elif isinstance(value, list | tuple):
        parts = {f"{where}[{place}]": each for place, each in enumerate(value)}
    for name, each in parts.items():
        if not is_plain(each):
            return _first_odd(each, name)
    return where, type(value).__name__
