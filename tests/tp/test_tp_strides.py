"""Weights dealt out in turns are the dense layer where the whole of it is seen: against numpy."""

from typing import Any

import numpy as np
import pytest
from tp_cases import draw, grad_of, spawn

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.testing import Kernbench
from kernbench.torch.distributed.comm_debug import CommDebugMode
from kernbench.torch.nn.init import normal_
from kernbench.tp.config import GemmKernel, ModelParallelConfig
from kernbench.tp.layers import ColumnParallelLinear, RowParallelLinear
from kernbench.tp.utils import Group

KERNELS: list[GemmKernel] = ["tile", "library"]
NARROW, WIDE = 6, 24
F64 = torch.float64


def numbers(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = tensor.detach().cpu().numpy()
    return found


def dealt(whole: np.ndarray[Any, Any], group: Group, stride: int, dim: int) -> Any:
    """Returns the pieces of the calling rank: every `group.size()`-th one."""
    pieces = np.split(whole, group.size() * stride, dim)
    return np.concatenate(pieces[dist.get_rank(group) :: group.size()], dim)


def close(found: torch.Tensor, expected: Any) -> None:
    np.testing.assert_allclose(numbers(found), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("at_runtime", [False, True])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_gathered_output(
    kernbench: Kernbench, size: int, stride: int, at_runtime: bool, kernel: GemmKernel
) -> None:
    def worker(group: Group) -> None:
        torch.manual_seed(3)
        layer = ColumnParallelLinear(
            NARROW, WIDE, config=ModelParallelConfig(params_dtype=F64, kernel=kernel),
            init_method=normal_, gather_output=not at_runtime, stride=stride,
            keep_master_weight_for_test=True, tp_group=group,
        )  # fmt: skip
        assert layer.weight is not None
        assert layer.bias is not None
        assert layer.master_weight is not None
        dense, bias = numbers(layer.master_weight), np.arange(float(WIDE))
        with torch.no_grad():
            layer.bias.copy_(torch.tensor(dealt(bias, group, stride, 0)))
        x = draw(3, 2, NARROW, seed=1, dtype=F64).requires_grad_()
        seed = draw(3, 2, WIDE, seed=2, dtype=F64)
        out, _ = layer(x, runtime_gather_output=True) if at_runtime else layer(x)
        out.backward(seed)
        close(out, numbers(x) @ dense.T + bias)
        slope = numbers(seed)
        close(grad_of(x), slope @ dense)
        rows = slope.reshape(-1, WIDE)
        dweight = rows.T @ numbers(x).reshape(-1, NARROW)
        close(grad_of(layer.weight), dealt(dweight, group, stride, 0))
        close(grad_of(layer.bias), dealt(rows.sum(0), group, stride, 0))
        part, _ = layer(x, runtime_gather_output=False)
        close(part, dealt(numbers(x) @ dense.T + bias, group, stride, -1))

    spawn(kernbench, size, worker)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_scattered_input(
    kernbench: Kernbench, size: int, stride: int, kernel: GemmKernel
) -> None:
    def worker(group: Group) -> None:
        torch.manual_seed(3)
        layer = RowParallelLinear(
            WIDE, NARROW, config=ModelParallelConfig(params_dtype=F64, kernel=kernel),
            init_method=normal_, bias=False, input_is_parallel=False, skip_bias_add=False,
            stride=stride, keep_master_weight_for_test=True, tp_group=group,
        )  # fmt: skip
        assert layer.master_weight is not None
        dense = numbers(layer.master_weight)
        x = draw(3, 2, WIDE, seed=1, dtype=F64).requires_grad_()
        seed = draw(3, 2, NARROW, seed=2, dtype=F64)
        out, _ = layer(x)
        out.backward(seed)
        close(out, numbers(x) @ dense.T)
        slope = numbers(seed)
        close(grad_of(x), slope @ dense)
        dweight = slope.reshape(-1, NARROW).T @ numbers(x).reshape(-1, WIDE)
        close(grad_of(layer.weight), dealt(dweight, group, stride, 1))

    spawn(kernbench, size, worker)


@pytest.mark.parametrize("kernel", KERNELS)
def test_an_input_gradient_that_stays_that_of_a_part(
    kernbench: Kernbench, kernel: GemmKernel
) -> None:
    def worker(group: Group) -> None:
        layer = ColumnParallelLinear(
            NARROW, WIDE, config=ModelParallelConfig(params_dtype=F64, kernel=kernel),
            init_method=normal_, disable_grad_reduce=True, tp_group=group,
        )  # fmt: skip
        assert layer.weight is not None
        x = draw(3, 2, NARROW, seed=1, dtype=F64).requires_grad_()
        # Another one on each rank, so that a sum would show.
        seed = draw(3, 2, WIDE // 4, seed=2 + dist.get_rank(group), dtype=F64)
        out, _ = layer(x)
        with CommDebugMode() as mode:
            out.backward(seed)
        assert mode.get_total_counts() == 0
        close(grad_of(x), numbers(seed) @ numbers(layer.weight))
        dweight = numbers(seed).reshape(-1, WIDE // 4).T @ numbers(x).reshape(-1, NARROW)
        close(grad_of(layer.weight), dweight)

    spawn(kernbench, 4, worker)
