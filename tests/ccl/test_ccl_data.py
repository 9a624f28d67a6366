"""What a collective does to bytes, and when."""

from collections.abc import Callable

import numpy as np
import pytest
from ccl_machine import Outcome, own_algorithm, ring, run, skewed

from kernbench.ccl.algorithms.ring_allreduce import all_reduce
from kernbench.ccl.plan import Comm
from kernbench.des import DeadlockError
from kernbench.memory import UninitialisedReadError, View, dtypes
from kernbench.sim_engine.dials import Fidelity
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import Topology

FIDELITIES = pytest.mark.parametrize("fidelity", ["kernel", "tile", "functional"])


@pytest.fixture(scope="session")
def sip8(topology: Callable[[str], Topology]) -> Topology:
    return topology("sip8")


def scale_on(rank: int) -> Callable[[int, View], None]:
    def change(who: int, view: View) -> None:
        if who == rank:
            view.write()[...] *= 2

    return change


@FIDELITIES
@pytest.mark.parametrize("scaled", [0, 1, 2])
@pytest.mark.parametrize("starts", [[0, 9_000_000, 1], [9_000_000, 0, 0], [5, 5, 5]])
@pytest.mark.parametrize("late", [[], [1]])
def test_a_rank_may_change_its_result_at_once_and_others_do_not_see_it(
    sip8: Topology, fidelity: Fidelity, scaled: int, starts: list[int], late: list[int]
) -> None:
    if fidelity == "functional":
        starts, late = [0, 0, 0], []
    outcome = run(
        sip8,
        ring(slot_size=64),
        starts,
        50,
        dtype=dtypes.int32,
        fidelity=fidelity,
        after=scale_on(scaled),
        late=late,
    )
    total = np.sum(outcome.inputs, axis=0)
    for rank, output in enumerate(outcome.outputs):
        np.testing.assert_array_equal(output, total * (2 if rank == scaled else 1))


@FIDELITIES
def test_out_of_place_leaves_the_input_alone(sip8: Topology, fidelity: Fidelity) -> None:
    starts = [0] * 4 if fidelity == "functional" else skewed(4)
    outcome = run(sip8, ring(), starts, 77, out_of_place=True, fidelity=fidelity)
    inside = run(sip8, ring(), starts, 77, fidelity=fidelity)
    outcome.same(inside)


def test_the_order_in_which_ranks_join_changes_nothing(sip8: Topology) -> None:
    starts = skewed(8)
    inputs = [run(sip8, ring(), starts, 1000, seed=seed) for seed in range(4)]
    assert len({tuple(outcome.ends) for outcome in inputs}) == 1


def faults(outcome: Outcome) -> list[tuple[int, BaseException]]:
    return [(rank, error) for rank, host in enumerate(outcome.hosts) for error in host.faults]


@pytest.mark.parametrize("out_of_place", [False, True])
def test_m5_an_input_that_nobody_wrote_is_its_ranks_fault(
    sip8: Topology, out_of_place: bool
) -> None:
    outcome = run(sip8, ring(), skewed(3), 8, unwritten=[1], out_of_place=out_of_place)
    ((rank, error),) = faults(outcome)
    assert rank == 1
    assert isinstance(error, UninitialisedReadError)
    lines = str(error).splitlines()
    assert lines[:2] == [
        "[M5] 8 of 8 elements of x1 were never written",
        "  first unwritten element 0, last 7 (of the tensor as read, shape (8,))",
    ]
    assert lines[2].startswith("  allocated at ")
    assert lines[3] == "  nothing was issued that writes to it"
    assert lines[4].startswith("  all_reduce was issued at ")
    assert lines[5] == (
        "  hint: write them first, or make the tensor with zeros() instead of empty()"
    )
    assert len(lines) == 6


def test_m5_live_the_others_wait_for_the_rank_at_fault(
    sip8: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[tuple[int, str]] = []
    fail = GraphEngine.fail

    def spy(self: GraphEngine, command: object, error: Exception) -> None:
        fail(self, command, error)  # type: ignore[arg-type]
        failed.append((command.host.rank, str(error).splitlines()[0]))  # type: ignore[attr-defined]

    monkeypatch.setattr(GraphEngine, "fail", spy)
    with pytest.raises(DeadlockError) as caught:
        run(sip8, ring(), skewed(3), 8, unwritten=[1], fidelity="tile")
    assert failed == [(1, "[M5] 8 of 8 elements of x1 were never written")]
    assert {task.name for task, _ in caught.value.waits} == {"all_reduce on rank 2"} | {
        "all_reduce on rank 0"
    }


def test_an_algorithm_that_breaks_on_one_rank_is_that_ranks_fault(
    sip8: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[int] = []
    monkeypatch.setattr(
        GraphEngine, "fail", lambda self, command, error: failed.append(command.host.rank)
    )

    def broken(comm: Comm) -> None:
        tile = comm.tl.load(comm.buffer.run(0, 4))
        if comm.rank == 1:
            raise ZeroDivisionError
        comm.tl.send(tile, 1)

    outcome = run(sip8, own_algorithm(broken), [0, 0], 4)
    assert failed == [1]
    assert all(end is not None for end in outcome.ends)


def test_an_algorithm_that_breaks_while_it_is_recorded_says_so_in_the_call(sip8: Topology) -> None:
    def broken(comm: Comm) -> None:
        all_reduce(comm)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(sip8, own_algorithm(broken), [0, 0], 4)


def test_functional_no_time_passes_however_the_algorithm_runs(sip8: Topology) -> None:
    def tiles(comm: Comm) -> None:
        n, whole = comm.world_size, comm.buffer.run(0, 8)
        total = mine = comm.tl.load(whole)
        for _ in range(n - 1):
            comm.tl.send(mine, (comm.rank + 1) % n)
            mine = comm.tl.receive((comm.rank - 1) % n)
            total = total + mine
        comm.tl.store(whole, total)

    for algorithm in (tiles, all_reduce):
        outcome = run(
            sip8, own_algorithm(algorithm), [0] * 3, 8, dtype=dtypes.int32, fidelity="functional"
        )
        assert outcome.ends == [0, 0, 0]
        assert outcome.engine.loop.now == 0
        assert (outcome.outputs == np.sum(outcome.inputs, axis=0)).all()
