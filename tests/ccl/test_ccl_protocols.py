"""Protocols: every tier agrees on what their queues cost, and NCCL was measured to take as long."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from ccl_machine import Outcome, ring, run, skewed
from ccl_operations import even, simulate

from kernbench.ccl.config import (
    Chosen,
    choose,
    default_algorithms,
    load_ccl,
    shipped_ccl_file,
)
from kernbench.ccl.operations import OPERATIONS
from kernbench.ccl.profiles import P2pChannels
from kernbench.ccl.tuner import Choices
from kernbench.config import ConfigError
from kernbench.hw.queue import Line, QueueSpec
from kernbench.memory import Space, dtypes
from kernbench.topology import Topology
from kernbench.units import Bandwidth, Bytes

KIB, MIB = 1 << 10, 1 << 20

PROTOCOLS: Final[list[dict[str, Any]]] = [
    {"line": Line(16, 8)},
    {"line": Line(128, 120), "launch": 7_000_001},
    {"launch": 0, "own_share": Bandwidth(3 * 10**9), "pes": 3},
    {"notice": 2_200_000, "rate": Bandwidth(7 * 10**9), "backpressure": "poll"},
    {
        "line": Line(7, 3),
        "launch": 123_457,
        "notice": 41_003,
        "own_share": Bandwidth(10**9),
        "rate": Bandwidth(11 * 10**9),
    },
]


def both(machine: Topology, chosen: Chosen, starts: list[int], count: int) -> Outcome:
    """Runs as a plan and live, which must agree; returns the plan's outcome."""
    outcome = run(machine, chosen, starts, count)
    run(machine, chosen, starts, count, fidelity="tile").same(outcome)
    return outcome


@pytest.mark.parametrize("queue", PROTOCOLS)
@pytest.mark.parametrize("where", ["sip8", "h200x8", "shared"])
def test_every_tier_agrees_on_what_a_protocol_costs(
    topology: Callable[[str], Topology],
    make_topology: Callable[..., Topology],
    where: str,
    queue: dict[str, Any],
) -> None:
    if where == "shared":
        # Neighbours of the ring behind different routers: no link is anybody's own.
        ends = [("sip0", "a"), ("sip2", "a"), ("sip1", "b"), ("sip3", "b"), ("a", "b")]
        machine = make_topology(
            4, {"kind": "graph", "edges": [{"ends": list(pair)} for pair in ends]}
        )
    else:
        machine = topology(where)
    for slots, count in ((1, 1001), (3, 20_011), (16, 7)):
        chosen = ring(slot_size=1000, n_slots=slots, **queue)
        for starts in ([0] * 4, skewed(4, count)):
            both(machine, chosen, starts, count)


def test_whole_lines_go_over_links() -> None:
    queue = QueueSpec(Space.SRAM, "sleep", 4, 4096, 256, 16)
    assert [queue.on_links(n) for n in (0, 1, 8, 4096)] == [0, 1, 8, 4096]
    ll = replace(queue, line=Line(16, 8))
    assert [ll.on_links(n) for n in (0, 1, 8, 9, 4096)] == [0, 16, 16, 32, 8192]
    ll128 = replace(queue, line=Line(128, 120))
    assert [ll128.on_links(n) for n in (0, 120, 121, 1200)] == [0, 128, 256, 1280]


def test_a_line_with_flags_takes_links_longer(topology: Callable[[str], Topology]) -> None:
    machine, path = topology("h200x8"), shipped_ccl_file()
    plain = choose(load_ccl(path), path, "ring", machine.machine.system)
    flags = replace(plain, queue=replace(plain.queue, line=Line(16, 8)))
    once, twice = (
        simulate(machine, chosen, even("all_gather", 2, 50 * MIB)).time for chosen in (plain, flags)
    )
    assert twice == pytest.approx(2 * once, rel=0.05)


