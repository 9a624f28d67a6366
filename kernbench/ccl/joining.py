"""One rank in a collective: it gives way to kernels of its device, then goes on beside them."""

from collections.abc import Sequence
from typing import Protocol

from kernbench.ccl.prepared import Prepared
from kernbench.des import Guest
from kernbench.hw.device import Device
from kernbench.memory import View
from kernbench.sim_engine.command import Command
from kernbench.sim_engine.engine import GraphEngine


class Joined(Protocol):
    """What a rank joins: the part of `Collective` that ranks call."""

    @property
    def engine(self) -> GraphEngine:
        """Engine that runs it."""
        ...

    @property
    def prepared(self) -> Prepared:
        """Everything known of it before its ranks arrive."""
        ...

    @property
    def is_message(self) -> bool:
        """Whether it is a message from rank to rank."""
        ...

    def check(self, part: "Joining") -> None:
        """Notes a fault if a rank gives what was never written."""
        ...

    def arrive(self, part: "Joining", command: Command) -> None:
        """Takes a rank whose stream has come to the collective. Does not wait."""
        ...

    def put_off(self, part: "Joining", end: int) -> None:
        """Lets a rank whose end was known complete at `end`, in picoseconds, instead."""
        ...


class Joining:
    """The work of one rank in a collective.

    Args:
        rank: Rank inside the group.
        sources: Views of the blocks that the rank gives, in order.
        targets: Views of the blocks that the rank takes, in order.

    Attributes:
        collective: The collective.
        rank: Rank inside the group.
        sources: Views of the blocks that the rank gives, in order.
        targets: Views of the blocks that the rank takes, in order.
        start: When the rank began: its stream had come to the collective, and no kernel was in its
            way; in picoseconds.
        slows: See `Guest`.
        slowed: See `Guest`.
        late: By how much kernels have put its end off, in picoseconds.
        end: When it ends, as far as that is known, in picoseconds; None if it is not.
        guests: Those of the device, if it is one of them; else None.
        attempt: Number of ends found so far; only the event of the last end has an effect.
        done: Whether the rank's command is complete.
    """

    __slots__ = (
        "attempt",
        "collective",
        "done",
        "end",
        "guests",
        "late",
        "rank",
        "slowed",
        "slows",
        "sources",
        "start",
        "targets",
    )

    start: int
    slows: int
    slowed: int

    def __init__(
        self, collective: Joined, rank: int, sources: Sequence[View], targets: Sequence[View]
    ) -> None:
        self.collective = collective
        self.rank = rank
        self.sources = sources
        self.targets = targets
        self.attempt = 0
        self.done = False
        self.late = 0
        self.end: int | None = None
        self.guests: dict[Guest, None] | None = None

    def begin(self, command: Command, start: int) -> None:
        """See `Action`."""
        engine = self.collective.engine
        self.collective.check(self)
        if engine.overlaps:
            engine.give_way(command, start, self._enter)
            return
        # The local time of an aborted rank may be behind the loop.
        now = engine.loop.now
        self.start = start if start > now else now
        self.collective.arrive(self, command)

    def enter(self, command: Command, start: int) -> None:
        """Joins, as the device has room for it; see `GraphEngine.give_way`.

        Args:
            start: When the rank begins, in picoseconds.
        """
        self.collective.check(self)
        self._enter(command, start)

    def _enter(self, command: Command, start: int) -> None:
        engine = self.collective.engine
        earliest = engine.loop.now - engine.notice(command.stream.sip)
        self.start = start if start > earliest else earliest
        if engine.overlaps and command.stream.sip >= 0:
            self._go_beside(engine.devices[command.stream.sip])
        self.collective.arrive(self, command)

    def _go_beside(self, device: Device) -> None:
        """Becomes a guest of the device, if kernels and collectives slow each other there."""
        overlap, holds = device.sip.overlap, device.compute.holds
        if overlap is not None and holds is not None:
            self.slows = overlap.message if self.collective.is_message else overlap.kernel
            self.slowed = overlap.collective
            if self.slows or self.slowed:
                self.guests = holds.guests
                self.guests[self] = None

    def leave(self) -> None:
        """Is a guest of the device no more: it is over, or will never be."""
        if self.guests is not None:
            del self.guests[self]
            self.guests = None

    def ends(self) -> int | None:
        """See `Guest`; expected as if all ranks began at once, and nobody else were on the links.

        So it is known when the rank begins, and the same however the collective is timed.
        """
        alone = self.collective.prepared.alone
        return None if alone is None else self.start + alone[self.rank] + self.late

    def put_off(self, by: int) -> None:
        """See `Guest`."""
        self.late += by
        if self.end is not None:
            self.collective.put_off(self, self.end + by)
