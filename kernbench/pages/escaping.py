"""Text of users inside of HTML: nothing in it is markup."""

import html
import re
from typing import Final

# What HTML allows in no text: control characters, and halves of characters.
_UNSHOWABLE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
# Marks that turn the direction of what follows would let a name rewrite the line around it.
_TURNING: Final = re.compile("[\u202a-\u202e\u2066-\u2069]")
LONGEST: Final = 300
"""Most characters of a name or a cell."""


def escaped(text: str) -> str:
    """Returns HTML, for an element or an attribute, that shows a text as it is."""
    plain = _UNSHOWABLE.sub("\ufffd", text.replace("\r\n", "\n"))
    return html.escape(_TURNING.sub("\ufffd", plain))


def cut(text: str, most: int = LONGEST) -> str:
    """Returns a text without its middle, if it is longer than `most` characters."""
    if len(text) <= most:
        return text
    half = (most - 3) // 2
    return f"{text[:half]}...{text[-half:]}"
