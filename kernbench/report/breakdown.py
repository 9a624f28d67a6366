"""Breakdowns: how each rank spent the simulated time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kernbench.report.colours import KINDS, LIGHT
from kernbench.report.intervals import Interval, difference, length, union
from kernbench.report.records import full_records, is_engine
from kernbench.sim_engine.op_log import OpLog, Record
from kernbench.units import format_time

if TYPE_CHECKING:
    from rich.console import Console

COMPUTE: Final = ("compute", "kernel")
"""Categories of records that are computation."""

COMMUNICATION: Final = ("collective", "send", "recv")
"""Categories of records that are communication."""


@dataclass(frozen=True, slots=True)
class RankBreakdown:
    """How one rank spent the simulated time, in picoseconds.

    On the device every picosecond of the span counts once: `compute_ps + exposed_ps + copy_ps +
    idle_ps == span_ps`. The host runs beside the device.

    Attributes:
        rank: Global rank; -1 for main.
        span_ps: From the first action of any rank to the last; the same for all ranks, so that a
            rank that begins late or ends early is idle, and rows can be compared.
        host_ps: The host is busy: it issues a command, does what the program asks between two of
            them, or does something that has a record of its own. Waiting does not count.
        compute_ps: A kernel runs on a stream. The engines' part of a collective counts as part of
            the collective, so that the figure is the same at every fidelity.
        communication_ps: A collective, a send or a receive is under way on a stream, whether a
            kernel runs or not. What a peer sends before the rank has begun does not count.
        exposed_ps: The part of `communication_ps` during which no kernel runs.
        copy_ps: A copy is under way, with neither kernel nor communication.
        idle_ps: The rest of the span: the device has nothing to do.
        exposed_host_ps: The part of `idle_ps` and of `host_ps` until the command that ends the idle
            time is issued: the device waits for its host. What is idle after that, or while the
            host waits or sleeps, waits for something else, such as another rank; and what is idle
            after the last command waits for nobody.
    """

    rank: int
    span_ps: int
    host_ps: int
    compute_ps: int
    communication_ps: int
    exposed_ps: int
    copy_ps: int
    idle_ps: int
    exposed_host_ps: int


def breakdown(op_log: OpLog, dispatch_ps: int) -> list[RankBreakdown]:
    """Returns how each rank spent the simulated time, ordered by rank.

    Args:
        op_log: Log of the run; it must hold all records.
        dispatch_ps: Host time in picoseconds that issuing a command took, of records that do not
            say themselves; it ended when the command was issued.

    Raises:
        UsageError: If the log has no records.
    """
    by_rank: dict[int, list[Record]] = {}
    for record in full_records(op_log, "a breakdown"):
        if record.category == "range":
            continue
        by_rank.setdefault(record.rank, []).append(record)
    busy = {
        rank: [host_interval(record, dispatch_ps) for record in records]
        for rank, records in by_rank.items()
    }
    start = min((start for intervals in busy.values() for start, _ in intervals), default=0)
    end = max((record.end for records in by_rank.values() for record in records), default=0)
    return [
        _of_rank(rank, by_rank[rank], union(busy[rank]), (start, end)) for rank in sorted(by_rank)
    ]


def print_breakdown(rows: Sequence[RankBreakdown], console: "Console") -> None:
    """Prints the breakdowns as a table, a row per rank."""
    # rich takes longer to import than the rest of the package.
    from rich.table import Table

    span = rows[0].span_ps if rows else 0
    table = Table(title=f"Simulated time per rank, of {format_time(span)}")
    hues = ("", *(LIGHT[number] for number in KINDS.values()), "")
    for column, hue in zip(("rank", "compute", "exposed comm.", "copy", "idle"), hues, strict=True):
        table.add_column(column, justify="right", header_style=hue)
    for column in ("(comm.)", "(host)", "(exposed host)"):
        table.add_column(column, justify="right")
    for row in rows:
        device = row.compute_ps, row.exposed_ps, row.copy_ps, row.idle_ps
        times = (*device, row.communication_ps, row.host_ps, row.exposed_host_ps)
        name = "main" if row.rank < 0 else str(row.rank)
        table.add_row(name, *(_share(time, row.span_ps) for time in times))
    console.print(table)


def _of_rank(
    rank: int, records: Iterable[Record], host: Sequence[Interval], span: Interval
) -> RankBreakdown:
    kernels, messages, copies = [], [], []
    issued: dict[int, int] = {}  # when the first command was issued that begins at a time
    for record in records:
        if is_engine(record.track):
            continue
        interval = record.start, record.end
        if record.category in COMMUNICATION:
            messages.append(interval)
        elif record.category in COMPUTE:
            kernels.append(interval)
        elif record.category == "copy":
            copies.append(interval)
        else:
            continue
        if record.end > record.start:
            issued[record.start] = min(record.issued, issued.get(record.start, record.issued))
    compute, communication = union(kernels), union(messages)
    exposed = length(difference(communication, compute))
    copy = length(difference(union(copies), union([*compute, *communication])))
    idle = difference([span], union([*compute, *communication, *copies]))
    until = [(start, min(issued.get(end, start), end)) for start, end in idle]
    waits = [(start, end) for start, end in until if start < end]
    return RankBreakdown(
        rank,
        span[1] - span[0],
        length(host),
        length(compute),
        length(communication),
        exposed,
        copy,
        length(idle),
        length(waits) - length(difference(waits, host)),
    )


def host_interval(record: Record, dispatch: int) -> tuple[int, int]:
    """Returns when the host was busy with a record, as `(start, end)` in picoseconds.

    Args:
        record: A record of a command, or of an action of the host.
        dispatch: Host time in picoseconds that issuing a command took, if the record does not say.
    """
    # All parts of a command carry the time of its one issue: their intervals are the same.
    if record.category == "host":
        return record.start, record.end
    took = dispatch if record.dispatch is None else record.dispatch
    return record.issued - took, record.issued


def _share(time: int, span: int) -> str:
    return f"{format_time(time)} {time / span:4.0%}" if span else format_time(time)
