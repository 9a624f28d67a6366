"""Programs of PyTorch give what gloo processes give, on every rank, and the same again."""

import importlib.util

import numpy as np
import pytest
from bridge_programs import RESULTS, Program, load, programs, run_simulated

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

_TOLERANCE = 1e-4
"""Of the largest value: sums of several ranks are rounded in another order."""


@pytest.mark.parametrize("program", programs(), ids=str)
def test_a_program_gives_what_gloo_gives_and_the_same_again(program: Program) -> None:
    pytest.importorskip("torch")
    module = load(program.file)
    needs = getattr(module, "NEEDS", None)
    tolerance = getattr(module, "ROUNDINGS", {}).get(program.name, _TOLERANCE)
    if needs is not None and importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    first, second = run_simulated(program), run_simulated(program)
    with np.load(RESULTS / f"{program.file}.npz") as stored:
        start = f"{program.name}/"
        expected = {key[len(start) :]: stored[key] for key in stored.files if key.startswith(start)}
    assert first.results.keys() == expected.keys()
    for key, value in expected.items():
        limit = tolerance * max(1e-30, np.abs(value).max()) if value.size else 0
        assert first.results[key].shape == value.shape, key
        np.testing.assert_allclose(first.results[key], value, rtol=0, atol=limit, err_msg=key)
    assert first.late == 0
    assert second.time_ps == first.time_ps
    for key, value in first.results.items():
        assert value.tobytes() == second.results[key].tobytes(), key
