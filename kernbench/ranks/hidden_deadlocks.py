"""Deadlocks that stay hidden because small sends complete before their receive (P5)."""

from itertools import pairwise

from kernbench.ranks.circles import MESSAGES_HINT, path, places
from kernbench.ranks.eager_log import EagerLog, Step
from kernbench.ranks.graphs import around, components
from kernbench.ranks.meeting import Exchange
from kernbench.ranks.waiting import Head
from kernbench.sim_engine.command import Stream


class EagerWarning(UserWarning):
    """A program works only because small messages are sent without their receive (P5)."""


def hidden_deadlock(log: EagerLog, limit: int) -> EagerWarning | None:
    """Returns a warning about ranks that would deadlock without buffering; None without any.

    Args:
        log: Log of what the ranks of a spawn did together.
        limit: Bytes up to which messages were sent without their receive.
    """
    edges: dict[Exchange, dict[Exchange, int]] = {}
    for rank, steps in sorted(log.steps.items()):
        latest: dict[Stream, list[Step]] = {}
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
        hidden = [meeting for meeting in plain if meeting in knot and meeting in log.eager]
        if len(knot) > 1 and hidden:
            way, _ = around(hidden[0], lambda node: [m for m in plain[node] if m in knot])  # noqa: B023
            cycle = [Head(edges[one][two], one) for one, two in pairwise([*way, way[0]])]
            lowest = min(range(len(cycle)), key=lambda i: cycle[i].rank)
            cycle = [*cycle[lowest:], *cycle[:lowest]]
            lines = [f"[P5] works only because message <= eager limit {limit} B: {path(cycle)}"]
            calls = [(head.meeting.calls[head.rank], head.meeting) for head in cycle]
            lines += places(calls, "would wait")
            lines.append("hint: " + MESSAGES_HINT)
            return EagerWarning("\n  ".join(lines))
    return None
