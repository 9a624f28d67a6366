"""`torch.nn.functional` against numpy, and what it refuses."""

import math
from typing import Any, Final

import numpy as np
import pytest

import kernbench.torch as torch
import kernbench.torch.nn.functional as F
from kernbench.errors import KernbenchError, UnsupportedError
from kernbench.operations.shaping import IndexOutOfBoundsError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.testing import Kernbench

NUMBERS: Final = np.random.default_rng(5)


def _tensor(values: Any, device: str = "cpu") -> torch.Tensor:
    return torch.tensor(values, device=device)


def _softmax(x: Any, axis: int = -1) -> Any:
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def test_linear(device: str) -> None:
    x, w, b = NUMBERS.normal(size=(2, 3, 4)), NUMBERS.normal(size=(5, 4)), NUMBERS.normal(size=5)
    got = F.linear(*(_tensor(each, device) for each in (x, w, b)))
    np.testing.assert_allclose(got.numpy(), x @ w.T + b, rtol=1e-12)
    assert F.linear(_tensor(x[0, 0], device), _tensor(w, device)).shape == (5,)
    half = [_tensor(each, device).bfloat16() for each in (x, w, b)]
    wide = F.linear(*[each.float() for each in half]).bfloat16()
    assert torch.equal(F.linear(*half), wide)  # rounded once


def test_activations(device: str) -> None:
    x = NUMBERS.normal(size=(3, 4))
    t = _tensor(x, device)
    erf = np.vectorize(math.erf)
    for got, expected in (
        (F.relu(t), np.maximum(x, 0)),
        (F.relu(t.clone(), inplace=True), np.maximum(x, 0)),
        (F.silu(t), x / (1 + np.exp(-x))),
        (F.gelu(t), x * 0.5 * (1 + erf(x / math.sqrt(2)))),
        (
            F.gelu(t, approximate="tanh"),
            0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        ),
        (F.swiglu(t), x[:, :2] / (1 + np.exp(-x[:, :2])) * x[:, 2:]),
        (F.softmax(t, 0), _softmax(x, 0)),
        (F.log_softmax(t, -1), np.log(_softmax(x))),
    ):
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12, atol=1e-15)


def test_norms(device: str) -> None:
    x, w, b = NUMBERS.normal(size=(2, 3, 4)), NUMBERS.normal(size=4), NUMBERS.normal(size=4)
    t, tw, tb = (_tensor(each, device) for each in (x, w, b))
    gap = x - x.mean(-1, keepdims=True)
    normal = gap / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(F.layer_norm(t, (4,), tw, tb).numpy(), normal * w + b, rtol=1e-9)
    np.testing.assert_allclose(F.layer_norm(t, [4]).numpy(), normal, rtol=1e-9)
    size = np.sqrt((x * x).mean(-1, keepdims=True) + 0.5)
    np.testing.assert_allclose(F.rms_norm(t, (4,), tw, eps=0.5).numpy(), x / size * w, rtol=1e-9)
    assert F.rms_norm(t.bfloat16(), (4,)).dtype is torch.bfloat16


@pytest.mark.parametrize("kind", ["plain", "causal", "bools", "numbers", "groups"])
def test_attention(device: str, kind: str) -> None:
    q, k, v = (NUMBERS.normal(size=(2, 4, n, 3)) for n in (3, 5, 5))
    if kind == "groups":
        k, v = k[:, :2], v[:, :2]
    mask: Any = None
    scores = q @ np.repeat(k, q.shape[1] // k.shape[1], 1).swapaxes(-1, -2) / math.sqrt(3)
    if kind == "causal":
        scores = np.where(np.tri(3, 5, dtype=bool), scores, -np.inf)
    elif kind == "bools":
        mask = np.tri(3, 5, 1, dtype=bool)
        scores = np.where(mask, scores, -np.inf)
    elif kind == "numbers":
        mask = NUMBERS.normal(size=(3, 5))
        scores = scores + mask
    expected = _softmax(scores) @ np.repeat(v, q.shape[1] // v.shape[1], 1)
    query, key, value = (_tensor(each, device) for each in (q, k, v))
    got = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=None if mask is None else _tensor(mask, device),
        is_causal=kind == "causal",
        enable_gqa=kind == "groups",
    )
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12)


def test_attention_that_sees_nothing_is_nothing(ctx: RuntimeContext) -> None:
    q = torch.ones(1, 2, 3)
    mask = torch.tensor([[True, False], [False, False]])
    got = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
    assert got.tolist() == [[[1.0] * 3, [0.0] * 3]]


