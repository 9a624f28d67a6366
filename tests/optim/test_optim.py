"""Optimisers against their definitions in numpy, clipping, and a model that learns."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
import kernbench.torch.nn.functional as F
from kernbench.errors import KernbenchError
from kernbench.optim.algorithms import Optimizer
from kernbench.process.process import current_process
from kernbench.ranks.world import world_of
from kernbench.runtime_api.context import RuntimeContext
from kernbench.testing import Kernbench
from kernbench.torch import nn, optim

Step = Callable[[Any, Any, dict[str, Any], int], Any]


def _sgd(x: Any, g: Any, s: dict[str, Any], t: int, o: dict[str, Any]) -> Any:
    g = (-g if o.get("maximize") else g) + o.get("weight_decay", 0) * x
    momentum = o.get("momentum", 0)
    if momentum:
        s["v"] = g if t == 1 else momentum * s["v"] + (1 - o.get("dampening", 0)) * g
        g = g + momentum * s["v"] if o.get("nesterov") else s["v"]
    return x - o.get("lr", 1e-3) * g


def _adam(x: Any, g: Any, s: dict[str, Any], t: int, o: dict[str, Any]) -> Any:
    g = -g if o.get("maximize") else g
    lr, (b1, b2), eps = o.get("lr", 1e-3), o.get("betas", (0.9, 0.999)), o.get("eps", 1e-8)
    if o["decoupled"]:
        x = x * (1 - lr * o.get("weight_decay", 0.01))
    else:
        g = g + o.get("weight_decay", 0) * x
    s["m"] = b1 * s.get("m", 0) + (1 - b1) * g
    s["v"] = b2 * s.get("v", 0) + (1 - b2) * g * g
    mean, square = s["m"] / (1 - b1**t), s["v"] / (1 - b2**t)
    return x - lr * mean / (np.sqrt(square) + eps)


CASES: Final[dict[str, tuple[type[Optimizer], dict[str, Any]]]] = {
    "SGD": (optim.SGD, {"lr": 0.1}),
    "SGD, momentum": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    "SGD, dampening": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),
    "SGD, Nesterov": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "SGD, up": (optim.SGD, {"lr": 0.1, "maximize": True}),
    "Adam": (optim.Adam, {"lr": 0.1}),
    "Adam, decay": (optim.Adam, {"betas": (0.8, 0.9), "weight_decay": 0.1, "eps": 1e-4}),
    "AdamW": (optim.AdamW, {"lr": 0.1}),
    "AdamW, up": (optim.AdamW, {"lr": 0.1, "weight_decay": 0.0, "maximize": True}),
}


@pytest.mark.parametrize("name", CASES)
def test_steps(device: str, name: str) -> None:
    make, options = CASES[name]
    numbers = np.random.default_rng(2)
    values = [numbers.normal(size=shape) for shape in ((2, 3), (4,), ())]
    parameters = [
        nn.Parameter(torch.tensor(value, dtype=torch.float64, device=device)) for value in values
    ]
    optimizer = make(parameters, **options)
    known = {**options, "decoupled": make is optim.AdamW}
    law = _sgd if make is optim.SGD else _adam
    states: list[dict[str, Any]] = [{} for _ in values]
    for step in range(1, 6):
        grads = [numbers.normal(size=value.shape) for value in values]
        optimizer.zero_grad()
        loss = sum(
            (p * torch.tensor(g, device=device)).sum()
            for p, g in zip(parameters, grads, strict=True)
        )
        assert isinstance(loss, torch.Tensor)
        loss.backward()
        optimizer.step()
        values = [law(x, g, s, step, known) for x, g, s in zip(values, grads, states, strict=True)]
        for parameter, value in zip(parameters, values, strict=True):
            np.testing.assert_allclose(parameter.detach().numpy(), value, rtol=1e-12)
    assert all(p.is_leaf and p.requires_grad for p in parameters)


def test_groups_have_options_of_their_own(ctx: RuntimeContext) -> None:
    a, b, c = (nn.Parameter(torch.ones(2)) for _ in range(3))
    optimizer = optim.SGD([{"params": [a]}, {"params": b, "lr": 1.0}], lr=0.5)
    optimizer.add_param_group({"params": [c], "lr": 0.0})
    (a + b + c).sum().backward()
    optimizer.step()
    assert [p.tolist()[0] for p in (a, b, c)] == [0.5, 0.0, 1.0]
    optimizer.param_groups[0]["lr"] = 0.25
    optimizer.step()
    assert a.tolist() == [0.25, 0.25]
    assert repr(optimizer).startswith("SGD (\nParameter Group 0\n    dampening: 0\n    lr: 0.25\n")
    optimizer.zero_grad(set_to_none=False)
    assert a.grad is not None
    assert a.grad.tolist() == [0.0, 0.0]


def test_parameters_without_gradient_are_left_alone(ctx: RuntimeContext) -> None:
    a, b = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = optim.Adam([a, b])
    a.sum().backward()
    optimizer.step()
    assert b.tolist() == [1.0, 1.0]
    assert list(optimizer.state) == [a]
    assert optimizer.state[a]["step"] == 1


def test_state_can_be_saved(ctx: RuntimeContext) -> None:
    def made() -> tuple[nn.Parameter, optim.AdamW]:
        parameter = nn.Parameter(torch.tensor([1.0, 2.0]))
        return parameter, optim.AdamW([parameter], lr=0.1)

    def step(parameter: nn.Parameter, optimizer: optim.AdamW) -> None:
        optimizer.zero_grad()
        parameter.square().sum().backward()
        optimizer.step()

    a, first = made()
    step(a, first)
    b, second = made()
    b.data.copy_(a.detach())
    saved = first.state_dict()
    assert saved["param_groups"][0]["params"] == [0]
    assert set(saved["state"][0]) == {"step", "exp_avg", "exp_avg_sq"}
    second.load_state_dict(saved)
    step(a, first)
    step(b, second)
    assert a.tolist() == b.tolist()
    for groups, message in (
        ([], "loaded state dict has a different number of parameter groups"),
        (
            [{"params": [0, 1]}],
            "loaded state dict contains a parameter group that doesn't match the size of "
            "optimizer's group",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            second.load_state_dict({"state": {}, "param_groups": groups})


def test_closures_are_recorded(ctx: RuntimeContext) -> None:
    p = nn.Parameter(torch.tensor([2.0]))
    optimizer = optim.SGD([p], lr=0.25)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss

    with torch.no_grad():
        assert optimizer.step(closure).item() == 4.0
    assert p.tolist() == [1.0]


def test_16_bit_parameters_are_computed_in_float32(device: str) -> None:
    p = nn.Parameter(torch.tensor([1.0, -3.0], device=device).bfloat16())
    optimizer = optim.AdamW([p], lr=0.01)
    (p * p).sum().backward()
    optimizer.step()
    assert p.dtype is torch.bfloat16
    assert optimizer.state[p]["exp_avg"].dtype is torch.bfloat16
    wide = np.array([1.0, -3.0], np.float32) * np.float32(1 - 1e-4) - np.array(
        [0.01, -0.01], np.float32
    )
    np.testing.assert_allclose(p.detach().float().numpy(), wide, rtol=2**-8)


def test_a_step_is_the_kernels_of_pytorch_a_group(ctx_without_data: RuntimeContext) -> None:
    parameters = [nn.Parameter(torch.ones(1000, device="cuda")) for _ in range(5)]
    parameters.append(nn.Parameter(torch.ones(1000, device="cuda", dtype=torch.float64)))
    optimizer = optim.SGD(parameters)
    for parameter in parameters:
        parameter.sum().backward()
    stream = ctx_without_data.main.current_stream(0)
    before = stream.count
    optimizer.step()
    assert stream.count == before + 2  # one for each type
    before = stream.count
    nn.utils.clip_grad_norm_(parameters, 1.0)
    # norms, a stack, their norm, four for the factor, and a product
    assert stream.count == before + 8
    fused = optim.AdamW(parameters, fused=True)
    fused.step()
    before = stream.count
    fused.step()
    assert stream.count == before + 4  # for each type the number of steps, and the step


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: optim.SGD([]), "optimizer got an empty parameter list"),
        (
            optim.SGD,
            "params argument given to the optimizer should be an iterable of Tensors or dicts, "
            "but got Parameter",
        ),
        (
            lambda p: optim.SGD([3]),
            "optimizer can only optimize Tensors, but one of the params is int",
        ),
        (lambda p: optim.SGD([p * 2]), "can't optimize a non-leaf Tensor"),
        (lambda p: optim.SGD([p, p]), "some parameters appear in more than one parameter group"),
        (
            lambda p: optim.SGD([p], lr="x"),  # type: ignore[arg-type]
            "SGD(): argument 'lr' must be float, not str",
        ),
        (lambda p: optim.SGD([p], lr=-1), "Invalid learning rate: -1"),
        (lambda p: optim.SGD([p], momentum=-1), "Invalid momentum value: -1"),
        (
            lambda p: optim.SGD([p], nesterov=True),
            "Nesterov momentum requires a momentum and zero dampening",
        ),
        (lambda p: optim.Adam([p], betas=(0.9, 1.0)), "Invalid beta parameter at index 1: 1.0"),
        (lambda p: optim.Adam([p], eps=-1), "Invalid epsilon value: -1"),
        (lambda p: optim.AdamW([p], amsgrad=True), "AdamW(amsgrad=) is not simulated"),
        (
            lambda p: optim.AdamW([p], fused=False),
            "AdamW(fused=False) is not simulated: a step works on lists",
        ),
    ],
)
def test_mistakes(ctx: RuntimeContext, make: Any, message: str) -> None:
    with pytest.raises(KernbenchError) as caught:
        make(nn.Parameter(torch.ones(1)))
    lines = str(caught.value).splitlines()
    assert lines[0] == message
    assert "test_optim.py" in lines[1]


# Clipping


@pytest.mark.parametrize("order", [1.0, 2.0, 3.0, float("inf")])
def test_clipping(device: str, order: float) -> None:
    a = nn.Parameter(torch.tensor([3.0, -4.0], device=device))
    b = nn.Parameter(torch.tensor([[12.0]], device=device))
    unused = nn.Parameter(torch.ones(1, device=device))
    ((a * a).sum() / 2 + (b * b).sum() / 2).backward()
    values = np.array([3.0, -4.0, 12.0])
    norm = nn.utils.clip_grad_norm_([a, b, unused], 2.0, order)
    expected = float(np.linalg.norm(values, order))
    assert norm.item() == pytest.approx(expected, rel=1e-6)
    assert a.grad is not None
    assert b.grad is not None
    got = [*a.grad.tolist(), *b.grad.tolist()[0]]
    np.testing.assert_allclose(got, values * 2 / expected, rtol=1e-5)
    nn.utils.clip_grad_norm_(a, 100.0, order)
    np.testing.assert_allclose(a.grad.tolist(), got[:2], rtol=1e-6)


def test_norms_of_nothing_and_of_what_is_not_finite(ctx: RuntimeContext) -> None:
    p = nn.Parameter(torch.ones(2))
    assert nn.utils.clip_grad_norm_([p], 1.0).item() == 0.0
    assert nn.utils.get_total_norm([torch.ones(4, dtype=torch.float64)]).dtype is torch.float64
    p.grad = torch.tensor([float("inf"), 1.0])
    assert nn.utils.get_total_norm([p.grad]).item() == float("inf")
    with pytest.raises(RuntimeError) as caught:
        nn.utils.clip_grad_norm_([p], 1.0, error_if_nonfinite=True)
    assert str(caught.value).splitlines()[0] == (
        "The total norm of order 2.0 for gradients from `parameters` is non-finite, so it cannot "
        "be clipped. To disable this error and scale the gradients by the non-finite norm anyway, "
        "set `error_if_nonfinite=False`"
    )


@pytest.mark.parametrize("order", [2.0, float("inf")])
def test_clipping_over_ranks(kernbench: Kernbench, order: float) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        p = nn.Parameter(torch.zeros(2, device="cuda"))
        p.grad = torch.tensor([rank + 1.0, 0.0], device="cuda")
        norm = nn.utils.clip_grad_norm_([p], 1.0, order, group=everybody())
        expected = float(np.linalg.norm([1.0, 2.0, 3.0, 4.0], order))
        assert norm.item() == pytest.approx(expected, rel=1e-6)
        assert p.grad[0].item() == pytest.approx((rank + 1) / expected, rel=1e-5)

    def everybody() -> Any:
        return world_of(current_process()).group

    kernbench.spawn(worker, nprocs=4)


# Learning


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(16, width)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(width, 16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(F.swiglu(self.up(self.norm(self.table(ids)))))
        return out


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_a_model_learns(device: str, kind: str) -> None:
    torch.manual_seed(4)
    net = Net(16).to(device)
    optimizer: Optimizer = (
        optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
        if kind == "SGD"
        else optim.AdamW(net.parameters(), lr=0.03)
    )
    ids = torch.arange(16, device=device)
    target = (ids * 5 + 3) % 16
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(ids), target)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 2.5
    assert losses[-1] < 0.05
    assert torch.equal(net(ids).argmax(-1), target)


def test_eight_ranks_learn_different_things(kernbench: Kernbench) -> None:
    found: dict[int, list[float]] = {}

    def worker(rank: int) -> None:
        torch.manual_seed(rank)
        goal = torch.full((3,), float(rank), device="cuda")
        p = nn.Parameter(torch.zeros(3, device="cuda"))
        optimizer = optim.SGD([p], lr=0.25)
        for _ in range(3 + rank):  # other lengths: ranks interleave in every way
            optimizer.zero_grad()
            F.mse_loss(p, goal, reduction="sum").backward()
            optimizer.step()
            p.tolist()
        found[rank] = p.tolist()

    kernbench.spawn(worker, nprocs=8)
    assert found == {rank: [rank * (1 - 0.5 ** (3 + rank))] * 3 for rank in range(8)}


def test_a_training_step_without_data_is_timed(ctx_without_data: RuntimeContext) -> None:
    net = Net(64).cuda()
    optimizer = optim.AdamW(net.parameters())
    ids = torch.zeros(128, dtype=torch.int64, device="cuda")
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(net(ids), ids).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    torch.cuda.synchronize()
    assert ctx_without_data.engine.executor.applied == 0
    assert ctx_without_data.main.host.clock > 0
