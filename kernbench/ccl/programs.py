"""The programs of a collective's channels: what each of them runs, and on which walk."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from kernbench.ccl.config import Chosen
from kernbench.ccl.fitting import check_fits
from kernbench.ccl.layout import full_messages
from kernbench.ccl.operations import Ints
from kernbench.ccl.plan import Algorithm, Plan, RefusedError, Setting, formula_of, plan_of
from kernbench.ccl.profiles import Scope
from kernbench.ccl.rails import Bounds, Pair, Rails, rails_of
from kernbench.ccl.walker import Along
from kernbench.ccl.waves import thinned
from kernbench.errors import KernbenchError
from kernbench.topology import Topology
from kernbench.topology.alike import Alike, Turned
from kernbench.units import Bandwidth

_EACH: Final = 2
"""Channels of a file for each link of a rank: one sends while the other waits for what comes."""

_UNEVEN: Final = 4
"""Channels of a file in some of whose rounds ranks idle: another channel sends meanwhile."""

_WIDEST: Final = 16
"""Bytes of the largest element, a complex number."""


@contextmanager
def refusals(chosen: Chosen) -> Iterator[None]:
    """Tells errors of an algorithm that may refuse a group, such as an odd one, from our own.

    Args:
        chosen: The algorithm whose plans are made meanwhile.

    Raises:
        RefusedError: In place of what an algorithm of the user's own raised, or of a report.
    """
    try:
        yield
    except Exception as error:
        own = chosen.module.__name__.partition(".")[0] == __name__.partition(".")[0]
        if own and not isinstance(error, KernbenchError):
            raise
        raise RefusedError from error


@dataclass(frozen=True)
class ChannelProgram:
    """What the ranks run in one channel.

    Attributes:
        algorithm: Program of each rank.
        setting: Everything that the algorithm can see besides its rank.
        rails: The walks of the group, of which the channel takes one; None for ranks as they are.
        walk: Number of its walk.
        channels: Channels of each walk.
    """

    algorithm: Algorithm
    setting: Setting
    rails: Rails | None
    walk: int
    channels: int

    @property
    def plan(self) -> Plan | None:
        """Exchanges of all ranks, which fit together; None if the algorithm must run live."""
        plan = plan_of(self.algorithm, self.setting)
        if plan is not None:
            check_fits(plan, self.algorithm, self.setting)
        return plan

    @property
    def formula(self) -> Plan | None:
        """See `formula_of`."""
        return None if self.rails is not None else formula_of(self.algorithm, self.setting)

    @property
    def outline(self) -> "Outline | None":
        """The plan, of which few steps can be had without all; None if there is no plan.

        Whether exchanges fit together shows where they are timed, and is not looked at before.
        """
        along = self.algorithm
        if isinstance(along, Along):
            plan = plan_of(along.algorithm, along.seen(self.setting))
            if plan is not None and plan.in_step:
                return Outline(plan, along)
        plan = plan_of(self.algorithm, self.setting)
        return None if plan is None else Outline(plan)

    def told_by_one(self, machine: Alike) -> Plan | None:
        """Returns a plan of which what rank 0 exchanges tells of all ranks; None if there is none.

        Args:
            machine: The machine of the group, whose SIPs are all alike. On a switch, ranks that
                send and get a message in each step are, too, whoever their peers are.
        """
        if isinstance(machine, Turned):
            return self.formula
        plan = self.plan
        return plan if plan is not None and plan.in_stages else None

    @property
    def bounds(self) -> Bounds | None:
        """The bounds of the rates of the channel's messages; None if there are no bounds."""
        if self.rails is None or self.channels > 1:
            return None
        outline, along = self.outline, self.rails.along[self.walk]
        return along if outline is not None and along.hold(*outline.pairs) else None

    @property
    def shares(self) -> dict[Pair, Bandwidth] | None:
        """The same by sender and receiver."""
        if self.rails is None or self.bounds is None:
            return None
        return self.rails.shares[self.walk]


