"""What the ranks of an exchange share: who has come, what each does there, whom each needs."""

from collections.abc import Collection, Sequence
from typing import Protocol

from kernbench.ccl.jams import Jam
from kernbench.memory import View
from kernbench.sim_engine.command import Work


class Joint(Protocol):
    """One thing that several ranks do together, such as a collective or a message.

    Places are ranks inside the group, or of a message 0 for the sender and 1 for the receiver.
    """

    @property
    def arrived(self) -> Collection[int]:
        """Places whose stream has come to it."""
        ...

    @property
    def algorithm(self) -> str:
        """Name of the algorithm for logs; empty until one is chosen."""
        ...

    def join(
        self, place: int, gives: Sequence[View], takes: Sequence[View], sends: Sequence[int]
    ) -> Work:
        """Returns what the command of one rank does.

        Args:
            place: Whose command.
            gives: What the rank gives, in order.
            takes: Where what it takes goes, in order; may be what it gives.
            sends: Elements that go to each place, where each rank tells its own; else empty.
        """
        ...

    def needs(self, place: int) -> Collection[int] | None:
        """Returns the places without which one is never done, whatever the algorithm.

        Returns:
            None: all of them.
        """
        ...

    def jam(self) -> Jam | None:
        """Returns why it does not end though all have come; None if that is not known."""
        ...
