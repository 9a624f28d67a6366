"""What has happened. Reports read this and nothing else."""

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
        name: What, e.g. `aten::add`.
        category: Kind of work.
        rank: Whose; -1 for main.
        track: Where: a stream, an engine or a link of that rank.
        issued: When the host issued it.
        start: When it began.
        end: When it was over.
        site: Where the user asked for it.
        args: More for reports: bytes, shapes, sequence numbers.
        flow: Joins a send with its receive: the same number on both; 0 for none.
        ranges: Names of the ranges of the program that it belongs to, the outermost first.
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


@dataclass(slots=True)
class Total:
    """Sums over records.

    Attributes:
        count: How many.
        busy_ps: Time spent, overlaps counted twice.
    """

    count: int = 0
    busy_ps: int = 0


class OpLog:
    """The log of a run.

    Attributes:
        detail: `full` keeps every record, `summary` the totals alone, `none` nothing.
        records: In the order in which they were settled; reports sort them.
        totals: By rank and category.
    """

    def __init__(self, detail: Detail) -> None:
        self.detail: Detail = detail
        self.full = detail == "full"
        self.records: list[Record] = []
        self.totals: dict[tuple[int, Category], Total] = {}
        self._flows = 0

    def keep_records(self) -> None:
        """Keeps every record from now on, as a log does that was asked for `full`."""
        self.detail, self.full = "full", True

    def add(self, record: Record) -> None:
        """Logs something that has happened; call `total` for the rest."""
        self.records.append(record)

    def total(self, rank: int, category: Category, busy_ps: int) -> None:
        """Adds to the totals."""
        if self.detail == "none":
            return
        total = self.totals.get((rank, category))
        if total is None:
            total = self.totals[rank, category] = Total()
        total.count += 1
        total.busy_ps += busy_ps

    def new_flow(self) -> int:
        """Returns a number that joins a send with its receive."""
        self._flows += 1
        return self._flows
