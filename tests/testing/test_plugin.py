"""The pytest plugin: four lines are enough, and nothing may be left behind."""

import re
import warnings

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.errors import UsageError
from kernbench.testing import Kernbench, plugin
from kernbench.testing.leaks import LeftoverError

pytest_plugins = ["pytester"]

FOUR_LINES = """
import kernbench.torch as torch
def worker(rank): x = torch.ones(3); assert x.sum().item() == 3.0
def test_it(kernbench):
    kernbench.spawn(worker, nprocs=8, topology="sip8")
"""


def test_a_users_test_needs_four_lines(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(FOUR_LINES)
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_a_ccl_yaml_of_the_working_directory_is_named(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(): pass")
    assert "algorithms" not in str(pytester.runpytest_inprocess("-p", "no:cacheprovider").stdout)
    file = pytester.path / "ccl.yaml"
    file.write_text("")
    shown = pytester.runpytest_inprocess("-p", "no:cacheprovider").stdout
    names = "kernbench.spawn(..., ccl=FILE) names others"
    said = f"kernbench: algorithms are those of {file}; {names}"
    shown.fnmatch_lines([said])
    quiet = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-q").stdout
    assert str(quiet).count(said) == str(shown).count(said) == 1


def test_a_failing_worker_fails_the_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(FOUR_LINES.replace("3.0", "7.0"))
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*SpawnException*"])


def test_what_is_left_behind_is_found() -> None:
    harness = Kernbench()
    ctx = harness.context()
    loop = ctx.engine.loop
    loop.at(10, loop.owner(1), lambda: None)
    with pytest.raises(LeftoverError, match="queued events"):
        harness.check_nothing_left()
    harness.check_nothing_left()


def test_spawn_gives_the_context_back(kernbench: Kernbench) -> None:
    ctx = kernbench.spawn(lambda rank: None, nprocs=2, overrides=["system.sips.count=2"])
    assert ctx.engine.topology.spec["system"]["sips"]["count"] == 2
    assert len(ctx.devices) == 2


MISTAKES = """
import pytest
import kernbench.torch as torch
import kernbench.torch.distributed as dist

def race(rank):
    dist.init_process_group("nccl")
    x = torch.full((1,), float(rank), device="cuda")
    if rank:
        dist.send(x, 0)
    else:
        first = dist.recv(x)
        dist.recv(x)
        assert first == 1, "lost the race"

def fails(rank):
    raise OSError("of the worker")

@pytest.mark.parametrize("method", ["spawn", "explore"])
@pytest.mark.parametrize("dials", [
    {"topology": "nope"}, {"fidelity": "fast"}, {"overrides": ["system.nope=1"]}, {"nprocs": 99},
])
def test_dials(kernbench, method, dials):
    getattr(kernbench, method)(fails, **dials)

def test_context(kernbench):
    kernbench.context(topology="nope")

def test_explored(kernbench):
    kernbench.explore(fails, nprocs=2)

def test_race(kernbench):
    kernbench.explore(race, nprocs=3)
"""


def test_failures_show_no_source_but_the_users(pytester: pytest.Pytester) -> None:
    file = pytester.makepyfile(MISTAKES)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:xdist")
    result.assert_outcomes(failed=11)
    places = re.findall(r"^(\S+\.py):\d+: ", str(result.stdout), re.MULTILINE)
    assert set(places) == {file.name}
    result.stdout.fnmatch_lines(["*kernbench.spawn(..., schedule=?2, 1?) runs the second one*"])


def test_a_failure_ends_with_the_command_that_explains_its_code(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import kernbench.torch as torch

        def worker(rank):
            torch.empty(2, device="cuda").tolist()

        def test_of_ranks(kernbench):
            kernbench.spawn(worker, nprocs=2)

        def test_of_main(kernbench):
            with kernbench.context():
                worker(0)
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:xdist")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "E   *SpawnException: ranks 0-1 failed",
            "E  *replay: seed 0, schedule 0",
            "E  *explain: kernbench explain M5",
            "*test_of_main*",
            "E   *UninitialisedReadError: ?M5? *",
            "E  *hint: write them first, *",
            "E  *explain: kernbench explain M5",
        ]
    )


def test_an_exploration_has_schedules_of_its_own(kernbench: Kernbench) -> None:
    with pytest.raises(UsageError) as caught:
        kernbench.explore(lambda rank: None, schedule=[2, 1])
    assert str(caught.value) == (
        "explore(schedule=(2, 1)): expected none, as it tries many\n"
        "  hint: spawn(..., schedule=...) runs a single one"
    )


def test_a_schedule_of_an_exploration_can_be_run_again(kernbench: Kernbench) -> None:
    took: list[int] = []

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.full((1,), float(rank), device="cuda")
        if rank:
            dist.send(x, 0)
        else:
            took.extend([dist.recv(x), dist.recv(x)])

    kernbench.spawn(worker, nprocs=3, schedule=[2, 1])
    assert took == [2, 1]


LEAKS = """
import pytest
import kernbench.torch.distributed as dist
from kernbench.ranks.world import GroupLeakWarning

def leaking(rank):
    dist.init_process_group("nccl")
    dist.new_group([0, 1], group_desc="evaluation")

def failing(rank):
    leaking(rank)
    raise KeyError("no data")

def scoped(rank):
    dist.init_process_group("nccl")
    with pytest.raises(KeyError), dist.group_scope():
        failing_inside()
    assert len(dist.live_groups()) == 1

def failing_inside():
    dist.new_group([0, 1])
    raise KeyError("no data")

def test_leaks(kernbench):
    kernbench.spawn(leaking, nprocs=2)

def test_fails(kernbench):
    kernbench.spawn(failing, nprocs=2)

def test_scoped(kernbench):
    kernbench.spawn(scoped, nprocs=2)

def test_expected(kernbench):
    with pytest.warns(GroupLeakWarning):
        kernbench.spawn(leaking, nprocs=2)

@pytest.mark.filterwarnings("ignore::kernbench.ranks.world.GroupLeakWarning")
def test_allowed(kernbench):
    kernbench.spawn(leaking, nprocs=2)
"""


def test_groups_that_are_left_fail_the_test_with_the_list(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(LEAKS)
    with warnings.catch_warnings():
        warnings.resetwarnings()  # as in a project that does not make them errors
        result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=3, failed=2)
    result.stdout.fnmatch_lines(
        [
            "*GroupLeakWarning: [[]C17] process groups were made and not destroyed: 1",
            "*group G1{0-1}, held by ranks 0-1, made at *dist.new_group(*",
            "*KeyError: 'no data'",
        ]
    )


def test_an_interrupt_between_lines_can_be_shown() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    def again() -> None:
        try:
            interrupted()
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt from error

    interrupted.__code__ = interrupted.__code__.replace(co_linetable=b"")
    with pytest.raises(KeyboardInterrupt) as found:
        again()
    with pytest.raises((TypeError, RuntimeError)):
        found.getrepr()  # pytest alone
    plugin.pytest_keyboard_interrupt(found)
    assert "KeyboardInterrupt" in str(found.getrepr())