def _cross_entropy(x: Any, t: Any, w: Any, ignore: int, reduction: str, smoothing: float) -> Any:
    """The definition, one target at a time; classes last."""
    logs = np.log(_softmax(x))
    losses, weights = np.zeros(t.shape), np.zeros(t.shape)
    classes = x.shape[-1]
    for at in np.ndindex(t.shape):
        if t[at] != ignore:
            weights[at] = w[t[at]]
            spread = -(logs[at] * w).sum() / classes
            losses[at] = (1 - smoothing) * -logs[at][t[at]] * w[t[at]] + smoothing * spread
    if reduction == "none":
        return losses
    return losses.sum() / (weights.sum() if reduction == "mean" else 1)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy(device: str, reduction: Any, smoothing: float, weighted: bool) -> None:
    x = NUMBERS.normal(size=(2, 3, 5))
    t = np.array([[0, 4, -1], [2, -1, 1]])
    w = NUMBERS.random(5) + 0.5 if weighted else np.ones(5)
    got = F.cross_entropy(
        _tensor(x.transpose(0, 2, 1), device),
        _tensor(t, device),
        _tensor(w, device) if weighted else None,
        ignore_index=-1,
        reduction=reduction,
        label_smoothing=smoothing,
    )
    expected = _cross_entropy(x, t, w, -1, reduction, smoothing)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12)


def test_other_losses(device: str) -> None:
    x, y = NUMBERS.normal(size=(3, 4)), _softmax(NUMBERS.normal(size=(3, 4)))
    t, s = _tensor(x, device), _tensor(y, device)
    each = -(y * np.log(_softmax(x))).sum(1)
    for reduction, expected in (("none", each), ("mean", each.mean()), ("sum", each.sum())):
        got = F.cross_entropy(t, s, reduction=reduction)
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12)
    weight = np.arange(1.0, 5)
    smooth = y * 0.9 + 0.1 / 4
    got = F.cross_entropy(t, s, _tensor(weight, device), label_smoothing=0.1)
    expected = -(smooth * weight * np.log(_softmax(x))).sum() / 3
    np.testing.assert_allclose(got.item(), expected, rtol=1e-12)
    np.testing.assert_allclose(F.mse_loss(t, s).item(), ((x - y) ** 2).mean(), rtol=1e-12)
    index = _tensor(np.array([0, 3, 1]), device)
    picked = F.nll_loss(t, index, reduction="sum")
    np.testing.assert_allclose(picked.item(), -x[np.arange(3), [0, 3, 1]].sum(), rtol=1e-12)
    one = F.cross_entropy(t[0], index[1])
    np.testing.assert_allclose(one.item(), -np.log(_softmax(x[0]))[3], rtol=1e-12)


def test_embedding(device: str) -> None:
    w = NUMBERS.normal(size=(4, 3))
    ids = np.array([[0, 3], [3, 1]])
    weight = torch.tensor(w, device=device, requires_grad=True)
    out = F.embedding(_tensor(ids, device), weight, padding_idx=-1)
    np.testing.assert_array_equal(out.detach().numpy(), w[ids])
    out.sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [[1.0] * 3, [1.0] * 3, [0.0] * 3, [0.0] * 3]
    with pytest.raises(IndexOutOfBoundsError, match="index 4 is out of bounds for dimension 0"):
        F.embedding(_tensor([4], device), weight).tolist()


def test_dropout_is_drawn_from_the_ranks_generator(kernbench: Kernbench) -> None:
    seen: dict[int, list[Any]] = {}

    def worker(rank: int) -> None:
        x = torch.ones(1000, device="cuda", requires_grad=True)
        torch.manual_seed(11 + rank)
        first = F.dropout(x, 0.25)
        torch.manual_seed(11 + rank)
        again = F.dropout(x, 0.25)
        assert first.tolist() == again.tolist()
        first.sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == first.tolist()
        seen[rank] = first.tolist()

    kernbench.spawn(worker, nprocs=2)
    assert seen[0] != seen[1]
    for values in seen.values():
        assert set(values) == {0.0, float(np.float32(4 / 3))}
        assert 650 < sum(value > 0 for value in values) < 850


def test_dropout_at_its_ends(ctx: RuntimeContext) -> None:
    x = torch.ones(4)
    assert F.dropout(x, 0.0) is x
    assert F.dropout(x, 0.5, training=False) is x
    assert F.dropout(x, 1.0).tolist() == [0.0] * 4


