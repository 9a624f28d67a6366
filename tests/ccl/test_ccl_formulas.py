"""Plans as formulas: what rank 0 does tells it of all ranks, on rings and toruses of equal SIPs."""

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.ccl import estimate, rails, waves
from kernbench.ccl.algorithms import (
    chain,
    dimension_wise,
    double_binary_tree,
    halving_doubling,
    nccl_chains,
    pairwise,
    ring,
)
from kernbench.ccl.config import choose, load_ccl, shipped_ccl_file
from kernbench.ccl.estimate import Estimator
from kernbench.ccl.plan import NOTHING, Algorithm, Comm, RefusedError, Setting, formula_of, plan_of
from kernbench.ccl.waves import Events
from kernbench.topology import Topology, load_topology, ways
from kernbench.topology.alike import alike_of
from kernbench.topology.links import coordinates

MESH = "system.sip.cubes={shape: [2, 2], link: {bandwidth: 30 GB/s, latency: 7 ns}}"

extents = st.one_of(
    st.tuples(st.integers(3, 40)),
    st.tuples(st.integers(1, 7), st.integers(1, 7)),
    st.tuples(st.integers(1, 4), st.integers(3, 4), st.integers(1, 3)),
)
shapes = extents.filter(lambda shape: 2 not in shape and prod(shape) > 2)


def machine(shape: tuple[int, ...], *overrides: str) -> Topology:
    kind = "ring" if len(shape) == 1 else "torus"
    torus = [] if kind == "ring" else [f"system.sips.network.shape={list(shape)}"]
    count = [f"system.sips.count={prod(shape)}", f"system.sips.network.kind={kind}"]
    return load_topology("ring1024", [*count, *torus, *overrides]).topology_obj


def switch(count: int) -> Topology:
    kind = "system.sips.network.kind=switch"
    return load_topology("ring1024", [f"system.sips.count={count}", kind]).topology_obj


def moved(rank: int, by: int, shape: tuple[int, ...]) -> int:
    """Returns the rank that is as far from a rank as another one is from rank 0."""
    found, stride = 0, 1
    places = zip(coordinates(rank, shape), coordinates(by, shape), shape, strict=True)
    for here, far, extent in places:
        found += (here + far) % extent * stride
        stride *= extent
    return found


@settings(max_examples=40)
@given(shapes, st.sampled_from(["all_reduce", "reduce_scatter", "all_gather"]), st.integers(0, 5))
def test_a_formula_is_the_plan_of_every_rank(
    shape: tuple[int, ...], operation: str, channel: int
) -> None:
    grid = tuple(extent for extent in shape if extent > 1)
    algorithm = getattr(ring if len(grid) == 1 else dimension_wise, operation)
    setting = Setting(operation, prod(grid), 0, grid, channel, 6)
    formula, plan = formula_of(algorithm, setting), plan_of(algorithm, setting)
    assert formula is not None
    assert plan is not None
    assert formula.cuts == plan.cuts
    first = formula.of(0)
    for rank in range(plan.world_size):
        theirs = plan.of(rank)
        assert len(theirs) == len(first)
        for one, other in zip(first, theirs, strict=True):
            assert other.to == moved(rank, one.to, grid)
            assert other.source == moved(rank, one.source, grid)
            assert (other.combine, other.span) == (one.combine, one.span)
            assert (other.send == NOTHING) == (one.send == NOTHING)
            assert (other.receive == NOTHING) == (one.receive == NOTHING)


def _to_one(comm: Comm) -> None:
    """All other ranks send to rank 0, which is not as far from each."""
    n, send = comm.world_size, (comm.rank != 0) - 1  # `NOTHING` on rank 0
    comm.exchange(send=send, to=0, receive=NOTHING, source=(comm.rank + 1) % n)


def _from_a_table(comm: Comm) -> None:
    """Ranks do not all send."""
    n = comm.world_size
    table = np.where(np.arange(n) == 1, 0, NOTHING)
    there = {"to": (comm.rank + 1) % n, "source": (comm.rank - 1) % n}
    comm.exchange(send=table, receive=NOTHING, **there)


