"""The same programs with PyTorch and here: equal values, or an error of the same kind."""

import importlib
import math
import warnings
from typing import Any, Final

import pytest
from autograd_programs import PROGRAMS, Program

import kernbench.torch as ours
from kernbench.runtime_api.context import RuntimeContext

pytest.importorskip("torch.version", reason="PyTorch is not installed")
theirs: Any = importlib.import_module("torch")

pytestmark = pytest.mark.torch

for part in ("checkpoint", "functions", "hooks", "modes", "passes", "views"):
    importlib.import_module(f"autograd_programs_{part}")

_ERRORS: Final = (RuntimeError, ValueError, TypeError, AttributeError, NotImplementedError)

NOT_SIMULATED: Final = {"batched_gradients", "batched_gradients_of_two"}
"""Refused here by name."""
STRICTER: Final = {"data_written_after_it_was_saved"}
"""Refused here, while PyTorch's gradient is silently another one than that of what was computed."""


def _plain(value: Any) -> Any:
    """Returns values without tensors, as both packages have them."""
    if isinstance(value, ours.Tensor | theirs.Tensor):
        plain = value.detach()
        return [str(plain.dtype), list(plain.shape), _rounded(plain.tolist())]
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(entry) for entry in value]
    if isinstance(value, float):
        return "nan" if math.isnan(value) else float(f"{value:.5g}")
    return value


def _outcome(function: Program, torch: Any) -> tuple[Any, BaseException | None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _plain(function(torch)), None
        except _ERRORS as error:
            return None, error


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_pytorch(name: str, ctx: RuntimeContext) -> None:
    expected, refused = _outcome(PROGRAMS[name], theirs)
    found, raised = _outcome(PROGRAMS[name], ours)
    if name in NOT_SIMULATED | STRICTER:
        assert refused is None
        assert raised is not None
        assert name in STRICTER or "not simulated" in str(raised)
        return
    assert (raised is None) == (refused is None), (
        f"PyTorch: {refused or expected!r}\nhere: {raised or found!r}"
    )
    if refused is None:
        assert found == expected
    else:
        kinds = type(refused).__mro__
        # A class of PyTorch itself has its name here.
        assert [each.__name__ for each in kinds if each.__module__.startswith("torch")] in (
            [],
            [type(raised).__name__],
        )
        builtin = next(each for each in kinds if each.__module__ == "builtins")
        assert isinstance(raised, builtin), f"PyTorch: {refused!r}\nhere: {raised!r}"
