"""Traces as PyTorch's profiler writes them: a file for each rank, in the layout of Kineto.

Tools that read the profiler's files read these: names, categories and arguments are those of
Kineto's `output_json.cpp` and `CuptiActivity.cpp`. A command is an operation of PyTorch on the
host (`cpu_op`), the call of CUDA inside it (`cuda_runtime`), and what runs on the device (`kernel`,
`gpu_memcpy`), joined by `correlation` and `External id`. Engines are not shown: they work on parts
of what a stream shows. `ts` and `dur` are microseconds; start and end are rounded down to the
nanosecond, as in `trace.py`.
"""

import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

from kernbench.report.breakdown import host_interval
from kernbench.report.files import explained, make_folder, replacing
from kernbench.report.nccl_names import collective_name, kernel_name, torch_dtype
from kernbench.report.records import Sites, full_records, in_order, is_engine
from kernbench.sim_engine.op_log import (
    Awaited,
    OpLog,
    Record,
    Together,
    TogetherArgs,
    Wait,
    stream_in_words,
)
from kernbench.topology import Topology
from kernbench.units import PS_PER_NS

HOST_PIDS: Final = 100_000
"""Process of the host of rank 0; those of other ranks follow. Processes of devices are smaller."""

DEFAULT_STREAM: Final = 7
"""Number of the default stream in traces of CUDA."""

_FIRST_CORRELATION: Final = 100_001
"""Number of a rank's first call of CUDA.

Numbers of real processes are large, too, and HolisticTraceAnalysis 0.5.0 with pandas 3 fails where
they need fewer bits than the number of events.
"""

_FIRST_STREAM: Final = 20
"""Number of a rank's first stream besides its default streams."""

_HOST_STREAM: Final = re.compile(r"gloo |messages .*, on cpu$")
_OF_SIP: Final = re.compile(r"(?:stream|communication) (\d+)")
_NUMBER: Final = re.compile(r"(\d+)")

_CBIDS: Final = {
    "cudaMemcpyAsync": 41,
    "cudaStreamSynchronize": 131,
    "cudaEventRecord": 135,
    "cudaEventSynchronize": 137,
    "cudaDeviceSynchronize": 165,
    "cudaLaunchKernel": 211,
    "cudaLaunchKernelExC": 430,
}
"""CUPTI's numbers of CUDA's functions."""

_SYNCHRONISING: Final[Mapping[Awaited, str]] = {
    "stream": "cudaStreamSynchronize",
    "event": "cudaEventSynchronize",
    "device": "cudaDeviceSynchronize",
}

_MEMORIES: Final = {
    "Memcpy HtoD": "Memcpy HtoD (Pageable -> Device)",
    "Memcpy DtoH": "Memcpy DtoH (Device -> Pageable)",
    "Memcpy PtoP": "Memcpy PtoP (Device -> Device)",
}
_MEMORY: Final = "Memcpy DtoD (Device -> Device)"


def kineto_file(rank: int) -> str:
    """Returns the name of a rank's file; it ends as `tensorboard_trace_handler` of PyTorch says."""
    return f"rank-{rank}.pt.trace.json"


