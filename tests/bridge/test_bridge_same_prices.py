"""An operation takes as long on a device whichever torch calls it."""

from functools import cache

import both_torches
import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

_MORE = {
    # kernbench.torch runs a kernel for each gradient, PyTorch one operation for all of them.
    "layer_norm_backward": 1.55,
    # kernbench.torch draws the mask with a kernel of its own.
    "dropout": 1.15,
}
"""Operations that take longer under `kernbench.torch`, and how much longer."""


@cache
def _times() -> tuple[dict[str, int], dict[str, int]]:
    return both_torches.of_own_torch(), both_torches.of_real_torch()


@pytest.mark.parametrize("name", both_torches.OPERATIONS)
def test_an_operation_takes_as_long_under_both_torches(name: str) -> None:
    own, real = (times[name] for times in _times())

    assert real > 0
    if name in _MORE:
        assert 1.05 < own / real <= _MORE[name]
    else:
        assert own / real == pytest.approx(1, abs=0.05)
