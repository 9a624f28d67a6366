"""What a rank of PyTorch calls together with others, as PyTorch's own flight recorder notes it."""

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

from kernbench.des import is_outermost
from kernbench.errors import is_ours
from kernbench.process.process import Process
from kernbench.ranks.meeting import Call, Meeting

KEPT: Final = 2000
"""Entries of a rank that are kept, as many as PyTorch keeps."""

Lane = tuple[str, int, int]
"""Calls that ranks number alike: those of a group, or of its messages from one rank to another."""

_DEFAULT_TIMEOUT_MS: Final = 600_000


class Shaped(NamedTuple):
    """What the recorder keeps of a tensor."""

    sizes: list[int]
    dtype: str


class Told(NamedTuple):
    """An operation as PyTorch's libraries name and describe it.

    Attributes:
        name: Its name, such as `_all_gather_base`.
        inputs: Tensors that are sent.
        outputs: Tensors that take what comes.
        way: Of a message, sender and receiver, by their numbers in the group; None otherwise.
    """

    name: str
    inputs: Sequence[Shaped]
    outputs: Sequence[Shaped]
    way: tuple[int, int] | None = None


class Known(NamedTuple):
    """A group as a rank's files name it."""

    number: int
    name: str
    desc: str
    ranks: tuple[int, ...]
    timeout_ms: int


class Progress:
    """How far a call has come; the calls of one batch share it.

    Attributes:
        calls: Calls of this package whose commands are not complete, each with what it is part of.
        refused: Whether the call has failed before it was joined with those of other ranks.
        state: `completed`, `started` or `scheduled`, once somebody has found out.
        began: When the first command began, in picoseconds; None while unknown.
        ended: When the last command ended, in picoseconds; None while unknown.
    """

    def __init__(self) -> None:
        self.calls: dict[Call, Meeting] = {}
        self.refused = False
        self.state = "scheduled"
        self.began: int | None = None
        self.ended: int | None = None

    def heard(self, call: Call, meeting: Meeting) -> None:
        """Takes note of a call of this package that belongs to the entry."""
        self.calls[call] = meeting

    def watch(self) -> None:
        """Lets go of calls as soon as their commands are complete; they have been made."""
        for call in tuple(self.calls):
            if call.command is not None:
                call.command.done.when_settled(self._letting_go(call))

    def _letting_go(self, call: Call) -> Callable[[int], None]:
        command = call.command
        assert command is not None
        times = [command.issued, *(event.time for event in command.after if event.time is not None)]

        def done(time: int) -> None:
            began = max([*times, *(e.time for e in command.after if e.time is not None)])
            self.began = began if self.began is None else min(self.began, began)
            self.ended = time if self.ended is None else max(self.ended, time)
            self.calls.pop(call, None)
            if not self.calls:
                self.state = "completed"

        return done


class Entry(NamedTuple):
    """A call of a rank.

    Attributes:
        record: Number among all of the rank's entries, from 0.
        group: The group.
        library: `nccl`, or `gloo` for tensors of the host.
        told: The operation.
        sequence: Number among the collectives of the group; a batch has one.
        messages: Number among the messages of the group; a batch has one.
        operation: Number among all operations of the group.
        lane: What else ranks number alike.
        turn: Number in the lane.
        created: Host time of the call in picoseconds.
        frames: Where it was called, the innermost line first.
        progress: How far it has come.
    """

    record: int
    group: Known
    library: str
    told: Told
    sequence: int
    messages: int
    operation: int
    lane: Lane
    turn: int
    created: int
    frames: list[dict[str, Any]]
    progress: Progress

    @property
    def is_message(self) -> bool:
        """Whether it is a message, or the end of a batch of messages."""
        return bool(self.lane[1:] != (-1, -1))