def write_kineto_files(
    op_log: OpLog,
    topology: Topology,
    folder: str | Path,
    *,
    dispatch_ps: int,
    sips: Mapping[int, int] | None = None,
) -> list[Path]:
    """Writes a file `rank-N.pt.trace.json` for each rank; either all appear, complete, or none.

    Commands of main are left out, unless no rank did anything: then main is shown as rank 0.

    Args:
        op_log: Log of the run; it must hold all records.
        topology: The machine on which the run took place.
        folder: Where the files go; files of the same names are replaced. The folder is made if it
            does not exist.
        dispatch_ps: Host time in picoseconds that issuing a command took, of records that do not
            say themselves.
        sips: SIP of each rank whose number differs from that of its SIP; None if there is none.

    Returns:
        The files, by rank.

    Raises:
        UsageError: If the log has no records, or a file cannot be written (F15).
    """
    by_rank = _by_rank(full_records(op_log, "a trace"))
    if by_rank.keys() - {-1}:
        by_rank.pop(-1, None)
    size = _world_size(by_rank)
    waits: dict[int, list[Wait]] = {}
    for wait in op_log.waits:
        waits.setdefault(wait.rank, []).append(wait)
    target = Path(folder)
    make_folder(target)
    names = {rank: kineto_file(max(rank, 0)) for rank in sorted(by_rank)}
    with explained(target), tempfile.TemporaryDirectory(prefix=".kineto-", dir=target) as staging:
        for rank, name in names.items():
            own = (sips or {}).get(max(rank, 0), max(rank, 0))
            shown = _Shown(by_rank.pop(rank), waits.get(rank, ()), rank, own, size)
            _write(_RankTrace(shown, topology, dispatch_ps), Path(staging, name), op_log)
        return [Path(staging, name).replace(target / name) for name in names.values()]


def write_kineto_rank(
    op_log: OpLog,
    topology: Topology,
    path: str | Path,
    *,
    rank: int,
    dispatch_ps: int,
    sip: int | None = None,
    world_size: int | None = None,
    start_ps: int = 0,
    end_ps: int | None = None,
) -> None:
    """Writes the trace of one rank between two simulated times, as PyTorch's profiler does.

    The file holds the commands that the rank's host issued between these times, whenever the
    device ran them, and the ranges that began and ended between them.

    Args:
        op_log: Log of the run; it must hold all records between these times.
        topology: The machine on which the run takes place.
        path: The JSON file to write; compressed if its name ends in `.gz`. The file appears when it
            is complete.
        rank: Global rank; -1 for main, which is shown as rank 0.
        dispatch_ps: Host time in picoseconds that issuing a command took, of records that do not
            say themselves.
        sip: The rank's SIP; None for the SIP of the rank's own number.
        world_size: Number of ranks; None for as many as the log shows.
        start_ps: Simulated time in picoseconds at which the trace begins.
        end_ps: Simulated time in picoseconds at which the trace ends; None for the end of the log.

    Raises:
        UsageError: If the log has no records, or the file cannot be written (F15).
    """
    by_rank = _by_rank(full_records(op_log, "a trace"))

    def inside(start: int, end: int) -> bool:
        return start >= start_ps and (end_ps is None or end <= end_ps)

    found = by_rank.get(rank, ())
    records = [record for record in found if inside(*_host_time(record, dispatch_ps))]
    waits = [wait for wait in op_log.waits if wait.rank == rank and inside(wait.start, wait.end)]
    size = _world_size(by_rank) if world_size is None else world_size
    own = max(rank, 0) if sip is None else sip
    shown = _Shown(records, waits, rank, own, size)
    _write(_RankTrace(shown, topology, dispatch_ps), path, op_log)


def _write(trace: "_RankTrace", path: str | Path, op_log: OpLog) -> None:
    with replacing(path) as file:
        file.writelines(trace.lines(Path(path).name, op_log.dropped))


def _by_rank(records: Sequence[Record]) -> dict[int, list[Record]]:
    by_rank: dict[int, list[Record]] = {}
    for record in records:
        if record.category in {"send", "recv"} or is_engine(record.track):
            continue  # parts of what a stream shows
        by_rank.setdefault(record.rank, []).append(record)
    return by_rank


def _world_size(by_rank: Mapping[int, Sequence[Record]]) -> int:
    """Returns the number of ranks: the highest rank that did something, or is in a group, and 1."""
    highest = max(by_rank, default=0)
    for records in by_rank.values():
        for record in records:
            if isinstance(record.args, TogetherArgs):
                highest = max(highest, *record.args.together.ranks[-1:])
    return max(highest, 0) + 1


