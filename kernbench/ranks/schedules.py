"""Schedules: which message each receive from any source takes, and what hosts read then."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from kernbench.errors import UsageError
from kernbench.ranks.ranges import folded
from kernbench.run_spec import schedule_text


class Match(NamedTuple):
    """A receive from any source that has taken a message.

    Attributes:
        rank: The receiver.
        call: Text of the receive, as reports show it.
        source: Global rank of the sender.
        candidates: Global ranks, ascending, whose message the receive could take at that moment.
    """

    rank: int
    call: str
    source: int
    candidates: tuple[int, ...]


class Schedule:
    """One way to match receives from any source, and what a run did under it.

    Without `picks` a receive takes the message that comes first. With `picks` a receive waits until
    nothing else is left to happen, as on a slow network. By then every message has come that can
    come without the receive, and all senders of these messages are candidates. This is the order of
    Vakkalanka et al., "Dynamic Verification of MPI Programs with Reductions in Presence of Split
    Operations and Relaxed Orderings", CAV 2008.

    Args:
        picks: Number of the candidate, from 1, that each receive from any source takes in turn; at
            least one pick. Receives beyond the last pick take the first candidate. None: each
            receive takes the message that comes first.

    Attributes:
        picks: The argument as a tuple, or None.
        late: Whether receives wait until nothing else is left to happen.
        matches: What receives from any source took, in order.
    """

    def __init__(self, picks: Sequence[int] | None = None) -> None:
        self.picks: Final = None if picks is None else tuple(picks)
        self.late: Final = picks is not None
        self.matches: list[Match] = []
        self._reads: dict[int, list[bytes]] = {}

    def pick(self, candidates: Sequence[int]) -> int:
        """Returns the sender whose message the next receive takes.

        Args:
            candidates: Global ranks of the senders, ascending.

        Raises:
            UsageError: If there are fewer candidates than the schedule's pick.
        """
        turn, picks = len(self.matches), self.picks or ()
        number = picks[turn] if turn < len(picks) else 1
        if not 1 <= number <= len(candidates):
            raise UsageError(
                f"schedule {self.name}: receive {turn + 1} from any source is to take message "
                f"{number}",
                [f"it has {len(candidates)}, of {folded(candidates)}"],
            )
        return candidates[number - 1]

    def took(self, rank: int, call: str, source: int, candidates: Sequence[int]) -> None:
        """Notes which message a receive has taken.

        Args:
            rank: Global rank of the receiver.
            call: Text of the receive, as reports show it.
            source: Global rank of the sender.
            candidates: Global ranks, ascending, whose message the receive could take.
        """
        self.matches.append(Match(rank, call, source, tuple(candidates)))

    def read(self, rank: int, values: np.ndarray[Any, Any]) -> None:
        """Notes values that the host of a rank has read."""
        from hashlib import sha256

        head = f"{values.dtype} {values.shape} ".encode()
        found = sha256(head + np.ascontiguousarray(values).tobytes()).digest()
        self._reads.setdefault(rank, []).append(found)

    @property
    def taken(self) -> tuple[int, ...] | None:
        """The picks that repeat the run; None if each receive took the message that came first."""
        if self.picks is None:
            return None
        numbers = [match.candidates.index(match.source) + 1 for match in self.matches]
        return (*numbers, *self.picks[len(numbers) :])

    @property
    def name(self) -> str:
        """Text of `taken` in reports and for `--schedule`: such as `2.1`, or 0 for None."""
        return schedule_text(self.taken)

    @property
    def data(self) -> str:
        """Hash of the values that hosts have read; the order of a rank's reads does not matter."""
        from hashlib import sha256

        whole = sha256()
        for rank, reads in sorted(self._reads.items()):
            whole.update(f"{rank} {len(reads)} ".encode())
            for found in sorted(reads):
                whole.update(found)
        return whole.hexdigest()

    def following(self) -> tuple[int, ...] | None:
        """Returns the picks of the next schedule, the last choice varying fastest; None at the end.

        Only for a schedule with picks, after its run has ended.
        """
        taken = [(match.candidates.index(match.source) + 1, match) for match in self.matches]
        while taken and taken[-1][0] == len(taken[-1][1].candidates):
            taken.pop()
        if not taken:
            return None
        return (*[number for number, _ in taken[:-1]], taken[-1][0] + 1)
