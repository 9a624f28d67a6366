"""Plans that are recorded as places round a ring are those of ranks, one after another."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ccl_shipped import shipped

from kernbench.ccl.algorithms import direct, halving_doubling, ring, two_shot
from kernbench.ccl.columns import Around
from kernbench.ccl.estimate import Estimator
from kernbench.ccl.plan import Algorithm, AlgorithmError, Comm, Setting, plan_of
from kernbench.topology import Topology

TABLES = ("send", "to", "receive", "source", "reduce", "span")


def by_rank(algorithm: Algorithm) -> Algorithm:
    """Returns an algorithm that needs numbers of its rank, and so is recorded rank by rank."""

    def numbered(comm: Comm) -> None:
        assert int(comm.rank) >= 0
        algorithm(comm)

    return numbered


@pytest.mark.parametrize("channel", [0, 1, 5])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 13])
@pytest.mark.parametrize(
    ("operation", "algorithm"),
    [
        ("all_reduce", ring.all_reduce),
        ("all_gather", ring.all_gather),
        ("reduce_scatter", ring.reduce_scatter),
        ("all_gather", direct.all_gather),
        ("reduce_scatter", direct.reduce_scatter),
        ("all_to_all", direct.all_to_all),
        ("all_reduce", two_shot.all_reduce),
    ],
)
def test_a_plan_of_places_is_the_plan_of_ranks(
    operation: str, algorithm: Algorithm, ranks: int, channel: int
) -> None:
    setting = Setting(operation, ranks, 0, (ranks,), channel, 6, 9)
    together, apart = plan_of(algorithm, setting), plan_of(by_rank(algorithm), setting)
    assert together is not None
    assert apart is not None
    assert together.cuts == apart.cuts
    for name in TABLES:
        tables = getattr(together, name), getattr(apart, name)
        assert np.array_equal(*tables), name
    assert (together.in_step, together.in_stages) == (apart.in_step, apart.in_stages)
    assert together.pairs == apart.pairs


def _mixed(comm: Comm) -> None:
    """Steps round a ring, with others between them that have numbers, and chunks in a row."""
    n = comm.world_size
    after, before = (comm.rank + 1) % n, (comm.rank - 1) % n
    for step in range(3):
        comm.exchange(send=(comm.rank + step) % n, to=after, receive=comm.rank, source=before)
        if step:
            comm.exchange(send=step, to=after, receive=step + 1, source=before, combine="reduce")
        comm.exchange(send=comm.rank, to=before, receive=(comm.rank - step) % n, source=after)
        comm.exchange(send=0, to=after, receive=0, source=before, span=n)


def test_steps_of_places_and_of_numbers_stay_in_their_order() -> None:
    setting = Setting("all_reduce", 7, 0, (7,))
    together, apart = plan_of(_mixed, setting), plan_of(by_rank(_mixed), setting)
    assert together is not None
    assert apart is not None
    for name in TABLES:
        assert np.array_equal(getattr(together, name), getattr(apart, name)), name


def test_a_chunk_that_does_not_exist_is_refused_after_many_that_do() -> None:
    def wrong(comm: Comm) -> None:
        for _ in range(3):
            comm.exchange(send=comm.rank, to=comm.rank, receive=comm.rank, source=comm.rank)
        comm.exchange(send=comm.rank + 1, to=comm.rank, receive=comm.rank, source=comm.rank)

    with pytest.raises(AlgorithmError, match="exchange"):
        plan_of(wrong, Setting("all_reduce", 4, 0, (4,)))


def test_a_plan_of_a_ring_takes_room_for_steps_and_ranks_not_their_product() -> None:
    plan = plan_of(ring.all_reduce, Setting("all_reduce", 3000, 0, (3000,)))
    assert plan is not None
    for name in TABLES:
        low, high = np.lib.array_utils.byte_bounds(getattr(plan, name))
        assert high - low <= 3 * 3000 * 2, name


@pytest.mark.parametrize(
    "use",
    [
        lambda rank: rank == 0,
        lambda rank: rank < 4,
        lambda rank: rank % 4,
        lambda rank: rank // 2,
        lambda rank: rank * 2,
        lambda rank: rank ^ 1,
        lambda rank: 8 + (rank + 1) % 8,
        lambda rank: (rank + 1) % 8 + 1,
        range,
        lambda rank: [0] * 8 if rank else 0,
        lambda rank: np.where(rank == 0, 1, 2),
        np.asarray,
        lambda rank: np.add(rank, 1),
        lambda rank: rank in (3, 4),
        lambda rank: {rank: 0},
    ],
)
def test_places_do_nothing_that_they_do_not_know(use: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError):
        use(Around(8))


def test_algorithms_that_do_more_with_ranks_are_recorded_as_before() -> None:
    plan = plan_of(halving_doubling.all_reduce, Setting("all_reduce", 8, 0, (8,)))
    assert plan is not None
    assert plan.to[0].tolist() == [rank ^ (4 if plan.to[0][0] == 4 else 1) for rank in range(8)]


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather"])
@pytest.mark.parametrize("ring_name", ["ring", "ring_two_way"])
def test_few_steps_of_a_large_ring_tell_what_many_do(
    topology: Callable[[str], Topology],
    monkeypatch: pytest.MonkeyPatch,
    ring_name: str,
    operation: str,
) -> None:
    machine = topology("ring1024")
    chosen, sips = shipped(ring_name, machine), tuple(range(1024))
    many = Estimator(machine).estimate(chosen, operation, 1 << 26, sips)
    monkeypatch.setattr("kernbench.ccl.waves._SAMPLED", 1 << 10)
    few = Estimator(machine).estimate(chosen, operation, 1 << 26, sips)
    assert few == pytest.approx(many, rel=0.001)
