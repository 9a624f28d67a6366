"""The latest calls of a rank that other ranks must make too: collectives and messages."""

from typing import Any, Final

from kernbench.des import Event
from kernbench.errors import CallSite
from kernbench.sim_engine.command import Command

RECENT: Final = 32
"""Number of calls that are kept for each rank."""

RecentCall = tuple[str, str, CallSite | None, int, Event | str]
"""A call that other ranks must make too; a tuple, since every collective and message makes one.

First the name of the operation with its sequence number and the name of the group; then the call
with its arguments, where the user made it, the host's time in picoseconds, and its completion, or
the state of a call that is `frozen`. It keeps no tensors alive after the call is complete.
"""


def state(call: RecentCall, now: int) -> str:
    """Returns `called`, `started` (the stream has reached the command), or `completed`."""
    done = call[-1]
    if isinstance(done, str):
        return done
    if done.time is not None:
        return "completed" if done.time <= now else "started"
    command = done.label
    return "started" if isinstance(command, Command) and command.begun else "called"


def frozen(call: RecentCall, now: int) -> RecentCall:
    """Returns a call with its state for good, which keeps no command or tensor alive."""
    return (*call[:-1], state(call, now))


def as_json(call: RecentCall, now: int) -> dict[str, Any]:
    """Returns a call as plain values for JSON; `now` is in picoseconds."""
    title, text, site, time, _ = call
    numbered, _, group = title.partition(" of group ")
    number = numbered.rpartition("#")[2]
    return {
        "operation": text.partition("(")[0],
        "group": group or None,
        "sequence": int(number) if number.isdigit() else None,
        "call": text,
        "site": None if site is None else str(site),
        "time_ps": time,
        "state": state(call, now),
    }
