"""Where a mistake may go in a program, and what is around it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from programs_steps import (
    MESSAGES,
    OBJECTS,
    Call,
    Program,
    Step,
    Wait,
    conflict,
    reads_of,
    writes_of,
)

ONE_TENSOR = ("all_reduce", "broadcast", "reduce")
"""Collectives of one tensor, of the same shape on all ranks."""

_SAME = {"all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter"}
"""Functions that may meet others, since they do the same."""

Mark = tuple[int, int]
"""A rank, and the index of one of its steps."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A program with a mistake.

    Attributes:
        what: The mistake, in a few words.
        rank: Who makes it.
        program: The program with it; `events` are those of the correct one.
        codes: What it may be reported as; empty for an exception of the user's.
        marks: The line of one of these steps must be shown.
        also: That of one of these, too, if there are any and the report is no cycle of waits.
        reports: How many different ones there may be.
        failed: Ranks that may be reported as failed; None for any.
        guilty: Whether the rank that makes it must be among them.
        harmless: Whether nothing may happen, too; then all values must be right.
        planted: The text of the user's exception.
    """

    what: str
    rank: int
    program: Program
    codes: frozenset[str]
    marks: frozenset[Mark]
    failed: frozenset[int] | None = None
    guilty: bool = True
    harmless: bool = False
    planted: str = ""
    also: frozenset[Mark] = frozenset()
    reports: int = 1


@dataclass(frozen=True, slots=True)
class Place:
    """A step that may be changed.

    Attributes:
        program: The correct program.
        rank: Whose step.
        index: Which one.
    """

    program: Program
    rank: int
    index: int

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps of the rank."""
        return self.program.steps[self.rank]

    @property
    def step(self) -> Step:
        """The step."""
        return self.steps[self.index]

    @property
    def before(self) -> tuple[Step, ...]:
        """What the rank does before it."""
        return self.steps[: self.index]

    @property
    def behind(self) -> tuple[Step, ...]:
        """What the rank does after it."""
        return self.steps[self.index + 1 :]

    @property
    def here(self) -> frozenset[Mark]:
        """The step as a mark."""
        return frozenset({(self.rank, self.index)})

    def members(self, group: int) -> tuple[int, ...]:
        """Returns the ranks of a group."""
        return self.program.groups[group]

    def collective(self) -> Call | None:
        """Returns the step if it is a collective of several ranks."""
        step = self.step
        if isinstance(step, Call) and not step.is_message and len(self.members(step.group)) > 1:
            return step
        return None

    def message(self) -> Call | None:
        """Returns the step if it sends or receives one message."""
        step = self.step
        return step if isinstance(step, Call) and step.name in MESSAGES else None

    def parts(self, events: set[int]) -> frozenset[Mark]:
        """Returns where ranks call their parts of some events."""
        return frozenset(
            (rank, index)
            for rank, steps in enumerate(self.program.steps)
            for index, step in enumerate(steps)
            if isinstance(step, Call) and step.event in events
        )

    def following(self, group: int) -> Call | None:
        """Returns the next collective of the rank on a group."""
        for step in self.behind:
            if isinstance(step, Call) and not step.is_message and step.group == group:
                return step
        return None

    def with_steps(self, steps: tuple[Step, ...]) -> Program:
        """Returns the program with other steps of this rank."""
        everybody = list(self.program.steps)
        everybody[self.rank] = steps
        return replace(self.program, steps=tuple(everybody))

    def with_step(self, step: Step) -> Program:
        """Returns the program with another step here."""
        return self.with_steps((*self.before, step, *self.behind))

    def dtype(self, call: Call) -> str:
        """Returns the type of a call's tensors; empty if it has none."""
        refs = call.reads() + call.writes()
        return self.program.slots[refs[0].slot].dtype if refs else ""

    def differing(self, first: Call, second: Call) -> frozenset[str]:
        """Returns as codes what two calls on one group certainly differ in."""
        if _SAME.get(first.name, first.name) != _SAME.get(second.name, second.name):
            return frozenset({"C2"})
        if first.name in {*OBJECTS, "coalesced", "barrier", "all_to_all", "all_to_all_single"}:
            return frozenset()
        codes = {
            "C7": first.root != second.root,
            "C5": first.op != second.op,
            "C4": self.dtype(first) != self.dtype(second),
            "C3": first.name == second.name and _shape(first) != _shape(second),
        }
        return frozenset(code for code, differs in codes.items() if differs)

    def is_missed(self) -> bool:
        """Returns whether the rank uses what the step would have written, where nothing is yet."""
        assert isinstance(self.step, Call)
        empty = [ref for ref in self.step.writes() if self.program.slots[ref.slot].values is None]
        return any(ref.overlaps(read) for s in self.behind for read in reads_of(s) for ref in empty)

    def collision(self, index: int) -> frozenset[str]:
        """Returns as codes what is reported if nobody waits for an asynchronous call."""
        call = self.steps[index]
        assert isinstance(call, Call)
        for step in self.behind:
            if isinstance(step, Call) and step.handle and _line(step) == _line(call):
                continue
            read = any(ref.overlaps(one) for ref in call.writes() for one in reads_of(step))
            written = conflict((call.reads(), call.writes()), ((), writes_of(step)))
            if read and written and isinstance(step, Call):
                return frozenset({"C14", "C15"})  # a collective in place does both at once
            if read or written:
                return frozenset({"C14" if written else "C15"})  # writes are looked at first
        return frozenset({"C13"})

    def is_free(self, call: Call) -> bool:
        """Returns whether a call that may write more than the one here meddles with nothing else.

        An asynchronous one would, as long as nobody waits for it.
        """
        used = (call.reads(), call.writes())
        waited = {step.event for step in self.before if isinstance(step, Wait)}
        return not call.handle and not any(
            isinstance(step, Call)
            and step.handle
            and step.event not in waited
            and conflict(used, (step.reads(), step.writes()))
            for step in self.before
        )

    def is_clear(self, call: Call, *, tags: bool = True) -> bool:
        """Returns whether no other message could be taken for one that is sent or received here.

        Args:
            call: Another message, or the one that is here.
            tags: Whether tags tell messages apart.
        """
        assert isinstance(self.step, Call)
        event, keys = self.step.event, list(self._keys())
        mine = [_key(self.rank, call), *(key for key, other in keys if other == event)]
        # Who receives from anybody may be told about any other message.
        count = 4 if tags and not any(None in key for key in mine) else 3
        return not any(
            all(a == b or None in {a, b} for a, b in zip(key[:count], one[:count], strict=True))
            for key, other in keys
            if other != event
            for one in mine
        )

    def _keys(self) -> Iterator[tuple[tuple[int | None, ...], int]]:
        """Yields what identifies each side of each message, and its event."""
        for rank, steps in enumerate(self.program.steps):
            for step in steps:
                if isinstance(step, Call) and step.is_message:
                    for part in step.parts or (step,):
                        yield _key(rank, part), step.event

    def is_waited_for(self, index: int, steps: tuple[Step, ...]) -> bool:
        """Returns whether some steps wait for a call, or for what stands behind it in line."""
        call = self.steps[index]
        assert isinstance(call, Call)
        return any(
            (isinstance(step, Wait) and step.event == call.event) or self._covers(call, step)
            for step in steps
        )

    def is_covered(self, index: int) -> bool:
        """Returns whether a call is waited for before it matters, also without the wait here."""
        call = self.steps[index]
        assert isinstance(call, Call)
        used = (call.reads(), call.writes())
        for step in (*self.steps[index + 1 : self.index], *self.behind):
            behind = isinstance(step, Call) and step.handle and _line(step) == _line(call)
            if not behind and conflict(used, (reads_of(step), writes_of(step))):
                return False
            if self._covers(call, step):
                return True
        return False

    def _covers(self, call: Call, step: Step) -> bool:
        """Returns whether a step waits for what stands behind a call in line."""
        if isinstance(step, Wait):
            later = next(c for c in self.steps if isinstance(c, Call) and c.event == step.event)
        elif isinstance(step, Call) and step.is_message and not step.handle:
            later = step
        else:
            return False
        return later.event > call.event and _line(later) == _line(call)


def _shape(call: Call) -> object:
    """Returns the shape of what all ranks must agree on, if there is one."""
    if call.name.startswith(("all_gather", "gather")):
        return call.given[0].shape
    if call.name in {"reduce_scatter_tensor", "scatter"}:
        return call.taken[0].shape
    return (call.given or call.taken)[0].shape if call.name in ONE_TENSOR else None


def _line(call: Call) -> tuple[object, ...]:
    """Returns what calls have in common that run one after the other on their rank."""
    if call.name == "batch_isend_irecv":
        return ("batch",)
    return ("peer", call.peer) if call.is_message else ("group", call.group)


def _key(rank: int, call: Call) -> tuple[int | None, ...]:
    """Returns the group, the sender, the receiver and the tag of a message."""
    pair = (rank, call.peer) if call.given else (call.peer, rank)
    return (call.group, *pair, call.tag)
