"""Timelines that Perfetto and chrome://tracing open, with the keys and conventions of Kineto.

A process of the trace is a rank, or main; one more process holds the links. A thread is a track:
the host, a stream, or an engine. Counters of a rank are the rows that it got for its experts. `ts`
and `dur` are microseconds with three decimals, as in Kineto. Start and end of a slice are rounded
down to the nanosecond, so that slices which meet or nest in picoseconds still do. Exact picoseconds
would not work: readers keep whole nanoseconds and round `ts` and `dur` separately, so that some
neighbours would overlap, and Perfetto drops a slice that overlaps another one. The exact times are
in `args`.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import count, groupby
from pathlib import Path
from typing import Any, Final

from kernbench.report.files import replacing
from kernbench.report.lanes import Slice, laid_out
from kernbench.report.records import Sites, full_records, plain
from kernbench.routing import Load
from kernbench.sim_engine.op_log import Category, OpLog, Record
from kernbench.topology import Topology
from kernbench.units import PS_PER_NS, PS_PER_S

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


def write_trace(
    op_log: OpLog,
    topology: Topology,
    path: str | Path,
    *,
    dispatch_ps: int = 0,
    sips: Mapping[int, int] | None = None,
    ranks: Collection[int] | None = None,
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
        ranks: Ranks that are shown; None for all.

    Raises:
        UsageError: If the log has no records, or the file cannot be written.
    """
    records, loads = full_records(op_log, "a trace"), op_log.loads
    if ranks is not None:
        records = [record for record in records if record.rank in ranks]
        loads = [load for load in loads if load.rank in ranks]
    dropped = op_log.dropped
    with replacing(path) as file:
        dials: dict[str, Any] = {"dispatch_ps": dispatch_ps, "sips": sips, "dropped": dropped}
        for line in trace_lines(records, topology, loads=loads, **dials):
            file.write(line)
            file.write("\n")


def trace_lines(
    records: Sequence[Record],
    topology: Topology,
    *,
    dispatch_ps: int = 0,
    sips: Mapping[int, int] | None = None,
    dropped: int = 0,
    loads: Sequence[Load] = (),
) -> Iterator[str]:
    """Yields the lines of a trace, one line per event.

    Args:
        records: All records of a run.
        topology: The machine on which the run took place.
        dispatch_ps: Host time in picoseconds that issuing a command took, as in `write_trace`.
        sips: SIP of each rank whose number differs from that of its SIP; None if there is none.
        dropped: Number of later records that the log did not keep; the head of the trace says it.
        loads: What ranks got in exchanges of tokens.
    """
    cut = f'"droppedRecords":{dropped},' if dropped else ""
    yield (
        f'{{"schemaVersion":1,"machine":{_json(topology.name)},"clock":"simulated",{cut}'
        '"displayTimeUnit":"ns","baseTimeNanoseconds":0,"traceEvents":['
    )
    # JSON has no comma after the last event.
    before = None
    for event in _Trace(records, topology, dispatch_ps, sips or {}, loads).events():
        if before is not None:
            yield f"{before},"
        before = event
    if before is not None:
        yield before
    yield "]}"


class _Trace:
    def __init__(
        self,
        records: Sequence[Record],
        topology: Topology,
        dispatch_ps: int,
        sips: Mapping[int, int],
        loads: Sequence[Load],
    ) -> None:
        self._topology = topology
        self._sips = sips
        self._loads = loads
        self._slices, self._lanes = laid_out(records, dispatch_ps)
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
        for load in sorted(self._loads, key=lambda load: (load.rank, load.layer, load.time)):
            yield from _load_events(load)

    def _process_name(self, rank: int) -> str:
        return f"rank {rank} (sip{self._sip(rank)})" if rank >= 0 else "main"

    def _sip(self, rank: int) -> int:
        return self._sips.get(rank, rank)

    def _slice_events(self, slice_: Slice) -> Iterator[str]:
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


def _load_events(load: Load) -> Iterator[str]:
    """Yields the counters of what a rank got: its rows, and those of each of its experts."""
    layer = "of uneven exchanges" if load.layer < 0 else f"of moe {load.layer}"
    values = {f"rows {layer}": {"rows": load.rows}}
    if load.by_expert:
        experts = {f"expert {place}": rows for place, rows in enumerate(load.by_expert)}
        values[f"rows {layer}, by the rank's experts"] = experts
    for name, args in values.items():
        yield (
            f'{{"ph":"C","name":{_json(name)},"pid":{_pid(load.rank)},"tid":0,'
            f'"ts":{_us(load.time)},"args":{_json(args)}}}'
        )


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
