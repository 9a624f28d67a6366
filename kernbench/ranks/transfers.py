"""Messages between two ranks: which send matches which receive, and when the data moves."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar, Final

from kernbench import ccl
from kernbench.des import Event, EventLoop, order
from kernbench.errors import Fact, KernbenchError
from kernbench.memory import Space, View
from kernbench.process.process import Process
from kernbench.ranks.at_call import AtCall
from kernbench.ranks.groups import ProcessGroup
from kernbench.ranks.hosted import HostCollective
from kernbench.ranks.meeting import NUMBER, Call, Exchange, Needs
from kernbench.ranks.schedules import Schedule
from kernbench.ranks.spawn_state import collectives_of, spawn_state_of
from kernbench.ranks.standing import check_message
from kernbench.sim_engine.command import Command


class TransferMismatchError(KernbenchError, RuntimeError):
    """A send and its receive differ in size or type (P7).

    Attributes:
        ranks: Global ranks of the sender and the receiver.
    """

    ranks: tuple[int, int]


@dataclass(slots=True, eq=False)
class Side:
    """One rank's part in a transfer; the `Action` of the rank's command.

    Attributes:
        process: The sending or the receiving rank.
        view: Elements to send, or memory that receives them.
        command: The rank's command; None until the rank's stream has reached it.
        start: Time at which the stream reached the command and no kernel was in its way, in
            picoseconds.
        kept: Object that must stay allocated until the message has been received.
        both_ways: Whether the library's channels of the message carry another one the other way.
    """

    process: Process
    view: View
    command: Command | None = None
    start: int = 0
    kept: object = None
    both_ways: bool = False

    def begin(self, command: Command, start: int) -> None:
        """See `Action`."""
        self.process.engine.give_way(command, start, self._enter)

    def _enter(self, command: Command, start: int) -> None:
        self.command, self.start = command, start
        transfer = command.part
        assert isinstance(transfer, Transfer)
        transfer.note_arrival(self)
        transfer.come()

    @property
    def hosted(self) -> bool:
        """Whether the data is on the host."""
        return self.view.buffer.allocation.address.space is Space.HOST

    @property
    def text(self) -> str:
        """CollectiveShape, dtype and bytes of the data, for reports."""
        where = " on cpu" if self.hosted else ""
        return f"{list(self.view.shape)} {self.view.dtype}, {self.view.nbytes} B{where}"


@dataclass(slots=True, eq=False)
class Transfer(Exchange):
    """A message: a send and a receive, one of which may still be missing.

    Attributes:
        box: Mailbox in which the send and the receive find each other.
        source: Global rank of the sender; None for a receive from any source without a match.
        sides: Parts of the ranks that have called, by global rank.
        order: Sequence number in the mailbox, in the order of the first calls.
        matched: Event that settles when send and receive are matched; a host may wait for it.
        message: State that both sides share; the `joint`.
    """

    is_message: ClassVar[bool] = True

    box: "Mailbox" = field(kw_only=True)
    source: int | None = field(kw_only=True)
    sides: dict[int, Side] = field(default_factory=dict)
    order: int = 0
    matched: Event | None = None
    message: "Message" = field(init=False)

    def __post_init__(self) -> None:
        self.message = self.joint = Message(self.sides, self.destination)

    @property
    def destination(self) -> int:
        """Global rank of the receiver."""
        return self.box.destination

    @property
    def complete(self) -> bool:
        """Whether both sides have been called."""
        return len(self.calls) == 2

    @property
    def held_back(self) -> bool:
        """Whether the other side has called, but an earlier receive from any source comes first."""
        box = self.box
        if self.complete or self.source is None:
            return False
        if self.destination in self.calls:
            return self.source in box.sends and None in box.receives
        return None in box.receives

    def __str__(self) -> str:
        return f"the sender of {self.title}"

    def wait_for_source(self, process: Process) -> int:
        """Returns the global rank of the sender; the host waits until it is known.

        Args:
            process: The receiver, which has issued its command.
        """
        if self.source is None:
            self.matched = self.matched or Event(self)
            process.wait(self.matched)
        assert self.source is not None
        return self.source

    def absent(self) -> list[int]:
        """Returns the ranks that have not called; for a receive from any source, all that may."""
        if self.source is None:
            return [rank for rank in self.members if rank != self.destination]
        return [rank for rank in self.members if rank not in self.calls]

    def needs(self, rank: int, *, settled: bool = False) -> Needs | None:
        """See `Exchange`."""
        if self.held_back:
            first = self.box.receives[None][0]
            command = first.calls[first.destination].command
            return Needs(() if command is None else (command,))
        if self.source is not None:
            return Exchange.needs(self, rank, settled=settled)
        senders = self.missing()
        for line in self.box.sends.values():
            source = line[0].source
            assert source is not None
            command = line[0].calls[source].command
            if command is None or command.begun:
                return Needs(())  # the receive takes this message
            senders.append(command)
        return Needs(senders, every=False)

    def view(self, call: Call) -> Fact:
        """See `Exchange`; the line has the number of the message among those of its rank."""
        fact = call.fact(self.numbered(call))
        return Fact(f"rank {call.rank} waits in {fact}", fact.involved)

    def numbered(self, call: Call) -> str:
        """Returns which message of its rank a call is, for reports."""
        return f"message #{call.number} of group {self.box.group.name}"

    def place(self, call: Call) -> str:
        """See `Exchange`."""
        view = self.sides[call.rank].view
        text = f"{call.operation}({list(view.shape)}, {view.dtype}, tag {self.box.tag})"
        return f"message #{NUMBER} of group {self.box.group.name}: {text}"

    def hop(self, rank: int, other: int) -> str:
        """See `Exchange`."""
        arrow = "<-" if rank == self.destination else "->"
        return f"{self.calls[rank].operation}{arrow}{other}"

    def note_arrival(self, side: Side) -> None:
        """Notes that the stream of a side has come to it, now or at a known time."""
        self.message.arrived.add(int(side.process.rank == self.destination))

    def come(self) -> None:
        """Goes on as far as the sides whose stream has come allow."""
        if not self.complete:
            if self.box.receives.get(None):
                (side,) = self.sides.values()
                self.box.choose_at(side.start, side.process.engine.loop)
            return
        if all(side.command is not None for side in self.sides.values()):
            self._set_off()
            return
        for side in self.sides.values():
            if side.command is not None:
                spawn_state_of(side.process).suspect(side.process)

    def _set_off(self) -> None:
        """Starts to move the data, since both streams have reached the message."""
        assert self.source is not None
        sender, receiver = self.sides[self.source], self.sides[self.destination]
        engine, ctx = sender.process.engine, sender.process.ctx
        # Complex numbers travel as their parts, as in PyTorch.
        sent, taken = sender.view.parts(), receiver.view.parts()
        start = max(sender.start, receiver.start)
        both: tuple[tuple[Side, list[View], list[View]], ...] = (
            (sender, [sent], []),
            (receiver, [], [taken]),
        )
        if sender.hosted:
            between = HostCollective(engine, "send_recv", 2, (), sent.nbytes, sent.dtype)
            for place, (side, give, take) in enumerate(both):
                assert side.command is not None
                between.join(place, give, take).begin(side.command, start)
            return
        sips = (ctx.devices[self.source], ctx.devices[self.destination])
        ranks = len(self.box.group.ranks)
        collectives = collectives_of(sender.process)
        one_way = not (sender.both_ways or receiver.both_ways)
        chosen = collectives.choose("send_recv", sender.view.nbytes, sips, ranks, one_way=one_way)
        # Each message has a line of its own: messages of one batch may move at the same time.
        shape = ccl.CollectiveShape(chosen, "send_recv", sips, (sent.numel,), sent.dtype)
        prepared = collectives.prepare(shape)
        check_message(sender.process, self.source, self.destination, prepared)
        message = ccl.Collective(collectives, prepared, line=self)
        for place, (side, give, take) in enumerate(both):
            assert side.command is not None
            message.join(place, give, take).enter(side.command, start)


class Message:
    """The shared state of a transfer's two ranks, as a `Joint`.

    Args:
        sides: Parts of the ranks that have called, by global rank.
        destination: Global rank of the receiver.

    Attributes:
        arrived: Places whose stream has come to it: 0 for the sender, 1 for the receiver.
    """

    __slots__ = ("_destination", "_sides", "arrived")

    def __init__(self, sides: Mapping[int, Side], destination: int) -> None:
        self._sides: Final = sides
        self._destination: Final = destination
        self.arrived: Final[set[int]] = set()

    @property
    def algorithm(self) -> str:
        """Empty: the algorithm is chosen when the data starts to move."""
        return ""

    def join(
        self, place: int, gives: Sequence[View], takes: Sequence[View], sends: Sequence[int] = ()
    ) -> Side:
        """Returns the work of one side's command.

        Args:
            place: 0 for the sender, 1 for the receiver.
            gives: The view to send; empty for the receiver.
            takes: The view that receives the data; empty for the sender.
            sends: Must be empty: a message has one size.
        """
        (side,) = [
            side for rank, side in self._sides.items() if (rank == self._destination) == bool(place)
        ]
        assert not sends
        assert [side.view] == [*gives, *takes]
        return side

    def needs(self, place: int) -> None:
        """Returns None: each side needs the other side."""

    def jam(self) -> None:
        """Returns None: a message always ends once both sides have arrived."""

    def drop(self) -> None:
        """Does nothing: it holds no command that is under way."""


class Mailbox:
    """Unmatched sends and receives of one group, destination and tag.

    Matching is first in, first out for each source, in the order in which the hosts called. A
    receive from any source takes the message whose stream reached it first in simulated time (of
    several, the message of the lowest rank). Receives that were called after it wait until it has a
    message.

    Attributes:
        group: Process group of the messages.
        destination: Global rank of the receiver.
        tag: Tag that both sides must name.
        awaited: Number of transfers, in all mailboxes, that lack the side of a rank, by global
            rank; under None the receives from any source that lack a sender.
        sends: Transfers without a receive, by global rank of the sender.
        receives: Transfers without a send, by global rank of the sender; under None the receives
            from any source.
    """

    def __init__(
        self, group: ProcessGroup, destination: int, tag: int, awaited: dict[int | None, int]
    ) -> None:
        self.group: Final = group
        self.awaited: Final = awaited
        self.destination: Final = destination
        self.tag: Final = tag
        self.sends: dict[int, deque[Transfer]] = {}
        self.receives: dict[int | None, deque[Transfer]] = {}
        self._numbers: Final = count(1)

    def enter(
        self, call: Call, process: Process, view: View, source: int | None, *, sends: bool
    ) -> Transfer:
        """Adds one side of a message, and matches it if the other side has called; does not wait.

        Args:
            call: The rank's call.
            view: Elements to send, or memory that receives them.
            source: Global rank of the sender; None for any source.
            sends: Whether the calling rank is the sender.

        Raises:
            TransferMismatchError: If the other side differs in size or type (P7).
        """
        known = self._earliest_receive(source) if sends else self._earliest_send(source)
        transfer = known or self._new(source, call.operation)
        transfer.calls[call.rank] = call
        transfer.sides[call.rank] = Side(process, view)
        if known is not None:
            self._take(source, sends=not sends)
            self._check(transfer)
        else:
            line: deque[Transfer] = self._lines(sends).setdefault(source, deque())
            line.append(transfer)
            self._await(self.destination if sends else source, 1)
        return transfer

    def end(self) -> None:
        """Lets go of the transfers that lack a side: the spawn is over."""
        for transfer in self.open():
            if transfer.matched is not None:
                transfer.matched.forget(str(transfer))
        self.sends.clear()
        self.receives.clear()

    def open(self) -> list[Transfer]:
        """Returns the transfers that lack a side, in the order of their calls."""
        found = [transfer for line in self.sends.values() for transfer in line]
        found += [transfer for line in self.receives.values() for transfer in line]
        return sorted(found, key=lambda transfer: transfer.order)

    def choose_at(self, time: int, loop: EventLoop) -> None:
        """Calls `choose` at a time, in picoseconds, once all messages of that instant are there."""
        loop.at(max(time, loop.now), loop.owner(order.CHOICE), self.choose)

    def choose(self) -> None:
        """Matches receives from any source with the messages that have arrived."""
        anybody = self.receives.get(None)
        while anybody:
            receive = anybody[0]
            mine = receive.sides[self.destination]
            loop, schedule = mine.process.engine.loop, spawn_state_of(mine.process).schedule
            if schedule is not None and schedule.late:
                return  # `choose_late` matches it, once nothing else is left to happen
            if mine.command is None or mine.start > loop.now:
                return
            coming = sorted(
                (side.start, source)
                for source, line in self.sends.items()
                if (side := line[0].sides[source]).command is not None
            )
            there = [found for found in coming if found[0] <= loop.now]
            if not there:
                if coming:
                    # The send began before this receive was called, at a time that lies ahead.
                    self.choose_at(coming[0][0], loop)
                return
            self._give(there[0][1], [source for _, source in there])
            anybody = self.receives.get(None)

    def choose_late(self, schedule: Schedule) -> bool:
        """Matches the first receive from any source with the message that a schedule picks.

        Returns:
            Whether there were such a receive and a message for it.
        """
        anybody = self.receives.get(None)
        mine = anybody[0].sides[self.destination] if anybody else None
        there = sorted(
            source for source, line in self.sends.items() if line[0].sides[source].command
        )
        if mine is None or mine.command is None or not there:
            return False
        mine.start = max(mine.start, mine.process.engine.loop.now)
        self._give(schedule.pick(there), there)
        return True

    def _give(self, source: int, candidates: Sequence[int]) -> None:
        """Matches the first receive from any source with the message of one of the candidates."""
        receive = self.receives[None][0]
        process, call = receive.sides[self.destination].process, receive.calls[self.destination]
        assert call.command is not None
        call.command.args = {**(call.command.args or {}), "peer": source}
        if len(candidates) > 1:
            call.command.args["candidates"] = len(candidates)
        schedule = spawn_state_of(process).schedule
        if schedule is not None:
            said = call.fact(f"rank {call.rank}, {receive.numbered(call)}")
            schedule.took(call.rank, said, source, sorted(candidates))
        receive.source = source
        if self._bring_together(source, None) and receive.matched is not None:
            receive.matched.label = str(receive)  # not the transfer, which has the event
            receive.matched.settle(process.engine.loop.now)
        # Receives that waited for the receive from any source.
        for waiting in [source for source in self.receives if source is not None]:
            while waiting in self.sends and self._earliest_receive(waiting) is not None:
                self._bring_together(waiting, waiting)

    def _bring_together(self, source: int, line: int | None) -> bool:
        """Matches a line's first receive with a rank's first send; returns whether they fit."""
        receive, send = self._take(line, sends=False), self._take(source, sends=True)
        call, side = receive.calls[self.destination], receive.sides[self.destination]
        assert call.command is not None
        send.calls[self.destination] = call
        send.sides[self.destination] = side
        call.command.part = send
        receive.mail = send.mail  # for callers that hold the receive's own transfer
        try:
            self._check(send)
        except TransferMismatchError as error:
            spawn_state_of(side.process).blame(sorted(send.calls), error)
            return False
        if isinstance(send.joint, AtCall) and isinstance(receive.joint, AtCall):
            send.joint.merge(receive.joint, side.process.engine.loop.now)
        if side.command is not None:
            send.note_arrival(side)
        send.come()
        return True

    def _earliest_receive(self, source: int | None) -> Transfer | None:
        """Returns the receive that takes the next message of `source`; None if not decided yet."""
        line, anybody = self.receives.get(source), self.receives.get(None)
        if not line or (anybody and anybody[0].order < line[0].order):
            return None
        return line[0]

    def _earliest_send(self, source: int | None) -> Transfer | None:
        """Returns the message that a receive from `source` takes; None if not decided yet."""
        line = None if source is None or None in self.receives else self.sends.get(source)
        return line[0] if line else None

    def _new(self, source: int | None, operation: str) -> Transfer:
        members = self.group.ranks if source is None else (source, self.destination)
        number = next(self._numbers)
        title = f"{operation} #{number} of group {self.group.name}"
        return Transfer(title, number, members, box=self, source=source, order=number)

    def _lines(self, sends: bool) -> dict[Any, deque[Transfer]]:
        return self.sends if sends else self.receives

    def _take(self, source: int | None, *, sends: bool) -> Transfer:
        """Removes and returns the first send, or the first receive, of a line."""
        self._await(self.destination if sends else source, -1)
        lines = self._lines(sends)
        line = lines[source]
        transfer = line.popleft()
        if not line:
            del lines[source]
        return transfer

    def _await(self, rank: int | None, change: int) -> None:
        self.awaited[rank] = self.awaited.get(rank, 0) + change

    def _check(self, transfer: Transfer) -> None:
        assert transfer.source is not None
        ranks = (transfer.source, transfer.destination)
        sent, expected = (transfer.sides[rank].view for rank in ranks)
        places = {transfer.sides[rank].hosted for rank in ranks}
        if sent.numel == expected.numel and sent.dtype is expected.dtype and len(places) == 1:
            return
        what = "type" if sent.numel == expected.numel else "size"
        if len(places) > 1:
            what = "kind of device"
        error = TransferMismatchError(
            f"rank {ranks[0]} sends {transfer.sides[ranks[0]].text} to rank {ranks[1]}, which "
            f"receives {transfer.sides[ranks[1]].text}",
            [
                call.fact(f"rank {call.rank}, {transfer.numbered(call)}")
                for call in map(transfer.calls.__getitem__, ranks)
            ],
            hint=f"both sides of a message have one {what}; nothing is cut or reinterpreted",
            code="P7",
        )
        error.ranks = ranks
        raise error
