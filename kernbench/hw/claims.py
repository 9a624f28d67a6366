"""Which activity uses which links; an activity alone on its links is timed without the network."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any, Final, Protocol

from kernbench.classes.partition import WAY_OUT, NotAlikeError
from kernbench.des import EventLoop
from kernbench.hw.path import Path
from kernbench.units import format_time

Released = Callable[[int], int | None]
"""Returns from when on an activity that is alone does not use a link any more, in picoseconds; None
while this is unknown. The link is given by its index."""

Repeat = Callable[[], tuple[int, Callable[[], None]]]
"""Undoes the times of an activity; returns its start (picoseconds) and a call to start it anew."""


Share = tuple[object, int]
"""Key of activities that divide links among them, and the number of one activity's share. The rates
of messages are bounded, so that those with one key and different numbers never wait for each other.
"""


class Company(Protocol):
    """Activities that have met on their links."""

    def disturb(self) -> None:
        """Notes that somebody else uses the links."""
        ...


@dataclass(frozen=True, eq=False)
class Ways:
    """The links of an activity in which each SIP of a machine does the same, moved to its place.

    Attributes:
        kinds: By kind of link (there is one of a kind for each SIP), to which SIP one of them sends
            over it, and the path to that SIP: the last one, of those to which it sends in turn.
            No two of them send over one link at a time.
        tail: See `Use`.
        private: Whether these tell of all links which single path each belongs to.
    """

    kinds: Mapping[Hashable, tuple[int, Path]]
    tail: int
    private: bool


class Use:
    """The links that an activity sends over.

    Args:
        paths: Paths of the messages of the activity; with `ways`, looked at when they are needed.
        lead: Shortest time, in picoseconds, from the end of what a sender did before until its
            first message of the activity.
        tail: Longest time, in picoseconds, for which messages hold links after their sender is
            done, if nobody else uses the links.
        share: See `Share`; None for an activity that has links to itself, or competes for them.
        ways: What all SIPs of the machine do, if they do the same; else None.

    Attributes:
        lead: See the argument.
        tail: See the argument.
        share: See the argument.
        ways: See the argument.
    """

    def __init__(
        self,
        paths: Iterable[Path],
        lead: int = 0,
        tail: int = 0,
        *,
        share: Share | None = None,
        ways: Ways | None = None,
    ) -> None:
        self._given: Final = paths if ways is not None else tuple(paths)
        self.lead: Final = lead
        self.tail: Final = tail
        self.share: Final = share
        self.ways: Final = ways

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """Paths of the messages of the activity."""
        return tuple(self._given)

    @cached_property
    def private(self) -> bool:
        """Whether each link belongs to one path only."""
        if self.ways is not None and self.ways.private:
            return True
        return all(self._on[link] is path for path in self.paths for link in path.links)

    @cached_property
    def _on(self) -> dict[int, Path]:
        """By the index of a link, the first path that it belongs to."""
        on: dict[int, Path] = {}
        for path in self.paths:
            for link in path.links:
                on.setdefault(link, path)
        return on

    @cached_property
    def links(self) -> frozenset[int]:
        """Indices of all links of the paths."""
        return frozenset(self._on)

    def beside(self, other: "Use") -> bool:
        """Returns whether both have shares of their own of the links that they share."""
        mine, theirs = self.share, other.share
        if mine is None or theirs is None or mine[1] == theirs[1]:
            return False
        return mine[0] is theirs[0] or mine[0] == theirs[0]

    def clear_of(self, other: "Use") -> bool:
        """Returns whether none of our messages has to queue behind a message of `other`.

        `other` comes first in a line. None has to queue if both use the same single path on every
        link that they share, and the links are free again before our first message comes.
        """
        if self.lead < other.tail:
            return False
        if self.ways is None or other.ways is None:
            return (self.private and other.private) and (
                self is other
                or all(self._on[link].like(other._on[link]) for link in self.links & other.links)
            )
        mine, theirs = self.ways.kinds, other.ways.kinds
        return (self.ways.private and other.ways.private) and all(
            mine[kind][0] == theirs[kind][0] and mine[kind][1].like(theirs[kind][1])
            for kind in mine.keys() & theirs.keys()
        )


class Claim:
    """The links that an activity has while it is under way.

    Attributes:
        use: The links and the paths of the activity.
        line: Key of a line of commands. Activities of one line run one after another on each
            sender, so they need not contend with each other on paths that they share.
        alone: Whether no other activity uses the links.
        company: Activities that have met, of which it is one; None if it has met nobody.
        member: What may join a company; None if the activity does not.
        clear_of: Results of `Use.clear_of`, keyed by the other activity's links.
        repeat: Undoes the times of the activity, see `Repeat`; called when another activity comes.
        released: See `Released`.
        number: Number of the claim among those of the machine.
        stands: Key of the group whose ranks do it, if they stand for ranks of other groups, which
            do the same and are not simulated; else None.
        held: Indices of the links that it has: of an activity that is alone, those that its
            senders may have sent over so far; else all.
    """

    __slots__ = (
        "alone",
        "clear_of",
        "company",
        "held",
        "line",
        "member",
        "number",
        "released",
        "repeat",
        "stands",
        "use",
    )

    def __init__(
        self,
        use: Use,
        line: object,
        repeat: Repeat,
        released: Released,
        number: int,
        stands: object,
    ) -> None:
        self.use: Final = use
        self.line: Final = line
        self.alone = True
        self.company: Company | None = None
        self.member: Any = None
        self.repeat: Final = repeat
        self.released: Final = released
        self.number: Final = number
        self.stands: Final = stands
        self.held: set[int] = set()
        self.clear_of: Final[dict[Use, bool]] = {}

    def in_the_way(self, link: int, use: Use, line: object, start: int) -> bool:
        """Returns whether somebody may have to wait for this activity on a link that it has.

        Args:
            link: Index of the link.
            use: Links of whoever comes.
            line: Line of whoever comes.
            start: When they come to the link, in picoseconds.
        """
        if not self.alone:
            return True
        if self.line == line:
            clear = self.clear_of.get(use)
            if clear is None:
                clear = self.clear_of[use] = use.clear_of(self.use)
            if clear:
                return False
        free = self.released(link)
        return free is None or free > start


class Claims:
    """All claims on the links of a machine.

    Args:
        loop: The clock, in picoseconds.

    Attributes:
        active: The claims, in the order in which they were taken.
    """

    def __init__(self, loop: EventLoop) -> None:
        self._loop: Final = loop
        self.active: Final[dict[Claim, None]] = {}
        self._on: dict[int, list[Claim]] = {}
        # Those that have all of their links, which are listed when somebody looks at links.
        self._unlisted: dict[Claim, None] = {}
        self._numbers: Final = count()

    def __bool__(self) -> bool:
        return bool(self.active)

    def busy(
        self, use: Use, line: object, links: Iterable[int], start: int, mine: Claim | None = None
    ) -> bool:
        """Returns whether an activity is under way that could delay a sender of a new one.

        Args:
            use: Links of the new activity.
            line: Line of the new activity, see `Claim`.
            links: Indices of the links that the sender sends over.
            start: When the sender begins, in picoseconds.
            mine: Claim of the new activity; None if it has none yet, or no two of its senders send
                over one link.
        """
        self._list()
        on = self._on
        for link in links:
            for claim in on.get(link, ()):
                # Mostly a claim in line that is known to be clear of this one.
                clear = claim.alone and claim.line == line and claim.clear_of.get(use)
                if clear or claim is mine or (claim.alone and use.beside(claim.use)):
                    continue
                if claim.in_the_way(link, use, line, start):
                    return True
        return False

    def clear_for(self, use: Use, line: object, start: int, mine: Claim | None = None) -> bool:
        """Returns whether nobody delays an activity of all SIPs, as far as kinds of links tell it.

        Args:
            use: Links of the activity; it has `ways`.
            line: Line of the activity, see `Claim`.
            start: When its senders begin, in picoseconds.
            mine: Claim of the activity; None if it has none yet.
        """
        assert use.ways is not None
        kinds = use.ways.kinds.keys()
        return all(
            claim is mine
            or (
                claim in self._unlisted
                and claim.use.ways is not None
                and (
                    kinds.isdisjoint(claim.use.ways.kinds)
                    or not claim.in_the_way(_ANY, use, line, start)
                )
            )
            for claim in self.active
        )

    def hold_all(self, claim: Claim) -> None:
        """Does what `hold` does with all links of an activity that releases all its links at once.

        Args:
            claim: The claim of the activity; it is alone, and `clear_for` says that links are free.
        """
        self._unlisted[claim] = None

    def holds_all(self, claim: Claim) -> bool:
        """Returns whether an activity has links by `hold_all`, which nobody looked at since."""
        return claim in self._unlisted

    def _list(self) -> None:
        while self._unlisted:
            claim, _ = self._unlisted.popitem()
            self.hold(claim, claim.use.links)

    def take(
        self,
        use: Use,
        line: object,
        repeat: Repeat,
        released: Released | None = None,
        *,
        alone: bool = True,
        apart: bool = False,
        company: Company | None = None,
        member: Any = None,
        stands: object = None,
    ) -> Claim:
        """Returns the claim of an activity that begins now; `drop` must follow.

        An activity that is alone on its links may be timed without the network, ahead of the loop.
        It gets its links sender by sender, see `hold` and `share`. One that is not alone has all of
        them at once, and those that were alone on them repeat themselves on the network.

        Args:
            use: Links of the activity.
            line: Line of the activity, see `Claim`.
            repeat: Called at most once, when the activity was alone and another activity comes.
            released: See `Released`; None if that is never known before the activity is over.
            alone: Whether the activity can be timed ahead of the loop while no other activity uses
                its links.
            apart: Whether it can be, too, if several of its paths go over one link.
            company: See `Claim`.
            member: See `Claim`.
            stands: See `Claim`.

        Raises:
            NotAlikeError: As `share` does.
        """
        claim = Claim(use, line, repeat, released or _unknown, next(self._numbers), stands)
        claim.company, claim.member = company, member
        self.active[claim] = None
        if not (alone and (apart or use.private)):
            self.share(claim, begun=False)
        return claim

    def hold(self, claim: Claim, links: Iterable[int]) -> None:
        """Gives links to an activity, as one of its senders begins.

        Args:
            claim: The claim of the activity; if it is alone, `busy` says that the links are free.
            links: Indices of the links that the sender sends over.
        """
        on, held = self._on, claim.held
        for link in links:
            if link not in held:
                held.add(link)
                there = on.get(link)
                if there is None:
                    on[link] = [claim]
                else:
                    there.append(claim)

    def share(self, newcomer: Claim, *, begun: bool) -> None:
        """Lets an activity and all that were alone on its links repeat themselves on the network.

        With them go those in line with them, and whoever else is alone on their links: what goes
        over the network meets nobody alone. All are repeated together, since they may use the same
        links, which serve them in order of time.

        Args:
            newcomer: The claim of the activity, one of whose senders begins on busy links.
            begun: Whether the activity has anything to repeat, this sender included; otherwise the
                caller starts it over the network.

        Raises:
            NotAlikeError: If one of them stands for activities that are not simulated, and would
                meet others that are not, either.
        """
        self._list()
        newcomer.alone = False
        met, disturbed = [newcomer], list[Claim]()
        for claim in met:  # grows
            self.hold(claim, claim.use.links)
            self._check_stands(claim)
            others = {other for link in claim.use.links for other in self._on[link]}
            for other in sorted(others, key=lambda other: other.number):
                if other.company is not claim.company:
                    disturbed += [each for each in (other, claim) if each.company is not None]
                if other.alone:
                    other.alone = False
                    met.append(other)
        if not begun:
            del met[0]
        for claim in disturbed:
            assert claim.company is not None
            claim.company.disturb()
        if not met:
            return
        begins, repeats = zip(*(claim.repeat() for claim in met), strict=True)

        def begin() -> None:
            for again in repeats:
                again()

        self._loop.relive(min(self._loop.now, *begins), begin)

    def _check_stands(self, claim: Claim) -> None:
        """Checks that all who meet are simulated: one group, or ranks that run.

        Raises:
            NotAlikeError: If one of them stands for activities that are not simulated.
        """
        now = self._loop.now
        for link in claim.use.links:
            for other in self._on[link]:
                if other is claim or other.stands is claim.stands:
                    continue
                free = other.released(link) if other.alone else None
                if free is None or free > now:
                    raise NotAlikeError(
                        "two collectives that stand for those of other ranks share a link at once",
                        [f"at {format_time(now)}"],
                        hint="let one be over before the other begins, or give them links of their "
                        f"own, or {WAY_OUT}",
                    )

    def on(self, links: Iterable[int]) -> list[Claim]:
        """Returns the claims of activities that have one of the links, in order."""
        self._list()
        found = {claim: None for link in links for claim in self._on.get(link, ())}
        return sorted(found, key=lambda claim: claim.number)

    def drop(self, claim: Claim) -> None:
        """Ends a claim."""
        del self.active[claim]
        self._unlisted.pop(claim, None)
        on = self._on
        for link in claim.held:
            there = on[link]
            if len(there) == 1:
                del on[link]
            else:
                there.remove(claim)

    def clear(self) -> None:
        """Drops all claims, after a failure."""
        self.active.clear()
        self._unlisted.clear()
        self._on.clear()


_ANY: Final = -1
"""Stands for each link of an activity that releases all its links at once."""


def _unknown(_: int) -> None:
    """Stands for `Released` of an activity of which nothing is known before it is over."""


def never() -> tuple[int, Callable[[], None]]:
    """Stands for the repetition of an activity that is never alone.

    Raises:
        AssertionError: Always.
    """
    raise AssertionError("it was not alone")
