# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN204, PLW2901
"""A step of a Llama-like model under FSDP2, with activation checkpointing: a program of PyTorch.

float32 parameters, bf16 compute, float32 reduction, AdamW (fused).
"""

import argparse
import json
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("--layers", type=int, default=80)
parser.add_argument("--hidden", type=int, default=8192)
parser.add_argument("--heads", type=int, default=64)
parser.add_argument("--kv-heads", type=int, default=8)
parser.add_argument("--ffn", type=int, default=28672)
parser.add_argument("--vocabulary", type=int, default=128256)
parser.add_argument("--sequence", type=int, default=4096)
parser.add_argument("--steps", type=int, default=1)
options = parser.parse_args()
HEAD = options.hidden // options.heads


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(options.hidden, options.heads * HEAD, bias=False)
        self.k = nn.Linear(options.hidden, options.kv_heads * HEAD, bias=False)
        self.v = nn.Linear(options.hidden, options.kv_heads * HEAD, bias=False)
        self.o = nn.Linear(options.heads * HEAD, options.hidden, bias=False)

    def forward(self, x, cos, sin):
        batch, sequence, _ = x.shape
        q = rotated(self.q(x).view(batch, sequence, -1, HEAD), cos, sin).transpose(1, 2)
        k = rotated(self.k(x).view(batch, sequence, -1, HEAD), cos, sin).transpose(1, 2)
        v = self.v(x).view(batch, sequence, -1, HEAD).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(y.transpose(1, 2).reshape(batch, sequence, -1))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm = nn.RMSNorm(options.hidden)
        self.attention = Attention()
        self.ffn_norm = nn.RMSNorm(options.hidden)
        self.gate = nn.Linear(options.hidden, options.ffn, bias=False)
        self.up = nn.Linear(options.hidden, options.ffn, bias=False)
        self.down = nn.Linear(options.ffn, options.hidden, bias=False)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.attention_norm(x), cos, sin)
        y = self.ffn_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(options.vocabulary, options.hidden)
        self.layers = nn.ModuleList(Block() for _ in range(options.layers))
        self.norm = nn.RMSNorm(options.hidden)
        self.output = nn.Linear(options.hidden, options.vocabulary, bias=False)

    def forward(self, tokens, cos, sin):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.output(self.norm(x))


def rotated(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
dist.init_process_group("nccl")
device = torch.device("cuda", local)
mesh = init_device_mesh("cuda", (dist.get_world_size(),))
with torch.device("meta"):  # no GPU holds the whole model
    model = Llama()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for number, layer in enumerate(model.layers):
    model.layers[number] = layer = checkpoint_wrapper(layer)
    fully_shard(layer, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
model.to_empty(device=device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
shape = (1, options.sequence)
tokens = torch.randint(0, options.vocabulary, shape, device=device)
targets = torch.randint(0, options.vocabulary, shape, device=device)
angles = torch.rand(options.sequence, 1, HEAD // 2, device=device)
cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
for _ in range(options.steps):
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    loss = F.cross_entropy(model(tokens, cos, sin).float().flatten(0, 1), targets.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    after.record()
    torch.cuda.synchronize()
    if dist.get_rank() == 0:
        step = {
            "step_ms": before.elapsed_time(after),
            "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        }
        print(json.dumps(step), flush=True)
dist.destroy_process_group()
