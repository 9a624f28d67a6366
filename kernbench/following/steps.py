"""Steps of a rank: what one does, so that another may do the same (ADR 0038)."""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from kernbench.ccl.operations import OPERATIONS
from kernbench.distributed.issuing import Joined
from kernbench.errors import CallSite
from kernbench.sim_engine.op_log import Awaited


class Made(NamedTuple):
    """A stream was made; `default` for the first one of the device, else `new`."""

    spent: int
    site: CallSite | None
    kind: str

    @property
    def terms(self) -> Hashable:
        """What both ranks must agree on."""
        return "stream", self.spent, self.kind

    def __str__(self) -> str:
        return "made a stream"


class Issued(NamedTuple):
    """A command of the rank alone, which holds an engine for a time.

    Attributes:
        spent: Host time in picoseconds since the step before, with the command's dispatch.
        site: The user's line.
        number: Number of the command.
        name: Name of the command.
        category: Kind of work.
        stream: Number of the stream.
        engine: Name of the engine of the device; None for none.
        duration: How long the engine is held, in picoseconds.
        latency: Time until the work is complete after that, in picoseconds.
        after: Numbers of the commands that it waits for besides its predecessor.
        dispatch: Host time of issuing it, in picoseconds.
        args: Its arguments in the log.
        ranges: Ranges of the program that hold it.
        queued: Whether it takes a place in the launch queue of the host.
    """

    spent: int
    site: CallSite | None
    number: int
    name: str
    category: Any
    stream: int
    engine: str | None
    duration: int
    latency: int
    after: tuple[int, ...]
    dispatch: int
    args: Any
    ranges: tuple[str, ...]
    queued: bool

    @property
    def terms(self) -> Hashable:
        """What both ranks must agree on."""
        return (self.spent, *self[2:11], self.ranges, self.queued)

    def __str__(self) -> str:
        took = f"{self.duration + self.latency} ps on stream {self.stream}"
        return f"issued {self.name}, {took}, {self.spent} ps after the step before"


class Called(NamedTuple):
    """A command that the rank has together with others.

    Attributes:
        spent: See `Issued`, as for `site`, `number`, `after`, `dispatch` and `ranges`.
        site: The user's line.
        number: Number of the command.
        joined: What was called; the views of tensors on the host are copies.
        batch: Number of the batch of groups to which the group belongs.
        place: The rank's place in the group.
        stream: Number of the current stream.
        after: Numbers of commands.
        dispatch: Host time.
        ranges: Ranges.
        given: Bytes that the rank gives, of tensors on the host.
        queued: See `Issued`.
    """

    spent: int
    site: CallSite | None
    number: int
    joined: Joined
    batch: int
    place: int
    stream: int
    after: tuple[int, ...]
    dispatch: int
    ranges: tuple[str, ...]
    given: bytes
    queued: bool = True

    @property
    def terms(self) -> Hashable:
        """What both ranks must agree on."""
        what, root = self.joined.what, OPERATIONS[self.joined.what.operation].rooted
        values = tuple(term.value for term in what.terms)
        own = () if root else (self.given, repr(self.joined.mail))
        called = (what.kind, values, what.splits, what.sizes, what.hosted, what.nbytes)
        rest = (
            self.joined.async_op,
            self.after,
            self.stream,
            self.dispatch,
            self.ranges,
            self.queued,
        )
        return (self.spent, self.number, self.batch, *called, *rest, *own)

    def __str__(self) -> str:
        return f"called {self.joined.what.text} in group {self.joined.group.name}"


class Waited(NamedTuple):
    """The host waited for a command."""

    spent: int
    site: CallSite | None
    number: int
    awaited: Awaited

    @property
    def terms(self) -> Hashable:
        """What both ranks must agree on."""
        return self.spent, self.number, self.awaited

    def __str__(self) -> str:
        return f"waited for its command {self.number}"


class Took(NamedTuple):
    """Memory of the device was taken, or given back.

    Python decides when it gives back what refers to itself, so nobody compares this step.

    Attributes:
        since: Host time since the step before, in picoseconds.
        nbytes: Bytes; below 0 if they were given back.
    """

    since: int
    nbytes: int


class Did(NamedTuple):
    """A function that every rank calls for itself.

    Attributes:
        spent: See `Issued`, as for `site`.
        site: The user's line.
        function: A follower calls `function(follower, *args)`.
        args: Further arguments.
        shown: What both ranks must agree on, beside the function.
        made: Number of the group that it makes; -1 for none.
    """

    spent: int
    site: CallSite | None
    function: Callable[..., Any]
    args: tuple[Any, ...]
    shown: Hashable
    made: int

    @property
    def terms(self) -> Hashable:
        """What both ranks must agree on."""
        return self.spent, self.function.__qualname__, self.shown

    def __str__(self) -> str:
        return f"called {self.function.__name__} with {self.shown}"


Step = Made | Issued | Called | Waited | Did
"""A step of a rank in which two ranks that do the same agree."""
