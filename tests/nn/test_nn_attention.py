"""`scaled_dot_product_attention`: which kernel it is, which operands it takes, what it keeps."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import kernbench.torch as torch
import kernbench.torch.nn.functional as F
from kernbench.errors import KernbenchError, OperandError, UnsupportedError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.pytorch_versions import OLDEST, minor_of
from kernbench.tensors.errors import TensorError
from kernbench.testing import Kernbench
from kernbench.torch.nn.attention import SDPBackend, sdpa_kernel
from kernbench.torch.utils.checkpoint import checkpoint

MATH, FLASH = SDPBackend.MATH, SDPBackend.FLASH_ATTENTION
EFFICIENT, CUDNN = SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION
attention: Final[Callable[..., torch.Tensor]] = F.scaled_dot_product_attention
flash: Final[Any] = torch.ops.aten._scaled_dot_product_flash_attention
flash_backward: Final[Any] = torch.ops.aten._scaled_dot_product_flash_attention_backward


def _drawn(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def _halves(*shape: int, **more: Any) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.bfloat16, device="cuda", **more)


# Which kernel


class Row:
    """A call on a device: operands, and the kernels that PyTorch takes for it, best first."""

    def __init__(
        self, *kernels: SDPBackend, dtype: Any = torch.bfloat16, s: int = 8, **call: Any
    ) -> None:
        self.kernels, self.dtype, self.s = kernels, dtype, s
        self.shape = call.pop("shape", (2, 4, 8, 16))
        self.width = call.pop("width", self.shape[-1])
        self.call = call

    def run(self) -> torch.Tensor:
        *lead, _, width = self.shape
        shapes = self.shape, (*lead, self.s, width), (*lead, self.s, self.width)
        q, k, v = (torch.ones(each, dtype=self.dtype, device="cuda") for each in shapes)
        call = dict(self.call)
        if "attn_mask" in call:
            call["attn_mask"] = torch.ones(call["attn_mask"], dtype=self.dtype, device="cuda")
        return attention(q, k, v, **call)


ROWS: Final = {
    "plain": Row(CUDNN, FLASH, EFFICIENT, MATH),
    "float16": Row(CUDNN, FLASH, EFFICIENT, MATH, dtype=torch.float16),
    "float32": Row(EFFICIENT, MATH, dtype=torch.float32),
    "causal": Row(CUDNN, FLASH, EFFICIENT, MATH, is_causal=True),
    "causal, more keys": Row(CUDNN, EFFICIENT, MATH, s=9, is_causal=True),
    "more keys": Row(CUDNN, FLASH, EFFICIENT, MATH, s=9),
    "mask": Row(CUDNN, EFFICIENT, MATH, attn_mask=(8, 8)),
    "dropout": Row(CUDNN, FLASH, EFFICIENT, MATH, dropout_p=0.25),
    "other dropout": Row(CUDNN, FLASH, EFFICIENT, MATH, dropout_p=0.1),
    "one key": Row(FLASH, EFFICIENT, MATH, s=1),
    "no key": Row(MATH, s=0),
    "width 20": Row(FLASH, MATH, shape=(2, 4, 8, 20)),
    "width 20 with a mask": Row(MATH, shape=(2, 4, 8, 20), attn_mask=(8, 8)),
    "width 20 of float32": Row(EFFICIENT, MATH, shape=(2, 4, 8, 20), dtype=torch.float32),
    "width 18 of float32": Row(MATH, shape=(2, 4, 8, 18), dtype=torch.float32),
    "float64": Row(MATH, dtype=torch.float64),
    "width 256": Row(FLASH, EFFICIENT, MATH, shape=(2, 4, 8, 256)),
    "width 264": Row(EFFICIENT, MATH, shape=(2, 4, 8, 264)),
    "another width of values": Row(CUDNN, EFFICIENT, MATH, width=8),
    "widths of latent attention": Row(CUDNN, EFFICIENT, MATH, shape=(2, 4, 8, 192), width=128),
    "three dimensions": Row(MATH, shape=(4, 8, 16)),
}
TRACED: Final = {
    CUDNN: ["aten::_scaled_dot_product_cudnn_attention"],
    FLASH: ["aten::_scaled_dot_product_flash_attention"],
    EFFICIENT: ["aten::_scaled_dot_product_efficient_attention"],
}


@pytest.mark.parametrize("name", ROWS)
def test_the_kernel_is_the_one_that_pytorch_takes(kernbench: Kernbench, name: str) -> None:
    row = ROWS[name]
    ctx = kernbench.context(data=False, record="full")
    with ctx:
        torch.cuda.synchronize()
        for number, kernel in enumerate(row.kernels):
            rest = [each for each in SDPBackend if each not in row.kernels[:number]]
            before = len(ctx.engine.op_log.records)
            with sdpa_kernel(rest):
                row.run()
            torch.cuda.synchronize()
            records = ctx.engine.op_log.records[before:]
            names = [each.name for each in records if each.category == "compute"]
            traced = [each for each in names if "scaled" in each or "_safe" in each]
            assert traced == TRACED.get(kernel, ["aten::_safe_softmax"])
        wrong = [each for each in TRACED if each not in row.kernels]
        if wrong:
            with sdpa_kernel(wrong), pytest.raises(TensorError) as caught:
                row.run()
            assert str(caught.value).startswith("No available kernel. Aborting execution.")
            for each in wrong:
                assert f"{each.name} takes no such operands: " in str(caught.value)
            assert "test_nn_attention.py" in str(caught.value)
            assert "SDPBackend.MATH takes all operands" in caught.value.hint


def test_priority(kernbench: Kernbench) -> None:
    ctx = kernbench.context(data=False, record="full")
    with ctx:
        with sdpa_kernel([FLASH, CUDNN], set_priority=True):
            attention(*[_halves(1, 2, 8, 16)] * 3)
        torch.cuda.synchronize()
        assert ctx.engine.op_log.records[-1].name == TRACED[FLASH][0]


@pytest.mark.parametrize("backends", [[EFFICIENT], [CUDNN], []], ids=str)
def test_on_the_host_there_are_two(ctx: RuntimeContext, backends: list[SDPBackend]) -> None:
    x = torch.ones(1, 2, 3, 4)
    with sdpa_kernel(backends), pytest.raises(TensorError, match=r"^No viable backend") as caught:
        attention(x, x, x)
    assert "on cpu there are FLASH_ATTENTION, MATH" in str(caught.value)
    with sdpa_kernel(FLASH):
        assert attention(x, x, x, attn_mask=torch.ones(3, 3)).shape == x.shape


def test_the_backward_pass_has_pytorchs_names(kernbench: Kernbench) -> None:
    ctx = kernbench.context(data=False, record="full")
    with ctx:
        x = _halves(1, 2, 8, 16, requires_grad=True)
        out = attention(x, x.detach(), x.detach())
        assert "ScaledDotProductCudnnAttentionBackward0" in repr(out.grad_fn)
        out.backward(out.detach())
        torch.cuda.synchronize()
        names = [each.name for each in ctx.engine.op_log.records]
    assert TRACED[CUDNN][0] + "_backward" in names
    assert not [name for name in names if "zero" in name], "no gradient is made of nothing"


# Operands, as PyTorch takes them

SHAPES: Final = {
    "two dimensions": ((3, 4), (5, 4), (5, 2)),
    "three": ((2, 3, 4), (2, 5, 4), (2, 5, 2)),
    "five": ((2, 3, 2, 3, 4), (2, 3, 2, 5, 4), (2, 3, 2, 5, 4)),
    "one head of keys": ((2, 4, 3, 4), (2, 1, 5, 4), (2, 1, 5, 4)),
    "one head of queries": ((2, 1, 3, 4), (2, 4, 5, 4), (2, 4, 5, 4)),
    "one head of keys, all of values": ((2, 4, 3, 4), (2, 1, 5, 4), (2, 4, 5, 4)),
    "one batch of queries": ((1, 4, 3, 4), (2, 4, 5, 4), (2, 4, 5, 4)),
    "one batch of values": ((2, 4, 3, 4), (2, 4, 5, 4), (1, 4, 5, 4)),
    "fewer dimensions of queries": ((4, 3, 4), (2, 4, 5, 4), (2, 4, 5, 4)),
    "fewer dimensions of keys": ((2, 4, 3, 4), (5, 4), (5, 4)),
    "several batch dimensions, broadcast": ((2, 1, 2, 3, 4), (3, 2, 5, 4), (1, 1, 2, 5, 4)),
    "no queries": ((2, 2, 0, 4), (2, 2, 5, 4), (2, 2, 5, 4)),
    "no keys": ((2, 2, 3, 4), (2, 2, 0, 4), (2, 2, 0, 4)),
    "no batch": ((0, 2, 3, 4), (0, 2, 5, 4), (0, 2, 5, 4)),
    "no heads": ((2, 0, 3, 4), (2, 0, 5, 4), (2, 0, 5, 4)),
    "no features": ((1, 1, 3, 0), (1, 1, 2, 0), (1, 1, 2, 4)),
}
GROUPED: Final = {
    "groups": ((2, 4, 3, 4), (2, 2, 5, 4), (2, 2, 5, 4)),
    "groups, three dimensions": ((4, 3, 4), (2, 5, 4), (2, 5, 4)),
    "groups, five dimensions": ((2, 2, 4, 3, 4), (2, 2, 2, 5, 4), (2, 2, 2, 5, 4)),
    "groups of keys other than of values": ((2, 4, 3, 4), (2, 2, 5, 4), (2, 1, 5, 4)),
    "groups, one batch of keys": ((2, 4, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4)),
}
MASKS: Final = {
    "none": None,
    "causal": None,
    "rows and columns": (3, 5),
    "columns": (1, 5),
    "heads": (2, 4, 1, 5),
    "heads alone": (4, 3, 5),
    "batch": (2, 1, 3, 5),
}


def _judge(device: str, arrays: list[Any], mask: Any, **call: Any) -> None:
    """Compares a result and its gradients with PyTorch's, of every backend of ours."""
    theirs = pytest.importorskip("torch")
    grads = [theirs.tensor(each, requires_grad=True) for each in arrays]
    needs = mask is not None and mask.dtype != np.bool_
    their_mask = None if mask is None else theirs.tensor(mask, requires_grad=needs)
    expected = theirs.nn.functional.scaled_dot_product_attention(
        *grads, attn_mask=their_mask, **call
    )
    (expected * expected).sum().backward()
    for backend in (MATH, FLASH) if device == "cpu" else (MATH,):
        mine = [torch.tensor(each, device=device).requires_grad_() for each in arrays]
        my_mask = None if mask is None else torch.tensor(mask, device=device)
        if my_mask is not None and needs:
            my_mask.requires_grad_()
        with sdpa_kernel(backend):
            got = attention(*mine, attn_mask=my_mask, **call)
        assert tuple(got.shape) == tuple(expected.shape)
        np.testing.assert_allclose(got.detach().cpu().numpy(), expected.detach(), atol=1e-12)
        (got * got).sum().backward()
        pairs: list[tuple[Any, Any]] = list(zip(mine, grads, strict=True))
        if needs:
            pairs.append((my_mask, their_mask))
        for ours, other in pairs:
            assert ours.grad is not None
            np.testing.assert_allclose(ours.grad.cpu().numpy(), other.grad, atol=1e-12)


