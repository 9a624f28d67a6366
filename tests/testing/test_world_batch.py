"""The fixture `world_batch`, as a suite of its own uses it."""

import pytest

from kernbench.testing.modes import Inline

pytest_plugins = ["pytester"]

CASES = """
import os
import warnings

import numpy as np
import pytest
import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.testing import dist_case

@dist_case
def add(ctx, rank, value=1.0, then=""):
    dist.init_process_group("nccl")
    if rank == 0:
        print("on", ctx.spec.topology, ctx.spec.seed)
    x = torch.full((4,), value, device="cuda")
    dist.all_reduce(x)
    if then == "leaks":
        dist.new_group([0, 1])
    if then == "fails":
        assert x.tolist() == [0.0] * 4
    if then == "skips":
        pytest.skip("not for these values")
    if then == "warns" and rank == 0:
        warnings.warn("careful", RuntimeWarning)

@dist_case(name="on_sip8", machine="sip8")
def named(ctx, rank):
    assert ctx.spec.topology == "sip8"
"""


def run(pytester: pytest.Pytester, tests: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(test_suite=CASES + tests)
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:xdist", *options)


def one(call: str, mark: str = "") -> str:
    return f"\n{mark}\ndef test_it(request, world_batch):\n    {call}\n"


ADD = "world_batch.run(request, case='add', world_size=4"


def test_a_case_passes_and_gives_its_result(pytester: pytest.Pytester) -> None:
    call = f"assert {ADD}, value=np.float32(2)).sim_ps > 0"
    run(pytester, one(call)).assert_outcomes(passed=1)


def test_a_failure_shows_the_ranks_report_and_no_source_of_ours(
    pytester: pytest.Pytester,
) -> None:
    result = run(pytester, one(f"{ADD}, then='fails')"))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E  *AssertionError: [[]Rank *[]] AssertionError: assert [[]4.0, 4.0, 4.*[]] == *",
            "E  *At index 0 diff: 4.0 != 0.0*",
            "E  *Traceback of your code*",
            "E  *test_suite.py*, line *, in add",
            "test_suite.py:*: AssertionError",
            "*Captured world stdout call*",
            "on sip8 1234",
        ]
    )
    assert "worlds.py" not in str(result.stdout)


def test_a_leak_is_a_failure_of_its_own_kind(pytester: pytest.Pytester) -> None:
    result = run(pytester, one(f"{ADD}, then='leaks')"))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E  *LeakError: the case has passed, and left one thing behind:",
            "E  *process group G1{0-1}, held by ranks 0-1, made at *test_suite.py:*: dist.*",
        ]
    )


def test_leaks_may_be_warnings_or_nothing(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNBENCH_LEAKS", "warn")
    result = run(pytester, one(f"{ADD}, then='leaks')"), "-Wdefault")
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*LeakWarning: the case has passed, and left one thing behind:"])
    monkeypatch.setenv("KERNBENCH_LEAKS", "off")
    run(pytester, one(f"{ADD}, then='leaks')")).assert_outcomes(passed=1, warnings=0)


def test_skips_are_those_of_the_test(pytester: pytest.Pytester) -> None:
    tests = one(f"{ADD}, then='skips')") + (
        "\ndef test_many(request, world_batch):\n"
        "    world_batch.run(request, case='add', world_size=9)\n"
    )
    result = run(pytester, tests, "-rs")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(
        [
            "SKIPPED [[]1[]] test_suite.py:*: not for these values",
            "SKIPPED [[]1[]] test_suite.py:*: world_size=9, and the machine has 8 devices",
        ]
    )


def test_a_warning_of_a_case_is_one_of_the_test(pytester: pytest.Pytester) -> None:
    result = run(pytester, one(f"{ADD}, then='warns')"), "-Wdefault")
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*test_suite.py:*: RuntimeWarning: careful"])
    strict = one(f"{ADD}, then='warns')", "@pytest.mark.filterwarnings('error')")
    result = run(pytester, strict)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E  *AssertionError: [[]Rank 0[]] RuntimeWarning: careful"])


NOWHERE = """
@dist_case(machine="nomachine")
def nowhere(ctx, rank):
    pass
"""


def test_mistakes_are_refused_before_anything_runs(pytester: pytest.Pytester) -> None:
    tests = "".join(
        f"\ndef test_{number}(request, world_batch):\n    {call}\n"
        for number, call in enumerate(
            [
                "world_batch.run(request, case='ad', world_size=4)",
                f"{ADD}, vaule=1.0)",
                f"{ADD}, value=[{{1}}])",
                "world_batch.run(request, case='add', world_size=True)",
                "world_batch.run(None, case='add', world_size=4)",
                "world_batch.run(request, case='nowhere', world_size=2)",
            ]
        )
    )
    result = run(pytester, NOWHERE + tests)
    result.assert_outcomes(failed=6)
    result.stdout.fnmatch_lines(
        [
            "E  *UsageError: no case is called 'ad'",
            "E  *hint: did you mean `add`?",
            "E  *OperandError: case add cannot be called *: got an unexpected keyword argument *",
            "E  *OperandError: argument value[[]0[]] of the case cannot go to another process: *",
            "E  *UsageError: world_batch.run(world_size=True): expected a positive number of ranks",
            "E  *UsageError: world_batch.run(request, ...): expected the fixture `request` *None*",
            "E  *ConfigError: [[]F11[]] nomachine: 1 problem",
        ]
    )
    assert "kernbench/topology" not in str(result.stdout)
    assert "kernbench/testing" not in str(result.stdout)
    assert "on sip8" not in str(result.stdout)


def test_the_session_chooses_machine_and_seed(pytester: pytest.Pytester) -> None:
    tests = one(f"{ADD})\n    world_batch.run(request, case='on_sip8', world_size=1)")
    result = run(pytester, tests, "--kb-machine=h200x8", "--kb-seed=7", "-rP")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["on h200x8 7"])
    result = run(pytester, tests, "--kb-machine=h20x8")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*did you mean `h200x8`?*"])


def test_an_interruption_shows_the_line_of_the_test(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(runner: Inline, request: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Inline, "run", interrupted)
    pytester.makepyfile(test_suite=CASES + one(f"{ADD})"))
    result = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", "-p", "no:xdist", no_reraise_ctrlc=True
    )
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*test_suite.py:*: KeyboardInterrupt"])


def test_a_simulated_limit(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNBENCH_SIM_TIMEOUT", "1us")
    result = run(pytester, one(f"{ADD})"))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E  *[[]K10[]] the run passed 1 us of simulated time*"])


def test_a_rank_may_end_the_session(pytester: pytest.Pytester) -> None:
    tests = """
@dist_case
def ends(ctx, rank, by):
    if by == "pytest":
        pytest.exit("enough")
    raise KeyboardInterrupt

@pytest.mark.parametrize("by", ["{by}", "none"])
def test_it(request, world_batch, by):
    world_batch.run(request, case="ends", world_size=2, by=by)
"""
    result = run(pytester, tests.replace("{by}", "pytest"))
    result.stdout.fnmatch_lines(["*Exit: enough*"])
    assert result.ret == pytest.ExitCode.INTERRUPTED
    with pytest.raises(KeyboardInterrupt):
        run(pytester, tests.replace("{by}", "keys"))


def test_the_fixture_kernbench_leaves_no_ranges(pytester: pytest.Pytester) -> None:
    tests = """
def test_range(kernbench):
    kernbench.spawn(lambda rank: torch.cuda.nvtx.range_push("step"), nprocs=2)
"""
    result = run(pytester, tests)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["E  *LeftoverError: *range 'step' not ended by ranks 0-1*"])
