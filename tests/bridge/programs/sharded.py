"""FSDP2, FSDP2 with tensor parallelism, FSDP1, and a loop like torchtitan's."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

RANKS = 8


class Layer(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def _model(device, layers=3):
    torch.manual_seed(0)
    return nn.Sequential(*[Layer() for _ in range(layers)], nn.Linear(16, 8)).to(device)


def _batch(device, generator):
    x = torch.randn(6, 16, generator=generator).to(device)
    return x, torch.randn(6, 8, generator=generator).to(device)


def _train(model, device, number, steps=2, clip=False, parts=1):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator, losses, norms = torch.Generator().manual_seed(number), [], []
    for _ in range(steps):
        for part in range(parts):
            if parts > 1:
                model.set_requires_gradient_sync(part == parts - 1)
            x, y = _batch(device, generator)
            loss = ((model(x).float() - y) ** 2).mean()
            loss.backward()
        if clip:
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            norms.append(norm.full_tensor().item() if hasattr(norm, "full_tensor") else norm.item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    found = {"losses": torch.tensor(losses), "norms": torch.tensor(norms)}
    for name, value in model.named_parameters():
        if name.startswith(("0.", "3.")) and "weight" in name:
            found[name] = value.detach()
            if hasattr(value, "full_tensor"):
                found[name] = value.full_tensor().detach()
                found[f"{name}_local"] = value.to_local().detach()
    return found


def _sharded(device, **options):
    model = _model(device)
    for layer in model:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def run_fsdp2(device):
    mesh = init_device_mesh(device.type, (8,))
    return _train(_sharded(device, mesh=mesh), device, dist.get_rank())


def run_fsdp2_keeps_parameters(device):
    mesh = init_device_mesh(device.type, (8,))
    model = _sharded(device, mesh=mesh, reshard_after_forward=False)
    return _train(model, device, dist.get_rank(), clip=True)


def run_fsdp2_accumulates(device):
    mesh = init_device_mesh(device.type, (8,))
    model = _sharded(device, mesh=mesh)
    return _train(model, device, dist.get_rank(), clip=True, parts=3)


def run_fsdp2_mixed(device):
    mesh = init_device_mesh(device.type, (8,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = _sharded(device, mesh=mesh, mp_policy=policy)
    return _train(model, device, dist.get_rank(), steps=1)


def run_hsdp(device):
    mesh = init_device_mesh(device.type, (2, 4), mesh_dim_names=("replicate", "shard"))
    return _train(_sharded(device, mesh=mesh), device, dist.get_rank())


def run_fsdp2_tp(device):
    mesh = init_device_mesh(device.type, (2, 4), mesh_dim_names=("dp", "tp"))
    model = _model(device)
    for layer in list(model)[:-1]:
        parallelize_module(layer, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return _train(model, device, mesh["dp"].get_local_rank(), clip=False)


def run_fsdp1(device):
    if device.type == "cpu":  # FSDP1 needs a GPU; DDP gives the same numbers
        model = DistributedDataParallel(_model(device))
    else:
        model = FullyShardedDataParallel(_model(device), device_id=device, use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator, losses = torch.Generator().manual_seed(dist.get_rank()), []
    for _ in range(2):
        x, y = _batch(device, generator)
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    whole = FullyShardedDataParallel.summon_full_params
    with contextlib.nullcontext() if device.type == "cpu" else whole(model):
        weight = next(p for n, p in model.named_parameters() if n.endswith("3.weight"))
        weight = weight.detach().clone()
    return {"losses": torch.tensor(losses), "weight": weight}


def run_titan_loop(device):
    mesh = init_device_mesh(device.type, (4, 2), mesh_dim_names=("dp", "tp"))
    model = _model(device)
    for number, layer in enumerate(list(model)[:-1]):
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(layer, mesh["tp"], plan)
        model[number] = checkpoint_wrapper(layer)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in list(model)[:-1]:
        fully_shard(layer, mesh=mesh["dp"], mp_policy=policy)
    fully_shard(model, mesh=mesh["dp"], mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    generator = torch.Generator().manual_seed(mesh["dp"].get_local_rank())
    losses = []
    for _ in range(2):
        if device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
        optimizer.zero_grad()
        x, y = _batch(device, generator)
        loss = ((model(x).float() - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        if device.type == "cuda":
            end.record()
            torch.cuda.synchronize()
            assert begin.elapsed_time(end) > 0
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item())
    return {"losses": torch.tensor(losses)}
