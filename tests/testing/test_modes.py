"""A suite that is written once has the same outcomes in the three modes."""

from collections import Counter

import pytest
from case_suites import SUITE
from case_suites import outcomes_apart as outcomes

pytest_plugins = ["pytester"]


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    pytester.makepyfile(SUITE)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    return pytester


def test_outcomes_are_the_same_in_the_three_modes(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    inline = outcomes(suite, monkeypatch, "-n0", "--kb-mode=inline")
    kinds = Counter(outcome for outcome, _ in inline.values())
    assert kinds == {"passed": 14, "failed": 10, "skipped": 7, "xskipped": 2}
    assert outcomes(suite, monkeypatch, "-n0", "--kb-mode=pool") == inline
    monkeypatch.setenv("KERNBENCH_TEST_BATCH_SIZE", "3")
    assert outcomes(suite, monkeypatch, "-n0", "--kb-mode=batch") == inline


@pytest.mark.parametrize(
    "processes",
    [
        pytest.param("-n0", marks=pytest.mark.at_length),
        pytest.param("-n2", marks=pytest.mark.slow),
    ],
)
def test_outcomes_are_the_same_in_batches_of_any_size(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, processes: str
) -> None:
    inline = outcomes(suite, monkeypatch, "-n0", "--kb-mode=inline")
    assert outcomes(suite, monkeypatch, processes, "--kb-mode=inline") == inline
    assert outcomes(suite, monkeypatch, processes, "--kb-mode=pool") == inline
    for size in ["1", "16"]:
        monkeypatch.setenv("KERNBENCH_TEST_BATCH_SIZE", size)
        assert outcomes(suite, monkeypatch, processes, "--kb-mode=batch") == inline
