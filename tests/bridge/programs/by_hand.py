"""Parallelism by hand: ring attention, checkpointing, Megatron-style tensor parallelism."""

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

RANKS = 8


def run_ring_attention(device):
    rank, size = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(0)
    whole = [torch.randn(2, size * 4, 8, generator=generator) for _ in range(3)]
    q, k, v = (one[:, rank * 4 : rank * 4 + 4].contiguous().to(device) for one in whole)
    top = torch.full((2, 4, 1), -math.inf, device=device)
    total, out = torch.zeros(2, 4, 1, device=device), torch.zeros(2, 4, 8, device=device)
    for step in range(size):
        if step + 1 < size:
            next_k, next_v = torch.empty_like(k), torch.empty_like(v)
            works = dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, k, (rank + 1) % size),
                    dist.P2POp(dist.isend, v, (rank + 1) % size),
                    dist.P2POp(dist.irecv, next_k, (rank - 1) % size),
                    dist.P2POp(dist.irecv, next_v, (rank - 1) % size),
                ]
            )
        scores = q @ k.transpose(1, 2) / math.sqrt(8)
        best = torch.maximum(top, scores.amax(-1, keepdim=True))
        weights, scale = torch.exp(scores - best), torch.exp(top - best)
        total = total * scale + weights.sum(-1, keepdim=True)
        out, top = out * scale + weights @ v, best
        if step + 1 < size:
            for work in works:
                work.wait()
            k, v = next_k, next_v
    expected = torch.nn.functional.scaled_dot_product_attention(*whole)
    mine = expected[:, rank * 4 : rank * 4 + 4]
    assert torch.allclose((out / total).cpu(), mine, atol=1e-5)
    return {"out": out / total}


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class ParallelMlp(nn.Module):
    def __init__(self, width, group):
        super().__init__()
        self.group, size, place = group, dist.get_world_size(group), dist.get_rank(group)
        generator = torch.Generator().manual_seed(3)
        up = torch.randn(4 * width, width, generator=generator) / math.sqrt(width)
        down = torch.randn(width, 4 * width, generator=generator) / math.sqrt(4 * width)
        self.up = nn.Parameter(up.chunk(size)[place].clone())
        self.down = nn.Parameter(down.chunk(size, 1)[place].clone())

    def forward(self, x):
        x = _Copy.apply(x, self.group)
        return _Reduce.apply(torch.relu(x @ self.up.t()) @ self.down.t(), self.group)


def run_checkpointed_tensor_parallel(device):
    model = nn.ModuleList(ParallelMlp(8, dist.group.WORLD) for _ in range(3)).to(device)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1)).to(device).requires_grad_()
    y = x
    for layer in model:
        y = y + checkpoint(layer, y, use_reentrant=False)
    for layer in model[:1]:
        y = y + checkpoint(layer, y, use_reentrant=True)
    (y**2).mean().backward()
    return {"y": y.detach(), "x": x.grad, "up": model[0].up.grad, "down": model[2].down.grad}


def run_megatron(device):
    rank = dist.get_rank()
    tensor_group = data_group = None
    for i in range(2):
        group = dist.new_group(list(range(4 * i, 4 * i + 4)))
        tensor_group = group if rank // 4 == i else tensor_group
    for i in range(4):
        group = dist.new_group([i, i + 4])
        data_group = group if rank % 4 == i else data_group
    model = nn.ModuleList(ParallelMlp(8, tensor_group) for _ in range(2)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator, losses = torch.Generator().manual_seed(rank // 4), []
    for _ in range(2):
        y = x = torch.randn(4, 8, generator=generator).to(device)
        for layer in model:  # masks that all ranks of a tensor group share, drawn on the host
            mask = (torch.rand(4, 8, generator=generator) > 0.1).to(device)
            y = y + layer(y) * mask / 0.9
        loss = ((y - 2 * x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=data_group)
            parameter.grad /= 2
        norm = sum((p.grad**2).sum() for p in model.parameters())
        dist.all_reduce(norm, group=tensor_group)
        optimizer.step()
        losses += [loss.item(), norm.item()]
    return {"losses": torch.tensor(losses), "up": model[0].up.detach()}


def run_dropout_of_each_rank(device):
    torch.manual_seed(dist.get_rank())  # the host's generator is each rank's own
    x = torch.ones(4)
    found = []
    for _ in range(3):
        x = torch.nn.functional.dropout(x + torch.rand(4), 0.3)
        found.append(x.clone())
        total = x.to(device)
        dist.all_reduce(total)
        x = total.cpu() / dist.get_world_size()
    return {"x": x, "found": torch.stack(found)}
