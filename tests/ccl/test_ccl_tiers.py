"""Every tier that times a plan equals the live run, on every machine, to the picosecond."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from ccl_machine import (
    SUM,
    Outcome,
    cut,
    own_algorithm,
    planned,
    ring,
    ring_order_sum,
    run,
    shipped_algorithm,
    skewed,
)
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.ccl import channel
from kernbench.ccl.algorithms.ring_allreduce import all_reduce
from kernbench.ccl.collective import Collective
from kernbench.ccl.config import Chosen
from kernbench.ccl.costs import RankCosts, Span
from kernbench.ccl.lanes import paths_by, vectorised
from kernbench.ccl.model import CollectiveModel
from kernbench.ccl.operations import Reduction
from kernbench.ccl.plan import NOTHING, Combine, Comm
from kernbench.ccl.prepared import CollectiveShape
from kernbench.ccl.replay import Replay
from kernbench.des import Event
from kernbench.hw.path import Path
from kernbench.hw.pe import PeCosts, PeTimeline
from kernbench.hw.queue import Backpressure, Queue, QueueSpec
from kernbench.memory import DType, Space, Storage, View, dtypes
from kernbench.sim_engine.command import Command, Stream
from kernbench.sim_engine.dials import Fidelity
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.host import Host
from kernbench.topology import Topology


@pytest.fixture(scope="session")
def routers(make_topology: Callable[..., Topology]) -> Topology:
    """Neighbours of the ring sit behind different routers, so that all share the link between."""
    ends = [("sip0", "a"), ("sip2", "a"), ("sip1", "b"), ("sip3", "b"), ("a", "b")]
    edges = [{"ends": list(pair), "latency": f"{7 * n + 5} ns"} for n, pair in enumerate(ends)]
    return make_topology(4, {"kind": "graph", "edges": edges})


def butterfly(comm: Comm) -> None:
    """Recursive doubling: everything to a partner that is further away in each round."""
    distance = 1
    while distance < comm.world_size:
        partner = comm.rank ^ distance
        for chunk in range(comm.world_size):
            comm.exchange(send=chunk, to=partner, receive=chunk, source=partner, combine="reduce")
        distance *= 2


def chain(comm: Comm) -> None:
    """Sums along a line of ranks and copies the result back; all but two ranks idle in a step."""
    n = comm.world_size
    moves: list[tuple[int, int, Combine]] = [(at, at + 1, "reduce") for at in range(n - 1)]
    moves += [(at, at - 1, "copy") for at in range(n - 1, 0, -1)]
    for sender, receiver, combine in moves:
        for chunk in range(n):
            comm.exchange(
                send=chunk if comm.rank == sender else NOTHING,
                to=receiver,
                receive=chunk if comm.rank == receiver else NOTHING,
                source=sender,
                combine=combine,
            )


def shape_of(chosen: Chosen, sips: Sequence[int], count: int) -> CollectiveShape:
    """Returns that of an all-reduce of floats."""
    return CollectiveShape(chosen, "all_reduce", tuple(sips), (count,), dtypes.float32)


def both(*args: Any, **kwargs: Any) -> Outcome:
    """Runs as a plan and live, which must agree; returns the plan's outcome."""
    outcome = run(*args, **kwargs)
    run(*args, **kwargs, fidelity="tile").same(outcome)
    return outcome


def sums(outcome: Outcome) -> None:
    """Asserts that all ranks hold the same bytes, and the sum as closely as its rounding allows."""
    assert all(output.tobytes() == outcome.outputs[0].tobytes() for output in outcome.outputs)
    wide = [x.astype(np.float64) for x in outcome.inputs]
    slack = 1e-6 * np.sum(np.abs(wide), axis=0)
    assert (np.abs(outcome.outputs[0].astype(np.float64) - np.sum(wide, axis=0)) <= slack).all()


