"""Classes that are split: a run begins again with the finer classes that it turned out to need."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np

from kernbench.classes.partition import Ints, NotAlikeError, Partition
from kernbench.classes.tilings import finer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Met:
    """Groups and messages that a spawn has had, each with those that are alike.

    Attributes:
        groups: By the ranks of a group, the ranks of all that are alike, shape `[groups, places]`.
        pairs: By sender and receiver, all pairs that are alike, shape `[pairs, 2]`.
    """

    groups: dict[tuple[int, ...], Ints] = field(default_factory=dict)
    pairs: dict[tuple[int, int], Ints] = field(default_factory=dict)


class Splits:
    """The classes that each spawn of a run needs, as far as attempts have shown (ADR 0080).

    Attributes:
        reasons: Why classes were split, one line a time.
    """

    def __init__(self) -> None:
        self.reasons: Final[list[str]] = []
        self._classes: Final[dict[int, Partition]] = {}
        self._grown = False

    def classes(self, spawn: int) -> Partition | None:
        """Returns the classes of a spawn, by its number; None if those that it makes will do."""
        return self._classes.get(spawn)

    def note(
        self, spawn: int, partition: Partition, met: Met, errors: Iterable[BaseException]
    ) -> None:
        """Notes how classes are to be split, if that is all that a spawn has failed for.

        Args:
            spawn: Number of the spawn.
            partition: Its classes.
            met: What its ranks have done together.
            errors: What its ranks have failed with.
        """
        summary, apart = "", None
        for error in errors:
            if not isinstance(error, NotAlikeError):
                return
            if apart is None:
                summary, apart = error.summary, error.apart
        split = partition if apart is None else _settled(finer(partition, apart), met)
        if len(split) == len(partition):
            return
        if 2 * len(split) > split.ranks:  # the others would follow, one by one
            split = split.refined([f"rank {rank}" for rank in range(split.ranks)])
        self.reasons.append(f"{len(partition):,} to {len(split):,} classes: {summary}")
        self._classes[spawn] = split
        self._grown = True

    def grown(self) -> bool:
        """Returns whether classes have been split since the last call."""
        grown, self._grown = self._grown, False
        return grown


def _settled(partition: Partition, met: Met) -> Partition:
    """Returns the coarsest refinement in which what was alike is so still.

    Ranks of a class are in groups with the same classes, place by place, and exchange messages
    with ranks of one class.
    """
    of: Ints = partition.of
    rows = [(tiles, tiles) for tiles in met.groups.values()]
    rows += [(pairs, pairs[:, side : side + 1]) for pairs in met.pairs.values() for side in (0, 1)]
    before = -1
    while before < of.max():
        before = int(of.max())
        for known, told in rows:
            _, numbers = np.unique(of[known], axis=0, return_inverse=True)
            kinds = np.full(len(of), -1)
            kinds[told] = numbers.reshape(-1, 1)
            _, of = np.unique(np.stack([of, kinds]), axis=1, return_inverse=True)
            of = of.reshape(-1)
    _, firsts = np.unique(of, return_index=True)
    return partition.refined([f"among ranks as rank {firsts[number]}" for number in of])


def until_stable(attempt: Callable[[Splits], T]) -> T:
    """Runs a program until ranks of each class do the same.

    Args:
        attempt: Runs the program from its beginning on a fresh machine, in the classes that are
            given to its context.

    Returns:
        What the last attempt returns.

    Raises:
        Exception: What the last attempt raises.
    """
    __tracebackhide__ = True  # pytest then shows the user's worker
    splits = Splits()
    while True:
        try:
            return attempt(splits)
        except Exception:
            if not splits.grown():
                raise
