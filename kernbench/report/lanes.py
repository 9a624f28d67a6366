"""Lanes: rows of a timeline on which commands and calls are shown, none over another."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, NamedTuple

from kernbench.report.breakdown import host_interval
from kernbench.report.records import Entry, in_order, is_engine
from kernbench.sim_engine.op_log import Record, stream_in_words

HOST_TRACK: Final = "host"

CALLS: Final = ("host", "range")
"""Categories of records that may nest."""


class Arrow(NamedTuple):
    """An arrow between two slices.

    Attributes:
        identity: Number of the arrow, unique in the trace.
        kind: Name and category of the arrow: `message`, or Kineto's `ac2g` from host to device.
    """

    identity: int
    kind: str


@dataclass(slots=True)
class Slice:
    """A record that is to be shown on a lane.

    Attributes:
        record: The record.
        leaving: Arrows that begin at the slice.
        arriving: Arrows that end at the slice.
        lane: Lane that shows the slice; None until `_spread` has chosen it.
    """

    record: Record
    leaving: list[Arrow] = field(default_factory=list)
    arriving: list[Arrow] = field(default_factory=list)
    lane: "Lane | None" = None


@dataclass(slots=True, eq=False)
class Lane:
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
        """What a reader is shown."""
        words = stream_in_words(self.track)
        return f"{words} ({self.number + 1})" if self.number else words

    def place(self) -> tuple[int, int, tuple[Any, ...], int]:
        """Order of display: the host, streams, engines; each by name, with digits as numbers."""
        kind = 2 if is_engine(self.track) else int(self.track != HOST_TRACK)
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
        if ends and (record.category not in CALLS or record.end > ends[-1]):
            return False
        ends.append(record.end)
        return True


def laid_out(records: Collection[Record], dispatch_ps: int) -> tuple[list[Slice], list[Lane]]:
    """Returns the slices of a timeline, in order, each on its lane, and all lanes, in order.

    Args:
        records: What is to be shown.
        dispatch_ps: Host time in picoseconds that issuing a command took, of records that do not
            say themselves. If not 0, each command is also a slice of its host.
    """
    slices = _slices(in_order(records), dispatch_ps)
    return slices, _spread(slices)


def _slices(entries: Sequence[Entry], dispatch_ps: int) -> list[Slice]:
    """Returns all slices of the trace, in the order of their events."""
    slices: list[Slice] = []
    arrows = count(max((entry.arrow for entry in entries), default=0) + 1)
    for entry in entries:
        record = entry.record
        slice_ = Slice(record)
        slices.append(slice_)
        if entry.arrow:
            ends = slice_.leaving if record.category == "send" else slice_.arriving
            ends.append(Arrow(entry.arrow, "message"))
        if dispatch_ps and record.category not in CALLS and not is_engine(record.track):
            arrow = Arrow(next(arrows), "ac2g")
            slice_.arriving.append(arrow)
            slices.append(Slice(_launch(record, dispatch_ps), leaving=[arrow]))
    slices.sort(key=_event_order)
    return slices


def _event_order(slice_: Slice) -> tuple[int, bool, int]:
    record = slice_.record
    # The event that begins an arrow must precede the event that ends it, even at the same time. A
    # call precedes the calls that it encloses; on a device, a command without duration precedes
    # the command that follows it.
    first = -record.end if record.category in CALLS else record.end
    return record.start, bool(slice_.arriving), first


def _launch(record: Record, dispatch_ps: int) -> Record:
    """Returns a record of the time that the host took to issue a command."""
    start, end = host_interval(record, dispatch_ps)
    return Record(record.name, "host", record.rank, HOST_TRACK, end, start, end, record.site)


def _spread(slices: Sequence[Slice]) -> list[Lane]:
    """Gives each slice the first lane of its track that has room; returns the lanes in order."""
    tracks: dict[tuple[int, str], list[Lane]] = {}
    for slice_ in slices:
        record = slice_.record
        lanes = tracks.setdefault((record.rank, record.track), [])
        slice_.lane = next((lane for lane in lanes if lane.take(record)), None)
        if slice_.lane is None:
            slice_.lane = Lane(record.rank, record.track, len(lanes))
            slice_.lane.take(record)
            lanes.append(slice_.lane)
    return sorted((lane for lanes in tracks.values() for lane in lanes), key=Lane.place)
