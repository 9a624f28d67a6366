"""Ranks that repeat what the leader does, without running the program (ADR 0038)."""

from collections.abc import Sequence
from typing import Any, Final

from kernbench.ccl.operations import OPERATIONS
from kernbench.des import Event
from kernbench.distributed.issuing import communication_stream, join, name_algorithm
from kernbench.errors import UnsupportedError, site_fact
from kernbench.following.steps import Called, Issued, Made, Step, Took, Waited
from kernbench.following.tapes import WORLD, Page, Tape
from kernbench.following.witnesses import WAY_OUT, RanksDifferError
from kernbench.memory import HOST_SIP, View
from kernbench.process.act import Alone
from kernbench.process.process import Process
from kernbench.ranks.groups import ProcessGroup
from kernbench.ranks.meeting import Exchange
from kernbench.ranks.world import world_of
from kernbench.sim_engine.command import Command, Stream
from kernbench.sim_engine.engine import Hold

_MANY: Final = 512
"""Commands that are remembered at least, before those are forgotten that are over."""


class Follower:
    """A rank that repeats the steps of a tape, on its own device, streams and groups.

    Args:
        tape: What the leader does.

    Attributes:
        process: The rank.
    """

    def __init__(self, process: Process, tape: Tape) -> None:
        self.process: Final = process
        self._tape: Final = tape
        self._sip: Final = process.ctx.devices[process.rank]
        self._device: Final = process.engine.devices[self._sip]
        self._streams: Final[list[Stream]] = []
        self._events: dict[int, Event] = {}
        self._most = _MANY
        self._made: Final[dict[int, Any]] = {}
        self._groups: Final[dict[int, ProcessGroup]] = {}
        self._alone: Final = Alone(process, "compute", self._device.compute)
        self._trails = False  # whether it has waited for the leader
        process.noted = True  # it has no frame of a program

    def run(self) -> None:
        """Repeats all steps; parks where the leader waits, and until the leader has done more."""
        process = self.process
        host, loop = process.host, process.engine.loop
        page: Page | None = self._tape.first()
        while page is not None:
            if page.more.time is None:
                process.wait(page.more)
                self._trails = host.clock < loop.now
            for step in page.steps:
                self._repeat(step)
            if len(self._events) > self._most:
                self._forget()
            page = page.next

    def _forget(self) -> None:
        """Forgets commands that ended before the host's time: to wait for them changes nothing."""
        clock = self.process.host.clock
        self._events = {
            number: event
            for number, event in self._events.items()
            if event.time is None or event.time > clock
        }
        self._most = max(_MANY, 2 * len(self._events))  # so that the work stays linear

    def _repeat(self, step: Step | Took) -> None:
        process = self.process
        if isinstance(step, Issued):
            self._issue(step)
        elif isinstance(step, Called):
            self._call(step)
        elif isinstance(step, Waited):
            process.host.clock += step.spent
            event = self._events.get(step.number)
            if event is not None:
                process.wait(event, step.awaited)
        elif isinstance(step, Made):
            process.host.clock += step.spent
            sip = self._sip
            make = process.default_stream if step.kind == "default" else process.new_stream
            self._streams.append(make(sip))
        elif isinstance(step, Took):
            log, time = process.engine.op_log, process.host.clock + step.since
            log.add_memory(self._sip, step.nbytes, time)
        else:
            process.host.clock += step.spent
            made = step.function(self, *step.args)
            if step.made >= 0:
                self._made[step.made] = made

    def _issue(self, step: Issued) -> None:
        process = self.process
        host, stream = process.host, self._streams[step.stream]
        if step.after:
            stream.waits.extend(self._awaited(step.after))
        resource = None if step.engine is None else getattr(self._device, step.engine)
        if self._trails:
            self._count_late(stream, step.spent, shared=resource is not None and resource.timely)
        plain = step.category == "compute" and not step.latency and step.queued
        if plain and resource is self._device.compute and not process.engine.op_log.full:
            host.clock += step.spent - step.dispatch
            self._alone.issue(step.name, stream, step.duration, step.dispatch)
        else:
            host.clock += step.spent
            work = Hold(process.engine, resource, step.duration, None, step.latency)
            command = Command(
                step.name, step.category, host, stream, work, step.site, step.args, step.dispatch
            )
            command.ranges = step.ranges
            self._submit(command, step)
        assert stream.tail is not None
        self._events[step.number] = stream.tail

    def _submit(self, command: Command, step: Issued | Called) -> None:
        engine = self.process.engine
        if step.queued:
            engine.submit(command)
        else:
            engine.enqueue(command)

    def _call(self, step: Called) -> None:
        process, joined, what = self.process, step.joined, step.joined.what
        host, rank = process.host, process.rank
        group = self.group(step.batch)
        if what.hosted:
            stream = process.side_stream(f"gloo {group.name}", HOST_SIP)
        elif joined.async_op:
            stream = communication_stream(process, group, self._sip)
        else:
            stream = self._streams[step.stream]
        stream.waits.extend(self._awaited(step.after))
        host.clock += step.spent - step.dispatch
        if self._trails:
            self._count_late(stream, step.dispatch, shared=True)
        gives, takes = self._views(step, group)
        entered = join(
            process, group, what, gives, takes, step.site, mail=joined.mail, role=joined.role
        )
        host.clock += step.dispatch
        command = Command(
            what.command,
            "collective",
            host,
            stream,
            entered.action,
            step.site,
            entered.args,
            step.dispatch,
        )
        command.ranges = step.ranges
        exchange = command.part = entered.part
        assert isinstance(exchange, Exchange)
        exchange.issued(process, command)
        self._submit(command, step)
        if not what.hosted:
            group.last[rank] = command
        if what.splits is not None and len(exchange.calls) == len(group.callers):
            name_algorithm(exchange)
        self._events[step.number] = command.done

    def _views(self, step: Called, group: ProcessGroup) -> tuple[Sequence[View], Sequence[View]]:
        """Returns what the rank gives and takes: the leader's values, where there are some."""
        joined, what = step.joined, step.joined.what
        operation, place = OPERATIONS[what.operation], group.place(self.process.rank)
        if not what.hosted or not operation.rooted or place == step.place:
            return joined.gives, joined.takes
        if place == what.root:
            raise UnsupportedError(
                f"{what.text} with the root {self.process.name}, which repeats what another does",
                [site_fact(step.site)],
                hint=WAY_OUT,
            )
        gives = () if operation.gives == "root" else joined.gives
        takes = () if operation.takes == "root" else joined.takes
        return gives, takes

    def _awaited(self, numbers: Sequence[int]) -> list[Event]:
        events = self._events
        return [events[number] for number in numbers if number in events]

    def group(self, batch: int) -> ProcessGroup:
        """Returns the rank's own group of a batch.

        Args:
            batch: Number of the batch; `WORLD` for the group of all ranks.

        Raises:
            RanksDifferError: If none of these groups has the rank.
        """
        found = self._groups.get(batch)
        if found is not None:
            return found
        if batch == WORLD:
            world = world_of(self.process).group
            assert world is not None
            self._groups[batch] = world
            return world
        first, members = self._tape.batches[batch]
        for number, ranks in enumerate(members, first):
            if self.process.rank in ranks:
                self._groups[batch] = self._made[number]
                return self._groups[batch]
        raise RanksDifferError(
            f"{self.process.name} is in none of the groups, in one of which the leader called a "
            "collective",
            [f"groups that were made together: {', '.join(map(str, members))}"],
            hint=WAY_OUT,
        )

    def _count_late(self, stream: Stream, spent: int, *, shared: bool) -> None:
        """Counts a command that begins before the present, since the leader came too late."""
        host, loop = self.process.host, self.process.engine.loop
        start = host.clock + spent
        if start >= loop.now:
            self._trails = False
            return
        events = [event for event in (stream.tail, *stream.waits) if event is not None]
        times = [event.time for event in events]
        if shared and None not in times:
            begin = max([start, *(time for time in times if time is not None)])
            if begin < loop.now:
                loop.late(begin)