def test_a_queue_has_a_launch_of_its_own(topology: Callable[[str], Topology]) -> None:
    machine, starts = topology("sip8"), [10_000, 40_000_000, 3_000_000]
    for launch in (0, 5_000_000):
        ends = both(machine, ring(launch=launch), starts, 0).ends
        assert ends == [start + launch for start in starts]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_who_has_a_share_in_charge_takes_it_through(
    topology: Callable[[str], Topology], operation: str
) -> None:
    machine, path = topology("sip8"), shipped_ccl_file()
    loaded = load_ccl(path)
    ranks = 2 if operation == "send_recv" else 4
    for name in ("nccl_ll", "nccl_p2p"):
        chosen = choose(loaded, path, name)
        if not chosen.implements(operation):
            continue
        slow, fast = (
            simulate(
                machine,
                replace(chosen, queue=replace(chosen.queue, own_share=rate)),
                even(operation, ranks, 4000),
            ).ends
            for rate in (Bandwidth(10**9), None)
        )
        share = 4000 if OPERATIONS[operation].blocks == "one" else 4 * 4000
        added = 0 if OPERATIONS[operation].rooted else share * 1000
        assert [a - b for a, b in zip(slow, fast, strict=True)] == [added] * ranks


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_sent_share_goes_with_what_a_rank_sends(
    topology: Callable[[str], Topology], ranks: int
) -> None:
    machine, path = topology("sip8"), shipped_ccl_file()
    chosen = choose(load_ccl(path), path, "nccl_p2p")
    slow, fast = (
        simulate(
            machine,
            replace(chosen, queue=replace(chosen.queue, sent_share=rate)),
            even("all_to_all", ranks, 1000),
        ).ends
        for rate in (Bandwidth(10**9), None)
    )
    # A block of 1000 fp32 elements to each other rank, at a byte a nanosecond.
    added = (ranks - 1) * 4000 * 1000
    assert [a - b for a, b in zip(slow, fast, strict=True)] == [added] * ranks


@pytest.mark.parametrize(
    ("nbytes", "ranks", "channels"),
    [
        (1, 8, 4),
        (64 * MIB, 8, 4),
        (64 * MIB + 1, 8, 8),
        (256 * MIB, 8, 16),
        (1024 * MIB, 8, 32),
        (4096 * MIB, 8, 32),
        (256 * MIB, 2, 16),
        (MIB, 3, 10),
        (1024 * MIB, 3, 20),
        (MIB, 1000, 1),
    ],
)
def test_how_many_channels_a_message_gets(nbytes: int, ranks: int, channels: int) -> None:
    dealt = P2pChannels(32, Bandwidth(20), Bytes(16 * MIB))
    assert dealt.rate_of(nbytes, ranks).per_second == 20 * channels


def test_a_message_gets_its_share_of_channels(topology: Callable[[str], Topology]) -> None:
    machine = topology("h200x8")
    choices = Choices(None, (), machine)
    case = even("send_recv", 2, 4 * MIB)
    times = {}
    for ranks in (None, 8, 2):
        chosen = choices.choose("send_recv", 16 * MIB, range(2), ranks)
        assert (chosen.name, chosen.auto) == ("nccl_p2p", True)
        assert chosen is choices.choose("send_recv", 16 * MIB - 1, range(2), ranks)
        times[ranks] = simulate(machine, chosen, case).time
    assert times[None] == times[8] > 3 * times[2]
    named = Choices(None, ("defaults.algorithm=nccl_p2p",), machine)
    one = named.choose("send_recv", 16 * MIB, range(2), 8)
    assert (one.auto, one.queue.rate) == (False, Bandwidth(80 * 10**9))


def test_f3_a_line_with_more_payload_than_bytes(tmp_path: Path) -> None:
    path = tmp_path / "ccl.yaml"
    path.write_text(
        "defaults: {algorithm: mine}\n"
        "queues: {odd: {line: {size: 16 B, payload: 17 B}}}\n"
        "algorithms: {mine: {module: kernbench.ccl.algorithms.ring, queue: odd}}\n"
    )
    with pytest.raises(ConfigError, match="expected at most the line's 16 B; got 17 B") as caught:
        load_ccl(path)
    (problem,) = caught.value.problems
    assert (problem.code, problem.field) == ("F3", "queues.odd.line.payload")


# Which protocol


def test_a_machine_uses_the_fastest_of_its_own(topology: Callable[[str], Topology]) -> None:
    machine = topology("h200x8")
    system, loaded = machine.machine.system, load_ccl(shipped_ccl_file())
    assert default_algorithms(None, (), loaded, system) == system.algorithms
    assert default_algorithms(shipped_ccl_file(), (), loaded, system) == ()
    choices = Choices(None, (), machine)
    for operation in OPERATIONS:
        ranks = 2 if operation == "send_recv" else 8
        for nbytes in (0, 1, KIB, MIB, 1024 * MIB):
            chosen = choices.choose(operation, nbytes, range(ranks))
            assert chosen.name in system.algorithms
    for nbytes, name in (
        (KIB, "nccl_ll"),
        (256 * KIB, "nccl_ll"),
        (8 * MIB, "nccl_ll128"),
        (256 * MIB, "nccl_simple"),
    ):
        assert choices.choose("all_reduce", nbytes, range(8)).name == name


