"""DistributedDataParallel in its forms."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

RANKS = 4
ROUNDINGS = {"comm_hook": 4 * 2**-11}
"""Differences, of the largest value, that follow from a program's own types.

`comm_hook`: the hook rounds a gradient to float16, and so does each of the three sums, in an order
that is the algorithm's; a float16 has an error of 2**-11.
"""


class Net(nn.Module):
    def __init__(self, norm=nn.BatchNorm1d):
        super().__init__()
        self.one, self.norm, self.two = nn.Linear(8, 32), norm(32), nn.Linear(32, 32)
        self.spare, self.three = nn.Linear(32, 32), nn.Linear(32, 4)

    def forward(self, x, use_spare=True):
        x = torch.relu(self.norm(self.one(x)))
        x = self.two(x)
        if use_spare:
            x = x + self.spare(x)
        return self.three(x)


def _batches(device, steps, seed=0, size=6):
    generator = torch.Generator().manual_seed(100 * seed + dist.get_rank())
    for _ in range(steps):
        x = torch.randn(size, 8, generator=generator).to(device)
        yield x, torch.randn(size, 4, generator=generator).to(device)


def _ddp(device, seed=0, norm=nn.BatchNorm1d, **options):
    torch.manual_seed(seed + 7 * dist.get_rank())  # DDP sends rank 0's parameters
    model = Net(norm).to(device)
    ids = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=ids, **options)


def _result(model, losses):
    found = {f"p_{name}": value.detach() for name, value in model.module.state_dict().items()}
    found = {k: v for k, v in found.items() if "three" in k or "norm" in k or "one.bias" in k}
    return {**found, "losses": torch.tensor(losses)}


def _train(model, device, steps=3, optimizer=None, **how):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for x, y in _batches(device, steps):
        loss = ((model(x, **how) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return _result(model, losses)


def run_buckets(device):
    return _train(_ddp(device, bucket_cap_mb=0.002), device)


def run_sync_batch_norm(device):
    if device.type == "cuda":
        torch.manual_seed(0)
        model = nn.SyncBatchNorm.convert_sync_batchnorm(Net().to(device))
        return _train(DistributedDataParallel(model, device_ids=[device.index]), device)
    torch.manual_seed(0)  # SyncBatchNorm needs a GPU: the same by hand
    return _train(DistributedDataParallel(Net(_SyncedByHand)), device)


class _SyncedByHand(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.ones(features))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, x):
        import torch.distributed.nn.functional as dist_nn

        count = x.shape[0] * dist.get_world_size()
        mean = dist_nn.all_reduce(x.sum(0)) / count
        var = dist_nn.all_reduce(((x - mean) ** 2).sum(0)) / count
        with torch.no_grad():
            self.running_mean.lerp_(mean, 0.1)
            self.running_var.lerp_(var * count / (count - 1), 0.1)
            self.num_batches_tracked += 1
        return (x - mean) / (var + 1e-5).sqrt() * self.weight + self.bias


def run_no_sync(device):
    model = _ddp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        batches = list(_batches(device, 3))
        optimizer.zero_grad()
        with model.no_sync():
            for x, y in batches[:2]:
                ((model(x) - y) ** 2).mean().backward()
        x, y = batches[2]
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return _result(model, losses)


def run_unused_parameters(device):
    model = _ddp(device, find_unused_parameters=True)
    return _train(model, device, use_spare=dist.get_rank() % 2 == 0)


def run_static_graph(device):
    return _train(_ddp(device, static_graph=True), device, use_spare=False)


def run_bucket_views(device):
    return _train(_ddp(device, gradient_as_bucket_view=True, bucket_cap_mb=0.004), device)


def run_comm_hook(device):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = _ddp(device)
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return _train(model, device)


def run_join(device):
    model = _ddp(device, norm=nn.LayerNorm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = [0.0] * 4
    with model.join():
        for i, (x, y) in enumerate(_batches(device, 2 + dist.get_rank() % 3)):
            loss = ((model(x) - y) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[i] = loss.item()
    return _result(model, losses)


def run_zero_optimizer(device):
    # Not BatchNorm: a bias before it has no gradient but rounding, which Adam scales up.
    model = _ddp(device, norm=nn.LayerNorm)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01
    )
    return _train(model, device, optimizer=optimizer)
