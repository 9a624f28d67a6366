"""What the collectives do: who gives what, and who ends with what."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from kernbench.memory import DType

Blocks = Literal["one", "ranks", "pairs"]
Share = Literal["all", "own", "root"]
Ints = np.ndarray[Any, np.dtype[np.int64]]


class Reduction(NamedTuple):
    """What a reduce operation does to values; a tuple, since calls are looked up by it.

    Attributes:
        name: As users write it.
        combine: Name of the numpy ufunc between two values.
        average: Whether the sum is divided by the number of ranks afterwards.
        factor: What each input is multiplied by beforehand; None for nothing.
    """

    name: str
    combine: str
    average: bool = False
    factor: float | None = None

    def scaling(self, dtype: DType, ranks: int) -> tuple[float | None, bool]:
        """Returns what inputs are multiplied by, if anything, and whether the result is divided.

        A sum of 8-bit floats would be cut off before it is divided, so their average, like NCCL's,
        is one of inputs that are multiplied by `1 / ranks`.
        """
        if self.average and dtype.saturates:
            return 1 / ranks, False
        return self.factor, self.average


def average(total: "np.ndarray[Any, Any]", ranks: int) -> None:
    """Divides sums by the number of ranks, in place; those of integers lose their fraction.

    That is C's division, to which NCCL's `FuncSumPostDiv` keeps for `ncclAvg` of integers.
    """
    if total.dtype.kind not in "iu":
        np.divide(total, total.dtype.type(ranks), out=total)
        return
    quotient, rest = np.divmod(total.astype(np.int64), ranks)
    total[...] = quotient + ((rest != 0) & (quotient < 0))


@dataclass(frozen=True, slots=True)
class Operation:
    """A collective operation.

    Every rank works on a buffer that consists of blocks. `one`: a single block, the same on all
    ranks. `ranks`: a block for each rank of the group, in order. `pairs`: a block for each rank to
    send to, then a block for each rank to receive from.

    Attributes:
        name: As PyTorch calls it; also that of an algorithm's function.
        blocks: What the buffer consists of.
        gives: Whose values there are at first: `all` ranks fill all blocks (of `pairs`, those to
            send), each its `own` block, or the `root` all blocks.
        takes: Who ends with values, likewise (of `pairs`, in the blocks to receive).
        reduces: Whether values are combined.
    """

    name: str
    blocks: Blocks
    gives: Share
    takes: Share
    reduces: bool = False

    @property
    def rooted(self) -> bool:
        """Whether one rank plays a part of its own."""
        return "root" in {self.gives, self.takes}

    def count(self, ranks: int) -> int:
        """Returns the number of blocks."""
        return {"one": 1, "ranks": ranks, "pairs": 2 * ranks}[self.blocks]

    def given(self, rank: int, ranks: int, root: int) -> range:
        """Returns the blocks that a rank fills at first."""
        last = 1 if self.blocks == "one" else ranks
        return _share(self.gives, range(last), rank, root)

    def taken(self, rank: int, ranks: int, root: int) -> range:
        """Returns the blocks that a rank ends with."""
        if self.blocks == "pairs":
            return range(ranks, 2 * ranks)
        last = 1 if self.blocks == "one" else ranks
        return _share(self.takes, range(last), rank, root)

    def kept(self, rank: int, ranks: int) -> tuple[int, int] | None:
        """Returns the block that a rank sends to itself and where it lands, if there is one."""
        return (rank, ranks + rank) if self.blocks == "pairs" else None

    def sizes(self, sizes: Sequence[Any], ranks: int) -> Ints:
        """Returns the elements of every block by rank; one row if they are the same on all ranks.

        Args:
            sizes: Elements of each block; of `pairs`, a row for each rank of what it sends to
                each rank.
            ranks: Ranks in the group.
        """
        if self.blocks != "pairs":
            return np.array([sizes], np.int64).reshape(1, self.count(ranks))
        sent = np.array(sizes, np.int64).reshape(ranks, ranks)
        return np.concatenate([sent, sent.T], axis=1)


def _share(share: Share, blocks: range, rank: int, root: int) -> range:
    if share == "own":
        return blocks[rank : rank + 1]
    return blocks if share == "all" or rank == root else range(0)


OPERATIONS: Final = {
    operation.name: operation
    for operation in (
        Operation("all_reduce", "one", "all", "all", reduces=True),
        Operation("reduce", "one", "all", "root", reduces=True),
        Operation("broadcast", "one", "root", "all"),
        Operation("all_gather", "ranks", "own", "all"),
        Operation("reduce_scatter", "ranks", "all", "own", reduces=True),
        Operation("gather", "ranks", "own", "root"),
        Operation("scatter", "ranks", "root", "own"),
        Operation("all_to_all", "pairs", "all", "all"),
        Operation("send_recv", "one", "root", "all"),
    )
}
"""Every operation; `send_recv` is a message from the root to the other of two ranks."""
