"""Tensors that go from device to device, inside and outside of autocast: types and gradients."""

import contextlib
from typing import Any

import pytest

import kernbench

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch")


def cast(kind: Any) -> Any:
    return contextlib.nullcontext() if kind is None else torch.autocast("cuda", kind)


@pytest.mark.parametrize("kind", [None, torch.float16, torch.bfloat16], ids=str)
def test_a_move_keeps_the_type_and_its_gradient_goes_back(kind: Any) -> None:
    moves: dict[str, Any] = {
        "to": lambda x: x.to("cuda"),
        "cuda": lambda x: x.cuda(),
        "half": lambda x: x.to("cuda", torch.float16),
        "like": lambda x: x.to(torch.empty(0, device="cuda")),
        "there and back": lambda x: x.cuda().cpu(),
    }
    expected = {"half": torch.float16}

    def worker(_: int) -> None:
        for name, move in moves.items():
            x = torch.tensor([1.0, 2.0], requires_grad=True)
            with cast(kind):
                y = move(x)
            assert (y.dtype, y.is_cuda) == (
                expected.get(name, torch.float32),
                name != "there and back",
            ), name
            (y * y).sum().backward()
            assert x.grad is not None
            assert (str(x.grad.device), x.grad.dtype) == ("cpu", torch.float32), name
            assert x.grad.tolist() == [2, 4], name
            there = torch.tensor([1.0, 2.0], device="cuda", requires_grad=True)
            with cast(kind):
                here = there.cpu()
            (here * here).sum().backward()
            assert there.grad is not None
            assert there.grad.is_cuda
            assert there.grad.tolist() == [2, 4]

    kernbench.torchrun_spawn(worker, nprocs=1)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16], ids=str)
def test_a_type_that_the_program_names_is_not_cast(kind: Any) -> None:
    def worker(_: int) -> None:
        x = torch.ones(3, 3, device="cuda", requires_grad=True)
        with torch.autocast("cuda", kind):
            kinds = [
                x.half(),
                x.bfloat16(),
                x.float(),
                x.double(),
                x.to(torch.float16),
                x.half().double(),
                x.type(torch.float64),
            ]
            layer = torch.nn.Linear(3, 3).cuda()
            low = torch.nn.Linear(3, 3).half().cuda()
            out = layer(x)
        assert [one.dtype for one in kinds] == [
            torch.float16,
            torch.bfloat16,
            torch.float32,
            torch.float64,
            torch.float16,
            torch.float64,
            torch.float64,
        ]
        assert [layer.weight.dtype, low.weight.dtype] == [torch.float32, torch.float16]
        assert out.dtype == kind
        out.sum().backward()
        for leaf in (layer.weight, layer.bias, x):
            assert leaf.is_leaf
            assert leaf.grad is not None
            assert (leaf.grad.dtype, leaf.grad.is_cuda) == (torch.float32, True)

    kernbench.torchrun_spawn(worker, nprocs=1)


def test_second_gradients_pass_a_move() -> None:
    def worker(_: int) -> list[float]:
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        (first,) = torch.autograd.grad((x.cuda() ** 3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        by_function = torch.func.grad(lambda y: (y.cuda() ** 2).sum())(x.detach())
        return [*second.tolist(), *by_function.tolist()]

    assert kernbench.torchrun_spawn(worker, nprocs=1).returned == [[6, 12, 2, 4]]


def test_what_is_unsafe_to_autocast_is_refused_in_pytorchs_words() -> None:
    def worker(_: int) -> None:
        x = torch.ones(2, device="cuda")
        with (
            torch.autocast("cuda", torch.float16),
            pytest.raises(RuntimeError, match="BCELoss are unsafe to autocast"),
        ):
            torch.nn.functional.binary_cross_entropy(x, x)

    kernbench.torchrun_spawn(worker, nprocs=1)
