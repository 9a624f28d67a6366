"""An operation takes as long on a device whichever torch calls it."""

from functools import cache

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
