"""How the buffers of a collective are cut: blocks, chunks of blocks, messages of chunks."""

from collections.abc import Iterator
from functools import cached_property
from typing import Final

import numpy as np

from kernbench.ccl.operations import Ints


class Layout:
    """Where every chunk of every rank's buffer lies, for one channel of a collective.

    The buffer of a rank is its blocks, one after the other, then its scratch blocks. A channel has
    its share of each block, and cuts it into `parts` chunks; the last ones are shorter, or empty,
    if it does not divide. Chunk `block * parts + part` is part `part` of a block.

    Args:
        blocks: Elements of every block by rank; one row if they are the same on all ranks.
        parts: Chunks of a block.
        align: Chunks begin at multiples of this many elements of their block.
        scratch: Blocks of a rank's own behind the others, as large as the first one.
        channel: Which share.
        channels: How many shares.
    """

    def __init__(
        self,
        blocks: Ints,
        parts: int,
        align: int,
        *,
        scratch: int = 0,
        channel: int = 0,
        channels: int = 1,
    ) -> None:
        blocks = np.concatenate([blocks, np.repeat(blocks[:, :1], scratch, axis=1)], axis=1)
        self.parts: Final = parts
        self._ends: Final = np.cumsum(blocks, axis=1)
        share = _aligned(blocks, channels, align)
        low = np.minimum(channel * share, blocks)
        size = np.minimum((channel + 1) * share, blocks) - low
        nominal = _aligned(size, parts, align)
        steps = np.arange(parts + 1)
        borders = np.minimum(nominal[..., None] * steps, size[..., None])
        first = (self._ends - blocks + low)[..., None]
        rows = len(blocks)
        self.begins: Final[Ints] = (first + borders[..., :-1]).reshape(rows, -1)
        self.sizes: Final[Ints] = (borders[..., 1:] - borders[..., :-1]).reshape(rows, -1)
        self._nominal: Final[Ints] = np.repeat(nominal, parts, axis=1)

    @property
    def alike(self) -> bool:
        """Whether the buffers of all ranks are cut alike."""
        return len(self.begins) == 1

    @cached_property
    def nominal(self) -> int | None:
        """Elements of a full chunk, if all chunks of all ranks have the same; else None."""
        first = int(self._nominal[0, 0])
        return first if bool((self._nominal == first).all()) else None

    @cached_property
    def dense(self) -> bool:
        """Whether every chunk lies where it would if all were full."""
        if not self.alike or self.nominal is None:
            return False
        total = self.begins[0, -1] + self.sizes[0, -1]
        even = np.minimum(np.arange(self.begins.shape[1]) * self.nominal, total)
        return bool((self.begins[0] == even).all())

    def total(self, rank: int) -> int:
        """Returns the elements of a rank's buffer."""
        return int(self._ends[self._row(rank), -1])

    def extent(self, rank: int, chunk: int, span: int = 1) -> tuple[int, int]:
        """Returns the first element of some chunks, and the one behind their last."""
        row, last = self._row(rank), chunk + span - 1
        return int(self.begins[row, chunk]), int(self.begins[row, last] + self.sizes[row, last])

    def messages(self, rank: int, chunk: int, span: int, piece: int) -> int:
        """Returns in how many messages of at most `piece` elements some chunks travel.

        A short chunk travels in as many as a full one of its block, if need be in empty ones, so
        that ranks whose chunks are the last ones go in step with the others.
        """
        elements = int(self._nominal[self._row(rank), chunk : chunk + span].sum())
        return -(-elements // piece)

    def pieces(self, rank: int, chunk: int, span: int, piece: int) -> list[tuple[int, int]]:
        """Returns the first element and the number of elements of each message of some chunks."""
        begin, end = self.extent(rank, chunk, span)
        return [
            (low := min(begin + number * piece, end), min(piece, end - low))
            for number in range(self.messages(rank, chunk, span, piece))
        ]

    def key(self) -> tuple[bytes, bytes]:
        """Returns what tells layouts apart whose messages have different sizes."""
        return self.sizes.tobytes(), self._nominal.tobytes()

    def _row(self, rank: int) -> int:
        return 0 if self.alike else rank


def _aligned(sizes: Ints, parts: int, align: int) -> Ints:
    """Returns the size of a full part, a multiple of `align`."""
    even = -(-sizes // parts)
    aligned: Ints = -(-even // align) * align
    return aligned


def full_messages(share: int, piece: int, align: int) -> int:
    """Returns how many full messages a share of a block takes; at least 1.

    A share of `n` of them, cut into `n` chunks that begin at multiples of `align`, has chunks of
    one message each; so a message counts as a multiple of `align`, if it is that large.

    Args:
        share: Elements.
        piece: Elements of the largest message.
        align: Chunks begin at multiples of this many elements.
    """
    return max(1, -(-share // (piece // align * align or piece)))


def turns(leaving: int, arriving: int, n_slots: int) -> Iterator[tuple[int | None, int | None]]:
    """Yields which message of an exchange leaves and which arrives, turn by turn, None for neither.

    Sending runs ahead of receiving by all slots but one. With that one, a rank always receives
    before it needs the credit that its receiver gives for receiving, so a ring cannot jam.
    """
    ahead = min(n_slots - 1, leaving)
    for turn in range(max(leaving, arriving + ahead)):
        yield (
            turn if turn < leaving else None,
            turn - ahead if ahead <= turn < arriving + ahead else None,
        )
