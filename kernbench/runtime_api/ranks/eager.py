"""Sends that are done before they are received, and deadlocks that only this hides (P5)."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from kernbench.runtime_api.comm.rendezvous import Meeting
from kernbench.runtime_api.process import Process
from kernbench.runtime_api.ranks.circles import path
from kernbench.runtime_api.ranks.graphs import around, components
from kernbench.runtime_api.ranks.waiting import Head
from kernbench.sim_engine.command import Command, Stream


class EagerWarning(UserWarning):
    """A program works only because small messages are sent without their receive (P5)."""


class _Step(NamedTuple):
    """A rank's part in a meeting, and how much of each stream was over before it."""

    meeting: Meeting
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

    steps: dict[int, list[_Step]] = field(default_factory=dict)
    eager: dict[Meeting, None] = field(default_factory=dict)

    def note(self, process: Process, command: Command, meeting: Meeting) -> None:
        """Notes a rank's part; `command` is what the rank itself waits for."""
        stream = command.stream
        over = {**process.seen}
        for other, number in stream.seen.items():
            over[other] = max(number, over.get(other, 0))
        over[stream] = command.number - 1
        step = _Step(meeting, stream, command.number, over)
        self.steps.setdefault(process.rank, []).append(step)

    def warning(self, limit: int) -> EagerWarning | None:
        """Returns what would have waited for ever without buffering; None if nothing."""
        edges: dict[Meeting, dict[Meeting, int]] = {}
        for rank, steps in sorted(self.steps.items()):
            latest: dict[Stream, list[_Step]] = {}
            for step in steps:
                edges.setdefault(step.meeting, {})
                for stream, number in step.over.items():
                    for earlier in reversed(latest.get(stream, ())):
                        if earlier.number <= number and earlier.meeting is not step.meeting:
                            edges[earlier.meeting].setdefault(step.meeting, rank)
                            break
                latest.setdefault(step.stream, []).append(step)
        plain = {meeting: list(following) for meeting, following in edges.items()}
        for knot in components(plain):
            hidden = [meeting for meeting in plain if meeting in knot and meeting in self.eager]
            if len(knot) > 1 and hidden:
                way, _ = around(hidden[0], lambda node: [m for m in plain[node] if m in knot])  # noqa: B023
                cycle = [Head(edges[one][two], one) for one, two in pairwise([*way, way[0]])]
                lowest = min(range(len(cycle)), key=lambda i: cycle[i].rank)
                text = path([*cycle[lowest:], *cycle[:lowest]])
                return EagerWarning(
                    f"[P5] works only because message <= eager limit {limit} B: {text}"
                )
        return None
