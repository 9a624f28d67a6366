"""Timelines that Perfetto and chrome://tracing open, with the keys and conventions of Kineto.

A process of the trace is a rank, or main; one more process holds the links. A thread is a track:
the host, a stream, or an engine. `ts` and `dur` are microseconds with three decimals, as in Kineto.
Start and end of a slice are rounded down to the nanosecond, so that slices which meet or nest in
picoseconds still do. Exact picoseconds would not work: readers keep whole nanoseconds and round
`ts` and `dur` separately, so that some neighbours would overlap, and Perfetto drops a slice that
overlaps another one. The exact times are in `args`.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

from kernbench.report.breakdown import host_interval
from kernbench.report.files import replacing
from kernbench.report.records import Entry, Sites, full_records, in_order, is_engine, plain
from kernbench.sim_engine.op_log import Category, OpLog, Record, stream_in_words
from kernbench.topology import Topology
from kernbench.units import PS_PER_NS, PS_PER_S

_HOST_TRACK: Final = "host"

# Kineto's names. In Kineto, a collective is a kernel of NCCL.
_KINETO_CATEGORY: Final[dict[Category, str]] = {
    "compute": "kernel",
    "kernel": "kernel",
    "collective": "kernel",
    "copy": "gpu_memcpy",
    "send": "gpu_memcpy",
    "recv": "gpu_memcpy",
    "host": "cpu_op",
    "event": "cuda_sync",
    "range": "user_annotation",
}

_CALLS: Final = ("host", "range")
"""Categories of records that may nest."""


def write_trace(
    op_log: OpLog,
    topology: Topology,
    path: str | Path,
    *,
    dispatch_ps: int = 0,
    sips: Mapping[int, int] | None = None,
) -> None:
    """Writes a log as a trace. Equal runs give equal files, whatever the order of set-up.

    Args:
        op_log: Log of the run; it must hold all records.
        topology: The machine on which the run took place.
        path: The JSON file to write; compressed if its name ends in `.gz`. The file appears when it
            is complete.
        dispatch_ps: Host time in picoseconds that issuing a command took, of records that do not
            say themselves. If not 0, each command is also shown on its host, with an arrow to where
            it ran.
        sips: SIP of each rank whose number differs from that of its SIP; None if there is none.

    Raises:
        UsageError: If the log has no records, or the file cannot be written.
    """
    records = full_records(op_log, "a trace")
    dropped = op_log.dropped
    with replacing(path) as file:
        for line in trace_lines(
            records, topology, dispatch_ps=dispatch_ps, sips=sips, dropped=dropped
        ):
            file.write(line)
            file.write("\n")


def trace_lines(
    records: Sequence[Record],
    topology: Topology,
    *,
    dispatch_ps: int = 0,
    sips: Mapping[int, int] | None = None,
    dropped: int = 0,
) -> Iterator[str]:
    """Yields the lines of a trace, one line per event.

    Args:
        records: All records of a run.
        topology: The machine on which the run took place.
        dispatch_ps: Host time in picoseconds that issuing a command took, as in `write_trace`.
        sips: SIP of each rank whose number differs from that of its SIP; None if there is none.
        dropped: Number of later records that the log did not keep; the head of the trace says it.
    """
    cut = f'"droppedRecords":{dropped},' if dropped else ""
    yield (
        f'{{"schemaVersion":1,"machine":{_json(topology.name)},"clock":"simulated",{cut}'
        '"displayTimeUnit":"ns","baseTimeNanoseconds":0,"traceEvents":['
    )
    # JSON has no comma after the last event.
    before = None
    for event in _Trace(records, topology, dispatch_ps, sips or {}).events():
        if before is not None:
            yield f"{before},"
        before = event
    if before is not None:
        yield before
    yield "]}"


class _Arrow(NamedTuple):
    """An arrow between two slices.

    Attributes:
        identity: Number of the arrow, unique in the trace.
        kind: Name and category of the arrow: `message`, or Kineto's `ac2g` from host to device.
    """

    identity: int
    kind: str


@dataclass(slots=True)
class _Slice:
    """A record that is to be shown on a lane.

    Attributes:
        record: The record.
        leaving: Arrows that begin at the slice.
        arriving: Arrows that end at the slice.
        lane: Lane that shows the slice; None until `_spread` has chosen it.
    """

    record: Record
    leaving: list[_Arrow] = field(default_factory=list)
    arriving: list[_Arrow] = field(default_factory=list)
    lane: "_Lane | None" = None


@dataclass(slots=True, eq=False)
class _Lane:
    """A row of slices that nest or do not overlap.

    Attributes:
        rank: Rank whose records the lane shows.
        track: Track of the records.
        number: Place among the lanes of the track, from 0.
        open_ends: Ends of the slices that are open at the latest start, the innermost last.
        tid: Number of the thread; unique in the trace, since readers know a thread by it alone.
        stream: Place in the process, which Kineto calls a stream.
    """

    rank: int
    track: str
    number: int
    open_ends: list[int] = field(default_factory=list)
    tid: int = 0
    stream: int = 0

    @property
    def name(self) -> str:
        words = stream_in_words(self.track)
        return f"{words} ({self.number + 1})" if self.number else words

    def place(self) -> tuple[int, int, tuple[Any, ...], int]:
        """Order of display: the host, streams, engines; each by name, with digits as numbers."""
        kind = 2 if is_engine(self.track) else int(self.track != _HOST_TRACK)
        parts = re.split(r"(\d+)", self.track)
        # Every other part is digits.
        name = tuple(int(part) if index % 2 else part for index, part in enumerate(parts))
        return self.rank, kind, name, self.number

    def take(self, record: Record) -> bool:
        """Adds a record that begins no earlier than the last one, if it overlaps no other.

        Returns:
            Whether the lane took the record.
        """
        ends = self.open_ends
        while ends and ends[-1] <= record.start:
            ends.pop()
        # Only calls nest; concurrent commands of a device are shown side by side.
        if ends and (record.category not in _CALLS or record.end > ends[-1]):
            return False
        ends.append(record.end)
        return True


class _Trace:
    def __init__(
        self,
        records: Sequence[Record],
        topology: Topology,
        dispatch_ps: int,
        sips: Mapping[int, int],
    ) -> None:
        self._topology = topology
        self._sips = sips
        self._slices = _slices(in_order(records), dispatch_ps)
        self._lanes = _spread(self._slices)
        self._ranks = sorted({lane.rank for lane in self._lanes})
        self._link_pid = _pid(max(self._ranks, default=-1)) + 1
        tids = count(self._link_pid + 1)
        for _, lanes in groupby(self._lanes, key=lambda lane: lane.rank):
            for stream, lane in enumerate(lanes):
                lane.tid, lane.stream = next(tids), stream
        issues = sorted({(slice_.record.rank, slice_.record.issued) for slice_ in self._slices})
        self._correlations = {issue: number for number, issue in enumerate(issues, 1)}
        self._sites = Sites()

    def events(self) -> Iterator[str]:
        changes = self._link_changes()
        for rank in self._ranks:
            yield from _process(_pid(rank), self._process_name(rank))
        if changes:
            yield from _process(self._link_pid, "links")
        for lane in self._lanes:
            yield _metadata("thread_name", _pid(lane.rank), lane.tid, "name", lane.name)
            yield _metadata("thread_sort_index", _pid(lane.rank), lane.tid, "sort_index", lane.tid)
        for slice_ in self._slices:
            yield from self._slice_events(slice_)
        for name, by_time in changes.items():
            yield from self._counter(name, by_time)

    def _process_name(self, rank: int) -> str:
        return f"rank {rank} (sip{self._sip(rank)})" if rank >= 0 else "main"

    def _sip(self, rank: int) -> int:
        return self._sips.get(rank, rank)

    def _slice_events(self, slice_: _Slice) -> Iterator[str]:
        record, lane = slice_.record, slice_.lane
        assert lane is not None
        thread = f'"pid":{_pid(lane.rank)},"tid":{lane.tid},"ts":{_us(record.start)}'
        args: dict[str, Any] = {
            "stream": lane.stream,
            "device": self._sip(record.rank),
            "correlation": self._correlations[record.rank, record.issued],
            "start_ps": record.start,
            "end_ps": record.end,
            "issued_ps": record.issued,
        }
        if record.ranges:
            args["ranges"] = record.ranges
        if record.site is not None:
            args["call_site"] = self._sites.full(record.site)
        dur = _us(record.end // PS_PER_NS * PS_PER_NS - record.start // PS_PER_NS * PS_PER_NS)
        yield (
            f'{{"ph":"X","cat":"{_KINETO_CATEGORY[record.category]}","name":{_json(record.name)},'
            f'{thread},"dur":{dur},"args":{_json({**record.args, **args})}}}'
        )
        # An arrow binds to the slice that was opened last on its thread, so it comes right after
        # its slice.
        for number, kind in slice_.leaving:
            yield f'{{"ph":"s","id":{number},"cat":"{kind}","name":"{kind}",{thread}}}'
        for number, kind in slice_.arriving:
            yield f'{{"ph":"f","id":{number},"cat":"{kind}","name":"{kind}",{thread},"bp":"e"}}'

    def _link_changes(self) -> dict[str, dict[int, int]]:
        """Returns for each link, in the machine's order, how its rate in bytes a second changes.

        A message is drawn as an even flow that reaches each link of its route one link latency
        after the link before.
        """
        latencies = {link.name: link.latency for link in self._topology.links}
        changes: dict[str, dict[int, int]] = {name: defaultdict(int) for name in latencies}
        for slice_ in self._slices:
            record = slice_.record
            start, end = record.start, record.end
            if record.category != "send" or start == end:
                continue
            rate = int(record.args.get("bytes", 0)) * PS_PER_S // (end - start)
            delay = 0
            for name in record.args.get("links", ()):
                changes[name][start + delay] += rate
                changes[name][end + delay] -= rate
                delay += latencies[name]
        return {name: by_time for name, by_time in changes.items() if any(by_time.values())}

    def _counter(self, name: str, changes: Mapping[int, int]) -> Iterator[str]:
        text, rate = _json(name), 0
        for time in sorted(changes):
            if changes[time]:
                rate += changes[time]
                yield (
                    f'{{"ph":"C","name":{text},"pid":{self._link_pid},"tid":0,"ts":{_us(time)},'
                    f'"args":{{"GB/s":{_gb(rate)}}}}}'
                )


def _slices(entries: Sequence[Entry], dispatch_ps: int) -> list[_Slice]:
    """Returns all slices of the trace, in the order of their events."""
    slices: list[_Slice] = []
    arrows = count(max((entry.arrow for entry in entries), default=0) + 1)
    for entry in entries:
        record = entry.record
        slice_ = _Slice(record)
        slices.append(slice_)
        if entry.arrow:
            ends = slice_.leaving if record.category == "send" else slice_.arriving
            ends.append(_Arrow(entry.arrow, "message"))
        if dispatch_ps and record.category not in _CALLS and not is_engine(record.track):
            arrow = _Arrow(next(arrows), "ac2g")
            slice_.arriving.append(arrow)
            slices.append(_Slice(_launch(record, dispatch_ps), leaving=[arrow]))
    slices.sort(key=_event_order)
    return slices


def _event_order(slice_: _Slice) -> tuple[int, bool, int]:
    record = slice_.record
    # The event that begins an arrow must precede the event that ends it, even at the same time. A
    # call precedes the calls that it encloses; on a device, a command without duration precedes
    # the command that follows it.
    first = -record.end if record.category in _CALLS else record.end
    return record.start, bool(slice_.arriving), first


def _launch(record: Record, dispatch_ps: int) -> Record:
    """Returns a record of the time that the host took to issue a command."""
    start, end = host_interval(record, dispatch_ps)
    return Record(record.name, "host", record.rank, _HOST_TRACK, end, start, end, record.site)


def _spread(slices: Sequence[_Slice]) -> list[_Lane]:
    """Gives each slice the first lane of its track that has room; returns the lanes in order."""
    tracks: dict[tuple[int, str], list[_Lane]] = {}
    for slice_ in slices:
        record = slice_.record
        lanes = tracks.setdefault((record.rank, record.track), [])
        slice_.lane = next((lane for lane in lanes if lane.take(record)), None)
        if slice_.lane is None:
            slice_.lane = _Lane(record.rank, record.track, len(lanes))
            slice_.lane.take(record)
            lanes.append(slice_.lane)
    return sorted((lane for lanes in tracks.values() for lane in lanes), key=_Lane.place)


def _pid(rank: int) -> int:
    """Returns the number of the process of a rank; 0 for main, which is rank -1."""
    return rank + 1


def _process(pid: int, name: str) -> Iterator[str]:
    yield _metadata("process_name", pid, 0, "name", name)
    yield _metadata("process_sort_index", pid, 0, "sort_index", pid)


def _metadata(name: str, pid: int, tid: int, key: str, value: str | int) -> str:
    return (
        f'{{"ph":"M","name":"{name}","pid":{pid},"tid":{tid},"ts":0,'
        f'"args":{{"{key}":{_json(value)}}}}}'
    )


def _us(ps: int) -> str:
    ns = ps // PS_PER_NS
    return f"{ns // 1000}.{ns % 1000:03}"


def _gb(bytes_per_s: int) -> str:
    """Returns GB/s with all its digits, so that rates that rise and fall again end at 0."""
    return f"{bytes_per_s // 10**9}.{bytes_per_s % 10**9:09}"


_json: Final = json.JSONEncoder(separators=(",", ":"), default=plain).encode
