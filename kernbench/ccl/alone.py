"""How long a collective takes by itself, on an idle machine, when all ranks begin at once."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from kernbench.ccl.collective import Collective
from kernbench.ccl.config import Chosen
from kernbench.ccl.model import CollectiveModel, kept_of
from kernbench.ccl.operations import OPERATIONS, Reduction
from kernbench.ccl.plan import NOTHING
from kernbench.ccl.prepared import CollectiveShape, Prepared
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


class TooManyCallsError(Exception):
    """To simulate a collective takes more calls of the event loop than somebody wants to pay."""


def time_alone(
    topology: Topology,
    chosen: Chosen,
    operation: str,
    ranks: int,
    nbytes: int,
    *,
    sips: Sequence[int] | None = None,
    most: int | None = None,
    calls: int | None = None,
    dtype: DType = dtypes.float32,
) -> int:
    """Returns the picoseconds until the last rank has ended, without data.

    Args:
        chosen: The algorithm.
        operation: A key of `OPERATIONS`.
        ranks: How many ranks take part.
        nbytes: Of all blocks together, cut to whole elements; at least one each.
        sips: Device of each rank; the machine's first ones by default.
        most: When to give up, in picoseconds.
        calls: After how many calls of the event loop to give up.
        dtype: Of the elements.

    Raises:
        TooLongError: If it takes longer than `most`.
        TooManyCallsError: If it takes more calls.
        DeadlockError: If it does not end.
    """
    what = OPERATIONS[operation]
    places = range(ranks) if sips is None else sips
    shape = _shape_of(chosen, operation, tuple(places), nbytes, dtype)
    block = max(1, nbytes // dtype.itemsize // block_count(operation, ranks))
    engine = GraphEngine(topology, False)
    loop = engine.loop
    loop.limit, loop.spare = most, calls

    def give_up() -> None:
        raise TooManyCallsError if calls and loop.spare is None else TooLongError

    loop.on_limit = give_up
    model = CollectiveModel(engine)
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
    for command in commands:
        engine.submit(command)
    engine.loop.run()
    ends = [command.done.time for command in commands]
    if None in ends:
        raise DeadlockError([])
    return max(end for end in ends if end is not None)


def _shape_of(
    chosen: Chosen, operation: str, sips: tuple[int, ...], nbytes: int, dtype: DType
) -> CollectiveShape:
    count = block_count(operation, len(sips))
    row = (max(1, nbytes // dtype.itemsize // count),) * count
    sizes = (row,) * len(sips) if OPERATIONS[operation].blocks == "pairs" else row
    return CollectiveShape(chosen, operation, sips, sizes, dtype)


def time_about(
    topology: Topology,
    chosen: Chosen,
    operation: str,
    sips: tuple[int, ...],
    nbytes: int,
    *,
    messages: int,
    calls: int = 0,
    most: float | None = None,
    dtype: DType = dtypes.float32,
) -> float:
    """Returns what `time_alone` does, of a long collective from those of two smaller sizes.

    Time is affine in the size once messages follow each other at one pace, so two sizes, one twice
    the other, tell that of a larger one. How many messages there are says little of what they cost:
    those that repeat themselves are skipped. So the size itself is tried before.

    Args:
        chosen: The algorithm.
        operation: A key of `OPERATIONS`.
        sips: Device of each rank.
        nbytes: See `time_alone`.
        messages: Most messages of a collective that is simulated at its own size. Ranks that can
            be timed at once on arrays are, with any number.
        calls: Most calls of the event loop for which one of more messages is tried at its own size.
        most: See `time_alone`.
        dtype: See `time_alone`.

    Raises:
        TooLongError: If it takes longer than `most`.
        DeadlockError: If it does not end.
    """

    def time(size: int, limit: float | None, calls: int | None = None) -> int:
        return time_alone(
            topology,
            chosen,
            operation,
            len(sips),
            size,
            sips=sips,
            most=None if limit is None else int(limit),
            calls=calls,
            dtype=dtype,
        )

    def many(size: int) -> bool:
        prepare = kept_of(topology).prepare
        return _on_network(prepare(_shape_of(chosen, operation, sips, size, dtype)), messages)

    if calls and many(nbytes):
        with suppress(TooManyCallsError):
            return time(nbytes, most, calls)
    size = nbytes
    while size > _LEAST and many(size):
        size //= 2
    while size < nbytes:
        half, whole = time(size // 2, most), time(size, most)
        if half < whole <= 2 * half:
            found = whole + (whole - half) * (nbytes - size) / (size // 2)
            if most is not None and found > most:
                raise TooLongError
            return found
        size *= 2  # the plan of the one is of another kind than that of the other
    return time(nbytes, most)


_LEAST: Final = 1 << 12
"""Bytes of a collective that is simulated, however many messages it has."""


def _on_network(prepared: Prepared, most: int) -> bool:
    """Returns whether more messages than `most` are sent that compete for links."""
    known: set[int] = set()
    count = 0
    for channel in prepared.channels:
        plan = channel.plan
        assert plan is not None
        links = channel.use.links
        quick = channel.in_lanes and channel.use.private
        if not quick or (channel.share is None and not known.isdisjoint(links)):
            piece = channel.costs.together.piece
            full = channel.layout.most_messages(1, piece)
            count += int(plan.span[plan.send != NOTHING].sum()) * full
        known |= links
    return count > most
