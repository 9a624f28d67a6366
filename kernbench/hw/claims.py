"""Who uses which links, so that what is alone on its links may be timed without the network."""

from collections.abc import Callable, Iterable
from typing import Final

from kernbench.hw.path import Path


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
            self._on[link] is other._on[link] for link in self.links & other.links
        )


class Claim:
    """The links that an activity has while it is under way.

    Attributes:
        use: Which.
        line: What goes through the same line of commands goes one after the other: it uses the same
            paths without being in its own way.
        alone: Whether nobody else is on the links.
    """

    __slots__ = ("_on_company", "alone", "line", "use")

    def __init__(self, use: Use, line: object, on_company: Callable[[], None]) -> None:
        self.use: Final = use
        self.line: Final = line
        self.alone = True
        self._on_company: Final = on_company

    def share(self) -> None:
        """Notes that the links are shared from now on."""
        if self.alone:
            self.alone = False
            self._on_company()

    def in_the_way(self, other: "Claim") -> bool:
        """Returns whether two activities may have to wait for one another's messages."""
        if self.use.links.isdisjoint(other.use.links):
            return False
        in_line = self.line == other.line and other.alone and self.use.same_paths(other.use)
        return not in_line


class Claims:
    """All claims on the links of a machine."""

    def __init__(self) -> None:
        self._active: dict[Claim, None] = {}

    def __bool__(self) -> bool:
        return bool(self._active)

    def busy(self, use: Use, line: object) -> bool:
        """Returns whether anybody else is on some links."""
        asking = Claim(use, line, _nothing)
        return any(asking.in_the_way(claim) for claim in self._active)

    def take(
        self, use: Use, line: object, on_company: Callable[[], None], *, alone: bool = True
    ) -> Claim:
        """Claims links for an activity that begins now; `drop` must follow.

        An activity that is alone on its links may be timed without the network, ahead of the loop.
        Should another one come, it is told, and has to repeat itself on the network.

        Args:
            use: The links.
            line: See `Claim`.
            on_company: Called once, if the activity was alone and no longer is.
            alone: Whether it would make use of being alone.
        """
        claim = Claim(use, line, on_company)
        others = [other for other in self._active if claim.in_the_way(other)]
        claim.alone = alone and use.private and not others
        for other in others:
            other.share()
        self._active[claim] = None
        return claim

    def drop(self, claim: Claim) -> None:
        """Ends a claim."""
        del self._active[claim]

    def clear(self) -> None:
        """Drops all claims; for use after a failure."""
        self._active.clear()


def _nothing() -> None:
    pass