@pytest.mark.parametrize("machine", ["sip8", "torus4x4", "h200x8"])
@pytest.mark.parametrize("poll", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_shipped_algorithms_on_the_shipped_machines(
    topology: Callable[[str], Topology], machine: str, poll: bool, seed: int
) -> None:
    where = topology(machine)
    name = "ring_allreduce_nvlink" if machine == "h200x8" else "ring_allreduce_tcm"
    overrides = (f"algorithms.{name}.backpressure={'poll' if poll else 'sleep'}",)
    for ranks, count in ((2, 12_345), (where.world_size, 20_011), (5, 1)):
        outcome = both(
            where, shipped_algorithm(name, *overrides), skewed(ranks, seed), count, seed=seed
        )
        assert outcome.outputs[0].tobytes() == ring_order_sum(outcome.inputs, 8).tobytes()


def test_the_default_world_of_the_default_machine(topology: Callable[[str], Topology]) -> None:
    where = topology("sip8")
    assert where.world_size == 8
    for dtype in (dtypes.float32, dtypes.bfloat16, dtypes.int32):
        outcome = both(where, shipped_algorithm(), skewed(where.world_size), 4096, dtype=dtype)
        assert outcome.outputs[7].tobytes() == ring_order_sum(outcome.inputs, 8).tobytes()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("spread", [1, 100_000, 5_000_000])
def test_flows_that_share_links_are_replayed_as_they_run_live(
    routers: Topology, seed: int, spread: int
) -> None:
    outcome = both(
        routers,
        ring(slot_size=512, n_slots=1 + seed % 4),
        skewed(4, seed, spread),
        1000 + 37 * seed,
        seed=seed,
    )
    assert outcome.outputs[0].tobytes() == ring_order_sum(outcome.inputs).tobytes()


def test_sharing_a_link_costs_time(routers: Topology) -> None:
    starts, count = [0] * 4, 100_000
    shared = both(routers, ring(), starts, count)
    # The same four ranks in an order in which only two messages cross between the routers.
    apart = both(routers, ring(), starts, count, sips=[0, 2, 1, 3])
    assert max(end or 0 for end in shared.ends) > 1.5 * max(end or 0 for end in apart.ends)


@pytest.mark.parametrize("algorithm", [butterfly, chain])
@pytest.mark.parametrize("where", ["sip8", "routers", "h200x8"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_other_plans_are_replayed_as_they_run_live(
    topology: Callable[[str], Topology],
    routers: Topology,
    algorithm: Callable[[Comm], None],
    where: str,
    ranks: int,
) -> None:
    machine = routers if where == "routers" else topology(where)
    assert planned(algorithm, ranks) is not None
    for seed in range(2):
        outcome = both(
            machine,
            own_algorithm(
                algorithm,
                "algorithms.ring_allreduce_tcm.slot_size=64 B",
                f"algorithms.ring_allreduce_tcm.n_slots={1 + 2 * seed}",
            ),
            skewed(ranks, seed),
            100,
            seed=seed,
        )
        sums(outcome)


@pytest.mark.parametrize("machine", ["sip8", "h200x8"])
@pytest.mark.parametrize("algorithm", [all_reduce, butterfly])
def test_ranks_on_any_devices_in_any_order(
    topology: Callable[[str], Topology], machine: str, algorithm: Callable[[Comm], None]
) -> None:
    for sips in ([5, 0, 3, 6], [7, 1, 4, 2]):
        sums(both(topology(machine), own_algorithm(algorithm), skewed(4), 2000, sips=sips))


@pytest.mark.parametrize("count", [0, 1, 500])
@pytest.mark.parametrize("where", ["sip8", "routers"])
@pytest.mark.parametrize("late", [[3], [0], [1, 2], [0, 1, 2, 3]])
def test_a_rank_that_nobody_knew_would_come_so_late(
    topology: Callable[[str], Topology], routers: Topology, where: str, late: list[int], count: int
) -> None:
    machine = routers if where == "routers" else topology(where)
    starts = [10_000, 40_000_000, 3_000_000, 90_000_000]
    for algorithm in (all_reduce, butterfly, chain):
        sums(both(machine, own_algorithm(algorithm), starts, count, late=late))


def test_an_empty_collective_keeps_nobody_waiting(topology: Callable[[str], Topology]) -> None:
    machine = topology("sip8")
    launch = machine.machine.system.sip.collective_launch
    starts = [10_000, 40_000_000, 3_000_000]
    for late in ([], [1], [0, 1, 2]):
        outcome = both(machine, ring(), starts, 0, late=late)
        assert outcome.ends == [start + launch for start in starts]


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16])
def test_an_average_is_the_sum_divided_once(
    topology: Callable[[str], Topology], dtype: DType
) -> None:
    average = Reduction("avg", "add", average=True)
    outcome = both(
        topology("sip8"), shipped_algorithm(), skewed(3), 100, dtype=dtype, reduction=average
    )
    total = ring_order_sum(outcome.inputs, 8)
    expected = (total / dtype.numpy.type(3)).astype(dtype.numpy)
    assert outcome.outputs[1].tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("combine", "function"), [("maximum", np.max), ("minimum", np.min), ("multiply", np.prod)]
)
def test_other_reductions(
    topology: Callable[[str], Topology], combine: str, function: Callable[..., Any]
) -> None:
    outcome = both(
        topology("sip8"),
        shipped_algorithm(),
        skewed(4),
        33,
        dtype=dtypes.int64,
        reduction=Reduction(combine, combine),
    )
    np.testing.assert_array_equal(outcome.outputs[2], function(outcome.inputs, axis=0))


