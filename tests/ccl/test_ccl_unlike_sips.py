"""Collectives of SIPs that differ: ranks have costs of their own, on every tier."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ccl_machine import SUM, own_algorithm, ring, run, shipped_algorithm, skewed
from ccl_operations import Outcome, draw, even, execute, simulate, uneven
from ccl_shipped import ENTRIES, as_run, ranks_of, shipped
from ccl_shipped import slots as own_slots
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.ccl import channel, lanes
from kernbench.ccl.collective import Collective
from kernbench.ccl.config import check_fits, load_ccl, shipped_ccl_file
from kernbench.ccl.estimate import Estimator
from kernbench.ccl.jams import least_slots
from kernbench.ccl.model import CollectiveModel
from kernbench.ccl.plan import NOTHING, Comm
from kernbench.ccl.prepared import CollectiveShape
from kernbench.ccl.tuner import Choices
from kernbench.config import ConfigError
from kernbench.memory import dtypes
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import Topology

Changed = Callable[..., Topology]

GB = st.sampled_from(["1 GB/s", "13 GB/s", "900 GB/s"])
TIMES = st.sampled_from(["0 ns", "7 ns", "1300 ns"])
MEMORIES = st.fixed_dictionaries({}, optional={"bandwidth": GB, "latency": TIMES})
SIPS = st.fixed_dictionaries(
    {},
    optional={
        "collective_launch": TIMES,
        "cube": st.fixed_dictionaries({}, optional={"hbm": MEMORIES, "sram": MEMORIES}),
        "pe": st.fixed_dictionaries(
            {},
            optional={
                "tcm": MEMORIES,
                "issue": TIMES,
                "poll_interval": st.sampled_from(["3 ns", "700 ns"]),
                "dma": GB,
                "math": st.sampled_from(["1 GFLOP/s", "77 GFLOP/s"]),
            },
        ),
    },
)
MACHINES: Sequence[tuple[str, int, Sequence[str]]] = (
    ("sip8", 8, ()),
    ("torus4x4", 16, ()),
    ("h200x8", 8, ()),
    ("h200x8_x4_nodes", 16, ("system.sips.count=16",)),
    ("fattree64", 16, ("system.sips.count=16",)),
)


@settings(max_examples=examples(100))
@given(
    entry=st.sampled_from(ENTRIES),
    machine=st.sampled_from(MACHINES),
    changes=st.lists(st.tuples(SIPS, MEMORIES, st.integers(1, 3)), min_size=1, max_size=3),
    ranks=st.integers(2, 9),
    size=st.integers(0, 70),
    slots=st.tuples(st.sampled_from([48, 96, 4096]), st.integers(2, 4)),
    poll=st.booleans(),
    data=st.data(),
)
def test_every_algorithm_is_timed_as_it_runs_live(
    changed_topology: Changed,
    entry: Any,
    machine: tuple[str, int, Sequence[str]],
    changes: Sequence[tuple[dict[str, Any], dict[str, Any], int]],
    ranks: int,
    size: int,
    slots: tuple[int, int],
    poll: bool,
    data: st.DataObject,
) -> None:
    (where, count, overrides), (name, operation) = machine, entry.values
    order = data.draw(st.permutations(range(count)))
    entries = [
        {"which": order[3 * place : 3 * place + few], "sip": sip, "link": link}
        for place, (sip, link, few) in enumerate(changes)
        if 3 * place < count
    ]
    made = changed_topology(where, *[e for e in entries if e["which"]], overrides=overrides)
    (ranks,) = ranks_of(operation, min(ranks, count))
    sips = data.draw(st.permutations(range(count)))[:ranks]
    chosen = shipped(
        name,
        made,
        *own_slots(name, *slots),
        f"algorithms.{name}.backpressure={'poll' if poll else 'sleep'}",
    )
    case = as_run(uneven(operation, ranks, size, root=ranks - 1), chosen, made, 4)
    case = replace(case, grid=made.grid(sips))
    values = [drawn.astype(np.int32) for drawn in draw(case)]
    starts = [(rank * 7919) % 13 * 300_000 for rank in range(ranks)]

    def taken(fidelity: Any) -> Outcome:
        return simulate(
            made, chosen, case, values, dtype=dtypes.int32, fidelity=fidelity, starts=starts,
            sips=sips,
        )  # fmt: skip

    planned, live = taken("kernel"), taken("tile")
    assert planned.ends == live.ends
    wanted = execute(getattr(chosen.module, operation), case, values, np.add).taken
    assert [t.tobytes() for t in planned.taken] == [w.tobytes() for w in wanted]
    assert [t.tobytes() for t in live.taken] == [w.tobytes() for w in wanted]


SENDER = {
    "collective_launch": "1 us",
    "pe": {"issue": "3 ns", "dma": "20 GB/s", "tcm": {"bandwidth": "1 GB/s", "latency": "9 us"}},
    "cube": {"hbm": {"bandwidth": "100 GB/s", "latency": "300 ns"}},
}
RECEIVER = {
    "collective_launch": "7 ns",
    "pe": {"issue": "5 ns", "dma": "40 GB/s", "tcm": {"bandwidth": "20 GB/s", "latency": "11 ns"}},
    "cube": {"hbm": {"bandwidth": "80 GB/s", "latency": "500 ns"}},
}


@pytest.mark.parametrize("fidelity", ["kernel", "tile"])
def test_a_message_by_hand(changed_topology: Changed, fidelity: Any) -> None:
    """4 000 B from SIP 2 to SIP 1, whose engines, memories and launches all differ."""
    machine = changed_topology(
        "sip8",
        {"which": [2], "sip": SENDER},
        {"which": [1], "sip": RECEIVER},
        {"which": [1], "link": {"bandwidth": "25 GB/s", "latency": "600 ns"}},
    )
    chosen = replace(shipped("direct", machine, "defaults.vc_chunk_size=256 B"), align=1)
    mesh = machine.route("sip2.cube0", "sip1.cube0")
    assert [link.latency for link in mesh] == [600_000, 20_000]  # the cable, then inside SIP 1
    case = even("send_recv", 2, 1000)
    ends = simulate(machine, chosen, case, fidelity=fidelity, sips=[2, 1]).ends
    # Launch, issue, DMA at 20 GB/s (slower than the HBM at 100 GB/s), latency of the HBM.
    loaded = 1_000_000 + 3_000 + 200_000 + 300_000
    injected = loaded + 200_000  # the cable could take 25 GB/s
    # The last 160 B pass the link inside SIP 1, which is faster, at 5 ps a byte.
    arrived = injected + 600_000 + 160 * 5 + 20_000
    # The slot is in SIP 1: latency, 20 GB/s, latency; then DMA at 40 GB/s and the HBM's latency.
    stored = arrived + 11_000 + 200_000 + 11_000 + 100_000 + 500_000
    assert ends == [injected, stored]


SLOW: Sequence[dict[str, Any]] = (
    {"sip": {"collective_launch": "50 us"}},
    {"sip": {"pe": {"math": "3 GFLOP/s"}}},
    {"sip": {"pe": {"dma": "7 GB/s"}}},
    {"sip": {"pe": {"issue": "333 ns"}}},
    {"sip": {"cube": {"hbm": {"bandwidth": "3 GB/s"}}}},
    {"sip": {"cube": {"hbm": {"latency": "9 us"}}}},
    {"sip": {"pe": {"tcm": {"bandwidth": "3 GB/s"}}}},
    {"sip": {"pe": {"tcm": {"latency": "9 us"}}}},
    {"link": {"bandwidth": "3 GB/s"}},
    {"link": {"latency": "9 us"}},
)


@pytest.mark.parametrize("slow", SLOW, ids=str)
@pytest.mark.parametrize("name", ["sip8", "h200x8"])
def test_a_slow_rank_in_a_ring(
    topology: Callable[[str], Topology],
    changed_topology: Changed,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    slow: dict[str, Any],
) -> None:
    """Timed on arrays, and as late as live, wherever in the ring it is."""
    arrays = []
    vectorised = lanes.vectorised

    def spy(*args: Any, **kwargs: Any) -> Any:
        arrays.append(args)
        return vectorised(*args, **kwargs)

    monkeypatch.setattr(channel, "vectorised", spy)
    count, starts = 40_003, skewed(5, 3)
    usual = max(end or 0 for end in run(topology(name), ring(), starts, count).ends)
    for place in range(5):
        machine = changed_topology(name, {"which": [place], **slow})
        arrays.clear()
        planned = run(machine, ring(), starts, count)
        assert len(arrays) == 1
        run(machine, ring(), starts, count, fidelity="tile").same(planned)
        assert max(end or 0 for end in planned.ends) > usual


def test_a_rank_that_looks_seldom_for_credits(
    topology: Callable[[str], Topology], changed_topology: Changed
) -> None:
    chosen, starts = ring(backpressure="poll", n_slots=1), skewed(4, 3)
    usual = run(topology("sip8"), chosen, starts, 9_000).ends
    for place in range(4):
        seldom = {"which": [place], "sip": {"pe": {"poll_interval": "7 us"}}}
        machine = changed_topology("sip8", seldom)
        planned = run(machine, chosen, starts, 9_000)
        run(machine, chosen, starts, 9_000, fidelity="tile").same(planned)
        assert planned.ends > usual


def test_groups_with_and_without_the_slow_rank(
    topology: Callable[[str], Topology], changed_topology: Changed
) -> None:
    slow = {"which": [3], "sip": {"cube": {"hbm": {"bandwidth": "3 GB/s"}}}}
    machine, starts = changed_topology("sip8", slow), skewed(3)
    for sips, alike in (([0, 1, 2], True), ([5, 4, 2], True), ([2, 3, 4], False)):
        there = run(machine, ring(), starts, 5_000, sips=sips).ends
        usual = run(topology("sip8"), ring(), starts, 5_000, sips=sips).ends
        assert (there == usual) == alike


def test_all_changed_alike_is_another_machine(changed_topology: Changed) -> None:
    """What every SIP has may be said in either place."""
    sip = {"collective_launch": "3 us", "pe": {"math": "3 GFLOP/s", "dma": "7 GB/s"}}
    network = {"bandwidth": "7 GB/s", "latency": "1 us"}
    one = changed_topology("sip8", {"which": list(range(8)), "sip": sip, "link": network})
    other = changed_topology(
        "sip8",
        overrides=[
            "system.sip.collective_launch=3 us",
            "system.sip.pe.math=3 GFLOP/s",
            "system.sip.pe.dma=7 GB/s",
            "system.sips.network.bandwidth=7 GB/s",
            "system.sips.network.latency=1 us",
        ],
    )
    assert one.links == other.links
    assert one.machine.system.kinds == (other.machine.system.sip,)
    for count in (0, 999):
        run(one, ring(), skewed(8), count).same(run(other, ring(), skewed(8), count))


# Choices


@pytest.mark.parametrize("name", ["ring", "direct", "halving_doubling"])
@pytest.mark.parametrize("nbytes", [1 << 10, 1 << 18])
def test_estimates_take_the_slowest_of_the_group(
    changed_topology: Changed, name: str, nbytes: int
) -> None:
    memory = {"bandwidth": "20 GB/s", "latency": "2 us"}
    pe = {"tcm": memory, "math": "2 GFLOP/s", "issue": "80 ns", "dma": "60 GB/s"}
    parts = {"collective_launch": "9 us", "cube": {"hbm": memory}, "pe": pe}
    every = changed_topology("torus4x4", {"which": list(range(16)), "sip": parts})
    # The same dealt out to two SIPs, so that neither is the slowest in everything.
    first = {"cube": {"hbm": memory}, "pe": {"math": "2 GFLOP/s"}}
    second = {
        "collective_launch": "9 us",
        "cube": {"hbm": {"latency": "1 us"}},
        "pe": {"tcm": memory, "issue": "80 ns", "dma": "60 GB/s"},
    }
    entries = {"which": [1], "sip": first}, {"which": [2], "sip": second}
    some, plain = changed_topology("torus4x4", *entries), changed_topology("torus4x4")

    def time(machine: Topology, *sips: int) -> float | None:
        chosen = shipped(name, machine)
        return Estimator(machine).estimate(chosen, "all_reduce", nbytes, sips)

    assert time(some, 0, 1, 2, 3) == time(every, 0, 1, 2, 3)
    assert time(some, 4, 5, 6, 7) == time(plain, 4, 5, 6, 7)
    for two in ((0, 1), (2, 3)):
        assert time(plain, *two) != time(some, *two) != time(every, *two)


def test_auto_chooses_for_the_group(
    topology: Callable[[str], Topology], changed_topology: Changed
) -> None:
    """A rank whose messages are slow to issue and to leave their slots wants few of them."""
    slow = {"which": [3], "sip": {"pe": {"tcm": {"latency": "20 us"}, "issue": "5 us"}}}
    machine = changed_topology("sip8", slow)

    def chosen(where: Topology, sips: Sequence[int]) -> str:
        choices = Choices(None, ("defaults.algorithm=auto",), where)
        return choices.choose("all_reduce", 1 << 16, sips).name

    plain = topology("sip8")
    assert chosen(machine, (4, 5, 6, 7)) == chosen(plain, (4, 5, 6, 7))
    assert chosen(machine, (0, 1, 2, 3)) != chosen(plain, (0, 1, 2, 3))


def test_slots_fit_into_the_smallest_memory(changed_topology: Changed) -> None:
    tcm = {"which": [3], "sip": {"pe": {"tcm": {"capacity": "8 KiB"}}}}
    loaded = load_ccl(shipped_ccl_file())
    for entries, fits in (((), True), ((tcm,), False)):
        system = changed_topology("sip8", *entries).machine.system
        if fits:
            check_fits(shipped_algorithm(), loaded, system)
            continue
        with pytest.raises(ConfigError) as caught:
            check_fits(shipped_algorithm(), loaded, system)
        assert caught.value.problems[0].message == (
            "expected slots that fit into the 8 KiB of tcm of the smallest SIP of sip8; "
            "got 4 slots of 4 KiB, 16 KiB"
        )


def test_channels_fit_onto_the_fewest_pes(changed_topology: Changed) -> None:
    chosen = replace(shipped_algorithm(), channels=12)
    loaded = load_ccl(shipped_ccl_file())
    check_fits(chosen, loaded, changed_topology("sip8").machine.system)
    few = changed_topology("sip8", {"which": [3], "sip": {"cube": {"pes": 2}}})
    with pytest.raises(ConfigError) as caught:
        check_fits(chosen, loaded, few.machine.system)
    assert caught.value.problems[0].message == (
        "expected at most the 8 PEs of the smallest SIP of sip8; got 12"
    )


def jam(comm: Comm) -> None:
    """Sends everything before it receives anything."""
    other = 1 - comm.rank
    comm.exchange(send=0, to=other, receive=NOTHING, source=other, span=2)
    comm.exchange(send=NOTHING, to=other, receive=0, source=other, combine="reduce", span=2)


def test_slots_that_would_end_a_jam_fit_into_the_smallest_memory(
    changed_topology: Changed,
) -> None:
    small = {"which": [1], "sip": {"pe": {"tcm": {"capacity": "127 KiB"}}}}
    machine = changed_topology("sip8", small)
    found = []
    for sips in ((0, 2), (0, 1), (1, 0)):
        shape = CollectiveShape(
            own_algorithm(jam), "all_reduce", sips, (32 * 1024,), dtypes.float32
        )
        model = CollectiveModel(GraphEngine(machine, enable_data=False))
        found.append(least_slots(Collective(model, model.prepare(shape), SUM)))
    assert found == [32, None, None]
