"""The `shadow` dial: what caches answer is found anew, and compared."""

from reprlib import Repr
from typing import Final


class ShadowError(AssertionError):
    """A cache or a fast way gave something else than the slow way: a bug of kernbench."""


def compare(what: str, key: object, kept: object, anew: object) -> None:
    """Checks that what was kept is what comes out anew.

    Args:
        what: What was kept.
        key: What it was kept for.
        kept: The value that was kept.
        anew: The value that was found the slow way.

    Raises:
        ShadowError: If the two differ.
    """
    if kept != anew:
        raise ShadowError(
            f"{what}, for {_SHORT.repr(key)}: expected {_SHORT.repr(anew)} as found the slow way, "
            f"got {_SHORT.repr(kept)} as it was kept"
        )


_SHORT: Final = Repr()
_SHORT.maxother = _SHORT.maxstring = 200
_SHORT.maxlist = _SHORT.maxtuple = 16
