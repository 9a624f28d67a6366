"""What a collective takes by itself, as `auto` asks for it: also long ones, and groups alike."""

from collections.abc import Callable

import pytest

from kernbench.ccl.alone import TooLongError, TooManyCallsError, time_about, time_alone
from kernbench.ccl.config import Chosen, choose, load_ccl, shipped_ccl_file
from kernbench.ccl.estimate import Estimator
from kernbench.ccl.tuner import Choices
from kernbench.topology import Topology

MiB = 1 << 20


def named(name: str, machine: Topology) -> Chosen:
    path = shipped_ccl_file()
    return choose(load_ccl(path), path, name, machine.machine.system)


@pytest.mark.parametrize(
    ("name", "operation", "messages", "error"),
    [
        ("chain", "broadcast", 4096, 0.02),
        # The number of its chunks grows with the root of the size, so its time is not quite affine.
        ("double_binary_tree", "all_reduce", 4096, 0.1),
        ("pairwise", "all_to_all", 4096, 0.01),
    ],
)
def test_two_sizes_tell_the_time_of_a_larger_one(
    topology: Callable[[str], Topology], name: str, operation: str, messages: int, error: float
) -> None:
    machine, sips = topology("sip8"), tuple(range(8))
    chosen = named(name, machine)

    def time(messages: int) -> float:
        return time_about(machine, chosen, operation, sips, 64 * MiB, messages=messages)

    exact, about = time_alone(machine, chosen, operation, 8, 64 * MiB), time(messages)
    assert isinstance(about, float), "simulated at its own size, in whole picoseconds"
    assert abs(about / exact - 1) <= error
    assert time(1 << 20) == exact


def test_a_long_one_is_tried_at_its_own_size(topology: Callable[[str], Topology]) -> None:
    machine, sips = topology("sip8"), tuple(range(8))
    chosen = named("chain", machine)

    def time(calls: int) -> float:
        return time_about(machine, chosen, "broadcast", sips, 16 * MiB, messages=1024, calls=calls)

    assert time(1 << 20) == time_alone(machine, chosen, "broadcast", 8, 16 * MiB)
    assert isinstance(time(2), float), "given up, and told from two smaller sizes"
    with pytest.raises(TooManyCallsError):
        time_alone(machine, chosen, "broadcast", 8, 16 * MiB, calls=2)


@pytest.mark.parametrize("messages", [64, 1 << 20])
def test_who_takes_too_long_is_given_up(topology: Callable[[str], Topology], messages: int) -> None:
    machine, sips = topology("sip8"), tuple(range(8))
    chosen = named("chain", machine)

    def time(most: float | None) -> float:
        return time_about(machine, chosen, "broadcast", sips, 4 * MiB, messages=messages, most=most)

    exact = time(None)
    assert time(exact + 1) == exact
    with pytest.raises(TooLongError):
        time(0.9 * exact)


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
