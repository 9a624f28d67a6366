"""Looks, at the right moments, for ranks that can never go on."""

from collections.abc import Iterable, Sequence
from typing import Final

from kernbench.des import DeadlockError, EventLoop, Task, order
from kernbench.process.process import Process
from kernbench.ranks.circles import explain
from kernbench.ranks.verdicts import (
    abandoned,
    blame_faults,
    jammed,
    missed,
    unexplained,
)
from kernbench.ranks.waiting import WaitGraph, waits_for
from kernbench.ranks.world import World

_PARKS: Final = 64
"""Number of parks, for each rank of the spawn, between two looks at all ranks."""


class Reviewer:
    """Finds ranks of one spawn that can never go on, and blames them.

    Args:
        world: The ranks.
        loop: The event loop.
        processes: All ranks.

    Attributes:
        active: Whether the search goes on; False once a rank has failed.
    """

    def __init__(self, world: World, loop: EventLoop, processes: Sequence[Process]) -> None:
        self.active = True
        self._world = world
        self._loop = loop
        self._processes = processes
        self._suspects: dict[int, None] = {}
        self._due = -1
        self._every: Final = _PARKS * len(processes)
        self._left = self._every

    def parked(self, task: Task) -> None:
        """Looks whether a rank that is about to park may close a cycle of waits.

        A stream may close a cycle by itself after its host has parked. So once in a while all ranks
        are looked at.
        """
        self._left -= 1
        if not self._left:
            self._left = self._every
            self._suspects = dict.fromkeys(range(len(self._processes)))
            self.review_later()
        process = task.subject
        if isinstance(process, Process) and not isinstance(task.waiting_for, str):
            self.suspect(process)

    def suspect(self, process: Process) -> None:
        """Looks, at the end of the instant, whether a blocked rank closes a cycle of waits."""
        if self.active and waits_for(process):
            self._suspects[process.rank] = None
            self.review_later()

    def review_later(self) -> None:
        """Looks, at the end of this instant, for operations that can never complete."""
        now = self._loop.now
        if self._due != now:
            self._due = now
            self._loop.at(now, self._loop.owner(order.REVIEW), self._review)

    def _review(self) -> None:
        self._due = -1
        suspects, self._suspects = self._suspects, {}
        if not self.active:
            return
        graph = WaitGraph(self._world, self._processes)
        self._find_missed(graph)
        if self.active and suspects:
            self._find_dead(graph, suspects)

    def _find_missed(self, graph: WaitGraph) -> None:
        """Finds collectives and messages that need a rank which has returned."""
        world = self._world
        if not world.exited:
            return
        for ranks, error in missed(world, graph):
            world.blame(ranks, error)
        for verdict in abandoned(world):
            verdict.pronounce(world)

    def _find_dead(self, graph: WaitGraph, ranks: Iterable[int]) -> None:
        heads = [head for rank in ranks for head in graph.held(rank)]
        for verdict in explain(graph, self._world, graph.dead(heads)):
            verdict.pronounce(self._world)

    def explain(self, deadlock: DeadlockError) -> None:
        """Blames ranks for a deadlock: the loop has no events left, but tasks still wait."""
        if blame_faults(self._world, self._processes):
            return
        ranks = range(len(self._processes))
        graph = WaitGraph(self._world, self._processes, settled=True)
        self._find_missed(graph)
        if self.active:
            self._find_dead(graph, ranks)
        if self.active:
            heads = [head for rank in ranks for head in graph.held(rank)]
            for verdict in jammed(heads, deadlock):
                verdict.pronounce(self._world)
        if self.active:
            unexplained(deadlock).pronounce(self._world)