@pytest.mark.torch
@pytest.mark.parametrize("name", [*SHAPES, *GROUPED])
def test_shapes_as_pytorch_takes_them(device: str, name: str) -> None:
    shapes = (SHAPES | GROUPED)[name]
    arrays = [_drawn(*shape, seed=n) for n, shape in enumerate(shapes)]
    more = {"enable_gqa": True} if name in GROUPED else {}
    _judge(device, arrays, None, **more)
    _judge(device, arrays, None, is_causal=True, scale=0.3, **more)


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["bools", "numbers"])
@pytest.mark.parametrize("name", MASKS)
def test_masks_as_pytorch_takes_them(device: str, name: str, kind: str) -> None:
    arrays = [_drawn(*shape) for shape in ((2, 4, 3, 4), (2, 4, 5, 4), (2, 4, 5, 2))]
    shape = MASKS[name]
    if shape is None:
        _judge(device, arrays, None, is_causal=name == "causal")
        return
    mask = _drawn(*shape)
    _judge(device, arrays, mask > 0 if kind == "bools" else mask)


@pytest.mark.torch
def test_a_mask_of_several_batch_dimensions(device: str) -> None:
    arrays = [_drawn(*shape) for shape in ((2, 3, 2, 3, 4), (2, 3, 2, 5, 4), (2, 3, 2, 5, 4))]
    for shape in ((2, 3, 2, 3, 5), (3, 1, 3, 5), (2, 1, 1, 3, 5), (3, 5)):
        _judge(device, arrays, _drawn(*shape))


