"""The state that the ranks of an exchange share: arrivals, each rank's work, what a rank needs."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from kernbench.memory import View
from kernbench.sim_engine.command import Action

if TYPE_CHECKING:
    from kernbench.ccl.jams import Jam


class Joint(Protocol):
    """One thing that several ranks do together, such as a collective or a message.

    A place is a rank inside the group; in a message, 0 is the sender and 1 the receiver.
    """

    @property
    def arrived(self) -> Collection[int]:
        """Places whose stream has reached the operation."""
        ...

    @property
    def algorithm(self) -> str:
        """Name of the algorithm for logs; empty until one is chosen."""
        ...

    def join(
        self, place: int, gives: Sequence[View], takes: Sequence[View], sends: Sequence[int]
    ) -> Action:
        """Returns the work of one rank's command.

        Args:
            place: Place of the rank.
            gives: Views that the rank gives, in order.
            takes: Views that receive the rank's results, in order; may be those of `gives`.
            sends: Elements that go to each place, if ranks give sizes of their own; else empty.
        """
        ...

    def needs(self, place: int) -> Collection[int] | None:
        """Returns the places that a place needs to complete, whatever the algorithm is.

        Args:
            place: The place that waits.

        Returns:
            The needed places; None for all of them.
        """
        ...

    def jam(self) -> "Jam | None":
        """Returns why it does not end although all ranks have arrived; None if that is unknown."""
        ...

    def drop(self) -> None:
        """Lets go of what is under way and will not end: the spawn is over."""
        ...
