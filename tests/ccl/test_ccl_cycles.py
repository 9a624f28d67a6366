"""What repeats itself is skipped, and nobody can tell: times and records are those of a replay."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import numpy as np
import pytest
from ccl_machine import shipped_algorithm
from ccl_operations import Case, Issued, even, issue
from ccl_shipped import as_run, shipped
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.ccl import cycles, replay
from kernbench.ccl.layout import Cuts, Layout, turns
from kernbench.ccl.model import CollectiveModel
from kernbench.ccl.operations import OPERATIONS
from kernbench.ccl.plan import Exchange, Steps
from kernbench.ccl.prepared import CollectiveShape
from kernbench.ccl.runs import runs
from kernbench.hw.queue import Queue
from kernbench.memory import dtypes
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import Record
from kernbench.sim_engine.shadow import ShadowError
from kernbench.topology import Topology, load_topology

NEVER = 1 << 60
ALGORITHMS = {
    "chain": ("broadcast", "reduce"),
    "direct": ("broadcast", "gather", "scatter", "all_gather", "all_to_all", "reduce_scatter"),
    "ring_two_way": ("all_reduce", "all_gather"),
    "double_binary_tree": ("all_reduce", "broadcast"),
    "halving_doubling": ("all_reduce",),
    "dimension_wise": ("all_gather",),
    "pairwise": ("all_to_all",),
    "two_level": ("all_reduce", "all_gather", "broadcast"),
}
KINDS = [(name, operation) for name, names in ALGORITHMS.items() for operation in names]


@contextmanager
def looking(long: int) -> Iterator[None]:
    """Looks for repetitions in runs of so many turns and more."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (cycles, replay):
            patch.setattr(module, "LONG", long)
        patch.setattr(replay, "MANY", 5 * long)
        yield


@pytest.fixture(scope="module")
def machines(make_topology: Callable[..., Topology]) -> list[Topology]:
    """A ring, a torus, a switch, nodes, and routers whose neighbours share a link."""
    ends = [("sip0", "a"), ("sip2", "a"), ("sip1", "b"), ("sip3", "b"), ("a", "b")]
    edges = [{"ends": list(pair), "latency": f"{7 * n + 5} ns"} for n, pair in enumerate(ends)]
    small = ["system.sips.count=8", "system.sips.network.node.size=4"]
    nodes = load_topology("h200x8_x4_nodes", small)
    return [
        make_topology(4, {"kind": "ring"}),
        make_topology(8, {"kind": "torus", "shape": [4, 2]}),
        make_topology(6, {"kind": "switch"}),
        make_topology(4, {"kind": "graph", "edges": edges}),
        nodes.topology_obj,
    ]


class Log:
    """A run of collectives on one engine, and what is known of it afterwards."""

    def __init__(self, topology: Topology, *, record: bool = True, shadow: bool = False) -> None:
        self.engine = GraphEngine(
            topology, enable_data=False, record="full" if record else "summary", shadow=shadow
        )
        self.model = CollectiveModel(self.engine)
        self.issued: list[Issued] = []

    def issue(self, name: str, case: Case, *overrides: str, **more: Any) -> None:
        topology = self.engine.topology
        chosen = shipped(name, topology, *overrides)
        case = as_run(case, chosen, topology, 4)
        self.issued.append(issue(self.model, chosen, case, **more))

    def run(self) -> tuple[list[list[int | None]], list[Record]]:
        self.engine.loop.run()
        ends = [issued.ends for issued in self.issued]
        assert all(end is not None for row in ends for end in row)
        records = [
            (r.name, r.rank, r.track, r.start, r.end, r.args) for r in self.engine.op_log.records
        ]
        return ends, records  # type: ignore[return-value]


def skewed(ranks: int, seed: int, spread: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(spread) for _ in range(ranks)]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=3),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=3),
    st.integers(1, 5),
)
def test_runs_are_the_turns_of_an_exchange(
    leaving: list[tuple[int, int]], arriving: list[tuple[int, int]], n_slots: int
) -> None:
    out = [size for size, count in leaving for _ in range(count)]
    into = [size for size, count in arriving for _ in range(count)]
    expected = [
        (None if a is None else out[a], None if b is None else into[b])
        for a, b in turns(len(out), len(into), n_slots)
    ]
    found = [
        (a, b)
        for a, b, count in runs(tuple(leaving), tuple(arriving), n_slots)
        for _ in range(count)
    ]
    assert found == expected


