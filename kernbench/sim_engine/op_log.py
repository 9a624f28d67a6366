"""The log of a run. Reports read the log and nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kernbench.errors import CallSite
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
        dispatch: Host time in picoseconds that issuing it took until `issued`; None if the report
            is to say.
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
        limit: Most records to keep, the first ones; None for all.
        dropped: Number of records that were not kept because of the limit.
        totals: Sums of records by rank and category.
    """

    def __init__(self, detail: Detail) -> None:
        self.detail: Detail = detail
        self.full = detail == "full"
        self.records: list[Record] = []
        self.limit: int | None = None
        self.dropped = 0
        self.totals: dict[tuple[int, Category], Total] = {}
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
