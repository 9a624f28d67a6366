"""Breakdowns by range: how each rank spent the simulated time in the ranges of its program."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final, Literal, NamedTuple

from kernbench.report.breakdown import COMMUNICATION, COMPUTE, host_interval
from kernbench.report.intervals import Interval, length, union
from kernbench.report.records import full_records, is_engine
from kernbench.sim_engine.op_log import OpLog, Record

Kind = Literal["compute", "exposed", "copy", "idle"]

OUTSIDE: Final = ""
"""Name of the row for commands that belong to no range."""


@dataclass(slots=True)
class RangeBreakdown:
    """How one rank spent the simulated time in one range, in picoseconds.

    Every picosecond of the span counts once, in one row: over all rows of a rank, `compute_ps +
    exposed_ps + copy_ps + idle_ps` add up to the span. The host runs beside the device.

    Attributes:
        rank: Global rank; -1 for main.
        name: Name of the range; `OUTSIDE` for commands that belong to no range.
        compute_ps: A kernel of the range runs on a stream.
        exposed_ps: Exposed communication: no kernel runs, and a collective, a send or a receive of
            the range is under way, even if it only waits for other ranks. If several are under way,
            the one that began first counts.
        copy_ps: A copy of the range is under way, with neither kernel nor communication.
        idle_ps: The device has nothing to do until a command of the range begins; idle time after
            the last command is in the row `OUTSIDE`.
        host_ps: The host issues a command of the range. Waiting does not count.
    """

    rank: int
    name: str
    compute_ps: int = 0
    exposed_ps: int = 0
    copy_ps: int = 0
    idle_ps: int = 0
    host_ps: int = 0

    @property
    def device_ps(self) -> int:
        """Time of the device: all columns but `host_ps`."""
        return self.compute_ps + self.exposed_ps + self.copy_ps + self.idle_ps


def range_breakdown(
    op_log: OpLog, dispatch_ps: int, within: Sequence[str] = (), through: Sequence[str] = ()
) -> list[RangeBreakdown]:
    """Returns a breakdown by rank and range, ranges in the order of their first command.

    Args:
        op_log: Log of the run; it must hold all records.
        dispatch_ps: Host time in picoseconds that issuing a command took, of records that do not
            say themselves; it ended when the command was issued.
        within: Enclosing ranges, the outermost first. Only commands inside them count, by the
            ranges one level further in, and the span goes from the first action of any rank inside
            them to the last. By default everything counts.
        through: How the names of ranges begin that are looked through, see `looks_through`: what
            is in them counts by the ranges further in, such as layers inside of passes.

    Raises:
        UsageError: If the log has no records.
    """
    outer = tuple(within)
    by_rank: dict[int, list[Record]] = {}
    for record in full_records(op_log, "a breakdown by range"):
        if record.category != "range" and record.ranges[: len(outer)] == outer:
            by_rank.setdefault(record.rank, []).append(record)
    everything = [record for records in by_rank.values() for record in records]
    start = min((host_interval(record, dispatch_ps)[0] for record in everything), default=0)
    end = max((record.end for record in everything), default=0)
    return [
        row
        for rank in sorted(by_rank)
        for row in _of_rank(rank, by_rank[rank], dispatch_ps, (start, end), _Level(outer, through))
    ]


def looks_through(name: str, through: Iterable[str]) -> bool:
    """Returns whether a breakdown looks through a range.

    Args:
        name: Name of the range.
        through: How names begin, up to the end of a word or number: `layer 1` is how `layer 1 b`
            begins, but not `layer 10`.
    """
    return any(
        name.startswith(begin) and not (begin[-1:].isalnum() and name[len(begin) :][:1].isalnum())
        for begin in through
    )


def mean_of_ranks(rows: Iterable[RangeBreakdown]) -> list[RangeBreakdown]:
    """Returns the mean over ranks of each range, rounded to picoseconds; the rows have rank -1.

    A rank without a row for a range counts as 0.
    """
    ranks: set[int] = set()
    sums: dict[str, RangeBreakdown] = {}
    for row in rows:
        ranks.add(row.rank)
        total = sums.setdefault(row.name, RangeBreakdown(-1, row.name))
        for field in _FIELDS:
            setattr(total, field, getattr(total, field) + getattr(row, field))
    for total in sums.values():
        for field in _FIELDS:
            setattr(total, field, round(getattr(total, field) / len(ranks)))
    return list(sums.values())


_FIELDS: Final = ("compute_ps", "exposed_ps", "copy_ps", "idle_ps", "host_ps")
_PRIORITY: Final[dict[Kind, int]] = {"compute": 0, "exposed": 1, "copy": 2}


class _Busy(NamedTuple):
    """An activity of a device; of several at one time, the one that sorts first gets the time."""

    priority: int
    start: int
    order: int
    end: int
    name: str


def _of_rank(
    rank: int, records: Sequence[Record], dispatch: int, span: Interval, level: "_Level"
) -> list[RangeBreakdown]:
    rows: dict[str, RangeBreakdown] = {}
    hosts: dict[str, list[Interval]] = {}
    for record in sorted(records, key=lambda record: record.issued):
        name = level.name(record)
        rows.setdefault(name, RangeBreakdown(rank, name))
        hosts.setdefault(name, []).append(host_interval(record, dispatch))
    for name, intervals in hosts.items():
        rows[name].host_ps = length(union(intervals))
    outside = rows.pop(OUTSIDE, RangeBreakdown(rank, OUTSIDE))
    rows[OUTSIDE] = outside
    _deal(rows, _parts(records, level), span)
    if not any(getattr(outside, field) for field in _FIELDS):
        del rows[OUTSIDE]
    return list(rows.values())


class _Level:
    """Which of the ranges around a command names its row.

    Args:
        outer: Those around all commands.
        through: How the names of those begin that are looked through.
    """

    def __init__(self, outer: Sequence[str], through: Sequence[str]) -> None:
        self._depth: Final = len(outer)
        self._through: Final = tuple(through)

    def name(self, record: Record) -> str:
        depth, ranges = self._depth, record.ranges
        if not self._through:
            return ranges[depth] if len(ranges) > depth else OUTSIDE
        inner = ranges[depth:]
        return next((name for name in inner if not looks_through(name, self._through)), OUTSIDE)


def _parts(records: Iterable[Record], level: _Level) -> list[_Busy]:
    """Returns the activities of the device, in the order in which they begin."""
    parts = []
    for number, record in enumerate(sorted(records, key=_beginning)):
        if is_engine(record.track):
            continue
        kind: Kind | None = None
        if record.category in COMMUNICATION:
            kind = "exposed"
        elif record.category in COMPUTE:
            kind = "compute"
        elif record.category == "copy":
            kind = "copy"
        if kind is not None and record.start < record.end:
            name = level.name(record)
            parts.append(_Busy(_PRIORITY[kind], record.start, number, record.end, name))
    return parts


def _beginning(record: Record) -> tuple[int, int, str, int]:
    return record.start, record.issued, record.track, record.end


def _deal(rows: dict[str, RangeBreakdown], parts: Sequence[_Busy], span: Interval) -> None:
    """Gives each picosecond of the span to one row."""
    now, last = span
    active: list[_Busy] = []
    waiting = iter(parts)
    coming = next(waiting, None)
    while now < last:
        while coming is not None and coming.start <= now:
            heappush(active, coming)
            coming = next(waiting, None)
        while active and active[0].end <= now:
            heappop(active)
        then = last if coming is None else coming.start
        if active:
            first = active[0]
            then, row = min(then, first.end), rows[first.name]
            field = _FIELDS[first.priority]
        else:
            row, field = rows[OUTSIDE if coming is None else coming.name], "idle_ps"
        setattr(row, field, getattr(row, field) + then - now)
        now = then
