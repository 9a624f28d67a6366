"""Ranks that do the same: some run the program, the others repeat what the first one does."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final

from kernbench.errors import UsageError
from kernbench.following.followers import Follower
from kernbench.following.tapes import Tape
from kernbench.following.witnesses import Pair, witnesses_of
from kernbench.process.process import Process
from kernbench.topology import Topology


class SameRanks:
    """Which ranks of a spawn run the program, and what the first of them does (ADR 0038).

    Args:
        witnesses: Ranks that run the program beside rank 0; None for the last one.
        main: The process that spawns them, whose machine is checked; None if all SIPs are alike.

    Attributes:
        followers: Ranks that do not run the program.

    Raises:
        UsageError: If some of the witnesses are not there, or a rank has another SIP than rank 0.
    """

    def __init__(
        self, nprocs: int, witnesses: Sequence[int] | None = None, main: Process | None = None
    ) -> None:
        self._pairs: Final = {rank: Pair(rank) for rank in witnesses_of(witnesses, nprocs)}
        self.followers: Final = frozenset(range(1, nprocs)) - self._pairs.keys()
        if main is not None:
            _check_alike(main.engine.topology, main.ctx.devices[:nprocs])
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


def _check_alike(topology: Topology, sips: Sequence[int]) -> None:
    """Checks that ranks which repeat the durations of rank 0 have a SIP as it has.

    Their links may differ: what ranks do together is simulated with all of them.

    Args:
        sips: The SIP of each rank.
    """
    sip_of = topology.machine.system.sip_of
    for rank, sip in enumerate(sips):
        if sip_of(sip) != sip_of(sips[0]):
            raise UsageError(
                f"--same-ranks: rank {rank} has sip{sip}, which is not as sip{sips[0]} of rank 0 "
                "(system.sips.changed): ranks that do the same take as long as rank 0",
                hint="run without --same-ranks (same_ranks=True): then every rank runs the "
                "program; or give it SIPs that are alike: --devices (devices=)",
            )
