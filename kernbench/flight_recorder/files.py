"""The files of PyTorch's flight recorder, one for each rank, as PyTorch's analyser reads them.

`python -m torch.distributed.flight_recorder.fr_trace DIR` does. They have the form of PyTorch's own
(version 2.10 of it), and tell what those would tell when a time-out of NCCL has passed: whatever
can be completed then is complete, though a run may have ended earlier here. Times are nanoseconds
of simulated time.
"""

import pickle
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from kernbench.des import Event
from kernbench.flight_recorder.recorder import Entry, FlightRecorder, Lane, Shaped
from kernbench.process.process import Process
from kernbench.ranks.meeting import Exchange
from kernbench.report.files import replacing_bytes
from kernbench.sim_engine.command import Command

VERSION: Final = "2.10"
_PREFIX: Final = "nccl_trace_rank_"
_OURS: Final = re.compile(re.escape(_PREFIX) + r"\d+")
_PS_PER_NS: Final = 1000


class FlightRecords:
    """The recorders of the ranks of one spawn after the other.

    Args:
        folder: Where the files go; those of a spawn replace those of the spawn before.
    """

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder
        self._recorders: dict[int, FlightRecorder] = {}
        self._ranks = 0
        self._running = 0

    def begin(self, ranks: int) -> None:
        """Forgets the ranks of the spawn before.

        Args:
            ranks: Number of ranks of the spawn that begins.
        """
        self._recorders, self._ranks, self._running = {}, ranks, 0

    def of(self, process: Process) -> FlightRecorder:
        """Returns the recorder of a rank, which begins."""
        self._running += 1
        return self._recorders.setdefault(process.rank, FlightRecorder(process))

    def ended(self) -> None:
        """Notes how far all calls have come if this was the last rank that runs.

        What commands wait for is forgotten soon after.
        """
        self._running -= 1
        if not self._running:
            find_states(self._recorders.values())

    def write(self) -> None:
        """Writes the files, and removes those of ranks that were there before and are not now.

        Raises:
            UsageError: If a file cannot be written.
        """
        kept = whole(self._recorders.values())
        paths = [self._folder / f"{_PREFIX}{rank}" for rank in range(self._ranks)]
        for path in self._folder.iterdir():
            if _OURS.fullmatch(path.name) and path not in paths:
                path.unlink()
        for rank, path in enumerate(paths):
            with replacing_bytes(path) as file:
                # A rank that never began has called nothing.
                pickle.dump(document(kept.get(rank, ())), file)


def find_states(recorders: Collection[FlightRecorder]) -> None:
    """Finds out how far the calls of all ranks come, if nobody calls anything more.

    Ranks may end in the middle of what their devices do. If states were taken then, ranks would
    differ in calls in which nothing is wrong.

    Args:
        recorders: The recorders of all ranks.
    """
    entries = [entry for recorder in recorders for entry in recorder.entries]
    unsure = list(dict.fromkeys(entry.progress for entry in entries if entry.progress.calls))
    commands = _reached(call.command for each in unsure for call in each.calls)
    able: set[Event] = set()
    found = -1
    while len(able) > found:
        found = len(able)
        for command in commands:
            if command.done not in able and _completes(command, able):
                able.add(command.done)
    for progress in unsure:
        issued = [call.command for call in progress.calls if call.command is not None]
        if len(issued) == len(progress.calls) and all(each.done in able for each in issued):
            progress.state = "completed"
        elif all(_begins(each, able) for each in issued):
            progress.state = "started"
    for recorder in recorders:
        before = "completed"
        for entry in recorder.entries:
            if entry.progress.refused and before == "completed":
                entry.progress.state = "started"  # NCCL would not have refused it
            before = entry.progress.state


def _reached(commands: Iterable[Command | None]) -> list[Command]:
    """Returns commands that are not complete and all on which they depend, by rank and turn."""
    found: dict[Command, None] = {}
    left = [command for command in commands if command is not None]
    while left:
        command = left.pop()
        if command in found or command.done.time is not None:
            continue
        found[command] = None
        left += [event.label for event in command.after if isinstance(event.label, Command)]
        if isinstance(command.part, Exchange):
            calls = command.part.calls.values()
            left += [call.command for call in calls if call.command is not None]
    return sorted(found, key=lambda command: (command.host.rank, command.turn))


def _begins(command: Command, able: set[Event]) -> bool:
    return all(event.time is not None or event in able for event in command.after)


def _completes(command: Command, able: set[Event]) -> bool:
    """Returns whether a command ends, as far as is known of others."""
    if not _begins(command, able):
        return False
    part = command.part
    if not isinstance(part, Exchange):
        return True
    others = [call.command for call in part.calls.values()]
    return not part.absent() and all(
        other is not None and (other.done.time is not None or _begins(other, able))
        for other in others
    )


