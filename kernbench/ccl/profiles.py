"""Profiles of queues in `ccl.yaml`, and what a library's channels and its own estimate say."""

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, Protocol

from kernbench.ccl.operations import OPERATIONS
from kernbench.ccl.plan import Algorithm
from kernbench.config.schema import Bare, Range
from kernbench.topology.spec import Latency
from kernbench.units import PS_PER_S, Bandwidth, Bytes

BufferKind = Literal["tcm", "hbm", "sram"]
Backpressure = Literal["sleep", "poll"]
Slots = Annotated[int, Range(1, 1 << 16)]
SlotSize = Annotated[Bytes, Range(8, 1 << 30), Bare()]
Small = Annotated[Bytes, Range(1, 1 << 20), Bare()]
Elements = Annotated[int, Range(1, 1 << 20)]
ChannelCount = Annotated[int, Range(1, 1 << 10)]
Percent = Annotated[int, Range(100, 10_000)]


class Fit(Protocol):
    """Returns the program of a file for some queues."""

    def __call__(self, slots: int, units: int, *, shared: bool, linked: bool) -> Algorithm:
        """Returns it.

        Args:
            slots: Messages that may be under way between two ranks.
            units: How many times `n_elem` elements a message holds, at least.
            shared: Whether several channels share each chunk.
            linked: Whether each pair of ranks that exchange messages has a link of its own.
        """
        ...


class Scope(NamedTuple):
    """What a file of a collective is for.

    Attributes:
        ranks: Ranks that take part.
        least: Fewest bytes of all blocks together.
        most: Most bytes of them.
        ways: To how many others a rank sends at a time, at most.
        pairs: Ranks between which messages go.
        uneven: Whether ranks idle in some of its rounds, and rounds may overlap.
        fit: Returns its program for some queues.
    """

    ranks: int
    least: int
    most: int
    ways: int
    pairs: frozenset[tuple[int, int]]
    uneven: bool
    fit: Fit

    def holds(self, ranks: int, nbytes: int) -> bool:
        """Returns whether a call of so many ranks and bytes is one that the file is for."""
        return ranks == self.ranks and self.least <= nbytes <= self.most


@dataclass(frozen=True, slots=True)
class LineProfile:
    """The unit in which messages go over links.

    Attributes:
        size: Bytes of one line.
        payload: Bytes of one line that are not flags.
    """

    size: Small
    payload: Small


