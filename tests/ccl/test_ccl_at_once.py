"""Ranks that begin at once on a machine that is all alike are timed as one, as if each were."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from ccl_machine import SUM, shipped_algorithm
from ccl_operations import even
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kernbench.ccl import lanes
from kernbench.ccl.channel import _apart
from kernbench.ccl.collective import Collective
from kernbench.ccl.config import Chosen
from kernbench.ccl.model import CollectiveModel
from kernbench.ccl.prepared import CollectiveShape, Prepared
from kernbench.classes.partition import NotAlikeError, Standing
from kernbench.des import Event
from kernbench.memory import Storage, View, dtypes
from kernbench.sim_engine.command import Command, Stream
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.host import Host
from kernbench.topology import Topology, load_topology

RING = ("ring1024", "system.sips.count=12")
TORUS = ("torus4x4",)
SWITCH = ("ring1024", "system.sips.count=8", "system.sips.network.kind=switch")


def _machine(name: str, *overrides: str) -> Topology:
    return load_topology(name, overrides).topology_obj


def _prepared(
    machine: Topology, chosen: Chosen, count: int, operation: str = "all_reduce"
) -> Prepared:
    sips = tuple(range(machine.world_size))
    sizes = even(operation, len(sips), count).sizes
    shape = CollectiveShape(chosen, operation, sips, sizes, dtypes.float32)
    return CollectiveModel(GraphEngine(machine, enable_data=False)).prepare(shape)


def _grid(channels: int) -> Chosen:
    return shipped_algorithm("dimension_wise", f"algorithms.dimension_wise.channels={channels}")


_OF_ONE = pytest.mark.parametrize(
    ("machine", "chosen"),
    [
        (RING, shipped_algorithm("ring")),
        (RING, shipped_algorithm("ring_two_way")),
        (TORUS, _grid(1)),
        (SWITCH, shipped_algorithm("ring")),
        (SWITCH, shipped_algorithm("halving_doubling")),
    ],
    ids=["ring", "two channels", "torus", "ring of a switch", "partners"],
)
"""Machines and algorithms in which one rank tells of all."""


def ends(
    machine: Topology,
    calls: list[tuple[Chosen, int, int]],
    *,
    standing: bool,
    put_off: tuple[int, int] = (0, 0),
    late: Mapping[int, int] | None = None,
    order: Sequence[int] = (),
) -> list[int]:
    """Returns when ranks that run are done with each of some all-reduces, in picoseconds.

    Args:
        calls: The algorithm of each, its elements, and when ranks begin it.
        standing: Whether rank 0 stands for all, or if some are late, each rank for itself; else
            each rank runs its algorithm, not the plan.
        put_off: When the first one is put off, as a kernel beside it does, and by how much.
        late: How much later ranks begin; if given, the all-reduces are those of one group, in line,
            and the ends of all ranks are returned.
        order: In which order ranks issue the all-reduces.
    """
    engine = GraphEngine(machine, enable_data=False, fidelity="kernel" if standing else "tile")
    model, found, kept = CollectiveModel(engine), dict[int, list[Command]](), list[Storage]()
    sips = tuple(range(machine.world_size))
    callers: dict[int, Sequence[int]] = (
        {0: sips} if late is None else {rank: (rank,) for rank in sips}
    )
    caller = [0] * len(sips) if late is None else list(sips)
    streams = [Stream("s", rank) for rank in sips]
    line = object()
    for number, (chosen, count, start) in enumerate(calls):
        shape = CollectiveShape(chosen, "all_reduce", sips, (count,), dtypes.float32)
        ranks = range(1000 * number, 1000 * number + len(sips))
        who = Standing(ranks, caller, callers) if standing else None
        if late is None:
            line = object()
        group = Collective(model, model.prepare(shape), SUM, line, who)
        for rank in order or (callers if standing else sips):
            owner = engine.rank_owner(ranks[rank])
            host = Host(engine.loop, ranks[rank], owner, 0, 64)
            kept.append(Storage(engine.devices[rank].hbm, 4 * count, "x", None))
            view = View(kept[-1].buffer, dtypes.float32, (count,), (1,), 0)
            stream, gate = Stream("s", rank) if late is None else streams[rank], Event("gate")
            stream.waits.append(gate)
            begin = start + (late or {}).get(rank, 0)
            engine.loop.at(begin, owner, gate.settle, begin)
            work = group.join(rank, [view], [view])
            if put_off[1] and not number:
                engine.loop.at(put_off[0], owner, work.put_off, put_off[1])
            command = Command("all_reduce", "collective", host, stream, work)
            engine.submit(command)
            found.setdefault(rank, []).append(command)
    engine.loop.run()
    assert not engine.network.claims
    shown = sorted(found) if late is not None else [0]
    return [command.done.time or 0 for rank in shown for command in found[rank]]


@_OF_ONE
def test_one_rank_tells_of_all(machine: tuple[str, ...], chosen: Chosen) -> None:
    on = _machine(*machine)
    for chunk in (16, 80 << 6):
        calls = [(chosen, chunk * on.world_size, 7000)]
        assert _prepared(on, chosen, calls[0][1]).at_once

        assert ends(on, calls, standing=True) == ends(on, calls, standing=False)


@settings(max_examples=25)
@given(
    st.sampled_from(["ring", "halving_doubling", "pairwise"]),
    st.sampled_from(["all_reduce", "reduce_scatter", "all_gather", "all_to_all"]),
    st.sampled_from([4, 8, 16]),
    st.integers(1, 60).map(lambda number: 64 * number),
    st.integers(1, 4),
    st.sampled_from([512, 4096, 64 << 10]),
    st.sampled_from(["1 GB/s", "90 GB/s", "900 GB/s"]),
    st.sampled_from(["10 ns", "1 us"]),
)
def test_ranks_on_a_switch_take_what_each_takes(
    name: str,
    operation: str,
    ranks: int,
    chunk: int,
    slots: int,
    slot: int,
    bandwidth: str,
    latency: str,
) -> None:
    network = [f"bandwidth={bandwidth}", f"latency={latency}"]
    machine = _machine(
        *SWITCH,
        f"system.sips.count={ranks}",
        *(f"system.sips.network.{each}" for each in network),
    )
    chosen = shipped_algorithm(name)
    assume(chosen.implements(operation))
    chosen = replace(chosen, queue=replace(chosen.queue, n_slots=slots, slot_size=slot))
    count = chunk * (ranks if operation == "all_reduce" else 1)
    (channel,) = _prepared(machine, chosen, count, operation).channels
    if channel.at_once is None:
        assert name == "pairwise"  # small messages: all leave before the first one is received
        return

    ends, _ = _apart(channel, [0] * ranks, trace=False, skips=False)

    assert ends == [channel.at_once.picoseconds] * ranks


def _spied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that gets the number of paths of each stage that is timed on arrays."""
    seen = list[int]()
    init = lanes._Lanes.__init__

    def spy(self: lanes._Lanes, *args: Any, **kwargs: Any) -> None:
        seen.append(len(args[3]))
        init(self, *args, **kwargs)

    monkeypatch.setattr(lanes._Lanes, "__init__", spy)
    return seen


