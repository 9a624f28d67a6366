"""How a spawn fails: which ranks with what, and where the others were aborted."""

import dis
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, TracebackType
from typing import Any, Final

from kernbench.errors import (
    EXPLAIN,
    CallSite,
    Fact,
    Involved,
    KernbenchError,
    call_site_of,
    explained_by,
    is_ours,
    site_fact,
)
from kernbench.ranks.meeting import folded
from kernbench.ranks.verdicts import RankDeadlockError
from kernbench.run_spec import RunSpec, schedule_text
from kernbench.units import format_span, format_time


class RankAborted(SystemExit):
    """Thrown into a rank at its wait because another one failed; not a user's `sys.exit`."""


class LeakError(KernbenchError):
    """A rank returned without waiting for what it had started (C13)."""


class AbortSwallowedError(KernbenchError):
    """A rank caught its abort again and again, so that it had to be left where it was (R4)."""


class RankKilledError(KernbenchError):
    """A rank was ended from outside of the simulation (R6)."""


class SpawnException(Exception):  # noqa: N818 - the name users rely on
    """Ranks have failed.

    As of any error, the command that explains the codes is a note, not a part of the text.

    Args:
        errors: By rank, ordered by when they failed.
        aborted: By rank, where it was aborted.
        spec: Of the run, with the schedule that it took; repeats it.
        times: By rank, when it failed or was aborted, in picoseconds.

    Attributes:
        errors: By rank, what it failed with, ordered by simulated time, then rank; ranks that were
            only aborted are not in it.
        aborted: By rank, where it was when it was aborted.
        spec: Of the run, with the schedule that it took.
    """

    def __init__(
        self,
        errors: dict[int, BaseException],
        aborted: dict[int, str],
        spec: RunSpec,
        times: Mapping[int, int] | None = None,
    ) -> None:
        self.errors = errors
        self.aborted = aborted
        self.spec = spec
        self._times = times or {}
        super().__init__(self._text())
        if self.codes:
            self.add_note(explained_by(self.codes))

    @property
    def codes(self) -> tuple[str, ...]:
        """Codes of the mistakes that ranks have made, each once, in the order of the text."""
        told = (error for error in self.errors.values() if isinstance(error, KernbenchError))
        return tuple(dict.fromkeys(code for error in told for code in error.codes))

    def _text(self) -> str:
        lines = [f"{folded(sorted(self.errors))} failed"]
        for ranks, error, text in self.alike():
            site = call_site_of(error)
            lines.append(f"{folded(ranks)}: {type(error).__name__}: {text}")
            if site is not None and site_fact(site) not in text:
                lines.append(f"  {self.failed_at(error, ranks)}{site_fact(site)}")
        schedule = schedule_text(self.spec.schedule)
        replay = f"replay: seed {self.spec.seed}, schedule {schedule}"
        return "\n".join([*lines, *self.aborted_lines(), replay])

    def failed_at(self, error: BaseException, ranks: Iterable[int]) -> str:
        """Returns when ranks failed, such as `at 2 us, `; empty if the error tells it itself."""
        told = isinstance(error, KernbenchError) and error.involved()
        return "" if told else self._when(ranks)

    def _when(self, ranks: Iterable[int]) -> str:
        times = [self._times[rank] for rank in ranks if rank in self._times]
        return f"at {format_span(times)}, " if times else ""

    def alike(self) -> list[tuple[list[int], BaseException, str]]:
        """Returns the different errors: the ranks that have it, one of them, and its text.

        Errors that differ only in the name of their own rank are told together.
        """
        alike: list[_Alike] = []
        found: dict[object, _Alike] = {}
        for rank, error in self.errors.items():
            alone, together, kind = text_of(error), "", (type(error), _trace(error))
            times: list[int] = []
            if isinstance(error, RankDeadlockError):
                # Ranks of one deadlock differ in one line, which says what each waits for.
                together, kind = error.shared(), (type(error), ())
            elif isinstance(error, KernbenchError):
                together = re.sub(rf"\brank {rank}\b", _ANY, alone)
                mine = [call for call in error.involved() if call.rank == rank]
                times = [call.time_ps for call in mine if call.time_ps is not None]
                for place, time in enumerate(times):
                    said, any_time = f" at {format_time(time)}, ", f" at {_WHEN}{place}, "
                    together = together.replace(said, any_time, 1)
            same, almost = (alone, kind), (together or alone, kind)
            known = found.get(same)
            if known is None and (known := found.get(almost)) is not None:
                known.text = together
            if known is None:
                known = _Alike([], error, alone, [])
                alike.append(known)
                # Both, as a text that is equal may name one of its ranks and not the other.
                found[same] = found[almost] = known
            known.ranks.append(rank)
            known.times.append(times)
        for known in alike:
            known.text = known.text.replace(_ANY, f"each of {folded(sorted(known.ranks))}")
            for place, when in enumerate(zip(*known.times, strict=False)):
                known.text = known.text.replace(f"{_WHEN}{place}", format_span(when))
        return [(sorted(known.ranks), known.error, known.text) for known in alike]

    def aborted_lines(self) -> list[str]:
        """Returns where ranks were aborted that had done nothing wrong, a line a place."""
        places: dict[str, list[int]] = {}
        for rank, where in self.aborted.items():
            if rank not in self.errors:
                places.setdefault(where, []).append(rank)
        return [
            f"{folded(ranks)} aborted {self._when(ranks)}{where}" for where, ranks in places.items()
        ]

    def as_json(self) -> dict[str, Any]:
        """Returns the same content as plain values: every rank's own error, with all facts."""
        return {
            "class": type(self).__name__,
            "errors": dict(self._errors_as_json()),
            "aborted": {
                str(rank): where for rank, where in self.aborted.items() if rank not in self.errors
            },
            "replay": {
                "seed": self.spec.seed,
                "schedule": schedule_text(self.spec.schedule),
            },
        }

    def _errors_as_json(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields each rank's error; calls that an earlier one tells too are not told again.

        With n ranks in a deadlock they would be n times n.
        """
        known: dict[tuple[int, ...], tuple[int, set[Involved]]] = {}
        for rank, error in self.errors.items():
            document = error_as_json(error, ranks=False)
            if isinstance(error, KernbenchError):
                key = tuple([id(fact) for fact in error.facts if isinstance(fact, Fact)])
                first, told = known.get(key, (rank, set()))
                view = getattr(error, "view", "")
                if told and (not isinstance(view, Fact) or told.issuperset(view.involved)):
                    document["ranks_as_in"] = str(first)
                else:
                    document |= error.ranks_as_json()
                    known.setdefault(key, (rank, set(error.involved())))
            yield str(rank), document


@dataclass(slots=True)
class _Alike:
    """Ranks that are told the same: one of their errors, the text, and when each one called."""

    ranks: list[int]
    error: BaseException
    text: str
    times: list[list[int]]


_ANY: Final = "rank \0"
"""Stands for whatever rank an error is raised in."""

_WHEN: Final = "\1"
"""Stands, before a number, for when that rank made one of the calls that its error tells."""


def error_as_json(error: BaseException, *, ranks: bool = True) -> dict[str, Any]:
    """Returns the content of any error as plain values.

    Args:
        error: Any.
        ranks: Whether the calls that it tells are a part of it.
    """
    if isinstance(error, SpawnException):
        return error.as_json()
    site = call_site_of(error)
    where = None if site is None else {"site": str(site), "source": site.source}
    if isinstance(error, KernbenchError):
        told = error.ranks_as_json() if ranks else {}
        return {**error.as_json(), "at": where, **told}
    return {"class": type(error).__name__, "code": "", "summary": text_of(error), "at": where}


def text_of(error: BaseException) -> str:
    """Returns the text of an error with its notes, also if it cannot make one (R10).

    The note that names what explains its codes is left to the end of the report.
    """
    try:
        text = str(error)
    except Exception:
        text = "<its text could not be made>"
    notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith(EXPLAIN)]
    return "\n  ".join([text, *notes])


def _trace(error: BaseException) -> tuple[tuple[int, int], ...]:
    """Returns something that is equal for tracebacks that are equal in the user's code."""
    places, entry = [], error.__traceback__
    while entry is not None:
        if not is_ours(entry.tb_frame):
            places.append((id(entry.tb_frame.f_code), entry.tb_lasti))
        entry = entry.tb_next
    return tuple(places)


def swallowed(name: str, error: BaseException) -> AbortSwallowedError:
    """Returns the error of a rank that went on after its abort, with the line that caught it."""
    traceback = error.__traceback__
    facts = []
    if traceback is not None:
        facts.append(site_fact(_handler(traceback), "caught last by"))
        facts.append(
            site_fact(CallSite(traceback.tb_frame.f_code, traceback.tb_lasti), "raised at")
        )
    return AbortSwallowedError(
        text_of(error),
        facts,
        hint=f"let SystemExit through: {name} is aborted because another rank failed",
        code="R4",
    )


def _handler(traceback: TracebackType) -> CallSite:
    """Returns the `except` that caught what was raised at the outermost frame of a traceback."""
    code: CodeType = traceback.tb_frame.f_code
    target = 0
    for entry in dis.Bytecode(code).exception_entries:  # type: ignore[attr-defined]
        if entry.start <= traceback.tb_lasti < entry.end:
            target = entry.target
            break
    following = [
        instruction
        for instruction in dis.get_instructions(code)
        if instruction.offset >= target and instruction.opname != "PUSH_EXC_INFO"
    ]
    return CallSite(code, following[0].offset if target and following else traceback.tb_lasti)
