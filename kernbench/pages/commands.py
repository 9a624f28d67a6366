"""The commands that took most simulated time, by name and by line of the user's source."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kernbench.errors import CallSite
from kernbench.pages.page import Cell, Part, Table, left_out, number_cell, time_cell
from kernbench.report.records import Sites, is_engine
from kernbench.sim_engine.op_log import Record

_MOST: Final = 25
_NO_COMMANDS: Final = ("range", "host", "event")


@dataclass(slots=True)
class Commands:
    """The commands of one name that one line issued.

    Attributes:
        name: The name.
        category: Kind of work.
        site: The line; None if no line of the user asked for them.
        count: Their number, over all ranks.
        total_ps: Sum of their durations, over all ranks.
        max_ps: The longest duration.
        rank: The lowest rank whose command took that long.
    """

    name: str
    category: str
    site: CallSite | None
    count: int = 0
    total_ps: int = 0
    max_ps: int = -1
    rank: int = 0


def by_line(records: Iterable[Record]) -> list[Commands]:
    """Returns the commands of streams by name and line, those that took longest in sum first."""
    found: dict[tuple[str, str, int, int], Commands] = {}
    for record in records:
        if record.category in _NO_COMMANDS or is_engine(record.track):
            continue
        site = record.site
        place = (0, 0) if site is None else (id(site.code), site.lasti)
        key = (record.name, record.category, *place)
        commands = found.get(key)
        if commands is None:
            commands = found[key] = Commands(record.name, record.category, site)
        took = record.end - record.start
        commands.count += 1
        commands.total_ps += took
        if took > commands.max_ps or (took == commands.max_ps and record.rank < commands.rank):
            commands.max_ps, commands.rank = took, record.rank
    sites = Sites()
    # Several instructions of one line, and several compilations of one function, are one row.
    merged: dict[tuple[str, str, str], Commands] = {}
    for commands in found.values():
        where = "" if commands.site is None else sites.full(commands.site)
        first = merged.setdefault((commands.name, commands.category, where), commands)
        if first is not commands:
            first.count += commands.count
            first.total_ps += commands.total_ps
            first.max_ps, first.rank = min(
                (first.max_ps, first.rank),
                (commands.max_ps, commands.rank),
                key=lambda longest: (-longest[0], longest[1]),
            )
    return sorted(
        merged.values(),
        key=lambda row: (
            -row.total_ps,
            row.name,
            row.category,
            sites.short(row.site),
            _source(row),
            (-row.max_ps, row.rank, row.count),
        ),
    )


def _source(row: Commands) -> str:
    return "" if row.site is None else row.site.source


def command_table(records: Iterable[Record]) -> list[Part]:
    """Returns a table of the commands that took longest in sum; nothing if there are none."""
    rows, sites = by_line(records), Sites()
    if not rows:
        return []
    whole = sum(row.total_ps for row in rows)
    shown = []
    for row in rows[:_MOST]:
        share = row.total_ps / whole if whole else 0.0
        shown.append(
            [
                Cell(row.name, code=True),
                Cell(row.category),
                number_cell(row.count),
                time_cell(row.total_ps),
                Cell(f"{share:.1%}", share),
                time_cell(row.max_ps),
                Cell("main" if row.rank < 0 else str(row.rank), row.rank),
                Cell(sites.short(row.site), code=True),
                Cell(_source(row), code=True),
            ]
        )
    columns = ("command", "kind", "count", "total", "share", "longest", "on rank", "line", "source")
    return [
        Table(columns, shown),
        *left_out(len(shown), len(rows), "lines", "The slowest"),
    ]
