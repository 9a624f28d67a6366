"""What the tests of tensor parallelism share: sizes of groups, tolerances, workers in a group."""

from collections.abc import Callable
from typing import Any

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.runtime_api.context import RuntimeContext
from kernbench.testing import Kernbench

SIZES = [1, 2, 4, 8]
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
_TOLERANCES = {
    torch.float64: (1e-12, 1e-12),
    torch.float32: (1e-5, 1e-6),
    torch.float16: (5e-3, 5e-3),
    torch.bfloat16: (2.5e-2, 2.5e-2),
}


def spawn(
    kernbench: Kernbench, size: int, worker: Callable[[dist.ProcessGroup], object], **dials: Any
) -> RuntimeContext:
    """Calls a worker on each rank, with the group of all."""

    def run(rank: int) -> None:
        del rank
        dist.init_process_group("nccl")
        group = dist.group.WORLD
        assert group is not None
        worker(group)

    return kernbench.spawn(run, nprocs=size, **dials)


def draw(*shape: int, seed: int, dtype: Any = torch.float32) -> torch.Tensor:
    """Returns numbers on the rank's device, the same ones on all ranks with the same seed."""
    return torch.randn(
        *shape, generator=torch.Generator("cuda").manual_seed(seed), dtype=dtype, device="cuda"
    )


def leaf(*shape: int, seed: int, dtype: Any = torch.float32) -> torch.Tensor:
    """Returns what `draw` does, with a gradient to come."""
    return draw(*shape, seed=seed, dtype=dtype).requires_grad_()


def part(x: torch.Tensor, group: dist.ProcessGroup, dim: int) -> torch.Tensor:
    """Returns the calling rank's part of a dimension."""
    mine: torch.Tensor = x.detach().chunk(group.size(), dim)[dist.get_rank(group)]
    return mine.contiguous()


def grad_of(x: Any) -> torch.Tensor:
    grad = x.grad
    assert isinstance(grad, torch.Tensor)
    return grad


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Compares with the tolerances that tensor parallelism promises, of the largest value."""
    rtol, atol = _TOLERANCES[found.dtype]
    scale = max(1.0, float(expected.detach().abs().max()))
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol * scale)


def assert_same_everywhere(x: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Checks that all ranks have the same bits."""
    bits = x.detach().cpu().numpy().tobytes()
    found: list[Any] = [None] * group.size()
    dist.all_gather_object(found, bits, group)
    assert all(each == bits for each in found)