class FlightRecorder:
    """The calls of one rank.

    Attributes:
        process: The rank.
        entries: The last calls, the oldest first.
        dropped: Of each lane, the number of the last entry that is not kept any more.
        groups: The groups of which the rank is a member, by name.
        stopped: Whether the rank was ended because another one has failed.
    """

    def __init__(self, process: Process) -> None:
        self.process: Final = process
        self.entries: Final[deque[Entry]] = deque()
        self.dropped: Final[dict[Lane, int]] = {}
        self.groups: Final[dict[str, Known]] = {}
        self.stopped = False
        self._counts: Final[dict[tuple[str, str], int]] = {}
        self._lanes: Final[dict[Lane, int]] = {}
        self._frames: Final[dict[tuple[tuple[CodeType, int], ...], list[dict[str, Any]]]] = {}
        self._records = 0
        self._inside = False
        self._batch: tuple[Progress, str] | None = None

    def joined(self, name: str, desc: str | None, ranks: Sequence[int], timeout: Any) -> None:
        """Notes a group of which the rank is a member.

        Args:
            name: PyTorch's name of the group.
            desc: The user's description of it.
            ranks: Its global ranks.
            timeout: Its time-out, a `timedelta`; None: that of NCCL.
        """
        wait = _DEFAULT_TIMEOUT_MS if timeout is None else round(timeout.total_seconds() * 1000)
        number = len(self.groups)
        self.groups[name] = Known(number, name, desc or "undefined", tuple(ranks), wait)

    @contextmanager
    def noting(self, group: str, library: str, told: Sequence[Told]) -> Iterator[None]:
        """Notes a call until the end of the block; calls inside of another one are part of it.

        Args:
            group: Name of the group.
            library: `nccl`, or `gloo` for tensors of the host.
            told: The operations, of which the last one ends the batch if there are several.
        """
        if self._inside:
            yield
            return
        progress = Progress() if self._batch is None else self._batch[0]
        self._add(self.groups[group], library, told, progress)
        before, self.process.heard = self.process.heard, self._hearing(progress)
        self._inside = True
        try:
            yield
        except BaseException:
            progress.refused = not progress.calls
            raise
        else:
            if not progress.calls:
                progress.state = "completed"  # as by a rank alone
        finally:
            self._inside = False
            self.process.heard = before
            progress.watch()

    def begin_batch(self) -> None:
        """Begins a group of calls that the library runs as one."""
        self._batch = (Progress(), "")

    def end_batch(self, group: str) -> None:
        """Ends a group of calls; notes its end if it has any."""
        batch, self._batch = self._batch, None
        if batch is None or not self.entries or self.entries[-1].progress is not batch[0]:
            return
        last = self.entries[-1]
        end = Told("coalesced", (), (), last.told.way)
        self._append(self.groups[group], last.library, end, batch[0])

    def _hearing(self, progress: Progress) -> Callable[..., Any]:
        before, rank = self.process.heard, self.process.rank

        def hear(meeting: Any, gives: Any, action: Any) -> Any:
            progress.heard(meeting.calls[rank], meeting)
            return action if before is None else before(meeting, gives, action)

        return hear

    def _add(self, group: Known, library: str, told: Sequence[Told], progress: Progress) -> None:
        named = f"{group.name}:{library}"
        begun = self._batch is not None and self._batch[1] == named
        if self._batch is not None:
            self._batch = (self._batch[0], named)
        if not begun:
            self._next(named, "messages" if told[0].way else "sequence")
        for one in told:
            self._append(group, library, one, progress)

    def _append(self, group: Known, library: str, told: Told, progress: Progress) -> None:
        named = f"{group.name}:{library}"
        lane = (named, *(told.way or (-1, -1)))
        ends = told.name == "coalesced"
        turn = self._counts.get((named, "sequence"), 0)
        if told.way is not None:
            turn = self._lanes.get(lane, 0) + (not ends)
            self._lanes[lane] = turn
        entry = Entry(
            self._records,
            group,
            library,
            told,
            self._counts.get((named, "sequence"), 0),
            self._counts.get((named, "messages"), 0),
            self._counts.get((named, "operation"), 0) if ends else self._next(named, "operation"),
            lane,
            turn,
            self.process.host.clock,
            self._stack(),
            progress,
        )
        self._records += 1
        self.entries.append(entry)
        if len(self.entries) > KEPT:
            gone = self.entries.popleft()
            self.dropped[gone.lane] = gone.turn

    def _next(self, named: str, kind: str) -> int:
        count = self._counts[named, kind] = self._counts.get((named, kind), 0) + 1
        return count

    def _stack(self) -> list[dict[str, Any]]:
        """Returns the lines that have led here, without those of this package."""
        lines: list[tuple[CodeType, int]] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not is_outermost(frame):
            if not is_ours(frame):
                lines.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        key = tuple(lines)
        if key not in self._frames:
            self._frames[key] = [
                {"name": code.co_name, "filename": code.co_filename, "line": line}
                for code, line in lines
            ]
        return self._frames[key]