@dataclass(frozen=True, slots=True)
class CollectiveChannels:
    """How much of a link a collective gets.

    NCCL takes fewer channels for small sizes, until each has work enough for its threads
    (`threadThresholds` in src/graph/tuning.cc, `topoGetAlgoInfo` in src/enqueue.cc).

    Attributes:
        count: Most channels of a collective.
        rate: Bytes a second that one channel moves, flags included.
        least: Smallest part, in bytes, of each rank's share of the buffer for one channel.
    """

    count: ChannelCount
    rate: Bandwidth
    least: Bytes

    def rate_of(self, nbytes: int, ranks: int) -> Bandwidth:
        """Returns the rate of the messages of a rank.

        Args:
            nbytes: Size of all blocks of the buffer together.
            ranks: Ranks that take part.
        """
        channels = min(self.count, max(1, nbytes // (self.least * ranks)))
        return Bandwidth(channels * self.rate.per_second)


@dataclass(frozen=True, slots=True)
class P2pChannels:
    """How much of a link a message between two ranks gets.

    NCCL deals its channels out to the peers of a rank. A message gets twice as many channels as
    long as the part of each would be larger than `part`, and fewer if it would be smaller than
    `least` (`addP2pToPlan` in src/enqueue.cc). The threads of a channel that sends and receives are
    divided between both (src/device/sendrecv.h).

    Attributes:
        count: Channels of a rank, for all ranks of its group.
        rate: Bytes a second that one channel moves each way, flags included, when it sends and
            receives.
        part: Largest part of a message, in bytes, for one channel; a larger message gets more
            channels.
        alone: Rate of a channel that only sends, or only receives; as `rate` if absent.
        least: Smallest part of a message for one channel; none if absent.
        up_to: Largest message of these queues: larger ones go over others, and no smaller one does;
            if absent, what is expected to be the fastest decides.
    """

    count: ChannelCount
    rate: Bandwidth
    part: Bytes
    alone: Bandwidth | None = None
    least: Bytes | None = None
    up_to: Bytes | None = None

    def rate_of(
        self, nbytes: int, ranks: int, *, messages: int = 1, one_way: bool = False
    ) -> Bandwidth:
        """Returns the rate at which a rank sends.

        Args:
            nbytes: Size of each message.
            ranks: Ranks of the group in which the messages are sent.
            messages: Messages that the rank sends at the same time.
            one_way: Whether no channel both sends and receives.
        """
        channels = max(1, self.count // ranks)
        while nbytes > channels * self.part and 2 * channels <= self.count:
            channels *= 2
        if self.least is not None:
            channels = min(channels, max(1, -(-nbytes // self.least)))
        rate = self.alone if one_way and self.alone is not None else self.rate
        return Bandwidth(min(self.count, messages * channels) * rate.per_second)


@dataclass(frozen=True, slots=True)
class Tuning:
    """By what a library chooses among its algorithms: its own estimate of their time.

    NCCL's is in src/graph/tuning.cc. It says what NCCL takes, not how long that takes.

    Attributes:
        start: Time before the first step.
        step: Time of a step; an all-reduce of `N` ranks has `2 (N - 1)`, a broadcast one.
        rate: Bytes a second of a rank's messages.
        percent: What is left of the rate of an all-reduce of 64 B, 128 B, 256 B and so on; all of
            it beyond the last one.
    """

    start: Latency
    step: Latency
    rate: Bandwidth
    percent: tuple[Annotated[int, Range(1, 100)], ...] = ()

    def time(self, operation: str, nbytes: int, ranks: int, *, tree: bool) -> float:
        """Returns the estimate, in picoseconds.

        Args:
            operation: A key of `OPERATIONS`.
            nbytes: Size of all blocks of the buffer together.
            ranks: Ranks that take part.
            tree: Whether every message has the whole buffer, not a rank's share of it.
        """
        rounds = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}.get(operation, 0)
        steps = rounds * (ranks - 1) or 1
        each = 2.0 if tree else steps / ranks if rounds else 1.0
        rate, place = float(self.rate.per_second), (nbytes >> 6).bit_length() - 1
        if operation == "all_reduce" and 0 <= place < len(self.percent):
            rate *= self.percent[place] / 100
        return self.start + steps * self.step + nbytes * each * PS_PER_S / rate


@dataclass(frozen=True, slots=True)
class QueueProfile:
    """One entry of `queues`; a missing field comes from `defaults`, or stays absent.

    Attributes:
        buffer_kind: Memory of the receiver that holds the slots.
        backpressure: How a sender waits for a credit.
        n_slots: Messages that may be under way or unread between two ranks.
        slot_size: Largest message, in bytes.
        vc_chunk_size: Size of the chunks in which a message pipelines through the hops of its path,
            in bytes.
        ipcq_credit_size_bytes: Size of a credit on its way back.
        launch: Start-up of a collective over such queues, in place of the machine's.
        notice: Time from the last byte of a message until the receiver learns of it.
        line: Unit in which messages go over links; lines of payload alone if absent.
        own_share: Rate at which a rank passes over the share that it reduces or forwards itself, in
            addition to its exchanges; no time if absent.
        sent_share: Rate at which a rank passes over all that it sends to others, in addition to its
            exchanges; no time if absent.
        p2p: How much of a link a message between two ranks gets; all of it if absent.
        by_size: How much of a link a broadcast or a reduce gets; all of it if absent.
        pes: PEs of a device that work on a collective: its additions are so many times as fast as
            those of one PE; one if absent.
    """

    buffer_kind: BufferKind | None = None
    backpressure: Backpressure | None = None
    n_slots: Slots | None = None
    slot_size: SlotSize | None = None
    vc_chunk_size: Small | None = None
    ipcq_credit_size_bytes: Small | None = None
    launch: Latency | None = None
    notice: Latency | None = None
    line: LineProfile | None = None
    own_share: Bandwidth | None = None
    sent_share: Bandwidth | None = None
    p2p: P2pChannels | None = None
    by_size: CollectiveChannels | None = None
    pes: ChannelCount | None = None


@dataclass(frozen=True, slots=True)
class Choosing:
    """How `auto` finds the fastest algorithm (ADR 0066); without it by estimates alone.

    Attributes:
        ranks: Groups of up to so many ranks are timed; 0 for none.
        within: Percent of the least estimate up to which an algorithm is timed.
        calls: Most calls of the event loop that one choice may make, or what costs as much.
        all_nics: Percent of the time with all NICs up to which a collective takes the first alone.
        all_links: Percent that an estimate says of an algorithm on all links of a rank where ranks
            have none of their own to each other: its channels meet there.
    """

    ranks: Annotated[int, Range(0, 1024)] = 0
    within: Percent = 100
    calls: Annotated[int, Range(0, 1 << 30)] = 0
    all_nics: Percent = 100
    all_links: Percent = 100


def message_of(operation: str, nbytes: int, ranks: int) -> int:
    """Returns the bytes that a rank sends to another one, straight.

    Args:
        operation: A key of `OPERATIONS`.
        nbytes: Size of all blocks of the buffer together.
        ranks: Ranks that take part.
    """
    return nbytes if OPERATIONS[operation].blocks == "one" else -(-nbytes // ranks)
