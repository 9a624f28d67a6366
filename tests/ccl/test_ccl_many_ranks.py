"""What the cost of runs with many ranks rests on, each held equal to the way without it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.ccl.algorithms import dimension_wise, halving_doubling, ring
from kernbench.ccl.circles import circles_of, gather, gather_each
from kernbench.ccl.columns import Column
from kernbench.ccl.plan import Plan, Setting, plan_of
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.torch import cuda, device, empty
from kernbench.torch import distributed as dist

Program = Callable[[int], None]


def exchange(rank: int) -> None:
    """Sends to the next rank and receives from the one before."""
    ranks = dist.get_world_size()
    out, into = empty(64, device="cuda"), empty(64, device="cuda")
    operations = [
        dist.P2POp(dist.isend, out, (rank + 1) % ranks),
        dist.P2POp(dist.irecv, into, (rank - 1) % ranks),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def uneven(rank: int, times: int = 1) -> None:
    """Keeps a rank busy for a while that differs from rank to rank."""
    for _ in range(rank % 3 * times):
        empty(4096, device="cuda").add_(1)


def reduce_then_exchange(rank: int) -> None:
    dist.init_process_group("nccl")
    uneven(rank)
    dist.all_reduce(empty(1024, device="cuda"))
    exchange(rank)


def exchange_then_reduce(rank: int) -> None:
    dist.init_process_group("nccl")
    uneven(rank)
    exchange(rank)
    uneven(rank + 1, 3)
    dist.all_reduce(empty(1024, device="cuda"))
    exchange(rank)
    dist.all_reduce(empty(64, device="cuda"))


def apart(rank: int) -> None:
    """Exchanges messages beside an all-reduce, so that they do delay each other."""
    dist.init_process_group("nccl")
    uneven(rank)
    work = dist.all_reduce(empty(1 << 13, device="cuda"), async_op=True)
    exchange(rank)
    work.wait()


def ended(program: Program, ranks: int, *overrides: str, **dials: Any) -> tuple[list[int], int]:
    """Runs a program; returns when each rank's device is done, and the number of steps taken."""
    spec = RunSpec(topology="ring1024", overrides=overrides, data=False, **dials)
    ends = [0] * ranks
    with RuntimeContext(spec) as ctx:

        def worker(rank: int) -> None:
            program(rank)
            cuda.synchronize(device("cuda"))
            ends[rank] = ctx.processes[rank].host.clock

        ctx.multiprocessing.spawn(worker, nprocs=ranks)
        return ends, ctx.engine.loop.steps()


@pytest.mark.parametrize("program", [reduce_then_exchange, exchange_then_reduce, apart])
@pytest.mark.parametrize("count", [9, 16])
def test_collectives_and_messages_take_as_long_as_over_the_network(
    program: Program, count: int
) -> None:
    size = f"system.sips.count={count}"
    fast, _ = ended(program, 9, size, fidelity="kernel", shadow=True)
    assert fast == ended(program, 9, size, fidelity="tile")[0]


@pytest.mark.parametrize("program", [reduce_then_exchange, exchange_then_reduce])
def test_messages_beside_a_collective_that_is_over_for_them_leave_it_alone(
    program: Program,
) -> None:
    few, many = (
        ended(program, ranks, f"system.sips.count={ranks}")[1] / ranks for ranks in (8, 64)
    )
    assert many <= 1.1 * few, "an all-reduce over the network has steps for each of its messages"


TORUS = (
    "system.sips.network.kind=torus",
    "system.sips.count=12",
    "system.sips.network.shape=[4, 3]",
    "defaults.algorithm=dimension_wise",
    "algorithms.dimension_wise.channels=1",
)


@pytest.mark.parametrize("elements", [40, 1024, 9000])
@pytest.mark.parametrize("backpressure", ["sleep", "poll"])
def test_stages_take_as_long_on_arrays_as_live(elements: int, backpressure: str) -> None:
    def program(rank: int) -> None:
        dist.init_process_group("nccl")
        for _ in range(2):
            uneven(rank)
            dist.all_reduce(empty(elements, device="cuda"))

    dials = (*TORUS, f"defaults.backpressure={backpressure}")
    fast, steps = ended(program, 12, *dials, shadow=True)
    assert steps < 12 * 60
    assert fast == ended(program, 12, *dials, fidelity="tile")[0]


