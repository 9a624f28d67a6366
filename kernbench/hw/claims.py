"""Which activity uses which links; an activity alone on its links is timed without the network."""

from collections.abc import Callable, Iterable
from typing import Final

from kernbench.des import EventLoop
from kernbench.hw.path import Path

Repeat = Callable[[], tuple[int, Callable[[], None]]]
"""Undoes the times of an activity; returns its start (picoseconds) and a call to start it anew."""


class Use:
    """The links that an activity sends over.

    Args:
        paths: Paths of the messages of the activity.
        lead: Shortest time, in picoseconds, from the end of what a sender did before until its
            first message of the activity.
        tail: Longest time, in picoseconds, for which messages hold links after their sender is
            done, if nobody else uses the links.

    Attributes:
        paths: Paths of the messages of the activity.
        lead: See the argument.
        tail: See the argument.
        links: Indices of all links of the paths.
        private: Whether each link belongs to one path only.
    """

    def __init__(self, paths: Iterable[Path], lead: int = 0, tail: int = 0) -> None:
        self.paths: Final = tuple(paths)
        self.lead: Final = lead
        self.tail: Final = tail
        self._on: Final[dict[int, Path]] = {}
        self.private = True
        for path in self.paths:
            for link in path.links:
                if self._on.setdefault(link, path) is not path:
                    self.private = False
        self.links: Final = frozenset(self._on)

    def clear_of(self, other: "Use") -> bool:
        """Returns whether no message waits for one of `other`, which goes before it in a line.

        That holds if both use the same single path on every link that they share, and the links are
        free again before the first message comes.
        """
        if not (self.private and other.private) or self.lead < other.tail:
            return False
        return self is other or all(
            self._on[link].like(other._on[link]) for link in self.links & other.links
        )


class Claim:
    """The links that an activity has while it is under way.

    Attributes:
        use: The links and the paths of the activity.
        line: Key of a line of commands. Activities of one line run one after another on each
            sender, so they need not contend with each other on paths that they share.
        alone: Whether no other activity uses the links.
        repeat: Undoes the times of the activity, see `Repeat`; called when another activity comes.
    """

    __slots__ = ("alone", "line", "repeat", "use")

    def __init__(self, use: Use, line: object, repeat: Repeat) -> None:
        self.use: Final = use
        self.line: Final = line
        self.alone = True
        self.repeat: Final = repeat

    def meets(self, other: "Claim") -> bool:
        """Returns whether two activities have a link in common."""
        return not self.use.links.isdisjoint(other.use.links)

    def in_the_way(self, other: "Claim") -> bool:
        """Returns whether messages may have to wait for each other; the other one began before."""
        if not self.meets(other):
            return False
        in_line = self.line == other.line and other.alone and self.use.clear_of(other.use)
        return not in_line


class Claims:
    """All claims on the links of a machine.

    Args:
        loop: The clock, in picoseconds.
    """

    def __init__(self, loop: EventLoop) -> None:
        self._loop: Final = loop
        self._active: dict[Claim, None] = {}

    def __bool__(self) -> bool:
        return bool(self._active)

    def busy(self, use: Use, line: object) -> bool:
        """Returns whether an activity is under way that could delay a new one.

        Args:
            use: Links of the new activity.
            line: Line of the new activity, see `Claim`.
        """
        asking = Claim(use, line, never)
        return any(asking.in_the_way(claim) for claim in self._active)

    def take(self, use: Use, line: object, repeat: Repeat, *, alone: bool = True) -> Claim:
        """Claims links for an activity that begins now; `drop` must follow.

        An activity that is alone on its links may be timed without the network, ahead of the loop.
        When another activity comes to these links, the first one repeats itself on the network.

        Args:
            use: Links of the activity.
            line: Line of the activity, see `Claim`.
            repeat: Called at most once, when the activity was alone and another activity comes.
            alone: Whether the activity can be timed ahead of the loop while no other activity uses
                its links.
        """
        claim = Claim(use, line, repeat)
        in_the_way = any(claim.in_the_way(other) for other in self._active)
        claim.alone = alone and use.private and not in_the_way
        if not claim.alone:
            # Those before it in its line, too: what goes over the network meets nobody alone.
            self._share([other for other in self._active if other.alone and claim.meets(other)])
        self._active[claim] = None
        return claim

    def _share(self, met: list[Claim]) -> None:
        """Lets activities that were alone repeat themselves, with those in line with them.

        All are repeated together: they may use the same links, which serve them in order of time.
        """
        if not met:
            return
        for claim in met:
            claim.alone = False
        for claim in met:  # grows
            for other in self._active:
                if other.alone and claim.meets(other):
                    other.alone = False
                    met.append(other)
        begins, repeats = zip(*(claim.repeat() for claim in met), strict=True)

        def begin() -> None:
            for again in repeats:
                again()

        self._loop.relive(min(self._loop.now, *begins), begin)

    def drop(self, claim: Claim) -> None:
        """Ends a claim."""
        del self._active[claim]

    def clear(self) -> None:
        """Drops all claims, after a failure."""
        self._active.clear()


def never() -> tuple[int, Callable[[], None]]:
    """Stands for the repetition of an activity that is never alone.

    Raises:
        AssertionError: Always.
    """
    raise AssertionError("it was not alone")
