"""Writes plans as MSCCL XML: the steps of each rank, with the waits that their chunks need.

Each rank has a block for each peer that it sends to, one for each that it receives from, and one
for moves inside the rank, in each channel. A step waits for those steps of other blocks whose
chunks it needs, and for those that must be done with the chunks that it overwrites.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from xml.sax.saxutils import quoteattr

from kernbench.ccl.files.msccl_xml import NAMES
from kernbench.ccl.operations import OPERATIONS
from kernbench.ccl.plan import NOTHING, Plan
from kernbench.errors import UnsupportedError


@dataclass
class _Step:
    kind: str
    source: int
    target: int
    count: int
    after: list[tuple[int, int]]
    publishes: bool = False


@dataclass
class _Block:
    send: int
    receive: int
    channel: int
    steps: list[_Step] = field(default_factory=list)


class _Rank:
    """Collects the blocks of one rank.

    Args:
        rank: Its number.
    """

    def __init__(self, rank: int) -> None:
        self.rank: Final = rank
        self.blocks: list[_Block] = []
        self._numbers: dict[tuple[int, int, int], int] = {}
        self._written: dict[int, tuple[int, int]] = {}
        self._read: dict[int, list[tuple[int, int]]] = {}

    def _block(self, send: int, receive: int, channel: int) -> int:
        key = send, receive, channel
        if key not in self._numbers:
            self._numbers[key] = len(self.blocks)
            self.blocks.append(_Block(send, receive, channel))
        return self._numbers[key]

    def step(
        self,
        kind: str,
        source: int,
        target: int,
        count: int,
        *,
        send: int = -1,
        receive: int = -1,
        channel: int = 0,
    ) -> None:
        """Adds a step.

        Args:
            kind: `s`, `r`, `rrc`, `cpy` or `re`.
            source: First chunk that it reads.
            target: First chunk that it writes.
            count: Chunks in a row.
            send: Rank that it sends to; -1 for none.
            receive: Rank that it receives from; -1 for none.
            channel: Number of the share of each block.
        """
        reads = range(source, source + count) if kind != "r" else range(0)
        writes = range(target, target + count) if kind != "s" else range(0)
        sums = writes if kind in {"re", "rrc"} else range(0)
        number = self._block(send, receive, channel)
        waits: dict[int, int] = {}
        for chunk in (*reads, *writes, *sums):
            before = [self._written[chunk]] if chunk in self._written else []
            before += self._read.get(chunk, []) if chunk in writes else []
            for other, done in before:
                if other != number:
                    waits[other] = max(waits.get(other, 0), done)
        block = self.blocks[number]
        after = sorted(waits.items())
        # A step names one wait; the others stand on steps that do nothing.
        for wait in after[:-1]:
            block.steps.append(_Step("nop", 0, 0, 0, [wait]))
        at = number, len(block.steps)
        block.steps.append(_Step(kind, source, target, count, after[-1:]))
        for other, done in after:
            self.blocks[other].steps[done].publishes = True
        for chunk in (*reads, *sums):
            self._read.setdefault(chunk, []).append(at)
        for chunk in writes:
            self._written[chunk] = at
            self._read[chunk] = []


class _Chunks:
    """Numbers of the file's chunks, of those of the plans of all channels.

    Args:
        operation: A key of `OPERATIONS`.
        ranks: Ranks that take part.
        plans: The plan of each channel.
    """

    def __init__(self, operation: str, ranks: int, plans: Sequence[Plan]) -> None:
        self._parts: Final = [plan.parts for plan in plans]
        self._pieces: Final = math.lcm(*self._parts)
        self.share: Final = self._pieces * len(plans)
        self._operation: Final = operation
        blocks = OPERATIONS[operation].count(ranks)
        self.all: Final = blocks * self.share
        self.half: Final = ranks * self.share if operation == "all_to_all" else self.all
        self.scratch: Final = max(plan.cuts.scratch for plan in plans) * self.share

    def first(self, chunk: int, channel: int) -> int:
        """Returns the first chunk of the file that a chunk of a plan is."""
        block, part = divmod(chunk, self._parts[channel])
        width = self._pieces // self._parts[channel]
        return block * self.share + channel * self._pieces + part * width

    def runs(self, chunk: int, span: int, channel: int) -> list[tuple[int, int]]:
        """Returns chunks of the file in a row that chunks of a plan are: the first, and how many.

        Args:
            span: Chunks of the plan in a row.
            channel: Number of the plan.
        """
        width = self._pieces // self._parts[channel]
        found: list[tuple[int, int]] = []
        for each in range(chunk, chunk + span):
            first = self.first(each, channel)
            if found and sum(found[-1]) == first:
                found[-1] = found[-1][0], found[-1][1] + width
            else:
                found.append((first, width))
        return found

    def place(self, chunk: int) -> tuple[str, int]:
        """Returns the buffer of a chunk of the file, and its number there."""
        if chunk >= self.all:
            return "s", chunk - self.all
        if self._operation == "all_to_all" and chunk >= self.half:
            return "o", chunk - self.half
        return ("o" if self._operation == "all_gather" else "i"), chunk


def as_xml(name: str, operation: str, plans: Sequence[Plan], protocol: str = "Simple") -> str:
    """Returns a collective as MSCCL XML.

    Args:
        name: What the file calls itself.
        operation: A key of `OPERATIONS`.
        plans: The plan of each channel, in order.
        protocol: `Simple`, `LL` or `LL128`.

    Raises:
        UnsupportedError: If MSCCL has no name for the operation.
    """
    if operation not in NAMES:
        raise UnsupportedError(
            f"{operation} is not written: MSCCL has no file of it",
            hint=f"operations of files are {', '.join(NAMES)}",
        )
    ranks = plans[0].world_size
    chunks = _Chunks(operation, ranks, plans)
    members = [_Rank(rank) for rank in range(ranks)]
    for member in members:
        if operation == "all_to_all":
            own = member.rank * chunks.share
            member.step("cpy", own, chunks.half + own, chunks.share)
        for channel, plan in enumerate(plans):
            _add(member, plan, channel, chunks)
    return _text(name, operation, protocol, members, chunks, len(plans))


def _add(member: _Rank, plan: Plan, channel: int, chunks: _Chunks) -> None:
    for one in plan.of(member.rank):
        adds = one.combine == "reduce"
        if one.send != NOTHING and one.to == member.rank:
            pairs = zip(
                chunks.runs(one.send, one.span, channel),
                chunks.runs(one.receive, one.span, channel),
                strict=True,
            )
            for (source, many), (target, _) in pairs:
                kind = "re" if adds else "cpy"
                member.step(kind, source, target, many, channel=channel)
            continue
        for first, many in [] if one.send == NOTHING else chunks.runs(one.send, one.span, channel):
            member.step("s", first, first, many, send=one.to, channel=channel)
        arriving = one.receive != NOTHING
        for first, many in chunks.runs(one.receive, one.span, channel) if arriving else []:
            kind = "rrc" if adds else "r"
            member.step(kind, first, first, many, receive=one.source, channel=channel)


def _text(
    name: str,
    operation: str,
    protocol: str,
    members: Sequence[_Rank],
    chunks: _Chunks,
    channels: int,
) -> str:
    outside = operation == "all_to_all"
    inputs = chunks.share if operation == "all_gather" else chunks.half
    outputs = chunks.share if operation == "reduce_scatter" else chunks.half
    lines = [
        f'<algo name={quoteattr(name)} proto="{protocol}" nchannels="{channels}" '
        f'nchunksperloop="{chunks.half}" ngpus="{len(members)}" coll="{NAMES[operation]}" '
        f'inplace="{int(not outside)}" outofplace="{int(outside)}" minBytes="0" '
        f'maxBytes="{1 << 40}">'
    ]
    for member in members:
        lines.append(
            f'  <gpu id="{member.rank}" i_chunks="{inputs}" o_chunks="{outputs}" '
            f's_chunks="{chunks.scratch}">'
        )
        for number, block in enumerate(member.blocks):
            lines.append(
                f'    <tb id="{number}" send="{block.send}" recv="{block.receive}" '
                f'chan="{block.channel}">'
            )
            lines += [_line(at, step, chunks) for at, step in enumerate(block.steps)]
            lines.append("    </tb>")
        lines.append("  </gpu>")
    return "\n".join([*lines, "</algo>", ""])


def _line(number: int, step: _Step, chunks: _Chunks) -> str:
    source, target = chunks.place(step.source), chunks.place(step.target)
    if step.kind == "nop":
        source, target = ("i", -1), ("o", -1)
    block, after = step.after[0] if step.after else (-1, -1)
    return (
        f'      <step s="{number}" type="{step.kind}" srcbuf="{source[0]}" srcoff="{source[1]}" '
        f'dstbuf="{target[0]}" dstoff="{target[1]}" cnt="{step.count}" depid="{block}" '
        f'deps="{after}" hasdep="{int(step.publishes)}"/>'
    )
