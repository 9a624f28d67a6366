"""Programs whose blocks write and read the memory of other ranks, and signal: plans of MSCCL++.

Chunks are cut into parts, as many as groups of blocks and turns of pipelines need; all accesses are
to whole parts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

Buffer = Literal["i", "o", "s"]
"""Input, output or scratch."""


class Span(NamedTuple):
    """Parts in a row of a buffer of a rank.

    Attributes:
        rank: Whose memory it is.
        buffer: Which buffer.
        first: The first part.
        parts: How many.
        packet: Whether data go with a flag that their reader waits for.
    """

    rank: int
    buffer: Buffer
    first: int
    parts: int
    packet: bool = False


class Moving(NamedTuple):
    """The sum of what is read, in this order, goes to all that is written."""

    reads: tuple[Span, ...]
    writes: tuple[Span, ...]


class Semaphore(NamedTuple):
    """A counter that one block waits on.

    Attributes:
        rank: The rank that waits.
        peer: The rank that signals; `rank` itself for a semaphore between blocks.
        kind: `memory`, `port`, or `device` for one between blocks.
        number: Tells those of equal ranks and kinds apart.
    """

    rank: int
    peer: int
    kind: str
    number: int

    def __str__(self) -> str:
        if self.kind == "device":
            return f"semaphore {self.number} of rank {self.rank}"
        return f"{self.kind} channel {self.number} from rank {self.peer} to rank {self.rank}"


@dataclass(frozen=True, slots=True)
class Deed:
    """One operation of a block.

    Attributes:
        name: As the file has it.
        moves: What it moves, one after the other.
        posts: Semaphores that it counts up.
        awaits: Semaphores that it waits for, and counts down.
        relaxed: Whether its signals order no memory.
        joins: Whether all threads of the block meet at it.
        barrier: Number of a barrier, and the blocks that meet there.
        ports: The port of each of `moves`, or of each of `posts` if it moves nothing: a proxy does
            them, in order.
        flushes: Ports whose work it waits for.
        line: Line in the file, from 1.
        column: Column in the file, from 1.
    """

    name: str
    moves: tuple[Moving, ...] = ()
    posts: tuple[Semaphore, ...] = ()
    awaits: tuple[Semaphore, ...] = ()
    relaxed: bool = False
    joins: bool = False
    barrier: tuple[int, int] | None = None
    ports: tuple[Semaphore, ...] = ()
    flushes: tuple[Semaphore, ...] = ()
    line: int = 0
    column: int = 0


class Group(NamedTuple):
    """A block: a sequential process of threads that meet where its deeds say so."""

    rank: int
    number: int
    deeds: tuple[Deed, ...]

    def __str__(self) -> str:
        return f"rank {self.rank} block {self.number}"


@dataclass(frozen=True, eq=False)
class OneSided:
    """A collective of blocks that access memory of other ranks.

    Attributes:
        path: The file.
        grain: Parts of a chunk.
        groups: The blocks of all ranks.
        initial: Counts at which semaphores begin that do not begin at 0.
        scratch: Parts of each rank's scratch.
        turns: Turns that pipelines are unrolled to for each chunk; 0 if there is no pipeline.
    """

    path: str
    grain: int
    groups: tuple[Group, ...]
    initial: dict[Semaphore, int]
    scratch: int
    turns: int

    @cached_property
    def switched(self) -> bool:
        """Whether a switch adds or multiplies data."""
        return any(deed.name in {"glres", "gstore", "gstorepkt"} for deed in self.deeds)

    @property
    def deeds(self) -> Iterator[Deed]:
        """All deeds."""
        return (deed for group in self.groups for deed in group.deeds)

    def named(self, span: Span) -> str:
        """Returns a span as its file counts: in chunks, and parts if it is none of whole ones."""
        chunk, part = divmod(span.first, self.grain)
        whole = f"{span.buffer}[{chunk}]"
        if not part and not span.parts % self.grain:
            many = span.parts // self.grain
            return whole + (f" x{many}" if many > 1 else "")
        last = part + span.parts - 1
        parts = f"{part}" if span.parts == 1 else f"{part}..{last}"
        return f"{whole} part {parts} of {self.grain}"

    def described(self, group: Group, deed: Deed) -> str:
        """Returns what a deed does, in a few words."""

        def one(span: Span) -> str:
            rank = "" if span.rank == group.rank else f"rank {span.rank}'s "
            return rank + self.named(span)

        moves = [
            f"{' + '.join(map(one, move.reads))} -> {', '.join(map(one, move.writes))}"
            for move in deed.moves
        ]
        counts = [f"for {each}" for each in deed.awaits] + [f"on {each}" for each in deed.posts]
        return " ".join([deed.name, "; ".join([*moves, *counts])]).strip()

    def where(self, group: Group, number: int) -> str:
        """Returns the place of a deed for a report: file, line, rank, block, step."""
        deed = group.deeds[number]
        place = f"{self.path}:{deed.line}:{deed.column}: {group} step {number}"
        return f"{place} ({self.described(group, deed)})"