@pytest.mark.torch
@pytest.mark.parametrize(("rows", "columns"), [(2, 5), (5, 2), (4, 4)])
def test_causal_counts_from_the_front(device: str, rows: int, columns: int) -> None:
    _judge(
        device,
        [_drawn(1, 2, n, 4, seed=n) for n in (rows, columns, columns)],
        None,
        is_causal=True,
    )


@pytest.mark.torch
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (1, 2, 0, 3)])
def test_results_lie_as_pytorchs_do(device: str, order: tuple[int, ...]) -> None:
    theirs = pytest.importorskip("torch")
    array = _drawn(2, 3, 5, 4)
    other, mine = theirs.tensor(array).permute(order), torch.tensor(array, device=device)
    mine = mine.permute(order)
    changes: list[Callable[[Any], Any]] = [
        lambda x: (x, x, x),
        lambda x: (x, x, x[..., :2]),
        lambda x: (x[0], x[0], x[0]),
    ]
    if minor_of(theirs.__version__) > OLDEST:
        changes.pop()  # since 2.14 a result of three dimensions lies as the queries do
    for change in changes:
        chosen = theirs.nn.attention.SDPBackend
        # float64 is a matrix of scores on devices.
        backends = [chosen.MATH] if device == "cuda" else [chosen.FLASH_ATTENTION, chosen.MATH]
        with theirs.nn.attention.sdpa_kernel(backends):
            expected = theirs.nn.functional.scaled_dot_product_attention(*change(other))
        assert attention(*change(mine)).stride() == expected.stride()


