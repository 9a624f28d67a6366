"""Puts the steps of all blocks into rounds.

In a round each block sends at most once, then receives at most once. Both ends of a transfer are
ready in the same round wherever that is possible, so that nobody waits with full slots.
"""

from collections import deque
from typing import Final, NamedTuple

from kernbench.ccl.files.blocks import Blocks, Memory, Step, lies
from kernbench.ccl.files.run import Links
from kernbench.errors import UnsupportedError


class _Part(NamedTuple):
    """A part of a step that happens in one round: `move`, `receive` or `send`."""

    step: int
    what: str


class Event(NamedTuple):
    """What happens in a round: `move`, `arrive`, `meet`, or `hold` of what arrives later.

    Attributes:
        process: The block that moves, or receives.
        step: Its step.
        sender: The block that sends, or sent; -1 for none.
        sent: The step of that block.
    """

    what: str
    process: int
    step: int
    sender: int = -1
    sent: int = -1


class Scheduler:
    """Puts the parts of all steps into rounds.

    Args:
        file: A proved file.
        memory: Where its chunks lie.
    """

    def __init__(self, file: Blocks, memory: Memory) -> None:
        self.file: Final = file
        self.links: Final = Links(file)
        self.memory: Final = memory
        self.every: Final = file.every
        self.parts: Final = [self._parts(block.steps) for block in self.every]
        self.at: Final = [0] * len(self.every)
        self.done: Final = [0] * len(self.every)
        self.held: Final[dict[tuple[int, int], deque[tuple[int, int]]]] = {}
        self.log: list[list[Event]] = []

    @staticmethod
    def _parts(steps: tuple[Step, ...]) -> list[_Part]:
        found = []
        for number, step in enumerate(steps):
            kind = step.kind
            if kind.receives:
                found.append(_Part(number, "receive"))
            elif not kind.sends:
                found.append(_Part(number, "move"))
            if kind.sends:
                found.append(_Part(number, "send"))
        return found

    def rounds(self) -> list[list[Event]]:
        """Returns what happens in each round.

        Raises:
            UnsupportedError: If what two channels between the same ranks send passes each other.
        """
        while any(at < len(parts) for at, parts in zip(self.at, self.parts, strict=True)):
            self.log.append([])
            moved = self._moves()
            arrived = self._arrivals()
            met = self._meetings()
            if not (moved or arrived or met or self._hold()):
                raise UnsupportedError(
                    f"{self.file.path}: channels between the same two ranks pass each other",
                    hint="messages between two ranks keep their order here; use one channel",
                )
        return self.log

    def _ready(self, process: int, ahead: int = 0) -> _Part | None:
        """Returns the next part of a block, or the one `ahead` of it, if it waits for no block."""
        parts = self.parts[process]
        at = self.at[process] + ahead
        if at >= len(parts):
            return None
        part = parts[at]
        waits = self.links.after[process][part.step]
        return part if all(self.done[other] > step for other, step in waits) else None

    def _pass(self, process: int) -> None:
        parts, at = self.parts[process], self.at[process] + 1
        self.at[process] = at
        self.done[process] = parts[at].step if at < len(parts) else len(self.every[process].steps)

    def _moves(self) -> bool:
        any_moved, again = False, True
        while again:
            again = False
            for process in range(len(self.every)):
                while (part := self._ready(process)) is not None and part.what == "move":
                    self.log[-1].append(Event("move", process, part.step))
                    self._pass(process)
                    any_moved = again = True
        return any_moved

    def _pair(self, queue: int) -> tuple[int, int]:
        connection = self.links.connections[queue]
        return connection.sender, connection.receiver

    def _arrivals(self) -> bool:
        """Lets what was held in slots arrive, in order of each pair of ranks."""
        found = False
        for held in self.held.values():
            while held:
                sender, step = held[0]
                receiver = self.links.receivers[self.links.into[sender]]
                part = self._ready(receiver)
                if part is None or part.what != "receive":
                    break
                held.popleft()
                self.log[-1].append(Event("arrive", receiver, part.step, sender, step))
                self._pass(receiver)
                found = True
        return found

    def _meetings(self) -> bool:
        """Lets transfers happen whose two ends are ready in this round."""
        links = self.links
        meet: dict[int, tuple[int, int]] = {}  # sender: receiver, and how far ahead it receives
        for process in range(len(self.every)):
            part = self._ready(process)
            if (
                part is None
                or part.what != "send"
                or self.held.get(self._pair(links.into[process]))
            ):
                continue
            receiver = links.receivers[links.into[process]]
            for ahead in (0, 1):
                theirs = self._ready(receiver, ahead)
                if theirs is None:
                    break
                if theirs.what == "receive" and not (ahead and self._overwrites(receiver)):
                    meet[process] = receiver, ahead
                    break
                if theirs.what != "send":
                    break
        # Who receives after its own send needs that send to happen, too.
        while late := [p for p, (other, ahead) in meet.items() if ahead and other not in meet]:
            for process in late:
                del meet[process]
        steps = {}
        for process, (receiver, ahead) in meet.items():
            mine, theirs = self._ready(process), self._ready(receiver, ahead)
            assert mine is not None
            assert theirs is not None
            steps[process] = receiver, theirs.step, mine.step
        for process, (receiver, theirs_step, mine_step) in steps.items():
            self.log[-1].append(Event("meet", receiver, theirs_step, process, mine_step))
        for process in steps:
            self._pass(process)
        for receiver, _, _ in steps.values():
            self._pass(receiver)
        return bool(steps)

    def _overwrites(self, process: int) -> bool:
        """Returns whether a block is about to send chunks which its next step writes."""
        block, at = self.every[process], self.parts[process][self.at[process]].step
        leaving, arriving = block.steps[at], block.steps[at + 1]
        sends = self.memory.at(block.rank, lies(leaving))
        stores = self.memory.at(block.rank, lies(arriving))
        return sends < stores + arriving.count and stores < sends + leaving.count

    def _hold(self) -> bool:
        """Lets one transfer leave whose receiver is not ready; it waits in slots."""
        sends = [
            process
            for process in range(len(self.every))
            if (part := self._ready(process)) is not None and part.what == "send"
        ]
        if not sends:
            return False

        def held(process: int) -> int:
            return len(self.held.get(self._pair(self.links.into[process]), ()))

        process = min(sends, key=lambda one: (held(one), one))
        part = self.parts[process][self.at[process]]
        queue = self.held.setdefault(self._pair(self.links.into[process]), deque())
        queue.append((process, part.step))
        receiver = self.links.receivers[self.links.into[process]]
        self.log[-1].append(Event("hold", receiver, -1, process, part.step))
        self._pass(process)
        return True