def _host_time(record: Record, dispatch_ps: int) -> tuple[int, int]:
    """Returns when the host was busy with a record; of a range, from its begin to its end."""
    if record.category == "range":
        return record.start, record.end
    return host_interval(record, dispatch_ps)


class _Shown(NamedTuple):
    """What the trace of a rank shows.

    Attributes:
        records: The rank's records, without engines.
        waits: When the rank's host waited.
        rank: Global rank; -1 for main.
        sip: The rank's SIP.
        world_size: Number of ranks.
    """

    records: Sequence[Record]
    waits: Sequence[Wait]
    rank: int
    sip: int
    world_size: int


class _Track(NamedTuple):
    """Where a command ran.

    Attributes:
        device: Index of the device.
        stream: Number of the stream on that device.
        words: The stream's name in a user's words.
    """

    device: int
    stream: int
    words: str


@dataclass(slots=True)
class _Open:
    """A range of the program that has begun.

    Attributes:
        record: The range.
        number: The range's `External id`.
        spans: On each track, when the first of its commands began and the last one ended.
    """

    record: Record
    number: int
    spans: dict[_Track, tuple[int, int]] = field(default_factory=dict)


class _RankTrace:
    """The trace of one rank.

    Args:
        shown: What the trace shows.
        dispatch_ps: Host time of commands that do not say themselves, in picoseconds.
    """

    def __init__(self, shown: _Shown, topology: Topology, dispatch_ps: int) -> None:
        self._topology, self._dispatch_ps = topology, dispatch_ps
        self._rank, self._world_size = max(shown.rank, 0), shown.world_size
        self._sip, self._waits = shown.sip, shown.waits
        ordered = [entry.record for entry in in_order(shown.records)]
        self._ranges = [record for record in ordered if record.category == "range"]
        self._ranges.sort(key=lambda range_: (range_.start, -range_.end, len(range_.ranges)))
        self._commands = [record for record in ordered if record.category != "range"]
        self._commands.sort(key=lambda record: record.issued)
        self._tracks = self._numbered()
        self._external = count(len(self._ranges) + 1)
        self._sites, self._texts = Sites(), _Texts()
        self._host = f'"pid":{HOST_PIDS + self._rank},"tid":{HOST_PIDS + self._rank}'

    def lines(self, name: str, dropped: int) -> Iterator[str]:
        """Yields the lines of the file, each with its end.

        Args:
            name: Name of the file.
            dropped: Number of records that the log did not keep.
        """
        yield self._head(dropped)
        for event in self._events():
            yield f"{event},\n"
        _, end = self._bounds()
        yield (
            f'{{"name":"Record Window End","ph":"i","s":"g","pid":"","tid":"","ts":{_us(end)}}}\n'
            f'],\n"traceName": {json.dumps(name)}\n}}\n'
        )

    def _bounds(self) -> tuple[int, int]:
        times = [_host_time(record, self._dispatch_ps) for record in self._all()]
        end = max((record.end for record in self._all()), default=0)
        return min((start for start, _ in times), default=end), end

    def _all(self) -> Iterator[Record]:
        yield from self._commands
        yield from self._ranges

    def _numbered(self) -> dict[str, _Track]:
        """Returns the stream of each track: default streams are 7, others count from 20."""
        names = {r.track for r in self._commands if r.category != "host"}
        found: dict[str, _Track] = {}
        number = _FIRST_STREAM
        for name in sorted(names, key=_natural):
            if _HOST_STREAM.match(name):
                continue
            match = _OF_SIP.match(name)
            device = self._sip if match is None else int(match[1])
            words = stream_in_words(name)
            if words == "default stream":
                found[name] = _Track(device, DEFAULT_STREAM, words)
            else:
                found[name] = _Track(device, number, words)
                number += 1
        return found

    def _devices(self) -> list[int]:
        return sorted({self._sip, *(track.device for track in self._tracks.values())})

    def _head(self, dropped: int) -> str:
        head: dict[str, Any] = {
            "schemaVersion": 1,
            "deviceProperties": [self._properties(sip) for sip in self._devices()],
            "distributedInfo": {
                "backend": "nccl",
                "rank": self._rank,
                "world_size": self._world_size,
                **self._groups(),
            },
            "machine": self._topology.name,
            "clock": "simulated",
        }
        if dropped:
            head["droppedRecords"] = dropped
        head |= {"displayTimeUnit": "ms", "baseTimeNanoseconds": 0}
        # Readers look for the rank line by line, with a space after the colon.
        entries = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
        return "{\n" + ",\n".join(entries) + ',\n"traceEvents": [\n'

    def _properties(self, sip: int) -> dict[str, Any]:
        cube = self._topology.machine.system.sip_of(sip).cube
        return {
            "id": sip,
            "name": self._topology.name,
            "totalGlobalMem": self._topology.num_cubes * cube.hbm.capacity,
            "numSms": self._topology.num_pes(sip),
        }

    def _groups(self) -> dict[str, Any]:
        groups: dict[str, Together] = {}
        for record in self._commands:
            if isinstance(record.args, TogetherArgs):
                groups.setdefault(record.args["group"], record.args.together)
        config = [
            {
                "pg_name": name,
                "pg_desc": _description(name, group),
                "backend_config": "cuda:nccl",
                "pg_size": len(group.ranks),
                "ranks": list(group.ranks),
            }
            for name, group in sorted(groups.items(), key=lambda item: _natural(item[0]))
        ]
        return {"pg_count": len(config), "pg_config": config}

    def _events(self) -> Iterator[str]:
        start, end = self._bounds()
        yield from self._metadata()
        yield (
            f'{{"ph":"X","cat":"Trace","ts":{_us(start)},"dur":{_us(end - start)},"pid":"Spans",'
            f'"tid":"PyTorch Profiler","name":"PyTorch Profiler (0)","args":{{"Op count":0}}}}'
        )
        yield (
            '{"name":"Iteration Start: PyTorch Profiler","ph":"i","s":"g","pid":"Traces",'
            f'"tid":"Trace PyTorch Profiler","ts":{_us(start)}}}'
        )
        yield from self._annotations()
        for correlation, record in enumerate(self._commands, _FIRST_CORRELATION):
            yield from self._command(record, correlation)
        for correlation, wait in enumerate(self._waits, _FIRST_CORRELATION + len(self._commands)):
            times = wait.start, wait.end
            yield self._call(_SYNCHRONISING[wait.awaited], times, correlation)

    def _metadata(self) -> Iterator[str]:
        pid = HOST_PIDS + self._rank
        yield from _process(pid, f"rank {self._rank}", "CPU", pid)
        yield from _thread(pid, pid, f"thread {pid} (host)", pid)
        for sip in self._devices():
            yield from _process(sip, f"sip{sip}", f"GPU {sip}", 5_000_000 + sip)
        for track in sorted(set(self._tracks.values())):
            name = f"stream {track.stream} ({track.words})"
            yield from _thread(track.device, track.stream, name, track.stream)

    def _annotations(self) -> Iterator[str]:
        """Yields the ranges, on the host and on each stream; before all that they hold.

        On a stream a range goes from the begin of the first to the end of the last command that the
        host issued within the range.
        """
        coming = [_Open(record, number) for number, record in enumerate(self._ranges, 1)]
        for range_ in coming:
            record = range_.record
            args: dict[str, Any] = {"External id": range_.number}
            if "args" in record.args:
                args["args"] = record.args["args"]
            yield (
                f'{{"ph":"X","cat":"user_annotation","name":{_json(record.name)},{self._host},'
                f'{_time(record.start, record.end)},"args":{_json(args)}}}'
            )
        waiting, active = iter(coming), list[_Open]()
        following = next(waiting, None)
        for record in self._commands:
            track = self._tracks.get(record.track)
            if track is None or record.category == "event":
                continue
            began, issued = host_interval(record, self._dispatch_ps)
            while following is not None and following.record.start <= began:
                active.append(following)
                following = next(waiting, None)
            active = [range_ for range_ in active if range_.record.end >= issued]
            for range_ in active:
                first, last = range_.spans.get(track, (record.start, record.end))
                range_.spans[track] = min(first, record.start), max(last, record.end)
        for range_ in coming:
            for track, span in range_.spans.items():
                yield (
                    '{"ph":"X","cat":"gpu_user_annotation",'
                    f'"name":{_json(range_.record.name)},"pid":{track.device},'
                    f'"tid":{track.stream},{_time(*span)},'
                    f'"args":{{"External id":{range_.number}}}}}'
                )

    def _command(self, record: Record, correlation: int) -> Iterator[str]:
        """Yields the events of a command.

        Args:
            record: The command, or an action of the host.
            correlation: Number that the call of CUDA shares with what runs on the device.
        """
        track = self._tracks.get(record.track)
        number = next(self._external)
        if track is None or record.category == "host":
            yield self._cpu_op(record, _on_host_name(record), number, "", record.start, record.end)
            return
        call, operation, device = _names(record)
        times = host_interval(record, self._dispatch_ps)
        facts = ""
        if record.category == "collective":
            facts = _collective_args(record, self._rank)
            yield self._cpu_op(record, operation, number, "", *times)
            number = next(self._external)
            yield self._cpu_op(record, "record_param_comms", number, facts, *times)
        elif operation:
            yield self._cpu_op(record, operation, number, "", *times)
        own = f'"External id":{number},' if operation else ""
        at = f'{self._host},"ts":{_us(times[0])}'
        yield self._call(call, times, correlation, own)
        if not device:
            return
        # An arrow binds to the slice that was opened last on its thread.
        yield f'{{"ph":"s","id":{correlation},{at},"cat":"ac2g","name":"ac2g"}}'
        place = f'"pid":{track.device},"tid":{track.stream}'
        args = f'{own}"device":{track.device},"context":1,"stream":{track.stream},'
        args += f'"correlation":{correlation}'
        if record.category == "copy":
            args += _copy_args(record)
        else:
            args += ',"queued":0'
        args += facts
        category = "gpu_memcpy" if record.category == "copy" else "kernel"
        yield (
            f'{{"ph":"X","cat":"{category}","name":{self._texts[device]},{place},'
            f'{_time(record.start, record.end)},"args":{{{args}}}}}'
        )
        yield (
            f'{{"ph":"f","id":{correlation},{place},"ts":{_us(record.start)},"cat":"ac2g",'
            f'"name":"ac2g","bp":"e"}}'
        )

    def _call(self, name: str, times: tuple[int, int], correlation: int, own: str = "") -> str:
        """Returns the event of a call of CUDA; `own` is what its arguments begin with."""
        return (
            f'{{"ph":"X","cat":"cuda_runtime","name":"{name}",{self._host},{_time(*times)},'
            f'"args":{{{own}"cbid":{_CBIDS[name]},"correlation":{correlation}}}}}'
        )

    def _cpu_op(
        self, record: Record, name: str, number: int, facts: str, start: int, end: int
    ) -> str:
        stack = ""
        if record.site is not None:
            stack = f',"Call stack":{self._texts[self._sites.full(record.site)]}'
        return (
            f'{{"ph":"X","cat":"cpu_op","name":{self._texts[name]},{self._host},'
            f'{_time(start, end)},"args":{{"External id":{number}{facts}{stack}}}}}'
        )


