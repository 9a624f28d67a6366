"""The picture of a sweep as a file, by matplotlib, which is an extra: `kernbench[plot]`.

Equal records give equal files, byte for byte, with one version of matplotlib: no file holds a date,
and the settings of the user's own are not read.
"""

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

from kernbench.errors import UsageError
from kernbench.report.colours import LIGHT
from kernbench.report.files import check_writable, replacing_bytes
from kernbench.report.placing import apart
from kernbench.sweeps.plots import Line, Picture, Value, picture_of
from kernbench.sweeps.records import Record
from kernbench.units import TIME_UNITS, format_bytes

FORMATS: Final = (".png", ".svg", ".pdf")
"""Ends of the names of files that can be written."""

_DECADES: Final = 10
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""

_MOST_TICKS: Final = 12
"""Most values of the horizontal axis that are each written below it."""

COLOURS: Final = LIGHT
MARKERS: Final = "osD^vPX"
_DASHES: Final = ("-", "--", ":", "-.")
_DASHES_SHOWN: Final = {"-": "──", "--": "╶╶", ":": "···", "-.": "╶·"}

_MOST_LABELS: Final = 14
"""Most lines that have their names at their ends; more have a legend."""

_GAP: Final = 0.055
"""Least distance of two names, as a share of the height."""

SETTINGS: Final = {
    "figure.facecolor": "white",
    "figure.figsize": (8.0, 4.8),
    "savefig.dpi": 150,
    "svg.hashsalt": "kernbench",
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "legend.title_fontsize": 9.0,
}

