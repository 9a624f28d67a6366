"""The two commands of attention: what they read, refuse, keep, and how their results lie."""

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import kernbench.torch as torch
from kernbench import extend
from kernbench.attention.bands import CAUSAL, EVERYTHING, bands
from kernbench.attention.rows import Segment, in_order
from kernbench.memory import UninitialisedReadError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.tensors.errors import TensorError
from kernbench.testing import Kernbench

FLOATS: Final = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
TOLERANCE: Final = {8: 1e-12, 4: 1e-5, 2: 2e-2}


def _drawn(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def _given(
    device: str = "cpu", dtype: torch.dtype = torch.float64, s: int = 6, **more: Any
) -> extend.Attention:
    shapes = (2, 4, s, 3), (2, 2, s, 3), (2, 2, s, 5)
    q, k, v = (
        torch.tensor(_drawn(*shape, seed=n)).to(dtype).to(device) for n, shape in enumerate(shapes)
    )
    whole: dict[str, Any] = {"patterns": (bands(in_order(s), in_order(s), CAUSAL),), "scale": 0.5}
    return extend.Attention(q, k, v, **(whole | more))


def _each(
    given: extend.Attention, change: Callable[[torch.Tensor], torch.Tensor]
) -> extend.Attention:
    """Returns the same with another query, key and value."""
    query, key, value = (change(each) for each in given[:3])
    return given._replace(query=query, key=key, value=value)


def _dense(given: extend.Attention) -> Any:
    q, k, v = (each.double().cpu().numpy() for each in given[:3])
    k, v = (np.repeat(each, q.shape[1] // k.shape[1], 1) for each in (k, v))
    scores = np.where(np.tri(q.shape[2], dtype=bool), q @ k.swapaxes(2, 3) * given.scale, -np.inf)
    powers = np.exp(scores - scores.max(3, keepdims=True))
    return powers / powers.sum(3, keepdims=True) @ v


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_types(device: str, dtype: torch.dtype) -> None:
    given = _given(device, dtype)
    found = extend.attend(given, wants_peak=True)
    assert found.out.dtype is dtype
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    assert found.lse.dtype is wide
    assert found.peak is not None
    assert found.peak.dtype is wide
    assert found.peak.shape == (4,)
    tolerance = TOLERANCE[dtype.itemsize]
    np.testing.assert_allclose(found.out.double().cpu().numpy(), _dense(given), atol=tolerance)
    slopes = extend.attend_backward(given, found.out, found.out, found.lse)
    for slope, operand in zip(slopes[:3], given[:3], strict=True):
        assert isinstance(slope, torch.Tensor)
        assert (slope.dtype, slope.shape) == (dtype, operand.shape)
    assert slopes.bias is slopes.sink is None
    unrounded = extend.attend(given, dtype=torch.float32)
    assert unrounded.out.dtype is torch.float32
    slopes = extend.attend_backward(
        given, unrounded.out, unrounded.out, unrounded.lse, dtype=torch.float32
    )
    assert {each.dtype for each in slopes[:3] if each is not None} == {torch.float32}


def test_16_bit_floats_are_rounded_once(device: str) -> None:
    given = _given(device, torch.bfloat16, s=80)
    wide = _each(given, lambda x: x.float())
    found, expected = extend.attend(given), extend.attend(wide)
    assert torch.equal(found.out, expected.out.bfloat16())
    assert torch.equal(found.lse, expected.lse)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3), (3, 2, 1, 0)])
def test_results_lie_as_their_operands_do(device: str, order: tuple[int, ...]) -> None:
    plain = _given(device)
    back = [order.index(d) for d in range(4)]
    laid = _each(plain, lambda x: x.permute(order).contiguous().permute(back))
    found = extend.attend(laid)
    assert torch.equal(found.out, extend.attend(plain).out)
    assert found.out.permute(order).is_contiguous()
    slopes = extend.attend_backward(laid, found.out, found.out, found.lse)
    for slope in slopes[:3]:
        assert slope is not None
        assert slope.permute(order).is_contiguous()


def test_repeated_operands_give_results_row_by_row(device: str) -> None:
    given = _given(device)
    wide = given._replace(query=given.query[:1].expand(2, -1, -1, -1))
    found = extend.attend(wide)
    assert found.out.is_contiguous()
    assert torch.equal(found.out[0], extend.attend(given).out[0])


# Padding

REAL: Final = (Segment(1, 0, 2, 0), Segment(4, 2, 1, 0))
"""Rows 0, 3 and 5 are no tokens."""


def _holes(values: torch.Tensor, device: str, rows: list[int]) -> torch.Tensor:
    out = torch.empty(values.shape, dtype=values.dtype, device=device)
    for row in rows:
        out[:, :, row] = values[:, :, row]
    return out


