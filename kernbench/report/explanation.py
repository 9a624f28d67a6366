"""Why a run takes its time: what bounds it, and the kernels that take most of it."""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kernbench.hw.programs import GridPrice, Occupancy
from kernbench.report.bounds import Bound, Command, carried_ps, commands
from kernbench.report.breakdown import COMMUNICATION, COMPUTE, host_interval
from kernbench.report.intervals import Interval, difference, length, union
from kernbench.report.nearness import Near, Nearness
from kernbench.report.records import full_records
from kernbench.sim_engine.op_log import OpLog, Record
from kernbench.topology import Topology

MOST: Final = 10
"""Kernels that are shown."""

MUCH: Final = 0.05
"""Share of the device's time above which a run says that it was timed by bytes alone."""


@dataclass(frozen=True, slots=True)
class Row:
    """The calls of one kernel, collective, message or copy, over all ranks.

    Attributes:
        name: Its name.
        calls: How many.
        total_ps: Sum of their durations.
        share: Of the sum of all durations.
        bound: What most of that time is spent on.
        host_ps: For how long devices waited until their hosts issued these calls.
        achieved: Time that the bound's work takes at the resource's full rate, over the total time;
            None where there is no such rate.
        law: Which law priced most of it; empty if none did.
        others: How many other laws had a part in it.
        near: How near that law was where it was measured.
        programs: How programs of the longest launch share the PEs, of a kernel of the program.
    """

    name: str
    calls: int
    total_ps: int
    share: float
    bound: Bound
    host_ps: int
    achieved: float | None
    law: str
    others: int
    near: Near
    programs: Occupancy | None = None

    @property
    def waits_for_host(self) -> bool:
        """Whether devices waited longer for the calls than they took."""
        return self.host_ps > self.total_ps


@dataclass(frozen=True, slots=True)
class Gain:
    """Time that a run would save at most if one thing cost nothing.

    Attributes:
        what: What would have to change.
        ps: Sum over all ranks, in picoseconds.
    """

    what: str
    ps: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a run takes its time.

    Attributes:
        span_ps: Sum of the spans of all ranks.
        spent: That time, by what it was spent on; the picoseconds add up to it. Of commands that
            run side by side, a kernel counts before what ranks do together, and that before a copy.
        busiest: The link that was busiest, its picoseconds at its full bandwidth; None if no link
            carried anything.
        rows: All kernels, those that take most first.
        device_ps: Sum of the durations of all rows.
        by_bytes: Operations that were timed by their bytes alone, and their picoseconds.
    """

    span_ps: int
    spent: Mapping[Bound, int]
    busiest: tuple[str, int] | None
    rows: Sequence[Row]
    device_ps: int
    by_bytes: Mapping[str, int] = field(default_factory=dict)

    def share(self, bound: Bound) -> float:
        """Returns the share of the ranks' time that is spent on something."""
        return self.spent.get(bound, 0) / self.span_ps if self.span_ps else 0.0

    @property
    def gains(self) -> list[Gain]:
        """What a run could save at most, one thing at a time, the largest first.

        A kernel would save what its bound's full rate leaves of its time, hosts and other ranks
        what devices wait for them, and communication what no kernel hides of it.
        """
        between: tuple[Bound, ...] = ("link", "protocol", "messages")
        exposed = sum(self.spent.get(bound, 0) for bound in between)
        gains = [
            Gain("hosts that issue in time", self.spent.get("host", 0)),
            Gain("ranks that do not wait for each other", self.spent.get("ranks", 0)),
            Gain("communication hidden behind kernels", exposed),
            *(
                Gain(f"{row.name} at the full rate of {row.bound}", _below(row))
                for row in self.rows
                if row.bound in _OF_DEVICES and row.achieved is not None
            ),
        ]
        return sorted((gain for gain in gains if gain.ps > 0), key=lambda gain: -gain.ps)

    @property
    def bound(self) -> tuple[Bound, float]:
        """What most of the ranks' time is spent on, and its share; nothing is `idle`."""
        if not self.spent:
            return "idle", 0.0
        bound = max(self.spent, key=lambda each: (self.spent[each], each))
        return bound, self.share(bound)

    @property
    def verdict(self) -> str:
        """What bounds the run, in a sentence without a full stop."""
        if not self.span_ps:
            return "the run takes no time"
        bound, of_all = self.bound
        share = f"{of_all:.0%}"
        if bound == "host":
            idle = f"{self.share('host') + self.share('idle'):.0%}"
            until = "until its host issues the next command"
            most = f", and {share} " if share != idle else ", "
            return f"host-bound: the device idles {idle} of the time{most}{until}"
        if bound == "idle":
            return f"the device idles {share} of the time, with nothing issued to it"
        what = bound_words(bound)
        if bound == "link" and self.busiest is not None:
            what = f"the link {self.busiest[0]}"
        return f"bound by {what}: {share} of the time"