@pytest.mark.parametrize("algorithm", [_to_one, _from_a_table])
def test_ranks_that_differ_are_no_formula(algorithm: Algorithm) -> None:
    assert formula_of(algorithm, Setting("all_gather", 5, 0, (5,))) is None


@settings(max_examples=60)
@given(
    st.one_of(shapes, st.integers(3, 17)),
    st.sampled_from(["ring", "ring_two_way", "dimension_wise", "direct", "halving_doubling"]),
    st.sampled_from(["all_reduce", "reduce_scatter", "all_gather"]),
    st.sampled_from([1000, 1 << 16, 1 << 22, 1 << 27]),
    st.booleans(),
)
def test_an_estimate_from_one_rank_is_that_from_all(
    shape: tuple[int, ...] | int, name: str, operation: str, nbytes: int, mesh: bool
) -> None:
    topology = switch(shape) if isinstance(shape, int) else machine(shape, *[MESH] * mesh)
    path = shipped_ccl_file()
    chosen = choose(load_ccl(path), path, name, topology.machine.system)
    if not chosen.implements(operation):
        operation = "all_gather"
    call = chosen, operation, nbytes, tuple(range(topology.world_size))
    one, every = Estimator(topology), Estimator(topology)
    told = one.estimate(*call), one.slot_limit(*call)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimate, "alike_in", lambda *_: None)
        assert told == (every.estimate(*call), every.slot_limit(*call))


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(shapes, st.tuples(st.just(8), st.integers(2, 6), st.integers(1, 4))),
    st.booleans(),
    st.integers(0, 1 << 20),
    st.sampled_from(["all_reduce", "all_gather", "broadcast", "all_to_all"]),
    st.sampled_from([1000, 1 << 22, 1 << 27]),
)
def test_an_estimate_of_ways_at_once_is_that_of_each(
    shape: tuple[int, ...], nodes: bool, seed: int, operation: str, nbytes: int
) -> None:
    rng = np.random.default_rng(seed)
    topology = machine(shape)
    if nodes:
        spines = f"system.sips.network.spine.count={rng.integers(1, 5)}"
        count = f"system.sips.count={8 * int(rng.integers(1, 7))}"
        topology = load_topology("h200x8_x4_nodes", [count, spines]).topology_obj
    every = topology.world_size
    sips = tuple(rng.permutation(every)[: rng.integers(2, every + 1)].tolist())
    if rng.integers(2):
        sips = tuple(range(every))
    path = shipped_ccl_file()
    loaded = load_ccl(path)
    for name in rng.permutation(list(loaded.value.algorithms))[:8].tolist():
        chosen = choose(loaded, path, name, topology.machine.system)
        if not chosen.implements(operation):
            continue
        told = [_told(topology, chosen, operation, nbytes, sips)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(estimate, "ways_of", ways._one_by_one)
            patch.setattr(rails, "ways_of", ways._one_by_one)
            rails.rails_of.cache_clear()
            told.append(_told(topology, chosen, operation, nbytes, sips))
        rails.rails_of.cache_clear()
        assert told[0] == told[1]


def _told(topology: Topology, *call: Any) -> Any:
    """Returns what a new estimator tells; None if the group is refused."""
    try:
        return Estimator(topology).estimate(*call), Estimator(topology).slot_limit(*call)
    except RefusedError:
        return None


@settings(max_examples=40)
@given(
    st.sampled_from(
        [
            ("broadcast", chain.broadcast),
            ("reduce", chain.reduce),
            ("all_reduce", double_binary_tree.all_reduce),
            ("all_reduce", halving_doubling.all_reduce),
            ("all_reduce", nccl_chains.all_reduce),
            ("all_to_all", pairwise.all_to_all),
        ]
    ),
    st.integers(2, 20),
    st.integers(1, 3),
    st.integers(1, 9),
)
def test_waves_are_the_earliest_that_messages_allow(
    what: tuple[str, Algorithm], ranks: int, channels: int, messages: int
) -> None:
    operation, algorithm = what
    for channel in range(channels):
        setting = Setting(operation, ranks, 0, (ranks,), channel, channels, messages)
        plan = plan_of(algorithm, setting)
        assert plan is not None
        quick = Events.of([plan], ranks)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(waves, "_without_gaps", lambda *_: None)
            settled = Events.of([plan], ranks)
            patch.setattr(waves, "_ROUNDS", 0)
            events = Events.of([plan], ranks)
        assert np.array_equal(quick.wave, events.wave)
        assert np.array_equal(settled.wave, events.wave)
        last: dict[int, int] = {}  # wave of the latest exchange of each lane
        exchanges = zip(events.lane, events.wave, events.matched, strict=True)
        for lane, wave, matched in exchanges:
            sent = events.wave[matched] if matched >= 0 else 0
            assert wave == max(last.get(lane, -1) + 1, sent)
            last[lane] = wave


def test_a_chain_of_many_ranks_goes_on_without_gaps() -> None:
    plan = plan_of(chain.broadcast, Setting("broadcast", 3000, 7, (3000,), 0, 1, 20))
    assert plan is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waves, "_one_by_one", None)
        events = Events.of([plan], 3000)
    assert events.wave.max() == plan.parts + 3000 - 3


