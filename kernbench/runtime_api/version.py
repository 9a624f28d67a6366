"""`torch.__version__`: a text that compares as a version, such as 2.13 after 2.9."""

import operator
import re
from collections.abc import Callable
from typing import Any, Final, final

_FORM: Final = re.compile(
    r"\s*v?(?P<release>\d+(?:\.\d+)*)"
    r"(?:[-_.]?(?P<stage>a|alpha|b|beta|c|rc|pre|preview|dev|post|rev|r)[-_.]?\d*)*"
    r"(?P<local>\+[a-z0-9]+(?:[-_.][a-z0-9]+)*)?\s*",
    re.IGNORECASE,
)
"""PEP 440, without epochs."""

_AFTER: Final = {"post", "rev", "r"}
"""Stages that come after the release; the others come before it."""


@final
class TorchVersion(str):
    """A text that compares as a version with texts and with tuples, as PyTorch's class of the name.

    A text that is no version is compared letter by letter.
    """

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return _compared(operator.eq, self, other)

    def __ne__(self, other: object) -> bool:
        return _compared(operator.ne, self, other)

    def __lt__(self, other: object) -> bool:
        return _compared(operator.lt, self, other)

    def __le__(self, other: object) -> bool:
        return _compared(operator.le, self, other)

    def __gt__(self, other: object) -> bool:
        return _compared(operator.gt, self, other)

    def __ge__(self, other: object) -> bool:
        return _compared(operator.ge, self, other)


def _compared(compare: Callable[[Any, Any], bool], version: str, other: object) -> bool:
    mine, its = _key(version), _key(other)
    if mine is None or its is None:
        return compare(str(version), other)
    return compare(mine, its)


def _key(version: object) -> tuple[list[int], int, str] | None:
    if isinstance(version, tuple | list):
        version = ".".join(map(str, version))
    found = _FORM.fullmatch(version) if isinstance(version, str) else None
    if found is None:
        return None
    release = [int(part) for part in found["release"].split(".")]
    while release and not release[-1]:
        release.pop()
    stage = (found["stage"] or "").lower()
    place = 0 if not stage else 1 if stage in _AFTER else -1
    return release, place, (found["local"] or "").lower()
