"""Weights that are frozen keep no input; those with a `main_grad` add their gradients to it."""

from typing import Any

import numpy as np
import pytest
from tp_cases import draw, leaf, spawn

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.testing import Kernbench
from kernbench.torch.nn.init import normal_
from kernbench.tp.config import ModelParallelConfig
from kernbench.tp.layers import ColumnParallelLinear, RowParallelLinear
from kernbench.tp.utils import Group

IN, OUT, ROWS = 8, 12, 4


def column(group: Group, **options: Any) -> Any:
    return ColumnParallelLinear(
        IN,
        OUT,
        config=ModelParallelConfig(**options),
        init_method=lambda weight: normal_(weight, std=0.5),
        tp_group=group,
        bias=False,
    )


def row(group: Group, **options: Any) -> Any:
    return RowParallelLinear(
        OUT,
        IN,
        config=ModelParallelConfig(**options),
        init_method=lambda weight: normal_(weight, std=0.5),
        tp_group=group,
        bias=False,
        input_is_parallel=True,
        skip_bias_add=False,
    )


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_frozen_weight_keeps_no_input(
    kernbench: Kernbench, ranks: int, rows: bool, frozen: bool
) -> None:
    def worker(group: Group) -> None:
        options = {"sequence_parallel": rows and ranks > 1}
        for make, width in ((column, IN), (row, OUT // ranks)):
            layer = make(group, **options)
            layer.weight.requires_grad_(not frozen)
            source = leaf(3, 64, width, seed=dist.get_rank(group))
            before = torch.cuda.memory_allocated()
            x = source * 2
            size = torch.cuda.memory_allocated() - before
            y, _ = layer(x)
            del x
            out = y.numel() * y.element_size()
            kept = torch.cuda.memory_allocated() - before - out
            assert kept == (0 if frozen else size)
            del y

    spawn(kernbench, ranks, worker)


@pytest.mark.parametrize("rows", [True, False])
def test_a_frozen_weight_hands_on_the_same_gradient(kernbench: Kernbench, rows: bool) -> None:
    def worker(group: Group) -> None:
        found = []
        for frozen in (True, False):
            torch.manual_seed(5)
            layer = column(group, sequence_parallel=rows)
            layer.weight.requires_grad_(not frozen)
            x = leaf(ROWS, 1, IN, seed=dist.get_rank(group) if rows else 9)
            layer(x)[0].pow(2).sum().backward()
            assert (layer.weight.grad is None) == frozen
            assert x.grad is not None
            found.append(x.grad.tolist())
        assert found[0] == found[1]

    spawn(kernbench, 2, worker)


@pytest.mark.parametrize("kernel", ["tile", "library"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_add_up_in_main_grad(kernbench: Kernbench, dtype: Any, kernel: Any) -> None:
    """Three passes, against float64 products of the same numbers: nothing is rounded to 16 bits."""

    def worker(group: Group) -> None:
        rank = dist.get_rank(group)
        layer = column(group, params_dtype=dtype, gradient_accumulation_fusion=True, kernel=kernel)
        layer.weight.main_grad = torch.full(layer.weight.shape, 0.5, device="cuda")
        expected = np.full(tuple(layer.weight.shape), 0.5)
        for step in range(3):
            x = draw(ROWS, 2, IN, seed=step, dtype=dtype)
            dy = draw(ROWS, 2, OUT // 3, seed=10 + step + rank, dtype=dtype)
            layer(x)[0].backward(dy)
            left = dy.double().cpu().numpy().reshape(-1, OUT // 3)
            expected += left.T @ x.double().cpu().numpy().reshape(-1, IN)
        assert layer.weight.grad is None
        found = layer.weight.main_grad
        assert found.dtype is torch.float32
        np.testing.assert_allclose(found.cpu().numpy(), expected, rtol=1e-5, atol=1e-5)

    spawn(kernbench, 3, worker)


@pytest.mark.parametrize("zeros", [True, False])
def test_who_reduces_gradients_is_told(kernbench: Kernbench, zeros: bool) -> None:
    def worker(group: Group) -> None:
        layer = row(group, gradient_accumulation_fusion=True)
        weight = layer.weight
        weight.main_grad = torch.zeros(weight.shape, device="cuda")
        weight.grad_added_to_main_grad = False
        if zeros:
            weight.zero_out_wgrad = True
        layer(draw(ROWS, 1, OUT // 2, seed=1))[0].sum().backward()
        assert weight.grad_added_to_main_grad
        assert weight.grad.shape == weight.shape
        if zeros:
            assert weight.grad.abs().max().item() == 0
        assert weight.main_grad.abs().max().item() > 0

    spawn(kernbench, 2, worker)


def test_without_main_grad_it_is_refused_before_anything_is_computed(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        layer = column(group, gradient_accumulation_fusion=True)
        x = draw(ROWS, 1, IN, seed=1)
        with pytest.raises(RuntimeError, match="the weight has none"):
            layer(x)
        layer.weight.requires_grad_(False)
        layer(x)
        layer.weight.requires_grad_(True)
        layer.weight.main_grad = torch.zeros(layer.weight.shape[::-1], device="cuda")
        with pytest.raises(RuntimeError, match="cannot be added to a tensor of shape"):
            layer(x)

    spawn(kernbench, 2, worker)
