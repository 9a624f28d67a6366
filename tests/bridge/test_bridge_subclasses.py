"""Subclasses of tensors and parameters that no `__torch_dispatch__` of their own makes wrappers."""

from typing import Any

import pytest

import kernbench

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")


class Flat(torch.nn.Parameter):  # type: ignore[name-defined,misc,unused-ignore]
    def __new__(cls, of: Any) -> Any:
        return super().__new__(cls, of.detach().reshape(-1), requires_grad=True)


class Own(torch.Tensor):  # type: ignore[name-defined,misc,unused-ignore]
    pass


def seen(where: str) -> list[Any]:
    flat = Flat(torch.ones(2, 3, device=where))
    flat.data = flat.data[:4].clone()
    (flat * 2).sum().backward()
    own = torch.ones(3, device=where).as_subclass(Own)
    found = [flat, flat.data, flat.detach(), flat.grad, own, own.data, own.new_zeros(2)]
    return [(type(one), tuple(one.shape), one.device.type == where) for one in found]


@pytest.mark.parametrize("data", [True, False, "fake"])
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_their_data_is_what_it_is_without_ranks(where: str, data: Any) -> None:
    assert kernbench.torchrun_spawn(lambda _: seen(where), nprocs=1, data=data).returned == [
        seen("cpu")
    ]


@pytest.mark.parametrize("data", [True, False])
def test_a_parameter_of_a_subclass_goes_to_the_device(data: bool) -> None:
    def worker(_: int) -> list[Any]:
        module = torch.nn.Linear(4, 1, bias=False)
        module.weight = Flat(module.weight)
        module.weight.data = module.weight.data.view(1, 4)
        module.cuda()
        module(torch.ones(2, 4, device="cuda")).sum().backward()
        other = Flat(torch.ones(2))
        other.data = other.data.cuda()
        found = [module.weight, module.weight.grad, other]
        return [(type(one), one.device.type) for one in found]

    assert kernbench.torchrun_spawn(worker, nprocs=1, data=data).returned == [
        [(Flat, "cuda"), (torch.Tensor, "cuda"), (Flat, "cuda")]
    ]


def test_a_graph_captures_what_comes_of_their_data() -> None:
    def worker(_: int) -> list[float]:
        own = torch.ones(2, device="cuda").as_subclass(Own)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            twice = own.data * 2
        own.fill_(3)
        graph.replay()
        return [float(one) for one in twice.tolist()]

    assert kernbench.torchrun_spawn(worker, nprocs=1).returned == [[6.0, 6.0]]
