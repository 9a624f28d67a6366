"""What NCCL takes: the algorithm by its own estimate, channels by size, chains inside a node."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ccl_operations import draw, even, execute, expected, simulate

from kernbench.ccl.algorithms import nccl_chains
from kernbench.ccl.config import choose, load_ccl, shipped_ccl_file
from kernbench.ccl.profiles import CollectiveChannels, P2pChannels, Tuning
from kernbench.ccl.tuner import Choices
from kernbench.config import ConfigError
from kernbench.topology import Topology
from kernbench.units import Bandwidth, Bytes, Ps

KIB, MIB = 1 << 10, 1 << 20


# Its own estimate


@pytest.mark.parametrize(
    ("operation", "nbytes", "ranks", "tree", "us"),
    [
        # ncclTopoTuneModel: latency and bytes over busBw * nRanks / nsteps, worked out by hand.
        ("all_reduce", 4_000_000, 8, False, 10 + 14 * 2 + 4_000_000 * 1.75 / 100e3),
        ("all_gather", 4_000_000, 8, False, 10 + 7 * 2 + 4_000_000 * 0.875 / 100e3),
        ("broadcast", 4_000_000, 8, False, 10 + 2 + 4_000_000 / 100e3),
        # An all-reduce of 128 to 255 B has the second entry; of 64 MiB, none.
        ("all_reduce", 200, 4, True, 10 + 6 * 2 + 200 * 2 / 50e3),
        ("all_reduce", 64 * MIB, 4, True, 10 + 6 * 2 + 64 * MIB * 2 / 100e3),
    ],
)
def test_an_estimate_is_the_librarys(
    operation: str, nbytes: int, ranks: int, tree: bool, us: float
) -> None:
    tuning = Tuning(Ps(10_000_000), Ps(2_000_000), Bandwidth(100 * 10**9), (80, 50))
    assert tuning.time(operation, nbytes, ranks, tree=tree) / 1e6 == pytest.approx(us)


@pytest.mark.parametrize(
    ("operation", "ranks", "nbytes", "name"),
    [
        # What its formula gives with the constants of tuning.cc; the last two are not the fastest.
        ("all_reduce", 8, MIB, "nccl_ll"),
        ("all_reduce", 8, 16 * MIB, "nccl_ll128"),
        ("all_reduce", 4, 4 * MIB, "nccl_ll128"),
        ("broadcast", 8, MIB, "nccl_ll"),
        ("broadcast", 8, 4 * MIB, "nccl_simple"),
        ("all_gather", 8, 4 * MIB, "nccl_ll"),
        ("all_reduce", 2, 4 * MIB, "nccl_simple"),
        ("all_gather", 2, 16 * MIB, "nccl_simple"),
    ],
)
def test_inside_a_node_auto_takes_what_the_library_takes(
    topology: Callable[[str], Topology], operation: str, ranks: int, nbytes: int, name: str
) -> None:
    for machine in "h200x8", "h200x8_x4_nodes":
        chosen = Choices(None, (), topology(machine)).choose(operation, nbytes, range(ranks))
        assert (chosen.name, chosen.auto) == (name, True)


# Channels


@pytest.mark.parametrize(
    ("nbytes", "ranks", "more", "rate"),
    [
        (512 * KIB, 8, {}, 4 * 10),
        (16 * KIB, 8, {}, 2 * 10),  # parts of 8 KiB
        (1, 8, {}, 10),
        (512 * KIB, 2, {"one_way": True}, 16 * 30),
        (8 * KIB, 8, {"messages": 7}, 7 * 10),
        (512 * KIB, 8, {"messages": 7}, 28 * 10),
        (512 * KIB, 8, {"messages": 31}, 32 * 10),  # no more than there are
    ],
)
def test_the_rate_of_messages(nbytes: int, ranks: int, more: dict[str, Any], rate: int) -> None:
    dealt = P2pChannels(32, Bandwidth(10), Bytes(2 * MIB), Bandwidth(30), Bytes(8 * KIB))
    assert dealt.rate_of(nbytes, ranks, **more).per_second == rate


@pytest.mark.parametrize(
    ("nbytes", "ranks", "channels"),
    [(KIB, 8, 1), (32 * KIB, 8, 1), (64 * KIB, 8, 2), (64 * KIB, 2, 8), (64 * MIB, 8, 24)],
)
def test_the_rate_of_a_broadcast(nbytes: int, ranks: int, channels: int) -> None:
    dealt = CollectiveChannels(24, Bandwidth(10), Bytes(4 * KIB))
    assert dealt.rate_of(nbytes, ranks).per_second == 10 * channels


def test_small_messages_go_by_the_protocol_for_small_ones(
    topology: Callable[[str], Topology],
) -> None:
    machine = topology("h200x8")
    choices = Choices(None, (), machine)
    for nbytes, name in (KIB, "nccl_p2p_ll"), (512 * KIB, "nccl_p2p_ll"), (MIB, "nccl_p2p"):
        assert choices.choose("send_recv", nbytes, range(2), 8).name == name
        # The same for each of the blocks that go to 8 ranks.
        assert choices.choose("all_to_all", 8 * nbytes, range(8)).name == name
    named = Choices(None, ("defaults.algorithm=nccl_p2p_ll",), machine)
    assert named.choose("send_recv", MIB, range(2), 8).name == "nccl_p2p_ll"


def test_additions_run_on_all_pes_of_a_collective(topology: Callable[[str], Topology]) -> None:
    machine = topology("sip8")
    times = []
    for pes in 1, 4:
        loaded = load_ccl(shipped_ccl_file(), (f"queues.nccl_ll.pes={pes}",))
        chosen = choose(loaded, shipped_ccl_file(), "nccl_ll")
        times.append(simulate(machine, chosen, even("reduce_scatter", 2, 1000)).time)
    # One message each, of one piece: its addition is on the way to the end.
    math = machine.machine.system.kinds[0].pe.math
    assert times[0] - times[1] == math.duration_ps(1000) - math.duration_ps(250)


# Chains


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("size", [0, 1, 37, 500])
def test_a_chain_reduces_and_sends_back(ranks: int, channels: int, size: int) -> None:
    case = even("all_reduce", ranks, size, channels=channels, slot=16)
    given = draw(case)
    result = execute(nccl_chains.all_reduce, case, given)
    for got, wanted in zip(result.taken, expected(case, given), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_a_chain_takes_the_place_of_trees_inside_a_node(
    topology: Callable[[str], Topology],
) -> None:
    choices = Choices(None, ("defaults.algorithm=nccl_tree",), topology("h200x8_x4_nodes"))
    for sips, name in (range(8), "nccl_chain"), (range(6, 10), "nccl_tree"):
        chosen = choices.choose("all_reduce", MIB, sips)
        assert (chosen.name, chosen.auto) == (name, False)


def test_f7_who_takes_the_place_must_be_there(tmp_path: Path) -> None:
    path = tmp_path / "ccl.yaml"
    path.write_text(
        "defaults: {algorithm: mine}\n"
        "algorithms: {mine: {module: kernbench.ccl.algorithms.ring, inside: other}}\n"
    )
    with pytest.raises(ConfigError, match="expected one of the algorithms of this file") as caught:
        load_ccl(path)
    (problem,) = caught.value.problems
    assert (problem.code, problem.field) == ("F7", "algorithms.mine.inside")
