"""What a collective takes by itself, as `auto` asks for it: also long ones, and groups alike."""

from collections.abc import Callable

import pytest

from kernbench import caches
from kernbench.ccl.alone import Budget, OverBudgetError, TooLongError, time_alone
from kernbench.ccl.config import Chosen, choose, load_ccl, shipped_ccl_file
from kernbench.ccl.estimate import Estimator
from kernbench.ccl.trials import Case, Trial, timed
from kernbench.ccl.tuner import Choices
from kernbench.memory import dtypes
from kernbench.topology import Topology

MiB = 1 << 20


def named(name: str, machine: Topology) -> Chosen:
    path = shipped_ccl_file()
    return choose(load_ccl(path), path, name, machine.machine.system)


def test_who_takes_too_long_or_costs_too_much_is_given_up(
    topology: Callable[[str], Topology],
) -> None:
    machine = topology("sip8")
    chosen = named("chain", machine)

    def time(budget: Budget | None = None, most: int | None = None) -> int:
        return time_alone(machine, chosen, "broadcast", 8, 4 * MiB, budget=budget, most=most)

    exact, ample = time(), Budget(1 << 20)
    assert time(most=exact + 1) == time(ample) == exact
    spent = (1 << 20) - ample.left
    assert spent > 128 * 7, "128 messages to each of 7 ranks"
    with pytest.raises(TooLongError):
        time(most=exact * 9 // 10)
    short = Budget(spent - 1)
    with pytest.raises(OverBudgetError):
        time(short)
    assert short.left == 0
    assert time(Budget(spent + 1)) == exact


@pytest.mark.parametrize("name", ["halving_doubling", "chain", "direct_links"])
def test_every_way_to_time_ranks_spends_a_budget(
    topology: Callable[[str], Topology], name: str
) -> None:
    """On a network of its own, without a network, and on one with flows that share links."""
    machine = topology("sip8")
    chosen = named(name, machine)
    operation = "broadcast" if name == "chain" else "all_reduce"
    with pytest.raises(OverBudgetError):
        time_alone(machine, chosen, operation, 8, MiB, budget=Budget(16))


@pytest.mark.parametrize(
    ("name", "operation"),
    [("double_binary_tree", "all_reduce"), ("direct", "all_reduce"), ("pairwise", "all_to_all")],
)
def test_what_was_recorded_before_makes_nothing_cheaper(
    topology: Callable[[str], Topology], name: str, operation: str
) -> None:
    """Their channels meet: else a choice would depend on what the process did before."""
    machine = topology("sip8")
    chosen = named(name, machine)
    time_alone(machine, chosen, operation, 8, MiB)
    left = []
    for _ in range(2):
        budget = Budget(1 << 20)
        time_alone(machine, chosen, operation, 8, MiB, budget=budget)
        left.append(budget.left)
    assert left[0] == left[1]
    caches.clear()
    budget = Budget(1 << 20)
    time_alone(machine, chosen, operation, 8, MiB, budget=budget)
    assert budget.left == left[0] < 1 << 20


@pytest.mark.parametrize("calls", [0, 1, 16, 63, 64, 1000])
@pytest.mark.parametrize(("operation", "size"), [("broadcast", MiB), ("all_reduce", 64)])
def test_a_budget_may_be_too_small_for_any_trial(
    topology: Callable[[str], Topology], operation: str, size: int, calls: int
) -> None:
    machine, sips = topology("sip8"), tuple(range(8))
    overrides = "defaults.algorithm=auto", f"choice.calls={calls}"
    chosen = Choices(None, overrides, machine).choose(operation, size, sips)
    if not calls:
        estimated = Choices(None, (*overrides, "choice.ranks=0"), machine)
        assert chosen.name == estimated.choose(operation, size, sips).name


@pytest.mark.parametrize("operation", ["broadcast", "all_to_all", "gather"])
def test_a_choice_keeps_to_its_budget_and_is_right(
    topology: Callable[[str], Topology], operation: str
) -> None:
    """1 GiB: with 65,536 calls, one of the candidates would be timed at its own size, or none."""
    machine, sips, size = topology("sip8"), tuple(range(8)), 1 << 30
    spent: list[int] = []

    class Counted(Trial):
        def step(self, case: Case, size: int, budget: Budget, most: float) -> None:
            before = budget.left
            super().step(case, size, budget, most)
            spent.append(before - budget.left)

    estimator = Estimator(machine)

    def estimate(chosen: Chosen, nbytes: int) -> float:
        found = estimator.estimate(chosen, operation, nbytes, sips)
        assert found is not None
        return found

    path = shipped_ccl_file()
    names = [name for name, spec in load_ccl(path).value.algorithms.items() if spec.auto]
    every = [one for one in (named(name, machine) for name in names) if one.implements(operation)]
    trials = [Counted(one, estimate(one, size)) for one in every]
    case = Case(machine, operation, sips, size, dtypes.float32, estimate)
    left = timed(case, trials, 1 << 16, lambda _: 1.02)
    assert sum(spent) <= 1 << 16
    best = min(left, key=lambda trial: trial.time)
    assert best.chosen.name == ("chain" if operation == "broadcast" else "direct_links")
    assert len(left) < len(every)


@pytest.mark.parametrize("operation", ["broadcast", "all_reduce"])
def test_one_walk_stands_for_all(topology: Callable[[str], Topology], operation: str) -> None:
    """Of rings for each of 8 NICs, the first takes about as long as all, and far fewer calls.

    Its chain from rank 0 goes between nodes once less than the others, of 4 times.
    """
    machine = topology("h200x8_x4_nodes")
    chosen, spent, times = named("nccl_simple", machine), [], []
    for one_walk in (False, True):
        budget = Budget(1 << 20)
        times.append(
            time_alone(machine, chosen, operation, 32, MiB, budget=budget, one_walk=one_walk)
        )
        spent.append((1 << 20) - budget.left)
    assert (0.97 if operation == "broadcast" else 1) * times[0] <= times[1] <= times[0]
    assert operation != "broadcast" or 4 * spent[1] < spent[0]
    # Without walks, it is the same.
    alone = [
        time_alone(machine, chosen, operation, 8, MiB, one_walk=one_walk)
        for one_walk in (False, True)
    ]
    assert alone[0] == alone[1]


def test_a_group_of_other_devices_takes_its_own_time(topology: Callable[[str], Topology]) -> None:
    machine = topology("sip8")
    ring = named("ring", machine)
    near, far = (
        time_alone(machine, ring, "all_reduce", 2, MiB, sips=sips) for sips in ((6, 7), (0, 4))
    )
    assert near == time_alone(machine, ring, "all_reduce", 2, MiB)
    assert near < far


@pytest.mark.parametrize(
    ("name", "one", "other", "same"),
    [
        ("torus4x4", (0, 1, 2, 3), (8, 9, 10, 11), True),
        ("torus4x4", (0, 1, 2, 3), (0, 1, 4, 5), False),
        ("torus4x4", (0, 1, 2, 3), (0, 2, 1, 3), False),
        ("sip8", (0, 1, 2), (5, 6, 7), True),
        ("h200x8_x4_nodes", (0, 8, 16), (3, 11, 19), True),
        ("h200x8_x4_nodes", (0, 8, 16), (3, 11, 4), False),
    ],
)
def test_one_choice_serves_groups_that_are_alike(
    topology: Callable[[str], Topology],
    name: str,
    one: tuple[int, ...],
    other: tuple[int, ...],
    same: bool,
) -> None:
    machine = topology(name)
    estimator = Estimator(machine)
    assert (estimator.like(one) == estimator.like(other)) is same
    choices = Choices(None, ("defaults.algorithm=auto",), machine)
    first, second = (choices.choose("all_gather", MiB, sips) for sips in (one, other))
    assert (first is second) is same
    if same:
        times = {
            time_alone(machine, first, "all_gather", len(sips), MiB, sips=sips)
            for sips in (one, other)
        }
        assert len(times) == 1


def test_a_file_that_says_nothing_of_choices_has_estimates_alone(
    topology: Callable[[str], Topology],
) -> None:
    machine, sips = topology("sip8"), tuple(range(8))
    overrides = "defaults.algorithm=auto", "choice.ranks=0"
    chosen = Choices(None, overrides, machine).choose("broadcast", 4 * MiB, sips)
    timed = Choices(None, overrides[:1], machine).choose("broadcast", 4 * MiB, sips)
    estimate = Estimator(machine).estimate
    least, ours = (estimate(one, "broadcast", 4 * MiB, sips) for one in (chosen, timed))
    assert least is not None
    assert ours is not None
    assert least < ours
    times = [time_alone(machine, one, "broadcast", 8, 4 * MiB) for one in (chosen, timed)]
    assert times[1] < times[0]
