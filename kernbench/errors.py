"""Errors for users: a code, the place in the user's source, expected, got, and a hint."""

import linecache
import os
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Final, NamedTuple

from kernbench.caches import Table

_PACKAGE: Final = "kernbench"
_PREFIX: Final = "kernbench."


_PASSING: Final = frozenset(
    {
        "_collections_abc",
        "abc",
        "collections",
        "contextlib",
        "copy",
        "functools",
        "pickle",
        "threading",
        "weakref",
    }
)
"""Modules of the standard library that only pass control on, from one caller to another."""

_known: Final[set[str]] = set(_PASSING)
"""Names of modules that are not the user's: `_PASSING`, and modules of kernbench seen so far."""

_libraries: list[str] = []
"""Packages of libraries that are passed over, once for each block of `passed_over`."""

_skipped: Final[set[str]] = set(_PASSING)
"""Names of modules whose frames are skipped: those of `_known`, and of libraries seen so far."""

_users: Final[set[str]] = set()
"""Names of the user's modules that were seen so far."""


def is_ours(frame: FrameType) -> bool:
    """Returns whether a frame is not the user's: it runs kernbench, or only passes control on."""
    name: str = frame.f_globals.get("__name__", "")
    if name in _known:
        return True
    ours = name == _PACKAGE or name.startswith(_PREFIX)
    if ours:
        _known.add(name)
    return ours


@contextmanager
def passed_over(*packages: str) -> Iterator[None]:
    """Lets reports name the lines that call libraries, not lines of the libraries, inside a block.

    Where nobody but libraries has called, a report names the outermost line of a library. Blocks
    may be nested. They are of the whole process.

    Args:
        *packages: Names of packages, or of modules, such as `torch`; what is below them counts too.
    """
    _libraries.extend(packages)
    _forget_frames()
    try:
        yield
    finally:
        for package in packages:
            _libraries.remove(package)
        _forget_frames()


@contextmanager
def libraries_passed_over(program: str | None = None) -> Iterator[None]:
    """Passes over every library that is installed, as `passed_over` does, inside a block.

    A block inside another one changes nothing.

    Args:
        program: File or module of the program; a package that has it is the user's. None: unknown.
    """
    with nullcontext() if _libraries else passed_over(*_installed(program)):
        yield


def _installed(program: str | None) -> list[str]:
    found, own = {"torch"}, {_PACKAGE}
    file = Path(program or "").resolve()
    if program is not None and file.suffix != ".py":
        own.add(program.partition(".")[0])
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    # Those of the system, of the user, or of an environment below this one.
    folders |= {each for each in sys.path if Path(each).name in {"site-packages", "dist-packages"}}
    for folder in map(Path, folders):
        names = {entry.stem for entry in folder.iterdir()} if folder.is_dir() else set()
        found |= {name for name in names if name.isidentifier()}
        if folder in file.parents:
            own.add(file.relative_to(folder).parts[0])
    return sorted(found - own)


def _forget_frames() -> None:
    """Forgets whose frames are whose, after `_libraries` has changed."""
    _skipped.clear()
    _skipped.update(_PASSING)
    _users.clear()
    _SITES.clear()


def is_passed_over(frame: FrameType) -> bool:
    """Returns whether a frame is of a library that `passed_over` names."""
    name: str = frame.f_globals.get("__name__") or ""
    while name and _libraries:
        if name in _libraries:
            return True
        name = name.rpartition(".")[0]
    return False


def is_skipped(frame: FrameType) -> bool:
    """Returns whether a frame is not the user's, be it ours or a library's."""
    name = frame.f_globals.get("__name__", "")
    if name in _skipped:
        return True
    if name in _users:
        return False
    skipped = is_ours(frame) or is_passed_over(frame)
    (_skipped if skipped else _users).add(name)
    return skipped


class CallSite(NamedTuple):
    """A place in the user's source; cheap to capture, resolved to a line only when it is shown.

    Attributes:
        code: Code object of the user's frame.
        lasti: Index of the bytecode instruction that was running.
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


_SITES: Final[Table[tuple[int, int], CallSite]] = Table("errors.call_sites")
"""Sites by the `id` of their code object, which the site keeps alive, and their instruction."""


def call_site(ours: int = 1) -> CallSite | None:
    """Returns the site of the innermost frame of the user's code; None if there is none.

    Args:
        ours: How many of the innermost frames are ours, which need no look; this one is the first.
    """
    skipped = _skipped
    frame: FrameType | None = sys._getframe(ours)
    try:
        while frame is not None:
            # Every operation comes here, so what is known is found without a call.
            if frame.f_globals["__name__"] not in skipped:
                key = id(frame.f_code), frame.f_lasti
                site = _SITES.get(key)
                if site is not None:
                    return site
                if not is_skipped(frame):
                    return _SITES.keep(key, CallSite(frame.f_code, frame.f_lasti))
            frame = frame.f_back
    except KeyError:  # what `exec` runs may have no name
        return site_in(sys._getframe(1))
    return _outermost_of_libraries(sys._getframe(1)) if _libraries else None


def users_frames() -> list[FrameType]:
    """Returns the frames of the user's code in the running stack, the innermost first."""
    skipped, users = _skipped, _users
    found = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        # Every collective comes here, so what is known is found without a call.
        name = frame.f_globals.get("__name__")
        if name not in skipped and (name in users or not is_skipped(frame)):
            found.append(frame)
        frame = frame.f_back
    return found


