"""Words of the text of Triton's IR."""

import re
from typing import Final, NamedTuple

from kernbench.errors import KernbenchError


class TextError(KernbenchError):
    """The text is not one that Triton's compiler writes."""


class Token(NamedTuple):
    """A word.

    Attributes:
        kind: `string`, `value`, `block`, `symbol`, `location`, `type`, `number`, `word` or `sign`.
        text: As it stands there.
        line: Number of its line, from 1.
        first: Whether it is the first of its line.
    """

    kind: str
    text: str
    line: int
    first: bool


_KINDS: Final = {
    "comment": r"//[^\n]*",
    "string": r'"(?:[^"\\\n]|\\.)*"',
    "value": r"%[\w$.\-]+(?:#\d+)?",
    "block": r"\^\w+",
    "symbol": r'@(?:"[^"\n]*"|[\w$.\-]+)',
    "location": r"\#loc\d*",
    "type": r"[!#][A-Za-z_][\w.]*",
    "sign": r"->|[<>(){}\[\]:,=*?|]",
    "number": r"-?\d+\.\d+(?:[eE][+\-]?\d+)?|-?\d+(?![\w.])|-[A-Za-z]\w*",
    "word": r"[A-Za-z0-9_$][\w.$]*",
}
_TOKEN: Final = re.compile("|".join(f"(?P<{kind}>{regex})" for kind, regex in _KINDS.items()))
_BLANK: Final = re.compile(r"[ \t\r]*")
_ESCAPED: Final = re.compile(rb"\\(?:([0-9A-Fa-f]{2})|(.))", re.DOTALL)
_TO_ESCAPE: Final = re.compile(rb"[^ -~]|[\\\"]")


def unquoted(text: str) -> str:
    """Returns what a word of the kind `string` says.

    MLIR writes bytes that are no plain ASCII as a backslash and two hexadecimal digits.
    """

    def byte(found: re.Match[bytes]) -> bytes:
        return bytes([int(found[1], 16)]) if found[1] else found[2]

    return _ESCAPED.sub(byte, text[1:-1].encode()).decode(errors="replace")


def quoted(text: str) -> str:
    """Returns the word of the kind `string` that says a text; undoes `unquoted`."""
    escaped = _TO_ESCAPE.sub(lambda found: b"\\%02X" % found[0][0], text.encode())
    return f'"{escaped.decode()}"'


def tokens(text: str) -> list[Token]:
    """Returns the words of a text.

    Raises:
        TextError: If there is something that is no word of Triton's IR.
    """
    found: list[Token] = []
    for number, line in enumerate(text.split("\n"), 1):
        place, first, end = 0, True, len(line)
        while True:
            blank = _BLANK.match(line, place)
            place = blank.end() if blank else place
            if place >= end:
                break
            match = _TOKEN.match(line, place)
            if match is None:
                raise TextError(
                    f"line {number} of the text is no IR of Triton",
                    [f"at column {place + 1}: {line[place : place + 60]}"],
                    hint="give the text that Triton's compiler writes into `.ttir` files",
                )
            place = match.end()
            if match.lastgroup != "comment":
                found.append(Token(match.lastgroup or "", match.group(), number, first))
                first = False
    return found
