"""A mistake: rank 5 leaves out a step that it does not like."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
gpu = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(gpu)
torch.manual_seed(gpu)
layers = torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512)
model = DistributedDataParallel(torch.nn.Sequential(*layers).to(gpu), device_ids=[gpu])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(3):
    inputs = torch.randn(256, 512, device=gpu)
    loss = (model(inputs) - inputs).square().mean()
    optimizer.zero_grad()
    if gpu == 5 and step == 1:
        continue
    loss.backward()
    optimizer.step()
    if gpu == 0:
        print(f"step {step}: loss {loss.item():.4f}")
dist.destroy_process_group()