# What matplotlib would write by itself: the time, and its version.
_METADATA: Final[dict[str, dict[str, Any]]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A picture that a sweep leaves.

    Attributes:
        path: The file; its end says the format, one of `FORMATS`.
        x: Column of the horizontal axis; None for sizes, or else the first number that varies.
        y: Column of the vertical axis; None for the bus bandwidth over sizes, else a time.
        hue: Column whose values each have a line; None for all that varies besides.
    """

    path: Path
    x: str | None = None
    y: str | None = None
    hue: str | None = None

    def check(self) -> None:
        """Finds out, before anything runs, whether the picture can be written.

        Raises:
            UsageError: If the name has no end of `FORMATS`, matplotlib is not installed, or the
                file cannot be written (F15).
        """
        check_picture(self.path)

    def write(self, records: Callable[[], Iterable[Record]]) -> None:
        """Draws records and writes the picture.

        Args:
            records: Returns the records; called twice.

        Raises:
            UsageError: If there is no such column, nothing can be drawn, or the file cannot be
                written (F15).
        """
        picture = picture_of(records, x=self.x, y=self.y, hue=self.hue)
        content = drawn(picture, self.path.suffix.lower())
        with replacing_bytes(self.path) as file:
            file.write(content)


def check_picture(path: Path) -> None:
    """Finds out, before anything runs, whether a picture can be written.

    Args:
        path: The file.

    Raises:
        UsageError: As of `Plot.check`.
    """
    if path.suffix.lower() not in FORMATS:
        ends = ", ".join(FORMATS)
        raise UsageError(f"--plot {path}: expected a name that ends in one of {ends}")
    if find_spec("matplotlib") is None:
        raise UsageError(
            "--plot needs matplotlib, which is not installed",
            hint="pip install matplotlib",
        )
    check_writable(path)


def plot_of(path: Path | None, x: str | None, y: str | None, hue: str | None) -> Plot | None:
    """Returns the picture that a sweep leaves; None if there is no file.

    Args:
        path: The file; None for no picture.
        x: See `Plot`.
        y: See `Plot`.
        hue: See `Plot`.

    Raises:
        UsageError: If there is no file, and yet a column.
    """
    for name, column in {"x": x, "y": y, "hue": hue}.items():
        if path is None and column is not None:
            raise UsageError(
                f"--{name} {column}: there is no picture", hint="--plot FILE draws one"
            )
    return None if path is None else Plot(path=path, x=x, y=y, hue=hue)


def drawn(picture: Picture, suffix: str) -> bytes:
    """Returns the content of a picture's file.

    Args:
        picture: What it shows.
        suffix: Its format, one of `FORMATS`.
    """
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context(["default", SETTINGS]):
        figure = Figure(layout="constrained")
        axes = figure.add_subplot()
        # Texts stand at whole numbers, from left to right.
        places = {x: n for n, x in enumerate(picture.xs)} if _are_texts(picture.xs) else {}
        styles = styles_of(picture.lines)
        for number, line in enumerate(picture.lines):
            _draw_line(axes, line, styles[number], number, len(picture.lines), places)
        _scale_x(axes, picture, places)
        _scale_y(axes, picture)
        _draw_bounds(axes, picture)
        axes.set_title(picture.title, loc="left", fontweight="bold")
        title = ", ".join(map(_shown, picture.choice.hue))
        if picture.choice.hue and not places and len(picture.lines) <= _MOST_LABELS:
            _label_ends(axes, picture.lines, styles, title)
        elif picture.choice.hue:
            axes.legend(
                title=title, alignment="left", loc="center left", bbox_to_anchor=(1.01, 0.5)
            )
        caption = f"{picture.caption}; times are simulated"
        figure.supxlabel(caption, x=0.01, ha="left", fontsize=8, color="#666666")
        return content_of(figure, suffix)


def content_of(figure: Any, suffix: str) -> bytes:
    """Returns a figure of matplotlib as the content of a file, without date and version.

    Args:
        figure: What matplotlib has drawn on.
        suffix: Its format, one of `FORMATS`.
    """
    content = io.BytesIO()
    figure.savefig(content, format=suffix[1:], metadata=_METADATA[suffix])
    return content.getvalue()


def _are_texts(xs: Sequence[Value]) -> bool:
    return any(isinstance(x, str) for x in xs)


class Style(NamedTuple):
    """How a line looks.

    Attributes:
        colour: Its colour.
        dash: Its pattern, as matplotlib writes it.
    """

    colour: str
    dash: str


def styles_of(lines: Sequence[Line]) -> list[Style]:
    """Returns how lines look: the first factor is colour, the others are dash.

    Where lines differ in one factor, or the factors have more values than there are colours or
    dashes, lines differ in colour as long as there are colours.
    """
    first = list(dict.fromkeys(line.values[:1] for line in lines))
    rest = list(dict.fromkeys(line.values[1:] for line in lines))
    if 1 < len(rest) <= len(_DASHES) and 1 < len(first) <= len(COLOURS):
        return [
            Style(COLOURS[first.index(line.values[:1])], _DASHES[rest.index(line.values[1:])])
            for line in lines
        ]
    return [
        Style(COLOURS[number % len(COLOURS)], _DASHES[number // len(COLOURS) % len(_DASHES)])
        for number in range(len(lines))
    ]


def _label_ends(axes: Any, lines: Sequence[Line], styles: Sequence[Style], title: str) -> None:
    """Writes beside the end of each line which it is, in its colour."""
    low, high = axes.get_ylim()
    scale = axes.yaxis.get_transform().transform
    bottom, top = scale(low), scale(high)
    ends = [float((scale(line.ys[-1]) - bottom) / (top - bottom)) for line in lines]
    axes.set_ylim(low, high)
    dashed = len({style.dash for style in styles}) > 1
    for line, style, place in zip(lines, styles, apart(ends, _GAP), strict=True):
        mark = f"{_DASHES_SHOWN[style.dash]} " if dashed else ""
        axes.text(
            1.02, place, f"{mark}{line.label}", color=style.colour, transform=axes.transAxes,
            va="center", fontsize=9,
        )  # fmt: skip
    axes.text(1.02, 1.04, title, transform=axes.transAxes, fontsize=9, color="#666666")


def _draw_line(
    axes: Any, line: Line, style: Style, number: int, of: int, places: dict[Value, int]
) -> None:
    colour = style.colour
    if places:
        width = min(0.8 / of, 0.5)
        xs = [places[x] + (number + 0.5 - of / 2) * width for x in line.xs]
        axes.bar(xs, line.ys, width, label=line.label, color=colour, edgecolor="white")
        if line.least != line.most:
            axes.vlines(xs, line.least, line.most, color="#333333", linewidth=1)
        return
    axes.plot(
        line.xs,
        line.ys,
        label=line.label,
        color=colour,
        marker=MARKERS[number % len(MARKERS)],
        # Each second one is larger and lies lower, so that equal lines are seen.
        markersize=5 + 2 * (number % 2),
        linestyle=style.dash,
        clip_on=False,
        zorder=3 + of - number,
    )
    if line.least != line.most:
        axes.fill_between(line.xs, line.least, line.most, color=colour, alpha=0.15, linewidth=0)


def _scale_x(axes: Any, picture: Picture, places: dict[Value, int]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    label = _labelled(picture.choice.x, picture.x_unit)
    # The values below the axis have units of their own.
    axes.set_xlabel(label.removesuffix(" (B)"))
    if places:
        axes.set_xticks(list(places.values()), [_short(str(x)) for x in picture.xs])
        axes.set_xlim(-0.6, len(places) - 0.4)
        axes.grid(visible=False, axis="x")
        if max(len(str(x)) for x in picture.xs) * len(places) > 80:
            axes.tick_params(axis="x", rotation=30)
        return
    xs = [float(x) for x in picture.xs]
    logarithmic = _spans_decades(xs) or (
        picture.x_unit == "B" and len(xs) > 2 and all(map(_is_power_of_two, xs))
    )
    if logarithmic:
        axes.set_xscale("log", base=2 if all(map(_is_power_of_two, xs)) else 10)
        axes.xaxis.set_minor_locator(NullLocator())
    written = xs if len(xs) <= _MOST_TICKS else xs[:: -(-len(xs) // _MOST_TICKS)]
    if logarithmic or len(xs) <= _MOST_TICKS:
        axes.xaxis.set_major_locator(FixedLocator(written))
    form = _bytes if picture.x_unit == "B" else _number
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: form(x)))


def _scale_y(axes: Any, picture: Picture) -> None:
    from matplotlib.ticker import FuncFormatter

    axes.set_ylabel(_labelled(picture.choice.y, picture.y_unit))
    least = min(min(line.least) for line in picture.lines)
    most = max(
        max(each) for each in (*(line.most for line in picture.lines), picture.bounds) if each
    )
    if _spans_decades([least, most]):
        axes.set_yscale("log")
    elif least >= 0 and most > 0:
        axes.set_ylim(0, 1.05 * most)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _number(y)))


def _draw_bounds(axes: Any, picture: Picture) -> None:
    """Draws what links allow, grey and dotted, with its value above it."""
    for bound in picture.bounds:
        axes.axhline(bound, color="#666666", linestyle=(0, (1, 2)), linewidth=1.2)
        axes.annotate(
            f"bound of the links: {bound:.4g} {picture.y_unit}",
            (0, bound), (4, 2), xycoords=("axes fraction", "data"), textcoords="offset points",
            color="#666666", fontsize=8,
        )  # fmt: skip


def _spans_decades(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) >= _DECADES


def _is_power_of_two(value: float) -> bool:
    return value >= 1 and value == int(value) and int(value).bit_count() == 1


def _number(value: float) -> str:
    return f"{value:,.6g}" if 1e-4 <= abs(value) < 1e7 or not value else f"{value:.6g}"


def _bytes(value: float) -> str:
    return format_bytes(round(value))


def _short(text: str) -> str:
    return text if len(text) <= 24 else f"{text[:21]}..."


def _labelled(column: str, unit: str) -> str:
    """Returns the text at an axis: a column, and the unit in place of what its name says of it."""
    if not unit:
        return _shown(column)
    stem, _, last = column.rpartition(".")
    if last in TIME_UNITS:
        stem, last = "", stem or "time"
    for end in _UNITS:
        last = last.removesuffix(end)
    return f"{_shown(f'{stem}.{last}' if stem else last)} ({unit})"


_UNITS: Final = ("_gb_per_s", "_per_s", "_bytes", *(f"_{unit}" for unit in TIME_UNITS))


def _shown(column: str) -> str:
    """Returns a column as people read it: `out_of_place.time` as `time, out of place`."""
    if column.startswith(("system.", "defaults.", "algorithms.", "-")):
        return column
    stem, _, last = column.rpartition(".")
    parts = [last, *([stem] if stem else [])]
    return ", ".join(parts).replace("_", " ")
