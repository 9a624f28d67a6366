"""Up and down two binary trees, each for its share of the buffer.

A rank inside one tree is a leaf of the other, so that both together use what every rank can send
and receive (Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction
and scan", 2009; NCCL's trees since 2.4). Even channels have the first tree, odd ones the second:
with one channel this is a plain binary tree.

The root stands above both trees. The others are numbered from 1 in the order of ranks; in the first
tree a number lies above those with fewer trailing zero bits around it, so that odd numbers are
leaves. The second is its mirror image, or, if there is an odd number, moved by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from kernbench.ccl.algorithms.steps import only, pipeline
from kernbench.ccl.plan import NOTHING, Combine, Comm


def all_reduce(comm: Comm) -> None:
    """Reduces the buffers of all ranks; every rank ends with bitwise the same result.

    Sums go up to rank 0 and results come down. A rank that has `c` children below and one rank
    above sends `1 + c` times its channel's share, over both trees at most `2` times the buffer. In
    a turn it exchanges with each child and then with its parent: a sum of one chunk up against the
    result of an earlier one down. Both sides of an exchange belong to the same turn, so nobody
    waits for slots in a circle. With `k` chunks and trees of height `h`, `k + h` turns. May wait.
    """
    tree = _Tree(comm, 0)
    number = tree.number(comm.rank)
    parent, children, depth = tree.around(number)
    chunks = pipeline(comm.messages, 2 * tree.height)
    comm.cut(chunks)
    for turn in range(chunks + tree.height + 1):
        for child, there in children:
            # Results come to this rank `depth` turns after the sums, and go on one turn later.
            _exchange(comm, tree.rank(child), there, turn - depth - 1, turn, chunks, "reduce")
        _exchange(comm, tree.rank(parent), number > 0, turn, turn - depth, chunks, "copy")


def reduce(comm: Comm) -> None:
    """Reduces the buffers of all ranks at the root.

    Every other rank sends its channel's share once. With `k` chunks and trees of height `h`,
    `k + h` turns. May wait.
    """
    place = _place(comm, comm.root)
    chunks = pipeline(comm.messages, place.height)
    comm.cut(chunks)
    for turn in range(chunks + 1):
        arriving = [(child, turn) for child in place.children if turn < chunks]
        leaving = [(place.parent, turn - 1)] if place.parent is not None and turn else []
        _flow(comm, leaving, arriving, "reduce")


def broadcast(comm: Comm) -> None:
    """Gives the root's buffer to all.

    A rank with `c` children sends its channel's share `c` times, over both trees at most twice half
    of the buffer. With `k` chunks and trees of height `h`, `k + h` turns. May wait.
    """
    place = _place(comm, comm.root)
    chunks = pipeline(comm.messages, place.height)
    comm.cut(chunks)
    for turn in range(chunks + 1):
        arriving = [(place.parent, turn)] if place.parent is not None and turn < chunks else []
        leaving = [(child, turn - 1) for child in place.children if turn]
        _flow(comm, leaving, arriving, "copy")


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a rank in a tree.

    Attributes:
        parent: Rank above; None for the root.
        children: Ranks directly below.
        depth: Number of ranks above this rank, up to the root.
        height: Largest depth of any rank.
    """

    parent: int | None
    children: tuple[int, ...]
    depth: int
    height: int


def _place(comm: Comm, root: int) -> _Place:
    """Returns the place of this rank in the tree of its channel."""
    tree = _Tree(comm, root)
    number = tree.number(comm.rank)
    above, below, depth = tree.around(number)
    children = tuple(int(tree.rank(child)) for child, there in below if there)
    return _Place(int(tree.rank(above)) if number else None, children, int(depth), tree.height)


@dataclass(frozen=True)
class _Tree:
    """The tree of a channel; numbers and ranks are single ones or arrays.

    Attributes:
        comm: The collective.
        root: Rank inside the group. Its number is 0.
    """

    comm: Comm
    root: int

    @property
    def others(self) -> int:
        """How many ranks there are but the root."""
        return self.comm.world_size - 1

    @property
    def height(self) -> int:
        """Largest depth of any rank."""
        return self.others.bit_length()

    def number(self, rank: Any) -> Any:
        """Returns the number of a rank."""
        place = (rank - self.root) % self.comm.world_size
        if self.comm.channel % 2 == 0:
            return place
        moved = (
            (place - 2) % max(self.others, 1) + 1 if self.others % 2 else self.others + 1 - place
        )
        return moved * (place > 0)

    def rank(self, number: Any) -> Any:
        """Returns the rank of a number."""
        place = number
        if self.comm.channel % 2:
            place = (
                number % max(self.others, 1) + 1 if self.others % 2 else self.others + 1 - number
            )
            place = place * (number > 0)
        return (self.root + place) % self.comm.world_size

    def around(self, number: Any) -> tuple[Any, list[tuple[Any, Any]], Any]:
        """Returns who is above a number and directly below it, and how many are above.

        Returns:
            The number above, 0 for the root; those below, each with whether it is there; and the
            depth.
        """
        first: Any = 1
        last: Any = self.others
        parent, depth = 0 * number, 1 * (number > 0)
        for _ in range(self.height):
            top = _top(first, last)
            on, left = (number > 0) & (top != number), number < top
            parent, depth = np.where(on, top, parent), depth + on
            first = np.where(on & ~left, top + 1, first)
            last = np.where(on & left, top - 1, last)
        # The root is above all: its only child is the top of the tree.
        halves = (first, np.where(number > 0, number - 1, last)), (number + 1, last)
        there = halves[0][0] <= halves[0][1], (number > 0) & (halves[1][0] <= halves[1][1])
        return parent, [(_top(*half), one) for half, one in zip(halves, there, strict=True)], depth


def _top(first: Any, last: Any) -> Any:
    """Returns the number with the most trailing zero bits among `first` to `last`.

    It has the bits of `last` down to the highest one in which `last` differs from `first - 1`.
    """
    differ = (first - 1) ^ last
    for shift in (1, 2, 4, 8, 16):
        differ = differ | (differ >> shift)
    return last & ~(differ >> 1)


def _exchange(
    comm: Comm, peer: Any, there: Any, send: Any, receive: Any, chunks: int, combine: Combine
) -> None:
    """Exchanges chunks with a neighbour that is there; other chunk numbers are skipped."""
    leaving = only(there & (send >= 0) & (send < chunks), send)
    arriving = only(there & (receive >= 0) & (receive < chunks), receive)
    if np.maximum(leaving, arriving).max() == NOTHING:
        return
    peer = peer * there
    if np.ndim(peer) == 0:
        leaving, arriving, peer = int(leaving), int(arriving), int(peer)
    comm.exchange(send=leaving, to=peer, receive=arriving, source=peer, combine=combine)


def _flow(
    comm: Comm,
    leaving: Sequence[tuple[int, int]],
    arriving: Sequence[tuple[int, int]],
    combine: Combine,
) -> None:
    """Sends chunks to ranks while other chunks arrive; each is given as a rank and a chunk."""
    nobody = (0, NOTHING)
    for (to, send), (source, receive) in zip_longest(leaving, arriving, fillvalue=nobody):
        comm.exchange(send=send, to=to, receive=receive, source=source, combine=combine)