_OF_DEVICES: Final[frozenset[Bound]] = frozenset(("tensor", "math", "HBM", "L2"))
"""Bounds of kernels that have a full rate."""


def _below(row: Row) -> int:
    """Returns by how many picoseconds a row would be shorter at the full rate of its bound."""
    return row.total_ps - round(row.total_ps * (row.achieved or 0.0))


def bound_words(bound: Bound) -> str:
    """Returns what time is spent on, in words."""
    return _IN_WORDS.get(bound, bound)


_IN_WORDS: Final[Mapping[Bound, str]] = {
    "tensor": "the tensor engines",
    "math": "the MATH engines",
    "launch": "launches",
    "link": "links",
    "protocol": "the protocol of what ranks do together",
    "messages": "messages of ranks that stand for others, which are not kept",
    "ranks": "waiting for other ranks",
    "beside": "kernels that slow each other",
    "latency": "waiting for what was asked for",
    "other": "what no law explains",
    "host": "hosts that issue too late",
    "idle": "devices with nothing to do",
}


def explanation(
    op_log: OpLog,
    topology: Topology,
    dispatch_ps: int,
    *,
    by_bytes: Collection[str] = (),
    nearness: Nearness | None = None,
) -> Explanation:
    """Returns why a run takes its time.

    Args:
        op_log: Log of the run; it must hold all records.
        topology: The machine.
        dispatch_ps: Host time in picoseconds that issuing a command took, of records that do not
            say themselves.
        by_bytes: Names of operations without a price, which were timed by their bytes alone.
        nearness: How near laws were; None for what is known of the machine.

    Raises:
        UsageError: If the log has no records.
    """
    records = [
        record for record in full_records(op_log, "an explanation") if record.category != "range"
    ]
    found = sorted(commands(records, topology, op_log.unkept), key=_order)
    hosts: dict[int, list[Interval]] = {}
    for record in records:
        hosts.setdefault(record.rank, []).append(host_interval(record, dispatch_ps))
    busy = {rank: union(intervals) for rank, intervals in hosts.items()}
    start = min((begin for intervals in hosts.values() for begin, _ in intervals), default=0)
    end = max((record.end for record in records), default=0)
    spent: dict[Bound, int] = {}
    waits: dict[str, int] = {}
    for rank in sorted(busy):
        of_rank = [command for command in found if command.record.rank == rank]
        _spend(spent, waits, of_rank, busy[rank], (start, end))
    device = sum(command.record.end - command.record.start for command in found)
    rows = _rows(found, waits, device, by_bytes, nearness or Nearness(topology))
    unpriced = {row.name: row.total_ps for row in rows if row.name in by_bytes}
    span = (end - start) * len(busy)
    links = carried_ps(records, topology)
    busiest = max(links.items(), key=lambda each: each[1], default=None)
    return Explanation(span, spent, busiest, rows, device, unpriced)


def _order(command: Command) -> tuple[int, int, int, str, str]:
    record = command.record
    return record.start, record.end, record.rank, record.track, record.name


