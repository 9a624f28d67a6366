"""Layers, containers and first values."""

import math
from typing import Any, Final

import numpy as np
import pytest

import kernbench.torch as torch
import kernbench.torch.nn.functional as F
from kernbench.errors import KernbenchError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.testing import Kernbench
from kernbench.torch import nn


class Block(nn.Module):
    """Defined before any context exists."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        for layer in self.layers:
            h = F.silu(layer(h))
        out: torch.Tensor = x + self.drop(h)
        return out


def test_layers_compute_what_the_functions_do(device: str) -> None:
    x = torch.randn(3, 4, device=device)
    linear = nn.Linear(4, 5, device=device)
    assert torch.equal(linear(x), F.linear(x, linear.weight, linear.bias))
    bare = nn.Linear(4, 5, bias=False, device=device, dtype=torch.float64)
    assert bare.bias is None
    assert bare.weight.dtype is torch.float64
    norm = nn.LayerNorm(4, device=device)
    assert torch.equal(norm(x), F.layer_norm(x, (4,), norm.weight, norm.bias))
    assert nn.LayerNorm((3, 4), elementwise_affine=False)(x).shape == (3, 4)
    assert nn.LayerNorm(4, bias=False).bias is None
    rms = nn.RMSNorm(4, eps=1e-3, device=device)
    assert torch.equal(rms(x), F.rms_norm(x, (4,), rms.weight, 1e-3))
    assert nn.RMSNorm(4, elementwise_affine=False).weight is None
    table = nn.Embedding(6, 3, padding_idx=2, device=device)
    ids = torch.tensor([[0, 2]], device=device)
    assert torch.equal(table(ids), F.embedding(ids, table.weight))
    assert table.weight[2].tolist() == [0.0] * 3
    for module, function in (
        (nn.ReLU(), F.relu), (nn.SiLU(), F.silu), (nn.GELU(), F.gelu),
        (nn.GELU("tanh"), lambda t: F.gelu(t, approximate="tanh")),
        (nn.Identity(1, a=2), lambda t: t),
    ):  # fmt: skip
        assert torch.equal(module(x), function(x))
    drop = nn.Dropout(0.5)
    assert drop.eval()(x) is x
    target = torch.tensor([0, 3, 1], device=device)
    assert torch.equal(nn.CrossEntropyLoss()(x, target), F.cross_entropy(x, target))
    assert torch.equal(nn.MSELoss(reduction="sum")(x, x * 2), F.mse_loss(x, x * 2, reduction="sum"))


def test_a_module_of_modules(ctx: RuntimeContext) -> None:
    net = nn.Sequential(nn.Embedding(10, 8), Block(8), nn.Linear(8, 10, bias=False))
    names = [name for name, _ in net.named_parameters()]
    assert names == [
        "0.weight", "1.norm.weight", "1.layers.0.weight", "1.layers.0.bias", "1.layers.1.weight",
        "1.layers.1.bias", "2.weight",
    ]  # fmt: skip
    ids = torch.arange(4)
    F.cross_entropy(net(ids), ids).backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in net.parameters())
    net.zero_grad(set_to_none=False)
    assert all(p.grad is not None and not p.grad.any().item() for p in net.parameters())
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())
    assert repr(net) == (
        "Sequential(\n"
        "  (0): Embedding(10, 8)\n"
        "  (1): Block(\n"
        "    (norm): RMSNorm((8,), eps=None, elementwise_affine=True)\n"
        "    (layers): ModuleList(\n"
        "      (0-1): 2 x Linear(in_features=8, out_features=8, bias=True)\n"
        "    )\n"
        "    (drop): Dropout(p=0.5, inplace=False)\n"
        "  )\n"
        "  (2): Linear(in_features=8, out_features=10, bias=False)\n"
        ")"
    )
    assert repr(nn.LayerNorm(4, bias=False)) == (
        "LayerNorm((4,), eps=1e-05, elementwise_affine=True, bias=False)"
    )
    assert [repr(nn.ReLU()), repr(nn.ReLU(inplace=True))] == ["ReLU()", "ReLU(inplace=True)"]
    assert repr(nn.ModuleList([nn.SiLU(), nn.ReLU(), nn.ReLU(), nn.SiLU()])) == (
        "ModuleList(\n  (0): SiLU()\n  (1-2): 2 x ReLU()\n  (3): SiLU()\n)"
    )
    assert repr(nn.GELU()) == "GELU(approximate='none')"
    assert repr(nn.Embedding(3, 2, 1)) == "Embedding(3, 2, padding_idx=1)"


def test_state_moves_between_models(ctx: RuntimeContext) -> None:
    torch.manual_seed(1)
    net, other = Block(4).eval(), Block(4).eval()
    x = torch.randn(2, 4)
    assert not torch.equal(net(x), other(x))
    other.load_state_dict(net.state_dict())
    assert torch.equal(net(x), other(x))
    assert all(p.requires_grad and p.is_leaf for p in other.parameters())


def test_gradients_move_with_their_parameters(ctx: RuntimeContext) -> None:
    layer = nn.Linear(2, 3)
    layer(torch.ones(1, 2)).sum().backward()
    weight = layer.weight
    layer.to("cuda", torch.float64)
    assert layer.weight is weight
    assert weight.grad is not None
    assert (weight.grad.is_cuda, weight.grad.dtype) == (True, torch.float64)
    layer(torch.ones(1, 2, device="cuda", dtype=torch.float64)).sum().backward()
    assert weight.grad.tolist() == [[2.0, 2.0]] * 3


def test_lists_and_dicts(ctx: RuntimeContext) -> None:
    modules = nn.ModuleList([nn.Identity(), nn.ReLU()])
    modules.append(nn.SiLU()).extend([nn.GELU()])
    assert len(modules) == 4
    assert [type(m).__name__ for m in modules] == ["Identity", "ReLU", "SiLU", "GELU"]
    assert isinstance(modules[-1], nn.GELU)
    assert len(modules[1:3]) == 2
    modules[-1] = nn.ReLU()
    assert isinstance(modules[3], nn.ReLU)
    named = nn.ModuleDict({"a": nn.Identity()})
    named["b"] = nn.Linear(1, 1)
    assert (len(named), list(named), "a" in named) == (2, ["a", "b"], True)
    assert [*named.keys()] == [name for name, _ in named.items()]
    assert named["b"] is list(named.values())[1]
    chain = nn.Sequential(nn.ReLU()).append(nn.Identity())
    assert (len(chain), type(chain[1]), len(list(chain))) == (2, nn.Identity, 2)
    shared = nn.Linear(2, 2)
    twice = nn.Sequential(shared, shared)
    x = torch.ones(1, 2)
    assert torch.equal(twice(x), shared(shared(x)))
    assert [name for name, _ in nn.Sequential({"x": nn.ReLU()}).named_children()] == ["x"]


def test_first_values_are_pytorchs_by_distribution(ctx: RuntimeContext) -> None:
    linear = nn.Linear(400, 300)
    bound = 1 / math.sqrt(400)
    for values in (linear.weight, linear.bias):
        assert values is not None
        array = values.detach().numpy()
        assert np.abs(array).max() <= bound
        assert abs(array.mean()) < bound / 5
        assert array.std() == pytest.approx(bound / math.sqrt(3), rel=0.1)
    weight = nn.Embedding(300, 100).weight.detach().numpy()
    assert weight.std() == pytest.approx(1, rel=0.02)


INITS: Final[dict[str, tuple[Any, float]]] = {
    "xavier_uniform_": (nn.init.xavier_uniform_, math.sqrt(2 / 500)),
    "xavier_normal_": (nn.init.xavier_normal_, math.sqrt(2 / 500)),
    "kaiming_uniform_": (nn.init.kaiming_uniform_, math.sqrt(2 / 200)),
    "kaiming_normal_": (
        lambda t, **kw: nn.init.kaiming_normal_(t, mode="fan_out", nonlinearity="relu", **kw),
        math.sqrt(2 / 300),
    ),
    "normal_": (lambda t, **kw: nn.init.normal_(t, 0.0, 0.3, **kw), 0.3),
    "uniform_": (lambda t, **kw: nn.init.uniform_(t, -1, 1, **kw), 1 / math.sqrt(3)),
}


@pytest.mark.parametrize("name", INITS)
def test_first_values(ctx: RuntimeContext, name: str) -> None:
    fill, deviation = INITS[name]
    weight = nn.Parameter(torch.zeros(300, 200))
    generator = torch.Generator().manual_seed(3)
    assert fill(weight, generator=generator) is weight
    values = weight.detach().numpy()
    assert values.std() == pytest.approx(deviation, rel=0.02)
    fill(weight, generator=generator.manual_seed(3))
    np.testing.assert_array_equal(weight.detach().numpy(), values)
    assert weight.is_leaf


def test_constants_and_gains(ctx: RuntimeContext) -> None:
    x = nn.Parameter(torch.zeros(2))
    assert nn.init.ones_(x).tolist() == [1.0, 1.0]
    assert nn.init.constant_(x, 3).tolist() == [3.0, 3.0]
    assert nn.init.zeros_(x).tolist() == [0.0, 0.0]
    gains = {"linear": 1.0, "relu": math.sqrt(2), "tanh": 5 / 3, "sigmoid": 1.0}
    assert {name: nn.init.calculate_gain(name) for name in gains} == gains
    assert nn.init.calculate_gain("leaky_relu", 0.5) == math.sqrt(1.6)
    for wrong, message in (
        (lambda: nn.init.calculate_gain("odd"), "Unsupported nonlinearity odd"),
        (
            lambda: nn.init.xavier_normal_(x),
            "Fan in and fan out can not be computed for tensor with fewer than 2 dimensions",
        ),
        (
            lambda: nn.init.kaiming_normal_(torch.ones(2, 2), mode="fan"),  # type: ignore[arg-type]
            "Mode fan not supported, please use one of ['fan_in', 'fan_out']",
        ),
        (lambda: nn.Dropout(inplace=True), "Dropout(inplace=True) is not simulated"),
    ):
        with pytest.raises(KernbenchError) as caught:
            wrong()
        assert str(caught.value).splitlines()[0] == message


def test_layers_of_a_context_and_of_ranks(kernbench: Kernbench) -> None:
    def worker(rank: int, ctx: Any) -> None:
        torch.manual_seed(rank)
        layer = ctx.nn.Linear(4, 2)
        assert layer.weight.device.index == rank
        loss = ctx.nn.functional.mse_loss(
            layer(ctx.ones(1, 4)), ctx.nn.init.zeros_(ctx.empty(1, 2))
        )
        loss.backward()
        ctx.optim.SGD(layer.parameters(), lr=0.1).step()
        ctx.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        with ctx.no_grad():
            assert not (layer.weight * 2).requires_grad
        assert ctx.autograd.grad(layer(ctx.ones(1, 4)).sum(), layer.bias)[0].tolist() == [1.0, 1.0]

    ctx = kernbench.context()
    ctx.multiprocessing.spawn(worker, args=(ctx,), nprocs=2)
