"""DTensor: tensor parallel layers, redistribution, meshes."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

RANKS = 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)

    def forward(self, x):
        return self.down(torch.relu(self.up(self.norm(x))))


def _train(model, device, steps=2, seed=5):
    # On a GPU lists of parameters must not mix DTensors and plain tensors.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    generator, losses = torch.Generator().manual_seed(seed), []
    for _ in range(steps):
        x = torch.randn(8, 16, generator=generator).to(device)
        out = model(x)
        loss = (out**2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses)


def run_tensor_parallel(device):
    torch.manual_seed(0)
    mesh = init_device_mesh(device.type, (8,))
    model = Block().to(device)
    plain = copy.deepcopy(model)
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    model = parallelize_module(model, mesh, plan)
    losses = _train(model, device)
    expected = _train(plain, device)
    assert torch.allclose(losses, expected, atol=1e-5)
    return {
        "losses": losses,
        "up": model.up.weight.to_local().detach(),
        "down": model.down.weight.full_tensor().detach(),
        "norm": model.norm.weight.detach(),
    }


def run_sequence_parallel(device):
    torch.manual_seed(1)
    mesh = init_device_mesh(device.type, (8,))
    model = Block().to(device)
    plan = {
        "norm": SequenceParallel(sequence_dim=0),
        "up": ColwiseParallel(input_layouts=Shard(0)),
        "down": RowwiseParallel(output_layouts=Replicate()),
    }
    model = parallelize_module(
        model,
        mesh,
        {"": PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Shard(0),))}
        | plan,
    )
    losses = _train(model, device)
    return {"losses": losses, "norm": model.norm.weight.full_tensor().detach()}


def run_redistribute(device):
    mesh = init_device_mesh(device.type, (2, 4), mesh_dim_names=("dp", "tp"))
    whole = (torch.arange(16 * 8).reshape(16, 8) / 7.0).to(device)
    x = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    found = {"local": x.to_local()}
    found["rows"] = x.redistribute(placements=[Shard(0), Shard(0)]).to_local()
    found["turned"] = x.redistribute(placements=[Shard(1), Shard(0)]).to_local()
    found["full"] = x.full_tensor()
    part = DTensor.from_local(
        torch.ones(4, 4, device=device) * dist.get_rank(), mesh, [Replicate(), Partial()]
    )
    found["summed"] = part.redistribute(placements=[Replicate(), Replicate()]).to_local()
    found["scattered"] = part.redistribute(placements=[Replicate(), Shard(0)]).to_local()
    y = distribute_tensor(whole.t().contiguous(), mesh, [Replicate(), Shard(0)])
    found["product"] = (x @ y.redistribute(placements=[Replicate(), Shard(0)])).full_tensor()
    found["mean"] = x.mean().full_tensor()
    tp = mesh["tp"]
    ones = torch.ones(3, device=device) * dist.get_rank()
    dist.all_reduce(ones, group=tp.get_group())
    found["mesh_group"] = ones
    uneven = distribute_tensor(torch.arange(10.0).to(device), tp, [Shard(0)])
    found["uneven"] = (uneven * 2).full_tensor()
    return found


def run_attention(device):
    mesh = init_device_mesh(device.type, (RANKS,))
    generator, found = torch.Generator().manual_seed(3), {}
    for name, place in (("heads", Shard(1)), ("batch", Shard(0)), ("whole", Replicate())):
        whole = [torch.randn(8, 8, 3, 8, generator=generator).to(device) for _ in range(4)]
        if device.type == "cpu":  # DTensor knows no attention of CPUs
            parts = [one.requires_grad_() for one in whole[:3]]
            out = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
            out.backward(whole[3])
            results = [out.detach(), *(part.grad for part in parts)]
        else:
            dtensors = [distribute_tensor(one, mesh, [place]) for one in whole]
            parts = [one.requires_grad_() for one in dtensors[:3]]
            out = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
            out.backward(dtensors[3])
            assert out.placements == (place,)
            results = [one.full_tensor() for one in (out.detach(), *(part.grad for part in parts))]
        for number, one in enumerate(results):
            found[f"{name}_{number}"] = one.flatten()[dist.get_rank() :: RANKS]
    return found
