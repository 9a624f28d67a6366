"""`torch.testing.assert_close`: tolerances by type, and what it says."""

import math
from typing import Any

import pytest

import kernbench.torch as torch
from kernbench.runtime_api.context import RuntimeContext
from kernbench.torch.testing import assert_close


def _says(actual: Any, expected: Any, **options: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        assert_close(actual, expected, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("dtype", "rtol"),
    [
        (torch.float16, 1e-3),
        (torch.bfloat16, 1.6e-2),
        (torch.float32, 1.3e-6),
        (torch.float64, 1e-7),
    ],
)
def test_tolerances_are_those_of_the_type(device: str, dtype: Any, rtol: float) -> None:
    x = torch.full((4,), 1000.0, dtype=torch.float64, device=device)
    assert_close((x * (1 + rtol / 4)).to(dtype), x.to(dtype))
    assert "Tensor-likes are not close!" in _says((x * (1 + 4 * rtol)).to(dtype), x.to(dtype))


def test_what_it_says(device: str) -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device)
    y = x.clone()
    y[1, 0] = 3.5
    assert _says(x, y) == (
        "Tensor-likes are not close!\n\n"
        "Mismatched elements: 1 / 4 (25.0%)\n"
        "Greatest absolute difference: 0.5 at index (1, 0) (up to 1e-05 allowed)\n"
        "Greatest relative difference: 0.14285714285714285 at index (1, 0) (up to 1.3e-06 allowed)"
    )
    assert _says(x.long(), y.long() + 1).startswith("Tensor-likes are not equal!\n\n")
    assert _says(1.0, 2.0) == (
        "Scalars are not close!\n\nExpected 2.0 but got 1.0.\n"
        "Absolute difference: 1.0 (up to 1e-07 allowed)\n"
        "Relative difference: 0.5 (up to 1e-07 allowed)"
    )
    assert _says(x, x[0]) == (
        "The values for attribute 'shape' do not match: torch.Size([2, 2]) != torch.Size([2])."
    )
    assert _says(x, x.double()) == (
        "The values for attribute 'dtype' do not match: torch.float32 != torch.float64."
    )
    assert "attribute 'stride()' do not match" in _says(x, x.T.contiguous().T, check_stride=True)
    assert _says(x, y, msg="look here") == "look here"
    assert "inf" in _says(torch.tensor([math.inf]), torch.tensor([1.0]))


def test_what_it_takes(ctx: RuntimeContext) -> None:
    x = torch.ones(2, device="cuda")
    assert_close(x, x + 1e-7)
    assert_close([x, {"a": 1.0}], [x, {"a": 1.0}])
    assert_close(x, x.double(), check_dtype=False)
    assert_close(x, x.cpu(), check_device=False)
    assert_close(x, x + 1, rtol=0, atol=1)
    assert_close(torch.tensor([math.nan]), torch.tensor([math.nan]), equal_nan=True)
    assert_close(3, 3)
    assert "attribute 'device' do not match" in _says(x, x.cpu())
    assert "are not close" in _says(torch.tensor([math.nan]), torch.tensor([math.nan]))
    assert "(item [1]['a'])" in _says([x, {"a": 1.0}], [x, {"a": 2.0}])
    assert "The length of the sequences do not match" in _says([x], [x, x])
    assert "The keys of the mappings do not match" in _says({"a": x}, {"b": x})
    with pytest.raises(ValueError, match="rtol and atol must both be specified"):
        assert_close(x, x, rtol=0.1)