def test_data_off_takes_the_same_time(topology: Callable[[str], Topology]) -> None:
    for fidelity in ("kernel", "tile"):
        assert fidelity in {"kernel", "tile"}
        on, off = (
            run(
                topology("sip8"),
                ring(slot_size=512),
                skewed(4),
                999,
                data=data,
                fidelity="tile" if fidelity == "tile" else "kernel",
            )
            for data in (True, False)
        )
        assert on.ends == off.ends


def test_functional_takes_no_time(topology: Callable[[str], Topology]) -> None:
    outcome = run(topology("sip8"), ring(), [0] * 3, 99, fidelity="functional")
    assert outcome.ends == [0, 0, 0]
    assert outcome.outputs[0].tobytes() == ring_order_sum(outcome.inputs).tobytes()


# The tiers by themselves


@dataclass(frozen=True)
class Case:
    sips: tuple[int, ...]
    count: int
    queue: QueueSpec
    starts: tuple[int, ...]
    align: int


@st.composite
def cases(draw: st.DrawFn, largest: int) -> Case:
    ranks = draw(st.integers(2, 5))
    sips = tuple(draw(st.permutations(range(8)))[:ranks])
    # Neighbours only where links would be shared otherwise: the switch has no such links.
    queue = QueueSpec(
        draw(st.sampled_from([Space.TCM, Space.HBM, Space.SRAM])),
        draw(st.sampled_from(["sleep", "poll"])),
        draw(st.integers(1, 6)),
        draw(st.sampled_from([8, 64, 200, 4096])),
        draw(st.sampled_from([16, 256])),
        draw(st.sampled_from([1, 16, 500])),
    )
    elements = draw(st.integers(1, largest))
    starts = draw(
        st.lists(st.one_of(st.just(0), st.integers(0, 3_000_000)), min_size=ranks, max_size=ranks)
    )
    return Case(sips, elements, queue, tuple(starts), draw(st.sampled_from([1, 8])))


def costs_of(machine: Topology, case: Case) -> RankCosts:
    system = machine.machine.system
    kinds = [PeCosts.of(sip) for sip in system.kinds]
    pes = [kinds[system.kind_of(sip)] for sip in case.sips]
    return RankCosts(pes, case.queue, dtypes.float32)


