"""Who uses which links, so that what is alone on its links may be timed without the network."""

from collections.abc import Callable, Iterable
from typing import Final

from kernbench.des import EventLoop
from kernbench.hw.path import Path

Repeat = Callable[[], tuple[int, Callable[[], None]]]
"""Takes back what an activity was timed to do, and returns when it began and how to begin anew."""


class Use:
    """The links that an activity sends over.

    Args:
        paths: Ways of its messages.

    Attributes:
        paths: The same.
        links: Indices of their links.
        private: Whether each link has one path only.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self.paths: Final = tuple(paths)
        self._on: Final[dict[int, Path]] = {}
        self.private = True
        for path in self.paths:
            for link in path.links:
                if self._on.setdefault(link, path) is not path:
                    self.private = False
        self.links: Final = frozenset(self._on)

    def same_paths(self, other: "Use") -> bool:
        """Returns whether each link that both use has one path, the same in both."""
        if not (self.private and other.private):
            return False
        return self is other or all(
            self._on[link].like(other._on[link]) for link in self.links & other.links
        )


class Claim:
    """The links that an activity has while it is under way.

    Attributes:
        use: Which.
        line: What goes through the same line of commands goes one after the other: it uses the same
            paths without being in its own way.
        alone: Whether nobody else is on the links.
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
        """Returns whether two activities may have to wait for one another's messages."""
        if not self.meets(other):
            return False
        in_line = self.line == other.line and other.alone and self.use.same_paths(other.use)
        return not in_line


class Claims:
    """All claims on the links of a machine.

    Args:
        loop: The clock.
    """

    def __init__(self, loop: EventLoop) -> None:
        self._loop: Final = loop
        self._active: dict[Claim, None] = {}

    def __bool__(self) -> bool:
        return bool(self._active)

    def busy(self, use: Use, line: object) -> bool:
        """Returns whether anybody else is on some links."""
        asking = Claim(use, line, never)
        return any(asking.in_the_way(claim) for claim in self._active)

    def take(self, use: Use, line: object, repeat: Repeat, *, alone: bool = True) -> Claim:
        """Claims links for an activity that begins now; `drop` must follow.

        An activity that is alone on its links may be timed without the network, ahead of the loop.
        Should another one come, it has to repeat itself on the network.

        Args:
            use: The links.
            line: See `Claim`.
            repeat: Called once, if the activity was alone and no longer is.
            alone: Whether it would make use of being alone.
        """
        claim = Claim(use, line, repeat)
        others = [other for other in self._active if claim.in_the_way(other)]
        claim.alone = alone and use.private and not others
        self._share([other for other in others if other.alone])
        self._active[claim] = None
        return claim

    def _share(self, met: list[Claim]) -> None:
        """Lets activities that were alone repeat themselves, with those in line with them.

        All at once: they may use the same links, which are then used in the order of time.
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
        """Drops all claims; for use after a failure."""
        self._active.clear()


def never() -> tuple[int, Callable[[], None]]:
    """Stands for the repetition of what is never alone.

    Raises:
        AssertionError: Always.
    """
    raise AssertionError("it was not alone")
