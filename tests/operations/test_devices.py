"""Tensors on the host and on a device in one operation: what is taken, and what is refused.

What is expected is what PyTorch 2.11 answered on an H200.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernbench.torch as torch
import kernbench.torch.nn.functional as F
from kernbench.errors import KernbenchError
from kernbench.process.access import AccessError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.testing import Kernbench

SAME = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and"
INDEX = r"indices should be either on cpu or on the same device as the indexed tensor \(cpu\)"

Call = Callable[[], Any]


def here(*shape: int) -> torch.Tensor:
    """Returns ones on the host."""
    return torch.ones(*shape, device="cpu")


def there(*shape: int) -> torch.Tensor:
    """Returns ones on the device."""
    return torch.ones(*shape, device="cuda")


def rows(device: str = "cpu") -> torch.Tensor:
    """Returns indices 0 and 1."""
    return torch.tensor([0, 1], device=device)


def zeros(device: str = "cpu") -> torch.Tensor:
    """Returns indices for `gather` and its kin."""
    return torch.zeros(2, 3, dtype=torch.int64, device=device)


def put(x: torch.Tensor, key: Any, value: Any) -> torch.Tensor:
    """Returns `x` after an assignment to elements."""
    x[key] = value
    return x


def _pairs(name: str) -> list[Call]:
    function = getattr(torch, name)
    return [lambda: function(here(2), there(2)), lambda: function(there(2), here(2))]


POINTWISE = ["add", "sub", "mul", "div", "pow", "maximum", "minimum", "fmod", "remainder"]
POINTWISE += ["eq", "lt", "logical_and", "isclose", "dot", "outer", "complex"]

REFUSED: list[Call] = [
    *[call for name in POINTWISE for call in _pairs(name)],
    lambda: there(2).add_(here(2)),
    lambda: here(2).add_(there(2)),
    lambda: here(2).add_(there(1).sum()),
    lambda: torch.add(there(2), there(2), out=here(2)),
    lambda: torch.add(there(1).sum(), there(1).sum(), out=here(1).sum()),
    lambda: torch.cat([there(2), there(2)], out=here(4)),
    lambda: torch.matmul(there(2, 2), there(2, 2), out=here(2, 2)),
    lambda: torch.cat([there(2), here(2)]),
    lambda: torch.cat([there(2), here(0)]),
    lambda: torch.stack([there(1).sum(), here(1).sum()]),
    lambda: torch.where(there(2) > 0, there(2), here(2)),
    lambda: torch.where(here(2) > 0, there(2), there(2)),
    lambda: there(2).masked_fill(here(2) > 0, 1.0),
    lambda: here(2).masked_fill_(there(2) > 0, 1.0),
    lambda: here(2).masked_fill_(here(2) > 0, there(1).sum()),
    lambda: torch.clamp(there(2), here(2)),
    lambda: torch.clamp(there(2), here(1).sum()),
    lambda: torch.lerp(there(2), here(2), 0.5),
    lambda: torch.addcmul(there(2), here(2), there(2)),
    lambda: there(2, 3) @ here(3, 2),
    lambda: there(2, 3) @ here(3),
    lambda: torch.bmm(there(2, 3, 2), here(2, 2, 3)),
    lambda: torch.addmm(here(2, 2), there(2, 3), there(3, 2)),
    lambda: torch.addmm(here(1).sum(), there(2, 3), there(3, 2)),
    lambda: torch.baddbmm(here(2, 2, 2), there(2, 2, 3), there(2, 3, 2)),
    lambda: torch.einsum("ij,jk->ik", there(2, 3), here(3, 2)),
    lambda: F.linear(there(2, 3), here(4, 3)),
    lambda: F.linear(there(2, 3), there(4, 3), here(4)),
    lambda: F.embedding(rows(), there(4, 3)),
    lambda: F.embedding(rows("cuda"), here(4, 3)),
    lambda: F.layer_norm(there(2, 3), (3,), here(3), there(3)),
    lambda: F.rms_norm(there(2, 3), (3,), here(3)),
    lambda: F.cross_entropy(there(2, 3), rows()),
    lambda: F.cross_entropy(there(2, 3), rows("cuda"), here(3)),
    lambda: F.nll_loss(there(2, 3), rows()),
    lambda: F.mse_loss(there(2), here(2)),
    lambda: F.scaled_dot_product_attention(there(1, 2, 3), here(1, 2, 3), there(1, 2, 3)),
    lambda: torch.gather(there(2, 3), 0, zeros()),
    lambda: torch.gather(here(2, 3), 0, zeros("cuda")),
    lambda: there(2, 3).scatter_(0, zeros(), there(2, 3)),
    lambda: there(2, 3).scatter_(0, zeros("cuda"), here(2, 3)),
    lambda: there(2, 3).scatter_add_(0, zeros(), there(2, 3)),
    lambda: torch.index_select(there(2, 3), 0, rows()),
    lambda: torch.index_select(here(2, 3), 0, rows("cuda")),
    lambda: put(there(2, 3), rows("cuda"), here(2, 3)),
    lambda: put(here(2, 3), rows(), there(2, 3)),
    lambda: here(1) in there(2),
]

TAKEN: list[tuple[Call, str, object]] = [
    (lambda: there(2) + here(1).sum(), "cuda:0", [2, 2]),
    (lambda: here(1).sum() + there(1).sum(), "cuda:0", 2),
    (lambda: there(2).mul_(here(1).sum() * 3), "cuda:0", [3, 3]),
    (lambda: torch.where(there(2) > 0, here(1).sum() * 4, there(2)), "cuda:0", [4, 4]),
    (lambda: there(2).masked_fill_(there(2) > 0, here(1).sum() * 5), "cuda:0", [5, 5]),
    (lambda: there(2).fill_(here(1).sum() * 6), "cuda:0", [6, 6]),
    (lambda: here(2).fill_(there(1).sum() * 7), "cpu", [7, 7]),
    (lambda: there(2).copy_(here(2) * 8), "cuda:0", [8, 8]),
    (lambda: here(2).copy_(there(2) * 9), "cpu", [9, 9]),
    (lambda: put(there(2), slice(1), here(1) * 2), "cuda:0", [2, 1]),
    (lambda: there(3)[rows()], "cuda:0", [1, 1]),
    (lambda: there(2)[here(2) > 0], "cuda:0", [1, 1]),
    (lambda: there(2)[torch.tensor(1, device="cpu")], "cuda:0", 1),
    (lambda: here(2)[torch.tensor(1, device="cuda")], "cpu", 1),
    (lambda: put(there(3), rows(), here(1) * 2), "cuda:0", [2, 2, 1]),
    (lambda: put(there(3), rows(), here(1).sum() * 2), "cuda:0", [2, 2, 1]),
    (lambda: put(here(3), rows(), there(1).sum() * 2), "cpu", [2, 2, 1]),
    (lambda: put(there(2), here(2) > 0, 3.0), "cuda:0", [3, 3]),
    (lambda: there(2).type_as(here(2)), "cpu", [1, 1]),
    (lambda: there(2).to(here(2)), "cpu", [1, 1]),
    (lambda: torch.zeros_like(there(2)), "cuda:0", [0, 0]),
    (lambda: there(2).new_full((1,), 2), "cuda:0", [2]),
    (lambda: here(2).new_zeros(1), "cpu", [0]),
]


@pytest.fixture(params=["cuda", "cpu"], autouse=True)
def machine(request: pytest.FixtureRequest, kernbench: Kernbench) -> Any:
    """Enters a machine, with either default device: the rules are the same."""
    with kernbench.context(default_device=request.param) as ctx:
        yield ctx


@pytest.mark.parametrize("call", REFUSED)
def test_tensors_on_two_devices_are_refused(call: Call) -> None:
    with pytest.raises(RuntimeError) as caught:
        call()
    assert isinstance(caught.value, KernbenchError)
    first, place, *_ = str(caught.value).splitlines()
    assert first == f"{SAME} cpu!"
    assert "test_devices.py" in place


def test_the_report_names_both_tensors_and_the_way_out() -> None:
    with pytest.raises(RuntimeError) as caught:
        F.linear(there(2, 3), here(4, 3))
    assert str(caught.value).splitlines()[2:] == [
        "  linear got tensor [2, 3] torch.float32 on cuda:0 and tensor [4, 3] torch.float32 on cpu",
        "  hint: move the tensor [4, 3] torch.float32 with .to('cuda:0'); a module's parameters "
        "and buffers move with module.to('cuda:0')",
    ]


@pytest.mark.parametrize("key", [rows, lambda device: there(2) > 0])
def test_a_key_on_the_device_finds_nothing_on_the_host(key: Callable[[str], Any]) -> None:
    with pytest.raises(RuntimeError, match=INDEX):
        _ = here(2)[key("cuda")]
    with pytest.raises(RuntimeError, match=INDEX):
        put(here(2), key("cuda"), 1.0)


@pytest.mark.parametrize(("call", "device", "values"), TAKEN)
def test_what_may_be_mixed_has_its_values_and_its_place(
    call: Call, device: str, values: object
) -> None:
    result = call()
    assert str(result.device) == device
    assert result.tolist() == values


def test_a_refused_write_in_place_writes_nothing() -> None:
    x, w = there(2), there(2).requires_grad_()
    y = w * 2
    calls: list[Call] = [
        lambda: x.add_(here(2)),
        lambda: put(x, rows(), here(2)),
        lambda: y.mul_(here(2)),
    ]
    for call in calls:
        with pytest.raises(RuntimeError):
            call()
    assert x.tolist() == [1, 1]
    y.sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [2, 2]


def test_a_value_on_the_host_is_not_read_while_a_copy_into_it_is_under_way(
    machine: RuntimeContext,
) -> None:
    x, late = there(2), (there(1) * 3).to("cpu", non_blocking=True)
    key = torch.zeros(1, dtype=torch.int64, device="cuda").to("cpu", non_blocking=True)
    calls: list[Call] = [lambda: x + late[0], lambda: x.fill_(late[0])]
    if not machine.main.strict:  # otherwise another copy of the same stream takes the index back
        calls.append(lambda: x[key])
    for call in calls:
        with pytest.raises(AccessError):
            call()
    torch.cuda.synchronize()
    assert (x + late[0]).tolist() == [4, 4]
    assert x[key].tolist() == [1]


def test_gradients_go_back_across_copies() -> None:
    w = here(2).requires_grad_()
    scale = torch.tensor(2.0, device="cpu", requires_grad=True)
    ((w.cuda() * scale).cpu() * 3).sum().backward()
    assert w.grad is not None
    assert scale.grad is not None
    assert (str(w.grad.device), w.grad.tolist()) == ("cpu", [6, 6])
    assert (str(scale.grad.device), scale.grad.tolist()) == ("cpu", 6)


def _parameter(make: Callable[..., torch.Tensor]) -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(make(2))
    parameter.grad = torch.ones_like(parameter)
    return parameter


def test_an_optimizer_and_a_norm_take_parameters_of_both() -> None:
    both = [_parameter(there), _parameter(here)]
    norm = torch.nn.utils.clip_grad_norm_(both, 1.0)
    assert (str(norm.device), norm.item()) == ("cuda:0", 2)
    grads = [p.grad for p in both if p.grad is not None]
    assert [grad.tolist() for grad in grads] == [pytest.approx([0.5, 0.5], rel=1e-6)] * 2
    largest = torch.nn.utils.get_total_norm([grads[1] * 8, grads[0]], float("inf"))
    assert (str(largest.device), largest.item()) == ("cpu", pytest.approx(4, rel=1e-6))
    torch.optim.SGD(both, lr=2.0, momentum=0.9).step()
    assert [p.tolist() for p in both] == [pytest.approx([0, 0], abs=1e-6)] * 2


def test_gradients_of_another_device_are_refused() -> None:
    x = there(2).requires_grad_()
    with pytest.raises(RuntimeError, match="located on a different device"):
        x.grad = here(2)
    with pytest.raises(RuntimeError, match="expected device cuda:0 but got cpu"):
        (x * 2).backward(here(2))


def test_an_array_is_a_tensor_on_the_host() -> None:
    assert str(torch.from_numpy(np.ones(2)).device) == "cpu"
    with torch.device("cuda"):
        assert str(torch.from_numpy(np.ones(2)).device) == "cpu"
        assert str(torch.as_tensor(np.ones(2)).device) == "cuda:0"
        assert str(torch.as_tensor(here(2)).device) == "cuda:0"
        assert str(torch.tensor(here(2)).device) == "cuda:0"
