"""A JSON text as a tree in which each value knows its line and column."""

import re
from dataclasses import dataclass
from json import JSONDecodeError, JSONDecoder
from typing import Any, Final

from kernbench.ccl.files.problems import Mark, Problems

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,39})(?![0-9])(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORDS: Final = {"true": True, "false": False, "null": None}
_DEEPEST: Final = 32
_DECODER: Final = JSONDecoder()


@dataclass(slots=True)
class Item:
    """A value and its place; objects and lists are made of items.

    Attributes:
        value: A text, a number, a truth value, None, a dict of items or a list of them.
        mark: Where it begins.
    """

    value: Any
    mark: Mark


class _Reader:
    def __init__(self, problems: Problems, text: str) -> None:
        self._problems = problems
        self._text = text
        self._at = self._line = self._begin = 0

    def read(self) -> Item:
        item = self._value(0)
        if self._next():
            self._stop("expected nothing after the outermost value")
        return item

    def _mark(self) -> Mark:
        return Mark(self._line + 1, self._at - self._begin + 1)

    def _stop(self, text: str) -> None:
        self._problems.stop(self._mark(), "F10", text)

    def _next(self) -> str:
        """Passes over spaces; returns the next character, or nothing at the end."""
        match = _SPACE.match(self._text, self._at)
        assert match is not None
        breaks = self._text.count("\n", self._at, match.end())
        if breaks:
            self._line += breaks
            self._begin = self._text.rindex("\n", self._at, match.end()) + 1
        self._at = match.end()
        return self._text[self._at : self._at + 1]

    def _take(self, character: str) -> None:
        if self._next() != character:
            self._stop(f"expected {character!r} of JSON")
        self._at += 1

    def _value(self, depth: int) -> Item:
        first, mark = self._next(), self._mark()
        if depth > _DEEPEST:
            self._stop(f"expected at most {_DEEPEST} levels")
        if first == "{":
            return Item(self._object(depth), mark)
        if first == "[":
            return Item(self._list(depth), mark)
        if first == '"':
            return Item(self._string(), mark)
        for word, value in _WORDS.items():
            if self._text.startswith(word, self._at):
                self._at += len(word)
                return Item(value, mark)
        match = _NUMBER.match(self._text, self._at)
        if match is None:
            self._stop("expected a value of JSON")
            raise AssertionError
        self._at = match.end()
        return Item((float if match[1] or match[2] else int)(match[0]), mark)

    def _string(self) -> str:
        try:
            text, self._at = _DECODER.raw_decode(self._text, self._at)
        except JSONDecodeError as error:
            self._stop(f"expected a text of JSON; {error.msg}")
        return str(text)

    def _object(self, depth: int) -> dict[str, Item]:
        found: dict[str, Item] = {}
        self._at += 1
        if self._next() == "}":
            self._at += 1
            return found
        while True:
            if self._next() != '"':
                self._stop("expected a key in quotes")
            mark, key = self._mark(), self._string()
            if key in found:
                self._problems.add(mark, "F6", key, "the key stands twice")
            self._take(":")
            found[key] = self._value(depth + 1)
            if self._next() != ",":
                self._take("}")
                return found
            self._at += 1

    def _list(self, depth: int) -> list[Item]:
        found: list[Item] = []
        self._at += 1
        if self._next() == "]":
            self._at += 1
            return found
        while True:
            found.append(self._value(depth + 1))
            if self._next() != ",":
                self._take("]")
                return found
            self._at += 1


def read_json(problems: Problems, text: str) -> Item:
    """Returns a text's outermost value.

    Raises:
        ConfigError: If it is no JSON.
    """
    return _Reader(problems, text).read()