def planned(algorithm: Callable[[Any], None], *grid: int) -> Plan:
    plan = plan_of(algorithm, Setting("all_reduce", int(np.prod(grid)), 0, grid))
    assert plan is not None
    return plan


def test_the_plan_of_a_ring_holds_a_number_for_each_step_and_each_rank() -> None:
    plan = planned(ring.all_reduce, 64)
    rank, step = np.arange(64), np.arange(2 * 63)[:, None]
    phase = np.where(step < 63, step, step - 64)
    assert (plan.send == (rank - phase) % 64).all()
    assert (plan.receive == (rank - phase - 1) % 64).all()
    assert (plan.reduce == (step < 63)).all()
    for table in (plan.send, plan.receive, plan.to, plan.source, plan.span, plan.reduce):
        low, high = np.lib.array_utils.byte_bounds(table)
        assert high - low <= (64 + 2 * 63) * table.itemsize


def test_stages_end_where_peers_or_spans_change() -> None:
    plan = planned(dimension_wise.all_reduce, 4, 3)
    assert [len(stage.send) for stage in plan.stages] == [3, 4, 3]
    assert [int(stage.span[0, 0]) for stage in plan.stages] == [3, 1, 3]
    assert [plan.in_stages, plan.in_step, plan.gathers] == [True, False, True]
    assert [len(stage.send) for stage in planned(ring.all_reduce, 5).stages] == [8]


def test_a_plan_gathers_if_nobody_can_end_before_all_have_begun() -> None:
    assert planned(halving_doubling.all_reduce, 8).gathers
    assert planned(ring.all_reduce, 5).gathers
    row = planned(dimension_wise.all_reduce, 4, 3).stages[0]
    assert not row.gathers, "each row of the grid is a circle of its own"


@given(
    st.integers(1, 12).flatmap(
        lambda ranks: st.lists(
            st.one_of(
                st.permutations(range(ranks)),
                st.integers(1, ranks).map(lambda far: [(r + far) % ranks for r in range(ranks)]),
                st.integers(0, 3).map(
                    lambda bit: [r ^ 1 << bit if r ^ 1 << bit < ranks else r for r in range(ranks)]
                ),
            ),
            min_size=1,
            max_size=4,
        )
    )
)
def test_ranks_know_of_those_whose_word_has_come_to_them(stages: list[list[int]]) -> None:
    ranks = len(stages[0])
    circles, known = [], [{rank} for rank in range(ranks)]
    for before in stages:
        circle, longest = circles_of(before)
        circles.append(circle)
        for _ in range(longest - 1):  # as many steps as it takes to go round the longest circle
            known = [known[rank] | known[before[rank]] for rank in range(ranks)]
    everybody = all(len(each) == ranks for each in known)

    assert gather(circles) == everybody
    assert gather_each(circles) == everybody


@given(
    st.integers(2, 5).flatmap(
        lambda ranks: st.lists(
            st.one_of(
                st.integers(-1, 3),
                st.lists(st.integers(-1, 3), min_size=ranks, max_size=ranks),
                st.sampled_from(["same", "left", "right"]),
            ),
            max_size=7,
        ).map(lambda rows: (ranks, rows))
    )
)
def test_a_column_gives_back_its_rows(given_rows: tuple[int, list[Any]]) -> None:
    ranks, rows = given_rows
    column, dense = Column(ranks), list[Any]()
    last = np.zeros(ranks, np.int64)
    for row in rows:
        moved = {"same": last, "left": np.append(last[1:], 2), "right": np.append(3, last[:-1])}
        value = moved[row] if isinstance(row, str) else row
        if not isinstance(value, int):
            value = last = np.array(value)
        column.append(value)
        dense.append(np.broadcast_to(value, ranks).tolist())
    assert column.table(np.int64).tolist() == dense
    assert [column.of(rank) for rank in range(ranks)] == [
        [row[rank] for row in dense] for rank in range(ranks)
    ]