@given(st.lists(st.integers(0, 1 << 40) | st.integers(0, 9), max_size=50))
def test_numbers_are_sorted_by_their_digits(numbers: list[int]) -> None:
    found = np.array(numbers, np.int64)
    assert np.array_equal(waves._sorted(found), np.argsort(found, kind="stable"))


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 12, 13, 32, 47])
@pytest.mark.parametrize("operation", ["all_reduce", "reduce_scatter", "all_gather"])
def test_partners_recorded_at_once_are_those_of_each_rank(ranks: int, operation: str) -> None:
    setting = Setting(operation, ranks, 0, (ranks,))
    algorithm, begun = getattr(halving_doubling, operation), list[Any]()

    def counted(comm: Comm) -> None:
        begun.append(comm.rank)
        algorithm(comm)

    def each(comm: Comm) -> None:
        assert int(comm.rank) >= 0
        algorithm(comm)

    together, apart = (plan_of(one, setting) for one in (counted, each))
    assert together is not None
    assert apart is not None
    assert [together.of(rank) == apart.of(rank) for rank in range(ranks)] == [True] * ranks
    assert len(begun) <= 4  # as places round a ring, as an array of all ranks, and two of these


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 12, 33])
@pytest.mark.parametrize("channel", [0, 1])
def test_a_tree_recorded_at_once_is_that_of_each_rank(ranks: int, channel: int) -> None:
    setting = Setting("all_reduce", ranks, 0, (ranks,), channel, 2, 5)

    def each(comm: Comm) -> None:
        assert int(comm.rank) >= 0
        double_binary_tree.all_reduce(comm)

    together, apart = (plan_of(one, setting) for one in (double_binary_tree.all_reduce, each))
    assert together is not None
    assert apart is not None
    parents = 0
    for rank in range(ranks):
        assert together.of(rank) == apart.of(rank)
        up = [step for step in together.of(rank) if step.combine == "copy"]
        parents += len({step.to for step in up})
        # All five messages go up, and down to each of at most two ranks below.
        assert sum(step.send != NOTHING for step in up) == (0 if rank == 0 else together.parts)
        assert len({step.to for step in together.of(rank)} - {step.to for step in up}) <= 2
    assert parents == ranks - 1


def test_sips_that_differ_do_not_stand_for_each_other() -> None:
    slow = "system.sips.changed=[{which: [3], link: {latency: 1 us}}]"
    for topology in (machine((8,), slow), machine((2, 4))):
        assert alike_of(topology) is None
    assert alike_of(machine((8,))) is not None
