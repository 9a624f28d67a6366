"""The graph of waits: which rank waits for which, and which ranks can never go on.

A *head* is a collective or a message that a rank's stream has reached and that has not ended. Heads
block hosts and streams. A head can be released if the missing ranks can reach it. A set of nodes
that nothing outside of the set can release is dead, even while other ranks run on.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kernbench.errors import CallSite, site_in
from kernbench.process.process import Process
from kernbench.ranks.meeting import Exchange
from kernbench.ranks.world import World, world_of
from kernbench.sim_engine.command import Command

if TYPE_CHECKING:
    from kernbench.des import Event


class Head(NamedTuple):
    """A rank, and a meeting that blocks it."""

    rank: int
    meeting: Exchange


class _Host(NamedTuple):
    """A rank whose host must make a call for which others wait."""

    rank: int


class _Part(NamedTuple):
    """A queued command; the commands before it must end first."""

    command: Command


class _Gate(NamedTuple):
    """Everything that is missing in a meeting, as one node; spares edges."""

    meeting: Exchange


Node = Head | _Host | _Part | _Gate


class WaitGraph:
    """The waits of one moment; made for one look, then dropped.

    Args:
        processes: Their processes, by rank.
        settled: Whether the loop has no events left, so that no head is under way.
    """

    def __init__(
        self, world: World, processes: Sequence[Process], *, settled: bool = False
    ) -> None:
        self._world = world
        self._processes = {process.rank: process for process in processes}
        self._settled = settled
        self._heads: dict[object, tuple[Head, ...]] = {}
        self.children: dict[Node, tuple[Node, ...]] = {}

    def held(self, rank: int) -> tuple[Head, ...]:
        """Returns the heads that block a rank's host; empty if it runs or waits for a time."""
        task = self._processes[rank].task
        if task is None or not task.parked:
            return ()
        return self._heads_of(task.waiting_for, rank)

    def place(self, rank: int) -> CallSite | None:
        """Returns the user's line at which a rank's host waits; None if it does not wait."""
        task = self._processes[rank].task
        return None if task is None else site_in(task.frame)

    def dead(self, starts: Iterable[Head]) -> set[Node]:
        """Returns the nodes that can never go on, among some heads and all for which they wait.

        Args:
            starts: The heads; what they wait for counts both directly and through others.
        """
        needs: dict[Node, int] = {}
        parents: dict[Node, list[Node]] = {}
        alive: list[Node] = []
        stack: list[Node] = list(starts)
        while stack:
            node = stack.pop()
            if node in needs:
                continue
            children, every = self._needs(node)
            self.children[node] = children
            needs[node] = len(children) if every else 1
            if not needs[node]:
                alive.append(node)
            for child in children:
                parents.setdefault(child, []).append(node)
                stack.append(child)
        while alive:
            node = alive.pop()
            for parent in parents.get(node, ()):
                needs[parent] -= 1
                if not needs[parent]:
                    alive.append(parent)
        return {node for node, missing in needs.items() if missing > 0}

    def _needs(self, node: Node) -> tuple[tuple[Node, ...], bool]:
        """Returns the nodes that must be released first, and whether all of them (else any)."""
        if isinstance(node, Head):
            return self._needs_of(node)
        if isinstance(node, _Gate):
            return tuple(map(_node, node.meeting.missing())), True
        if isinstance(node, _Part):
            return self._heads_of(node.command, node.command.host.rank), True
        if node.rank in self._world.exited:
            return (), False  # a rank that has returned makes no further call
        return self.held(node.rank), True

    def _needs_of(self, head: Head) -> tuple[tuple[Node, ...], bool]:
        needs = head.meeting.needs(head.rank, settled=self._settled)
        if needs is None:
            return (_Gate(head.meeting),), True
        return tuple(map(_node, needs.of)), needs.every

    def front(self, label: object, rank: int) -> tuple[Head, ...]:
        """Returns the heads that block a command of a rank."""
        return self._heads_of(label, rank)

    def _heads_of(self, label: object, rank: int) -> tuple[Head, ...]:
        """Returns the heads that block a wait: the first open meetings among its predecessors."""
        known = self._heads.get(label)
        if known is None:
            known = self._heads[label] = tuple(_front(label, rank))
        return known


def _node(item: int | Command) -> Node:
    """Returns the node of a rank that must call, or of a command that must end."""
    if isinstance(item, int):
        return _Host(item)
    if item.begun and isinstance(item.part, Exchange):
        return Head(item.host.rank, item.part)
    return _Part(item)


def _front(label: object, rank: int) -> Iterator[Head]:
    seen: set[Event] = set()
    stack = [label]
    while stack:
        found = stack.pop()
        if isinstance(found, Exchange):  # the host waits until the sender of a message is known
            stack.append(found.calls[rank].command)
            continue
        if not isinstance(found, Command):
            continue
        pending = [event for event in found.after if event.time is None]
        for event in pending:
            if event not in seen:
                seen.add(event)
                stack.append(event.label)
        if not pending and isinstance(found.part, Exchange):
            yield Head(rank, found.part)


def waits_for(process: Process) -> bool:
    """Returns whether another rank may wait for a rank that is about to park; a cheap first look.

    Another rank may wait if it has made a call that this rank has not, or if its stream has reached
    an exchange that is still queued in a stream of this rank.
    """
    world, rank = world_of(process), process.rank
    groups = world.held.get(rank, {})
    if rank in world.exited:
        groups = world.groups  # also groups that it has destroyed: a call may be missing there
    for group in groups.values():
        if group.open and rank in group and next(reversed(group.open)) > group.number(rank):
            return True
    for place in world.creations.values():
        if place.ahead_of(rank):
            return True
    if world.awaited.get(rank) or world.awaited.get(None):
        return True
    return any(_awaited(line, joined) for line, joined in process.joined.items())


def _awaited(line: object, joined: deque[Command]) -> bool:
    """Returns whether somebody has come to a command of a line to which this rank has not."""
    while joined and joined[0].done.time is not None:
        joined.popleft()
    for command in joined:
        if command.begun:
            continue
        exchange = command.part
        joint = exchange.joint if isinstance(exchange, Exchange) else None
        if joint is not None and joint.arrived:
            return True
        if line is not None:
            return False  # who has come to a later one has come to this one before
    return False
