"""The pytest plugin: four lines are enough, and nothing may be left behind."""

import pytest

from kernbench.testing import Kernbench
from kernbench.testing.harness import LeftoverError

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
    assert ctx.spec["system"]["sips"]["count"] == 2
    assert len(ctx.devices) == 2