def test_others_do_not_use_what_is_for_those_who_name_it(
    topology: Callable[[str], Topology],
) -> None:
    loaded = load_ccl(shipped_ccl_file())
    for name in ("sip8", "h200x8", "fattree64"):
        choices = Choices(None, ("defaults.algorithm=auto",), topology(name))
        for operation in OPERATIONS:
            for nbytes in (KIB, 64 * MIB):
                ranks = 2 if operation == "send_recv" else 8
                chosen = choices.choose(operation, nbytes, range(ranks)).name
                assert loaded.value.algorithms[chosen].auto, chosen


def test_what_no_algorithm_of_the_machine_has_is_done_by_any_of_the_file(
    topology: Callable[[str], Topology],
) -> None:
    machine = topology("fattree64")
    assert machine.machine.system.algorithms == ("ring_allreduce_nvlink",)
    choices = Choices(None, (), machine)
    assert choices.choose("all_reduce", MIB, range(8)).name == "ring_allreduce_nvlink"
    assert choices.choose("broadcast", MIB, range(8)).auto


# Against measurements: NCCL 2.28.9 with NVLS off, 8 H200, bfloat16, microseconds

MEASURED: Final = [
    ("all_reduce", 2, 64 * MIB, 248.9, 0.1),
    ("all_reduce", 2, 256 * MIB, 899.5, 0.1),
    ("all_reduce", 2, 1024 * MIB, 3237.8, 0.1),
    ("all_reduce", 8, 64 * MIB, 371.6, 0.1),
    ("all_reduce", 8, 256 * MIB, 1360.2, 0.1),
    ("all_reduce", 8, 1024 * MIB, 5239.8, 0.1),
    ("all_gather", 2, 1024 * MIB, 2021.8, 0.1),
    ("all_gather", 8, 256 * MIB, 732.3, 0.1),
    ("reduce_scatter", 2, 1024 * MIB, 2031.5, 0.1),
    ("reduce_scatter", 8, 256 * MIB, 728.0, 0.1),
    ("all_to_all", 8, 256 * MIB, 770.9, 0.1),
    ("all_to_all", 8, 1024 * MIB, 2930.1, 0.1),
    ("all_to_all", 4, 256 * MIB, 665.4, 0.1),
    ("all_to_all", 4, 1024 * MIB, 2389.3, 0.1),
    ("all_to_all", 2, 256 * MIB, 472.0, 0.1),
    ("all_to_all", 2, 1024 * MIB, 1614.7, 0.1),
    ("all_reduce", 2, KIB, 11.5, 0.2),
    ("all_reduce", 2, 4 * MIB, 36.3, 0.2),
    ("all_reduce", 8, KIB, 20.6, 0.2),
    ("all_reduce", 8, 64 * KIB, 23.4, 0.2),
    ("all_reduce", 8, MIB, 29.9, 0.2),
    ("all_reduce", 8, 4 * MIB, 51.9, 0.2),
    ("all_reduce", 8, 16 * MIB, 116.0, 0.2),
    ("all_gather", 8, 64 * KIB, 18.4, 0.2),
    ("all_gather", 8, 4 * MIB, 37.4, 0.2),
    ("reduce_scatter", 8, 64 * KIB, 16.7, 0.2),
    ("reduce_scatter", 8, 16 * MIB, 70.9, 0.2),
    ("all_to_all", 8, 64 * KIB, 13.8, 0.2),
    ("all_to_all", 8, 4 * MIB, 43.3, 0.2),
]


@pytest.mark.parametrize(("operation", "ranks", "nbytes", "us", "within"), MEASURED)
def test_the_calibrated_machine_takes_about_as_long_as_the_measured_one(
    topology: Callable[[str], Topology],
    operation: str,
    ranks: int,
    nbytes: int,
    us: float,
    within: float,
) -> None:
    machine = topology("h200x8")
    chosen = Choices(None, (), machine).choose(operation, nbytes, range(ranks))
    elements = nbytes // 2 // (1 if OPERATIONS[operation].blocks == "one" else ranks)
    outcome = simulate(machine, chosen, even(operation, ranks, elements), dtype=dtypes.bfloat16)
    assert outcome.time / 1e6 == pytest.approx(us, rel=within)
