"""The gradient of every operation, against finite differences in float64."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import kernbench.torch as torch
import kernbench.torch.nn.functional as F
from kernbench.runtime_api.context import RuntimeContext

Shape = tuple[int, ...]
Case = tuple[Callable[..., Any], tuple[Shape, ...]]

EPS: Final = 1e-6


def _values(shapes: tuple[Shape, ...], positive: bool) -> list[Any]:
    """Returns values of all kinds, apart from each other, none near 0."""
    numbers = np.random.default_rng(7)
    arrays = []
    for shape in shapes:
        count = int(np.prod(shape))
        size = numbers.permutation(np.linspace(0.3, 1.9, count)) + numbers.random(count) * 0.01
        sign = np.ones(count) if positive else numbers.choice([-1.0, 1.0], count)
        arrays.append((size * sign).reshape(shape))
    return arrays


def _outputs(found: Any) -> list[torch.Tensor]:
    many = list(found) if isinstance(found, tuple | list) else [found]
    return [out for out in many if out.is_floating_point()]


def check(
    function: Callable[..., Any],
    shapes: tuple[Shape, ...],
    device: str = "cpu",
    positive: bool = False,
) -> None:
    """Compares the gradients of all inputs with central differences along every element."""
    arrays = _values(shapes, positive)
    inputs = [
        torch.tensor(array, dtype=torch.float64, device=device, requires_grad=True)
        for array in arrays
    ]
    outputs = [out for out in _outputs(function(*inputs)) if out.requires_grad]
    assert outputs
    numbers = np.random.default_rng(3)
    seeds = [numbers.normal(size=tuple(out.shape)) for out in outputs]
    torch.autograd.backward(
        outputs, [torch.tensor(seed, dtype=torch.float64, device=device) for seed in seeds]
    )

    def total(values: list[Any]) -> float:
        given = [torch.tensor(value, dtype=torch.float64) for value in values]
        found = _outputs(function(*given))[: len(seeds)]
        return sum(
            float((out.numpy() * seed).sum()) for out, seed in zip(found, seeds, strict=True)
        )

    for place, array in enumerate(arrays):
        expected = np.zeros(array.shape)
        for at in np.ndindex(array.shape):
            sides = []
            for step in (EPS, -EPS):
                moved = [each.copy() for each in arrays]
                moved[place][at] += step
                sides.append(total(moved))
            expected[at] = (sides[0] - sides[1]) / (2 * EPS)
        grad = inputs[place].grad
        got = np.zeros(array.shape) if grad is None else grad.numpy()
        assert got.shape == array.shape
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-7)


A: Final = (3, 4)

POSITIVE: Final[dict[str, Case]] = {
    "log": (torch.log, (A,)),
    "log1p": (torch.log1p, (A,)),
    "log2": (torch.log2, (A,)),
    "log10": (torch.log10, (A,)),
    "sqrt": (torch.sqrt, (A,)),
    "rsqrt": (torch.rsqrt, (A,)),
    "pow of two tensors": (torch.pow, (A, (4,))),
    "number to a power": (lambda x: 2.5**x, (A,)),
    "p-norm, p=3": (lambda x: torch.norm(x, 3, 1), (A,)),
}


UNARY: Final = [
    *("abs", "ceil", "cos", "erf", "exp", "expm1", "floor", "neg", "reciprocal", "relu", "round"),
    *("sigmoid", "sign", "sin", "square", "tan", "tanh", "trunc"),
]


def _in_place(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that applies an operation in place to what it made before."""

    def function(*inputs: Any) -> Any:
        made = inputs[0] * 1.0
        operation(made, *inputs[1:])
        return made

    return function


def _set(key: Any) -> Callable[..., Any]:
    def function(x: Any, value: Any) -> Any:
        made = x * 1.0
        made[key] = value
        return made * made

    return function


def _index(*values: Any, shape: Shape | None = None) -> torch.Tensor:
    index = torch.tensor(list(values), device="cpu")
    return index if shape is None else index.reshape(shape)


