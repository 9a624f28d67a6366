"""Reads pages as a browser does: do tags balance, what text is there, what would be fetched."""

import re
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from typing import TypeVar

from kernbench.pages.page import Fold, Page, Part

P = TypeVar("P", bound=Part)

VOID = {"meta", "br", "hr", "img", "input", "link"}
FETCHING = {"src", "srcset", "data", "action", "poster", "background", "formaction", "xlink:href"}


class Reader(HTMLParser):
    """Checks a page while it reads it.

    Attributes:
        text: Text outside of style and script.
        tags: Names of all elements.
        ids: Ids of all elements.
    """

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.text = ""
        self.tags: list[str] = []
        self.ids: list[str] = []
        self._open: list[str] = []
        self.links: list[str] = []
        self.titles: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._seen(tag, attrs)
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._seen(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self._open):
            self.text += data

    def _seen(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), "an attribute twice"
        assert tag not in {"link", "img", "iframe", "object", "embed", "base", "image", "use"}
        assert not FETCHING & set(names)
        assert not [name for name in names if name.startswith("on")]
        for name, value in attrs:
            if name == "href":
                assert value is not None
                assert value.startswith("#")
                self.links.append(value[1:])
            elif name == "id" and value:
                self.ids.append(value)
            elif name == "title" and value:
                self.titles.append(value)


def read(html: str) -> Reader:
    """Reads a page; fails if it is not well formed, or would fetch anything."""
    assert html.startswith("<!doctype html>")
    reader = Reader(html)
    assert set(reader.links) <= set(reader.ids)
    assert len(reader.ids) == len(set(reader.ids))
    assert not re.search(
        r"https?:|//|@import|url\(|<base", re.sub(r"^ *// .*$", "", html, flags=re.M)
    )
    return reader


def parts(page: Page, kind: type[P], title: str = "") -> list[P]:
    """Returns the parts of a kind on a page, folded ones too; of one section if it has a name."""
    sections = [section for section in page.sections if title in {"", section.title}]
    return [
        part for section in sections for part in _unfolded(section.parts) if isinstance(part, kind)
    ]


def _unfolded(found: Iterable[Part]) -> Iterator[Part]:
    for part in found:
        yield part
        if isinstance(part, Fold):
            yield from _unfolded(part.parts)


def section_titles(page: Page) -> list[str]:
    """Returns the titles of the sections of a page."""
    return [section.title for section in page.sections]
