"""Messages between two PEs: slots at the receiver, credits at the sender, back-pressure between."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

from kernbench.des import Owner
from kernbench.hw.network import Network
from kernbench.hw.path import Path, transmit
from kernbench.hw.pe import PeTimeline, later
from kernbench.memory import Space
from kernbench.units import Bandwidth

Backpressure = Literal["sleep", "poll"]

MOST_SLOTS: Final = 64
"""Largest number of slots that reports of deadlocks try."""


@dataclass(frozen=True, slots=True)
class Line:
    """The unit in which data goes over links: payload and flags together, in bytes.

    NCCL's LL protocol stores lines of 16 B with 8 B of payload, LL128 lines of 128 B with 120 B;
    the other bytes are flags that tell the receiver that the line is there (src/include/device.h).

    Attributes:
        size: Bytes of a line.
        payload: Bytes of a line that are not flags.
    """

    size: int = 1
    payload: int = 1


PLAIN: Final = Line()
"""Lines of payload without flags."""


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """How queues are built, and the costs of a collective over them; from `ccl.yaml`.

    Attributes:
        space: Memory of the receiver that holds the slots.
        backpressure: How a sender waits for a credit: `sleep` until the credit wakes it, or `poll`
            at intervals.
        n_slots: Messages that may be under way or unread.
        slot_size: Largest message, in bytes.
        vc_chunk_size: Size of the chunks that pipeline through the hops, in bytes.
        credit_size: Size of a credit on its way back, in bytes.
        notice: Time from the last byte of a message until the receiver learns of it, in
            picoseconds: the sender's fence and flag, where flags do not travel in the lines.
        line: Unit in which messages go over links.
        launch: Start-up of a collective, in picoseconds; None for the start-up of the machine file.
        own_share: Rate at which a rank passes over the share that it reduces or forwards itself;
            the pass overlaps with none of the rank's own messages. None if there is no such pass.
        sent_share: The same for all that a rank sends to others.
        rate: Highest rate of a message on the first link, flags included; None for the rate of the
            DMA engine.
        pes: PEs of a device that work on a collective: its additions are so many times as fast as
            those of one PE.
        slot_size_at: Place in a file that gives `slot_size`; empty if no file does.
    """

    space: Space
    backpressure: Backpressure
    n_slots: int
    slot_size: int
    vc_chunk_size: int
    credit_size: int
    notice: int = 0
    line: Line = PLAIN
    launch: int | None = None
    own_share: Bandwidth | None = None
    sent_share: Bandwidth | None = None
    rate: Bandwidth | None = None
    pes: int = 1
    slot_size_at: str = field(default="", compare=False)

    def feed(self, dma: Bandwidth) -> Bandwidth:
        """Returns the rate at which messages enter their first link.

        Args:
            dma: Rate of the sender's DMA engine.
        """
        if self.rate is None or self.rate.per_second > dma.per_second:
            return dma
        return self.rate

    def on_links(self, nbytes: int) -> int:
        """Returns the bytes on links of a message with `nbytes` of payload: whole lines."""
        return -(-nbytes // self.line.payload) * self.line.size


@dataclass(slots=True, eq=False)
class Message:
    """A message in a queue.

    Attributes:
        nbytes: Size of the payload in bytes.
        payload: Values of the message; None while data is off.
        dtype: Element type of the values.
        shape: Extents of the values.
        flow: Number that joins the send with its receive in traces.
        arrival: When the message is in its slot, in picoseconds; None while this is unknown.
        sent: When the message started into the first link, in picoseconds; for the trace.
        injected: When all of the message was in the first link, in picoseconds; for the trace.
        received: When the message had left its slot, in picoseconds; for the trace.
    """

    nbytes: int
    payload: Any = None
    dtype: Any = None
    shape: tuple[int, ...] = ()
    flow: int = 0
    arrival: int | None = None
    sent: int = 0
    injected: int = 0
    received: int = 0


_Submitted = tuple[int, Path, int, Message, Callable[[int], None]]


class Sender:
    """The sending side of a PE's DMA engine over shared links: one message at a time."""

    def __init__(self, network: Network, pe: PeTimeline[int], owner: Owner) -> None:
        self._network: Final = network
        self._pe: Final = pe
        self.owner: Final = owner
        self._pending: deque[_Submitted] = deque()
        self._busy = False
        self._on_idle: Callable[[], None] | None = None

    @property
    def idle(self) -> bool:
        """Whether every submitted message has left."""
        return not self._busy

    @property
    def waiting(self) -> int:
        """Number of submitted messages that wait for the one before them."""
        return len(self._pending)

    def submit(
        self,
        ready: int,
        path: Path,
        message: Message,
        arrived: Callable[[int], None],
        on_links: int | None = None,
    ) -> None:
        """Sends a message when it is ready and all earlier ones have left; does not wait.

        Args:
            ready: When the tile to send is computed, in picoseconds.
            path: Way of the message.
            arrived: Called with the time at which the last byte arrives.
            on_links: Bytes of the message on links; by default the size of its payload.
        """
        nbytes = message.nbytes if on_links is None else on_links
        self._pending.append((later(self._pe.clock, ready), path, nbytes, message, arrived))
        if not self._busy:
            self._next()

    def _next(self) -> None:
        time, path, nbytes, message, arrived = self._pending.popleft()
        self._busy = True
        message.sent = later(time, self._pe.send_free)
        self._network.send(
            path,
            nbytes,
            message.sent,
            self.owner,
            partial(self._injected, message),
            arrived,
        )

    def _injected(self, message: Message, time: int) -> None:
        message.injected = time
        self._pe.send_free = time
        self._busy = False
        if self._pending:
            self._next()
        elif self._on_idle is not None:
            callback, self._on_idle = self._on_idle, None
            callback()

    def call_when_idle(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once, when every submitted message has left."""
        self._on_idle = callback

    def state(self, now: int) -> tuple[Any, ...]:
        """Returns all that later messages depend on; times are counted from `now`.

        Args:
            now: The loop's time, in picoseconds.
        """
        waiting = [
            (path.links, nbytes, later(time, now) - now)
            for time, path, nbytes, _, _ in self._pending
        ]
        return (self._busy, *waiting)

    def shift(self, by: int) -> None:
        """Moves every time by the same number of picoseconds."""
        self._pending = deque((sent[0] + by, *sent[1:]) for sent in self._pending)


class Queue:
    """Messages from one PE to another, first in, first out.

    Times may lie ahead of the loop. A side that must wait leaves a callback: the sender waits for a
    credit, the receiver for a message. Each side has one user.

    Attributes:
        path: Way of the messages.
        spec: Slots, credits and back-pressure.
        messages: Messages that are posted and not yet received.
    """

    def __init__(self, path: Path, spec: QueueSpec, poll_interval: int, slot_latency: int) -> None:
        self.path: Final = path
        self.spec: Final = spec
        self.messages: deque[Message] = deque()
        self._on_credit: Callable[[], None] | None = None
        self._on_message: Callable[[], None] | None = None
        self._credits: deque[int] = deque([0] * spec.n_slots)
        self._credit_delay: Final = path.credit_delay(spec.credit_size)
        self._latencies: Final = [hop.latency for hop in path.hops]
        self._free = [0] * (len(path.hops) - 1)
        self._poll_interval: Final = poll_interval
        self._until_seen: Final = slot_latency + spec.notice

    @property
    def starved(self) -> bool:
        """Whether the sender waits for a credit, all slots being full."""
        return self._on_credit is not None

    @property
    def credit(self) -> int | None:
        """When the sender has its next credit, in picoseconds; None while this is unknown."""
        return self._credits[0] if self._credits else None

    def take_credit(self, pe: PeTimeline[int]) -> None:
        """Takes a credit whose time is known; waits for it in the PE's local time."""
        time = self._credits.popleft()
        if time > pe.clock and self.spec.backpressure == "poll":
            time = pe.clock + -(-(time - pe.clock) // self._poll_interval) * self._poll_interval
        pe.wait_until(time)

    def post(
        self, pe: PeTimeline[int], ready: int, message: Message, sender: Sender | None
    ) -> None:
        """Sends a message for which a credit was taken; does not wait.

        Args:
            pe: Engines of the sending PE.
            ready: When the tile to send is computed, in picoseconds.
            sender: The PE's engine for shared links; None if nobody else uses the path.
        """
        self.messages.append(message)
        nbytes = self.spec.on_links(message.nbytes)
        if sender is not None:
            sender.submit(
                ready, self.path, message, lambda time: self._arrived(message, time), nbytes
            )
            return
        times = self.path.times(nbytes)
        arrival = transmit(pe, ready, times, self._latencies, self._free, later)
        message.injected = pe.send_free
        message.sent = pe.send_free - times[0].full
        self._arrived(message, arrival)

    def _arrived(self, message: Message, time: int) -> None:
        message.arrival = time + self._until_seen
        if self._on_message is not None:
            callback, self._on_message = self._on_message, None
            callback()

    @property
    def arrival(self) -> int | None:
        """When the next message is in its slot, in picoseconds; None while this is unknown."""
        return self.messages[0].arrival if self.messages else None

    def release(self, time: int) -> None:
        """Frees the slot of a received message at `time`, in picoseconds; a credit travels back."""
        free, held = len(self._credits), len(self.messages)
        assert free + held < self.spec.n_slots, (
            f"[K8] a slot was released twice: {free} free and {held} with a message, "
            f"of {self.spec.n_slots}"
        )
        self._credits.append(time + self._credit_delay)
        if self._on_credit is not None:
            callback, self._on_credit = self._on_credit, None
            callback()

    def state(
        self, sent: int | None, received: int | None
    ) -> tuple[list[int], list[int], list[int]]:
        """Returns all that later messages depend on.

        A time before the clock of the program that reads it acts like that clock, and is given as
        the clock.

        Args:
            sent: Clock of the sender's program, in picoseconds; None if no program sends.
            received: Clock of the receiver's program, in picoseconds; None if no program receives.

        Returns:
            Sizes; times that the sender reads; times that the receiver reads, -1 if unknown. Times
            are in picoseconds.
        """
        sizes = [len(self._credits), *(held.nbytes for held in self.messages)]
        times = [*self._credits, *self._free]
        if sent is not None:
            times = [time if time > sent else sent for time in times]
        known = [-1 if held.arrival is None else held.arrival for held in self.messages]
        if received is not None:
            known = [time if time > received or time < 0 else received for time in known]
        return sizes, times, known

    def shift_sender(self, by: int, after: int) -> None:
        """Moves the times that the sender reads, if they are after a time; in picoseconds."""
        self._credits = deque(time + by if time > after else time for time in self._credits)
        self._free = [time + by if time > after else time for time in self._free]

    def shift_receiver(self, by: int, after: int) -> None:
        """Moves the times that the receiver reads, if they are after a time; in picoseconds."""
        for held in self.messages:
            if held.arrival is not None and held.arrival > after:
                held.arrival += by

    def call_on_credit(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once, when the time of the next credit becomes known."""
        assert self._on_credit is None, "a queue has one sender"
        self._on_credit = callback

    def call_on_message(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once, when the arrival of the next message becomes known."""
        assert self._on_message is None, "a queue has one receiver"
        self._on_message = callback


def least_slots(n_slots: int, most: int, ends: Callable[[int], bool]) -> int | None:
    """Returns the smallest number of slots with which a deadlock would not happen.

    If a number is enough, a larger one is, too, since the place where programs wait depends on
    neither times nor values.

    Args:
        n_slots: A number that is not enough.
        most: Number of slots that fit into memory; above `MOST_SLOTS` none is tried.
        ends: Runs the programs again with a number of slots, and returns whether they end.

    Returns:
        The number; None if no number up to `most` is enough.
    """
    low, high = n_slots, min(MOST_SLOTS, most)
    if high <= low or not ends(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if ends(middle):
            high = middle
        else:
            low = middle
    return high
