"""The order of what happens at the same instant: the keys that `EventLoop.owner` takes.

A lower key comes first. Within one key, calls come in the order in which they were queued. The keys
of ranks and commands follow from their numbers, not from which of them was made first: a run is
the same whatever the order of its set-up.

| key | owner | why there |
|---|---|---|
| `INTERRUPT` | a user's Ctrl-C | the user does not want to wait for anything |
| `FLOWS` | a flow that a switch has carried to its end | what follows an arrival may start now |
| `program_of` | a program of a kernel, on its launch's own loop | programs begin in their order |
| `rank_of` | a rank's host; main comes before rank 0 | hosts act before their commands |
| `command_of` | a rank's commands, by part | parts of a collective, such as channels, in turn |
| `CHOICE` | receives from any source take a message | all messages of the instant have come |
| `SOLVE` | a switch shares its links out anew | every flow that starts at the instant is there |
| `REVIEW` | ranks that can never go on are looked for | every rank that comes is in the report |
| `ABORT` | ranks are aborted after a failure | the list of those that failed is complete |
| `STILL` | states of links and ranks are compared | nothing more happens at the instant |
"""

from typing import Final

INTERRUPT: Final = -1
FLOWS: Final = 0
_RANKS: Final = 1 << 32
_COMMANDS: Final = 1 << 48
_PART: Final = 1 << 32
CHOICE: Final = (1 << 62) - 1
SOLVE: Final = 1 << 62
REVIEW: Final = SOLVE + 1
ABORT: Final = SOLVE + 2
STILL: Final = SOLVE + 3


def program_of(pe: int) -> int:
    """Returns the key of the program that runs on a PE, counted inside its device from 0."""
    return pe + 1


def rank_of(rank: int) -> int:
    """Returns the key of a rank's host; main's rank is -1."""
    return _RANKS + rank + 1


def command_of(rank: int, part: int = 0) -> int:
    """Returns the key of what a rank's commands do, or of a numbered part of them."""
    return _COMMANDS + part * _PART + rank + 1
