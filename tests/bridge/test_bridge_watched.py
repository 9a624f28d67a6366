"""What counts the multiplications of large products agrees with PyTorch's own counter."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils import flop_counter  # noqa: E402 - after the check above
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import kernbench.bridge.operations.watched as watching  # noqa: E402
from kernbench.process.effort import EFFORT  # noqa: E402

pytestmark = pytest.mark.torch

_ATEN = torch.ops.aten


def _grown(*shape: int) -> Any:
    return torch.ones(shape, requires_grad=True)


CALLS: dict[str, Callable[[], Any]] = {
    "mm": lambda: _grown(3, 5) @ _grown(5, 7),
    "bmm": lambda: torch.bmm(_grown(2, 3, 5), _grown(2, 5, 7)),
    "addmm": lambda: torch.addmm(_grown(7), _grown(3, 5), _grown(5, 7)),
    "baddbmm": lambda: torch.baddbmm(_grown(2, 3, 7), _grown(2, 3, 5), _grown(2, 5, 7)),
    # PyTorch counts the gradient of the weights without its groups, so there are none here.
    "convolution": lambda: torch.conv2d(_grown(2, 4, 9, 8), _grown(6, 4, 3, 2), stride=2),
    "first convolution": lambda: torch.conv2d(torch.ones(2, 4, 9, 8), _grown(6, 4, 3, 2)),
    "transposed": lambda: torch.conv_transpose2d(_grown(2, 4, 5, 6), _grown(4, 3, 3, 2), stride=2),
}


@pytest.mark.parametrize("name", CALLS)
def test_counts_are_those_of_pytorch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward, of every kind of product that PyTorch counts on a CPU."""
    counted: list[int] = []
    monkeypatch.setattr(watching, "_ELEMENTS", 1)
    monkeypatch.setattr(watching, "LARGE", 0)
    monkeypatch.setattr(EFFORT, "computed", lambda _, flops, __: counted.append(flops))

    class Counts(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return watching.watched(func, func)(*args, **(kwargs or {}))

    with flop_counter.FlopCounterMode(display=False) as reference:
        CALLS[name]().sum().backward()
    with Counts():
        CALLS[name]().sum().backward()
    assert sum(counted) == reference.get_total_flops() > 0


def test_attention_counts_its_products() -> None:
    """PyTorch counts attention on GPUs alone: the same sizes, for those of the CPU."""
    query, key, value = torch.ones(2, 6, 16, 8), torch.ones(2, 6, 24, 8), torch.ones(2, 6, 24, 8)
    forward = _ATEN._scaled_dot_product_flash_attention_for_cpu
    known = flop_counter.sdpa_flop_count(query.shape, key.shape, value.shape)
    assert watching._FLOPS[forward](query, key, value, 0.0, False) == known
    backward = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward
    known = flop_counter.sdpa_backward_flop_count(query.shape, query.shape, key.shape, value.shape)
    assert watching._FLOPS[backward](query, query, key, value) == known