class Outline(NamedTuple):
    """A plan, of which few steps can be had without all: one of a walk has ranks squared.

    Attributes:
        plan: The plan; along a walk, with places in place of ranks.
        along: The walk; None if the plan is that of the ranks.
    """

    plan: Plan
    along: Along | None = None

    def of_ranks(self, plan: Plan) -> Plan:
        """Returns some steps of the plan, as those of the ranks."""
        found = plan if self.along is None else self.along.renumbered(plan)
        assert found is not None, "steps of one chunk can be renumbered"
        return found

    @property
    def pairs(self) -> tuple[Ints, Ints]:
        """Senders and receivers of messages, each two of them once or more often."""
        if self.along is None:
            senders, receivers = np.array(self.plan.pairs, np.int64).reshape(-1, 2).T
            return senders, receivers
        step = self.of_ranks(thinned(self.plan, 1))
        return np.arange(step.world_size), step.to[0].astype(np.int64)


def programs_of(
    chosen: Chosen,
    operation: str,
    topology: Topology,
    sips: tuple[int, ...],
    root: int,
    messages: Callable[[int], int],
) -> list[ChannelProgram]:
    """Returns the program of each channel, in order of the channels' numbers.

    Args:
        chosen: The algorithm.
        operation: A key of `OPERATIONS`.
        sips: Device of each rank.
        root: Root inside the group; 0 for operations without a root.
        messages: Returns how many full messages the largest block takes of one of so many channels.
    """
    algorithm, n = chosen.algorithm(operation), len(sips)
    rails = rails_of(topology, sips, chosen.rails)
    grid = topology.grid(sips) if rails is None else (n,)
    channels, on_walk = channels_of(chosen, topology, sips)
    of_chunks = chosen.scope is not None and channels > 1
    if chosen.scope is not None:
        queue = chosen.queue
        units = max(1, queue.slot_size // (_WIDEST * chosen.align))
        own = linked(chosen.scope, topology, sips)
        algorithm = chosen.scope.fit(queue.n_slots, units, shared=of_chunks, linked=own)
    found = []
    for number in range(channels):
        walk, program = number // on_walk, algorithm
        if rails is not None:
            program = Along(algorithm, operation, rails.walks[walk], on_walk)
        most = messages(channels)
        setting = Setting(operation, n, root, grid, number, channels, most, of_chunks)
        found.append(ChannelProgram(program, setting, rails, walk, on_walk))
    return found


def channels_of(chosen: Chosen, topology: Topology, sips: tuple[int, ...]) -> tuple[int, int]:
    """Returns the channels of a group, and how many of them go along one walk.

    A SIP with fewer PEs than channels has one for each PE.

    Args:
        chosen: The algorithm.
        sips: Device of each rank.
    """
    rails = rails_of(topology, sips, chosen.rails)
    walks = 1 if rails is None or chosen.only_first else len(rails.walks)
    links = 1 if chosen.links == 1 else min(chosen.links, topology.links_out(sips))
    on_walk = chosen.channels * links
    if chosen.scope is not None:
        on_walk = _channels_of_file(chosen.scope, topology, sips)
    if links > 1 or chosen.scope is not None:
        on_walk = min(on_walk, min(topology.num_pes(sip) for sip in sips) // walks)
    return walks * on_walk, on_walk


def _channels_of_file(scope: Scope, topology: Topology, sips: tuple[int, ...]) -> int:
    if linked(scope, topology, sips):
        return _EACH * min(scope.ways, topology.links_out(sips))
    return _UNEVEN if scope.uneven else 1


def linked(scope: Scope, topology: Topology, sips: tuple[int, ...]) -> bool:
    """Returns whether a rank of a file sends over several links at a time, each a message's own.

    Else channels meet on links, each time anew.

    Args:
        scope: What the file is for.
        sips: Device of each rank. The file's program refuses another number than it is for.
    """
    if scope.ranks != len(sips):
        return False
    several = min(scope.ways, topology.links_out(sips)) > 1
    return several and topology.linked((sips[one], sips[other]) for one, other in scope.pairs)


def most_messages(block: int, piece: int, align: int) -> Callable[[int], int]:
    """Returns what `programs_of` asks for.

    Args:
        block: Elements of the largest block.
        piece: Elements of the largest message.
        align: Number of elements; chunks begin at multiples of it.
    """
    return lambda channels: full_messages(-(-block // channels), piece, align)
