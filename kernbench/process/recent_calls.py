"""What a rank has called last of all that other ranks must call too."""

from typing import Any, Final

from kernbench.des import Event
from kernbench.errors import CallSite
from kernbench.sim_engine.command import Command

RECENT: Final = 32
"""Calls of a rank that are kept."""


class Entry:
    """A call of something that other ranks must call too.

    It keeps no tensors alive once the call is complete, or frozen.

    Attributes:
        title: What was called, as the sequence number of which group.
        text: The call with its arguments.
        site: Where.
        time: Host time in picoseconds.
    """

    __slots__ = ("_done", "_state", "site", "text", "time", "title")

    def __init__(
        self, title: str, text: str, site: CallSite | None, time: int, done: Event
    ) -> None:
        self.title = title
        self.text = text
        self.site = site
        self.time = time
        self._done: Event | None = done
        self._state = ""

    def state(self, now: int) -> str:
        """Returns `called`, `started` (its turn in the stream has come), or `completed`."""
        if self._done is None:
            return self._state
        if self._done.time is not None:
            return "completed" if self._done.time <= now else "started"
        command = self._done.label
        return "started" if isinstance(command, Command) and command.begun else "called"

    def freeze(self, now: int) -> None:
        """Settles its state for good."""
        self._state, self._done = self.state(now), None

    def as_json(self, now: int) -> dict[str, Any]:
        """Returns it as plain values."""
        numbered, _, group = self.title.partition(" of group ")
        number = numbered.rpartition("#")[2]
        return {
            "operation": self.text.partition("(")[0],
            "group": group or None,
            "sequence": int(number) if number.isdigit() else None,
            "call": self.text,
            "site": None if self.site is None else str(self.site),
            "time_ps": self.time,
            "state": self.state(now),
        }
