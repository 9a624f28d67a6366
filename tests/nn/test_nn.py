"""Modules: what they register, what they list, what they save."""

import copy
from typing import Any

import pytest

import kernbench.torch as torch
from kernbench.runtime_api.context import RuntimeContext
from kernbench.torch import nn


class Linear(nn.Module):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(outer, inner))
        self.bias = nn.Parameter(torch.zeros(outer))
        self.scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x, self.weight.T) * self.scale

    def extra_repr(self) -> str:
        return f"scale={self.scale}"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Linear(3, 4)
        self.second = Linear(4, 2)
        self.tied = self.first
        self.register_buffer("steps", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("cache", torch.zeros(2), persistent=False)
        self.register_parameter("absent", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        out: torch.Tensor = self.second(self.first(x))
        return out


NAMES = ["first.weight", "first.bias", "second.weight", "second.bias"]


def test_a_module_computes_and_lists_what_it_is_made_of(ctx: RuntimeContext) -> None:
    net = Net()
    assert net(torch.ones(5, 3)).tolist() == [[48.0, 48.0]] * 5
    assert net.steps.item() == 1
    assert [name for name, _ in net.named_parameters()] == NAMES
    assert [tuple(p.shape) for p in net.parameters()] == [(4, 3), (4,), (2, 4), (2,)]
    assert [name for name, _ in net.named_buffers()] == ["steps", "cache"]
    assert [name for name, _ in net.named_children()] == ["first", "second"]
    assert [type(module).__name__ for module in net.modules()] == ["Net", "Linear", "Linear"]
    assert [name for name, _ in net.named_modules()] == ["", "first", "second"]
    assert net.get_submodule("second") is net.second
    assert [id(p) for p in net.first.parameters(recurse=False)] == [
        id(net.first.weight),
        id(net.first.bias),
    ]
    assert len(list(net.buffers())) == 2
    assert {"first", "steps", "forward"} <= set(dir(net))
    assert repr(net) == (
        "Net(\n  (first): Linear(scale=2.0)\n  (second): Linear(scale=2.0)\n"
        "  (tied): Linear(scale=2.0)\n)"
    )
    assert (
        repr(nn.Parameter(torch.ones(1)))
        == "Parameter containing:\ntensor([1.], requires_grad=True)"
    )


def test_attributes(ctx: RuntimeContext) -> None:
    net = Net()
    assert isinstance(net.first.weight, torch.Tensor)
    assert net.absent is None
    net.absent = nn.Parameter(torch.ones(1))
    assert "absent" in dict(net.named_parameters())
    del net.absent
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'absent'"):
        _ = net.absent
    with pytest.raises(TypeError, match="cannot assign Tensor to 'weight' of Linear"):
        net.first.weight = torch.ones(4, 3)  # type: ignore[assignment]
    net.steps = torch.ones(1)
    assert net.state_dict()["steps"].item() == 1
    with pytest.raises(TypeError, match="argument 'data' must be Tensor or None, not list"):
        nn.Parameter([1.0])  # type: ignore[arg-type]

    class Forgetful(nn.Module):
        def __init__(self) -> None:
            self.weight = nn.Parameter(torch.ones(1))

    with pytest.raises(AttributeError, match=r"call super\(\).__init__\(\) first in Forgetful"):
        Forgetful()
    with pytest.raises(NotImplementedError, match='is missing the required "forward" function'):
        nn.Module()(1)
    with pytest.raises(AttributeError, match="is not a module"):
        net.get_submodule("first.scale")


def test_modes_and_gradients(ctx: RuntimeContext) -> None:
    net = Net()
    assert net.first.training
    assert net.eval() is net
    assert not net.second.training
    assert net.train().second.training
    assert all(p.requires_grad for p in net.parameters())
    net.requires_grad_(False)
    assert not any(p.requires_grad for p in net.parameters())
    with pytest.raises(RuntimeError, match="does not require grad and does not have a grad_fn"):
        net.first.weight.sum().backward()
    visited: list[str] = []
    net.apply(lambda module: visited.append(type(module).__name__))
    assert visited == ["Linear", "Linear", "Net"]


def test_moving_keeps_the_parameter_objects(ctx: RuntimeContext) -> None:
    net = Net()
    before = list(map(id, net.parameters()))
    assert net.to("cuda:1", torch.bfloat16) is net
    assert list(map(id, net.parameters())) == before
    assert {(str(p.device), p.dtype) for p in net.parameters()} == {("cuda:1", torch.bfloat16)}
    assert (net.steps.dtype, net.steps.device.index) == (torch.int64, 1)
    assert net.cpu().float().first.weight.sum().item() == 12
    assert net.double().half().bfloat16().first.weight.dtype is torch.bfloat16
    assert net.cuda().first.weight.is_cuda
    assert net.to(torch.zeros(1)).first.weight.is_cpu


def test_state_dicts(ctx: RuntimeContext) -> None:
    net, other = Net(), Net()
    for parameter in net.parameters():
        parameter.data.fill_(3)
    saved = net.state_dict()
    assert list(saved) == ["steps", *NAMES, "tied.weight", "tied.bias"]
    found = other.load_state_dict(saved)
    assert (found.missing_keys, found.unexpected_keys) == ([], [])
    assert other.second.bias.tolist() == [3, 3]
    assert other.first.weight.data_ptr() != net.first.weight.data_ptr()
    del saved["first.bias"]
    saved["odd"] = torch.zeros(1)
    saved["second.bias"] = torch.zeros(5)
    with pytest.raises(RuntimeError) as caught:
        other.load_state_dict(saved)
    assert str(caught.value).splitlines()[0] == "Error(s) in loading state_dict for Net"
    assert str(caught.value).splitlines()[2:] == [
        "  size mismatch for second.bias: copying a param with shape torch.Size([5]) from "
        "checkpoint, the shape in current model is torch.Size([2]).",
        '  Missing key(s) in state_dict: "first.bias".',
        '  Unexpected key(s) in state_dict: "odd".',
    ]
    del saved["second.bias"]
    loose = other.load_state_dict(saved, strict=False)
    assert loose == (["first.bias", "second.bias"], ["odd"])
    assert list(net.first.state_dict(prefix="a.")) == ["a.weight", "a.bias"]


def test_a_deep_copy_is_apart(ctx: RuntimeContext) -> None:
    net = Net()
    twin = copy.deepcopy(net)
    twin.first.weight.data.zero_()
    assert isinstance(twin.first.weight, nn.Parameter)
    assert net.first.weight.sum().item() == 12
    assert twin.tied is twin.first


def test_users_subclasses_may_be_defined_without_a_context() -> None:
    values: Any = Linear
    assert issubclass(values, nn.Module)


def test_plain_attributes_may_come_before_the_first_call(ctx: RuntimeContext) -> None:
    class Early(nn.Module):
        def __init__(self) -> None:
            self.width = 3
            self.mask = torch.ones(2)
            self.nothing = None
            super().__init__()
            self.layer = nn.Linear(self.width, 1)

    made = Early()
    assert (made.width, made.mask.tolist(), made.nothing) == (3, [1.0, 1.0], None)
    assert sorted(made.state_dict()) == ["layer.bias", "layer.weight"]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda m: setattr(m, "x", nn.Parameter(torch.ones(1))), "cannot assign parameters"),
        (lambda m: setattr(m, "x", nn.Linear(1, 1)), "cannot assign module"),
        (lambda m: m.register_buffer("x", torch.ones(1)), "cannot assign buffer"),
        (lambda m: m.register_parameter("x", None), "cannot assign parameter"),
        (lambda m: list(m.parameters()), "the module cannot be used"),
        (lambda m: m.train(), "the module cannot be used"),
    ],
)
def test_what_needs_the_first_call(ctx: RuntimeContext, act: Any, message: str) -> None:
    class Early(nn.Module):
        def __init__(self) -> None:
            act(self)
            super().__init__()

    with pytest.raises(AttributeError, match=rf"^{message} before Module.__init__\(\) call"):
        Early()