def test_a_float_mask_of_halves(ctx: RuntimeContext) -> None:
    x = torch.tensor(_drawn(1, 2, 3, 8)).bfloat16().cuda()
    mask = torch.tensor(_drawn(3, 3)).float().cuda().requires_grad_()
    got = attention(x, x, x, attn_mask=mask)
    assert got.dtype is torch.bfloat16
    got.sum().backward()
    assert mask.grad is not None
    assert mask.grad.dtype is torch.float32


# Dropout


def test_dropout_follows_the_generator(device: str) -> None:
    x = torch.tensor(_drawn(1, 2, 8, 4), device=device)

    def drawn(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return attention(x, x, x, dropout_p=0.5)

    first = drawn(1)
    assert torch.equal(drawn(1), first)
    assert not torch.equal(drawn(2), first)
    torch.manual_seed(1)
    assert not torch.equal(attention(x, x, x, dropout_p=0.5), attention(x, x, x, dropout_p=0.5))
    assert not attention(x, x, x, dropout_p=1.0).any()
    mean = torch.stack([drawn(seed) for seed in range(400)]).mean(0)
    np.testing.assert_allclose(mean.cpu().numpy(), attention(x, x, x).cpu().numpy(), atol=0.25)


def test_dropout_is_the_same_when_recomputed(device: str) -> None:
    grads = []
    for recompute in (False, True):
        torch.manual_seed(5)
        x = torch.tensor(_drawn(1, 2, 8, 4), device=device, requires_grad=True)

        def layer(x: torch.Tensor) -> torch.Tensor:
            return attention(x, x, x, dropout_p=0.5)

        out = checkpoint(layer, x, use_reentrant=False) if recompute else layer(x)
        (out * out).sum().backward()
        assert x.grad is not None
        grads.append(x.grad)
    assert torch.equal(grads[0], grads[1])


def test_with_data_off_nothing_is_drawn(ctx_without_data: RuntimeContext) -> None:
    x = _halves(1, 2, 8, 16, requires_grad=True)
    attention(x, x, x, dropout_p=0.5).sum().backward()
    assert x.grad is not None


# What is refused


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda x: attention(x, x.double(), x),
            "scaled_dot_product_attention: expected query, key and value of one type, got "
            "torch.float32, torch.float64 and torch.float32",
        ),
        (
            lambda x: attention(x.long(), x.long(), x.long()),
            "scaled_dot_product_attention: not implemented for torch.int64",
        ),
        (
            lambda x: attention(x, x, x, attn_mask=torch.ones(3, 3).long()),
            "_scaled_dot_product_attention: Expected attn_mask dtype to be bool or float or to "
            "match query dtype, but got attn_mask.dtype: torch.int64 and query.dtype: "
            "torch.float32 instead.",
        ),
        (
            lambda x: attention(x, x, x, attn_mask=torch.ones(3, 4)),
            "_scaled_dot_product_attention: attn_mask of shape [3, 4] does not broadcast to the "
            "scores' [2, 4, 3, 3]",
        ),
        (
            lambda x: attention(x, x, x, attn_mask=torch.ones(3)),
            "_scaled_dot_product_attention: attn_mask of shape [3] does not broadcast to the "
            "scores' [2, 4, 3, 3]",
        ),
        (
            lambda x: attention(x, x, x, attn_mask=torch.ones(1, 1, 1, 3, 3)),
            "_scaled_dot_product_attention: attn_mask of shape [1, 1, 1, 3, 3] does not broadcast "
            "to the scores' [2, 4, 3, 3]",
        ),
        (
            lambda x: attention(x, x, x, dropout_p=1.5),
            "dropout probability has to be between 0 and 1, but got 1.5",
        ),
        (
            lambda x: attention(x, x[:, :3], x[:, :3]),
            "scaled_dot_product_attention: the shapes [2, 4] and [2, 3] and [2, 3] do not "
            "broadcast",
        ),
        (
            lambda x: attention(x, x[:, :0], x[:, :0], enable_gqa=True),
            "Number of heads in key and value must divide the number of heads in query, got 0 "
            "and 4",
        ),
        (
            lambda x: attention(x[0, 0], x[0, 0], x[0, 0], enable_gqa=True),
            "scaled_dot_product_attention: enable_gqa needs a dimension of heads before the last "
            "two",
        ),
        (
            lambda x: attention(x, x, x, is_causal=1),
            "scaled_dot_product_attention(): argument 'is_causal' must be bool, not int",
        ),
        (
            lambda x: flash(x, x, x, is_causal=1),
            "_scaled_dot_product_flash_attention(): argument 'is_causal' must be bool, not int",
        ),
        (
            lambda x: flash(x[0], x[0], x[0]),
            "_scaled_dot_product_flash_attention: expected four dimensions each, got [4, 3, 8] "
            "and [4, 3, 8]",
        ),
        (
            lambda x: flash(x, x, x, return_debug_mask=True),
            "_scaled_dot_product_flash_attention(return_debug_mask=True) is not simulated",
        ),
        (
            lambda x: flash_backward(x, x, x, x, x, x[..., 0], None, None, 3, 4, 0.0, False, x, x),
            "_scaled_dot_product_flash_attention_backward: max_q and max_k are 3 and 4, but there "
            "are 3 queries and 3 keys",
        ),
    ],
)
@pytest.mark.parametrize("backend", [MATH, FLASH])
def test_mistakes(ctx: RuntimeContext, wrong: Any, message: str, backend: SDPBackend) -> None:
    x = torch.ones(2, 4, 3, 8)
    with sdpa_kernel(backend), pytest.raises(KernbenchError) as caught:
        wrong(x)
    assert str(caught.value).splitlines()[0] == message
    assert "test_nn_attention.py" in str(caught.value)