@pytest.mark.parametrize("each_its_own", [False, True])
def test_padding_is_never_read(device: str, each_its_own: bool) -> None:
    patterns = (bands(REAL, REAL, CAUSAL),) * (2 if each_its_own else 1)
    full = _given(device, patterns=patterns)
    holes = _each(full, lambda x: _holes(x, device, [1, 2, 4]))
    found, expected = extend.attend(holes), extend.attend(full)
    assert torch.equal(found.out, expected.out)
    assert not found.out[:, :, [0, 3, 5]].any()
    assert (found.lse[:, :, [0, 3, 5]] == -math.inf).all()
    grad = _holes(full.query.new_ones((2, 4, 6, 5)), device, [1, 2, 4])
    slopes = extend.attend_backward(holes, grad, found.out, found.lse)
    for slope in slopes[:3]:
        assert slope is not None
        assert not slope[:, :, [0, 3, 5]].any()
        assert slope[:, :, [1, 2]].any()


@pytest.mark.parametrize("name", ["query", "key", "value", "grad"])
@pytest.mark.parametrize("each_its_own", [False, True])
def test_a_token_that_was_never_written(device: str, name: str, each_its_own: bool) -> None:
    patterns = (bands(REAL, REAL, CAUSAL),) * (2 if each_its_own else 1)
    given = _given(device, patterns=patterns)
    if name == "grad":
        found = extend.attend(given)
        grad = _holes(torch.ones(2, 4, 6, 5, dtype=torch.float64), device, [1, 4])
    with pytest.raises(UninitialisedReadError, match=r"^\[M5\] ") as caught:  # noqa: PT012
        if name == "grad":
            extend.attend_backward(given, grad, found.out, found.lse)
        else:
            holes: dict[str, Any] = {name: _holes(getattr(given, name), device, [1, 4])}
            extend.attend(given._replace(**holes))
        torch.cuda.synchronize()
    assert "test_attend.py" in str(caught.value)
    # Row 2 of each head, of what is read first; padding does not count.
    heads, width = {"query": (4, 3), "key": (2, 3), "value": (2, 5), "grad": (4, 5)}[name]
    batch = 1 if each_its_own else 2
    assert str(caught.value).startswith(f"[M5] {batch * heads * width} of ")


def _short(values: torch.Tensor, device: str) -> torch.Tensor:
    """Returns values of which the second batch element has no row 4."""
    out = _holes(values, device, [1, 2])
    out[0, :, 4] = values[0, :, 4]
    return out


def test_each_batch_element_has_its_own_tokens(device: str) -> None:
    few, many = bands(REAL[:1], REAL[:1], CAUSAL), bands(REAL, REAL, CAUSAL)
    full = _given(device)
    short = _each(full, lambda x: _short(x, device))
    found = extend.attend(short._replace(patterns=(many, few)))
    assert not found.out[1, :, [0, 3, 4, 5]].any()
    assert found.out[0, :, 4].any()
    with pytest.raises(UninitialisedReadError):  # noqa: PT012
        extend.attend(short._replace(patterns=(many, many)))
        torch.cuda.synchronize()


# What is refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": (4, 6, 3)}, "expected four dimensions each"),
        ({"query": (3, 4, 6, 3)}, "batch, keys or widths differ"),
        ({"value": (2, 2, 5, 5)}, "batch, keys or widths differ"),
        ({"query": (2, 4, 6, 2)}, "batch, keys or widths differ"),
        ({"query": (2, 3, 6, 3)}, "the 3 heads of the query are no multiple of the 2 of key"),
        ({"bias": (4, 6, 6)}, "a bias of shape [4, 6, 6] does not broadcast to [2, 4, 6, 6]"),
        ({"bias": (2, 4, 6, 5)}, "a bias of shape [2, 4, 6, 5] does not broadcast"),
        ({"sink": (2,)}, "a sink of shape [2] for 4 heads"),
        ({"patterns": ((), (), ())}, "3 patterns for 2 batch elements"),
    ],
    ids=str,
)
def test_shapes_that_do_not_fit(ctx: RuntimeContext, change: dict[str, Any], message: str) -> None:
    good = _given("cuda")
    changed: dict[str, Any] = {
        name: shape if name == "patterns" else torch.ones(shape, dtype=torch.float64).cuda()
        for name, shape in change.items()
    }
    bad = good._replace(**changed)
    before = ctx.main.current_stream(0).count, torch.cuda.memory_allocated()
    for call in (
        lambda: extend.attend(bad),
        lambda: extend.attend_backward(bad, good.query, good.query, good.query),
    ):
        with pytest.raises(TensorError) as caught:
            call()
        assert message in str(caught.value)
        assert "test_attend.py" in str(caught.value)
        assert "expected [b, heads, queries, width]" in str(caught.value)
    assert (ctx.main.current_stream(0).count, torch.cuda.memory_allocated()) == before


