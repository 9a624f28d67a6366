"""Functional collectives, with and without autograd."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as dist_nn

RANKS = 4


def _own(device, *shape):
    generator = torch.Generator().manual_seed(dist.get_rank())
    return torch.randn(shape, generator=generator).to(device)


def run_functional(device):
    group = dist.group.WORLD
    x = _own(device, 4, 3)
    found = {
        "all_reduce": funcol.all_reduce(x, "sum", group) * 2,
        "all_gather": funcol.all_gather_tensor(x, 0, group) + 1,
        "all_gather_1": funcol.all_gather_tensor(x, 1, group) + 1,
        "reduce_scatter": funcol.reduce_scatter_tensor(x, "sum", 0, group) - 1,
        "broadcast": funcol.broadcast(x, 2, group) * 3,
    }
    first, second = funcol.all_reduce_coalesced([x, x * 2], "sum", group)
    found["coalesced"] = first + second
    parts = funcol.all_gather_into_tensor_coalesced([x, x[:2]], group)
    found["gathered_0"], found["gathered_1"] = parts[0] + 0, parts[1] + 0
    out = funcol.all_to_all_single(x, [1] * 4, [1] * 4, group)
    found["all_to_all"] = out * 1
    waited = funcol.all_reduce(x, "max", group)
    found["waited"] = funcol.wait_tensor(waited)
    return found


def run_functional_autograd(device):
    group = dist.group.WORLD
    x = _own(device, 4, 3).requires_grad_()
    gathered = funcol.all_gather_tensor_autograd(x, 0, group)
    weights = torch.linspace(-1, 1, gathered.numel()).reshape(gathered.shape).to(device)
    loss = (gathered * weights * (dist.get_rank() + 1)).sum()
    scattered = funcol.reduce_scatter_tensor_autograd(x * x, "sum", 0, group)
    loss = loss + (scattered**2).sum()
    exchanged = funcol.all_to_all_single_autograd(x.sin(), [1] * 4, [1] * 4, group)
    loss = loss + (exchanged * (dist.get_rank() + 2)).sum()
    loss.backward()
    return {"loss": loss.detach(), "grad": x.grad}


def run_differentiable(device):
    rank = dist.get_rank()
    x = _own(device, 4, 2).requires_grad_()
    loss = (dist_nn.all_reduce(x * (rank + 1)) ** 2).sum()
    parts = dist_nn.all_gather(x * 2)
    loss = loss + sum((i + 1) * (part**2).sum() for i, part in enumerate(parts))
    loss = loss + (dist_nn.broadcast(x * 3, 1) ** 2).sum()
    exchanged = torch.zeros(4, 2, device=device)
    exchanged = dist_nn.all_to_all_single(exchanged, x.cos())
    loss = loss + (exchanged * (rank + 1)).sum()
    loss = (
        loss
        + dist_nn.reduce_scatter(
            torch.zeros(1, 2, device=device), [x[i : i + 1] * (i + 1) for i in range(4)]
        ).sum()
    )
    loss.backward()
    return {"loss": loss.detach(), "grad": x.grad}