@given(st.integers(0, 100), st.integers(1, 5), st.integers(1, 9), st.integers(1, 12))
def test_sizes_are_those_of_the_pieces(count: int, parts: int, align: int, piece: int) -> None:
    layout = Layout(np.array([[count]]), Cuts(parts), align)
    for chunk in range(parts):
        expected = [size for _, size in layout.pieces(0, chunk, 1, piece)]
        sizes = layout.sizes_of(0, chunk, 1, piece)
        assert [size for size, many in sizes for _ in range(many)] == expected


@settings(max_examples=examples(60), deadline=None)
@given(
    st.integers(0, 4),
    st.sampled_from(KINDS),
    st.integers(1, 4),
    st.sampled_from(["sleep", "poll"]),
    st.integers(1, 12_000),
    st.integers(0, 1 << 20),
    st.sampled_from([1, 100_000, 5_000_000]),
    st.booleans(),
)
def test_skips_change_no_time_and_no_record(
    machines: list[Topology],
    machine: int,
    kind: tuple[str, str],
    slots: int,
    wait: str,
    size: int,
    seed: int,
    spread: int,
    record: bool,
) -> None:
    topology, (name, operation) = machines[machine], kind
    overrides = [
        f"defaults.n_slots={slots}",
        f"defaults.backpressure={wait}",
        "defaults.slot_size=512 B",
    ]
    case = even(operation, topology.world_size, size)
    starts = skewed(case.ranks, seed, spread)

    def outcome(long: int, *, shadow: bool = False) -> Any:
        with looking(long):
            log = Log(topology, record=record, shadow=shadow)
            log.issue(name, case, *overrides, starts=starts)
            return log.run()

    replayed = outcome(NEVER)
    assert outcome(5) == replayed
    assert outcome(5, shadow=True) == replayed


SMALL = ("defaults.n_slots=4", "defaults.slot_size=4 KiB", "defaults.vc_chunk_size=256 B")
"""Slots that make many messages of few bytes."""


def test_the_last_message_of_an_exchange_is_recorded_when_it_leaves() -> None:
    # With one slot, all turns of an exchange are one run, and a skip may reach its end.
    topology = load_topology("sip8", ["system.sips.count=3"]).topology_obj
    queue = ["defaults.slot_size=512 B", "defaults.n_slots=1"]

    def outcome(long: int, size: int) -> Any:
        with looking(long):
            log = Log(topology)
            log.issue("direct", even("reduce_scatter", 3, size), *queue)
            return log.run()

    for messages in range(20, 30):
        size = 128 * messages
        assert outcome(4, size) == outcome(NEVER, size)


@pytest.fixture
def messages_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[Log], int]:
    """Runs what was issued, and returns how many messages were replayed."""
    posted = [0]
    post = Queue.post

    def counted(self: Queue, *args: Any) -> None:
        posted[0] += 1
        post(self, *args)

    monkeypatch.setattr(Queue, "post", counted)

    def run(log: Log) -> int:
        posted[0] = 0
        log.run()
        return posted[0]

    return run


@pytest.mark.parametrize(
    ("name", "operation"),
    [("chain", "broadcast"), ("direct", "all_to_all"), ("direct", "gather"), ("direct", "scatter")],
)
def test_twice_the_size_costs_no_more_messages(
    topology: Callable[[str], Topology],
    messages_of: Callable[[Log], int],
    name: str,
    operation: str,
) -> None:
    def messages(nbytes: int) -> int:
        log = Log(topology("sip8"), record=False)
        size = nbytes // 4 // (8 if operation == "all_to_all" else 1)
        log.issue(name, even(operation, 8, size), *SMALL, starts=skewed(8, 1, 10_000_000))
        return messages_of(log)

    most = messages(1 << 29)
    assert most < (1 << 29) // 4096 * 7 // 30
    assert messages(1 << 30) < most + (1 << 29) // 4096 * 7 // 100


def test_a_rate_that_settles_late_is_found_soon(messages_of: Callable[[Log], int]) -> None:
    # Messages queue up at some senders until all slots are full; from then on turns are the same.
    ranks, slots = 32, 16
    log = Log(load_topology("h200x8_x4_nodes").topology_obj, record=False)
    starts = skewed(ranks, 1, 10_000_000)
    log.issue("two_level", even("all_gather", ranks, 1 << 26), starts=starts)

    # In each exchange slots are filled, ranks are at most as many turns apart at its end, and few
    # turns pass between.
    assert messages_of(log) < (ranks - 1) * ranks * (2 * slots + 8)


