"""Tensors where an operation takes a number, and other values where it takes an integer."""

from collections.abc import Callable
from typing import Any, Final

import pytest

import kernbench.torch
from kernbench.errors import OperandError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.testing import Kernbench

torch: Final[Any] = kernbench.torch
"""Without types, which ask for numbers."""


def _stepped(make: Callable[..., Any]) -> list[float]:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    make([parameter], lr=torch.tensor(0.5)).step()
    return [round(each, 5) for each in parameter.tolist()]


def _clipped() -> list[float]:
    parameter = torch.nn.Parameter(torch.zeros(4))
    parameter.grad = torch.ones(4)
    torch.nn.utils.clip_grad_norm_([parameter], torch.tensor(1.0))
    assert parameter.grad is not None
    return [round(each, 5) for each in parameter.grad.tolist()]


READ: Final[dict[str, tuple[Callable[[], Any], Any]]] = {
    "SGD": (lambda: _stepped(torch.optim.SGD), [0.5, 0.5]),
    "Adam": (lambda: _stepped(torch.optim.Adam), [0.5, 0.5]),
    "clip_grad_norm_": (_clipped, [0.5] * 4),
    "add": (lambda: torch.add(torch.ones(1), 1, alpha=torch.tensor(2.0)).tolist(), [3]),
    "sub": (lambda: torch.sub(torch.ones(1), 1, alpha=torch.tensor(2.0)).tolist(), [-1]),
    "arange from": (lambda: torch.arange(torch.tensor(8.0), 10).tolist(), [8, 9]),
    "arange to": (lambda: torch.arange(torch.tensor(3)).dtype, torch.int64),
    "full": (lambda: torch.full((1,), torch.tensor(3)).dtype, torch.int64),
    "linspace": (lambda: torch.linspace(0, torch.tensor(2.0), 3).tolist(), [0, 1, 2]),
}
"""What the host reads, as in PyTorch, and PyTorch's answers."""


@pytest.mark.parametrize("name", READ)
def test_the_host_waits_for_the_number(kernbench: Kernbench, name: str) -> None:
    function, expected = READ[name]

    def worker(rank: int) -> None:
        assert function() == expected

    kernbench.spawn(worker, nprocs=1)


def test_several_numbers_are_refused(ctx: RuntimeContext) -> None:
    calls: list[Callable[[], object]] = [
        lambda: torch.arange(torch.ones(2)),
        lambda: torch.full_like(torch.ones(3), torch.ones(2)),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="2 elements cannot be converted to Scalar"):
            call()


@pytest.mark.parametrize(
    "function",
    [
        lambda x, number: torch.isclose(x, x, number),
        lambda x, number: torch.nn.functional.layer_norm(x, (2,), eps=number),
    ],
)
def test_a_kernel_that_would_wait_is_told_and_is_no_deadlock(
    kernbench: Kernbench, function: Callable[[Any, Any], Any]
) -> None:
    def wait(x: Any, number: Any) -> None:
        function(x, number)
        torch.cuda.synchronize()

    def worker(rank: int) -> None:
        with pytest.raises(OperandError, match="where the operation takes a number") as caught:
            wait(torch.ones(2), torch.tensor(0.5))
        assert "tensor.item()" in str(caught.value)
        assert "test_numbers.py" in str(caught.value)

    kernbench.spawn(worker, nprocs=1)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.topk(1.5),
        lambda x: x.multinomial(1.5),
        lambda x: x.repeat_interleave(1.5),
        lambda x: x.roll(1.5),
    ],
)
def test_a_fraction_is_refused_before_anything_is_issued(
    ctx: RuntimeContext, function: Callable[[Any], Any]
) -> None:
    x = torch.ones(3, device="cuda:0")
    with pytest.raises(
        TypeError, match=r"must be (Tensor or )?int( or .*)?, not float|expected integers"
    ) as caught:
        function(x)
    assert "test_numbers.py" in str(caught.value)
    assert x.tolist() == [1, 1, 1]
