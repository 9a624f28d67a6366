"""What users are told: errors with a code, the place in their source, expected, got, and a hint."""

import linecache
import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from types import CodeType, FrameType, TracebackType
from typing import Final, NamedTuple

_PACKAGE: Final = "kernbench"
_PREFIX: Final = "kernbench."


_PASSING: Final = frozenset(
    {"_collections_abc", "abc", "collections", "contextlib", "copy", "functools", "weakref"}
)
"""Modules of the standard library that call others for whom their caller asked."""

_known: Final[set[str]] = set(_PASSING)
"""Names of modules whose frames are passed over: those, and of this package those seen so far."""


def is_ours(frame: FrameType) -> bool:
    """Returns whether a frame is not the user's: it runs this package, or merely passes control."""
    name: str = frame.f_globals.get("__name__", "")
    if name in _known:
        return True
    ours = name == _PACKAGE or name.startswith(_PREFIX)
    if ours:
        _known.add(name)
    return ours


class CallSite(NamedTuple):
    """A place in the user's source; cheap to capture, resolved only when it is shown.

    Attributes:
        code: Code object of the user's frame.
        lasti: Index of the instruction that was running.
    """

    code: CodeType
    lasti: int

    @property
    def file(self) -> str:
        """Path of the file as Python compiled it."""
        return self.code.co_filename

    @property
    def position(self) -> tuple[int, int]:
        """Line and column, both from 1."""
        positions = islice(self.code.co_positions(), self.lasti // 2, None)
        line, _, column, _ = next(positions, (None, None, None, None))
        return (self.code.co_firstlineno, 1) if line is None else (line, (column or 0) + 1)

    @property
    def line(self) -> int:
        """Line number, from 1."""
        return self.position[0]

    @property
    def source(self) -> str:
        """The source line, stripped; empty when the file cannot be read."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        line, column = self.position
        return f"{self.file}:{line}:{column}"

    def show(self) -> str:
        """Returns `file:line:column: source line`."""
        return f"{self}: {self.source}" if self.source else str(self)


_SITES: Final[dict[tuple[int, int], CallSite]] = {}
"""Sites by the identity of their code, which they keep alive, and their instruction."""

_MOST_SITES: Final = 4096
"""Sites that are kept before all are forgotten."""


def call_site() -> CallSite | None:
    """Returns the innermost frame of the user's code, by module identity, or None."""
    known = _known
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        # Every operation comes here, so what is known is skipped without a call.
        if frame.f_globals.get("__name__") not in known and not is_ours(frame):
            key = id(frame.f_code), frame.f_lasti
            site = _SITES.get(key)
            if site is None:
                if len(_SITES) >= _MOST_SITES:
                    _SITES.clear()
                site = _SITES[key] = CallSite(frame.f_code, frame.f_lasti)
            return site
        frame = frame.f_back
    return None


def call_site_of(error: BaseException) -> CallSite | None:
    """Returns the innermost frame of the user's code in the traceback of `error`."""
    site = None
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        if not is_ours(frame):
            site = CallSite(frame.f_code, traceback.tb_lasti)
        traceback = traceback.tb_next
    return site


class Involved(NamedTuple):
    """What a rank did that an error is about.

    Attributes:
        rank: Global rank; -1 on main.
        call: As reports show it; empty if the rank has called nothing.
        site: Where the user called it.
        sequence: Which of the rank's collectives, groups or messages it is, from 1; None if none.
        time_ps: Simulated time of the call; None if there was none.
    """

    rank: int
    call: str
    site: CallSite | None
    sequence: int | None
    time_ps: int | None

    def as_json(self) -> dict[str, object]:
        """Returns the same as plain values."""
        site = self.site and {
            "file": self.site.file,
            "line": self.site.line,
            "source": self.site.source,
        }
        return {**self._asdict(), "site": site}


class Fact(str):
    """A line of a report that knows whose calls it tells.

    Args:
        text: The line.
        involved: The calls.
    """

    involved: tuple[Involved, ...]

    def __new__(cls, text: str, involved: Sequence[Involved]) -> "Fact":
        """Returns the line."""
        fact = super().__new__(cls, text)
        fact.involved = tuple(involved)
        return fact


EXPLAIN: Final = "explain: "
"""How a line begins that says where codes are explained."""


def explained_by(codes: Iterable[str]) -> str:
    """Returns the line that says where codes are explained."""
    return f"{EXPLAIN}kernbench explain {' '.join(codes)}"


class KernbenchError(Exception):
    """Base of every error that kernbench raises for a user's mistake.

    The text is complete by itself: a summary, then indented facts, then a hint. The command that
    explains the code is a note: a traceback shows the notes of an error, in a test as in a script,
    while a report that quotes the texts of several ranks names the command once, at its end.

    Args:
        summary: One sentence: who did what.
        facts: Further lines: where, expected, got.
        hint: What to try; omitted when empty.
        code: Stable code of the class of mistake, such as `C1` or `M5`; empty if it has none.
    """

    def __init__(
        self, summary: str, facts: Sequence[str] = (), *, hint: str = "", code: str = ""
    ) -> None:
        self.summary = summary
        self.facts = tuple(facts)
        self.hint = hint
        self.code = code
        super().__init__(summary)
        if self.codes:
            self.add_note(explained_by(self.codes))

    @property
    def codes(self) -> tuple[str, ...]:
        """Codes of the mistakes that the error tells, each once: `code`, unless there are more."""
        return (self.code,) if self.code else ()

    def __str__(self) -> str:
        lines = [f"[{self.code}] {self.summary}" if self.code else self.summary]
        lines += [f"  {fact}" for fact in self.facts]
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)

    def add_fact(self, fact: str) -> None:
        """Adds a line that only somebody further up knows, such as where a command was issued."""
        self.facts = (*self.facts, fact)

    def involved(self) -> list[Involved]:
        """Returns the calls that the facts tell, by rank."""
        told = [fact.involved for fact in self.facts if isinstance(fact, Fact)]
        calls = dict.fromkeys(call for calls in told for call in calls)
        return sorted(calls, key=lambda call: (call.rank, call.time_ps or 0))

    def as_json(self) -> dict[str, object]:
        """Returns the same content as plain values, but for `ranks_as_json`."""
        return {
            "class": type(self).__name__,
            "code": self.code,
            "summary": self.summary,
            "facts": list(self.facts),
            "hint": self.hint,
        }

    def ranks_as_json(self) -> dict[str, object]:
        """Returns the calls that the facts tell, as plain values; nothing if they tell none."""
        ranks = [call.as_json() for call in self.involved()]
        return {"ranks": ranks} if ranks else {}


class UsageError(KernbenchError):
    """A wrong command line or file: exit code 2."""


class OperandError(KernbenchError, TypeError):
    """An argument of a kind that an operation does not take."""


class OptionError(KernbenchError, ValueError):
    """An argument of the right kind with a value that an operation does not take."""


class NoDataError(KernbenchError):
    """Values were asked for while `data` is off."""


class UnsupportedError(KernbenchError, NotImplementedError):
    """Something that exists in PyTorch or Triton but is not simulated."""


def site_fact(site: CallSite | None, label: str = "at") -> str:
    """Returns a fact line that names a place, or says that no user frame was found."""
    return f"{label} {site.show()}" if site is not None else f"{label} <no user frame>"
