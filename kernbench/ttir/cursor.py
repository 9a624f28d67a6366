"""Reads words, types, attributes and places of a text of Triton's IR, one after the other."""

from collections.abc import Iterator, Sequence
from typing import Final, NoReturn

from kernbench.ttir.locations import Locations
from kernbench.ttir.module import Attribute, Site
from kernbench.ttir.tokens import TextError, Token, tokens, unquoted
from kernbench.ttir.types import SCALARS, Descriptor, Pointer, Type

END: Final = Token("end", "", 0, first=True)
"""What stands after the last word."""

_CLOSED: Final = {"<": ">", "(": ")", "[": "]", "{": "}"}


class TypesSaid:
    """What the end of an operation says of types.

    Attributes:
        given: Those before an arrow, or all if there is none.
        results: Those after an arrow or `to`; None without one.
        left: How many are before a `*`, which stands between the sides of a product; 0 without one.
    """

    __slots__ = ("given", "left", "results")

    def __init__(self) -> None:
        self.given: list[Type] = []
        self.results: list[Type] | None = None
        self.left = 0


class Cursor:
    """A place in a text, and what reads on from there.

    Args:
        text: The text; the lines that give names to places of the kernel's source are left out.
    """

    def __init__(self, text: str) -> None:
        self._tokens: Final = tokens(text)
        self._at = 0
        self._locations: Final = Locations()
        self._locations.take(self._tokens)

    # Words.

    def _peek(self) -> Token:
        return self._tokens[self._at] if self._at < len(self._tokens) else END

    def _next(self) -> Token:
        token = self._peek()
        self._at += 1
        return token

    def _is(self, text: str, ahead: int = 0) -> bool:
        place = self._at + ahead
        return place < len(self._tokens) and self._tokens[place].text == text

    def _took(self, text: str) -> bool:
        if self._is(text):
            self._at += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._took(text):
            self._refuse(f"{text!r} was expected")

    def _refuse(self, why: str) -> NoReturn:
        token = self._peek()
        raise TextError(
            f"line {token.line} of the text is no IR of Triton: {why}",
            [f"at {token.text!r}"],
            hint="give the text that Triton's compiler writes into `.ttir` files",
        )

    # Types.

    def _all_types(self, types: TypesSaid) -> None:
        types.given = self._type_list()
        while True:
            if self._took("->") or self._took("to"):
                types.results = self._type_list()
            elif self._took("*"):
                types.left = len(types.given)
                types.given += self._type_list()
            else:
                return

    def _type_list(self) -> list[Type]:
        """Reads one type, several with commas, or `(types)`."""
        if self._took("("):
            found: list[Type] = []
            while not self._took(")"):
                found.append(self._type())
                self._took(",")
            return found
        found = [self._type()]
        while self._took(","):
            found.append(self._type())
        return found

    def _type(self) -> Type:
        token = self._next()
        if token.text == "tensor":
            self._expect("<")
            made = self._shaped()
            self._skip_to(">")
            return made
        if token.text == "!tt.ptr":
            self._expect("<")
            to = self._type()
            self._skip_to(">")
            return Type(Pointer(to))
        if token.text == "!tt.tensordesc":
            self._expect("<")
            begin = self._at
            block = self._type() if self._is("tensor") else self._shaped()
            unsigned = self._unsigned_since(begin)
            self._skip_to(">")
            return Type(Descriptor(block, unsigned))
        if token.text == "<":  # as of operations whose name says what it is a type of
            begin = self._at
            made = self._type() if self._is("tensor") else self._shaped()  # until Triton 3.7
            unsigned = self._unsigned_since(begin)
            self._skip_to(">")
            return Type(Descriptor(made, unsigned) if made.shape else Pointer(made))
        return Type(self._scalar(token))

    def _unsigned_since(self, begin: int) -> bool:
        return any("xui" in token.text for token in self._tokens[begin : self._at])

    def _shaped(self) -> Type:
        """Reads `64x32xf16`, or `64x32x` and a type."""
        extents: list[int] = []
        token = self._next()
        text = token.text
        while text[:1].isdigit() and "x" in text:
            extent, _, text = text.partition("x")
            extents.append(int(extent))
        element = Type(self._scalar(token, text)) if text else self._type()
        return Type(element.element, tuple(extents))

    def _scalar(self, token: Token, text: str | None = None) -> str:
        name = token.text if text is None else text
        if name[:2] in ("si", "ui"):
            name = name[1:]
        if name not in SCALARS:
            self._at -= 1
            self._refuse(f"the type {name!r} is not known")
        return name

    def _skip_to(self, sign: str) -> None:
        """Skips what types say of memory and layout, up to the sign that ends the type."""
        depth = 0
        while depth or not self._is(sign):
            token = self._next()
            if token is END:
                self._refuse(f"{sign!r} was expected")
            depth += token.text in _CLOSED
            depth -= token.text in _CLOSED.values()
        self._expect(sign)

    # Attributes, locations.

    def _attributes(self) -> dict[str, Attribute]:
        """Reads `{name = value, flag}`."""
        found: dict[str, Attribute] = {}
        self._expect("{")
        while not self._took("}"):
            name = self._next().text.strip('"')
            found[name] = self._attribute(",}") if self._took("=") else True
            self._took(",")
        return found

    def _attribute(self, ends: str) -> Attribute:
        """Reads a value, up to a sign of `ends` outside of brackets or the end of the line."""
        parts: list[Token] = []
        depth = 0
        while True:
            token = self._peek()
            if not depth and (token.first or (token.kind == "sign" and token.text in ends)):
                break
            if not depth and token.text == "loc":
                break
            depth += token.kind == "sign" and token.text in _CLOSED
            depth -= token.kind == "sign" and token.text in _CLOSED.values()
            parts.append(self._next())
        return _attribute(parts)

    def _location(self) -> Sequence[Site]:
        """Reads `loc(...)`, if there is one, and returns the sites."""
        if not (self._is("loc") and self._is("(", 1)):
            return ()
        begin = self._at
        self._at += 1
        depth = 0
        while True:
            token = self._next()
            depth += token.text == "("
            depth -= token.text == ")"
            if not depth:
                return self._locations.sites(self._tokens[begin + 2 : self._at - 1])


def _attribute(parts: Sequence[Token]) -> Attribute:
    """Returns the value that words stand for: a number, a truth value, numbers, or the text."""
    text = " ".join(token.text for token in parts)
    first = parts[0].text if parts else ""
    if first in ("true", "false") and len(parts) == 1:
        return first == "true"
    if first == "array":
        return tuple(int(token.text) for token in parts if token.kind == "number")
    if first == "dense":
        return text
    if parts and parts[0].kind == "string":
        return unquoted(first)
    bare = [token.text for token in _until(parts, ":")]
    if len(bare) == 1:
        number = _number(bare[0])
        if number is not None:
            return number
    return text


def _until(parts: Sequence[Token], sign: str) -> Iterator[Token]:
    for token in parts:
        if token.text == sign:
            return
        yield token


def _number(text: str) -> int | float | None:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return None
