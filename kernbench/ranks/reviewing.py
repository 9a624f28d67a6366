"""Looks, at the right moments, for ranks that can never go on."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from kernbench.des import DeadlockError, EventLoop, Task, order
from kernbench.process.process import Process
from kernbench.ranks.circles import closes, explain
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

_PATIENCE: Final = 8
"""Waits of a rank that is on its way before a mistake of others is reported without it."""


class Reviewer:
    """Finds ranks of one spawn that can never go on, and blames them.

    A mistake is reported after a *round*: ranks that still run, or that wait for what is under way,
    go on to the next wait for each other. So the report names all ranks that are a part of it, and
    not only those that happened to be some nanoseconds ahead.

    Args:
        processes: All ranks.
        report: Called at the end of a round in which nothing else was found.

    Attributes:
        active: Whether the search goes on; False once a rank has failed.
    """

    def __init__(
        self,
        world: World,
        loop: EventLoop,
        processes: Sequence[Process],
        report: Callable[[], None],
    ) -> None:
        self.active = True
        self._world = world
        self._loop = loop
        self._processes = processes
        self._report = report
        self._suspects: dict[int, None] = {}
        self._due = -1
        self._every: Final = _PARKS * len(processes)
        self._left = self._every
        self._coming: dict[int, None] | None = None
        self._patience: Final = {process.rank: _PATIENCE for process in processes}
        self._over = False

    def parked(self, task: Task) -> None:
        """Looks whether a rank that is about to park may close a cycle of waits.

        A stream may close a cycle by itself after its host has parked. So once in a while all ranks
        are looked at.
        """
        self._left -= 1
        if not self._left:
            self._left = self._every
            self._suspects = dict.fromkeys(self._ranks())
            self.review_later()
        process = task.subject
        if not isinstance(process, Process):
            return
        if self._coming:
            self._patience[process.rank] -= 1
            if not self._moves(process):
                self._has_come(process)
        elif not isinstance(task.waiting_for, str):
            self.suspect(process)

    def ended(self, process: Process) -> None:
        """Notes that a rank has ended."""
        if self._coming:
            self._has_come(process)

    def begin_round(self) -> bool:
        """Lets ranks that are on their way go on, so that a report of a mistake names them, too.

        Returns:
            Whether there are such ranks, and the mistake is reported after they have come.
        """
        if self._coming is None and not self._over:
            self._coming = self._on_their_way()
        self._over = self._over or not self._coming
        return not self._over

    def end_round(self) -> None:
        """Reports what was found, though some ranks are still on their way."""
        if self._coming and not self._over:
            self._over = True
            self._conclude()

    def _has_come(self, process: Process) -> None:
        assert self._coming is not None
        self._coming.pop(process.rank, None)
        if not self._coming:
            self.review_later()

    def _ranks(self) -> list[int]:
        return [process.rank for process in self._processes]

    def _on_their_way(self) -> dict[int, None]:
        return {process.rank: None for process in self._processes if self._moves(process)}

    def _moves(self, process: Process) -> bool:
        """Returns whether a rank goes on by itself: it runs, or waits for what is under way."""
        task, rank = process.task, process.rank
        if task is None or not process.alive or rank in self._world.exited:
            return False
        heads = WaitGraph(self._world, self._processes).held(rank)
        return self._patience[rank] > 0 and not any(head.meeting.missing() for head in heads)

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
        if self._coming is not None:
            # Those whose wait was released by the last to come go on again.
            self._coming = self._coming or self._on_their_way()
            if not self._coming:
                self._over = True
                self._conclude()
            return
        graph = WaitGraph(self._world, self._processes)
        if self._finds(graph, suspects) and not self.begin_round():
            self._conclude()

    def _finds(self, graph: WaitGraph, suspects: Iterable[int]) -> bool:
        """Returns whether there are ranks to blame."""
        world = self._world
        if world.exited and (any(missed(world, graph)) or any(abandoned(world))):
            return True
        heads = [head for rank in suspects for head in graph.held(rank)]
        return closes(graph, graph.dead(heads))

    def _conclude(self) -> None:
        """Blames ranks that can never go on; ends the spawn, too, if others are blamed already."""
        graph = WaitGraph(self._world, self._processes)
        self._find_missed(graph)
        if self.active:
            self._find_dead(graph, self._ranks())
        if self.active:
            self._report()

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

    def explain(self, deadlock: DeadlockError, *, told: bool) -> None:
        """Blames ranks for a deadlock: the loop has no events left, but tasks still wait.

        Args:
            deadlock: The tasks that wait.
            told: Whether ranks are blamed already for what may be the reason.
        """
        self._over = True
        if blame_faults(self._world, self._processes):
            return
        ranks = self._ranks()
        graph = WaitGraph(self._world, self._processes, settled=True)
        self._find_missed(graph)
        if self.active:
            self._find_dead(graph, ranks)
        if self.active and not told:
            heads = [head for rank in ranks for head in graph.held(rank)]
            for verdict in jammed(heads, deadlock):
                verdict.pronounce(self._world)
        if self.active and not told:
            unexplained(deadlock).pronounce(self._world)
