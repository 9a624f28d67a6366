"""Ranks that are held against the one whose steps others repeat (ADR 0038)."""

import sys
from collections import deque
from collections.abc import Sequence
from typing import Final

from kernbench.errors import KernbenchError, UsageError, site_fact
from kernbench.following.steps import Step

WAY_OUT: Final = "run without --same-ranks (same_ranks=True): then every rank runs the program"


class RanksDifferError(KernbenchError, RuntimeError):
    """Ranks of which the user has said that they do the same do different things."""


def witnesses_of(named: Sequence[int] | None, nprocs: int) -> tuple[int, ...]:
    """Returns the ranks that run the program beside rank 0.

    Args:
        named: Those that the user names; None for the last rank.

    Raises:
        UsageError: If some of them are not there.
    """
    if named is None:
        return (nprocs - 1,) if nprocs > 1 else ()
    unknown = [rank for rank in named if rank >= nprocs]
    if unknown:
        others = f"expected some of 1-{nprocs - 1}" if nprocs > 1 else "leave it out"
        raise UsageError(
            f"--witnesses {','.join(map(str, named))}: of {nprocs} "
            f"rank{'s' if nprocs > 1 else ''} none is {', '.join(map(str, unknown))}",
            hint=f"{others}; rank 0 always runs the program",
        )
    return tuple(named)


class Pair:
    """Compares what the leader and the witness do, step by step.

    Args:
        witness: The witness; rank 0 is the leader.
    """

    def __init__(self, witness: int) -> None:
        self._names: Final = ("rank 0", f"rank {witness}")
        self._open: Final[tuple[deque[Step], deque[Step]]] = (deque(), deque())
        self._ended = [False, False]
        self._difference: RanksDifferError | None = None  # found while another error was raised

    def add(self, side: int, step: Step) -> None:
        """Compares a step with that of the other rank, once both are there.

        Args:
            side: 0 for the leader, 1 for the witness.
            step: The rank's next step.

        Raises:
            RanksDifferError: If the ranks do different things.
        """
        if self._difference is not None:
            self._tell(self._difference)
            return
        mine, others = self._open[side], self._open[1 - side]
        if others:
            other = others.popleft()
            if step.terms != other.terms:
                self._tell(self._differ(*((step, other) if side == 0 else (other, step))))
        elif self._ended[1 - side]:
            self._tell(self._differ(*((step, None) if side == 0 else (None, step))))
        else:
            mine.append(step)

    def end(self, side: int) -> None:
        """Notes that a rank has returned.

        Args:
            side: 0 for the leader, 1 for the witness.

        Raises:
            RanksDifferError: If the other rank did more.
        """
        self._ended[side] = True
        if self._difference is not None:
            raise self._difference
        others = self._open[1 - side]
        if others:
            raise self._differ(*((None, others[0]) if side == 0 else (others[0], None)))

    def _tell(self, difference: RanksDifferError) -> None:
        """Raises a difference; while another error ends a block, after that one.

        A rank that has failed leaves its ranges, which the other does not.
        """
        if sys.exception() is None:
            raise difference
        self._difference = difference

    def _differ(self, leader: Step | None, witness: Step | None) -> RanksDifferError:
        facts = [
            f"{name} returned" if step is None else site_fact(step.site, f"{name} {step} at")
            for name, step in zip(self._names, (leader, witness), strict=True)
        ]
        return RanksDifferError(
            f"{' and '.join(self._names)} do not do the same",
            facts,
            hint=f"{WAY_OUT}; sizes that the number of ranks does not divide differ, too",
        )
