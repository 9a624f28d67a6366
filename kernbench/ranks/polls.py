"""What a rank waits for whose kernel polls memory that another rank is to change."""

from typing import NamedTuple


class Poll(NamedTuple):
    """A kernel of a rank that polls.

    Attributes:
        rank: The rank.
        told: Which program polls what, and at which lines.
    """

    rank: int
    told: tuple[str, ...]

    def __str__(self) -> str:
        return self.told[0]
