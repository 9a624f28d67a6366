"""An explanation as lines of text, at most 100 columns wide."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Final

from kernbench.report.explanation import MOST, MUCH, Explanation, Row
from kernbench.report.nearness import Near
from kernbench.units import format_time

WIDTH: Final = 100
"""Most columns of a line of the table."""

COLUMNS: Final = ("kernel", "calls", "total", "share", "bound", "roof", "priced by", "measured")
"""Heads of the table."""

NOTE: Final = (
    "total, share: of the devices' time. bound host/X: devices waited for their hosts longer than "
    "the calls took, which X bounds. roof: how much of X's full rate was reached. priced by: key "
    "of the machine's file; +1: one more. measured: table of a real host that judges it, and the "
    "mean error there, if known."
)
"""What the columns of the table mean."""

_LEFT: Final = frozenset((0, 4, 6, 7))
"""Columns whose texts begin below each other."""

_NAME, _LAW = 0, 6
_GAP: Final = "  "
_LEFT_OUT: Final = "..."
_LEAST: Final = 16
"""Characters that are left of a name, however wide the other columns are."""


def explanation_lines(told: Explanation) -> list[str]:
    """Returns the verdict, where the time went, the kernels that take most, and what is unpriced.

    Args:
        told: The explanation.
    """
    lines = [told.verdict]
    if told.spent:
        whole = spent_text(told).replace(" ", "\0").replace(",\0", ", ")  # a name and its share
        lines += [line.replace("\0", " ") for line in _wrapped(f"time of the ranks: {whole}")]
    if told.rows:
        lines += ["", *_table(told.rows[:MOST])]
        if len(told.rows) > MOST:
            lines.append(f"... and {len(told.rows) - MOST} more")
        lines += ["", *_wrapped(NOTE), *programs_lines(told.rows[:MOST])]
    return [*lines, *_wrapped(by_bytes_text(told.by_bytes, told.device_ps))]


def programs_lines(rows: Iterable[Row]) -> list[str]:
    """Returns how the programs of kernels share the PEs, each in its longest launch."""
    found = [
        line for row in rows if row.programs for line in _wrapped(f"{row.name}: {row.programs}")
    ]
    return ["", *found] if found else []


def spent_text(told: Explanation) -> str:
    """Returns what the ranks' time was spent on, the longest first: `host 63.3%, link 13.5%`."""
    order = sorted(told.spent, key=lambda each: (-told.spent[each], each))
    return ", ".join(f"{each} {told.share(each):.1%}" for each in order)


def by_bytes_text(by_bytes: Mapping[str, int], device_ps: int) -> str:
    """Returns which operations have no price and were timed by their bytes, with their shares.

    Args:
        by_bytes: Picoseconds by operation.
        device_ps: What the devices were busy for.
    """
    if not by_bytes or not device_ps:
        return "timed by bytes alone: nothing"
    order = sorted(by_bytes, key=lambda each: (-by_bytes[each], each))
    named = ", ".join(f"{each} {by_bytes[each] / device_ps:.1%}" for each in order[:MOST])
    more = f", and {len(order) - MOST} more" if len(order) > MOST else ""
    whole = sum(by_bytes.values()) / device_ps
    return f"timed by bytes alone: {whole:.1%} of the devices' time: {named}{more}"


def much_by_bytes(by_bytes: Mapping[str, int], device_ps: int) -> str:
    """Returns what a run says that was timed by bytes alone for more than `MUCH`; else nothing.

    Args:
        by_bytes: Picoseconds by operation.
        device_ps: What the devices were busy for.
    """
    share = sum(by_bytes.values()) / device_ps if device_ps else 0.0
    if share <= MUCH:
        return ""
    return (
        f"{share:.1%} of the devices' time is that of operations without a price, timed by bytes "
        "alone: it may be far from a real host's"
    )


def bound_text(row: Row) -> str:
    """Returns what bounds a row: `HBM`, or `host/HBM` if devices waited for its host longer."""
    return f"host/{row.bound}" if row.waits_for_host else row.bound


def roof_text(row: Row) -> str:
    """Returns how much of the bound's full rate was reached; a dash where it has none."""
    return "-" if row.achieved is None else f"{row.achieved:.0%}"


def law_text(row: Row) -> str:
    """Returns by which law a row was priced, such as `kernels.softmax+1`; a dash for none."""
    return f"{row.law or '-'}{f'+{row.others}' if row.others else ''}"


def near_text(near: Near) -> str:
    """Returns by which tables a law was judged, and its mean error, such as `rowops2 13%`."""
    if not near.tables:
        return "not measured"
    first, *more = near.tables
    error = "" if near.error is None else f" {near.error:.0%}"
    return f"{first}{f'+{len(more)}' if more else ''}{error}"


def _table(rows: Sequence[Row]) -> Iterator[str]:
    cells = [list(COLUMNS), *map(_texts, rows)]
    for column, usual in ((_NAME, "aten::"), (_LAW, "kernels.")):
        if _over(cells) > 0:
            for line in cells:
                line[column] = line[column].removeprefix(usual)
    for column in (_NAME, _LAW):
        width = max(_LEAST, max(len(line[column]) for line in cells) - max(_over(cells), 0))
        for line in cells:
            line[column] = _cut(line[column], width)
    widths = _widths(cells)
    for line in cells:
        texts = [
            text.ljust(width) if place in _LEFT else text.rjust(width)
            for place, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield _GAP.join(texts).rstrip()


def _texts(row: Row) -> list[str]:
    return [
        row.name,
        str(row.calls),
        format_time(row.total_ps),
        f"{row.share:.0%}",
        bound_text(row),
        roof_text(row),
        law_text(row),
        near_text(row.near),
    ]


def _widths(cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*cells, strict=True)]


def _over(cells: Sequence[Sequence[str]]) -> int:
    """Returns by how many characters the table is too wide."""
    return sum(_widths(cells)) + len(_GAP) * (len(COLUMNS) - 1) - WIDTH


def _cut(text: str, width: int) -> str:
    """Returns a text without its middle: both ends tell names of kernels apart."""
    if len(text) <= width:
        return text
    end = (width - len(_LEFT_OUT)) // 2
    return text[: width - len(_LEFT_OUT) - end] + _LEFT_OUT + text[-end:]


def _wrapped(text: str) -> list[str]:
    return wrap(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
