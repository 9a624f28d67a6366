"""Charts of where the time went: by rank, by range of the program, and by run of a sweep."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from kernbench.pages.page import Bar, Bars, Cell, Fold, Note, Part, Table, left_out, time_cell
from kernbench.report import RangeBreakdown, RankBreakdown, mean_of_ranks, range_breakdown
from kernbench.report.ranges import OUTSIDE, looks_through
from kernbench.sim_engine.op_log import OpLog
from kernbench.units import format_time

KINDS: Final = ("compute", "exposed communication", "copy", "idle")
_MOST_BARS: Final = 64
_OPEN_BARS: Final = 16
_MOST_RANGES: Final = 40


def rank_charts(rows: Sequence[RankBreakdown]) -> list[Part]:
    """Returns the bars of all ranks and their figures."""
    if not rows:
        return []
    bars = [Bar(_rank(row.rank), _parts_of(row), row.host_ps) for row in rows[:_MOST_BARS]]
    columns = ("rank", *KINDS, "(communication)", "(host)", "(exposed host)")
    table = [
        [
            Cell(_rank(row.rank), row.rank),
            *(
                _share(ps, row.span_ps)
                for ps in (
                    *_parts_of(row),
                    row.communication_ps,
                    row.host_ps,
                    row.exposed_host_ps,
                )
            ),
        ]
        for row in rows[:_MOST_BARS]
    ]
    of = format_time(rows[0].span_ps)
    each: list[Part] = [
        Bars(f"Each rank, of {of}", KINDS, bars, "host"),
        *left_out(len(bars), len(rows), "ranks", "The first"),
    ]
    if len(bars) > _OPEN_BARS:
        mean = mean_bar(f"{len(rows)} ranks", [asdict(row) for row in rows])
        each = [
            Bars(f"Mean of {len(rows)} ranks, of {of}", KINDS, [mean], "host"),
            Fold("Each rank", each),
        ]
    return [
        *each,
        Fold("Figures", [Table(columns, table)]),
        Note(
            "Exposed communication is what no kernel hides. The thin bar is the host, which issues "
            "commands beside its device; it is exposed while the idle device waits for the next "
            "command to be issued. Columns in brackets overlap the others."
        ),
    ]


def _rank(rank: int) -> str:
    return "main" if rank < 0 else f"rank {rank}"


def _parts_of(row: RankBreakdown | RangeBreakdown) -> tuple[int, int, int, int]:
    return row.compute_ps, row.exposed_ps, row.copy_ps, row.idle_ps


def _share(ps: int, whole: int) -> Cell:
    cell = time_cell(ps)
    return Cell(f"{cell.text}, {ps / whole:.0%}", ps) if whole else cell


def range_charts(op_log: OpLog, dispatch_ps: int) -> list[Part]:
    """Returns the bars of the ranges that the program names; nothing if it names none.

    There are two charts, if they differ: one of the outermost ranges, and one of the innermost,
    which are layers in most programs.
    """
    paths = {record.ranges for record in op_log.records if record.category != "range"}
    if not any(paths):
        return []
    outermost = range_breakdown(op_log, dispatch_ps)
    parts = _range_bars("Outermost ranges, mean of ranks", outermost)
    through = containers(paths)
    if through:
        innermost = range_breakdown(op_log, dispatch_ps, through=through)
        parts += _range_bars("Innermost ranges, such as layers, mean of ranks", innermost)
        parts += [Fold("Innermost ranges by rank", _by_rank(innermost))]
    else:
        parts += [Fold("Ranges by rank", _by_rank(outermost))]
    parts.append(
        Note(
            "Every picosecond of a rank is in one range. Idle time counts to the range whose "
            "command the device waits for."
        )
    )
    return parts


def containers(paths: set[tuple[str, ...]]) -> tuple[str, ...]:
    """Returns the names of ranges that hold other ranges, to be looked through.

    A name with which that of an innermost range begins is left out, since a breakdown would look
    through both.
    """
    holding = {name for path in paths for name in path[:-1]}
    leaves = {path[-1] for path in paths if path} - holding
    return tuple(
        sorted(name for name in holding if not any(looks_through(leaf, [name]) for leaf in leaves))
    )


def _range_bars(title: str, rows: Sequence[RangeBreakdown]) -> list[Part]:
    means = mean_of_ranks(rows)
    order = sorted(range(len(means)), key=lambda place: (-means[place].device_ps, place))
    shown = sorted(order[:_MOST_RANGES])
    bars = [
        Bar(_range(means[place].name), _parts_of(means[place]), means[place].host_ps)
        for place in shown
    ]
    return [
        Bars(title, KINDS, bars, "host"),
        *left_out(len(bars), len(means), "ranges", "The longest"),
    ]


def _range(name: str) -> str:
    return "(no range)" if name == OUTSIDE else name


_MOST_ROWS: Final = 400


def _by_rank(rows: Sequence[RangeBreakdown]) -> list[Part]:
    cells = [
        [
            Cell(_rank(row.rank), row.rank),
            Cell(_range(row.name)),
            *map(time_cell, _parts_of(row)),
            time_cell(row.host_ps),
        ]
        for row in rows[:_MOST_ROWS]
    ]
    return [
        Table(("rank", "range", *KINDS, "(host)"), cells),
        *left_out(len(cells), len(rows), "rows", "The first"),
    ]


def mean_bar(label: str, rows: Sequence[Mapping[str, Any]]) -> Bar:
    """Returns the bar of a run of a sweep: the mean over its ranks.

    Args:
        label: What the run is called.
        rows: Breakdowns of ranks as plain values, with the fields of `RankBreakdown`.
    """
    fields = ("compute_ps", "exposed_ps", "copy_ps", "idle_ps", "host_ps")
    *parts, host = (round(sum(int(row[name]) for row in rows) / len(rows)) for name in fields)
    return Bar(label, parts, host)
