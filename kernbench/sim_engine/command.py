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
        name: Its track in traces.
        sip: Index of its device; -1 for the host.
        tail: Completion of the last command; None before the first.
        faulted: Whether a command failed; those after it are skipped, as on a GPU.
        count: Commands submitted so far; the number of the last one.
        seen: By other stream, the number of its last command known to precede what comes next.
        waits: What the next command waits for besides its predecessor.
    """

    __slots__ = ("count", "faulted", "name", "seen", "sip", "tail", "waits")

    def __init__(self, name: str, sip: int) -> None:
        self.name = name
        self.sip = sip
        self.tail: Event | None = None
        self.faulted = False
        self.count = 0
        self.seen: dict[Stream, int] = {}
        self.waits: list[Event] = []

    def learn(self, seen: Mapping["Stream", int]) -> None:
        """Notes that commands of other streams precede what comes next."""
        for stream, number in seen.items():
            if number > self.seen.get(stream, 0):
                self.seen[stream] = number


class Work(Protocol):
    """What a command does once everything it depends on is done."""

    def begin(self, command: "Command", start: int) -> None:
        """Acquires resources from `start` on and arranges for `GraphEngine.complete`.

        It may do so at once, for a `start` in the future, only if order does not matter to anybody
        else (the shared/private rule).
        """
        ...


class Command:
    """Something that a device does.

    Attributes:
        name: For traces and errors.
        category: Kind of work.
        host: Who issued it.
        stream: Where it stands in line.
        issued: When it was issued, in picoseconds.
        after: What it waits for, its predecessor in the stream first; empty if all that is settled
            when it is submitted.
        number: Its number in the stream.
        part: What several ranks do together by it; None if it does not depend on other ranks, and
            once it is complete.
        work: What it does.
        site: Where the user asked for it.
        args: More for reports.
        ranges: Ranges of the program that it belongs to, the outermost first.
        done: Its completion; the label of the event is the command until then.
    """

    __slots__ = (
        "after",
        "args",
        "category",
        "done",
        "host",
        "issued",
        "name",
        "number",
        "part",
        "ranges",
        "site",
        "stream",
        "work",
    )

    def __init__(
        self,
        name: str,
        category: Category,
        host: Host,
        stream: Stream,
        work: Work,
        site: CallSite | None = None,
        args: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.category: Category = category
        self.host = host
        self.stream = stream
        self.issued = host.clock
        self.after: Sequence[Event] = ()
        if stream.waits:
            self.after, stream.waits = stream.waits, []
        stream.count += 1
        self.number = stream.count
        self.part: object = None
        self.work = work
        self.site = site
        self.args = args
        self.ranges: tuple[str, ...] = ()
        self.done = Event(self)

    @property
    def begun(self) -> bool:
        """Whether everything that it waits for in its stream is settled."""
        return all(event.time is not None for event in self.after)

    def follows(self, earlier: "Command") -> bool:
        """Returns whether its stream is known to come to it only after an earlier command."""
        line = earlier.stream
        return line is self.stream or self.stream.seen.get(line, 0) >= earlier.number

    def __str__(self) -> str:
        return self.name
