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

from kernbench.ccl.algorithms.steps import pipeline
from kernbench.ccl.plan import NOTHING, Combine, Comm


def all_reduce(comm: Comm) -> None:
    """Reduces the buffers of all ranks; every rank ends with bitwise the same result.

    Sums go up to rank 0 and results come down. A rank that has `c` children below and one rank
    above sends `1 + c` times its channel's share, over both trees at most `2` times the buffer. In
    a turn it exchanges with each child and then with its parent: a sum of one chunk up against the
    result of an earlier one down. Both sides of an exchange belong to the same turn, so nobody
    waits for slots in a circle. With `k` chunks and trees of height `h`, `k + h` turns. May wait.
    """
    place = _place(comm, 0)
    chunks = pipeline(comm.messages, 2 * place.height)
    comm.cut(chunks)
    for turn in range(chunks + place.depth + 1):
        for child in place.children:
            # Results come to this rank `depth` turns after the sums, and go on one turn later.
            _exchange(comm, child, turn - place.depth - 1, turn, chunks, "reduce")
        if place.parent is not None:
            _exchange(comm, place.parent, turn, turn - place.depth, chunks, "copy")


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
    others = [(root + number) % comm.world_size for number in range(1, comm.world_size)]
    if comm.channel % 2:
        others = others[1:] + others[:1] if len(others) % 2 else others[::-1]
    height = len(others).bit_length()
    first, last, parent, depth = 1, len(others), root, 1
    if comm.rank == root:
        below = (others[_top(first, last) - 1],) if others else ()
        return _Place(None, below, 0, height)
    number = others.index(comm.rank) + 1
    while (top := _top(first, last)) != number:
        parent, depth = others[top - 1], depth + 1
        first, last = (first, top - 1) if number < top else (top + 1, last)
    halves = ((first, number - 1), (number + 1, last))
    children = tuple(others[_top(*half) - 1] for half in halves if half[0] <= half[1])
    return _Place(parent, children, depth, height)


def _top(first: int, last: int) -> int:
    """Returns the number with the most trailing zero bits among `first` to `last`."""
    while last & (last - 1) >= first:
        last &= last - 1
    return last


def _exchange(
    comm: Comm, peer: int, send: int, receive: int, chunks: int, combine: Combine
) -> None:
    """Exchanges chunks with a neighbour; chunk numbers that do not exist are skipped."""
    leaving = send if 0 <= send < chunks else NOTHING
    arriving = receive if 0 <= receive < chunks else NOTHING
    if (leaving, arriving) != (NOTHING, NOTHING):
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
