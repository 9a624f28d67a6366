"""`torch.distributed.pipelining`."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

RANKS = 4


def _part(number):
    torch.manual_seed(number)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh())


def _loss(out, target):
    return ((out - target) ** 2).mean()


def _run(device, kind, each):
    rank, size = dist.get_rank(), dist.get_world_size()
    stages = []
    for i in range(each):
        number = rank + i * size
        part = _part(number).to(device)
        stages.append(PipelineStage(part, number, size * each, device))
    schedule = kind(stages if each > 1 else stages[0], n_microbatches=4, loss_fn=_loss)
    generator = torch.Generator().manual_seed(9)
    x = torch.randn(8, 8, generator=generator).to(device)
    target = torch.randn(8, 8, generator=generator).to(device)
    losses = []
    if rank == 0:
        schedule.step(x)
    elif rank == size - 1:
        schedule.step(target=target, losses=losses)
    else:
        schedule.step()
    found = {f"grad_{i}": s.submod[0].weight.grad for i, s in enumerate(stages)}
    found["losses"] = torch.stack([one.detach() for one in losses]) if losses else torch.zeros(4)
    return found


def run_gpipe(device):
    return _run(device, ScheduleGPipe, 1)


def run_1f1b(device):
    return _run(device, Schedule1F1B, 1)


def run_interleaved(device):
    return _run(device, ScheduleInterleaved1F1B, 2)
