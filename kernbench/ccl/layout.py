"""How the buffers of a collective are cut: blocks, chunks of blocks, messages of chunks."""

from collections.abc import Iterator
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from kernbench.ccl.operations import Ints


class Cuts(NamedTuple):
    """How blocks are cut into chunks; see `Comm.cut`.

    Attributes:
        parts: Chunks of a block.
        scratch: Scratch blocks of each rank.
        turns: How often an algorithm is repeated for parts of chunks.
        together: Chunks of a group.
    """

    parts: int
    scratch: int = 0
    turns: int = 1
    together: int = 1

    @property
    def groups(self) -> int:
        """Groups of a block; 0 if its chunks are no whole groups of all turns."""
        groups, rest = divmod(self.parts, self.turns * self.together)
        return 0 if rest else groups


class Layout:
    """Where every chunk of every rank's buffer lies, for one channel of a collective.

    The buffer of a rank is its blocks, one after another, then its scratch blocks. A channel has a
    share of each block and cuts the share into `parts` chunks; if the share does not divide evenly,
    the last chunks are shorter, or empty. Chunk `block * parts + part` is part `part` of a block.

    Args:
        blocks: Elements of every block by rank, shape `[ranks, blocks]`; one row if all ranks have
            the same.
        cuts: How the blocks are cut; scratch blocks are as large as the first block.
        align: Number of elements; chunks begin at multiples of it inside their block.
        channels: Number of channels, and so of shares of a block.
        of_chunks: Whether channels share what turns share, and not the block: elements are then in
            the same chunk with any number of channels.
    """

    def __init__(
        self,
        blocks: Ints,
        cuts: Cuts,
        align: int,
        *,
        channel: int = 0,
        channels: int = 1,
        of_chunks: bool = False,
    ) -> None:
        scratch = np.repeat(blocks[:, :1], cuts.scratch, axis=1)
        blocks = np.concatenate([blocks, scratch], axis=1)
        self.parts: Final = cuts.parts
        self._ends: Final = np.cumsum(blocks, axis=1)
        low, size = np.zeros_like(blocks), blocks
        shares, numbers = cuts.turns, np.arange(cuts.turns)
        if of_chunks:
            shares, numbers = shares * channels, numbers * channels + channel
        else:
            low, size = _shared(blocks, channel, channels, align)
        first = (self._ends - blocks + low)[..., None]
        # From here on by rank, block, group, turn, and chunk of the group, with its end.
        group = _aligned(size, cuts.groups, align)[..., None, None, None]
        begin = group * np.arange(cuts.groups)[:, None, None]
        chunk = _aligned(group, cuts.together, align) * np.arange(cuts.together + 1)
        share = _aligned(group, shares, align)
        window = np.minimum(share * numbers[:, None], group)
        borders = np.clip(np.minimum(chunk, group), window, np.minimum(window + share, group))
        # Of groups that are full, and of those that there are.
        full = np.repeat(borders, cuts.groups, axis=2)
        borders = np.minimum(begin + borders, size[..., None, None, None])
        shape = *size.shape, cuts.parts
        rows = len(blocks)
        begins = first + borders[..., :-1].reshape(shape)
        self.begins: Final[Ints] = begins.reshape(rows, -1)
        self.sizes: Final[Ints] = np.diff(borders).reshape(rows, -1)
        self._nominal: Final[Ints] = np.diff(full).reshape(rows, -1)

    @property
    def alike(self) -> bool:
        """Whether the buffers of all ranks are cut in the same way."""
        return len(self.begins) == 1

    @cached_property
    def nominal(self) -> int | None:
        """Elements of a full chunk; None if full chunks differ among ranks or blocks."""
        first = int(self._nominal[0, 0])
        return first if bool((self._nominal == first).all()) else None

    @cached_property
    def even(self) -> bool:
        """Whether all chunks of all ranks have one size, and it is not 0."""
        return self.uniform and bool(self.sizes[0, 0] == self.nominal)

    @cached_property
    def uniform(self) -> bool:
        """Whether all chunks of all ranks have one size, if smaller than a full one, but not 0."""
        size = self.sizes[0, 0]
        return self.alike and bool(self.nominal and size) and bool((self.sizes == size).all())

    @cached_property
    def dense(self) -> bool:
        """Whether every chunk lies where it would lie if all chunks were full."""
        if not self.alike or self.nominal is None:
            return False
        total = self.begins[0, -1] + self.sizes[0, -1]
        even = np.minimum(np.arange(self.begins.shape[1]) * self.nominal, total)
        return bool((self.begins[0] == even).all())

    def total(self, rank: int) -> int:
        """Returns the elements of a rank's buffer."""
        return int(self._ends[self._row(rank), -1])

    def extent(self, rank: int, chunk: int, span: int = 1) -> tuple[int, int]:
        """Returns the first element of some chunks, and the element after their last one.

        Args:
            rank: Rank inside the group.
            chunk: Number of the first chunk.
            span: Number of chunks in a row.
        """
        row, last = self._row(rank), chunk + span - 1
        return int(self.begins[row, chunk]), int(self.begins[row, last] + self.sizes[row, last])

    def messages(self, rank: int, chunk: int, span: int, piece: int) -> int:
        """Returns the number of messages in which some chunks travel.

        A short chunk travels in as many messages as a full chunk of its block, some of them empty
        if need be, so that ranks with short chunks go in step with the others.

        Args:
            rank: Rank inside the group.
            chunk: Number of the first chunk.
            span: Number of chunks in a row.
            piece: Elements of the largest message.
        """
        elements = int(self._nominal[self._row(rank), chunk : chunk + span].sum())
        return -(-elements // piece)

    def most_messages(self, span: int, piece: int) -> int:
        """Returns a bound for the number of messages in which chunks travel.

        Args:
            span: Most chunks in a row.
            piece: Elements of the largest message.
        """
        return -(-self._largest * span // piece)

    @cached_property
    def _largest(self) -> int:
        return int(self._nominal.max(initial=0))

    def pieces(self, rank: int, chunk: int, span: int, piece: int) -> list[tuple[int, int]]:
        """Returns the first element and the number of elements of each message of some chunks.

        Args:
            rank: Rank inside the group.
            chunk: Number of the first chunk.
            span: Number of chunks in a row.
            piece: Elements of the largest message.
        """
        begin, end = self.extent(rank, chunk, span)
        return [
            (low := min(begin + number * piece, end), min(piece, end - low))
            for number in range(self.messages(rank, chunk, span, piece))
        ]

    def sizes_of(self, rank: int, chunk: int, span: int, piece: int) -> tuple[tuple[int, int], ...]:
        """Returns what `pieces` returns, without places and with equal messages in a row counted.

        Args:
            rank: Rank inside the group.
            chunk: Number of the first chunk.
            span: Number of chunks in a row.
            piece: Elements of the largest message.
        """
        begin, end = self.extent(rank, chunk, span)
        count = self.messages(rank, chunk, span, piece)
        full, rest = divmod(end - begin, piece)
        parts = (piece, full), (rest, int(rest > 0)), (0, count - full - (rest > 0))
        return tuple((elements, many) for elements, many in parts if many)

    def sizes_along(self, rank: int, chunks: Ints, spans: Ints, piece: int) -> tuple[Ints, Ints]:
        """Returns what `sizes_of` depends on: elements and messages of chunks, step by step.

        Args:
            rank: Rank inside the group.
            chunks: Number of the first chunk of each step.
            spans: Number of chunks in a row of each step.
            piece: Elements of the largest message.
        """
        if self.even:
            elements = spans * self.sizes[0, 0]
            return elements, -(-elements // piece)
        row = self._row(rank)
        last = np.minimum(chunks + spans, self.begins.shape[1]) - 1
        elements = self.begins[row, last] + self.sizes[row, last] - self.begins[row, chunks]
        nominal = self._nominal[row, last] + self._before[row, last] - self._before[row, chunks]
        return elements, -(-nominal // piece)

    @cached_property
    def _before(self) -> Ints:
        """Elements of the full chunks before each chunk."""
        return np.cumsum(self._nominal, axis=1) - self._nominal

    def key(self) -> tuple[bytes, bytes]:
        """Returns a key that tells layouts apart whose messages have different sizes."""
        return self.sizes.tobytes(), self._nominal.tobytes()

    def _row(self, rank: int) -> int:
        return 0 if self.alike else rank


def _aligned(sizes: Ints, parts: int, align: int) -> Ints:
    """Returns the size of a full part, a multiple of `align`."""
    even = -(-sizes // parts)
    aligned: Ints = -(-even // align) * align
    return aligned


def _shared(sizes: Ints, channel: int, channels: int, align: int) -> tuple[Ints, Ints]:
    """Returns where a channel's share of some elements begins in them, and how many it has.

    Args:
        sizes: Elements.
    """
    share = _aligned(sizes, channels, align)
    low = np.minimum(channel * share, sizes)
    return low, np.minimum((channel + 1) * share, sizes) - low


def full_messages(share: int, piece: int, align: int) -> int:
    """Returns how many full messages a share of a block takes; at least 1.

    A share of `n` full messages, cut into `n` chunks that begin at multiples of `align`, has chunks
    of one message each. So a full message counts as the largest multiple of `align` that fits into
    it, if there is one.

    Args:
        share: Elements of the share.
        piece: Elements of the largest message.
        align: Number of elements; chunks begin at multiples of it.
    """
    return max(1, -(-share // (piece // align * align or piece)))


def turns(leaving: int, arriving: int, n_slots: int) -> Iterator[tuple[int | None, int | None]]:
    """Yields the message that leaves and the message that arrives, turn by turn.

    None stands for no message. Sending runs ahead of receiving by all slots but one. Because of
    this last slot, a rank always receives before it needs the credit that its receiver sends after
    receiving, so a ring cannot jam.

    Args:
        leaving: Number of messages that leave.
        arriving: Number of messages that arrive.
        n_slots: Slots of each queue.
    """
    ahead = min(n_slots - 1, leaving)
    for turn in range(max(leaving, arriving + ahead)):
        yield (
            turn if turn < leaving else None,
            turn - ahead if ahead <= turn < arriving + ahead else None,
        )
