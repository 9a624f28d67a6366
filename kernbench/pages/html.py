"""A page as one HTML file: it needs no network, no other file, and no script to be read."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kernbench.pages.charts import bars_html, lines_html, strips_html
from kernbench.pages.escaping import LONGEST, cut, escaped
from kernbench.pages.page import (
    Bars,
    Cell,
    Code,
    Facts,
    Fold,
    Lines,
    Note,
    Page,
    Part,
    Section,
    Strips,
    Table,
    Timeline,
    Verdict,
)
from kernbench.pages.timeline_html import timeline_html, verdict_html
from kernbench.report import replacing
from kernbench.report.colours import style_variables

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""Lets a browser refuse all that is not in the file, whatever a name of a user looks like."""

_NO_LETTERS: Final = re.compile(r"[^a-z0-9]+")


def write_page(path: str | Path, page: Page) -> None:
    """Writes a page to a file, which appears when it is complete.

    Args:
        path: The HTML file.
        page: What it shows.

    Raises:
        UsageError: If the path cannot be written (F15).
    """
    with replacing(path) as file:
        for text in page_html(page):
            file.write(text)


def page_html(page: Page) -> Iterator[str]:
    """Yields the HTML of a page; equal pages give equal texts."""
    title = escaped(cut(page.title))
    yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
    yield '<meta name="color-scheme" content="light dark">\n'
    yield f"<title>{title} - kernbench</title>\n<style>\n"
    yield f":root {{ {style_variables(dark=False)} }}\n"
    yield "@media screen and (prefers-color-scheme: dark) "
    yield f"{{ :root {{ {style_variables(dark=True)} }} }}\n"
    yield f"{_file('page.css')}</style></head>\n<body>"
    badge = f'<span class="badge bad">{escaped(page.failed)}</span>' if page.failed else ""
    yield f"<header><h1>{title}{badge}</h1>\n"
    yield f"<p>{' &middot; '.join(escaped(cut(fact)) for fact in page.facts)}</p>\n<nav>"
    for section in page.sections:
        yield f'<a href="#{_anchor(section)}">{escaped(section.title)}</a> '
    yield "</nav></header>\n<main>\n"
    for section in page.sections:
        yield f'<section id="{_anchor(section)}"><h2>{escaped(section.title)}</h2>\n'
        for part in section.parts:
            yield from _part(part)
        yield "</section>\n"
    yield f'</main><div id="tip" hidden></div>\n<script>\n{_file("page.js")}</script>\n'
    if any(isinstance(part, Timeline) for section in page.sections for part in section.parts):
        yield f"<script>\n{_file('timeline.js')}</script>\n"
    yield "</body></html>\n"


def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _anchor(section: Section) -> str:
    return _NO_LETTERS.sub("-", section.title.lower())


def _part(part: Part) -> Iterator[str]:
    match part:
        case Note():
            yield f"<p>{escaped(part.text)}</p>\n"
        case Code():
            if part.label:
                yield f"<p>{escaped(part.label)}</p>\n"
            yield f"<pre>{escaped(part.text)}</pre>\n"
        case Facts():
            yield '<dl class="facts">'
            for name, value in part.rows:
                yield f"<div><dt>{escaped(cut(name))}</dt><dd>{escaped(cut(value))}</dd></div>"
            yield "</dl>\n"
        case Table():
            yield from _table(part)
        case Bars():
            yield from bars_html(part)
        case Strips():
            yield from strips_html(part)
        case Lines():
            yield from lines_html(part)
        case Verdict():
            yield from verdict_html(part)
        case Timeline():
            yield from timeline_html(part)
        case Fold():
            yield f"<details{' open' if part.open else ''}>"
            yield f"<summary>{escaped(cut(part.title))}</summary>\n"
            for inner in part.parts:
                yield from _part(inner)
            yield "</details>\n"


def _table(table: Table) -> Iterator[str]:
    numeric = [
        any(row[place].number is not None for row in table.rows)
        or all(row[place].text == "-" for row in table.rows)
        for place in range(len(table.columns))
    ]
    yield '<div class="wide"><table>'
    if table.title:
        yield f"<caption>{escaped(cut(table.title))}</caption>"
    yield "<thead>"
    if table.groups:
        yield "<tr>"
        for name, width in table.groups:
            tag = "th" if name else "td"
            yield f'<{tag} colspan="{width}" class="group">{escaped(name)}</{tag}>'
        yield "</tr>"
    yield '<tr class="heads">'
    for column, is_number in zip(table.columns, numeric, strict=True):
        side = ' class="n"' if is_number else ""
        yield f'<th scope="col"{side}>{escaped(cut(column))}</th>'
    yield "</tr></thead>\n<tbody>"
    for row in table.rows:
        yield "<tr>"
        for cell, is_number in zip(row, numeric, strict=True):
            yield _cell(cell, is_number)
        yield "</tr>\n"
    yield "</tbody></table></div>\n"


def _cell(cell: Cell, is_number: bool) -> str:
    names = [name for name, on in (("n", is_number), ("bad", cell.bad)) if on]
    attributes = f' class="{" ".join(names)}"' if names else ""
    if cell.number is not None and cell.text != str(cell.number):
        attributes += f' data-n="{cell.number}"'
    short = cut(cell.text)
    title = cut(cell.title) or ("" if short == cell.text else cut(cell.text, 2 * LONGEST))
    attributes += f' title="{escaped(title)}"' if title else ""
    text = escaped(short)
    return f"<td{attributes}>{f'<code>{text}</code>' if cell.code and text else text}</td>"
