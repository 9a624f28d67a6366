"""What ranks did together in one spawn, where sends may be done before they are received."""

from dataclasses import dataclass, field
from typing import NamedTuple

from kernbench.process.process import Process
from kernbench.ranks.meeting import Exchange
from kernbench.sim_engine.command import Command, Stream


class Step(NamedTuple):
    """A rank's part in a meeting, and how much of each stream was over before it."""

    meeting: Exchange
    stream: Stream
    number: int
    over: dict[Stream, int]


@dataclass(slots=True, eq=False)
class EagerLog:
    """What ranks did together in one spawn, in the order that no buffering would impose.

    Attributes:
        steps: By rank, its parts in the order of the calls.
        eager: Transfers whose send was done before they were received.
    """

    steps: dict[int, list[Step]] = field(default_factory=dict)
    eager: dict[Exchange, None] = field(default_factory=dict)

    def note(self, process: Process, command: Command, meeting: Exchange) -> None:
        """Notes a rank's part; `command` is what the rank itself waits for."""
        stream = command.stream
        over = {**process.seen}
        for other, number in stream.seen.items():
            over[other] = max(number, over.get(other, 0))
        over[stream] = command.number - 1
        step = Step(meeting, stream, command.number, over)
        self.steps.setdefault(process.rank, []).append(step)
