"""Collectives whose ranks share links: timed over a network of their own while they are alone."""

import random
from collections.abc import Sequence

import pytest
from ccl_machine import ring, submit

from kernbench.ccl.channel import ChannelPlan
from kernbench.hw.claims import Claims
from kernbench.operations.copies import PeerCopy
from kernbench.sim_engine.command import Command, Stream
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.host import Host
from kernbench.topology import Topology, load_topology

RANKS = 12
TIMES = 3


@pytest.fixture(scope="module")
def machine() -> Topology:
    """Nodes of 2 under one spine: the ring's ways from node to node share its links."""
    node, spine = "system.sips.network.node", "system.sips.network.spine"
    overrides = [f"system.sips.count={RANKS}", f"{node}.size=2", f"{spine}.count=1"]
    return load_topology("h200x8_x4_nodes", overrides).topology_obj


def ends(
    machine: Topology,
    count: int,
    starts: Sequence[int],
    *,
    sips: Sequence[int] = range(RANKS),
    company: int | None = None,
    shadow: bool = False,
) -> list[int | None]:
    """Runs all-reduces in a row, and a copy that begins at `company`; returns when each ends."""
    engine = GraphEngine(machine, enable_data=False, shadow=shadow)
    commands = submit(engine, ring(), sips, count, TIMES, [starts[sip] for sip in sips])
    if company is not None:
        main = Host(engine.loop, -1, engine.rank_owner(-1), company, 64)
        copy = PeerCopy(engine, 1, 4, 500_000, lambda: None)
        commands.append(Command("copy", "copy", main, Stream("c", 1), copy))
        engine.submit(commands[-1])
    engine.loop.run()
    assert not engine.network.claims
    return [command.done.time for command in commands]


@pytest.mark.parametrize("count", [12, 30_000])
@pytest.mark.parametrize("spread", [0, 30_000, 40_000_000])
@pytest.mark.parametrize("company", [None, 0, 25_000_000])
def test_times_are_those_of_the_network(
    machine: Topology, count: int, spread: int, company: int | None
) -> None:
    pick = random.Random(1)
    starts = [pick.randint(0, spread) for _ in range(RANKS)]
    apart = ends(machine, count, starts, company=company)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChannelPlan, "apart", False)
        assert ends(machine, count, starts, company=company) == apart


def test_it_is_not_on_the_network_while_it_is_alone(
    machine: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    def share(*_: object, **__: object) -> None:
        raise AssertionError("it went over the network")

    monkeypatch.setattr(Claims, "share", share)
    assert ends(machine, 30_000, [0] * RANKS, shadow=True)


def test_ranks_in_another_order_use_the_network(machine: Topology) -> None:
    starts, sips = [0] * RANKS, [*range(2, RANKS), 1, 0]
    apart = ends(machine, 30_000, starts, sips=sips)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChannelPlan, "apart", False)
        assert ends(machine, 30_000, starts, sips=sips) == apart
