"""Charts as SVG that stretches to the window, with their texts beside it as HTML.

Text inside of a picture would shrink with it; beside it, it stays readable in narrow windows.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from kernbench.pages.escaping import cut, escaped
from kernbench.pages.page import COLOURS, DASHES, Bar, Bars, Line, Lines, Strip, Strips
from kernbench.pages.scales import log_place, number_axis, size_axis, time_ticks
from kernbench.report.placing import apart
from kernbench.units import format_bytes, format_time

_WIDTH: Final = 1000
_LABEL: Final = 60
_SHORT_LABEL: Final = 24
_END_LABEL: Final = 34

_MOST_DIRECT: Final = 10
"""Most lines that have their names at their ends."""

_GAP: Final = 0.075
"""Least distance of two of these names, as a share of the height."""


def bars_html(chart: Bars) -> Iterator[str]:
    """Yields the HTML of bars."""
    longest = max((sum(bar.parts) for bar in chart.bars), default=0) or 1
    last = len(chart.kinds) - 1
    long = " long" if any(len(bar.label) > _SHORT_LABEL for bar in chart.bars) else ""
    yield f'<figure class="bars{long}"><figcaption>'
    yield f"{escaped(chart.title)}</figcaption>"
    yield '<p class="legend">'
    for number, kind in enumerate(chart.kinds):
        yield f'<span><i class="k{"r" if number == last else number}"></i>{escaped(kind)}</span>'
    if chart.beside:
        yield f'<span><i class="kh"></i>{escaped(chart.beside)}</span>'
    yield "</p>"
    for bar in chart.bars:
        yield from _bar(bar, chart, longest)
    yield "</figure>"


def _bar(bar: Bar, chart: Bars, longest: int) -> Iterator[str]:
    whole, last = sum(bar.parts), len(chart.kinds) - 1
    label = escaped(cut(bar.label, _LABEL))
    yield f'<div class="row"><span class="label" title="{escaped(bar.label)}">{label}</span>'
    yield f'<svg viewBox="0 0 {_WIDTH} 20" preserveAspectRatio="none" role="img"'
    yield f' aria-label="{escaped(_bar_words(bar, chart))}">'
    before = 0
    for number, (kind, part) in enumerate(zip(chart.kinds, bar.parts, strict=True)):
        start, end = (_WIDTH * ps / longest for ps in (before, before + part))
        before += part
        if part:
            share = f"{part / whole:.1%}"
            yield (
                f'<rect class="k{"r" if number == last else number}" x="{start:.2f}" y="0" '
                f'width="{end - start:.2f}" height="14"><title>'
                f"{escaped(kind)}: {format_time(part)}, {share}</title></rect>"
            )
    if bar.beside:
        width = _WIDTH * min(bar.beside, longest) / longest
        yield (
            f'<rect class="kh" x="0" y="16" width="{width:.2f}" height="4">'
            f"<title>{escaped(chart.beside)}: {format_time(bar.beside)}</title></rect>"
        )
    yield f'</svg><span class="said">{format_time(whole)}</span></div>'


def _bar_words(bar: Bar, chart: Bars) -> str:
    parts = zip(chart.kinds, bar.parts, strict=True)
    return f"{bar.label}: " + ", ".join(f"{kind} {format_time(part)}" for kind, part in parts)


def strips_html(chart: Strips) -> Iterator[str]:
    """Yields the HTML of figures over time."""
    full = format_bytes(chart.full) if chart.unit == "B" else f"{chart.full}%"
    yield f'<figure class="strips"><figcaption>{escaped(chart.title)} '
    yield f'<span class="soft">(full height: {full})</span></figcaption>'
    for strip in chart.strips:
        yield from _strip(strip, chart)
    yield '<div class="row"><span class="label"></span><div class="ticks">'
    for place, label in time_ticks(chart.start, chart.end):
        side = " last" if place > 0.94 else ""
        yield f'<span class="tick{side}" style="left:{100 * place:.2f}%">{label}</span>'
    yield '</div><span class="said"></span></div></figure>'


def _strip(strip: Strip, chart: Strips) -> Iterator[str]:
    label, values = escaped(cut(strip.label, _LABEL)), strip.values
    yield f'<div class="row"><span class="label" title="{escaped(strip.label)}">{label}</span>'
    yield f'<svg viewBox="0 0 {len(values)} 1000" preserveAspectRatio="none" role="img"'
    yield f' data-v="{",".join(map(str, values))}" data-start="{chart.start}"'
    yield f' data-end="{chart.end}" data-full="{chart.full}" data-unit="{chart.unit}">'
    yield f"<title>{escaped(strip.label)}: {escaped(strip.said)}</title>"
    yield f'<path class="area" d="{_steps(values)}"/></svg>'
    yield f'<span class="said">{escaped(strip.said)}</span></div>'


def _steps(values: Sequence[int]) -> str:
    """Returns the path around steps as high as the values; equal neighbours are one step."""
    path = ["M0 1000"]
    height = 0
    for place, value in enumerate(values):
        if value != height:
            path.append(f"H{place}V{1000 - value}")
            height = value
    return "".join([*path, f"H{len(values)}V1000Z"])


def _style(line: Line) -> str:
    return "bound" if line.bound else f"c{line.colour % COLOURS} d{line.dash % DASHES}"


def lines_html(chart: Lines) -> Iterator[str]:
    """Yields the HTML of lines over sizes, or over other numbers."""
    points = [point for line in chart.lines for point in line.points]
    sized = chart.over == "bytes"
    xs, ys = [x for x, _ in points], [y for _, y in points]
    left, right, sizes, across = (*size_axis(xs), log_place) if sized else number_axis(xs)
    low, high, rates, up = number_axis(ys)
    direct = len(chart.lines) <= _MOST_DIRECT
    yield f'<figure class="lines{" direct" if direct else ""}"><figcaption>{escaped(chart.title)} '
    yield f'<span class="soft">({escaped(chart.unit)} over {escaped(chart.over)}'
    yield f"{_scales_in_words(across is log_place, up is log_place)})</span></figcaption>"
    yield '<div class="plot"><svg viewBox="0 0 1000 1000" preserveAspectRatio="none" role="img"'
    yield f' aria-label="{escaped(chart.title)}">'
    for value, _ in sizes:
        yield f'<path class="grid" d="M{1000 * across(value, left, right):.1f} 0V1000"/>'
    for value, _ in rates:
        yield f'<path class="grid" d="M0 {1000 - 1000 * up(value, low, high):.1f}H1000"/>'
    ends = []
    for line in chart.lines:
        places = [
            (1000 * across(x, left, right), 1000 - 1000 * up(y, low, high)) for x, y in line.points
        ]
        ends.append(up(line.points[-1][1], low, high))
        style = _style(line)
        way = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        yield f'<path class="line {style}" d="M{way}"><title>{escaped(line.name)}</title></path>'
        if line.bound:
            continue
        for (x, y), (size, rate) in zip(places, line.points, strict=True):
            at = format_bytes(int(size)) if sized else f"{size:.4g} {escaped(chart.over)}"
            yield (
                f'<path class="dot {style}" d="M{x:.1f} {y:.1f}h.01"><title>{escaped(line.name)}: '
                f"{at}, {rate:.4g} {escaped(chart.unit)}</title></path>"
            )
    yield "</svg>"
    for number, (value, label) in enumerate(sizes):
        odd = " odd" if number % 2 else ""
        place = 100 * across(value, left, right)
        yield f'<span class="x{odd}" style="left:{place:.2f}%">{label}</span>'
    for value, label in rates:
        place = 100 * up(value, low, high)
        yield f'<span class="y" style="bottom:{place:.2f}%">{label}</span>'
    if direct:
        for line, place in zip(chart.lines, apart(ends, _GAP), strict=True):
            # The legend says the same to readers who do not see.
            yield f'<span class="end" aria-hidden="true" style="bottom:{100 * place:.2f}%">'
            yield f"{_keyed(line, _END_LABEL)}</span>"
    yield '</div><p class="legend">'
    for line in chart.lines:
        yield f"<span>{_keyed(line, 2 * _LABEL)}</span>"
    yield "</p></figure>"


def _keyed(line: Line, most: int) -> str:
    """Returns a line's name behind a piece of the line."""
    piece = f'<path class="line {_style(line)}" d="M0 4H24"/>'
    return f'<svg class="key" viewBox="0 0 24 8">{piece}</svg>{escaped(cut(line.name, most))}'


def _scales_in_words(across: bool, up: bool) -> str:
    if across and up:
        return ", both logarithmic"
    return ", which is logarithmic" if across else ", logarithmic" if up else ""
