"""What a program prints, kept beside what is shown of it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TextIO

MOST: Final = 60_000
"""Most characters that are kept, the first ones."""


class Prints:
    """Standard output of a program, which keeps what passes through it.

    Args:
        out: Where it goes.

    Attributes:
        text: What has been printed, up to `MOST` characters.
        length: Characters that have been printed.
    """

    def __init__(self, out: TextIO) -> None:
        self._out: Final = out
        self.text = ""
        self.length = 0

    def write(self, text: str) -> int:
        """Prints a text, and keeps it while there is room."""
        self.text += text[: MOST - len(self.text)]
        self.length += len(text)
        return self._out.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


@contextmanager
def kept() -> Iterator[Prints]:
    """Keeps what is printed to standard output until the end."""
    before = sys.stdout
    prints = Prints(before)
    sys.stdout = prints
    try:
        yield prints
    finally:
        if sys.stdout is prints:
            sys.stdout = before
