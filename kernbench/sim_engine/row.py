"""Commands of one stream that follow one another, as the action of the first of them."""

from typing import Final

from kernbench.des import Beside, Event, Fifo
from kernbench.sim_engine.command import Command
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import Record


class Row:
    """Action of a command and of those after it: each holds one resource for a known time.

    All wait for what the first one waits for. So only that one is a command; of the others there
    is the event of the completion, whose label is the first command until then.

    Args:
        resource: What each command holds.
        duration: How long the first one holds it, in picoseconds.

    Attributes:
        resource: What each command holds.
        more: The other commands: completion, name, when it was issued, and how long it holds the
            resource, both in picoseconds.
    """

    __slots__ = ("_duration", "_engine", "more", "resource")

    def __init__(self, engine: GraphEngine, resource: Fifo, duration: int) -> None:
        self.resource: Final = resource
        self.more: Final[list[tuple[Event, str, int, int]]] = []
        self._engine: Final = engine
        self._duration: Final = duration

    def begin(self, command: Command, start: int) -> None:
        """See `Action`."""
        resource = self.resource
        if resource.timely:  # since there is another stream
            self._wait(command, -1, start)
            return
        engine, duration = self._engine, self._duration
        end = resource.reserve(start, duration)
        engine.complete(command, end - duration, end, None)
        if engine.op_log.full:  # since these were issued
            for place, (_, _, issued, duration) in enumerate(self.more):
                end = resource.reserve(end if end > issued else issued, duration)
                self._complete(command, place, end - duration, end)
            return
        total = engine.op_log.totals.get((command.host.rank, command.category))
        holds = resource.holds
        for done, name, issued, duration in self.more:  # as `_complete`, without calls
            end = resource.free = (end if end > issued else issued) + duration
            if holds is not None and type(duration) is not Beside:
                holds.add(end - duration, end)
            if total is not None:
                total.count += 1
                total.busy_ps += duration
            done.label = name
            done.settle(end)

    def _wait(self, command: Command, place: int, start: int) -> None:
        """Lets a command of the row wait for its turn among those of other streams."""
        engine = self._engine
        owner, now = engine.command_owner(command.host.rank), engine.loop.now
        engine.loop.at(max(start, now), owner, self._hold, command, place, max(start, now))

    def _hold(self, command: Command, place: int, start: int) -> None:
        """Holds the resource: now is the turn of the command at a place; the first is at -1."""
        engine, duration = self._engine, self._duration if place < 0 else self.more[place][3]
        begin = max(start, self.resource.free)
        end = self.resource.reserve(start, duration)
        if place < 0:
            engine.complete(command, begin, end, None)
        else:
            self._complete(command, place, begin, end)
        place += 1
        if place < len(self.more):
            self._wait(command, place, max(end, self.more[place][2]))

    def _complete(self, command: Command, place: int, begin: int, end: int) -> None:
        """Ends the command at a place, as `GraphEngine.complete` does."""
        done, name, issued, _ = self.more[place]
        rank, category, log = command.host.rank, command.category, self._engine.op_log
        log.total(rank, category, end - begin)
        if log.full:
            log.add(
                Record(
                    name,
                    category,
                    rank,
                    command.stream.name,
                    issued,
                    begin,
                    end,
                    None,
                    {},
                    ranges=command.ranges,
                    dispatch=command.dispatch,
                )
            )
        done.label = name
        done.settle(end)
