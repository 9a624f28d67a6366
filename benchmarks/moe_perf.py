"""Megatron-LM's measured layers of experts, beside their prediction.

`tests/functional_tests/test_cases/common/moe_perf` of Megatron-LM (d98e8a64dd): one layer on a node
of 8 H100, 4,096 tokens a rank, bfloat16, `alltoall`, fused permutation. As there, tokens choose at
random, a long product before the forward pass hides what hosts take, and the shared expert that
`test_cases.py` names is not built, as the configuration leaves it out.
"""

from typing import Any

import _measure

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.ep import MoEConfig, MoELayer
from kernbench.parallel import parallel_state
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext

RANKS, TOKENS = 8, 4096
USUAL: dict[str, Any] = {
    "params_dtype": torch.bfloat16,
    "moe_router_dtype": "fp32",
    "moe_router_load_balancing_type": "aux_loss",
    "moe_aux_loss_coeff": 1.0,
    "moe_permute_fusion": True,
    "gated_linear_unit": False,
    "activation_func": torch.nn.functional.gelu,
}
MIXTRAL: dict[str, Any] = {
    "hidden_size": 4096,
    "moe_ffn_hidden_size": 14336,
    "num_moe_experts": 8,
    "moe_router_topk": 2,
}
DEEPSEEK: dict[str, Any] = {
    "hidden_size": 7168,
    "moe_ffn_hidden_size": 2048,
    "num_moe_experts": 32,
    "moe_router_topk": 8,
    "moe_router_num_groups": 8,
    "moe_router_group_topk": 4,
    "moe_router_score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
}
ROWS = (
    ("mixtral_a2a_tp1ep8_bf16", MIXTRAL, (4.33, 7.68)),
    ("deepseek_a2a_tp1ep8_bf16", DEEPSEEK, (7.12, 10.48)),
)


def predicted(config: MoEConfig) -> tuple[float, float]:
    """Returns the milliseconds of a forward and a backward pass, means of the ranks."""
    found = []

    def worker(rank: int) -> None:
        del rank
        dist.init_process_group("nccl")
        parallel_state.initialize_model_parallel(expert_model_parallel_size=RANKS)
        layer = MoELayer(config)
        x = torch.empty(TOKENS, 1, config.hidden_size, dtype=torch.bfloat16, device="cuda")
        x.requires_grad_()
        for _ in range(2):
            dist.barrier()
            long = torch.empty(8192, 8192, device="cuda")
            long @ long
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
            marks[0].record()
            out, _ = layer(x)
            marks[1].record()
            grad = torch.randn_like(out)
            marks[2].record()
            out.backward(grad)
            marks[3].record()
            torch.cuda.synchronize()
        found.append((marks[0].elapsed_time(marks[1]), marks[2].elapsed_time(marks[3])))
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()

    with RuntimeContext(RunSpec(topology="h100x8", data=False, routing="W4")) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=RANKS)
    forward, backward = (sum(times) / RANKS for times in zip(*found, strict=True))
    return forward, backward


def main() -> None:
    rows = []
    for name, fields, measured in ROWS:
        for way, one, ours in zip(
            ("forward", "backward"), measured, predicted(MoEConfig(**USUAL, **fields)), strict=True
        ):
            rows.append([f"{name}, {way}", f"{one:.2f}", f"{ours:.2f}", f"{ours / one - 1:+.0%}"])
    _measure.show("Megatron-LM's moe_perf, ms", ["", "measured", "predicted", "difference"], rows)


if __name__ == "__main__":
    main()
