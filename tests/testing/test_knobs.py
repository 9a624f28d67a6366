"""Options and variables of a session of tests."""

import re

import pytest

from kernbench.testing.knobs import Knobs

pytest_plugins = ["pytester"]

PREFIX = "KERNBENCH_"


def read(config: pytest.Config, **variables: str) -> Knobs:
    return Knobs.of({PREFIX + name: value for name, value in variables.items()}, config)


def test_without_variables_every_knob_has_its_default(pytestconfig: pytest.Config) -> None:
    knobs = Knobs.of({"PATH": "x"}, pytestconfig)
    assert knobs == Knobs(
        mode="inline", seed=1234, machine=None, batch_size=16, batch_retry=True,
        pool_timeout_s=90.0, max_time_ps=0, pool_timing=False, leaks="fail", essential=True,
        max_procs=None,
    )  # fmt: skip


def test_every_variable_is_read(pytestconfig: pytest.Config) -> None:
    knobs = read(
        pytestconfig, TEST_MODE="pool", TEST_BATCH_SIZE="3", TEST_BATCH_RETRY="0",
        POOL_TIMEOUT_SEC="1.5", SIM_TIMEOUT="10 ms", POOL_TIMING="1", POOL_REUSE_GROUPS="0",
        LEAKS="warn", TEST_ESSENTIAL="0", MAX_PROCS="2",
    )  # fmt: skip
    assert knobs == Knobs(
        mode="pool", batch_size=3, batch_retry=False, pool_timeout_s=1.5, max_time_ps=10**10,
        pool_timing=True, leaks="warn", essential=False, max_procs=2,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("TEST_MODE", "fast", "expected inline, pool, batch, got 'fast'"),
        ("TEST_MODE", "", "expected inline, pool, batch, got ''"),
        ("TEST_BATCH_SIZE", "0", "expected an integer from 1, got '0'"),
        ("TEST_BATCH_SIZE", "1.5", "expected an integer from 1, got '1.5'"),
        ("TEST_BATCH_RETRY", "yes", "expected 0 or 1, got 'yes'"),
        ("POOL_TIMEOUT_SEC", "0", "expected seconds above 0, got '0'"),
        ("POOL_TIMEOUT_SEC", "nan", "expected seconds above 0, got 'nan'"),
        ("POOL_TIMEOUT_SEC", "inf", "expected seconds above 0, got 'inf'"),
        ("SIM_TIMEOUT", "10", "expected a time with its unit, such as 10ms, got '10'"),
        ("SIM_TIMEOUT", "-3ms", "expected a time with its unit, such as 10ms, got '-3ms'"),
        ("LEAKS", "on", "expected fail, warn, off, got 'on'"),
        ("MAX_PROCS", "-1", "expected an integer from 1, got '-1'"),
        ("POOL_REUSE_GROUPS", "1", "groups are not kept"),
        ("LEAK", "off", "KERNBENCH_LEAK: no such variable; did you mean KERNBENCH_LEAKS?"),
        ("XYZ", "1", "KERNBENCH_XYZ: no such variable"),
    ],
)
def test_what_cannot_be_used_is_refused(
    pytestconfig: pytest.Config, name: str, value: str, why: str
) -> None:
    with pytest.raises(pytest.UsageError, match=re.escape(why)):
        read(pytestconfig, **{name: value})


def test_a_variable_that_programs_read_is_none_of_tests(pytestconfig: pytest.Config) -> None:
    assert read(pytestconfig, TRITON_TIME="ir") == read(pytestconfig)


def test_everything_that_is_wrong_is_told_at_once(pytestconfig: pytest.Config) -> None:
    with pytest.raises(pytest.UsageError) as caught:
        read(pytestconfig, LEAKS="on", MAXPROCS="2")
    assert "KERNBENCH_LEAKS: " in str(caught.value)
    assert "did you mean KERNBENCH_MAX_PROCS?" in str(caught.value)


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:xdist", *options)


def test_a_session_with_an_unknown_variable_does_not_start(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KERNBENCH_BLESS", raising=False)
    monkeypatch.setenv("KERNBENCH_TEST_MOD", "pool")
    pytester.makepyfile("def test_it(): raise SystemExit")
    result = run(pytester)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*did you mean KERNBENCH_TEST_MODE?*"])


def test_a_suite_may_have_variables_of_its_own(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNBENCH_MINE", "1")
    pytester.makeini("[pytest]\nkernbench_variables = KERNBENCH_MINE KERNBENCH_BLESS")
    pytester.makepyfile("def test_it(): pass")
    run(pytester).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("--kb-mode=fast", "*invalid choice: 'fast'*"),
        ("--kb-seed=-1", "*--kb-seed: expected an integer from 0 to 4294967295, got '-1'"),
        ("--kb-seed=x", "*--kb-seed: expected an integer from 0 to 4294967295, got 'x'"),
        (
            "--kb-machine=nope",
            "*--kb-machine=nope: [[]F11[]] nope: 1 problem",
        ),
    ],
)
def test_options_are_checked(pytester: pytest.Pytester, option: str, why: str) -> None:
    result = run(pytester, option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([why])


def test_tests_beyond_the_essential_are_deselected(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.kb_extended)])
        def test_it(n): pass
        """
    )
    run(pytester, "--strict-markers").assert_outcomes(passed=1, deselected=1)
    monkeypatch.setenv("KERNBENCH_TEST_ESSENTIAL", "0")
    run(pytester, "--strict-markers").assert_outcomes(passed=2)
