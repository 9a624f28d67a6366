"""Places in the source of a kernel, as the text of Triton's IR gives them."""

import re
from collections.abc import Sequence
from typing import Final

from kernbench.ttir.module import Site
from kernbench.ttir.tokens import Token, quoted, unquoted

_FIRST: Final = re.compile(r'^#loc = loc\(("(?:[^"\\\n]|\\.)*"):', re.MULTILINE)
"""The place of the module, which is that of the kernel."""


def in_file(text: str, file: str) -> str:
    """Returns a text whose places in the kernel's own file are places in another one.

    Triton's cache on disk knows a kernel by its source and its line, not by its file: of a copy of
    a program, it returns the text with the places of the original.
    """
    first = _FIRST.search(text)
    return text if first is None else text.replace(f"{first[1]}:", f"{quoted(file)}:")


class Locations:
    """What `#loc7 = loc(...)` at the top and the end of a text say."""

    def __init__(self) -> None:
        self._named: Final[dict[str, Sequence[Token]]] = {}
        self._found: Final[dict[str, Sequence[Site]]] = {}

    def take(self, tokens: list[Token]) -> None:
        """Takes the lines that give names to places out of a text.

        Args:
            tokens: Words of the text; those of these lines are removed.
        """
        kept: list[Token] = []
        place, end = 0, len(tokens)
        while place < end:
            token = tokens[place]
            if token.kind != "location" or not token.first:
                kept.append(token)
                place += 1
                continue
            begin = place + 4  # `#loc7`, `=`, `loc`, `(`
            place += 1
            while place < end and not tokens[place].first:
                place += 1
            self._named[token.text] = tokens[begin : place - 1]
        tokens[:] = kept

    def sites(self, words: Sequence[Token]) -> Sequence[Site]:
        """Returns the places that the words between `loc(` and `)` stand for, innermost first.

        `"file":line:column` is a place, `"name"(place)` one with the name of a variable,
        `callsite(callee at caller)` a place in an inlined function and where that is called,
        `fused[places]` several for one, of which the first counts.
        """
        if not words:
            return ()
        first = words[0]
        if first.kind == "location":
            found = self._found.get(first.text)
            if found is None:
                found = self._found[first.text] = self.sites(self._named.get(first.text, ()))
            return found
        if first.kind == "string":
            if len(words) > 1 and words[1].text == "(":
                return self.sites(words[2:-1])
            numbers = [int(word.text) for word in words[1:] if word.kind == "number"]
            return (Site(unquoted(first.text), *numbers[:2]),) if numbers else ()
        if first.text == "callsite":
            inner = words[2:-1]
            middle = _outside(inner, "at")
            return (*self.sites(inner[:middle]), *self.sites(inner[middle + 1 :]))
        if first.text == "fused":
            begin = next((place for place, word in enumerate(words) if word.text == "["), 0)
            inner = words[begin + 1 : -1]
            return self.sites(inner[: _outside(inner, ",")])
        return ()


def _outside(words: Sequence[Token], text: str) -> int:
    """Returns where a word stands outside of brackets; the end if it does not."""
    depth = 0
    for place, word in enumerate(words):
        if not depth and word.text == text:
            return place
        depth += word.text in _OPEN
        depth -= word.text in _CLOSE
    return len(words)


_OPEN: Final = frozenset("([<")
_CLOSE: Final = frozenset(")]>")
