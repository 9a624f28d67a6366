"""Which ranks do the same: a partition of all ranks, and its refinements."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from kernbench.errors import UnsupportedError, UsageError

Ints = np.ndarray[Any, np.dtype[np.int64]]

WAY_OUT: Final = "run with --collapse off, which simulates every rank"
"""What a user can do where ranks of a class cannot be proved to do the same."""


def role_hint(rank: int) -> str:
    """Returns what a user can do where a rank does not do what others of its class do."""
    return f"give rank {rank} another role (--roles), or {WAY_OUT}"


class Apart(NamedTuple):
    """What tells ranks apart that were of one class.

    Attributes:
        ranks: Global ranks of a group, or all of them.
        told: What is known of each; what is known of a rank of a group is so of the rank in its
            place of each group that is alike.
    """

    ranks: Sequence[int]
    told: Sequence[str]


class NotAlikeError(UnsupportedError):
    """Ranks of a class do not do the same, or that they do cannot be proved.

    Args:
        summary: See `KernbenchError`.
        facts: See `KernbenchError`.
        hint: See `KernbenchError`.
        apart: What tells ranks of a class apart; None if no finer classes would help.
    """

    def __init__(
        self, summary: str, facts: Sequence[str] = (), *, hint: str, apart: Apart | None = None
    ) -> None:
        super().__init__(summary, facts, hint=hint)
        self.apart: Final = apart


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
        beside: See the attribute.

    Attributes:
        of: Number of the class of each rank, shape `[ranks]`.
        classes: The classes, in the order of their members that run.
        beside: Ranks that run the program besides, ascending; they stand for themselves, and in
            groups without the member of their class for others.
    """

    def __init__(
        self, of: Sequence[int] | Ints, names: Sequence[str], beside: Collection[int] = ()
    ) -> None:
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
        self.beside: Final = tuple(sorted(beside))

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

    def witnessed(self, witnesses: Sequence[int]) -> "Partition":
        """Returns the same classes, some ranks of which run beside the members that run for them.

        So that each of them has somebody to exchange messages with, the members of other classes
        have a rank beside them, too, as far away as the witness is from its member.

        Raises:
            UsageError: If there is no such rank, or it runs the program for its class anyway.
        """
        beside: set[int] = set()
        for rank in witnesses:
            if rank >= self.ranks or rank in self._calls:
                what = "runs the program anyway" if rank < self.ranks else "is not there"
                raise UsageError(
                    f"--witnesses {','.join(map(str, witnesses))}: rank {rank} of {self.ranks:,} "
                    f"{what}",
                    hint="name ranks for which another one runs the program: -v lists the classes",
                )
            moved = [one.member + rank - self.class_of(rank).member for one in self.classes]
            beside.update(
                other
                for other, one in zip(moved, self.classes, strict=True)
                if 0 <= other < self.ranks and self.class_of(other) is one
            )
        return Partition(self.of, [one.name for one in self.classes], beside - self._calls)

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def ranks(self) -> int:
        """Number of all ranks."""
        return len(self.of)

    @cached_property
    def callers(self) -> tuple[int, ...]:
        """The ranks that run the program, one of each class and those beside, ascending."""
        members = tuple(one.member for one in self.classes)
        return tuple(sorted((*members, *self.beside))) if self.beside else members

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
        place = {rank: number for number, rank in enumerate(ranks) if rank in self._calls}
        if len(place) == len(ranks):
            return None
        # By class, the place of who runs for it: its member, or another one if that is elsewhere.
        runs = np.full(len(self), -1)
        for rank in (*self.beside[::-1], *(one.member for one in self.classes)):
            if rank in place:
                runs[self.of[rank]] = place[rank]
        caller = runs[self.of[np.asarray(ranks)]]
        missing = np.flatnonzero(caller < 0)
        if len(missing):
            rank = int(ranks[int(missing[0])])
            one = self.class_of(rank)
            raise NotAlikeError(
                f"rank {rank} is in a group without rank {one.member}, which runs the program for "
                "it",
                [f"both are of class {one.name!r}"],
                hint=role_hint(rank),
            )
        own = list(place.values())
        caller[own] = own
        order = np.argsort(caller, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(caller[order])) + 1)
        places = {int(caller[part[0]]): part.tolist() for part in parts}
        return Standing(ranks, caller.tolist(), places)

    def __str__(self) -> str:
        many = "es" if len(self) > 1 else ""
        more = len(self.beside)
        witnesses = f"; {more:,} more rank{'s' * (more > 1)} did the same" if more else ""
        return f"ranks {self.ranks:,} in {len(self):,} class{many}; exact{witnesses}"