def _outermost_of_libraries(frame: FrameType | None) -> CallSite | None:
    site = None
    while frame is not None:
        if is_passed_over(frame):
            site = CallSite(frame.f_code, frame.f_lasti)
        frame = frame.f_back
    return site


def warn_at_call(text: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the user's line; does nothing where there is none, such as in a library's thread."""
    site = call_site()
    if site is not None:
        warnings.warn_explicit(text, category, site.file, site.line)


def site_in(frame: FrameType | None) -> CallSite | None:
    """Returns the site of the innermost frame of the user's code in a stack; None if there is none.

    Args:
        frame: Innermost frame of the stack, such as that of a task that waits.
    """
    innermost = frame
    while frame is not None and is_skipped(frame):
        frame = frame.f_back
    if frame is None:
        return _outermost_of_libraries(innermost) if _libraries else None
    return CallSite(frame.f_code, frame.f_lasti)


def is_of_python(frame: FrameType) -> bool:
    """Returns whether a frame is of the standard library."""
    if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in sys.stdlib_module_names:
        return False
    file = frame.f_code.co_filename
    return file.startswith(("<frozen ", _PYTHON))  # a module of the user may have such a name


_PYTHON: Final = sysconfig.get_path("stdlib") + os.sep


def call_site_of(error: BaseException) -> CallSite | None:
    """Returns the site of the innermost frame of the user's code in the traceback of `error`.

    Where there is none, that is the outermost one of a library.
    """
    site = library = None
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        if not is_ours(frame):
            here = CallSite(frame.f_code, traceback.tb_lasti)
            if not (is_passed_over(frame) or is_of_python(frame)):
                site = here
            elif library is None:
                library = here
        traceback = traceback.tb_next
    return site or library


class Involved(NamedTuple):
    """A rank's call that an error is about.

    Attributes:
        rank: Global rank; -1 for main.
        call: Text of the call in reports; empty if the rank has called nothing.
        site: Where the user made the call.
        sequence: Which of the rank's collectives, groups or messages the call is, from 1; None if
            the call is none of these.
        time_ps: Simulated time of the call in picoseconds; None if there was none.
    """

    rank: int
    call: str
    site: CallSite | None
    sequence: int | None
    time_ps: int | None

    def as_json(self) -> dict[str, object]:
        """Returns the same content as plain values."""
        site = self.site and {
            "file": self.site.file,
            "line": self.site.line,
            "source": self.site.source,
        }
        return {**self._asdict(), "site": site}


class Fact(str):
    """A line of a report, with the calls that it is about.

    Attributes:
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
        hint: What to try; no hint is shown when empty.
        code: Stable code of the kind of mistake, such as `C1` or `M5`; empty if there is none.
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
        return self._told(self.facts)

    def _told(self, facts: Iterable[str]) -> str:
        """Returns the text with some facts."""
        lines = [f"[{self.code}] {self.summary}" if self.code else self.summary]
        lines += [f"  {fact}" for fact in facts]
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)

    def _render_traceback_(self) -> list[str]:
        """Returns what IPython shows in place of a traceback: the report has the user's lines."""
        return rendered(self)

    def add_fact(self, fact: str) -> None:
        """Adds a line that only a caller knows, such as where a command was issued."""
        self.facts = (*self.facts, fact)

    def involved(self) -> list[Involved]:
        """Returns the calls that the facts are about, ordered by rank and time."""
        told = [fact.involved for fact in self.facts if isinstance(fact, Fact)]
        calls = dict.fromkeys(call for calls in told for call in calls)
        return sorted(calls, key=lambda call: (call.rank, call.time_ps or 0))

    def as_json(self) -> dict[str, object]:
        """Returns the content as plain values, without the calls that `ranks_as_json` returns."""
        return {
            "class": type(self).__name__,
            "code": self.code,
            "summary": self.summary,
            "facts": list(self.facts),
            "hint": self.hint,
        }

    def ranks_as_json(self) -> dict[str, object]:
        """Returns the calls that the facts are about, as plain values; empty if there are none."""
        ranks = [call.as_json() for call in self.involved()]
        return {"ranks": ranks} if ranks else {}


def rendered(error: BaseException) -> list[str]:
    """Returns an error's lines for a notebook: its text and notes, without a traceback."""
    text = f"{type(error).__name__}: {error}"
    return [line for part in (text, *getattr(error, "__notes__", ())) for line in part.split("\n")]


class UsageError(KernbenchError):
    """A wrong command line or file: exit code 2."""


class OperandError(KernbenchError, TypeError):
    """An argument of a kind that the operation does not take."""


class OptionError(KernbenchError, ValueError):
    """An argument of the right kind with a value that the operation does not take."""


class NoDataError(KernbenchError):
    """Values were needed while `data` is off."""


class UnsupportedError(KernbenchError, NotImplementedError):
    """Something that exists in PyTorch or Triton but is not simulated."""


def site_fact(site: CallSite | None, label: str = "at") -> str:
    """Returns a line of a report that names a place, or says that no user frame was found."""
    return f"{label} {site.show()}" if site is not None else f"{label} <no user frame>"


def not_simulated(name: str, hint: str) -> UnsupportedError:
    """Returns the error about something of PyTorch or Python that is not simulated.

    Args:
        name: Its name there.
        hint: What to do instead.
    """
    return UnsupportedError(f"{name} is not simulated", [site_fact(call_site())], hint=hint)
