"""The latest calls of a rank that other ranks must make too: collectives and messages."""

from typing import Any, Final

from kernbench.des import Event
from kernbench.errors import CallSite
from kernbench.sim_engine.command import Command

RECENT: Final = 32
"""Number of calls that are kept for each rank."""


class Entry:
    """A call that other ranks must make too.

    The entry keeps no tensors alive after the call is complete, or after `freeze`.

    Attributes:
        title: Name of the operation, its sequence number, and the name of the group.
        text: The call with its arguments.
        site: Where the user made the call.
        time: Host time of the call, in picoseconds.
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
        """Returns `called`, `started` (the stream has reached the command), or `completed`."""
        if self._done is None:
            return self._state
        if self._done.time is not None:
            return "completed" if self._done.time <= now else "started"
        command = self._done.label
        return "started" if isinstance(command, Command) and command.begun else "called"

    def freeze(self, now: int) -> None:
        """Fixes the state for good; from then on the entry keeps no command or tensor alive."""
        self._state, self._done = self.state(now), None

    def as_json(self, now: int) -> dict[str, Any]:
        """Returns the entry as plain values for JSON; `now` is in picoseconds."""
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
