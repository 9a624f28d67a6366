"""A file as rounds of transfers and moves."""

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import gcd
from typing import NamedTuple, TypeVar

from kernbench.ccl.files.blocks import Blocks


class Move(NamedTuple):
    """Chunks that a rank moves inside its buffer, or adds to others there."""

    rank: int
    source: int
    target: int
    span: int
    adds: bool


class Transfer(NamedTuple):
    """Chunks that go from rank to rank; `adds` to those that are there."""

    sender: int
    receiver: int
    source: int
    target: int
    span: int
    adds: bool


Unit = TypeVar("Unit", Move, Transfer, Move | Transfer)


@dataclass(frozen=True)
class Round:
    """What happens together; each list in order, and one list after the other.

    Attributes:
        first: Moves inside ranks, and transfers of earlier rounds that arrive now.
        copies: Moves that make room for sums of what arrives in the matchings.
        matchings: Transfers that leave and arrive: in each list, a rank sends and receives at most
            one.
        sent: Transfers that leave now and arrive in a later round.
    """

    first: list[Move | Transfer] = field(default_factory=list)
    copies: list[Move] = field(default_factory=list)
    matchings: list[list[Transfer]] = field(default_factory=list)
    sent: list[Transfer] = field(default_factory=list)

    @property
    def touched(self) -> list[Move | Transfer]:
        """All moves and transfers; those that arrive later stand here with where they leave."""
        return [*self.first, *self.copies, *(one for m in self.matchings for one in m), *self.sent]


@dataclass(frozen=True, eq=False)
class Lowered:
    """A file as rounds.

    Attributes:
        file: The file.
        parts: Chunks of a block of the operation.
        scratch: Scratch blocks of each rank.
        rounds: What happens, in order.
    """

    file: Blocks
    parts: int
    scratch: int
    rounds: tuple[Round, ...]

    @cached_property
    def coarse(self) -> "Lowered":
        """The same in as few chunks as may be: chunks that always go together are one."""
        every = [one for each in self.rounds for one in each.touched]
        numbers = (number for one in every for number in (one.source, one.target, one.span))
        by = gcd(self.parts, self.file.chunks, *numbers)

        def one_of(each: Unit) -> Unit:
            return each._replace(
                source=each.source // by, target=each.target // by, span=each.span // by
            )

        rounds = tuple(
            Round(
                list(map(one_of, each.first)),
                list(map(one_of, each.copies)),
                [list(map(one_of, matching)) for matching in each.matchings],
                list(map(one_of, each.sent)),
            )
            for each in self.rounds
        )
        return replace(self, parts=self.parts // by, rounds=rounds)

    @cached_property
    def together(self) -> int:
        """Chunks of a group: those in a row that go from rank to rank together.

        A chunk keeps its place in its group wherever it goes, so that it is as long there as where
        it came from.
        """
        numbers: list[int] = []
        for one in (one for each in self.rounds for one in each.touched):
            numbers.append(one.source - one.target)
            if isinstance(one, Transfer):
                numbers += [one.source, one.span]
        return gcd(self.parts, *numbers)

    def uneven(self, *, links: bool) -> bool:
        """Returns whether what is busiest in each round idles in others, and rounds may overlap.

        They may not where transfers wait in slots: their messages would pass each other.

        Args:
            links: Whether each pair of ranks has a link of its own; else each rank has one in and
                one out.
        """
        if self.buffered:
            return False
        total: Counter[tuple[int, int]] = Counter()
        longest = 0
        for each in self.rounds:
            mine: Counter[tuple[int, int]] = Counter()
            for matching in each.matchings:
                for one in matching:
                    ends = ((one.sender, -1), (-1, one.receiver))
                    for end in ((one.sender, one.receiver),) if links else ends:
                        mine[end] += one.span
            longest += max(mine.values(), default=0)
            total += mine
        return longest > max(total.values(), default=0)

    @property
    def ways(self) -> int:
        """To how many others a rank sends at a time, at most.

        Rounds of one peer each, as of sums that come in turn, go together in different turns.
        """
        found = 1
        if self.uneven(links=True):
            found = max(Counter(sender for sender, _ in self.pairs).values(), default=1)
        for each in self.rounds:
            ends = {(one.sender, one.receiver) for group in each.matchings for one in group}
            found = max([found, *Counter(sender for sender, _ in ends).values()])
        return found

    @property
    def pairs(self) -> frozenset[tuple[int, int]]:
        """Ranks between which messages go: sender and receiver."""
        return frozenset(
            (one.sender, one.receiver)
            for each in self.rounds
            for one in each.touched
            if isinstance(one, Transfer)
        )

    @property
    def buffered(self) -> bool:
        """Whether transfers wait in slots while others go on."""
        return any(each.sent for each in self.rounds)

    @property
    def widest(self) -> int:
        """Most chunks of a transfer."""
        return max((one.span for each in self.rounds for one in each.touched), default=1)
