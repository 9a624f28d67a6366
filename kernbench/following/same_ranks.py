"""Ranks that do the same: some run the program, the others repeat what the first one does."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final

from kernbench.following.followers import Follower
from kernbench.following.tapes import Tape
from kernbench.following.witnesses import Pair, witnesses_of
from kernbench.process.process import Process


class SameRanks:
    """Which ranks of a spawn run the program, and what the first of them does (ADR 0038).

    Args:
        witnesses: Ranks that run the program beside rank 0; None for the last one.

    Attributes:
        followers: Ranks that do not run the program.

    Raises:
        UsageError: If some of the witnesses are not there.
    """

    def __init__(self, nprocs: int, witnesses: Sequence[int] | None = None) -> None:
        self._pairs: Final = {rank: Pair(rank) for rank in witnesses_of(witnesses, nprocs)}
        self.followers: Final = frozenset(range(1, nprocs)) - self._pairs.keys()
        self._leader: Tape | None = None

    def weight(self, rank: int) -> int:
        """Returns for how many ranks a rank stands that runs the program."""
        return 1 if rank else 1 + len(self.followers)

    @contextlib.contextmanager
    def noting(self, process: Process, sip: int) -> Iterator[Tape]:
        """Notes what a rank does until the end of the block.

        Args:
            process: A rank that runs the program.

        Raises:
            RanksDifferError: If another rank that runs the program does something else.
        """
        leads = process.rank == 0
        pairs = list(self._pairs.values()) if leads else [self._pairs[process.rank]]
        tape = Tape(process, pairs, 0 if leads else 1, self.followers)
        if leads:
            self._leader = tape  # the first rank to run
        default = process.default_stream(sip)
        process.host.tape = tape
        tape.stream(default, "default")  # it is there already
        try:
            yield tape
            tape.end()
        except SystemExit as stop:
            if not stop.code:
                tape.end()
            raise
        finally:
            tape.close()
            process.host.tape = None

    def follow(self, process: Process) -> None:
        """Repeats in a rank what the first rank does, until that returns.

        Args:
            process: A rank of `followers`.
        """
        if self._leader is None:  # it has failed before it did anything, and the run with it
            return
        Follower(process, self._leader).run()
        devices, places = process.engine.devices, process.ctx.devices
        devices[places[process.rank]].hbm.peak = devices[places[0]].hbm.peak
