"""The operations of collectives: the blocks that each rank gives, and the blocks that it takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from kernbench.memory import DType

Blocks = Literal["one", "ranks", "pairs"]
Share = Literal["all", "own", "root"]
Ints = np.ndarray[Any, np.dtype[np.int64]]


class Reduction(NamedTuple):
    """How a reduction combines values; a tuple, so that it can be a part of lookup keys.

    Attributes:
        name: Name that users write.
        combine: Name of the numpy ufunc that combines two values.
        average: Whether the sum is divided by the number of ranks afterwards.
        factor: Factor of every input; None for no factor.
    """

    name: str
    combine: str
    average: bool = False
    factor: float | None = None

    def scaling(self, dtype: DType, ranks: int) -> tuple[float | None, bool]:
        """Returns the factor of every input, if any, and whether the result is divided.

        A sum of 8-bit floats would saturate before its division. So their average, like NCCL's, is
        a sum of inputs that are multiplied by `1 / ranks`.

        Args:
            ranks: Ranks in the group.
        """
        if self.average and dtype.saturates:
            return 1 / ranks, False
        return self.factor, self.average


def average(total: "np.ndarray[Any, Any]", ranks: int) -> None:
    """Divides sums by the number of ranks, in place; quotients of integers lose their fraction.

    Integers are rounded towards zero as in C, like NCCL's `FuncSumPostDiv` for `ncclAvg`.

    Args:
        total: The sums, of any shape.
        ranks: Ranks in the group.
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
        name: PyTorch's name of the operation, and the name of an algorithm's function.
        blocks: Kinds of blocks in the buffer.
        gives: Blocks that ranks fill at first: `all` ranks fill all blocks (of `pairs`, the blocks
            to send), each rank its `own` block, or the `root` all blocks.
        takes: Blocks that ranks end with: `all` ranks end with all blocks (of `pairs`, the blocks
            to receive), each rank with its `own` block, or the `root` with all blocks.
        reduces: Whether values are combined.
    """

    name: str
    blocks: Blocks
    gives: Share
    takes: Share
    reduces: bool = False

    @property
    def rooted(self) -> bool:
        """Whether one rank, the root, has a part that differs from the other ranks'."""
        return "root" in {self.gives, self.takes}

    def count(self, ranks: int) -> int:
        """Returns the number of blocks."""
        return {"one": 1, "ranks": ranks, "pairs": 2 * ranks}[self.blocks]

    def given(self, rank: int, ranks: int, root: int) -> range:
        """Returns the blocks that a rank fills at first.

        Args:
            rank: Rank inside the group.
            ranks: Ranks in the group.
            root: Root inside the group.
        """
        last = 1 if self.blocks == "one" else ranks
        return _share(self.gives, range(last), rank, root)

    def taken(self, rank: int, ranks: int, root: int) -> range:
        """Returns the blocks that a rank ends with.

        Args:
            rank: Rank inside the group.
            ranks: Ranks in the group.
            root: Root inside the group.
        """
        if self.blocks == "pairs":
            return range(ranks, 2 * ranks)
        last = 1 if self.blocks == "one" else ranks
        return _share(self.takes, range(last), rank, root)

    def kept(self, rank: int, ranks: int) -> tuple[int, int] | None:
        """Returns the block that a rank sends to itself and the block where it lands.

        None for operations without such a block.

        Args:
            rank: Rank inside the group.
            ranks: Ranks in the group.
        """
        return (rank, ranks + rank) if self.blocks == "pairs" else None

    def sizes(self, sizes: Sequence[Any], ranks: int) -> Ints:
        """Returns the elements of every block by rank, shape `[ranks, blocks]`.

        The result has a single row if all ranks have the same sizes.

        Args:
            sizes: Elements of each block; for `pairs`, a row for each rank with the elements that
                it sends to each rank.
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
"""Every operation by name; `send_recv` is a message from the root to the other of two ranks."""
