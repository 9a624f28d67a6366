"""The error of a failed spawn: what failed in each rank, and where other ranks were aborted."""

import dis
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    rendered,
    site_fact,
)
from kernbench.ranks.folding import Folded, fold, shape_of
from kernbench.ranks.meeting import CollectiveMismatchError
from kernbench.ranks.ranges import folded
from kernbench.ranks.transfers import TransferMismatchError
from kernbench.ranks.verdicts import RankDeadlockError
from kernbench.run_spec import RunSpec, schedule_text
from kernbench.units import format_span, format_time


class RankAborted(SystemExit):
    """Thrown into a rank at its wait because another rank failed; not a user's `sys.exit`."""


class LeakError(KernbenchError):
    """A rank returned without waiting for its asynchronous operations (C13)."""


class AbortSwallowedError(KernbenchError):
    """A rank caught its abort again and again, so it was left where it was (R4)."""


class RankKilledError(KernbenchError):
    """A rank was ended from outside of the simulation (R6)."""


class SpawnException(Exception):  # noqa: N818 - the name users rely on
    """Ranks have failed.

    As with any error of this package, the command that explains the codes is a note of the error,
    not a part of its text.

    Args:
        errors: The error of each failed rank, by rank, ordered by the time of the failure.
        aborted: Where a rank was when it was aborted, by rank.
        spec: Specification that repeats the run, with the schedule that the run took.
        times: When a rank failed or was aborted, in picoseconds, by rank.

    Attributes:
        errors: The error of each failed rank, by rank, ordered by simulated time, then rank; ranks
            that were only aborted are left out.
        aborted: Where a rank was when it was aborted, by rank.
        spec: Specification of the run, with the schedule that the run took.
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
        """Codes of the mistakes that ranks have made, each code once, in the order of the text."""
        told = (error for error in self.errors.values() if isinstance(error, KernbenchError))
        return tuple(dict.fromkeys(code for error in told for code in error.codes))

    def _render_traceback_(self) -> list[str]:
        """Returns what IPython shows in place of a traceback."""
        return rendered(self)

    def _text(self) -> str:
        lines = [f"{folded(sorted(self.errors))} failed"]
        for ranks, error, text in self.alike():
            site = call_site_of(error)
            lines.append(f"{folded(ranks)}: {type(error).__name__}: {text}")
            if site is not None and site_fact(site) not in text:
                lines.append(f"  {self.failed_at(error, ranks)}{site_fact(site)}")
        schedule = schedule_text(self.spec.schedule)
        replay = f"replay: seed {self.spec.seed}, schedule {schedule}"
        if self.spec.default_device != "cuda":
            replay += f", default_device {self.spec.default_device}"
        return "\n".join([*lines, *self.aborted_lines(), replay])

    def failed_at(self, error: BaseException, ranks: Iterable[int]) -> str:
        """Returns when ranks failed, such as `at 2 us, `; empty if the error itself says when."""
        told = isinstance(error, KernbenchError) and error.involved()
        return "" if told else self._when(ranks)

    def _when(self, ranks: Iterable[int]) -> str:
        times = [self._times[rank] for rank in ranks if rank in self._times]
        return f"at {format_span(times)}, " if times else ""

    def alike(self) -> list[tuple[list[int], BaseException, str]]:
        """Returns the different errors, each as its ranks, one error of theirs, and the text.

        Errors that differ only in what is their rank's own, such as its device, are one entry.
        """
        alike: dict[object, dict[int, str]] = {}
        for rank, error in self.errors.items():
            text, kind = text_of(error), _trace(error)
            if isinstance(error, RankDeadlockError):
                # Ranks of one deadlock differ in one line, which says what each waits for.
                text, kind = error.shared(), ()
            elif isinstance(error, CollectiveMismatchError | TransferMismatchError):
                # Its text names every rank's call; what a rank was handling stands in a note.
                text, kind = str(error), ()
            alike.setdefault((type(error), kind, shape_of(text)), {})[rank] = text
        return [
            (ranks, self.errors[ranks[0]], self._with_notes(ranks, text))
            for texts in alike.values()
            for ranks, text in self._folded(texts)
        ]

    def _folded(self, texts: Mapping[int, str]) -> list[Folded]:
        ours = isinstance(self.errors[next(iter(texts))], KernbenchError)
        return fold(texts, _EACH if ours else "", self.spec.nproc_per_node)

    def _with_notes(self, ranks: Sequence[int], text: str) -> str:
        """Returns what ranks say, with what only one of them says."""
        error = self.errors[ranks[0]]
        if isinstance(error, RankDeadlockError):
            return text if len(ranks) > 1 else text_of(error)
        if isinstance(error, CollectiveMismatchError | TransferMismatchError):
            notes: dict[str, dict[int, str]] = {}
            for rank in ranks:
                for note in _notes(self.errors[rank]):
                    notes.setdefault(shape_of(note), {})[rank] = note
            told = [told.text for alike in notes.values() for told in fold(alike, _EACH)]
            return "\n  ".join([text, *told])
        return text

    def aborted_lines(self) -> list[str]:
        """Returns where ranks were aborted that had done nothing wrong, one line for each place."""
        places: dict[str, dict[int, str]] = {}
        for rank, where in self.aborted.items():
            if rank not in self.errors:
                places.setdefault(shape_of(where), {})[rank] = where
        return [
            f"{folded(ranks)} aborted {self._when(ranks)}{where}"
            for alike in places.values()
            for ranks, where in fold(alike, most=None)
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
        """Yields each rank's error, without the calls that the error of an earlier rank lists.

        The n errors of a deadlock of n ranks would otherwise list n * n calls.
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


class SpawnInterrupted(KeyboardInterrupt):
    """A spawn was stopped from outside (R5); its cause is the interrupt itself.

    Args:
        time_ps: Simulated time in picoseconds that the foremost rank has reached.
        places: Lines that say where all ranks were.

    Attributes:
        time_ps: The same.
        places: The same.
    """

    def __init__(self, time_ps: int, places: Sequence[str]) -> None:
        self.time_ps: Final = time_ps
        self.places: Final = tuple(places)
        super().__init__("\n  ".join([f"at {format_time(time_ps)} of simulated time", *places]))


_EACH: Final = "each of {}"
"""What stands in a text in place of the rank that says it, if more ranks say the same."""


def error_as_json(error: BaseException, *, ranks: bool = True) -> dict[str, Any]:
    """Returns the content of any error as plain values.

    Args:
        error: Any exception.
        ranks: Whether to include the calls that the error lists.
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
    """Returns the text of an error with its notes, even if `str(error)` fails (R10).

    The note that points to `kernbench explain` is left out; it stands at the end of the report.
    """
    try:
        text = str(error)
    except Exception:
        text = "<its text could not be made>"
    return "\n  ".join([text, *_notes(error)])


def _notes(error: BaseException) -> list[str]:
    return [note for note in getattr(error, "__notes__", ()) if not note.startswith(EXPLAIN)]


def _trace(error: BaseException) -> tuple[tuple[int, int], ...]:
    """Returns a value that is equal for tracebacks that are equal in the user's code."""
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
