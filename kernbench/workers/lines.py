"""The protocol between a process and its workers: a JSON object a line, in UTF-8.

| direction | line |
|---|---|
| first, from the worker | `{"v": 1, "hello": true, "pid": 7}` |
| request | `{"v": 1, "id": 3, "op": "run", "timeout_s": 90, ...}` |
| response | `{"v": 1, "id": 3, "ok": true, ...}`; if not ok, with `error` |

Every worker knows the ops `ping` and `shutdown`. The end of the requests asks the worker to end, as
`shutdown` does.
"""

import json
from collections.abc import Mapping
from reprlib import Repr
from typing import Any, Final

from kernbench.workers.failing import Message, ProtocolError

VERSION: Final = 1
"""Version of the protocol; a worker of another version is refused."""

_short: Final = Repr()
_short.maxother = _short.maxstring = 200


def shortened(value: object) -> str:
    """Returns what a report shows of a message, or of a line that is none."""
    return _short.repr(value)


def encode(message: Mapping[str, Any]) -> bytes:
    """Returns the line of a message, with the version and the end of the line."""
    return json.dumps({"v": VERSION, **message} | {"v": VERSION}).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Returns the message of a line.

    Args:
        line: The line, with or without its end.

    Raises:
        ProtocolError: If the line is no JSON object of this version of the protocol.
    """
    text = line.decode(errors="replace").rstrip("\n")
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        raise ProtocolError(f"expected a line of JSON, got {shortened(text)}") from None
    if not isinstance(message, dict):
        raise ProtocolError(f"expected a JSON object, got {shortened(text)}")
    version = message.pop("v", None)
    if type(version) is not int or version != VERSION:
        raise ProtocolError(f"expected protocol version {VERSION}, got {shortened(text)}")
    return message


class LineBuffer:
    """Cuts what is read from a raw descriptor into lines, wherever the reads end.

    Args:
        longest: Bytes after which a line is cut although its end has not come; None for no limit.
    """

    def __init__(self, longest: int | None = None) -> None:
        self._longest = longest
        # Joined once a line, since a line of many megabytes comes in many reads.
        self._parts: list[bytes] = []
        self._size = 0
        self._cut = False

    @property
    def partial(self) -> bytes:
        """The beginning of a line whose end has not come."""
        return b"".join(self._parts)

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the lines that `data` completes, without their ends.

        Args:
            data: The next bytes.
        """
        first, *others = data.split(b"\n")
        self._parts.append(first)
        self._size += len(first)
        lines = []
        if others:
            lines = [self.partial, *others[:-1]]
            if self._cut and not lines[0]:
                del lines[0]  # only the end of a line that was cut
            self._parts, self._size, self._cut = [others[-1]], len(others[-1]), False
        if self._longest is not None and self._size > self._longest:
            lines += self.rest()
            self._cut = True
        return lines

    def rest(self) -> list[bytes]:
        """Returns the beginning of a line, if there is one, as a line: the stream has ended."""
        lines = [self.partial] if self._size else []
        self._parts, self._size = [], 0
        return lines
