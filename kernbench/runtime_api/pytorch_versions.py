"""Versions of the real PyTorch with which programs run."""

import re
import sys
from typing import Final

from kernbench.errors import UsageError

OLDEST: Final = (2, 13)
"""The first version (major and minor) with which programs run."""

NEWEST: Final = (2, 15)
"""The last version with which they are known to run."""

_TOLD: Final[set[str]] = set()


def minor_of(version: str) -> tuple[int, int]:
    """Returns the major and the minor number of a version; (0, 0) if it has none.

    Args:
        version: A version, such as `2.15.0+cpu` or `2.16.0a0+git1234`.
    """
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def check_version(version: str) -> None:
    """Checks that programs run with a version of PyTorch; warns once of one newer than all known.

    Args:
        version: The version that is installed.

    Raises:
        UsageError: If it is older than the oldest.
    """
    minor = minor_of(version)
    oldest, newest = (".".join(map(str, each)) for each in (OLDEST, NEWEST))
    if minor < OLDEST:
        raise UsageError(
            f"PyTorch {version} is installed, and programs run with {oldest} or newer",
            hint=f"pip install 'torch>={oldest}'",
        )
    if minor > NEWEST and version not in _TOLD:
        _TOLD.add(version)
        print(
            f"kernbench: PyTorch {version} is newer than {newest}, the newest one that is known to "
            "work; each private name of it that is needed is looked for before it is used",
            file=sys.stderr,
        )
