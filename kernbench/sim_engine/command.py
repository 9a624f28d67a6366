"""A command of a stream, and the streams."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from kernbench.des import Event
from kernbench.errors import CallSite
from kernbench.sim_engine.host import Host
from kernbench.sim_engine.op_log import Category


class Stream:
    """Commands of one device in order.

    Attributes:
        name: Track of the stream in traces.
        sip: Index of the device; -1 for the host.
        tail: Completion of the last command; None before the first.
        faulted: Whether a command failed; later commands are skipped, as on a GPU.
        count: Number of commands submitted so far; also the number of the last one.
        seen: For each other stream, the number of the last command of that stream that is known to
            precede the next command of this one.
        met: The numbers of the last commands after which it comes after others of other ranks, and
            all that comes before such a command; kept by `symmetric.orders`.
        waits: Events that the next command waits for besides its predecessor.
    """

    __slots__ = ("count", "faulted", "met", "name", "seen", "sip", "tail", "waits")

    def __init__(self, name: str, sip: int) -> None:
        self.name = name
        self.sip = sip
        self.tail: Event | None = None
        self.faulted = False
        self.count = 0
        self.seen: dict[Stream, int] = {}
        self.waits: list[Event] = []
        self.met: list[tuple[int, Mapping[Stream, int]]] = []

    def learn(self, seen: Mapping["Stream", int]) -> None:
        """Notes that commands of other streams precede the next command of this stream.

        Args:
            seen: For each other stream, the number of the last command that precedes.
        """
        for stream, number in seen.items():
            if number > self.seen.get(stream, 0):
                self.seen[stream] = number


class Action(Protocol):
    """The action of a command, once every command and event that it waits for is settled."""

    def begin(self, command: "Command", start: int) -> None:
        """Acquires resources and arranges for `GraphEngine.complete`; does not wait.

        An implementation may acquire at once for a `start` in the future only if nobody else uses
        the resource, so that the order of requests does not matter (the shared/private rule).

        Args:
            command: The command whose turn has come.
            start: When the command may begin, in picoseconds.
        """
        ...


class Command:
    """An entry of a stream: something that a device does.

    Attributes:
        name: Name for traces and errors.
        category: Kind of work.
        host: The processor that issued the command.
        stream: The stream of the command.
        issued: When the command was issued, in picoseconds.
        dispatch: Host time that issuing it took until then, in picoseconds; None if nobody says.
        took: The same, with what the host did for the program since its last command or wait.
        after: Events that the command waits for, its predecessor in the stream first; empty if all
            are settled when the command is submitted.
        number: Number of the command in its stream, from 1.
        turn: Number of the command among all of its host, from 1.
        part: What several ranks do together in this command; None for a command of one rank alone,
            and after completion.
        action: The action of the command.
        site: The user's line that asked for the command.
        args: Further facts for reports.
        ranges: Ranges of the program that hold the command, the outermost first.
        done: Event of the completion; its label is the command itself until then.
    """

    __slots__ = (
        "action",
        "after",
        "args",
        "category",
        "dispatch",
        "done",
        "host",
        "issued",
        "name",
        "number",
        "part",
        "ranges",
        "site",
        "stream",
        "took",
        "turn",
    )

    def __init__(
        self,
        name: str,
        category: Category,
        host: Host,
        stream: Stream,
        action: Action,
        site: CallSite | None = None,
        args: Mapping[str, Any] | None = None,
        dispatch: int | None = None,
    ) -> None:
        self.name = name
        self.category: Category = category
        self.host = host
        self.stream = stream
        self.issued = host.clock
        self.dispatch = dispatch
        self.took = None if dispatch is None else host.clock - host.since
        host.since = host.clock
        self.after: Sequence[Event] = ()
        if stream.waits:
            self.after, stream.waits = stream.waits, []
        stream.count += 1
        self.number = stream.count
        host.issued += 1
        self.turn = host.issued
        self.part: object = None
        self.action = action
        self.site = site
        self.args = args
        self.ranges: tuple[str, ...] = ()
        self.done = Event(self)

    @property
    def begun(self) -> bool:
        """Whether every event that the command waits for is settled."""
        return all(event.time is not None for event in self.after)

    def __str__(self) -> str:
        return self.name
