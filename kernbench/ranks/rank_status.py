"""Where every rank is at one moment: its line, its time, and what it waits for."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from kernbench.errors import CallSite, site_fact, site_in
from kernbench.process.process import Process
from kernbench.ranks.ranges import folded
from kernbench.ranks.waiting import WaitGraph
from kernbench.ranks.world import World
from kernbench.units import format_span

_MOST: Final = 16
"""Most places that are listed."""


def rank_status(
    world: World,
    processes: Sequence[Process],
    running: Mapping[int, CallSite | None] | None = None,
    but: Collection[int] = (),
) -> list[str]:
    """Returns lines that say where ranks are; ranks at one place share a line.

    Args:
        processes: Their processes, by rank.
        running: Where ranks are that do not wait, by rank.
        but: Ranks to leave out.
    """
    graph = WaitGraph(world, processes)
    places: dict[tuple[str, str, CallSite | None], list[tuple[int, int]]] = {}
    for process in processes:
        if process.rank in but:
            continue
        doing, site, time = _status_of(world, process, graph, (running or {}).get(process.rank))
        places.setdefault((*doing, site), []).append((process.rank, time))
    lines = []
    for (one, several, site), found in places.items():
        ranks, times = [rank for rank, _ in found], [time for _, time in found]
        verb = one if len(ranks) == 1 else several
        where = f"at {format_span(times)}" + (f", {site_fact(site)}" if site else "")
        lines.append(f"{folded(ranks)} {verb} {where}")
    return lines[:_MOST] + ([f"and {len(lines) - _MOST} more places"] if lines[_MOST:] else [])


def _status_of(
    world: World, process: Process, graph: WaitGraph, running: CallSite | None
) -> tuple[tuple[str, str], CallSite | None, int]:
    """Returns what a rank does, in the singular and the plural, where, and since when."""
    rank, task, clock = process.rank, process.task, process.host.clock
    if not process.alive:
        return ("has returned", "have returned"), world.exit_sites.get(rank), clock
    for head in graph.held(rank):
        call = head.meeting.calls[rank]
        return (f"waits in {call.text}", f"wait in {call.text}"), call.site, call.time
    if task is not None and not task.begun:
        return ("has not begun", "have not begun"), None, clock
    if task is None or not task.parked:
        return ("runs", "run"), running or process.call_site(), clock
    site = site_in(task.frame)
    if task.waiting_for == "its turn":  # it runs ahead of the loop
        return ("runs", "run"), site, clock
    return (f"waits for {task.waiting_for}", f"wait for {task.waiting_for}"), site, clock