X: Final = (2, 3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda x: F.linear(x, torch.ones(4, 2)),
            "linear: input of shape [2, 3] does not fit a weight of shape [4, 2]",
        ),
        (
            lambda x: F.linear(x, torch.ones(4, 3), torch.ones(3)),
            "linear: a bias of shape [3] does not fit a weight of shape [4, 3]",
        ),
        (
            lambda x: F.linear(x, torch.ones(4, 3).half()),
            "linear: expected the operands to have the same dtype, but got: torch.float32 != "
            "torch.float16",
        ),
        (F.swiglu, "swiglu: the last dimension must be even, got shape [2, 3]"),
        (
            lambda x: F.layer_norm(x, (2,)),
            "Given normalized_shape=[2], expected input with shape [*, 2], but got input of "
            "size[2, 3]",
        ),
        (
            lambda x: F.rms_norm(x, (3,), torch.ones(2)),
            "rms_norm: expected weight and bias of shape [3], got [2]",
        ),
        (
            lambda x: F.dropout(x, 1.5),
            "dropout probability has to be between 0 and 1, but got 1.5",
        ),
        (lambda x: F.dropout(x, inplace=True), "dropout(inplace=True) is not simulated"),
        (
            lambda x: F.scaled_dot_product_attention(x, x, x, x, is_causal=True),
            "_scaled_dot_product_attention: Explicit attn_mask should not be set when "
            "is_causal=True",
        ),
        (
            lambda x: F.scaled_dot_product_attention(
                torch.ones(3, 2, 2), torch.ones(2, 2, 2), torch.ones(2, 2, 2), enable_gqa=True
            ),
            "Number of heads in key and value must divide the number of heads in query, got 2 "
            "and 3",
        ),
        (
            lambda x: F.cross_entropy(x, torch.tensor([0, 1]), reduction="most"),
            "most is not a valid value for reduction",
        ),
        (
            lambda x: F.cross_entropy(x, torch.tensor([0, 1]), label_smoothing=2),
            "label_smoothing must be between 0.0 and 1.0. Got: 2",
        ),
        (
            lambda x: F.cross_entropy(x, torch.tensor([0, 1, 2])),
            "cross_entropy: target of shape [3] for an input of shape [2, 3]",
        ),
        (
            lambda x: F.cross_entropy(x, torch.ones(2)),
            "cross_entropy: probabilities of shape [2] for an input of shape [2, 3]",
        ),
        (
            lambda x: F.cross_entropy(x, torch.tensor([0, 1]), torch.ones(2)),
            "weight tensor should be defined either for all 3 classes or no classes but got "
            "weight tensor of shape: [2]",
        ),
        (
            lambda x: F.cross_entropy(x, torch.tensor([0, 1]), torch.ones(3, requires_grad=True)),
            "cross_entropy: the gradient of the weights of classes is not simulated, as in PyTorch",
        ),
        (
            lambda x: F.cross_entropy(x, torch.tensor([0, 3])),
            "[M1] cross_entropy: index 3 is out of bounds for dimension 1 with size 3",
        ),
        (
            lambda x: F.cross_entropy(x, torch.zeros(2, dtype=torch.int32)),
            "cross_entropy: expected a target of torch.int64 or torch.uint8, got torch.int32",
        ),
        (
            lambda x: F.nll_loss(x, torch.zeros(2)),
            "cross_entropy: expected a target of torch.int64 or torch.uint8, got torch.float32",
        ),
        (
            lambda x: F.scaled_dot_product_attention(x, torch.ones(4, 5), torch.ones(4, 5)),
            "scaled_dot_product_attention: the last dimensions of query and key differ: 3 and 5",
        ),
        (
            lambda x: F.scaled_dot_product_attention(x, torch.ones(4, 3), torch.ones(5, 3)),
            "scaled_dot_product_attention: key and value are of different length: 4 and 5",
        ),
        (
            lambda x: F.scaled_dot_product_attention(x[0], x, x),
            "scaled_dot_product_attention: each needs at least 2 dimensions",
        ),
        (
            lambda x: F.embedding(torch.tensor([0]), x, padding_idx=2),
            "Padding_idx must be within num_embeddings; got 2 of 2",
        ),
        (
            lambda x: F.embedding(x, x),
            "embedding: expected an index tensor of int64 or int32, got torch.float32",
        ),
    ],
)
def test_mistakes(ctx: RuntimeContext, wrong: Any, message: str) -> None:
    with pytest.raises(KernbenchError) as caught:
        wrong(torch.ones(X))
    lines = str(caught.value).splitlines()
    assert lines[0] == message
    assert "test_nn_functional.py" in "".join(lines)
    assert isinstance(caught.value, RuntimeError | ValueError | TypeError | UnsupportedError)


