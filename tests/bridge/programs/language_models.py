"""Models of the library `transformers`, from their configuration."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

RANKS = 4
NEEDS = "transformers"


def _steps(model, device, rank):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator, losses, norms = torch.Generator().manual_seed(rank), [], []
    for _ in range(2):
        tokens = torch.randint(0, 64, (2, 12), generator=generator).to(device)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        norms.append((norm.full_tensor() if hasattr(norm, "full_tensor") else norm).item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"losses": torch.tensor(losses), "norms": torch.tensor(norms)}


def run_llama_fsdp2(device):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    model = LlamaForCausalLM(config).to(device)
    mesh = init_device_mesh(device.type, (4,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return _steps(model, device, dist.get_rank())


def run_gpt2_ddp(device):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=64,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=32,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = DistributedDataParallel(GPT2LMHeadModel(config).to(device))
    return _steps(model, device, dist.get_rank())