class _Texts(dict[str, str]):
    """Texts in JSON, each made once."""

    def __missing__(self, text: str) -> str:
        found = self[text] = _json(text)
        return found


def _names(record: Record) -> tuple[str, str, str]:
    """Returns names: of the call of CUDA, of PyTorch's operation, and of what the device runs.

    Kernels of one's own have no operation, and events nothing that the device runs.
    """
    name = record.name
    if record.category == "event":
        return "cudaEventRecord", "", ""
    if record.category == "copy":
        memory = name in _MEMORIES
        return "cudaMemcpyAsync", "aten::copy_" if memory else name, _MEMORIES.get(name, _MEMORY)
    if record.category == "collective":
        return "cudaLaunchKernelExC", f"c10d::{name}", kernel_name(record)
    operator = name.partition("::")[2].removesuffix("_")
    if not operator:
        return "cudaLaunchKernel", "", name
    return "cudaLaunchKernel", name, f"{operator}_kernel"


def _on_host_name(record: Record) -> str:
    return f"gloo:{record.name}" if record.category == "collective" else record.name


def _collective_args(record: Record, rank: int) -> str:
    """Returns what Kineto says about a collective, of its operation and of its kernel, as JSON."""
    args = record.args
    if not isinstance(args, TogetherArgs):
        return ""
    together = args.together
    facts: dict[str, Any] = {
        "Collective name": collective_name(record.name, together.operation),
        "In msg nelems": together.inputs,
        "Out msg nelems": together.outputs,
        "Group size": len(together.ranks),
        "dtype": torch_dtype(args["dtype"]),
        "Process Group Name": args["group"],
        "Process Group Description": _description(args["group"], together),
        "Process Group Ranks": _listed(together.ranks),
    }
    if "peer" in args:
        ends = (rank, args["peer"]) if together.operation == "send" else (args["peer"], rank)
        facts |= {"Src Rank": ends[0], "Dst Rank": ends[1]}
    return f",{_json(facts)[1:-1]}"