def test_one_kernel_each(ctx_without_data: RuntimeContext) -> None:
    x = torch.ones((8, 16), device="cuda", requires_grad=True)
    w = torch.ones(16, device="cuda", requires_grad=True)
    t = torch.zeros(8, dtype=torch.int64, device="cuda")
    stream = ctx_without_data.main.current_stream(0)

    def count(function: Any) -> tuple[int, int]:
        begin = stream.count
        out = function()
        middle = stream.count
        out.backward(out.detach())
        end = stream.count
        x.grad = w.grad = None
        return middle - begin, end - middle

    assert count(lambda: F.gelu(x)) == (1, 1)
    assert count(lambda: F.softmax(x, -1)) == (1, 1)
    assert count(lambda: F.layer_norm(x, (16,), w, w)) == (
        1,
        2,
    )  # one kernel, and a sum of two gradients of w
    assert count(lambda: F.rms_norm(x, (16,), w)) == (1, 1)
    assert count(lambda: F.cross_entropy(x, t)) == (2, 2)
    assert count(lambda: F.swiglu(x)) == (1, 1)
    heads = x.view(1, 1, 8, 16)
    assert count(lambda: F.scaled_dot_product_attention(heads, heads, heads)) == (1, 1 + 2)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weight", [None, [1.0, 2.0, 3.0]])
def test_targets_that_are_all_ignored_have_no_gradient(
    ctx: RuntimeContext, reduction: Any, smoothing: float, weight: list[float] | None
) -> None:
    x = torch.tensor([[0.1, 0.2, 0.3], [0.5, 0.1, 0.2]], requires_grad=True)
    loss = F.cross_entropy(
        x,
        torch.tensor([-100, -100]),
        None if weight is None else torch.tensor(weight),
        reduction=reduction,
        label_smoothing=smoothing,
    )
    loss.sum().backward()
    values = np.ravel(loss.detach().numpy())
    assert np.isnan(values).all() if reduction == "mean" else not values.any()
    assert x.grad is not None
    assert x.grad.tolist() == [[0.0] * 3] * 2, "as in PyTorch, also where the mean is nan"


def test_one_target_that_counts_among_ignored_ones(ctx: RuntimeContext) -> None:
    x = torch.tensor([[0.0, 0.0], [5.0, 1.0]], requires_grad=True)
    F.cross_entropy(x, torch.tensor([1, -100])).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[0.5, -0.5], [0.0, 0.0]]


@pytest.mark.parametrize("shape", [(0,), (0, 2), (2, 0), (0, 0), (2, 0, 3), (0, 3, 2)])
def test_losses_of_nothing(ctx: RuntimeContext, shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape)
    smooth = F.cross_entropy(x, torch.zeros(shape), label_smoothing=0.5)
    assert math.isnan(F.cross_entropy(x, torch.zeros(shape)).item())
    assert math.isnan(smooth.item())
    assert F.cross_entropy(x, torch.zeros(shape), reduction="sum").item() == 0
    if len(shape) == 1 or 0 not in (shape[:1] + shape[2:]):
        return
    classes = torch.zeros(shape[:1] + shape[2:], dtype=torch.int64)
    assert math.isnan(F.cross_entropy(x, classes, label_smoothing=0.5).item())


@pytest.mark.parametrize("shape", [(0, 0), (2, 0), (0, 3), (2, 3, 0)])
def test_attention_of_nothing(ctx: RuntimeContext, shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape)
    assert F.scaled_dot_product_attention(x, x, x).shape == shape


@pytest.mark.parametrize("norm", [F.layer_norm, F.rms_norm])
def test_norms_of_nothing(ctx: RuntimeContext, norm: Any) -> None:
    for shape, normalized in (((0, 3), (0, 3)), ((2, 0), (0,)), ((0, 3), (3,))):
        x, weight = torch.zeros(shape, requires_grad=True), torch.ones(normalized)
        weight.requires_grad_()
        norm(x, normalized, weight).sum().backward()
        assert x.grad is not None
        assert weight.grad is not None
        assert x.grad.shape == shape
        assert weight.grad.shape == normalized