def test_gradients_of_gradients_are_refused(ctx: RuntimeContext) -> None:
    x = torch.ones(1, 2, 3, 8, requires_grad=True)
    with pytest.raises(UnsupportedError, match="create_graph"):
        torch.autograd.grad(attention(x, x, x).sum(), x, create_graph=True)


# The operator by its own name


@pytest.mark.torch
@pytest.mark.parametrize("causal", [False, True])
def test_flash_equals_the_twin_of_the_host(device: str, causal: bool) -> None:
    theirs = pytest.importorskip("torch").ops.aten
    as_theirs = pytest.importorskip("torch").tensor
    arrays = [_drawn(2, 4, 6, 8, seed=n) for n in range(4)]
    q, k, v, grad = (as_theirs(each) for each in arrays)
    expected = theirs._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=0.3)
    mine = [torch.tensor(each, device=device) for each in arrays]
    got = flash(*mine[:3], 0.0, causal, scale=0.3)
    assert len(got) == 9
    assert got[2:6] == (None, None, 6, 6)
    for ours, other in zip(got[:2], expected, strict=True):
        np.testing.assert_allclose(ours.cpu().numpy(), other, atol=1e-12)
    slopes = theirs._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, q, k, v, *expected, 0.0, causal, scale=0.3
    )
    found = flash_backward(mine[3], *mine[:3], *got[:6], 0.0, causal, got[6], got[7], scale=0.3)
    for ours, other in zip(found, slopes, strict=True):
        np.testing.assert_allclose(ours.cpu().numpy(), other, atol=1e-12)


