"""Groups as tiles: the groups that the other ranks call in where one rank calls in its own."""

from collections.abc import Sequence
from functools import cached_property
from typing import Final

import numpy as np

from kernbench.classes.partition import WAY_OUT, Apart, Ints, NotAlikeError, Partition


def strides_of(ranks: Sequence[int]) -> list[tuple[int, int]] | None:
    """Returns the number and the stride of the ranks of a group in each dimension, slowest last.

    Args:
        ranks: Global ranks of a group.

    Returns:
        The dimensions; None if the ranks are no regular grid in this order, with growing strides.
    """
    found: list[tuple[int, int]] = []
    left = np.asarray(ranks, np.int64)
    while len(left) > 1:
        stride = int(left[1] - left[0])
        if stride < 1:
            return None
        steps = np.diff(left)
        other = np.flatnonzero(steps != stride)
        count = int(other[0]) + 1 if len(other) else len(left)
        if len(left) % count:
            return None
        grid = left.reshape(-1, count)
        if not (grid - grid[:, :1] == np.arange(count) * stride).all():
            return None
        found.append((count, stride))
        left = grid[:, 0]
    return found


class Tiling:
    """All ranks as groups that are alike: a group moved to each other place of the mesh.

    In a mesh of ranks the groups along some dimensions are a grid, moved along the others. So where
    a rank calls a collective of its group, another rank of its class calls that of the one tile
    that has it.

    Args:
        ranks: Global ranks of a group.
        size: Number of all ranks.

    Raises:
        NotAlikeError: If the group is no such grid.
    """

    def __init__(self, ranks: Sequence[int], size: int) -> None:
        strides = strides_of(ranks)
        starts = None if strides is None else _starts(strides, size)
        if starts is None or int(ranks[0]) not in starts:
            raise NotAlikeError(
                f"a group of ranks {_shown(ranks)} is no part of a mesh of {size} ranks",
                ["its ranks have no regular steps, or the steps do not divide the ranks evenly"],
                hint=WAY_OUT,
            )
        self._starts: Final = starts
        self._offsets: Final = np.asarray(ranks, np.int64) - int(ranks[0])
        self._ranks: Final = ranks

    @cached_property
    def tiles(self) -> Ints:
        """Global ranks of each tile, shape `[tiles, places]`."""
        found: Ints = self._starts[:, None] + self._offsets[None, :]
        return found

    def check(self, partition: Partition) -> Ints:
        """Checks that members of a class are in tiles that are alike in the classes of their ranks.

        Returns:
            The tiles that have ranks of the group's classes, shape `[tiles, places]`.

        Raises:
            NotAlikeError: If they are not.
        """
        classes = partition.of[self.tiles]
        mine = partition.of[np.asarray(self._ranks)]
        concerned = np.isin(classes, mine).any(axis=1)
        tiles, classes = self.tiles[concerned], classes[concerned]
        different = np.flatnonzero((classes != mine[None, :]).any(axis=1))
        if len(different):
            other = tiles[int(different[0])].tolist()
            raise NotAlikeError(
                f"ranks {_shown(self._ranks)} and ranks {_shown(other)} are of some common "
                "classes, and not of the same ones place by place",
                [_told(partition, self._ranks), _told(partition, other)],
                hint=f"give ranks that do not do the same other roles (--roles), or {WAY_OUT}",
                apart=apart_by_group(partition.ranks, tiles, classes),
            )
        return tiles


def apart_by_group(ranks: int, tiles: Ints, known: Ints) -> Apart:
    """Returns that ranks are apart whose groups differ in what is known of them.

    Args:
        ranks: Number of all ranks.
        tiles: Global ranks of each group, shape `[groups, places]`.
        known: What is known of each group, a row each.
    """
    _, firsts, numbers = np.unique(known, axis=0, return_index=True, return_inverse=True)
    told = [""] * ranks
    for tile, number in zip(tiles.tolist(), numbers.reshape(-1), strict=True):
        for rank in tile:
            told[rank] = f"in a group as that of rank {tiles[firsts[number], 0]}"
    return Apart(range(ranks), told)


