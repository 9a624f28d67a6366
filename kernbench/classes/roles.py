"""Roles: which ranks run the same program, as a file or a function says."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from kernbench.errors import UsageError

Role = Callable[[int], object]
"""Returns the role of a rank: anything whose text is its name."""

_LINE: Final = re.compile(r"(?P<ranks>\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)\s+(?P<name>\S.*)", re.ASCII)
_MOST: Final = 8

EVERYBODY: Final = "all"
"""Name of the role where nobody says roles."""


def roles_of(role: Role, size: int) -> list[str]:
    """Returns the name of each rank's role.

    Args:
        role: Returns the role of a rank.
        size: Number of ranks.
    """
    return [str(role(rank)) for rank in range(size)]


def read_roles(path: Path, size: int) -> list[str]:
    """Returns the name of each rank's role in a file.

    A line names ranks and their role, `0-15,32-47 first stage`; `#` begins a comment.

    Args:
        path: The file.
        size: Number of ranks.

    Raises:
        UsageError: If the file cannot be read, a line is no such line, or ranks are missing, are
            there twice, or do not exist.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--roles {path}: {error}", code="F11") from None
    numbers, names = np.full(size, -1), list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        found = _LINE.fullmatch(words)
        if found is None:
            raise UsageError(
                f"--roles {path}:{number}: expected ranks and a role, got {words!r}",
                hint="write lines such as `0-15,32-47 first stage`",
            )
        for low, high in _ranges(found["ranks"]):
            if high >= size:
                raise UsageError(f"--roles {path}:{number}: rank {high}, of {size} ranks")
            twice = np.flatnonzero(numbers[low : high + 1] >= 0) + low
            if len(twice):
                raise UsageError(f"--roles {path}:{number}: {_listed(twice.tolist())} came before")
            numbers[low : high + 1] = len(names)
        names.append(found["name"])
    missing = np.flatnonzero(numbers < 0)
    if len(missing):
        raise UsageError(f"--roles {path}: no role for {_listed(missing.tolist())}")
    return [names[number] for number in numbers]


def _ranges(text: str) -> Iterator[tuple[int, int]]:
    for part in text.split(","):
        low, _, high = part.partition("-")
        yield int(low), int(high or low)


def _listed(ranks: Sequence[int]) -> str:
    text = ", ".join(map(str, ranks[:_MOST]))
    more = f" and {len(ranks) - _MOST} more" if len(ranks) > _MOST else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {text}{more}"