def test_flash_has_a_gradient_and_its_sums_have_none(ctx: RuntimeContext) -> None:
    x = torch.tensor(_drawn(1, 2, 6, 8)).float().cuda().requires_grad_()
    out, lse, *_ = flash(x, x, x)
    assert out.requires_grad
    assert not lse.requires_grad
    (mine,) = torch.autograd.grad(out.sum(), x)
    (expected,) = torch.autograd.grad(attention(x, x, x).sum(), x)
    assert mine is not None
    assert expected is not None
    assert torch.equal(mine, expected)


def test_flash_is_causal_from_the_back(device: str) -> None:
    q, kv = (torch.tensor(_drawn(1, 2, s, 4), device=device) for s in (3, 5))
    seen = torch.tensor(np.tri(3, 5, 2, dtype=np.bool_), device=device)
    out, *_ = flash(q, kv, kv, is_causal=True)
    np.testing.assert_allclose(
        out.cpu().numpy(), attention(q, kv, kv, attn_mask=seen).cpu().numpy(), atol=1e-13
    )
    out, lse, *_ = flash(kv, q, q, is_causal=True)
    assert not out[:, :, :2].any()
    assert (lse[:, :, :2] == -np.inf).all()


def test_flash_drops_the_same_again(device: str) -> None:
    x = torch.tensor(_drawn(1, 2, 6, 8), device=device, requires_grad=True)
    got = flash(x, x, x, 0.5)
    out, lse = got[0].detach(), got[1]
    grad = torch.ones_like(out)
    got[0].backward(grad)
    y = x.detach()
    slopes = flash_backward(grad, y, y, y, out, lse, *got[2:6], 0.5, False, got[6], got[7])
    assert x.grad is not None
    np.testing.assert_allclose(sum(slopes).cpu().numpy(), x.grad.cpu().numpy(), atol=1e-13)


def test_halves_of_a_sequence_merge(ctx: RuntimeContext) -> None:
    q, k, v = (torch.tensor(_drawn(1, 2, 8, 4, seed=n), device="cuda") for n in range(3))
    parts = [flash(q, k[:, :, part], v[:, :, part]) for part in (slice(0, 3), slice(3, 8))]
    whole = torch.logaddexp(parts[0][1], parts[1][1])
    merged = sum(out * (lse - whole).exp()[..., None] for out, lse, *_ in parts)
    np.testing.assert_allclose(merged.cpu().numpy(), attention(q, k, v).cpu().numpy(), atol=1e-13)


def test_other_operators_are_refused_by_name(ctx: RuntimeContext) -> None:
    aten: Any = torch.ops.aten
    with pytest.raises(
        AttributeError, match=r"^torch\.ops\.aten\._flash_attention_forward is not "
    ):
        _ = aten._flash_attention_forward
    with pytest.raises(OperandError, match="argument 'query' must be Tensor, not numpy"):
        flash(np.ones((1, 2, 3, 4)), torch.ones(1), torch.ones(1))
    assert ctx.ops.aten._scaled_dot_product_flash_attention.__name__ == flash.__name__


# Memory


def test_scores_are_never_in_memory(ctx_without_data: RuntimeContext) -> None:
    s = 1 << 17
    x = _halves(1, 1, s, 64, requires_grad=True)
    begin = torch.cuda.memory_allocated()
    out = attention(x, x, x, is_causal=True)
    kept = s * 64 * 2 + s * 4
    assert torch.cuda.memory_allocated() - begin == kept
    out.backward(x.detach())
    assert torch.cuda.max_memory_allocated() - begin < 8 * kept