def path_of(machine: Topology, case: Case, sender: int, receiver: int) -> Path:
    route = machine.sip_route(case.sips[sender], case.sips[receiver])
    dma = machine.machine.system.sip_of(case.sips[sender]).pe.dma
    return Path(route, dma, case.queue.vc_chunk_size)


Timed = tuple[list[int], list[Span]]


def in_order(spans: Sequence[Span]) -> list[Span]:
    return sorted(spans, key=lambda span: (span.sender, span.sent, span.injected))


def by_replay(machine: Topology, case: Case, order: Sequence[int]) -> Timed:
    """Every message of every rank, links private, ranks started in any order."""
    plan = planned(all_reduce, len(case.sips))
    assert plan is not None
    costs = costs_of(machine, case)
    ends: dict[int, int] = {}
    queues = {
        (sender, receiver): Queue(
            path_of(machine, case, sender, receiver),
            case.queue,
            costs.pes[sender].pe.poll_interval,
            costs.pes[receiver].memory(case.queue.space).latency,
        )
        for sender, receiver in plan.pairs
    }
    layout = cut(case.count, len(case.sips), case.align)
    replay = Replay(
        plan,
        layout,
        costs.each,
        queues,
        None,
        lambda rank, end: ends.update({rank: end}),
        trace=True,
    )
    for rank in order:
        replay.start(rank, case.starts[rank])
    return [ends[rank] for rank in range(len(case.sips))], in_order(replay.spans())


def by_arrays(machine: Topology, case: Case) -> Timed:
    """The same over arrays of ranks, rounds that repeat skipped."""
    plan = planned(all_reduce, len(case.sips))
    assert plan is not None
    path = partial(path_of, machine, case)
    layout = cut(case.count, len(case.sips), case.align)
    costs = costs_of(machine, case).together
    ends, spans = vectorised(plan, layout, costs, paths_by(path), case.starts, trace=True)
    assert vectorised(plan, layout, costs, paths_by(path), case.starts) == (ends, [])
    return ends, in_order(spans)


@pytest.mark.parametrize("where", [pytest.param("h200x8", marks=pytest.mark.slow), "sip8"])
@settings(max_examples=examples(150))
@given(case=cases(largest=700), data=st.data())
def test_arrays_over_ranks_equal_the_replay(
    topology: Callable[[str], Topology], where: str, case: Case, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(case.sips))))
    machine = topology(where)
    assert by_arrays(machine, case) == by_replay(machine, case, order)


@pytest.mark.parametrize("n_slots", [1, 3, 4, 16])
@pytest.mark.parametrize("backpressure", ["sleep", "poll"])
@pytest.mark.parametrize("sips", [(0, 1, 2), (6, 1, 3)])
def test_many_pieces_are_skipped_exactly(
    topology: Callable[[str], Topology], sips: tuple[int, ...], n_slots: int, backpressure: str
) -> None:
    assert backpressure in {"sleep", "poll"}
    for count in (3 * 16 * 150, 3 * 16 * 150 - 17, 3 * 16 * 150 + 1):
        queue = QueueSpec(
            Space.TCM, "poll" if backpressure == "poll" else "sleep", n_slots, 64, 256, 16
        )
        case = Case(sips, count, queue, (1_234_567, 0, 77), 1)
        machine = topology("sip8")
        assert by_arrays(machine, case) == by_replay(machine, case, (2, 0, 1))


def unlike(draw: st.DrawFn, sips: int) -> list[dict[str, Any]]:
    """Returns entries that change some SIPs: all that costs of collectives depend on, and ports."""
    gb = st.integers(1, 900).map(lambda rate: f"{rate} GB/s")
    ns = st.integers(0, 700).map(lambda time: f"{time} ns")
    memory = st.fixed_dictionaries({}, optional={"bandwidth": gb, "latency": ns})
    pe = st.fixed_dictionaries(
        {},
        optional={
            "tcm": memory,
            "issue": ns,
            "poll_interval": st.integers(1, 300).map(lambda time: f"{time} ns"),
            "dma": gb,
            "math": st.integers(1, 300).map(lambda rate: f"{rate} GFLOP/s"),
        },
    )
    cube = st.fixed_dictionaries({}, optional={"hbm": memory, "sram": memory})
    sip = st.fixed_dictionaries({}, optional={"pe": pe, "cube": cube, "collective_launch": ns})
    order = draw(st.permutations(range(sips)))
    some = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    entries, begin = [], 0
    for count in some:
        which = order[begin : begin + count]
        begin += count
        entries.append({"which": which, "sip": draw(sip), "link": draw(memory)})
    return [entry for entry in entries if entry["which"]]


