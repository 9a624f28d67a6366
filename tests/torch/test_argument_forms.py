"""Arguments in the forms that PyTorch takes mean what they mean there."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
import kernbench.torch.nn.functional as F
from kernbench.testing import Kernbench
from kernbench.torch import nn, optim

VALUES = np.array([[1.0, 5.0, 2.0], [4.0, -3.0, 7.0]], np.float32)


@pytest.fixture(autouse=True)
def _machine(kernbench: Kernbench) -> Iterator[None]:
    with kernbench.context():
        yield


def _x() -> torch.Tensor:
    return torch.tensor(VALUES)


@pytest.mark.parametrize("name", ["var", "std"])
def test_spread_takes_unbiased_second_and_keepdim_third(name: str) -> None:
    ours, oracle = getattr(torch, name), getattr(np, name)
    x = _x()
    for found, axis, ddof, keep in (
        (ours(x, 0, False), 0, 0, False),
        (ours(x, 0, True, True), 0, 1, True),
        (ours(x, False), None, 0, False),
        (ours(x, unbiased=False), None, 0, False),
        (ours(x, (0, 1), keepdim=True), (0, 1), 1, True),
        (ours(x, 1, correction=2), 1, 2, False),
        (getattr(x, name)(1, False), 1, 0, False),
    ):
        expected = oracle(VALUES, axis=axis, ddof=ddof, keepdims=keep)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
    with pytest.raises(TypeError, match="unbiased or correction"):
        ours(x, 0, False, correction=2)


def test_the_type_of_a_norm_stands_where_pytorch_has_it() -> None:
    x = _x()
    assert x.norm(2, None, False, torch.float64).dtype is torch.float64
    assert torch.norm(x, 2, None, False, None, torch.float64).dtype is torch.float64


def test_extremes_of_two_tensors() -> None:
    x, y = _x(), torch.zeros(2, 3)
    assert torch.max(x, other=y).tolist() == np.maximum(VALUES, 0).tolist()
    assert x.min(other=y).tolist() == x.min(y).tolist() == np.minimum(VALUES, 0).tolist()
    with pytest.raises(TypeError, match="neither dim nor keepdim"):
        torch.max(x, 0, other=y)  # type: ignore[call-overload]


def test_order_of_the_flags_of_unique_and_topk() -> None:
    x = torch.tensor([3, 1, 3])
    values, inverse = torch.unique(x, True, True)
    assert (values.tolist(), inverse.tolist()) == ([1, 3], [1, 0, 1])
    assert torch.unique(x, False).tolist() == [1, 3]
    assert torch.topk(x, 2, 0, True, False).values.tolist() == [3, 3]
    with pytest.raises(TypeError, match="positional"):
        torch.sort(x, 0, False, True)


def test_sizes_by_keyword() -> None:
    x = _x()
    for made in (torch.zeros(size=(2, 3)), torch.ones(size=(2, 3)), torch.empty(size=(2, 3)),
                 torch.rand(size=(2, 3)), torch.randn(size=(2, 3)), x.new_zeros(size=(2, 3)),
                 x.new_ones(size=(2, 3)), x.new_empty(size=(2, 3))):  # fmt: skip
        assert made.shape == (2, 3)
    assert torch.permute(x, dims=(1, 0)).tolist() == VALUES.T.tolist()
    assert x.reshape(shape=(3, 2)).tolist() == VALUES.reshape(3, 2).tolist()
    assert x.view(size=(6,)).tolist() == VALUES.reshape(6).tolist()
    assert x.view(dtype=torch.int32).dtype is torch.int32
    assert x[:1].expand(size=(2, 3)).tolist() == [VALUES[0].tolist()] * 2
    assert torch.flip(x, dims=(1,)).tolist() == VALUES[:, ::-1].tolist()
    assert x.repeat(repeats=(2, 1)).tolist() == np.tile(VALUES, (2, 1)).tolist()
    assert torch.swapaxes(x, axis0=0, axis1=1).tolist() == VALUES.T.tolist()
    assert [part.tolist() for part in x.split(split_size=1)] == [[row] for row in VALUES.tolist()]


def test_sizes_given_both_ways() -> None:
    x = _x()
    for call in (
        lambda: torch.zeros(2, size=(3,)),
        lambda: torch.rand(2, size=(3,)),
        lambda: x.reshape(6, shape=(3, 2)),
        lambda: x.view(6, size=(3, 2)),
        lambda: x.permute(0, 1, dims=(1, 0)),
        lambda: x.flip(0, dims=(1,)),
        lambda: x.repeat(1, 2, repeats=(2, 1)),
        lambda: x.expand(2, 3, size=(2, 3)),
    ):
        with pytest.raises(TypeError, match=r"by keyword, and .* by position"):
            call()  # type: ignore[no-untyped-call]


def test_bounds_by_keyword() -> None:
    assert torch.arange(end=3).tolist() == [0, 1, 2]
    assert torch.arange(1, end=3).tolist() == [1, 2]
    with pytest.raises(TypeError, match="needs an end"):
        torch.arange()
    for made in (torch.randint(5, (40,)), torch.randint(5, size=(40,)),
                 torch.randint(high=5, size=(40,)), torch.randint(0, 5, (40,))):  # fmt: skip
        assert made.shape == (40,)
        assert set(made.tolist()) <= set(range(5))
    assert set(torch.randint(3, 5, size=(40,)).tolist()) == {3, 4}
    with pytest.raises(TypeError, match=r"takes \(high, size\)"):
        torch.randint(5)


def test_what_makes_tensors_can_pin_and_ask_for_gradients() -> None:
    like = torch.ones(3)
    for made in (torch.arange(3.0, pin_memory=True), torch.eye(2, pin_memory=True),
                 torch.linspace(0, 1, 3, pin_memory=True), torch.empty_like(like, pin_memory=True),
                 torch.zeros_like(like, pin_memory=True), torch.rand(3, pin_memory=True),
                 torch.randn_like(like, pin_memory=True), torch.randperm(3, pin_memory=True),
                 torch.randint(3, (2,), pin_memory=True), like.new_full((2,), 1, pin_memory=True),
                 torch.normal(0.0, 1.0, (2,), pin_memory=True),
                 like.new_zeros(2, pin_memory=True)):  # fmt: skip
        assert made.is_pinned()
    assert like.new_ones(2, requires_grad=True).requires_grad
    assert torch.normal(0.0, 1.0, (2,), requires_grad=True).requires_grad
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.rand(3, device="cuda", pin_memory=True)
    first, second = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    drawn = torch.rand_like(like, generator=first).tolist()
    assert drawn == torch.rand(3, generator=second).tolist()


def test_scatter_takes_a_value() -> None:
    index = torch.tensor([[1, 0, 1]])
    x = _x().scatter(0, index, value=0.0)
    assert x.tolist() == [[1.0, 0.0, 2.0], [0.0, -3.0, 0.0]]
    for wrong in ({}, {"src": _x(), "value": 1.0}):
        with pytest.raises(TypeError, match="either src or value"):
            _x().scatter(0, index, **wrong)  # type: ignore[arg-type]


def test_the_size_that_repeat_interleave_is_told() -> None:
    x = torch.tensor([1, 2])
    assert torch.repeat_interleave(x, 2, 0, output_size=4).tolist() == [1, 1, 2, 2]
    with pytest.raises(RuntimeError, match="Invalid output_size 3"):
        torch.repeat_interleave(x, 2, output_size=3)


@pytest.mark.parametrize(("shape", "dim"), [((3,), 0), ((2, 3), 1), ((2, 3, 2), 0)])
def test_softmax_without_a_dimension(shape: tuple[int, ...], dim: int) -> None:
    x = torch.rand(*shape)
    for implicit, explicit in ((F.softmax, torch.softmax), (F.log_softmax, torch.log_softmax)):
        with pytest.warns(UserWarning, match="Implicit dimension choice") as caught:
            found = implicit(x)
        assert caught[0].filename == __file__
        assert found.tolist() == explicit(x, dim).tolist()
    assert F.softmax(x, dim, 3, torch.float64).dtype is torch.float64


def test_bernoulli_of_one_probability() -> None:
    x = torch.zeros(8)
    assert x.bernoulli(1.0).tolist() == [1.0] * 8
    assert torch.bernoulli(torch.ones(8), 0.0).tolist() == [0.0] * 8


def test_arrays_of_tensors_that_need_gradients() -> None:
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="requires grad"):
        x.numpy()
    assert x.numpy(force=True).tolist() == [1.0, 1.0]


def test_decay_apart_from_the_gradient() -> None:
    found = []
    kinds: list[tuple[type[optim.Adam], dict[str, Any]]] = [
        (optim.AdamW, {}),
        (optim.Adam, {"decoupled_weight_decay": True}),
        (optim.Adam, {}),
    ]
    for kind, options in kinds:
        p = nn.Parameter(torch.ones(2))
        p.grad = torch.full((2,), 0.25)
        kind([p], 0.1, weight_decay=0.5, **options).step()
        found.append(p.tolist())
    assert found[0] == found[1] != found[2]


def test_shared_modules_by_each_of_their_names() -> None:
    shared = nn.Linear(1, 1, bias=False)
    model = nn.Sequential(shared, shared)
    assert [name for name, _ in model.named_modules()] == ["", "0"]
    every = [name for name, _ in model.named_modules(remove_duplicate=False)]
    assert every == ["", "0", "1"]
    assert len([*model.modules(remove_duplicate=False)]) == 3
    assert [name for name, _ in model.named_parameters()] == ["0.weight"]
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    assert names == ["0.weight", "1.weight"]


def test_state_dicts() -> None:
    model, found = nn.Linear(1, 1), {"other": torch.ones(1)}
    assert model.state_dict(destination=found, prefix="a.", keep_vars=True) is found
    assert [*found] == ["other", "a.weight", "a.bias"]
    assert found["a.weight"] is model.weight
    assert not model.state_dict()["weight"].requires_grad
    assert nn.Parameter().shape == (0,)
    assert len(nn.ModuleList(None)) == 0


def test_a_reduce_op_of_a_reduce_op() -> None:
    op = dist.ReduceOp(dist.ReduceOp.SUM)
    assert op == dist.ReduceOp.SUM
    assert op.op == dist.ReduceOp.SUM
    with pytest.raises(TypeError, match="takes one of ReduceOp"):
        dist.ReduceOp("sum")  # type: ignore[arg-type]
