"""Reductions against numpy."""

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernbench.torch as torch
from kernbench.memory import dtypes
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine

REDUCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "sum": np.sum,
    "mean": np.mean,
    "amax": np.max,
    "amin": np.min,
    "all": np.all,
    "any": np.any,
    "var": lambda x, **k: np.var(x, ddof=1, **k),
    "std": lambda x, **k: np.std(x, ddof=1, **k),
    "norm": lambda x, **k: np.sqrt(np.sum(x * x, **k)),
    "count_nonzero": np.count_nonzero,
}


@given(
    name=st.sampled_from(sorted(REDUCTIONS)),
    shape=st.lists(st.integers(2, 4), min_size=1, max_size=4),
    dims=st.lists(st.integers(0, 3), unique=True),
    keepdim=st.booleans(),
)
def test_reductions_over_any_dimensions(
    name: str, shape: list[int], dims: list[int], keepdim: bool, topology: Any
) -> None:
    axes = tuple(dim for dim in dims if dim < len(shape)) or None
    values = np.random.default_rng(0).integers(-3, 3, shape).astype(np.float64)
    kept = {} if name == "count_nonzero" else {"keepdim": keepdim}
    with RuntimeContext(engine=GraphEngine(topology("sip8"))):
        x = torch.tensor(values, device="cuda")
        options = {} if axes is None else {"dim": axes}
        found = getattr(torch, name)(x, **options, **({} if axes is None else kept))
        expected = REDUCTIONS[name](
            values, axis=axes, **({} if axes is None or not kept else {"keepdims": keepdim})
        )
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)
        assert found.shape == np.shape(expected)


def test_types_of_results(device: str) -> None:
    bits = torch.tensor([True, False, True], device=device)
    small = torch.tensor([100, 100, 100], dtype=torch.int8, device=device)
    assert (bits.sum().dtype, bits.sum().item()) == (torch.int64, 2)
    assert (small.sum().dtype, small.sum().item()) == (torch.int64, 300)
    assert small.sum(dtype=torch.float32).dtype is torch.float32
    assert small.prod().item() == 1_000_000
    assert small.cumsum(0).tolist() == [100, 200, 300]
    assert (small.max().dtype, small.argmax().dtype) == (torch.int8, torch.int64)
    assert bits.all().dtype is torch.bool
    with pytest.raises(RuntimeError, match="Input dtype must be a floating point dtype"):
        small.mean()
    assert small.mean(dtype=torch.float32).item() == 100


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16])
def test_16_bit_floats_are_added_in_float32(device: str, dtype: Any) -> None:
    x = torch.ones(4096, dtype=dtype, device=device)
    assert x.sum().item() == 4096  # adding in 8 bits of mantissa would stop at 256
    assert x.sum().dtype is dtype
    assert x.mean().item() == 1
    assert x.norm().item() == 64


def test_extremes_come_with_their_indices(device: str) -> None:
    x = torch.tensor([[1.0, 5.0, 5.0], [7.0, -2.0, math.nan]], device=device)
    found = x.max(dim=1)
    assert found.indices.tolist() == [1, 2]
    assert found.values.tolist()[0] == 5
    assert math.isnan(found.values.tolist()[1])
    values, indices = torch.min(x[:, :2], 0, keepdim=True)
    assert (values.tolist(), indices.tolist()) == ([[1.0, -2.0]], [[0, 1]])
    assert torch.max(x[0], x[1, 0]).tolist() == [7, 7, 7]
    assert torch.argmin(x[0]).item() == 0
    assert x[:, :2].max().item() == 7
    ordered = x[0].sort(descending=True)
    assert (ordered.values.tolist(), ordered.indices.tolist()) == ([5, 5, 1], [1, 2, 0])
    assert torch.argsort(x[0]).tolist() == [0, 1, 2]
    assert torch.topk(x[0], 2).values.tolist() == [5, 5]
    assert torch.topk(x[0], 1, largest=False).indices.tolist() == [0]


def test_softmax_and_relatives(device: str) -> None:
    values = np.array([[1.0, 2.0, 3.0], [1e4, 0.0, -1e4]], np.float32)
    x = torch.tensor(values, device=device)
    powers = np.exp(values - values.max(1, keepdims=True))
    soft = powers / powers.sum(1, keepdims=True)
    np.testing.assert_allclose(torch.softmax(x, 1).numpy(), soft, rtol=1e-6)
    np.testing.assert_allclose(x.softmax(-1, dtype=torch.float64).numpy(), soft, rtol=1e-6)
    np.testing.assert_allclose(torch.log_softmax(x, 1).exp().numpy(), soft, rtol=1e-5, atol=1e-12)
    np.testing.assert_allclose(torch.logsumexp(x, 1).numpy(), [3.4076059, 1e4], rtol=1e-6)
    assert torch.softmax(torch.zeros(0, 3, device=device), 0).shape == (0, 3)


def test_norms(device: str) -> None:
    x = torch.tensor([[3.0, -4.0], [0.0, 1.0]], device=device)
    assert torch.norm(x).item() == pytest.approx(math.sqrt(26))
    assert torch.norm(x, 1, dim=1).tolist() == [7, 1]
    assert torch.norm(x, math.inf, dim=0).tolist() == [3, 4]
    assert torch.norm(x, -math.inf, dim=0).tolist() == [0, 1]
    assert torch.norm(x, 0).item() == 3
    assert torch.norm(x, 3.0, dim=1).tolist() == pytest.approx([91 ** (1 / 3), 1])


@pytest.mark.parametrize(
    ("operation", "kind", "message"),
    [
        (lambda x: x.sum(5), IndexError, r"expected to be in range of \[-2, 1\], but got 5"),
        (lambda x: x.sum((0, 0)), RuntimeError, "appears multiple times in the list of dims"),
        (lambda x: x[:0].max(), RuntimeError, r"Expected reduction dim to be specified"),
        (lambda x: x[:0].amax(0), IndexError, "Expected reduction dim 0 to have non-zero size"),
        (
            lambda x: x.argmax((0, 1)),
            TypeError,
            r"argmax\(\): argument 'dim' must be int or None, not tup",
        ),
        (lambda x: (x > 0).argmin(), RuntimeError, "does not support bool input"),
        (lambda x: x.topk(9), RuntimeError, "selected index k out of range: 9 of "),
        (lambda x: x.softmax("a"), TypeError, "a dimension is an int, not str"),
    ],
)
def test_mistakes(
    ctx: RuntimeContext, operation: Callable[..., Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        operation(torch.ones(2, 3))
    assert "test_reductions.py" in str(caught.value)


def test_variance_of_too_few_is_nan(device: str) -> None:
    assert math.isnan(torch.ones(1, device=device).var().item())
    assert torch.ones(2, device=device).var(correction=0).item() == 0


def test_shapes_without_data(ctx_without_data: RuntimeContext) -> None:
    x = torch.ones(2, 3, 4, device="cuda")
    assert x.sum(1).shape == (2, 4)
    assert x.max(2, keepdim=True).indices.shape == (2, 3, 1)
    assert x.softmax(-1).shape == (2, 3, 4)
    assert x.std().shape == ()
