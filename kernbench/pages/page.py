"""What a page shows, as plain values: sections of texts, tables and charts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kernbench.units import format_bytes, format_time


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: What is shown.
        number: What the cell is sorted by; None for text.
        title: What is shown while the mouse is over the cell; empty for nothing.
        code: Whether the text is source code, or a name of a program.
        bad: Whether the cell tells of something that went wrong.
    """

    text: str
    number: float | None = None
    title: str = ""
    code: bool = False
    bad: bool = False


@dataclass(frozen=True, slots=True)
class Note:
    """A paragraph.

    Attributes:
        text: The text.
    """

    text: str


@dataclass(frozen=True, slots=True)
class Code:
    """Text in which every space counts, such as a report or a command.

    Attributes:
        text: The text.
        label: What it is.
    """

    text: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with values.

    Attributes:
        rows: Names and values, in order.
    """

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        columns: Heads of the columns.
        rows: A cell for each column.
        title: What the table shows; empty if the section says it.
        groups: Heads above the columns, each with the number of columns below it; empty for none.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    groups: Sequence[tuple[str, int]] = ()


COLOURS: Final = 8
DASHES: Final = 3
"""Colours that are told apart, also by those who see no difference between red and green."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart.

    Attributes:
        name: What the line is.
        points: Places on both axes, both above 0, ordered by the first.
        colour: Number of its colour, from 0.
        dash: Number of its pattern, from 0, which is solid.
        bound: Whether it is no figure but what limits figures: it is grey and dotted.
    """

    name: str
    points: Sequence[tuple[float, float]]
    colour: int
    dash: int = 0
    bound: bool = False


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines over sizes in bytes, or over other numbers.

    The axis of sizes is logarithmic, and any other where its values span a decade.

    Attributes:
        title: What the chart shows.
        unit: Unit of the second axis.
        lines: The lines.
        over: Unit of the first axis.
    """

    title: str
    unit: str
    lines: Sequence[Line]
    over: str = "bytes"


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of parts that follow one another.

    Attributes:
        label: What the bar is about.
        parts: Picoseconds of each kind, in the order of the chart's kinds.
        beside: Picoseconds of what runs beside; drawn as a thin bar below. None for nothing.
    """

    label: str
    parts: Sequence[int]
    beside: int | None = None


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars of simulated time, all to one scale.

    Attributes:
        title: What the chart shows.
        kinds: Names of the parts; the last is the rest, which is drawn in grey.
        bars: The bars.
        beside: Name of what runs beside; empty if no bar has it.
    """

    title: str
    kinds: Sequence[str]
    bars: Sequence[Bar]
    beside: str = ""


@dataclass(frozen=True, slots=True)
class Strip:
    """A figure over time.

    Attributes:
        label: What the strip is about.
        values: A figure for each bin of time, in thousandths of the chart's full height.
        said: The figure in words, such as its mean and its peak.
    """

    label: str
    values: Sequence[int]
    said: str


@dataclass(frozen=True, slots=True)
class Strips:
    """Figures over simulated time, one below the other, all to one scale.

    Attributes:
        title: What the chart shows.
        start: Begin of the first bin, in picoseconds.
        end: End of the last bin, in picoseconds.
        full: What the full height stands for, in `unit`.
        unit: `%`, or `B` for bytes.
        strips: The strips.
    """

    title: str
    start: int
    end: int
    full: int
    unit: str
    strips: Sequence[Strip]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure in large letters.

    Attributes:
        label: What it is.
        value: The figure.
        said: What it means, in a few words.
    """

    label: str
    value: str
    said: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a page says first.

    Attributes:
        sentence: The verdict.
        figures: What it stands on.
    """

    sentence: str
    figures: Sequence[Figure]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Lanes of commands and calls over simulated time, to zoom and to search.

    Attributes:
        data: What the script of the page draws: JSON, deflated, in base64 for URLs.
        engines: Whether it has lanes of engines, which are shown on demand.
    """

    data: str
    engines: bool = False


@dataclass(frozen=True, slots=True)
class Fold:
    """Parts that are shown when the reader opens them.

    Attributes:
        title: What they show.
        parts: The parts.
        open: Whether they are shown from the beginning.
    """

    title: str
    parts: "Sequence[Part]"
    open: bool = False


Part = Note | Code | Facts | Table | Lines | Bars | Strips | Fold | Verdict | Timeline
"""A part of a section."""


@dataclass(frozen=True, slots=True)
class Section:
    """A section with a title.

    Attributes:
        title: The title.
        parts: What it shows, in order.
    """

    title: str
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class Page:
    """A whole page.

    Attributes:
        title: The title.
        facts: Short texts below the title, such as the machine.
        sections: The sections, in order.
        failed: What has failed, such as `2 of 7 failed`; empty if nothing has.
    """

    title: str
    facts: Sequence[str]
    sections: Sequence[Section]
    failed: str = ""


def time_cell(ps: int) -> Cell:
    """Returns a cell with a simulated time in picoseconds."""
    return Cell(format_time(ps) if ps else "0", ps)


def bytes_cell(nbytes: int) -> Cell:
    """Returns a cell with a number of bytes."""
    return Cell(format_bytes(nbytes), nbytes, title=f"{nbytes} B")


def number_cell(value: float | None) -> Cell:
    """Returns a cell with a number; a dash stands for None."""
    if value is None:
        return Cell("-")
    return Cell(str(value) if isinstance(value, int) else f"{value:.4g}", value)


def left_out(shown: int, of: int, what: str, which: str) -> list[Part]:
    """Returns a note that says what a page leaves out; nothing if it leaves out nothing.

    Args:
        shown: How many are shown.
        of: How many there are.
        what: What they are.
        which: Which of them are shown, such as `the first`.
    """
    return [Note(f"{which} {shown} of {of} {what} are shown.")] if shown < of else []
