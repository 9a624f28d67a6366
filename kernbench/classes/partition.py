"""Which ranks do the same: a partition of all ranks, and its refinements."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from kernbench.errors import UnsupportedError

Ints = np.ndarray[Any, np.dtype[np.int64]]

WAY_OUT: Final = "run with --collapse off, which simulates every rank"
"""What a user can do where ranks of a class cannot be proved to do the same."""


class NotAlikeError(UnsupportedError):
    """Ranks of a class do not do the same, or that they do cannot be proved."""


class Class(NamedTuple):
    """Ranks that have the same program, the same times, and machines that are alike.

    Attributes:
        name: What they have in common: their role.
        member: The lowest of them, which runs the program for all.
        size: How many they are.
    """

    name: str
    member: int
    size: int


@dataclass(frozen=True, slots=True)
class Standing:
    """Who stands for whom in a group.

    Attributes:
        ranks: Global rank of each place.
        caller: By place, the place of the member that runs the program for it.
        places: By the place of a member that runs, the places for which it does.
    """

    ranks: Sequence[int]
    caller: Sequence[int]
    places: dict[int, Sequence[int]]


class Partition:
    """A partition of all ranks into classes. It is never changed; a finer one is another one.

    Args:
        of: Number of the class of each rank.
        names: Name of each class, by number.

    Attributes:
        of: Number of the class of each rank, shape `[ranks]`.
        classes: The classes, in the order of their members that run.
    """

    def __init__(self, of: Sequence[int] | Ints, names: Sequence[str]) -> None:
        found = np.asarray(of, np.int64)
        _, firsts, numbers, sizes = np.unique(
            found, return_index=True, return_inverse=True, return_counts=True
        )
        order = np.argsort(firsts)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        self.of: Final[Ints] = place[numbers.reshape(-1)]
        self.classes: Final[tuple[Class, ...]] = tuple(
            Class(names[int(found[first])], int(first), int(size))
            for first, size in zip(firsts[order], sizes[order], strict=True)
        )

    @classmethod
    def by_roles(cls, roles: Sequence[str]) -> "Partition":
        """Returns the partition into ranks of one role.

        Args:
            roles: Name of the role of each rank.
        """
        names = list(dict.fromkeys(roles))
        number = {name: place for place, name in enumerate(names)}
        return cls([number[role] for role in roles], names)

    def refined(self, signatures: Sequence[str]) -> "Partition":
        """Returns the coarsest partition in which ranks of a class have equal signatures, too.

        Args:
            signatures: What is known of each rank; the names of classes that are split end with it.
        """
        numbers: dict[tuple[int, str], int] = {}
        of = [
            numbers.setdefault(key, len(numbers))
            for key in zip(self.of.tolist(), signatures, strict=True)
        ]
        parts = Counter(number for number, _ in numbers)
        names = [
            f"{self.classes[number].name}{f', {signature}' if parts[number] > 1 else ''}"
            for number, signature in numbers
        ]
        return Partition(of, names)

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def ranks(self) -> int:
        """Number of all ranks."""
        return len(self.of)

    @cached_property
    def callers(self) -> tuple[int, ...]:
        """The ranks that run the program, one of each class, ascending."""
        return tuple(one.member for one in self.classes)

    @cached_property
    def _calls(self) -> frozenset[int]:
        return frozenset(self.callers)

    def calls(self, rank: int) -> bool:
        """Returns whether a rank runs the program."""
        return rank in self._calls

    def class_of(self, rank: int) -> Class:
        """Returns the class of a rank."""
        return self.classes[int(self.of[rank])]

    def callers_of(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """Returns those of some ranks that run the program, in their order."""
        if isinstance(ranks, range) and ranks.step == 1 and len(ranks) > len(self._calls):
            return tuple(rank for rank in self.callers if rank in ranks)
        return tuple(rank for rank in ranks if rank in self._calls)

    def standing(self, ranks: Sequence[int]) -> Standing | None:
        """Returns who stands for whom in a group; None if each member runs the program itself.

        Args:
            ranks: Global rank of each place of the group.

        Raises:
            NotAlikeError: If the member that runs for a class is not in the group.
        """
        run = np.array(self.callers)[self.of[np.asarray(ranks)]]
        place = {rank: number for number, rank in enumerate(ranks) if rank in self._calls}
        if len(place) == len(ranks):
            return None
        missing = [
            (rank, other)
            for rank, other in zip(ranks, run.tolist(), strict=True)
            if other not in place
        ]
        if missing:
            rank, other = missing[0]
            raise NotAlikeError(
                f"rank {rank} is in a group without rank {other}, which runs the program for it",
                [f"both are of class {self.class_of(rank).name!r}"],
                hint=f"give rank {rank} another role (--roles), or {WAY_OUT}",
            )
        caller = [place[other] for other in run.tolist()]
        places: dict[int, list[int]] = {}
        for number, one in enumerate(caller):
            places.setdefault(one, []).append(number)
        return Standing(ranks, caller, dict(places))

    def __str__(self) -> str:
        many = "es" if len(self) > 1 else ""
        return f"ranks {self.ranks:,} in {len(self):,} class{many}; exact"
