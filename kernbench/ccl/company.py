"""Collectives that meet on shared links: what became of them is kept, and found again.

A collective that is alone on its links is timed once for each pattern of starts. Those that meet
others go over the network, message by message. But a program does the same in each step: then all
starts come again, relative to the first one, and so do all ends. A `Company` is such a run of
collectives from when the first one comes to idle links until the last one leaves them. It follows
the recording of an earlier one for as long as the same ranks begin at the same times. At the first
difference, or if anybody comes to the links who is in no company, everything is repeated on the
network, as for a collective that turns out not to be alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, Protocol

from kernbench.caches import Table
from kernbench.des import EventLoop, order
from kernbench.hw.claims import Claim, Claims
from kernbench.sim_engine.shadow import compare

_MEMBERS: Final = 16
"""Most collectives of a company; those of more are not recorded."""

_RECORDINGS: Final = 8
"""Most recordings that begin with the same rank of the same collective."""


class Member(Protocol):
    """What a company sees of a channel of a collective.

    Attributes:
        claim: Of the links; None before the first rank begins.
    """

    claim: Claim | None

    @property
    def plan(self) -> Any:
        """Everything about the channel that does not depend on time."""
        ...

    @property
    def starts(self) -> Mapping[int, int]:
        """By rank, when it began, in picoseconds; in the order in which the ranks came."""
        ...

    def key(self, rank: int) -> tuple[int, int]:
        """Returns what orders a rank's events at one instant: its owner's key, and the turn."""
        ...

    def meet(self, company: "Company") -> None:
        """Notes which company it has joined."""
        ...

    def follow(self) -> None:
        """Revokes the reported end times, and takes the links: `settle` reports new ones."""
        ...

    def settle(self, rank: int, end: int) -> None:
        """Tells the end of a rank, in picoseconds."""
        ...

    def release(self) -> None:
        """Gives the links back."""
        ...


@dataclass(frozen=True, eq=False)
class Recording:
    """What became of a company. Times are picoseconds from its first start.

    Attributes:
        plans: Of the collectives.
        starts: By collective and rank, when the rank began, the key of its owner, and its turn,
            from that of the same owner in the first collective that it takes part in.
        order: When and who, in order of time.
        ends: When it became known, collective, rank, and the end of the rank, in this order.
    """

    plans: tuple[Any, ...]
    starts: Mapping[tuple[int, int], tuple[int, int, int]]
    order: tuple[tuple[int, tuple[int, int]], ...]
    ends: tuple[tuple[int, int, int, int], ...]


Kept = Table[Any, tuple[Recording, ...]]


class _Mode(Enum):
    NEW = auto()
    FOLLOWING = auto()
    RECORDING = auto()
    VOID = auto()  # somebody else is on the links


class Company:
    """Collectives that are under way on shared links.

    Args:
        companies: All of the engine.
    """

    def __init__(self, companies: "Companies") -> None:
        self._all: Final = companies
        self._turns: dict[int, int] = {}  # by owner, the first one
        self._members: list[Member] = []
        self._gone: dict[Member, bool] = {}  # whether they still have their links
        self._mode = _Mode.NEW
        self._ends: list[tuple[int, Member, int, int]] = []
        self._recording: Recording | None = None
        self._came = 0  # of the starts in order, how many have come
        self._told = 0
        # Ends that were known before the rank's start: it had called, with a start to come.
        self._early: list[tuple[int, int, int, int]] = []

    @property
    def following(self) -> bool:
        """Whether a recording says what becomes of the collectives."""
        return self._mode is _Mode.FOLLOWING

    def join(self, members: Sequence[Member]) -> None:
        """Takes collectives that meet; a rank of the last one has just begun."""
        self._members += members
        for member in members:
            member.meet(self)
            for rank in member.starts:
                self._turns.setdefault(*member.key(rank))
        # One that is on the network already has met somebody who may be gone: its ends are no
        # others', and what has run there cannot be repeated from before.
        met = any(member.claim is not None and not member.claim.alone for member in members)
        if met or len(self._members) > _MEMBERS:
            self.disturb()
        elif self._mode is _Mode.NEW:
            found = self._found()
            if found is None:
                self._mode = _Mode.RECORDING
            else:
                self._follow(found)
        elif self.following and not self._follows():
            self._other()

    def enter(self, member: Member, rank: int) -> bool:
        """Takes a rank that begins; returns whether the company sees to it."""
        self._turns.setdefault(*member.key(rank))
        if not self.following:
            return False
        if self._fits_one(self._members.index(member), member, rank):
            self._tell()
        else:
            self._other()
        return True

    def ended(self, member: Member, rank: int, end: int) -> None:
        """Notes the end of a rank, as it is found."""
        if self._mode is _Mode.RECORDING:
            self._ends.append((self._all.loop.now, member, rank, end))

    def repeated(self, member: Member) -> None:
        """Notes that a collective is repeated on the network."""
        if self.following:
            self._mode = _Mode.VOID
        self._ends = [end for end in self._ends if end[1] is not member]

    def disturb(self) -> None:
        """Notes that something else is on the links, or that nobody wants a recording."""
        if self.following:
            self._go_on()
        self._mode = _Mode.VOID

    def leave(self, member: Member) -> bool:
        """Takes leave of a collective that is over; returns whether it keeps its links for now.

        If the recording turns out not to fit, it is repeated with the others.
        """
        keeps = self._gone[member] = self.following
        if len(self._gone) == len(self._members):
            self._end()
        return keeps

    def _end(self) -> None:
        self._all.followed += self.following
        if self._mode is _Mode.RECORDING:
            self._all.keep(self._members, self._starts(), self._ends)
        for member, keeps in self._gone.items():
            if keeps:
                member.release()
        self._mode, self._recording = _Mode.VOID, None
        self._members, self._gone, self._ends = [], {}, []
        self._all.active -= 1

    def _starts(self) -> dict[tuple[int, int], tuple[int, int, int]]:
        return {
            (number, rank): self._start_of(member, rank)
            for number, member in enumerate(self._members)
            for rank in member.starts
        }

    # Following

    def _found(self, *, at_last: bool = False) -> Recording | None:
        """Returns a recording that begins as the company has begun, and for which nobody is late.

        Args:
            at_last: Whether all have come that come at this instant.
        """
        first = self._members[0]
        rank = next(iter(first.starts))
        found: Recording
        if self._all.shadow or self._all.strangers(self._members):
            return None
        for found in self._all.kept.get((first.plan, rank), ()):
            if self._fits(found) and not self._late(found, at_last):
                return found
        return None

    def _fits(self, found: Recording) -> bool:
        self._recording = found
        return len(self._members) <= len(found.plans) and all(
            member.plan is found.plans[number]
            and all(self._fits_one(number, member, rank) for rank in member.starts)
            for number, member in enumerate(self._members)
        )

    def _follows(self) -> bool:
        assert self._recording is not None
        return self._fits(self._recording)

    def _fits_one(self, number: int, member: Member, rank: int) -> bool:
        assert self._recording is not None
        expected = self._recording.starts.get((number, rank))
        return expected == self._start_of(member, rank)

    def _start_of(self, member: Member, rank: int) -> tuple[int, int, int]:
        """Returns when a rank began, as recordings have it."""
        owner, turn = member.key(rank)
        first = self._turns.setdefault(owner, turn)
        return member.starts[rank] - self._begin, owner, turn - first

    @property
    def _begin(self) -> int:
        """Start of the rank that came first, from which times are counted."""
        return next(iter(self._members[0].starts.values()))

    def _follow(self, recording: Recording) -> None:
        self._mode, self._recording = _Mode.FOLLOWING, recording
        self._came, self._told, self._early = 0, 0, []
        for member in self._members:
            member.follow()
        self._tell()

    def _tell(self) -> None:
        """Tells all ends that depend on nothing but what has come."""
        recording, begin, before = self._recording, self._begin, self._came
        assert recording is not None
        coming = recording.order
        while self._came < len(coming) and self._has_come(*coming[self._came][1]):
            self._came += 1
        waits = self._came < len(coming)
        if waits and (self._came > before or not before):
            when = begin + coming[self._came][0]
            loop = self._all.loop
            owner = loop.owner(order.REVIEW)
            loop.at(max(when, loop.now), owner, self._look, recording, self._came)
        ends, self._early = self._early, []
        while self._told < len(recording.ends):
            if waits and recording.ends[self._told][0] >= coming[self._came][0]:
                break
            ends.append(recording.ends[self._told])
            self._told += 1
        for place, (_, number, rank, end) in enumerate(ends):
            if not self._has_come(number, rank):
                self._early.append(ends[place])
                continue
            self._members[number].settle(rank, begin + end)
            if self._recording is not recording:
                break  # it was the last end of those that have come

    def _has_come(self, number: int, rank: int) -> bool:
        return number < len(self._members) and rank in self._members[number].starts

    def _look(self, recording: Recording, came: int) -> None:
        """Goes another way if a rank has not come when it came in the recording."""
        if self.following and self._recording is recording and self._came == came:
            self._other(at_last=True)

    def _other(self, *, at_last: bool = False) -> None:
        """Follows another recording, or none; see `_found`."""
        found = self._found(at_last=at_last)
        if found is None:
            self._mode = _Mode.RECORDING
            self._go_on()
        else:
            self._follow(found)

    def _late(self, found: Recording, at_last: bool) -> bool:
        """Returns whether a rank has not come in time for a recording; see `_found`."""
        until = self._all.loop.now - self._begin + at_last
        return any(time < until and not self._has_come(*who) for time, who in found.order)

    def _go_on(self) -> None:
        """Repeats everything on the network."""
        self._all.repeat(self._members)


class Companies:
    """All companies of an engine.

    Args:
        loop: The clock, in picoseconds.
        claims: Who uses which links.
        kept: Recordings, by plan and rank that began first.

    Attributes:
        loop: See the argument.
        kept: See the argument.
        shadow: Whether recordings are compared in place of being followed.
        active: How many companies are under way.
        followed: How many have followed a recording to its end.
    """

    def __init__(self, loop: EventLoop, claims: Claims, kept: Kept, *, shadow: bool) -> None:
        self.loop: Final = loop
        self.kept: Final = kept
        self.shadow: Final = shadow
        self.active = 0
        self.followed = 0
        self._claims: Final = claims

    def of(self, member: Member) -> Company:
        """Returns the company that a collective joins: that of its links, or a new one.

        All join it that are alone on these links.
        """
        companies: dict[Company, None] = {}
        alone: list[Member] = []
        for claim in self._claims.on(member.plan.use.links):
            if isinstance(claim.company, Company):
                companies[claim.company] = None
            elif claim.member is not None and claim.member is not member:
                alone.append(claim.member)
        found = next(iter(companies), None)
        if found is None:
            self.active += 1
            found = Company(self)
        for other in companies if len(companies) > 1 else ():
            other.disturb()
        found.join([*alone, member])
        return found

    def strangers(self, members: Iterable[Member]) -> bool:
        """Returns whether anybody else is on the links of members."""
        links = {link for member in members for link in member.plan.use.links}
        mine = {id(member.claim) for member in members}
        return any(id(claim) not in mine for claim in self._claims.on(links))

    def repeat(self, members: Iterable[Member]) -> None:
        """Repeats members on the network, all that are alone in one go."""
        for member in members:
            if member.claim is not None and member.claim.alone:
                self._claims.share(member.claim, begun=True)

    def keep(
        self,
        members: list[Member],
        starts: Mapping[tuple[int, int], tuple[int, int, int]],
        ends: list[tuple[int, Member, int, int]],
    ) -> None:
        """Keeps what became of a company that met nobody else; see `Recording`."""
        first = members[0]
        rank, begin = next(iter(first.starts.items()))
        numbers = {id(member): number for number, member in enumerate(members)}
        if len(ends) != len(starts):
            return
        recording = Recording(
            tuple(member.plan for member in members),
            starts,
            tuple(sorted((time, who) for who, (time, _, _) in starts.items())),
            tuple(
                (known - begin, numbers[id(member)], rank, end - begin)
                for known, member, rank, end in ends
            ),
        )
        key = first.plan, rank
        kept = self.kept.get(key, ())
        for other in kept:
            if other.plans == recording.plans and other.starts == recording.starts:
                if self.shadow:
                    compare("ends of collectives that met", key, other.ends, recording.ends)
                return
        self.kept.pop(key, None)
        self.kept.keep(key, (recording, *kept[: _RECORDINGS - 1]))