def _spend(
    spent: dict[Bound, int],
    waits: dict[str, int],
    found: Sequence[Command],
    host: Sequence[Interval],
    span: Interval,
) -> None:
    """Adds what the time of a rank was spent on, and what the device waited for the host.

    Args:
        spent: Is added to: by bound.
        waits: Is added to: by name of the command that was issued in the end.
        found: Commands of the rank, in order.
        host: When its host was busy.
        span: First and last moment.
    """
    covered: list[Interval] = []
    for categories in (COMPUTE, COMMUNICATION, ("copy",)):
        chosen = [each for each in found if each.record.category in categories]
        reached = span[0]
        for command in chosen:
            begin, end = max(reached, command.record.start), command.record.end
            reached = max(reached, end)
            shown = length(_without(begin, end, covered))
            whole = end - command.record.start
            left = shown
            largest = max(command.parts, key=lambda key: command.parts[key].ps)
            for key, (ps, _) in command.parts.items():
                if key != largest:
                    left -= ps * shown // whole
                    spent[key[0]] = spent.get(key[0], 0) + ps * shown // whole
            spent[largest[0]] = spent.get(largest[0], 0) + left
        covered = union([*covered, *((each.record.start, each.record.end) for each in chosen)])
    first: dict[int, Record] = {}  # the command issued first of those that begin at a time
    for command in found:
        record = command.record
        before = first.get(record.start)
        if before is None or record.issued < before.issued:
            first[record.start] = record
    idle = difference([span], covered)
    for begin, end in idle:
        following = first.get(end)
        until = min(following.issued, end) if following is not None else begin
        waited = until - begin - length(_without(begin, until, host)) if until > begin else 0
        if waited and following is not None:
            spent["host"] = spent.get("host", 0) + waited
            waits[following.name] = waits.get(following.name, 0) + waited
        if end - begin > waited:
            spent["idle"] = spent.get("idle", 0) + end - begin - waited


def _without(begin: int, end: int, covered: Sequence[Interval]) -> list[Interval]:
    """Returns the part of an interval that a set, as `union` returns it, does not cover."""
    if begin >= end:
        return []
    first = max(0, bisect_right(covered, (begin, begin)) - 1)
    last = bisect_right(covered, (end, end))
    return difference([(begin, end)], covered[first:last])


def _rows(
    found: Iterable[Command],
    waits: Mapping[str, int],
    device: int,
    by_bytes: Collection[str],
    nearness: Nearness,
) -> list[Row]:
    by_name: dict[str, list[Command]] = {}
    for command in found:
        by_name.setdefault(command.record.name, []).append(command)
    rows = []
    for name, of_name in by_name.items():
        total = sum(each.record.end - each.record.start for each in of_name)
        bounds: dict[Bound, int] = {}
        roofs: dict[Bound, int] = {}
        laws: dict[str, int] = {}
        for command in of_name:
            for (bound, law), (ps, roof) in command.parts.items():
                bounds[bound] = bounds.get(bound, 0) + ps
                roofs[bound] = roofs.get(bound, 0) + roof
                if law:
                    laws[law] = laws.get(law, 0) + ps
        most = max(bounds, key=lambda each: (bounds[each], each))
        law = max(laws, key=lambda each: (laws[each], each), default="")
        if name in by_bytes:
            law, laws = BYTES_ALONE, {}
        rows.append(
            Row(
                name,
                len(of_name),
                total,
                total / device,
                most,
                waits.get(name, 0),
                roofs[most] / total if roofs[most] else None,
                law,
                max(0, len(laws) - 1),
                nearness.of(law),
                _occupancy(of_name),
            )
        )
    return sorted(rows, key=lambda row: (-row.total_ps, row.name))


def _occupancy(of_name: Iterable[Command]) -> Occupancy | None:
    prices = [each.record.price for each in of_name]
    grids = [price for price in prices if isinstance(price, GridPrice)]
    return max(grids).occupancy if grids else None


BYTES_ALONE: Final = "bytes alone"
"""Law of operations of PyTorch without a price."""
