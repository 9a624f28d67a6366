"""A run as a timeline in the page: lanes of hosts, streams and engines, and the ranks' messages."""

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any, Final

from kernbench.pages.page import Note, Part, Timeline
from kernbench.pages.usage import Ranks
from kernbench.report.breakdown import COMMUNICATION, COMPUTE
from kernbench.report.intervals import Interval
from kernbench.report.lanes import HOST_TRACK, Lane, Slice, laid_out
from kernbench.report.records import Sites, is_engine
from kernbench.sim_engine.op_log import Record

MOST_SLICES: Final = 250_000
"""Most commands and calls of a timeline, the first ones."""

MOST_PARTS: Final = 50_000
"""Most slices of engines, which show the parts of commands, the first ones."""

MOST_MESSAGES: Final = 20_000
"""Most messages of a timeline, the first ones."""

KINDS: Final = ("compute", "communication", "copy", "wait", "host", "range")
"""What a slice is; the page's script knows them by their places."""


def timeline_parts(
    records: Sequence[Record], ranks: Ranks, span: Interval, partial: bool = False
) -> list[Part]:
    """Returns the timeline of a run, with what it leaves out; nothing if it would be empty.

    Args:
        records: Records of the run.
        ranks: What is known of the ranks beside the log.
        span: First and last moment, in picoseconds.
        partial: Whether the log has dropped later records.
    """
    of_engines = [is_engine(record.track) for record in records]
    shown = [record for record, engine in zip(records, of_engines, strict=True) if not engine]
    slices, lanes = laid_out(shown, ranks.dispatch_ps)
    if not slices:
        return []
    engines, their_lanes = laid_out([*compress(records, of_engines)], 0)
    messages = _messages(records)
    kept, kept_parts = slices[:MOST_SLICES], engines[:MOST_PARTS]
    cut = partial or len(kept) < len(slices)
    all_lanes = sorted([*lanes, *their_lanes], key=Lane.place)
    drawn = messages[:MOST_MESSAGES]
    data = _Writer(ranks).written([*kept, *kept_parts], all_lanes, drawn, span, cut)
    parts: list[Part] = [Timeline(_packed(data), engines=bool(engines))]
    for most, all_of, what in (
        (len(kept), len(slices), "commands and calls"),
        (len(kept_parts), len(engines), "parts of commands on engines"),
        (len(drawn), len(messages), "messages"),
    ):
        if most < all_of:
            parts.append(Note(f"The first {most} of {all_of} {what} are drawn; --trace has all."))
    return parts


def _messages(records: Sequence[Record]) -> list[tuple[int, int, int, int, int]]:
    """Returns start, end, sender, receiver and bytes of all messages, in order."""
    receives = {r.flow: r for r in records if r.flow and r.category == "recv"}
    return sorted(
        (
            send.start,
            max(send.end, receives[send.flow].end),
            send.rank,
            receives[send.flow].rank,
            int(send.args.get("bytes", 0)),
        )
        for send in records
        if send.category == "send" and send.flow in receives
    )


def _packed(data: Mapping[str, Any]) -> str:
    """Returns data as JSON, deflated, in letters that mean nothing in HTML."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    return base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode()


class _Writer:
    """Turns slices into columns of numbers; names and lines are written once.

    Args:
        ranks: What is known of the ranks beside the log.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._names: dict[tuple[str, int, str, str], int] = {}
        self._sites = Sites()
        self._known: dict[tuple[str, str, int, int], int] = {}

    def written(
        self,
        slices: Sequence[Slice],
        lanes: Sequence[Lane],
        messages: Sequence[tuple[int, int, int, int, int]],
        span: Interval,
        cut: bool,
    ) -> dict[str, Any]:
        """Returns the columns of a timeline.

        Starts are differences to the start before, on the same lane; times are in picoseconds.

        Args:
            slices: Commands, calls and what engines did, on each lane in order.
            lanes: The lanes that they are on.
            messages: Start, end, sender, receiver and bytes of each message, in order.
            span: First and last moment.
            cut: Whether later slices are missing, so that ranks which did the same end apart.
        """
        columns: dict[Lane, tuple[list[int], list[int], list[int]]] = {
            lane: ([], [], []) for lane in lanes
        }
        last = dict.fromkeys(lanes, span[0])
        for each in slices:
            record, lane = each.record, each.lane
            assert lane is not None
            starts, lasting, kinds = columns[lane]
            starts.append(record.start - last[lane])
            last[lane] = record.start
            lasting.append(record.end - record.start)
            kinds.append(self._number(record))
        first: dict[tuple[int, ...], int] = {}
        rows = []
        for number, lane in enumerate(lanes):
            starts, lasting, kinds = columns[lane]
            same = first.setdefault(tuple(kinds), number)
            rows.append(
                {
                    "r": lane.rank,
                    "n": lane.name,
                    "h": int(lane.track == HOST_TRACK),
                    "e": int(is_engine(lane.track)),
                    "s": starts,
                    "d": lasting,
                    "k": kinds if same == number else same,
                }
            )
        before = span[0]
        flat = []
        for start, end, sender, receiver, nbytes in messages:
            flat += [start - before, end - start, sender, receiver, nbytes]
            before = start
        return {
            "start": span[0],
            "end": span[1],
            "names": [list(name) for name in self._names],
            "lanes": rows,
            "alike": _alike(rows, cut),
            "labels": {str(lane.rank): self._ranks.label(lane.rank) for lane in lanes},
            "messages": flat,
        }

    def _number(self, record: Record) -> int:
        site = record.site
        place = (0, 0) if site is None else (id(site.code), site.lasti)
        key = (record.name, record.category, *place)
        number = self._known.get(key)
        if number is None:
            source = "" if site is None else site.source
            name = (record.name, _kind(record), self._sites.short(site), source)
            number = self._known[key] = self._names.setdefault(name, len(self._names))
        return number


def _alike(rows: Sequence[Mapping[str, Any]], cut: bool) -> list[list[int]]:
    """Returns the ranks in groups that did the same, in the same order, on lanes of equal names.

    Lanes of engines do not count: messages to other ranks have other names.

    Args:
        rows: The lanes.
        cut: Whether ranks are alike, too, that did the same until one of them has no more slices.
    """
    done: dict[int, dict[str, Sequence[int]]] = {}
    for row in rows:
        if row["e"]:
            continue
        kinds = row["k"] if isinstance(row["k"], list) else rows[row["k"]]["k"]
        done.setdefault(row["r"], {})[row["n"]] = kinds
    groups: list[list[int]] = []
    for rank in sorted(done):
        for group in groups:
            if _same(done[group[0]], done[rank], cut):
                group.append(rank)
                break
        else:
            groups.append([rank])
    return groups


def _same(one: Mapping[str, Sequence[int]], other: Mapping[str, Sequence[int]], cut: bool) -> bool:
    if not cut:
        return one == other
    for name in one.keys() & other.keys():
        both = min(len(one[name]), len(other[name]))
        if one[name][:both] != other[name][:both]:
            return False
    return True


def _kind(record: Record) -> int:
    if record.category in COMPUTE:
        kind = "compute"
    elif record.category in COMMUNICATION:
        kind = "communication"
    elif record.category in {"copy", "host", "range"}:
        kind = record.category
    else:
        kind = "wait"
    return KINDS.index(kind)
