# mypy: disable-error-code="import-not-found"
"""A layer of Megatron-Core's experts, forward and backward; prints the choices of its router.

Arguments: the dispatcher, the tokens of a rank, and how many experts there are.
"""

import sys

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.moe_layer import MoELayer
from megatron.core.transformer.transformer_config import TransformerConfig

if not hasattr(moe_utils, "te_general_gemm"):
    moe_utils.te_general_gemm = None  # 0.16.1 leaves it undefined
kind, tokens, experts = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
parallel_state.initialize_model_parallel(expert_model_parallel_size=4)
model_parallel_cuda_manual_seed(1)
config = TransformerConfig(
    num_layers=1,
    hidden_size=16,
    num_attention_heads=2,
    num_moe_experts=experts,
    moe_router_topk=2,
    moe_ffn_hidden_size=32,
    moe_token_dispatcher_type=kind,
    add_bias_linear=False,
    expert_model_parallel_size=4,
    use_cpu_initialization=True,
    moe_router_load_balancing_type="none",
)
parts = get_moe_module_spec(use_te=False, num_experts=experts, moe_grouped_gemm=False)
layer = MoELayer(config, parts.submodules, layer_number=2).cuda()
x = torch.randn(tokens, 1, 16, device="cuda", requires_grad=True)
out, _ = layer(x)
out.sum().backward()
_, chosen = layer.router(x.detach())
print("CHOSEN", chosen.sum(0).tolist())
parallel_state.destroy_model_parallel()
dist.destroy_process_group()