@_OF_ONE
def test_one_path_stands_for_those_of_ranks_that_are_late(
    machine: tuple[str, ...], chosen: Chosen, monkeypatch: pytest.MonkeyPatch
) -> None:
    on, rng, paths = _machine(*machine), Random(3), _spied(monkeypatch)
    for _ in range(8):
        late = {
            rank: rng.randrange(1, 10**7) for rank in range(on.world_size) if rng.random() < 0.4
        }
        order = rng.sample(range(on.world_size), on.world_size)
        calls = [(chosen, 80 * on.world_size, 7000), (chosen, 4096 * on.world_size, 8000)]

        told = ends(on, calls, standing=True, late=late, order=order)

        assert told == ends(on, calls, standing=False, late=late, order=order)
    assert set(paths) == {1}


@pytest.mark.parametrize(
    "second", [shipped_algorithm("ring"), _grid(1), _grid(4)], ids=["ring", "grid", "channels"]
)
def test_who_comes_finds_the_links_of_all_ranks_taken(second: Chosen) -> None:
    on = _machine(*TORUS)
    first = (_grid(1), 16 << 8, 0)
    (end,) = ends(on, [first], standing=True)

    with pytest.raises(NotAlikeError, match="share a link at once"):
        ends(on, [first, (second, 16 << 8, end // 2)], standing=True)
    # It is over on the links, and a kernel puts its end off, when the second comes.
    calls, put_off = [first, (_grid(1), 16 << 8, end + 1000)], (end - 1, 10**8)
    told = ends(on, calls, standing=True, put_off=put_off)
    assert told == ends(on, calls, standing=False, put_off=put_off)
    assert told[0] == end + 10**8


@pytest.mark.parametrize(
    ("machine", "chosen", "count"),
    [
        (RING, shipped_algorithm("ring"), 12 * 1024 + 8),
        (RING, shipped_algorithm("halving_doubling"), 12 << 10),
        (TORUS, _grid(4), 16 << 10),
        (
            (*RING, "system.sips.changed=[{which: [3], sip: {pe: {dma: 90 GB/s}}}]"),
            shipped_algorithm("ring"),
            12 << 10,
        ),
        (
            (*RING, "system.sips.changed=[{which: [3], sip: {pe: {math: 9 GFLOP/s}}}]"),
            shipped_algorithm("ring"),
            12 << 10,
        ),
        (SWITCH, shipped_algorithm("ring_two_way"), 8 << 10),
        (SWITCH, shipped_algorithm("double_binary_tree"), 8 << 10),
        (
            (*SWITCH, "system.sips.changed=[{which: [3], link: {latency: 3 us}}]"),
            shipped_algorithm("halving_doubling"),
            8 << 10,
        ),
    ],
    ids=[
        "shorter chunks",
        "links of others",
        "channels on a link",
        "other engines of messages",
        "other engines of sums",
        "channels on a port",
        "idle ranks",
        "other ports",
    ],
)
def test_where_ranks_differ_each_is_timed(
    machine: tuple[str, ...], chosen: Chosen, count: int
) -> None:
    assert not _prepared(_machine(*machine), chosen, count).at_once
