"""Finds ranks that poll for ever for what cannot happen (K6); counts polls, not seconds."""

import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Final

from kernbench.errors import call_site, site_fact, site_in
from kernbench.process.process import Process
from kernbench.ranks.exploring import choose_late
from kernbench.ranks.ranges import folded
from kernbench.ranks.rank_status import rank_status
from kernbench.ranks.verdicts import RankDeadlockError, Verdict, blame_faults
from kernbench.ranks.waiting import WaitGraph
from kernbench.ranks.world import World
from kernbench.sim_engine.command import Command

_LOOKS: Final = 10_000
"""Polls of all ranks together, with nothing else left to happen, that make a livelock."""

READS: Final = 100_000
"""Reads of unchanged values in a row, with nothing else left to happen, that make a livelock."""

_HINT: Final = "call work.wait() or synchronize() instead of polling; they find out what is missing"

_LEAST: Final = 100
"""Polls of one rank that make a livelock, at least, however many ranks there are."""


class LivelockError(RankDeadlockError):
    """Ranks poll for ever for what cannot happen (K6)."""


class LivelockGuard:
    """Finds livelocks of the ranks of one spawn.

    Args:
        processes: Their processes, by rank.
    """

    def __init__(self, world: World, processes: Sequence[Process]) -> None:
        self._world = world
        self._processes = processes
        self._limit = max(_LEAST, _LOOKS // len(processes))
        self._before: list[int] = []

    def watch(self, process: Process) -> Callable[[], None]:
        """Returns the function that a rank calls after each poll in vain."""
        limit, host = self._limit, process.host

        def looked() -> None:
            if host.polls >= limit:
                self._check(process)
            elif host.repeats >= READS and not choose_late(self._world):
                self._conclude(process)

        return looked

    def _check(self, process: Process) -> None:
        """Raises if no rank has issued anything since the last check."""
        process.host.polls = 0
        if choose_late(self._world):
            return
        issued = [other.host.issued for other in self._processes]
        before, self._before = self._before, issued
        if issued == before:
            self._conclude(process)

    def _conclude(self, process: Process) -> None:
        """Raises in a rank that can poll, or read, for ever; a fault of a device comes first."""
        if blame_faults(self._world, self._processes):
            return
        self._verdict(process).pronounce(self._world, process.rank)

    def _verdict(self, process: Process) -> Verdict:
        pollers = [
            other
            for other in self._processes
            if other is process
            or (
                other.task is not None
                and other.task.parked
                and other.task.waiting_for == "its turn"
            )
        ]
        ranks = [other.rank for other in pollers]
        verdict = Verdict(
            "K6",
            f"{folded(ranks)} poll{'s' if len(ranks) == 1 else ''} for ever, and nothing else is "
            "left to happen",
            _HINT,
            error=LivelockError,
        )
        graph = WaitGraph(self._world, self._processes)
        for poller in pollers:
            verdict.views[poller.rank] = ""
            verdict.facts += _looks_at(poller, graph)
        verdict.facts += rank_status(self._world, self._processes, but=ranks)
        return verdict


def on_main(process: Process) -> Callable[[], None]:
    """Returns the function that main calls now and then while it reads the same values again.

    Args:
        process: Main.
    """
    known = weakref.ref(process)  # its host keeps the function

    def looked() -> None:
        process = known()
        if process is not None and process.host.repeats >= READS:
            raise LivelockError(
                f"{process.name} polls for ever, and nothing else is left to happen",
                _reads_again(process, site_fact(call_site())),
                hint=_HINT,
                code="K6",
            )

    return looked


def _reads_again(process: Process, where: str) -> list[str]:
    """Returns what a process reads without end; where it does is `where`."""
    read = process.host.repeated
    assert read is not None
    label = read.block.label
    return [
        f"{process.name} reads {label} again and again {where}",
        f"nothing is under way that writes {label}",
    ]


def _looks_at(process: Process, graph: WaitGraph) -> list[str]:
    """Returns where a rank polls, and what it polls."""
    polled, task = process.host.polled, process.task
    command = None if polled is None else polled.label
    # The frame of a task that waits for its turn; the running task is the one that looks.
    frame = None if task is None else task.frame
    where = site_fact(site_in(frame or sys._getframe()))
    if process.host.repeated is not None and process.host.repeats:
        return _reads_again(process, where)
    facts = [f"rank {process.rank} polls {where}"]
    if not isinstance(command, Command):
        return facts
    heads = graph.front(command, process.rank)
    absent = [
        f"{head.meeting.title} lacks {folded(head.meeting.absent())}"
        for head in heads
        if head.meeting.absent()
    ]
    because = f"; {'; '.join(absent)}" if absent else ""
    issued = site_fact(command.site, "issued at")
    return [*facts, f"rank {process.rank} polls {command.name}, {issued}{because}"]
