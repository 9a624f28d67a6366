"""An operation takes as long on a device, and a step as long, whichever torch calls it."""

from functools import cache

import both_steps
import both_torches
import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@cache
def _times() -> tuple[dict[str, int], dict[str, int]]:
    return both_torches.of_own_torch(), both_torches.of_real_torch()


@pytest.mark.parametrize("name", both_torches.OPERATIONS)
def test_an_operation_takes_as_long_under_both_torches(name: str) -> None:
    own, real = (times[name] for times in _times())

    assert real > 0
    assert own / real == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("name", both_torches.PRICED)
def test_kernels_of_large_operands_take_as_long_under_both_torches(name: str) -> None:
    own, real = (times[name] for times in _times())

    assert own == pytest.approx(real, rel=0.01, abs=3_000_000), "more than a launch or two apart"


@cache
def _steps() -> tuple[dict[str, float], dict[str, float]]:
    return both_steps.of_own_torch(), both_steps.of_real_torch()


@pytest.mark.parametrize("name", both_steps.STEPS)
def test_a_step_that_the_host_bounds_takes_as_long_under_both_torches(name: str) -> None:
    own, real = (times[name] for times in _steps())

    assert own / real == pytest.approx(1, abs=0.05)