def test_types_that_do_not_fit(ctx: RuntimeContext) -> None:
    given = _given()
    changes: list[tuple[dict[str, Any], str]] = [
        ({"key": given.key.float()}, "types differ: torch.float64, torch.float32, torch.float64"),
        ({name: given.key.long() for name in given._fields[:3]}, "no attention of torch.int64"),
        (
            {"bias": torch.ones(1, 1, 6, 6).long()},
            "a bias of torch.int64, expected floats or bools",
        ),
        ({"sink": torch.ones(4).long()}, "a sink of torch.int64, expected floats"),
    ]
    for change, message in changes:
        with pytest.raises(TensorError, match=r"^_scaled_dot_product_flash_attention: ") as caught:
            extend.attend(given._replace(**change))
        assert message in str(caught.value)


def test_tensors_on_several_devices(ctx: RuntimeContext) -> None:
    given = _given("cuda")
    with pytest.raises(TensorError, match="Expected all tensors to be on the same device"):
        extend.attend(given._replace(value=given.value.cpu()))


@pytest.mark.parametrize("name", ["grad", "out", "lse"])
def test_what_forward_cannot_have_found(ctx: RuntimeContext, name: str) -> None:
    given = _given()
    found = extend.attend(given)
    parts: dict[str, Any] = {"grad": found.out, "out": found.out, "lse": found.lse}
    parts[name] = parts[name][:, :, :5]
    with pytest.raises(TensorError, match=rf"_backward: {name} of shape \[2, 4, 5"):
        extend.attend_backward(given, **parts)


# Memory and commands


def test_one_command_each_way_and_no_scores_in_memory(kernbench: Kernbench) -> None:
    ctx = kernbench.context(data=False, record="full")
    with ctx:
        s, size = 4096, torch.bfloat16.itemsize
        q, k, v = (
            torch.empty(1, heads, s, 64, dtype=torch.bfloat16, device="cuda") for heads in (8, 2, 2)
        )
        patterns = (bands(in_order(s), in_order(s), CAUSAL),)
        given = extend.Attention(q, k, v, patterns, 0.125, backend="cudnn")
        stream, begin = ctx.main.current_stream(0), torch.cuda.memory_allocated()
        count = stream.count
        found = extend.attend(given)
        assert stream.count == count + 1
        out_and_lse = 8 * s * 64 * size + 8 * s * 4
        assert torch.cuda.memory_allocated() - begin == out_and_lse
        slopes = extend.attend_backward(given, found.out, found.out, found.lse)
        assert stream.count == count + 2
        assert torch.cuda.memory_allocated() - begin == out_and_lse + (8 + 2 + 2) * s * 64 * size
        assert torch.cuda.max_memory_allocated() - begin == out_and_lse + 12 * s * 64 * size
        del found, slopes
        torch.cuda.synchronize()
        names = [each.name for each in ctx.engine.op_log.records[-2:]]
        assert names == [
            "aten::_scaled_dot_product_cudnn_attention",
            "aten::_scaled_dot_product_cudnn_attention_backward",
        ]


def test_the_gradient_of_a_bias_is_made_if_wanted(device: str) -> None:
    bias = torch.tensor(_drawn(1, 4, 1, 6), device=device)
    sink = torch.tensor(_drawn(4), device=device)
    given = _given(device, bias=bias, sink=sink)
    found = extend.attend(given)
    slopes = extend.attend_backward(given, found.out, found.out, found.lse)
    assert slopes.bias is not None
    assert slopes.sink is not None
    assert (slopes.bias.shape, slopes.sink.shape) == (bias.shape, sink.shape)
    rest = extend.attend_backward(given, found.out, found.out, found.lse, wants_bias=False)
    assert rest.bias is None
    assert rest.sink is not None
    assert torch.equal(rest.query, slopes.query)
    shown = given._replace(bias=bias > 0)
    found = extend.attend(shown)
    assert extend.attend_backward(shown, found.out, found.out, found.lse).bias is None


def test_what_sees_nothing_takes_no_longer_than_a_launch(kernbench: Kernbench) -> None:
    s = 2048
    rows = in_order(s)
    ctx = kernbench.context(data=False, record="full")
    times = []
    with ctx:
        q = torch.empty(1, 8, s, 64, dtype=torch.bfloat16, device="cuda")
        for mask in ((), bands(rows, rows, CAUSAL), bands(rows, rows, EVERYTHING)):
            extend.attend(extend.Attention(q, q, q, (mask,), 0.125))
            torch.cuda.synchronize()
            record = ctx.engine.op_log.records[-1]
            times.append(record.end - record.start)
    nothing, half, whole = times
    assert nothing < half < whole
