"""How long a collective takes by itself, on an idle machine, when all ranks begin at once."""

from collections.abc import Sequence
from dataclasses import dataclass

from kernbench.ccl.collective import Collective
from kernbench.ccl.config import Chosen
from kernbench.ccl.model import CollectiveModel, kept_of
from kernbench.ccl.operations import OPERATIONS, Reduction
from kernbench.ccl.plan import NOTHING, RefusedError
from kernbench.ccl.prepared import CollectiveShape
from kernbench.ccl.programs import refusals
from kernbench.des import DeadlockError
from kernbench.memory import DType, Storage, View, dtypes
from kernbench.sim_engine.command import Command, Stream
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.host import Host
from kernbench.topology import Topology


def block_count(operation: str, ranks: int) -> int:
    """Returns into how many blocks the whole size of an operation is cut.

    Args:
        operation: A key of `OPERATIONS`.
        ranks: Ranks that take part.
    """
    return 1 if OPERATIONS[operation].blocks == "one" else ranks


class TooLongError(Exception):
    """A collective takes longer than somebody wants to know."""


class OverBudgetError(Exception):
    """To simulate a collective takes more calls of the event loop than somebody wants to pay."""


@dataclass(slots=True)
class Budget:
    """What may be spent on simulations.

    Attributes:
        left: Calls of an event loop, turns of ranks that are replayed without one, and flows whose
            rates are found. What costs as much, or more, is given up.
    """

    left: int


def time_alone(
    topology: Topology,
    chosen: Chosen,
    operation: str,
    ranks: int,
    nbytes: int,
    *,
    sips: Sequence[int] | None = None,
    most: int | None = None,
    budget: Budget | None = None,
    dtype: DType = dtypes.float32,
    one_walk: bool = False,
) -> int:
    """Returns the picoseconds until the last rank has ended, without data.

    Args:
        chosen: The algorithm.
        operation: A key of `OPERATIONS`.
        ranks: How many ranks take part.
        nbytes: Of all blocks together, cut to whole elements; at least one each.
        sips: Device of each rank; the machine's first ones by default.
        most: When to give up, in picoseconds.
        budget: Pays for the simulation; None if nobody counts.
        dtype: Of the elements.
        one_walk: See `CollectiveShape`.

    Raises:
        TooLongError: If it takes longer than `most`.
        OverBudgetError: If the budget does not suffice; nothing is left of it.
        DeadlockError: If it does not end.
        BaseException: What an algorithm that runs live raised.
    """
    what = OPERATIONS[operation]
    places = range(ranks) if sips is None else sips
    shape = _shape_of(chosen, operation, tuple(places), nbytes, dtype, one_walk=one_walk)
    block = max(1, nbytes // dtype.itemsize // block_count(operation, ranks))
    engine = GraphEngine(topology, False)
    loop = engine.loop
    loop.limit, loop.spare = most, None if budget is None else budget.left

    def give_up() -> None:
        raise OverBudgetError if budget is not None and loop.spare is None else TooLongError

    loop.on_limit = give_up
    model = CollectiveModel(engine, counted=budget is not None)
    reduction = Reduction("sum", "add") if what.reduces else None
    collective = Collective(model, model.prepare(shape), reduction)
    commands = []
    for rank, sip in enumerate(places):
        elements = [
            block * len(blocks)
            for blocks in (what.given(rank, ranks, 0), what.taken(rank, ranks, 0))
        ]
        hbm = engine.devices[sip].hbm
        given, taken = (
            View(
                Storage(hbm, dtype.itemsize * max(1, each), "x", None).buffer,
                dtype,
                (each,),
                (1,),
                0,
            )
            for each in elements
        )
        host = Host(engine.loop, rank, engine.rank_owner(rank), 0, 1)
        work = collective.join(rank, [given], [taken])
        commands.append(Command(operation, "collective", host, Stream("collective", rank), work))
    try:
        for command in commands:
            engine.submit(command)
        engine.loop.run()
    finally:
        if budget is not None:
            budget.left = loop.spare or 0
    for command in commands:
        if command.host.faults:
            raise command.host.faults[0]
    ends = [command.done.time for command in commands]
    if None in ends:
        raise DeadlockError([])
    return max(end for end in ends if end is not None)


def _shape_of(
    chosen: Chosen,
    operation: str,
    sips: tuple[int, ...],
    nbytes: int,
    dtype: DType,
    *,
    one_walk: bool,
) -> CollectiveShape:
    count = block_count(operation, len(sips))
    row = (max(1, nbytes // dtype.itemsize // count),) * count
    sizes = (row,) * len(sips) if OPERATIONS[operation].blocks == "pairs" else row
    return CollectiveShape(chosen, operation, sips, sizes, dtype, one_walk=one_walk)


def messages_of(
    topology: Topology,
    chosen: Chosen,
    operation: str,
    sips: tuple[int, ...],
    nbytes: int,
    dtype: DType = dtypes.float32,
) -> int:
    """Returns about how many messages of a collective are timed one by one, of one walk.

    Ranks that can be timed at once on arrays are, with any number of messages.

    Args:
        chosen: The algorithm.
        operation: A key of `OPERATIONS`.
        sips: Device of each rank.
        nbytes: See `time_alone`.
        dtype: Of the elements.

    Raises:
        RefusedError: If the algorithm cannot be used for the group.
    """
    known: set[int] = set()
    count = 0
    with refusals(chosen):
        shape = _shape_of(chosen, operation, sips, nbytes, dtype, one_walk=True)
        prepared = kept_of(topology).prepare(shape)
    for channel in prepared.channels:
        plan = channel.plan
        if plan is None:
            raise RefusedError
        links = channel.use.links
        quick = channel.in_lanes and channel.use.private
        if not quick or (channel.share is None and not known.isdisjoint(links)):
            piece = channel.costs.together.piece
            full = channel.layout.most_messages(1, piece)
            count += int(plan.span[plan.send != NOTHING].sum()) * full
        known |= links
    return count