def finer(partition: Partition, apart: Apart) -> Partition:
    """Returns the coarsest refinement of a partition in which ranks of a class are not apart."""
    told = np.full(partition.ranks, "", object)
    for tile in Tiling(apart.ranks, partition.ranks).check(partition):
        told[tile] = apart.told
    return partition.refined(told.tolist())


def moved_pairs(partition: Partition, source: int, destination: int) -> Ints:
    """Returns a pair of ranks, moved to each rank of the sender's class, shape `[pairs, 2]`.

    Args:
        source: Rank that sends.
        destination: Rank that receives.

    Raises:
        NotAlikeError: If one of the receivers is of another class than the pair's.
    """
    of = partition.of
    senders = np.flatnonzero(of == of[source])
    receivers = senders + (destination - source)
    inside = (receivers >= 0) & (receivers < len(of))
    same = inside & (of[receivers * inside] == of[destination])
    if same.all() and len(senders) == partition.class_of(destination).size:
        return np.stack([senders, receivers], axis=1)
    sender = int(senders[np.flatnonzero(~same)[0]]) if not same.all() else source
    moved = destination - source
    peers = {rank: rank + moved for rank in senders.tolist()}
    peers |= {rank: rank - moved for rank in np.flatnonzero(of == of[destination]).tolist()}
    told = [""] * len(of)
    for rank, peer in peers.items():
        one = partition.class_of(peer).name if 0 <= peer < len(of) else "nobody"
        told[rank] = f"whose message is of {one}"
    _tell_onward(partition, destination, moved, told)
    raise NotAlikeError(
        f"rank {source} sends to rank {destination}, and what rank {sender} of its class sends has "
        "no such receiver",
        [_told(partition, [source, sender]), _told(partition, [destination])],
        hint=f"give ranks that do not do the same other roles (--roles), or {WAY_OUT}",
        apart=Apart(range(len(of)), told),
    )


def _tell_onward(partition: Partition, rank: int, moved: int, told: list[str]) -> None:
    """Tells ranks apart behind those that are told apart, as by messages that go on as far.

    Stages of a pipeline send to the next one. That these messages will come is a guess: a class
    that is split for nothing costs time, and each stage would cost an attempt of its own else.

    Args:
        rank: One of those that are told apart, which receives a message.
        moved: How far behind its sender it is.
        told: What is known of each rank; gets more.
    """
    of = partition.of
    here = np.flatnonzero(of == of[rank])
    while True:
        there = here + moved
        if there.min() < 0 or there.max() >= len(of) or len(np.unique(of[there])) > 1:
            return
        if told[there[0]] or partition.class_of(int(there[0])).size != len(there):
            return
        for before, after in zip(here.tolist(), there.tolist(), strict=True):
            told[after] = told[before]
        here = there


def _starts(strides: Sequence[tuple[int, int]], size: int) -> Ints | None:
    """Returns the first ranks of all tiles; None if the strides do not divide the ranks evenly."""
    starts: Ints = np.zeros(1, np.int64)
    block = 1
    for count, stride in (*strides, (1, size)):
        if stride % block:
            return None
        moved = np.arange(stride // block, dtype=np.int64) * block
        starts = (starts[None, :] + moved[:, None]).reshape(-1)
        block = stride * count
    return starts if block == size else None


def _shown(ranks: Sequence[int]) -> str:
    most = 4
    text = ", ".join(map(str, ranks[:most]))
    return text if len(ranks) <= most else f"{text}, .., {ranks[-1]}"


def _told(partition: Partition, ranks: Sequence[int]) -> str:
    names = dict.fromkeys(partition.class_of(rank).name for rank in ranks)
    return f"ranks {_shown(ranks)}: {', '.join(names)}"