def _copy_args(record: Record) -> str:
    nbytes, took = record.args.get("bytes"), record.end - record.start
    if nbytes is None:
        return ""
    # Bytes a nanosecond are GB/s.
    rate = f"{nbytes * PS_PER_NS / took:.6f}" if took else '"N/A"'
    return f',"bytes":{nbytes},"memory bandwidth (GB/s)":{rate}'


_MOST_LISTED: Final = 30


def _listed(ranks: Sequence[int]) -> str:
    """Returns ranks as PyTorch writes them: of more than 30, the first 29 and the last."""
    if len(ranks) <= _MOST_LISTED:
        return f"[{', '.join(map(str, ranks))}]"
    return f"[{', '.join(map(str, ranks[: _MOST_LISTED - 1]))}, ..., {ranks[-1]}]"


def _description(name: str, group: Together) -> str:
    return "default_pg" if name == "WORLD" else group.description


def _natural(name: str) -> list[int | str]:
    """Returns a key that sorts digits as numbers; every other part is digits."""
    parts = _NUMBER.split(name)
    return [int(part) if index % 2 else part for index, part in enumerate(parts)]


def _process(pid: int, name: str, label: str, place: int) -> Iterator[str]:
    for what, key, value in (
        ("process_name", "name", _json(name)),
        ("process_labels", "labels", _json(label)),
        ("process_sort_index", "sort_index", place),
    ):
        yield (
            f'{{"name":"{what}","ph":"M","ts":0.000,"pid":{pid},"tid":0,"args":{{"{key}":{value}}}}}'
        )


def _thread(pid: int, tid: int, name: str, place: int) -> Iterator[str]:
    for what, key, value in (
        ("thread_name", "name", _json(name)),
        ("thread_sort_index", "sort_index", place),
    ):
        yield (
            f'{{"name":"{what}","ph":"M","ts":0.000,"pid":{pid},"tid":{tid},'
            f'"args":{{"{key}":{value}}}}}'
        )


def _time(start: int, end: int) -> str:
    return f'"ts":{_us(start)},"dur":{_us((end // PS_PER_NS - start // PS_PER_NS) * PS_PER_NS)}'


def _us(ps: int) -> str:
    ns = ps // PS_PER_NS
    return f"{ns // 1000}.{ns % 1000:03}"


_json: Final = json.JSONEncoder(separators=(",", ":")).encode