def two_at_once(topology: Topology, seed: int, late: int, *, long: int, shadow: bool) -> Any:
    with looking(long):
        log = Log(topology, shadow=shadow)
        first, second = [0, 1, 2, 3], [1, 2]
        queue = ["defaults.slot_size=512 B", "defaults.n_slots=3"]
        log.issue(
            "direct",
            even("all_to_all", 4, 9_000),
            *queue,
            sips=first,
            starts=skewed(4, seed, 900_000),
        )
        starts = [late + start for start in skewed(2, seed, 90_000)]
        log.issue("chain", even("broadcast", 2, 4_000), *queue, sips=second, starts=starts)
        return log.run()


@pytest.mark.parametrize("machine", range(5))
@pytest.mark.parametrize("late", [0, 3_000_000, 10_000_000, 40_000_000])
def test_company_ends_a_skip_where_it_comes(
    machines: list[Topology], machine: int, late: int
) -> None:
    for seed in range(2):
        replayed = two_at_once(machines[machine], seed, late, long=NEVER, shadow=False)
        for shadow in (False, True):
            skipped = two_at_once(machines[machine], seed, late, long=5, shadow=shadow)
            assert skipped == replayed


@pytest.mark.parametrize("machine", range(5))
def test_a_limit_of_simulated_time_is_not_skipped(machines: list[Topology], machine: int) -> None:
    def told(long: int, limit: int) -> tuple[int, int, Sequence[int | None]]:
        with looking(long):
            log = Log(machines[machine])
            log.issue("direct", even("all_to_all", 4, 20_000), "defaults.slot_size=512 B")
            at: list[int] = []
            log.engine.loop.limit = limit
            log.engine.loop.on_limit = lambda: at.append(log.engine.loop.now)
            log.run()
            return at[0], log.engine.loop.now, log.issued[0].ends

    for limit in (3_000_000, 5_000_000, 7_000_001):
        assert told(5, limit) == told(NEVER, limit)


@pytest.mark.parametrize("machine", ["sip8", "h200x8"])
def test_a_wrong_skip_is_found_by_the_shadow(
    topology: Callable[[str], Topology], monkeypatch: pytest.MonkeyPatch, machine: str
) -> None:
    left = cycles._turns_left
    monkeypatch.setattr(cycles, "_turns_left", lambda *states: 2 * left(*states))
    log = Log(topology(machine), shadow=True)
    size = (8 if machine == "sip8" else 1000) << 14
    log.issue("direct", even("all_to_all", 8, size), *SMALL, starts=skewed(8, 1, 10_000_000))
    with pytest.raises(ShadowError):
        log.run()


@settings(max_examples=40)
@given(
    st.sampled_from([kind for kind in KINDS if kind[0] not in ("dimension_wise", "two_level")]),
    st.sampled_from([2, 4, 7]),
    st.lists(st.integers(0, 3000), min_size=7, max_size=7),
    st.data(),
)
def test_exchanges_that_repeat_are_those_with_the_same_turns(
    kind: tuple[str, str], ranks: int, sizes: list[int], data: st.DataObject
) -> None:
    name, operation = kind
    machine = load_topology("ring1024", [f"system.sips.count={ranks}"]).topology_obj
    rows: tuple[Any, ...] = tuple(sizes[:ranks])
    if OPERATIONS[operation].blocks == "one":
        rows = rows[:1]
    if OPERATIONS[operation].blocks == "pairs":
        rows = tuple(tuple(sizes[(rank + to) % 7] for to in range(ranks)) for rank in range(ranks))
    sips = tuple(range(ranks))
    shape = CollectiveShape(shipped_algorithm(name), operation, sips, rows, dtypes.float32)
    channels = CollectiveModel(GraphEngine(machine, enable_data=False)).prepare(shape).channels
    channel = data.draw(st.sampled_from(channels))
    plan, rank = channel.plan, data.draw(st.sampled_from(sips))
    assert plan is not None
    steps = plan.of(rank)
    if len(steps) < 2:
        return
    one = replay.Replay(plan, channel.layout, channel.costs.each, {}, None, lambda *_: None)
    before = data.draw(st.integers(0, len(steps) - 2))
    now = data.draw(st.integers(before + 1, len(steps) - 1))

    def told(step: Exchange) -> Any:
        ends = step.to, step.source, step.combine, step.send < 0, step.receive < 0
        return *ends, one.runs_of(rank, step)

    pairs = zip(steps[before:], steps[now:], strict=False)
    same = list(takewhile(lambda pair: told(pair[0]) == told(pair[1]), pairs))
    assert one.repeated(rank, before, now) == len(same)
    assert list(Steps(plan.columns(rank))) == list(steps)
    assert Steps(plan.columns(rank))[now] == steps[now]
    assert list(Steps(plan.columns(rank))[before:]) == list(steps[before:])
