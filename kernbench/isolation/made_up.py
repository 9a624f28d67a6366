"""Values that are made up, where a program reads what has no numbers."""

from typing import Any, Final

from kernbench.errors import CallSite, site_fact
from kernbench.process.process import Process


class MadeUp:
    """Values that were made up since there are no numbers (`--data fake`).

    Attributes:
        count: How many reads there were.
        first: Where the first was; None without any.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forgets all reads."""
        self.count = 0
        self.first: CallSite | None = None
        self._by = ""

    def note(self, process: Process) -> None:
        """Notes a read."""
        self.count += 1
        if self.count == 1:
            self.first = process.call_site()
            self._by = process.name

    def as_json(self) -> dict[str, Any]:
        """Returns how many reads there were, and where the first was, as plain values."""
        where = site_fact(self.first, f"{self._by} at") if self.count else None
        return {"count": self.count, "first": where}


MADE_UP: Final = MadeUp()
"""Reads of the program that runs now."""
