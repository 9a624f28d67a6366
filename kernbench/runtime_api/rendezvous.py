"""Where the ranks of a group meet: the k-th collective of every rank is the same collective."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kernbench.errors import CallSite, KernbenchError, site_fact
from kernbench.memory import DType
from kernbench.units import format_time

if TYPE_CHECKING:
    from kernbench.runtime_api.process import Process
    from kernbench.sim_engine.command import Command


class CollectiveMismatchError(KernbenchError):
    """The ranks of a group did not call the same collective (C1-C5)."""


@dataclass(slots=True, eq=False)
class Call:
    """One rank's call of a collective.

    Attributes:
        rank: Global rank.
        operation: Name, such as `all_reduce`.
        shape: Of its tensor.
        dtype: Of its tensor.
        reduction: Name of the reduce operation; empty where there is none.
        site: Where the user called it.
        time: Host time of the call, in picoseconds.
        command: What waits in the rank's stream; None until issued.
    """

    rank: int
    operation: str
    shape: tuple[int, ...]
    dtype: DType
    reduction: str
    site: CallSite | None
    time: int
    command: "Command | None" = None

    def describe(self) -> str:
        """Returns `all_reduce(shape, dtype, op)`, or `barrier()`."""
        if self.operation == "barrier":
            return "barrier()"
        reduction = f", {self.reduction}" if self.reduction else ""
        return f"{self.operation}({list(self.shape)}, {self.dtype}{reduction})"

    def fact(self, label: str) -> str:
        """Returns a line of a report."""
        return f"{label}: {self.describe()} at {format_time(self.time)}, {site_fact(self.site)}"


@dataclass(slots=True, eq=False)
class Meeting:
    """One collective of a group while its ranks come.

    Attributes:
        number: Sequence number in the group, from 1.
        calls: By global rank.
        shared: What the ranks have in common, made by the first one.
    """

    number: int
    calls: dict[int, Call] = field(default_factory=dict)
    shared: Any = None


class ProcessGroup:
    """Ranks that call collectives together.

    Attributes:
        name: For reports.
        ranks: Global ranks; a rank's place is its rank in the group.
        open: Meetings that not all ranks have come to, by number.
    """

    def __init__(self, name: str, ranks: Sequence[int]) -> None:
        self.name: Final = name
        self.ranks: Final = tuple(ranks)
        self.open: dict[int, Meeting] = {}
        self._numbers: dict[int, int] = dict.fromkeys(self.ranks, 0)
        self._history: dict[int, Call] = {}
        self.last: dict[int, Command] = {}

    def size(self) -> int:
        """Returns the number of ranks."""
        return len(self.ranks)

    def __repr__(self) -> str:
        return f"<group {self.name} of {len(self.ranks)} ranks>"

    def enter(self, call: Call, make: Callable[[], Any]) -> Meeting:
        """Takes a rank's next call to where the others are; does not wait.

        Args:
            call: What the rank called.
            make: Makes what the ranks will share; called for the first of them.

        Raises:
            CollectiveMismatchError: If another rank called something else.
        """
        number = self._numbers[call.rank] = self._numbers[call.rank] + 1
        self._history[call.rank] = call
        meeting = self.open.get(number)
        if meeting is None:
            meeting = self.open[number] = Meeting(number)
        meeting.calls[call.rank] = call
        first = next(iter(meeting.calls.values()))
        if first is not call:
            self._compare(meeting, first, call)
        if meeting.shared is None:
            meeting.shared = make()
        if len(meeting.calls) == len(self.ranks):
            del self.open[number]
        return meeting

    def _compare(self, meeting: Meeting, first: Call, call: Call) -> None:
        for code, what, expected, got in (
            ("C2", "collective", first.operation, call.operation),
            ("C5", "reduce operation", first.reduction, call.reduction),
            ("C4", "dtype", first.dtype, call.dtype),
            ("C3", "shape", list(first.shape), list(call.shape)),
        ):
            if expected != got:
                raise self._mismatch(code, what, meeting, first, call)

    def _mismatch(
        self, code: str, what: str, meeting: Meeting, first: Call, call: Call
    ) -> CollectiveMismatchError:
        facts = self._grouped(meeting)
        hint = "every rank of a group calls the same collectives in the same order"
        if code == "C3":
            same = _product(first.shape) == _product(call.shape)
            hint = (
                "the number of elements is the same, so hardware would not notice"
                if same
                else "all ranks reduce tensors of one shape"
            )
        if code == "C4" and first.dtype.itemsize == call.dtype.itemsize:
            hint = "the types have the same size, so hardware would add up the wrong numbers"
        ranks = ", ".join(str(rank) for rank in sorted(meeting.calls))
        return CollectiveMismatchError(
            f"collective #{meeting.number} of group {self.name}: ranks {ranks} differ in {what}",
            facts,
            hint=hint,
            code=code,
        )

    def _grouped(self, meeting: Meeting) -> list[str]:
        alike: dict[tuple[str, object], list[Call]] = {}
        for rank in sorted(meeting.calls):
            call = meeting.calls[rank]
            where = str(call.site) if call.site is not None else ""
            alike.setdefault((call.describe(), where), []).append(call)
        return [calls[0].fact(folded([c.rank for c in calls])) for calls in alike.values()]

    def number(self, rank: int) -> int:
        """Returns the sequence number of a rank's latest call."""
        return self._numbers[rank]

    def absent(self, meeting: Meeting) -> list[int]:
        """Returns the ranks that have not come."""
        return [rank for rank in self.ranks if rank not in meeting.calls]

    def missing(self, meeting: Meeting, exited: "dict[int, Process]") -> CollectiveMismatchError:
        """Returns the error of a collective that some ranks never call (C1)."""
        waiting = sorted(meeting.calls)
        absent = self.absent(meeting)
        operation = meeting.calls[waiting[0]].operation
        facts = [f"waiting {fact}" for fact in self._grouped(meeting)]
        for rank in absent:
            last = self._history.get(rank)
            after = (
                f"its last collective was #{self._numbers[rank]}, {last.fact(folded([rank]))}"
                if last is not None
                else "it called none"
            )
            state = "returned" if rank in exited else "has not come"
            facts.append(f"missing rank {rank} {state}; {after}")
        return CollectiveMismatchError(
            f"{operation} #{meeting.number} of group {self.name}: {folded(waiting)} "
            f"{'wait' if len(waiting) > 1 else 'waits'} for {folded(absent)}",
            facts,
            hint="every rank of a group must call the collective; look for a branch on the rank",
            code="C1",
        )


def folded(ranks: Sequence[int]) -> str:
    """Returns `rank 3`, or `ranks 0-2, 5`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][-1] == rank - 1:
            runs[-1] = [runs[-1][0], rank]
        else:
            runs.append([rank])
    text = ", ".join("-".join(str(end) for end in run) for run in runs)
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {text}"


def _product(shape: Sequence[int]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count