@pytest.mark.parametrize("where", [pytest.param("h200x8", marks=pytest.mark.slow), "sip8"])
@settings(max_examples=examples(100))
@given(case=cases(largest=700), data=st.data())
def test_arrays_over_unlike_ranks_equal_the_replay(
    changed_topology: Callable[..., Topology], where: str, case: Case, data: st.DataObject
) -> None:
    machine = changed_topology(where, *data.draw(st.composite(unlike)(8)))
    order = data.draw(st.permutations(range(len(case.sips))))
    assert by_arrays(machine, case) == by_replay(machine, case, order)


SLOW: Sequence[dict[str, Any]] = (
    {"sip": {"pe": {"math": "3 GFLOP/s"}}},
    {"sip": {"pe": {"dma": "7 GB/s"}}},
    {"sip": {"pe": {"issue": "333 ns", "poll_interval": "7 ns"}}},
    {"sip": {"cube": {"hbm": {"bandwidth": "11 GB/s", "latency": "1 us"}}}},
    {"sip": {"pe": {"tcm": {"bandwidth": "9 GB/s", "latency": "77 ns"}}}},
    {"link": {"bandwidth": "3 GB/s"}},
    {"link": {"latency": "2 us"}},
)


@pytest.mark.parametrize("slow", SLOW)
@pytest.mark.parametrize(("n_slots", "backpressure"), [(1, "sleep"), (4, "poll")])
def test_many_pieces_are_skipped_exactly_beside_a_slow_rank(
    changed_topology: Callable[..., Topology],
    slow: dict[str, Any],
    n_slots: int,
    backpressure: Backpressure,
) -> None:
    queue = QueueSpec(Space.TCM, backpressure, n_slots, 64, 256, 16)
    machine = changed_topology("sip8", {"which": [1], **slow})
    for count in (3 * 16 * 150 - 17, 3 * 16 * 150):
        case = Case((0, 1, 2), count, queue, (1_234_567, 0, 77), 1)
        assert by_arrays(machine, case) == by_replay(machine, case, (2, 0, 1))


