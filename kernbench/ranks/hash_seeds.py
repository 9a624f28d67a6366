"""Telling where a program depends on the hash seed of Python, of which each rank has its own (R11).

The iteration order of a set of strings follows from the hash seed, which differs between processes.
On hardware each rank is a process; here all ranks share one, so that they always agree. Runs under
several seeds show what ranks with different seeds would do to one another.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from kernbench.errors import KernbenchError, site_fact
from kernbench.memory import View
from kernbench.process.process import Process
from kernbench.ranks.meeting import Meeting
from kernbench.sim_engine.command import Action, Command

_DIGITS: Final = 12
"""Digits of a hash that a report shows."""


class HashSeedError(KernbenchError):
    """Ranks with different hash seeds would disagree, or a result depends on the seed (R11)."""


class Said(NamedTuple):
    """A call of a rank that other ranks must make, too.

    Attributes:
        title: Name in reports, such as `all_reduce #7 of group WORLD`.
        text: The call as reports show it.
        place: Where the user made the call, as reports show it.
        members: Global ranks that must call.
        values: Hash of the values that the rank gives; empty without values.
    """

    title: str
    text: str
    place: str
    members: tuple[int, ...]
    values: str


class Trial(NamedTuple):
    """What a run under a hash seed did.

    Attributes:
        seed: The hash seed.
        calls: The calls of each rank, in its order; by rank.
        data: Hash of the values that hosts have read.
        ends: How the program ended; empty if all ranks returned.
    """

    seed: int
    calls: Mapping[int, Sequence[Said]]
    data: str
    ends: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the trial as plain values for JSON."""
        return {**self._asdict(), "calls": {str(rank): said for rank, said in self.calls.items()}}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Trial":
        """Returns the trial of the plain values of `to_json`."""
        calls = {
            int(rank): [
                Said(title, text, place, tuple(members), values)
                for title, text, place, members, values in said
            ]
            for rank, said in document["calls"].items()
        }
        return cls(document["seed"], calls, document["data"], tuple(document["ends"]))


class Calls:
    """Notes what ranks call together, and the values that they give."""

    def __init__(self) -> None:
        self._noted: dict[int, list[_Note]] = {}

    @property
    def by_rank(self) -> dict[int, list[Said]]:
        """The calls of each rank so far, in its order."""
        return {rank: [note.said() for note in notes] for rank, notes in self._noted.items()}

    def of(self, process: Process) -> Callable[[object, Sequence[View], Action], Action]:
        """Returns what is to hear the meetings of a process; see `Process.heard`."""
        notes = self._noted.setdefault(process.rank, [])

        def hear(meeting: object, gives: Sequence[View], action: Action) -> Action:
            assert isinstance(meeting, Meeting)
            call = meeting.calls[process.rank]
            note = _Note(meeting, call.text, site_fact(call.site))
            notes.append(note)
            return _Giving(action, note, gives) if gives and process.engine.enable_data else action

        return hear


class _Note:
    """A call as it was heard; its values are known when the rank's stream comes to it."""

    def __init__(self, meeting: Meeting, text: str, place: str) -> None:
        self._meeting: Final = (meeting.title, text, place, tuple(sorted(meeting.members)))
        self.values = ""

    def said(self) -> Said:
        return Said(*self._meeting, self.values)


class _Giving:
    """Action that notes the values that a rank gives before the rank's own action begins."""

    def __init__(self, action: Action, note: _Note, gives: Sequence[View]) -> None:
        self._action: Final = action
        self._note: Final = note
        self._gives: Final = gives

    def begin(self, command: Command, start: int) -> None:
        """See `Action`."""
        from hashlib import sha256

        whole = sha256()
        try:
            for view in self._gives:
                whole.update(np.ascontiguousarray(view.read()).tobytes())
        except KernbenchError:
            pass  # the action itself tells of values that were never written
        else:
            self._note.values = whole.hexdigest()
        self._action.begin(command, start)


def compare(first: Trial, second: Trial, again: str) -> None:
    """Checks that a program does the same under two hash seeds.

    If one rank alone behaves differently under the second seed, every mixture of the two seeds is
    as one of the two runs, of which both are right; if two ranks do, their mixture is not.

    Args:
        first: What the program did under a seed.
        second: What it did under another seed.
        again: How a user runs the second one again.

    Raises:
        HashSeedError: If ranks with different seeds would make different calls or mix up what they
            give, or if what hosts read, or how ranks end, differs (R11).
    """
    for summary, differ in (
        ("would not make the same calls", _calls_differ),
        ("would give different things to the same call", _values_differ),
    ):
        parting = list(_partings(first, second, differ))
        if len(parting) > 1:
            (rank, index), (other, at) = _pair(first, parting)
            raise HashSeedError(
                f"ranks {rank} and {other} {summary} on hardware, where each rank has its own hash "
                "seed",
                [
                    _told(first, rank, index, differ is _values_differ),
                    _told(second, other, at, differ is _values_differ),
                    *_endings(first, second),
                ],
                hint=_hint(again),
                code="R11",
            )
    if first.data != second.data or first.ends != second.ends:
        facts = []
        for trial in (first, second):
            ends = "; ".join(trial.ends) or "all ranks return"
            facts.append(f"hash seed {trial.seed}: hosts read data {trial.data[:_DIGITS]}, {ends}")
        raise HashSeedError(
            "the result depends on the hash seed of Python", facts, hint=_hint(again), code="R11"
        )


def _partings(
    first: Trial, second: Trial, differ: Callable[[Said, Said], bool]
) -> Iterator[tuple[int, int]]:
    """Yields each rank whose calls differ, and the index of the first such call."""
    for rank in sorted(first.calls.keys() | second.calls.keys()):
        one, other = _shared(first, rank), _shared(second, rank)
        for index in range(max(len(one), len(other))):
            if index >= min(len(one), len(other)):
                if differ is _calls_differ:
                    yield rank, index
                break
            if differ(one[index], other[index]):
                yield rank, index
                break


def _shared(trial: Trial, rank: int) -> list[Said]:
    return [said for said in trial.calls.get(rank, ()) if len(said.members) > 1]


def _calls_differ(one: Said, other: Said) -> bool:
    return (one.title, one.text, one.members) != (other.title, other.text, other.members)


def _values_differ(one: Said, other: Said) -> bool:
    return one.values != other.values


def _pair(
    first: Trial, parting: Sequence[tuple[int, int]]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Returns two ranks whose calls differ: those of one call, if there are such."""
    for place, (rank, index) in enumerate(parting):
        said = _shared(first, rank)[index : index + 1]
        for other, at in parting[place + 1 :]:
            if said and other in said[0].members:
                return (rank, index), (other, at)
    return parting[0], parting[1]


def _told(trial: Trial, rank: int, index: int, values: bool) -> str:
    head = f"rank {rank} with hash seed {trial.seed}"
    said = _shared(trial, rank)[index : index + 1]
    if not said:
        return f"{head} makes no such call"
    title, text, place, _, given = said[0]
    gives = f", values {given[:_DIGITS] or 'unknown'}" if values else ""
    return f"{head}: {title}: {text}{gives}, {place}"


def _endings(first: Trial, second: Trial) -> list[str]:
    if first.ends == second.ends:
        return []
    ends = "; ".join(second.ends) or "all ranks return"
    return [f"in the run with hash seed {second.seed}: {ends}"]


def _hint(again: str) -> str:
    return (
        "sort what is iterated over, `for name in sorted(names)`, or take a list or a dict instead "
        f"of a set; {again} runs the second one again"
    )
