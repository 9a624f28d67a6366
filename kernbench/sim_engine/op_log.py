"""The log of a run. Reports read the log and nothing else."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from kernbench.errors import CallSite
from kernbench.routing import Load
from kernbench.sim_engine.dials import Detail

Category = Literal[
    "compute", "copy", "collective", "kernel", "send", "recv", "host", "event", "range"
]


@dataclass(frozen=True, slots=True)
class Record:
    """One thing that happened, in simulated picoseconds.

    Attributes:
        name: Name of the action, such as `aten::add`.
        category: Kind of work.
        rank: Global rank that did it; -1 for main.
        track: Stream, engine or link of the rank.
        issued: When the host issued it.
        start: When it began.
        end: When it was over.
        site: The user's line that asked for it.
        args: Further facts for reports: bytes, shapes, sequence numbers.
        flow: Number that a send and its receive share; 0 for all other records.
        ranges: Names of the program's ranges that hold it, the outermost first.
        dispatch: Host time in picoseconds that it took until `issued`, with what the host did
            since its last command or wait; None if the report is to say.
        price: What it takes alone, in picoseconds: an `hw.explained.Explained` for a kernel of the
            library; None for what ranks do together, and for kernels of programs.
    """

    name: str
    category: Category
    rank: int
    track: str
    issued: int
    start: int
    end: int
    site: CallSite | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    flow: int = 0
    ranges: tuple[str, ...] = ()
    dispatch: int | None = None
    price: int | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Together:
    """What ranks do together in a command, beyond the entries that every report shows.

    Attributes:
        operation: What the algorithms call the operation, such as `all_gather`; `send` and `recv`
            for messages.
        ranks: Global ranks of the group, in order.
        description: The user's description of the group's purpose.
        inputs: Elements that the rank gives.
        outputs: Elements that the rank ends with.
        backward: Whether a backward pass does it; known of `kernbench.torch` alone.
    """

    operation: str
    ranks: Sequence[int]
    description: str
    inputs: int
    outputs: int
    backward: bool = False


class TogetherArgs(dict[str, Any]):
    """Entries of `Record.args` for a command that several ranks share.

    Attributes:
        together: What the ranks do together.
    """

    __slots__ = ("together",)

    def __init__(self, args: Mapping[str, Any], together: Together) -> None:
        super().__init__(args)
        self.together = together


Awaited = Literal["stream", "event", "device", "host"]
"""What a host waits for; `host` stands for something that no device does."""


class Wait(NamedTuple):
    """A time during which a host waited for its device, in simulated picoseconds.

    Attributes:
        rank: Global rank of the host; -1 for main.
        awaited: What it waited for.
        start: When it began to wait.
        end: When it went on.
    """

    rank: int
    awaited: Awaited
    start: int
    end: int


class Unkept(NamedTuple):
    """When a collective went on of which no record has the messages, in simulated picoseconds.

    Attributes:
        joined: When its last rank began.
        begins: When messages may begin, which is after the start of the kernel.
    """

    joined: int
    begins: int


class MemoryChange(NamedTuple):
    """A block of HBM that a host asked for or gave back.

    Attributes:
        sip: SIP that holds the block.
        time: Time of the host, in simulated picoseconds.
        nbytes: Bytes that the block occupies; below 0 if it was given back.
    """

    sip: int
    time: int
    nbytes: int


def stream_in_words(track: str) -> str:
    """Returns a user's words for the track of a stream; other tracks keep their names.

    Args:
        track: Name of a stream, or of another track, such as `stream 0` or `communication 0 G1`.
    """
    kind, _, rest = track.partition(" ")
    number = rest.partition(" ")[0]
    if not number.isdecimal():
        return track
    if kind == "stream":
        return "default stream"
    if kind == "communication":
        other = rest[len(number) :]
        return "communication stream" + (f" of{other}" if other else "")
    return track


@dataclass(slots=True)
class Total:
    """Sums over records.

    Attributes:
        count: Number of records.
        busy_ps: Time spent in picoseconds; overlapping records both count.
    """

    count: int = 0
    busy_ps: int = 0


class OpLog:
    """The log of a run.

    Attributes:
        detail: `full` keeps every record, `summary` only the totals, `none` nothing.
        full: Whether every record is kept.
        records: Records in the order in which they were settled; reports sort them.
        waits: Times during which hosts waited for devices, if every record is kept; no breakdown
            counts them.
        memory: Blocks of HBM that hosts asked for and gave back, in the order of each host, if
            every record was kept from the start.
        limit: Most records, most waits and most changes of memory to keep, the first ones; None for
            all.
        dropped: Number of records that were not kept because of the limit.
        totals: Sums of records by rank and category.
        loads: What ranks got in exchanges of tokens with those that share their experts.
        unkept: Collectives without records of their messages, since ranks stand for others in them:
            by rank and time of issue, as all records of a command have them.
        host_time: Returns the time of the host whose code runs, in picoseconds; a context sets it.
    """

    def __init__(self, detail: Detail) -> None:
        self.detail: Detail = detail
        self.full = detail == "full"
        self.records: list[Record] = []
        self.waits: list[Wait] = []
        self.memory: list[MemoryChange] = []
        self.loads: list[Load] = []
        self.unkept: dict[tuple[int, int], Unkept] = {}
        self.limit: int | None = None
        self.dropped = 0
        self.totals: dict[tuple[int, Category], Total] = {}
        self.host_time: Callable[[], int] = int
        self._flows = 0

    def keep_records(self) -> None:
        """Keeps every record from now on, like a log whose detail is `full`."""
        self.detail, self.full = "full", True

    def add(self, record: Record) -> None:
        """Keeps a record, up to the limit; `total` adds its time to the totals."""
        if self.limit is not None and len(self.records) >= self.limit:
            self.dropped += 1
        else:
            self.records.append(record)

    def add_wait(self, wait: Wait) -> None:
        """Keeps a wait of a host, up to the limit."""
        if self.limit is None or len(self.waits) < self.limit:
            self.waits.append(wait)

    def add_memory(self, sip: int, nbytes: int, time: int | None = None) -> None:
        """Keeps a change of memory, up to the limit; see `MemoryChange`.

        Args:
            sip: SIP that holds the block.
            nbytes: Bytes that the block occupies; below 0 if it was given back.
            time: Time of the host, in picoseconds; None for that of the host whose code runs.
        """
        if self.limit is None or len(self.memory) < self.limit:
            when = self.host_time() if time is None else time
            self.memory.append(MemoryChange(sip, when, nbytes))

    def total(self, rank: int, category: Category, busy_ps: int) -> None:
        """Adds one record to the totals, unless the log keeps nothing.

        Args:
            rank: Global rank of the record; -1 for main.
            category: Kind of work.
            busy_ps: Duration of the record, in picoseconds.
        """
        if self.detail == "none":
            return
        total = self.totals.get((rank, category))
        if total is None:
            total = self.totals[rank, category] = Total()
        total.count += 1
        total.busy_ps += busy_ps

    def new_flow(self) -> int:
        """Returns a fresh number for a send and its receive."""
        self._flows += 1
        return self._flows
