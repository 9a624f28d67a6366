"""Records in an order, and with numbers, that depend only on what happened.

The log holds records in the order in which they were settled and flows in the order in which they
were opened. Both depend on the order of set-up, and what a user sees must not.
"""

import json
import operator
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from kernbench.errors import CallSite, UsageError
from kernbench.sim_engine.op_log import OpLog, Record

_ENGINE: Final = re.compile(r"pe\d+\.|dma\d*\.")


@dataclass(frozen=True, slots=True)
class Entry:
    """A record in its place.

    Attributes:
        record: The record.
        arrow: Number of the arrow that joins a send with its receive, in the order of the sends; 0
            if the log does not hold exactly one of each.
    """

    record: Record
    arrow: int


def full_records(op_log: OpLog, what: str) -> Sequence[Record]:
    """Returns all records of a log.

    Args:
        what: What needs the records, such as `a trace`; for the error.

    Raises:
        UsageError: If the log was not asked to keep its records.
    """
    if not op_log.full:
        raise UsageError(
            f"{what} needs every record, but this run kept record={op_log.detail!r}",
            hint="run with record='full'",
        )
    return op_log.records


def is_engine(track: str) -> bool:
    """Returns whether a track is an engine, whose records are parts of a stream's commands."""
    return _ENGINE.match(track) is not None


def plain(value: object) -> int | str:
    """Returns a value that JSON can hold for one that it cannot: an int if it is one, else text."""
    try:
        return operator.index(value)  # type: ignore[arg-type]  # numpy's integers
    except TypeError:
        return str(value)


class Sites:
    """Texts of call sites; each is resolved once, since that is the slowest part of a record."""

    def __init__(self) -> None:
        # The key is the identity of the code, which records keep alive: equal code objects may
        # come from two files.
        self._lines: dict[tuple[int, int], int] = {}

    def full(self, site: CallSite) -> str:
        """Returns `folder/file.py:12`."""
        return f"{site.file}:{self._line(site)}"

    def short(self, site: CallSite | None) -> str:
        """Returns `file.py:12`, since folders differ between machines; empty for no site."""
        return f"{os.path.basename(site.file)}:{self._line(site)}" if site is not None else ""

    def _line(self, site: CallSite) -> int:
        key = id(site.code), site.lasti
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = site.line
        return line


def in_order(records: Collection[Record]) -> list[Entry]:
    """Returns the records by start, end, rank, track and name; then by their other fields."""
    ends: dict[int, list[Record]] = {}
    for record in records:
        if record.flow:
            ends.setdefault(record.flow, []).append(record)
    # If one end of a flow was not logged, an arrow has nothing to point at.
    receives = {
        pair[0].flow: next(end for end in pair if end.category == "recv")
        for pair in ends.values()
        if sorted(end.category for end in pair) == ["recv", "send"]
    }
    sends = [r for r in records if r.category == "send" and r.flow in receives]

    sites = Sites()

    def rest(record: Record) -> tuple[str, int, str, str]:
        args = json.dumps(record.args, sort_keys=True, default=plain)
        return record.category, record.issued, sites.short(record.site), args

    def with_receive(send: Record) -> tuple[Any, ...]:
        receive = receives[send.flow]
        return rest(send), _place(receive), rest(receive)

    # Sends that are equal in all these fields have equal receives: their order does not matter, as
    # long as their receives come in the same order.
    numbers = {send.flow: n for n, send in enumerate(_settled(sends, with_receive), 1)}
    settled = _settled(records, lambda record: (rest(record), numbers.get(record.flow, 0)))
    return [Entry(record, numbers.get(record.flow, 0)) for record in settled]


def _settled(
    records: Iterable[Record], rest: Callable[[Record], tuple[Any, ...]]
) -> Iterator[Record]:
    """Yields records by place; the costly `rest` is called only where places are equal."""
    for _, group in groupby(sorted(records, key=_place), key=_place):
        same = list(group)
        yield from sorted(same, key=rest) if len(same) > 1 else same


def _place(record: Record) -> tuple[int, int, int, str, str]:
    return record.start, record.end, record.rank, record.track, record.name
