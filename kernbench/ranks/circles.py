"""Cycles of waits: which ranks they hold, and how reports show them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kernbench.errors import CallSite, Fact, site_fact
from kernbench.ranks.graphs import around, components
from kernbench.ranks.meeting import NUMBER, Call, Exchange
from kernbench.ranks.ranges import folded, runs
from kernbench.ranks.transfers import Transfer
from kernbench.ranks.verdicts import (
    Verdict,
    near_misses,
    tags_differ,
)
from kernbench.ranks.waiting import Head, Node, WaitGraph
from kernbench.ranks.world import World
from kernbench.units import format_span

MESSAGES_HINT: Final = "let one side send before it receives, or start both with batch_isend_irecv"
"""What to try if ranks wait for each other's messages."""

_MOST_HOPS: Final = 8
_MOST_PLACES: Final = 8
"""Most hops of a cycle, and most places where ranks wait, that a report shows."""

_MOST_STEPS: Final = 100_000
"""Number of edges after which the search for a shorter cycle ends."""


def closes(graph: WaitGraph, dead: set[Node]) -> bool:
    """Returns whether `explain` has a verdict on nodes that can never go on."""
    return any(isinstance(node, Head) for knot in _knots(graph, dead) for node in knot)


def explain(graph: WaitGraph, world: World, dead: set[Node]) -> Iterator[Verdict]:
    """Yields verdicts on the cycles and tags that make nodes dead; returned ranks are left out.

    Args:
        dead: Nodes of the graph that can never go on.
    """
    for knot in _knots(graph, dead):
        heads = sorted(
            (node for node in graph.children if node in knot and isinstance(node, Head)),
            key=lambda head: head.rank,
        )
        if not heads:
            continue
        for head in heads:
            meeting = head.meeting
            if isinstance(meeting, Transfer) and not meeting.complete:
                others = near_misses(world, meeting)
                if others is not None:
                    yield tags_differ(*others)
                    break
        else:
            yield _cycle(graph, heads, knot)


def _cycle(graph: WaitGraph, heads: Sequence[Head], knot: set[Node]) -> Verdict:
    cycle = _shortest(graph, heads, knot)
    # Also ranks that wait in the same collectives although nobody waits for them.
    meetings = dict.fromkeys(head.meeting for head in heads)
    waits = [
        (call, meeting)
        for meeting in meetings
        for call in meeting.calls.values()
        if call.command is not None and call.command.begun
    ]
    ranks = sorted({call.rank for call, _ in waits})
    if all(head.meeting.is_message for head in heads):
        hint = MESSAGES_HINT
        if _tags_cross(cycle):
            hint = (
                "messages between two devices move in the order of the calls, whatever their tags: "
                "receive them in the order in which they are sent"
            )
    else:
        hint = "every rank must come to collectives and messages in the same order"
    verdict = Verdict("P4", f"{folded(ranks)} wait for one another: {path(cycle)}", hint)
    if not any(head.meeting.is_message for head in cycle):
        steps = [
            f"{head.rank} waits in {_where(head.meeting)} for {cycle[(i + 1) % len(cycle)].rank}"
            for i, head in enumerate(cycle)
        ]
        verdict.code = "C10"
        verdict.summary = f"groups are used in crossing order: {'; '.join(_cut(steps))}"
        verdict.hint = "every rank must use the groups in the same order"
    verdict.facts = places(waits)
    for call, meeting in sorted(waits, key=lambda wait: wait[0].time):
        verdict.views.setdefault(call.rank, meeting.view(call))
    return verdict


def _tags_cross(cycle: Sequence[Head]) -> bool:
    """Returns whether a send and a receive wait for each other that differ in the tag only."""
    ends = {
        (meeting.source, meeting.destination)
        for head in cycle
        if isinstance(meeting := head.meeting, Transfer)
    }
    return len(cycle) > 1 and len(ends) == 1


def _where(meeting: Exchange) -> str:
    """Returns the group of a collective."""
    return meeting.title.rpartition("of group ")[2]


def path(cycle: Sequence[Head]) -> str:
    """Returns a cycle of waits in one line: `0 recv<-1 (l.12) -> 1 recv<-0 -> 0`."""
    hops, before = [], None
    for i, head in enumerate(cycle):
        to = cycle[(i + 1) % len(cycle)].rank
        call = head.meeting.calls[head.rank]
        way = head.meeting.hop(head.rank, to)
        place = None if call.site is None else (call.site.file, call.site.line)
        line = f" (l.{place[1]})" if place is not None and place != before else ""
        before = place
        hops.append(f"{head.rank} {way}{line}")
    return " -> ".join([*_cut(hops), str(cycle[0].rank)])


def _cut(parts: list[str]) -> list[str]:
    if len(parts) <= _MOST_HOPS:
        return parts
    return [*parts[:3], "...", parts[-1]]


def places(waits: Iterable[tuple[Call, Exchange]], verb: str = "") -> list[str]:
    """Returns a line for each place where ranks wait, with the ranks.

    Args:
        waits: Calls, each with what it is a part of.
        verb: Verb of the lines; empty for `waits` or `wait`.
    """
    alike: dict[tuple[str, CallSite | None], dict[Call, None]] = {}
    for call, meeting in waits:
        what = meeting.place(call)
        # The key is the instruction, since finding the line number for many ranks takes long.
        alike.setdefault((what, call.site), {})[call] = None
    found = [(what, site, list(calls)) for (what, site), calls in alike.items()]
    lines: list[str] = [
        Fact(
            f"{folded(sorted({call.rank for call in calls}))} "
            f"{verb or ('waits' if len(calls) == 1 else 'wait')} in {_numbered(what, calls)} "
            f"at {format_span([call.time for call in calls])}, {site_fact(site)}",
            [call.involved() for call in calls],
        )
        for what, site, calls in sorted(found, key=lambda place: min(c.rank for c in place[2]))
    ]
    more = len(lines) - _MOST_PLACES
    return lines if more <= 0 else [*lines[:_MOST_PLACES], f"and {more} more places"]


def _numbered(what: str, calls: Sequence[Call]) -> str:
    return what.replace(NUMBER, runs(sorted({call.number for call in calls}), ","))


def _knots(graph: WaitGraph, dead: set[Node]) -> list[set[Node]]:
    """Returns sets of dead nodes that wait for each other, and for no dead node that waits too."""
    edges = {
        node: [child for child in graph.children[node] if child in dead]
        for node in graph.children
        if node in dead
    }
    found: list[set[Node]] = []
    for knot in components(edges):
        outside = {child for node in knot for child in edges[node] if child not in knot}
        if len(knot) > 1 and not any(edges[child] for child in outside):
            found.append(knot)
    return found


def _shortest(graph: WaitGraph, heads: Sequence[Head], knot: set[Node]) -> list[Head]:
    """Returns a shortest cycle, the lowest rank first."""
    best: list[Head] = []
    steps = 0
    nodes: Sequence[Node] = heads
    inside = {node: [child for child in graph.children[node] if child in knot] for node in knot}
    alone = all(len(children) == 1 for children in inside.values())
    for start in nodes:
        way, looked = around(start, inside.__getitem__)
        cycle = [node for node in way if isinstance(node, Head)]
        steps += looked
        if not best or len(cycle) < len(best):
            best = cycle
        if alone or len(best) <= 2 or steps > _MOST_STEPS:
            break
    lowest = min(range(len(best)), key=lambda i: best[i].rank)
    return [*best[lowest:], *best[:lowest]]