def test_skipping_is_what_makes_large_buffers_cheap(
    topology: Callable[[str], Topology], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []

    def counting(self: PeTimeline[int], ready: int, injection: int) -> int:
        sent.append(1)
        return send(self, ready, injection)

    send = PeTimeline.send
    monkeypatch.setattr(PeTimeline, "send", counting)
    queue = QueueSpec(Space.TCM, "sleep", 4, 4096, 256, 16)
    case = Case(tuple(range(8)), 1 << 24, queue, (0,) * 8, 8)
    by_arrays(topology("sip8"), case)
    assert 4 < len(sent) < 14 * 60  # of 14 steps of 2 048 messages each


@pytest.mark.parametrize(
    ("algorithm", "where", "fidelity", "count", "tier"),
    [
        (all_reduce, "sip8", "kernel", 9, "arrays"),
        (all_reduce, "routers", "kernel", 9, "replay"),
        (butterfly, "sip8", "kernel", 9, "replay"),
        (all_reduce, "sip8", "tile", 9, "live"),
        (all_reduce, "sip8", "kernel", 0, "replay"),  # nobody waits for anybody
    ],
)
def test_the_cheapest_tier_that_is_exact_is_taken(
    topology: Callable[[str], Topology],
    routers: Topology,
    monkeypatch: pytest.MonkeyPatch,
    algorithm: Callable[[Comm], None],
    where: str,
    fidelity: Fidelity,
    count: int,
    tier: str,
) -> None:
    taken: set[str] = set()

    def spy(target: str, name: str) -> None:
        original = getattr(channel, target)

        def call(*args: Any, **kwargs: Any) -> Any:
            taken.add(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(channel, target, call)

    spy("vectorised", "arrays")
    spy("Replay", "replay")
    spy("LiveComm", "live")
    machine = routers if where == "routers" else topology(where)
    run(machine, own_algorithm(algorithm), skewed(4), count, fidelity=fidelity)
    assert taken == {tier}


def test_a_known_pattern_of_starts_is_not_timed_again(
    topology: Callable[[str], Topology], monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[int] = []

    def counting(*args: Any, **kwargs: Any) -> Any:
        timed.append(1)
        return vectorised(*args, **kwargs)

    monkeypatch.setattr(channel, "vectorised", counting)
    engine = GraphEngine(topology("sip8"), enable_data=False)
    model, chosen, ends = CollectiveModel(engine), ring(), list[list[int]]()
    for base, skew in ((0, 0), (70_000_000, 0), (900_000_000, 1)):
        group = Collective(model, model.prepare(shape_of(chosen, range(4), 999)), SUM)
        commands = []
        for rank in (2, 0, 3, 1):
            host = Host(
                engine.loop, rank, engine.rank_owner(rank), base + skew * rank + 5 * rank, 64
            )
            storage = Storage(engine.devices[rank].hbm, 3996, "x", None)
            view = View(storage.buffer, dtypes.float32, (999,), (1,), 0)
            work = group.join(rank, [view], [view])
            command = Command("all_reduce", "collective", host, Stream("s", rank), work)
            commands.append(command)
            engine.submit(command)
        engine.loop.run()
        ends.append([(command.done.time or 0) - base for command in commands])
    assert len(timed) == 2
    assert ends[0] == ends[1] != ends[2]


# Bounds


def sent_bytes(outcome: Outcome) -> dict[int, int]:
    found: dict[int, int] = {}
    for record in outcome.engine.op_log.records:
        if record.category == "send":
            found[record.rank] = found.get(record.rank, 0) + record.args["bytes"]
    return found


@pytest.mark.parametrize("where", ["sip8", "routers"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("per_rank", [1, 100, 1000])
def test_every_rank_sends_the_least_that_it_must(
    topology: Callable[[str], Topology], routers: Topology, where: str, ranks: int, per_rank: int
) -> None:
    machine = routers if where == "routers" else topology(where)
    count = per_rank * ranks
    outcome = run(machine, ring(slot_size=1024), skewed(ranks), count, record=True)
    least = 2 * (ranks - 1) * per_rank * 4
    assert sent_bytes(outcome) == dict.fromkeys(range(ranks), least)


def test_a_size_that_does_not_divide_sends_each_chunk_twice_but_for_two(
    topology: Callable[[str], Topology],
) -> None:
    ranks, count = 4, 1001
    sizes = [251, 251, 251, 248]
    outcome = run(topology("sip8"), ring(slot_size=1024), skewed(ranks), count, record=True)
    assert sent_bytes(outcome) == {
        rank: 4 * (2 * count - sizes[(rank + 1) % ranks] - sizes[(rank + 2) % ranks])
        for rank in range(ranks)
    }


@pytest.mark.parametrize("machine", ["sip8", "torus4x4", "h200x8"])
@pytest.mark.parametrize("count", [1 << 10, 1 << 16, 1 << 22])
def test_nothing_is_faster_than_its_links(
    topology: Callable[[str], Topology], machine: str, count: int
) -> None:
    where = topology(machine)
    name = "ring_allreduce_nvlink" if machine == "h200x8" else "ring_allreduce_tcm"
    for ranks in (2, where.world_size):
        outcome = run(where, shipped_algorithm(name), [0] * ranks, count, data=False)
        link = where.machine.system.sips.network.bandwidth
        bound = link.duration_ps(2 * (ranks - 1) * (count // ranks) * 4)
        assert all(end is not None and end > bound for end in outcome.ends)


def test_a_send_and_its_receive_are_joined_and_in_order(
    topology: Callable[[str], Topology],
) -> None:
    for fidelity in ("kernel", "tile"):
        outcome = run(
            topology("sip8"),
            ring(slot_size=512),
            skewed(3),
            600,
            record=True,
            fidelity="tile" if fidelity == "tile" else "kernel",
        )
        records = outcome.engine.op_log.records
        sends = {record.flow: record for record in records if record.category == "send"}
        receives = {record.flow: record for record in records if record.category == "recv"}
        assert sends.keys() == receives.keys()
        assert 0 not in sends
        for flow, send in sends.items():
            assert send.start <= send.end
            assert receives[flow].end > send.start
            assert receives[flow].rank == (send.rank + 1) % 3


def two_groups(
    machine: Topology, groups: Sequence[Sequence[int]], fidelity: Fidelity, starts: Sequence[int]
) -> list[int]:
    """Returns when each rank of each group is done with an all-reduce of its group."""
    engine = GraphEngine(machine, enable_data=False, fidelity=fidelity)
    model, count, commands, kept = CollectiveModel(engine), 1 << 14, list[Command](), []
    for number, (sips, start) in enumerate(zip(groups, starts, strict=True)):
        group = Collective(model, model.prepare(shape_of(ring(), sips, count)), SUM)
        for rank, sip in enumerate(sips):
            who = 10 * number + rank
            begin = start + 7_000 * rank
            host = Host(engine.loop, who, engine.rank_owner(who), 0, 64)
            kept.append(Storage(engine.devices[sip].hbm, 4 * count, "x", None))
            view = View(kept[-1].buffer, dtypes.float32, (count,), (1,), 0)
            stream, gate = Stream("s", sip), Event("gate")
            stream.waits.append(gate)
            engine.loop.at(begin, engine.rank_owner(who), gate.settle, begin)
            work = group.join(rank, [view], [view])
            command = Command("all_reduce", "collective", host, stream, work)
            commands.append(command)
            engine.submit(command)
    engine.loop.run()
    assert not engine.network.claims
    return [command.done.time or 0 for command in commands]


@pytest.mark.parametrize("where", ["sip8", "h200x8"])
@pytest.mark.parametrize("later", [0, 1_000, 30_000_000, 60_000_000, 500_000_000])
def test_two_groups_at_once_share_their_links(
    topology: Callable[[str], Topology], where: str, later: int
) -> None:
    machine = topology(where)
    for groups in ([[0, 2], [1, 3]], [[0, 1, 2], [2, 1, 0]], [[0, 2, 4], [3, 1]]):
        starts = [0, later]
        shared = two_groups(machine, groups, "kernel", starts)
        # Timed alone and repeated when company comes, or on the network from the start: the same.
        assert shared == two_groups(machine, groups, "tile", starts)
        alone = [
            end
            for group, start in zip(groups, starts, strict=True)
            for end in two_groups(machine, [group], "kernel", [start])
        ]
        assert all(end >= by_itself for end, by_itself in zip(shared, alone, strict=True))
        if later == 500_000_000:
            assert shared == alone
        elif later <= 1_000 and where == "sip8":
            assert shared != alone


def test_a_live_algorithm_is_company_too(topology: Callable[[str], Topology]) -> None:
    # Where it sends is not known beforehand: it claims the links between all pairs.
    def unplannable(comm: Comm) -> None:
        comm.tl.fence()
        all_reduce(comm)

    def ends(fidelity: Fidelity) -> list[int]:
        engine = GraphEngine(topology("sip8"), enable_data=False, fidelity=fidelity)
        model, count, commands, kept = CollectiveModel(engine), 1 << 14, list[Command](), []
        for number, (chosen, sips) in enumerate(
            ((ring(), [0, 2, 4]), (own_algorithm(unplannable), [3, 1]))
        ):
            group = Collective(model, model.prepare(shape_of(chosen, sips, count)), SUM)
            for rank, sip in enumerate(sips):
                who = 10 * number + rank
                host = Host(engine.loop, who, engine.rank_owner(who), 5_000_000 * number, 64)
                kept.append(Storage(engine.devices[sip].hbm, 4 * count, "x", None))
                view = View(kept[-1].buffer, dtypes.float32, (count,), (1,), 0)
                work = group.join(rank, [view], [view])
                command = Command("all_reduce", "collective", host, Stream("s", sip), work)
                commands.append(command)
                engine.submit(command)
        engine.loop.run()
        return [command.done.time or 0 for command in commands]

    assert ends("kernel") == ends("tile")


def test_messages_larger_than_the_memory_of_one_pe_run_live(
    topology: Callable[[str], Topology],
) -> None:
    machine = topology("h200x8")
    tcm = machine.machine.system.sip.pe.tcm.capacity
    chosen = shipped_algorithm("ring_allreduce_nvlink")
    assert chosen.queue.slot_size > tcm  # one program stands for those of all PEs
    both(machine, chosen, skewed(2), 1 << 18)


def lines(
    machine: Topology, groups: Sequence[Sequence[int]], fidelity: Fidelity, starts: Sequence[int]
) -> list[list[int]]:
    """Returns when each rank of each group is done with each of three all-reduces in a row."""
    engine = GraphEngine(machine, enable_data=False, fidelity=fidelity)
    model, count, commands = CollectiveModel(engine), 1 << 13, list[list[Command]]()
    for number, (sips, start) in enumerate(zip(groups, starts, strict=True)):
        streams, kept = [Stream("s", sip) for sip in sips], []
        for turn in range(3):
            group = Collective(
                model, model.prepare(shape_of(ring(), sips, count)), SUM, line=number
            )
            for rank, sip in enumerate(sips):
                who = 10 * number + rank
                begin = start + 9_000 * ((5 * rank + turn) % 4)
                host = Host(engine.loop, who, engine.rank_owner(who), begin, 64)
                kept.append(Storage(engine.devices[sip].hbm, 4 * count, "x", None))
                view = View(kept[-1].buffer, dtypes.float32, (count,), (1,), 0)
                work = group.join(rank, [view], [view])
                command = Command("all_reduce", "collective", host, streams[rank], work)
                commands.append([command])
                engine.submit(command)
    engine.loop.run()
    assert not engine.network.claims
    return [[command.done.time or 0 for command in line] for line in commands]


@pytest.mark.parametrize("turn", range(3))
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_a_line_of_collectives_meets_company(
    topology: Callable[[str], Topology], turn: int, part: float
) -> None:
    machine = topology("sip8")
    launch = machine.machine.system.sip.collective_launch
    for groups in ([[0, 2, 4], [3, 1]], [[0, 1, 2, 3], [2, 1]], [[0, 1, 5], [0, 3]]):
        # Ranks leave one collective and enter the next at different times: then two of a line are
        # under way on the same links. That is when the other group comes.
        ends = lines(machine, groups[:1], "kernel", [0])
        here = sorted(end for (end,) in ends[turn * len(groups[0]) : (turn + 1) * len(groups[0])])
        assert here[0] < here[-1]
        later = here[0] + int(part * (here[-1] - here[0])) - launch
        planned = lines(machine, groups, "kernel", [0, later])
        assert planned == lines(machine, groups, "tile", [0, later])


def test_groups_on_links_of_their_own_do_not_notice_one_another(
    topology: Callable[[str], Topology],
) -> None:
    machine = topology("sip8")
    together = two_groups(machine, [[0, 1], [4, 5]], "kernel", [0, 0])
    assert together[:2] == together[2:] == two_groups(machine, [[0, 1]], "kernel", [0])