def whole(recorders: Collection[FlightRecorder]) -> dict[int, list[Entry]]:
    """Returns each rank's entries, leaving out those that would accuse a rank wrongly.

    Ranks drop their oldest entries, but not at the same call: a call that one rank has dropped
    would look as if that rank had never made it. A rank that was ended before its next call, which
    nothing hindered, would look as if it had left that call out.

    Args:
        recorders: The recorders of all ranks, whose states have been found out.
    """
    kept = {recorder.process.rank: list(recorder.entries) for recorder in recorders}
    first, last = _dropped(recorders), _reached_by_all(recorders)
    again = bool(first or last)
    while again:
        again = False
        for rank, entries in kept.items():
            early = {e.progress for e in entries if e.turn <= first.get(e.lane, 0)}
            late = {e.progress for e in entries if e.turn > last.get(e.lane, e.turn)}
            for entry in entries:  # also the rest of a batch
                if entry.progress in early:
                    first[entry.lane] = max(first.get(entry.lane, 0), entry.turn)
                if entry.progress in late:
                    last[entry.lane] = min(last.get(entry.lane, entry.turn), entry.turn - 1)
            kept[rank] = [e for e in entries if e.progress not in early | late]
            again = again or len(kept[rank]) < len(entries)
    return kept


def _dropped(recorders: Iterable[FlightRecorder]) -> dict[Lane, int]:
    """Returns the last number in each lane that some rank has dropped."""
    first: dict[Lane, int] = {}
    for recorder in recorders:
        for lane, turn in recorder.dropped.items():
            first[lane] = max(first.get(lane, 0), turn)
    return first


def _reached_by_all(recorders: Iterable[FlightRecorder]) -> dict[Lane, int]:
    """Returns the last number in each lane to which all ranks came that could have gone on."""
    listed = list(recorders)
    lanes = {entry.lane: entry.group for recorder in listed for entry in recorder.entries}
    last: dict[Lane, int] = {}
    for recorder in listed:
        if not recorder.stopped or any(e.progress.state != "completed" for e in recorder.entries):
            continue
        own = {entry.lane: entry.turn for entry in recorder.entries}
        rank = recorder.process.rank
        for lane, group in lanes.items():
            ends = {group.ranks[place] for place in lane[1:] if place >= 0} or set(group.ranks)
            if rank in ends:
                reached = own.get(lane, recorder.dropped.get(lane, 0))
                last[lane] = min(last.get(lane, reached), reached)
    return last


def document(entries: Sequence[Entry]) -> dict[str, Any]:
    """Returns what the file of a rank has.

    Args:
        entries: The rank's calls.
    """
    groups = {f"{e.group.name}:{e.library}": e for e in entries}
    status = {}
    for entry in groups.values():
        same = [
            e
            for e in entries
            if (e.group.name, e.library, e.is_message) == (entry.group.name, entry.library, False)
        ]
        status[str(entry.group.number)] = {
            "last_enqueued_collective": _last(same),
            "last_started_collective": _last(e for e in same if e.progress.state != "scheduled"),
            "last_completed_collective": _last(e for e in same if e.progress.state == "completed"),
        }
    return {
        "version": VERSION,
        "comm_lib_version": "kernbench",
        "pg_config": {
            _name(entry): {
                "name": _name(entry),
                "desc": entry.group.desc,
                "ranks": str(list(entry.group.ranks)),
            }
            for entry in groups.values()
        },
        "pg_status": status,
        # The analyser takes the first numbers of all ranks for the same call.
        "entries": [_plain(entry, number) for number, entry in enumerate(entries)],
    }


def _name(entry: Entry) -> str:
    """Returns the name of a group, of which the libraries number their calls each for itself."""
    name = entry.group.name
    return name if entry.library == "nccl" else f"{name}:{entry.library}"


def _last(entries: Iterable[Entry]) -> int:
    return max((entry.sequence for entry in entries), default=-1)


def _plain(entry: Entry, number: int) -> dict[str, Any]:
    told, progress, done = entry.told, entry.progress, entry.progress.state == "completed"
    name = told.name
    if told.way is not None and name != "coalesced":
        source, target = told.way
        name += f" {source}->{target}" if name == "send" else f" {target}<-{source}"
    began = None if progress.state == "scheduled" else progress.began
    return {
        "record_id": number,
        "pg_id": entry.group.number,
        "process_group": (_name(entry), entry.group.desc),
        "collective_seq_id": entry.sequence,
        "p2p_seq_id": entry.messages,
        "op_id": entry.operation,
        "profiling_name": f"{entry.library}:{name}",
        "time_created_ns": entry.created // _PS_PER_NS,
        "input_sizes": _sizes(told.inputs),
        "input_dtypes": [each.dtype for each in told.inputs],
        "output_sizes": _sizes(told.outputs),
        "output_dtypes": [each.dtype for each in told.outputs],
        "state": progress.state,
        "time_discovered_started_ns": _ns(began),
        "time_discovered_completed_ns": _ns(progress.ended if done else None),
        "retired": done,
        "timeout_ms": entry.group.timeout_ms,
        "is_p2p": entry.is_message,
        "thread_id": "0",
        "thread_name": "python",
        "frames": entry.frames,
    }


def _sizes(shaped: Sequence[Shaped]) -> list[list[int]]:
    return [each.sizes for each in shaped]


def _ns(time: int | None) -> int | None:
    return None if time is None else time // _PS_PER_NS
