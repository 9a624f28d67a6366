"""The neutral form of a collective's file: sequential blocks of steps over chunks of buffers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal, NamedTuple

from kernbench.ccl.files.one_sided import Buffer, OneSided

Mode = Literal["in place", "out of place"]

NOBODY: Final = -1
"""Peer of a block that does not send, or does not receive."""


class Kind(NamedTuple):
    """What a step does, in this order: it receives, reads its source, stores, and sends.

    Attributes:
        receives: Whether it takes the next data of its block's receiving connection.
        reads: Whether it reads its source, and adds it to what it received, if anything.
        adds: Whether it adds that to its target, which it reads, too.
        stores: Whether it writes its target.
        sends: Whether it puts the result into its block's sending connection.
    """

    receives: bool = False
    reads: bool = False
    adds: bool = False
    stores: bool = False
    sends: bool = False


KINDS: Final[Mapping[str, Kind]] = {
    "nop": Kind(),
    "cpy": Kind(reads=True, stores=True),
    "re": Kind(reads=True, adds=True, stores=True),
    "s": Kind(reads=True, sends=True),
    "r": Kind(receives=True, stores=True),
    "rcs": Kind(receives=True, stores=True, sends=True),
    "rrs": Kind(receives=True, reads=True, sends=True),
    "rrc": Kind(receives=True, reads=True, stores=True),
    "rrcs": Kind(receives=True, reads=True, stores=True, sends=True),
}
"""Kinds of steps, by the names that MSCCL gives them."""


class Place(NamedTuple):
    """The first of some chunks in a row: a buffer, and the number of the chunk in it."""

    buffer: Buffer
    chunk: int

    def __str__(self) -> str:
        return f"{self.buffer}[{self.chunk}]"


class Event(NamedTuple):
    """A step of a block, by their numbers."""

    block: int
    step: int


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a block.

    Attributes:
        name: A key of `KINDS`.
        source: Chunks that it reads.
        target: Chunks that it writes.
        count: Chunks in a row.
        after: Steps of other blocks of the rank that it waits for.
        publishes: Whether other blocks may wait for it.
        line: Line in the file, from 1.
        column: Column in the file, from 1.
    """

    name: str
    source: Place
    target: Place
    count: int
    after: tuple[Event, ...] = ()
    publishes: bool = False
    line: int = 0
    column: int = 0

    @property
    def kind(self) -> Kind:
        """What it does."""
        return KINDS[self.name]

    def __str__(self) -> str:
        kind = self.kind
        ends = [str(self.source)] if kind.reads else []
        ends += [f"-> {self.target}"] if kind.stores else []
        many = f" x{self.count}" if self.count > 1 else ""
        return " ".join([self.name, *ends]) + many


def lies(step: Step) -> Place:
    """Returns where what a step received, or sends, lies in the file's buffers."""
    return step.target if step.kind.stores else step.source


class Connection(NamedTuple):
    """A queue in which the n-th data sent are the n-th received."""

    sender: int
    receiver: int
    channel: int

    def __str__(self) -> str:
        return f"rank {self.sender} -> rank {self.receiver}, channel {self.channel}"


@dataclass(frozen=True, slots=True)
class Block:
    """A sequential process of a rank.

    Attributes:
        rank: Its rank.
        number: Its number among the blocks of the rank.
        to: Rank that it sends to, or `NOBODY`.
        source: Rank that it receives from, or `NOBODY`.
        channel: Tells connections between the same two ranks apart.
        steps: What it does, in order.
        line: Line in the file, from 1.
    """

    rank: int
    number: int
    to: int
    source: int
    channel: int
    steps: tuple[Step, ...]
    line: int = 0

    @property
    def outgoing(self) -> Connection:
        """The connection that it sends on."""
        return Connection(self.rank, self.to, self.channel)

    @property
    def incoming(self) -> Connection:
        """The connection that it receives from."""
        return Connection(self.source, self.rank, self.channel)

    def __str__(self) -> str:
        return f"rank {self.rank} block {self.number}"


class Extents(NamedTuple):
    """Chunks of each buffer of a rank."""

    i: int
    o: int
    s: int


@dataclass(frozen=True, eq=False)
class Blocks:
    """A collective as its file says it.

    Attributes:
        path: The file.
        name: What the file calls itself.
        operation: A key of `ccl.operations.OPERATIONS`.
        ranks: Ranks that take part.
        chunks: Pieces of the whole buffer of the operation, `nchunksperloop` of MSCCL.
        modes: Whether input and output may be one buffer, may be two, or both.
        sizes: Least and most bytes for which the library may use it.
        protocol: `Simple`, `LL` or `LL128`.
        buffers: Chunks of each rank's buffers.
        blocks: Blocks of each rank.
        notes: What the reader passed over.
        plan: The program of which `blocks` are a picture with messages; None where the file says
            `blocks` itself.
    """

    path: str
    name: str
    operation: str
    ranks: int
    chunks: int
    modes: tuple[Mode, ...]
    sizes: tuple[int, int]
    protocol: str
    buffers: tuple[Extents, ...]
    blocks: tuple[tuple[Block, ...], ...]
    notes: tuple[str, ...] = field(default=())
    plan: OneSided | None = None

    @cached_property
    def every(self) -> tuple[Block, ...]:
        """The blocks of all ranks, in order."""
        return tuple(block for blocks in self.blocks for block in blocks)

    @property
    def steps(self) -> Iterator[tuple[Block, int, Step]]:
        """Every step with its block and its number."""
        for block in self.every:
            for number, step in enumerate(block.steps):
                yield block, number, step

    @property
    def share(self) -> int:
        """Chunks of the operation's block: one of `all_reduce`, else one for each rank."""
        return self.chunks if self.operation == "all_reduce" else self.chunks // self.ranks

    def where(self, block: Block, number: int) -> str:
        """Returns the place of a step for a report: file, line, rank, block, step."""
        step = block.steps[number]
        return f"{self.path}:{step.line}:{step.column}: {block} step {number} ({step})"


class Memory:
    """Where the chunks of buffers lie in one memory of a rank; in place, `i` and `o` are one.

    Args:
        file: The collective.
        mode: Whether input and output are one buffer.
    """

    def __init__(self, file: Blocks, mode: Mode) -> None:
        share, widest = file.share, max(max(one.i, one.o, file.chunks) for one in file.buffers)
        inside = mode == "in place"
        self.scratch: Final = widest if inside else 2 * widest
        scratch = max(one.s for one in file.buffers)
        self.size: Final = self.scratch + scratch
        self._bases: Final = [
            {
                "i": rank * share if inside and file.operation == "all_gather" else 0,
                "o": (rank * share if file.operation == "reduce_scatter" else 0)
                if inside
                else widest,
                "s": self.scratch,
            }
            for rank in range(file.ranks)
        ]

    def at(self, rank: int, place: Place) -> int:
        """Returns where the first chunk of a place lies."""
        return self._bases[rank][place.buffer] + place.chunk

    @staticmethod
    def extents(file: Blocks, rank: int) -> dict[str, int]:
        """Returns how many chunks of each buffer a rank may touch.

        A file for calls in place may say 0 chunks of the buffer that is not one of its own.
        """
        own = file.buffers[rank]
        needed = {
            "i": file.share if file.operation == "all_gather" else file.chunks,
            "o": file.share if file.operation == "reduce_scatter" else file.chunks,
        }
        if "in place" not in file.modes:
            return {"i": own.i, "o": own.o, "s": own.s}
        return {"i": max(own.i, needed["i"]), "o": max(own.o, needed["o"]), "s": own.s}
