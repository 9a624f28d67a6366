"""The log of what ranks did together in a spawn whose small sends complete before their receive."""

from dataclasses import dataclass, field
from typing import NamedTuple

from kernbench.process.process import Process
from kernbench.ranks.meeting import Exchange
from kernbench.sim_engine.command import Command, Stream


class Step(NamedTuple):
    """A rank's part in a collective or a message.

    Attributes:
        meeting: The collective or message.
        stream: Stream of the rank's command.
        number: Number of the command in its stream.
        over: Number of the last command that must end before this one begins, by stream.
    """

    meeting: Exchange
    stream: Stream
    number: int
    over: dict[Stream, int]


@dataclass(slots=True, eq=False)
class EagerLog:
    """Collectives and messages of one spawn, with the order that they have without buffering.

    Attributes:
        steps: The parts of a rank in the order of its calls, by rank.
        eager: Transfers whose send completed before its receive.
    """

    steps: dict[int, list[Step]] = field(default_factory=dict)
    eager: dict[Exchange, None] = field(default_factory=dict)

    def note(self, process: Process, command: Command, meeting: Exchange) -> None:
        """Adds a rank's part to the log.

        Args:
            command: The command for which the rank itself waits; for a buffered send, the copy.
            meeting: The collective or message.
        """
        stream = command.stream
        over = {**process.seen}
        for other, number in stream.seen.items():
            over[other] = max(number, over.get(other, 0))
        over[stream] = command.number - 1
        step = Step(meeting, stream, command.number, over)
        self.steps.setdefault(process.rank, []).append(step)
