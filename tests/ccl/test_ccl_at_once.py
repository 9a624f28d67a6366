"""Ranks that begin at once on a machine that is all alike are timed as one, as if each were."""

import pytest
from ccl_machine import SUM, shipped_algorithm

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


def _machine(name: str, *overrides: str) -> Topology:
    return load_topology(name, overrides).topology_obj


def _prepared(machine: Topology, chosen: Chosen, count: int) -> Prepared:
    sips = tuple(range(machine.world_size))
    shape = CollectiveShape(chosen, "all_reduce", sips, (count,), dtypes.float32)
    return CollectiveModel(GraphEngine(machine, enable_data=False)).prepare(shape)


def _grid(channels: int) -> Chosen:
    return shipped_algorithm("dimension_wise", f"algorithms.dimension_wise.channels={channels}")


def ends(
    machine: Topology,
    calls: list[tuple[Chosen, int, int]],
    *,
    standing: bool,
    put_off: tuple[int, int] = (0, 0),
) -> list[int]:
    """Returns when rank 0 is done with each of some all-reduces of all ranks, in picoseconds.

    Args:
        calls: The algorithm of each, its elements, and when all ranks begin it.
        standing: Whether rank 0 stands for all.
        put_off: When the first one is put off, as a kernel beside it does, and by how much.
    """
    engine = GraphEngine(machine, enable_data=False)
    model, found, kept = CollectiveModel(engine), list[Command](), list[Storage]()
    sips = tuple(range(machine.world_size))
    for number, (chosen, count, start) in enumerate(calls):
        shape = CollectiveShape(chosen, "all_reduce", sips, (count,), dtypes.float32)
        ranks = range(1000 * number, 1000 * number + len(sips))
        who = Standing(ranks, [0] * len(sips), {0: range(len(sips))}) if standing else None
        group = Collective(model, model.prepare(shape), SUM, object(), who)
        for rank in sips[: 1 if standing else None]:
            owner = engine.rank_owner(ranks[rank])
            host = Host(engine.loop, ranks[rank], owner, 0, 64)
            kept.append(Storage(engine.devices[rank].hbm, 4 * count, "x", None))
            view = View(kept[-1].buffer, dtypes.float32, (count,), (1,), 0)
            stream, gate = Stream("s", rank), Event("gate")
            stream.waits.append(gate)
            engine.loop.at(start, owner, gate.settle, start)
            work = group.join(rank, [view], [view])
            if put_off[1] and not number:
                engine.loop.at(put_off[0], owner, work.put_off, put_off[1])
            command = Command("all_reduce", "collective", host, stream, work)
            engine.submit(command)
            if not rank:
                found.append(command)
    engine.loop.run()
    assert not engine.network.claims
    return [command.done.time or 0 for command in found]


@pytest.mark.parametrize(
    ("machine", "chosen"),
    [
        (RING, shipped_algorithm("ring")),
        (RING, shipped_algorithm("ring_two_way")),
        (TORUS, _grid(1)),
    ],
    ids=["ring", "two channels", "torus"],
)
def test_one_rank_tells_of_all(machine: tuple[str, ...], chosen: Chosen) -> None:
    on = _machine(*machine)
    for chunk in (16, 80 << 6):
        calls = [(chosen, chunk * on.world_size, 7000)]
        assert _prepared(on, chosen, calls[0][1]).at_once

        assert ends(on, calls, standing=True) == ends(on, calls, standing=False)


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
            (*RING, "system.sips.changed=[{which: [3], sip: {launch: 3 us}}]"),
            shipped_algorithm("ring"),
            12 << 10,
        ),
        (("h200x8",), shipped_algorithm("ring"), 8 << 10),
    ],
    ids=["shorter chunks", "links of others", "channels on a link", "other SIPs", "switch"],
)
def test_where_ranks_differ_each_is_timed(
    machine: tuple[str, ...], chosen: Chosen, count: int
) -> None:
    assert not _prepared(_machine(*machine), chosen, count).at_once