def _rows(x: Any, *values: int) -> Any:
    """Returns an index tensor where `x` is."""
    return torch.tensor(list(values)).to(x.device)


MASK: Final = np.arange(12).reshape(A) % 3 == 0


def _mask(x: Any) -> Any:
    return torch.tensor(MASK).to(x.device)


def _view_then_write(a: Any) -> Any:
    base = a * 1.0
    seen = base.T[1:]
    base.mul_(a + 2)
    base[0].mul_(3)
    return seen * seen.sum()


def _pieces(a: Any, b: Any) -> Any:
    whole = torch.zeros(2, 4, dtype=a.dtype, device=a.device)
    rows = [whole[0], whole[1]]
    rows[0].copy_(a)
    whole[1] = b * 2
    rows[1].add_(a)
    return whole.exp() * rows[0]


CASES: Final[dict[str, Case]] = {
    **{name: (getattr(torch, name), (A,)) for name in [*UNARY, "angle"]},
    **{
        f"{name}_": (_in_place(getattr(torch.Tensor, f"{name}_")), (A,))
        for name in UNARY
        if name != "square"
    },
    "silu": (F.silu, (A,)),
    "gelu": (F.gelu, (A,)),
    "gelu, tanh": (lambda x: F.gelu(x, approximate="tanh"), (A,)),
    "round, decimals": (lambda x: torch.round(x, decimals=1) * 1.0, (A,)),
    # Two operands
    "add": (torch.add, (A, (4,))),
    "add, alpha": (lambda a, b: torch.add(a, b, alpha=3), ((3, 1), (1, 4))),
    "add_": (_in_place(lambda a, b: a.add_(b, alpha=2)), (A, (4,))),
    "sub": (torch.sub, ((4,), A)),
    "sub, alpha": (lambda a, b: torch.sub(a, b, alpha=3), (A, ())),
    "rsub": (lambda a: 2 - a, (A,)),
    "mul": (torch.mul, (A, (3, 1))),
    "mul with itself": (lambda a: a * a, (A,)),
    "mul_": (_in_place(lambda a, b: a.mul_(b)), (A, (4,))),
    "mul_ with itself": (_in_place(lambda a: a.mul_(a)), (A,)),
    "mul by a number": (lambda a: a * 3, (A,)),
    "div": (torch.div, (A, (3, 1))),
    "div_": (_in_place(lambda a, b: a.div_(b)), (A, (4,))),
    "div by a number": (lambda a: a / 3, (A,)),
    "number over": (lambda a: 3 / a, (A,)),
    "div, floor": (lambda a, b: torch.div(a, b, rounding_mode="floor"), (A, (4,))),
    "remainder": (torch.remainder, (A, (4,))),
    "remainder of a number": (lambda a: 5 % a, (A,)),
    "fmod": (torch.fmod, (A, (4,))),
    "pow, 2": (lambda a: a**2, (A,)),
    "pow, 3": (lambda a: a**3, (A,)),
    "pow, 0": (lambda a: a**0, (A,)),
    "pow_": (_in_place(lambda a: a.pow_(3)), (A,)),
    "pow_, 2": (_in_place(lambda a: a.pow_(2)), (A,)),
    "maximum": (torch.maximum, (A, (4,))),
    "minimum": (torch.minimum, (A, (4,))),
    "logaddexp": (torch.logaddexp, (A, (4,))),
    "logaddexp2": (torch.logaddexp2, ((3, 1), (4,))),
    "clamp": (lambda a: torch.clamp(a, -1, 1), (A,)),
    "clamp, low": (lambda a: torch.clamp(a, min=0.5), (A,)),
    "clamp, high": (lambda a: torch.clamp(a, max=0.5), (A,)),
    "clamp, tensors": (lambda a, b, c: torch.clamp(a, b - 1, c + 1), (A, (4,), (4,))),
    "clamp, low tensor": (lambda a, b: torch.clamp(a, min=b), (A, (4,))),
    "clamp, high tensor": (lambda a, b: torch.clamp(a, max=b), (A, (4,))),
    "clamp_": (_in_place(lambda a: a.clamp_(-1, 1)), (A,)),
    "where": (lambda a, b: torch.where(_mask(a), a, b), (A, (4,))),
    "where, number": (lambda a: torch.where(_mask(a), 2.0, a), (A,)),
    "masked_fill": (lambda a: a.masked_fill(_mask(a), 2.0), (A,)),
    "masked_fill, tensor": (lambda a, b: a.masked_fill(_mask(a), b), (A, ())),
    "masked_fill_": (_in_place(lambda a: a.masked_fill_(_mask(a), 2.0)), (A,)),
    "lerp": (torch.lerp, (A, A, (4,))),
    "lerp_": (_in_place(lambda a, b: a.lerp_(b, 0.25)), (A, A)),
    "addcmul": (lambda a, b, c: torch.addcmul(a, b, c, value=2), (A, (4,), (3, 1))),
    "addcdiv": (lambda a, b, c: torch.addcdiv(a, b, c, value=2), (A, (4,), (3, 1))),
    "addcmul_": (_in_place(lambda a, b, c: a.addcmul_(b, c)), (A, (4,), (3, 1))),
    "addcdiv_": (_in_place(lambda a, b, c: a.addcdiv_(b, c)), (A, (4,), (3, 1))),
    "fill_": (_in_place(lambda a, b: a.fill_(b)), (A, ())),
    "zero_": (_in_place(lambda a: a.zero_()), (A,)),
    # Reductions
    "sum": (torch.sum, (A,)),
    "sum, dim": (lambda a: a.sum(0), (A,)),
    "sum, dims": (lambda a: a.sum((0, 2), keepdim=True), ((2, 3, 4),)),
    "sum of a single value": (torch.sum, ((),)),
    "mean": (torch.mean, (A,)),
    "mean, dim": (lambda a: a.mean(-1), (A,)),
    "prod": (torch.prod, (A,)),
    "prod, dim": (lambda a: a.prod(1), (A,)),
    "prod, with zeros": (
        lambda a: torch.prod(a * torch.tensor([1.0, 0, 1, 1], dtype=a.dtype).to(a.device), 1),
        (A,),
    ),
    "amax": (lambda a: a.amax(1), (A,)),
    "amin": (lambda a: a.amin((0, 1)), (A,)),
    "max": (lambda a: a.max(), (A,)),
    "max, dim": (lambda a: a.max(1, keepdim=True), (A,)),
    "min, dim": (lambda a: a.min(0), (A,)),
    "var": (torch.var, (A,)),
    "var, dim": (lambda a: a.var(1, correction=0), (A,)),
    "std": (lambda a: a.std(1), (A,)),
    "norm": (torch.norm, (A,)),
    "norm, 1": (lambda a: a.norm(1, 0), (A,)),
    "norm, inf": (lambda a: a.norm(float("inf"), 1), (A,)),
    "norm, 0": (lambda a: a.norm(0.0, 1) + a.sum(), (A,)),
    "logsumexp": (lambda a: torch.logsumexp(a, 1), (A,)),
    "logsumexp, dims": (lambda a: torch.logsumexp(a, (0, 1), keepdim=True), (A,)),
    "cumsum": (lambda a: a.cumsum(1), (A,)),
    "softmax": (lambda a: a.softmax(0), (A,)),
    "log_softmax": (lambda a: a.log_softmax(-1), (A,)),
    "softmax of a single value": (lambda a: a.softmax(0), ((),)),
    "sort": (lambda a: a.sort(1, descending=True), (A,)),
    "topk": (lambda a: a.topk(2, 0), (A,)),
    # Shapes and views
    "view": (lambda a: a.view(2, 6), (A,)),
    "reshape that copies": (lambda a: a.T.reshape(12), (A,)),
    "flatten": (lambda a: a.flatten(), (A,)),
    "unflatten": (lambda a: a.unflatten(1, (2, 2)), (A,)),
    "permute": (lambda a: a.permute(2, 0, 1), ((2, 3, 4),)),
    "transpose": (lambda a: a.transpose(0, 1), (A,)),
    "squeeze": (lambda a: a.squeeze(), ((1, 3, 1),)),
    "unsqueeze": (lambda a: a.unsqueeze(1), (A,)),
    "movedim": (lambda a: a.movedim(0, 2), ((2, 3, 4),)),
    "T": (lambda a: a.T, (A,)),
    "mT": (lambda a: a.mT, ((2, 3, 4),)),
    "expand": (lambda a: a.expand(2, 3, 4), ((3, 1),)),
    "broadcast_to": (lambda a: torch.broadcast_to(a, (3, 4)), ((4,),)),
    "narrow": (lambda a: a.narrow(1, 1, 2), (A,)),
    "select": (lambda a: a.select(0, 2), (A,)),
    "unbind": (lambda a: torch.unbind(a)[1], (A,)),
    "split": (lambda a: torch.split(a, 3, 1), (A,)),
    "chunk": (lambda a: torch.chunk(a, 2)[0], (A,)),
    "diagonal": (lambda a: torch.diagonal(a, 1), (A,)),
    "slices": (lambda a: a[1:, ::2], (A,)),
    "slices, None and a number": (lambda a: a[None, ..., 1], ((2, 3, 4),)),
    "a view of a view": (lambda a: a[1:].T[::2], (A,)),
    "repeat": (lambda a: a.repeat(2, 1, 3), (A,)),
    "repeat_interleave": (lambda a: torch.repeat_interleave(a, 3, 1), (A,)),
    "repeat_interleave, flat": (lambda a: torch.repeat_interleave(a, 2), (A,)),
    "flip": (lambda a: a.flip(0, 1), (A,)),
    "roll": (lambda a: a.roll(1), (A,)),
    "roll, dims": (lambda a: torch.roll(a, (1, 2), (0, 1)), (A,)),
    "tril": (lambda a: a.tril(), (A,)),
    "triu": (lambda a: a.triu(1), (A,)),
    "cat": (lambda a, b: torch.cat([a, b, a], 1), (A, (3, 2))),
    "stack": (lambda a, b: torch.stack([a, b], 1), (A, A)),
    "hstack": (lambda a, b: torch.hstack([a, b]), ((3,), (2,))),
    "vstack": (lambda a, b: torch.vstack([a, b]), ((3,), (3,))),
    # By index tensors
    "index": (lambda a: a[_rows(a, 0, 2, 2)], (A,)),
    "index, two": (lambda a: a[_rows(a, 0, 2, 0), _rows(a, 1, -1, 1)], (A,)),
    "index, apart": (lambda a: a[_rows(a, 0, 1), :, _rows(a, 3, 3)], ((2, 3, 4),)),
    "index, mask": (lambda a: a[_mask(a)], (A,)),
    "index, slice and tensor": (lambda a: a[1:, _rows(a, 0, 0)], (A,)),
    "index_select": (lambda a: a.index_select(1, _rows(a, 3, 0, 3)), (A,)),
    "gather": (lambda a: a.gather(1, _rows(a, 0, 3, 3, 1, 0, 0).reshape(3, 2)), (A,)),
    "gather, fewer rows": (lambda a: a.gather(0, _rows(a, 2, 2, 0).reshape(1, 3)), (A,)),
    "scatter": (lambda a, b: a.scatter(1, _rows(a, 0, 2, 1).reshape(3, 1), b), (A, (3, 1))),
    "scatter, number": (lambda a: a.scatter(1, _rows(a, 0, 2, 1).reshape(3, 1), 5.0), (A,)),
    "scatter, part of a source": (
        lambda a, b: a.scatter(1, _rows(a, 0, 2, 1).reshape(3, 1), b),
        (A, A),
    ),
    "scatter_add_": (
        _in_place(lambda a, b: a.scatter_add_(1, _rows(a, 0, 0, 1, 1, 2, 3).reshape(3, 2), b)),
        (A, (3, 2)),
    ),
    "scatter_add": (lambda a, b: a.scatter_add(0, _rows(a, 2, 0).reshape(1, 2), b), (A, (1, 2))),
    "index_add": (lambda a, b: a.index_add(1, _rows(a, 3, 0, 3), b, alpha=2), (A, (3, 3))),
    "repeat_interleave, each": (lambda a: a.repeat_interleave(_rows(a, 2, 0, 1), 0), (A,)),
    "setting slices": (_set((slice(None), slice(1, 3))), (A, (2,))),
    "setting a row": (_set(1), (A, (4,))),
    "setting by index": (lambda a, b: _set(_rows(a, 0, 2))(a, b), (A, (2, 4))),
    "setting by mask": (lambda a, b: _set(_mask(a))(a, b), (A, ())),
    "setting by mask, values": (lambda a, b: _set(_mask(a))(a, b), (A, (4,))),
    "setting a number": (lambda a: _set((0, 1))(a, 2.0), (A,)),
    # Copies
    "clone": (torch.clone, (A,)),
    "contiguous": (lambda a: a.T.contiguous(), (A,)),
    "to and back": (lambda a: a.to("cuda").to("cpu", copy=True).to(a.device), (A,)),
    "copy_": (_in_place(lambda a, b: a.copy_(b)), (A, (4,))),
    # Products
    "matmul": (torch.matmul, (A, (4, 2))),
    "matmul, vectors": (torch.matmul, ((4,), (4,))),
    "matmul, left vector": (torch.matmul, ((4,), (2, 4, 3))),
    "matmul, right vector": (torch.matmul, ((2, 3, 4), (4,))),
    "matmul, tall": (torch.matmul, ((2, 3, 4), (4, 2))),
    "matmul, batches": (torch.matmul, ((2, 1, 3, 4), (3, 4, 2))),
    "matmul, right batch": (torch.matmul, ((3, 4), (2, 4, 2))),
    "mm": (torch.mm, (A, (4, 2))),
    "bmm": (torch.bmm, ((2, 3, 4), (2, 4, 2))),
    "mv": (torch.mv, (A, (4,))),
    "dot": (torch.dot, ((4,), (4,))),
    "inner": (torch.inner, (A, (2, 4))),
    "outer": (torch.outer, ((3,), (4,))),
    "addmm": (lambda a, b, c: torch.addmm(a, b, c, beta=2, alpha=3), ((2,), A, (4, 2))),
    "baddbmm": (torch.baddbmm, ((3, 2), (2, 3, 4), (2, 4, 2))),
    "einsum": (lambda a, b: torch.einsum("bij,bjk->bik", a, b), ((2, 3, 4), (2, 4, 2))),
    "einsum, one": (lambda a: torch.einsum("ij->j", a), (A,)),
    "einsum, three": (lambda a, b, c: torch.einsum("i,ij,j->", a, b, c), ((3,), A, (4,))),
    "einsum, summed alone": (lambda a, b: torch.einsum("ij,k->k", a, b), (A, (2,))),
    "einsum, broadcast": (
        lambda a, b: torch.einsum("...ij,...jk->...ik", a, b),
        ((2, 1, 3, 4), (3, 4, 2)),
    ),
    "einsum, extent 1": (lambda a, b: torch.einsum("ij,ij->i", a, b), ((3, 1), A)),
    "tensordot": (lambda a, b: torch.tensordot(a, b, 1), (A, (4, 2))),
    # torch.nn.functional
    "linear": (F.linear, ((2, 3, 4), (5, 4), (5,))),
    "linear, vector": (F.linear, ((4,), (5, 4))),
    "embedding": (lambda w: F.embedding(_rows(w, 0, 2, 2).reshape(1, 3), w), (A,)),
    "swiglu": (F.swiglu, (A,)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), ((2, 3, 4), (4,), (4,))),
    "layer_norm, two dims": (lambda x, w: F.layer_norm(x, (3, 4), w), ((2, 3, 4), (3, 4))),
    "layer_norm, bias alone": (lambda x, b: F.layer_norm(x, (4,), None, b), (A, (4,))),
    "rms_norm": (lambda x, w: F.rms_norm(x, (4,), w), ((2, 3, 4), (4,))),
    "rms_norm, plain": (lambda x: F.rms_norm(x, (4,), eps=0.1), (A,)),
    "attention": (F.scaled_dot_product_attention, ((2, 3, 4), (2, 5, 4), (2, 5, 2))),
    "attention, causal": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3),
        ((1, 2, 3, 4),) * 3,
    ),
    "attention, groups": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        ((1, 4, 2, 3), (1, 2, 3, 3), (1, 2, 3, 3)),
    ),
    "attention, added mask": (
        F.scaled_dot_product_attention,
        ((2, 3, 4), (2, 5, 4), (2, 5, 2), (3, 5)),
    ),
    "cross_entropy": (lambda x: F.cross_entropy(x, _rows(x, 0, 3, -100)), (A,)),
    "cross_entropy, smooth": (
        lambda x: F.cross_entropy(x, _rows(x, 0, 3, 1), label_smoothing=0.2, reduction="sum"),
        (A,),
    ),
    "cross_entropy, each": (
        lambda x: F.cross_entropy(x, _rows(x, 0, 3, 1, 2).reshape(2, 2), reduction="none"),
        ((2, 4, 2),),
    ),
    "cross_entropy, probabilities": (
        lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
        (A, A),
    ),
    "cross_entropy of one": (lambda x: F.cross_entropy(x, torch.tensor(2).to(x.device)), ((4,),)),
    "mse_loss": (F.mse_loss, (A, A)),
    **{
        name: (getattr(F, name), (A,))
        for name in (
            *("elu", "glu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "logsigmoid"),
            *("mish", "normalize", "relu6", "selu", "softplus", "softsign"),
        )
    },
    **{
        name: (getattr(F, name), (A, A))
        for name in (
            *("cosine_similarity", "huber_loss", "l1_loss", "pairwise_distance"),
            "smooth_l1_loss",
        )
    },
    "softmin": (lambda a: F.softmin(a, 0), (A,)),
    "pad": (lambda a: F.pad(a, (1, 2), value=3.0).exp(), (A,)),
    "kl_div": (lambda a, b: F.kl_div(a, b * b + 0.1, reduction="batchmean"), (A, A)),
    "binary_cross_entropy": (
        lambda a: F.binary_cross_entropy(a.sigmoid(), torch.full_like(a, 0.3)),
        (A,),
    ),
    "binary_cross_entropy_with_logits": (
        lambda a: F.binary_cross_entropy_with_logits(a, torch.full_like(a, 0.3)),
        (A,),
    ),
    "batch_norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        ((5, 3), (3,), (3,)),
    ),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), ((2, 4, 3), (4,), (4,))),
    # Together
    "a base written through its view": (_in_place(lambda a, b: a[1:].mul_(b)), (A, (4,))),
    "a view of a base that was written": (_view_then_write, (A,)),
    "zeros filled piece by piece": (_pieces, ((4,), (4,))),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients(ctx: RuntimeContext, name: str) -> None:
    function, shapes = CASES[name]
    check(function, shapes)


@pytest.mark.parametrize("name", POSITIVE)
def test_gradients_of_positive_numbers(ctx: RuntimeContext, name: str) -> None:
    function, shapes = POSITIVE[name]
    check(function, shapes, positive=True)


ON_A_DEVICE: Final = [
    "mul",
    "pow, 3",
    "var",
    "index",
    "setting slices",
    "matmul, batches",
    "linear",
]


@pytest.mark.parametrize("name", ON_A_DEVICE)
def test_gradients_on_a_device(ctx: RuntimeContext, name: str) -> None:
    function, shapes = CASES[name]
    arrays = _values(shapes, False)
    here = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in arrays]
    there = [
        torch.tensor(a, dtype=torch.float64, device="cuda", requires_grad=True) for a in arrays
    ]
    function(*here).sum().backward()
    function(*there).sum().backward()
    for a, b in zip(here, there, strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert b.grad.is_cuda
        np.testing.assert_array_equal(a.grad.numpy(), b.grad.numpy())
