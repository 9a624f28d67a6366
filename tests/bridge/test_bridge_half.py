"""Products of bf16 and fp16 numbers on a simulated device: sums in float32, rounded once."""

from collections.abc import Callable
from typing import Any

import pytest
from bridge_costs import on_one_rank

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
F = torch.nn.functional

SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    "mm": ((64, 128), (128, 96)),
    "bmm": ((3, 32, 64), (3, 64, 48)),
    "addmm": ((96,), (64, 128), (128, 96)),
    "baddbmm": ((3, 32, 48), (3, 32, 64), (3, 64, 48)),
    "conv2d": ((2, 8, 12, 12), (16, 8, 3, 3), (16,)),
}

"""Shapes of operands."""

PRODUCTS = {
    "mm": (0, 1, 2),
    "bmm": (0, 1, 2),
    "addmm": (0, 2, 3),
    "baddbmm": (0, 2, 3),
    "conv2d": (0, 1, 2, 3),
}
"""Which of the result and the operands' gradients are products; a bias is only added."""


def _operation(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(torch, name)
    return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", SHAPES)
def test_a_product_is_that_of_float32_rounded_once_forward_and_backward(
    name: str, dtype: Any
) -> None:
    torch.manual_seed(0)
    given = [torch.randn(shape).to(dtype) for shape in SHAPES[name]]
    exact = [each.float().requires_grad_() for each in given]
    want = _operation(name)(*exact)
    into = torch.randn(want.shape).to(dtype)
    want.backward(into.float())
    got: list[Any] = []

    def worker() -> None:
        leaves = [each.cuda().requires_grad_() for each in given]
        out = _operation(name)(*leaves)
        out.backward(into.cuda())
        got.extend(each.detach().cpu() for each in (out, *(one.grad for one in leaves)))

    on_one_rank(worker)
    want = [want, *(each.grad for each in exact)]
    assert [each.dtype for each in got] == [dtype] * len(want)
    for place, (found, one) in enumerate(zip(got, want, strict=True)):
        if place in PRODUCTS[name]:
            assert torch.equal(found, one.detach().to(dtype))


def test_attention_of_bf16_is_that_of_float32_but_for_what_is_kept_in_between() -> None:
    torch.manual_seed(0)
    given = [torch.randn(1, 4, 64, 32).to(torch.bfloat16) for _ in range(3)]
    exact = [each.float().requires_grad_() for each in given]
    F.scaled_dot_product_attention(*exact, is_causal=True).sum().backward()
    got: list[Any] = []

    def worker() -> None:
        leaves = [each.cuda().requires_grad_() for each in given]
        F.scaled_dot_product_attention(*leaves, is_causal=True).sum().backward()
        got.extend(each.grad.cpu() for each in leaves)

    on_one_rank(worker)
    for found, one in zip(got, exact, strict=True):
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found.float(), one.grad, rtol=0.02, atol=0.02)


def test_a_product_of_two_types_is_refused_as_by_pytorch() -> None:
    said: list[str] = []

    def worker() -> None:
        narrow = torch.zeros(64, 64, dtype=torch.bfloat16, device="cuda")
        with pytest.raises(RuntimeError) as failed:
            narrow @ torch.zeros(64, 64, device="cuda")
        said.append(str(failed.value))

    on_one_rank(worker)
    assert "same dtype" in said[0]
