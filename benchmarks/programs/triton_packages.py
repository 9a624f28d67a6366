"""Times of kernels of Triton that public packages have: which kernel, how often a step, microseconds.

Needs liger-kernel 0.8.5, flash-linear-attention 0.6 (commit of 2026-11), lightning-attn 0.0.5, sageattention
1.0.6 and einops. Arguments: the file to write, and names of cases (all, if none). Runs on a GPU, ten steps after
five, by torch.profiler, and on simulated devices (`kernbench torchrun`), one step after one. Each autotuned kernel
has the first of its configurations, so that both run the same.
"""

import collections
import importlib
import json
import os
import sys
import tempfile

import torch
import triton

_AUTOTUNE = triton.autotune


def first_alone(configs, *args, **options):
    for name in ("prune_configs_by", "cache_results"):
        options.pop(name, None)
    return _AUTOTUNE(configs[:1], *args, **options)


triton.autotune = triton.runtime.autotuner.autotune = first_alone

SIMULATED = "kernbench" in sys.modules
T, H, V, I = 8192, 4096, 32768, 14336
"""Tokens, width, vocabulary, width between the layers of an MLP."""


def new(*shape, dtype=torch.bfloat16, grad=True, scale=1.0):
    return (torch.randn(shape, device="cuda") * scale).to(dtype).requires_grad_(grad)


def liger(module, name):
    return getattr(importlib.import_module(f"liger_kernel.ops.{module}"), f"Liger{name}Function").apply


def fla(module, name):
    return getattr(importlib.import_module(f"fla.ops.{module}"), name)


def both(function, *args):
    """Returns a step: forward and backward."""

    def step():
        out = function(*args)
        out = out[0] if isinstance(out, tuple) else out
        out.backward(torch.ones_like(out))
        for arg in args:
            arg.grad = None

    return step


def forward(function, *args):
    def step():
        with torch.no_grad():
            function(*args)

    return step


def heads(b=2, t=4096, h=16, d=128, grad=True):
    return [new(b, t, h, d, grad=grad) for _ in range(3)]


def decay(*shape, dtype=torch.bfloat16):
    gate = torch.nn.functional.logsigmoid(new(*shape, dtype=dtype, grad=False))
    return gate.requires_grad_()


def shares(log):
    kind = torch.log_softmax if log else torch.softmax
    return kind(new(2048, V, dtype=torch.float32, grad=False), -1)


def cross_entropy():
    x, y = new(2048, 128256), torch.randint(0, 128256, (2048,), device="cuda")
    return lambda: liger("cross_entropy", "CrossEntropy")(x.detach().requires_grad_(), y, None)[0].backward()


def fused_moe():
    experts, chosen, width, inner = 16, 2, 2048, 1024
    picks = torch.stack([torch.randperm(experts)[:chosen] for _ in range(4096)]).int().cuda()
    weights = torch.full((4096, chosen), 0.5, device="cuda", dtype=torch.bfloat16)
    layer = liger("fused_moe", "FusedMoE")
    up, down = new(experts, 2 * inner, width, scale=0.02), new(experts, width, inner, scale=0.02)
    return both(lambda x, g, d: layer(x, g, d, picks, weights), new(4096, width), up, down)


def delta_rule():
    q, k, v = heads()
    k = torch.nn.functional.normalize(k.detach().float(), dim=-1).bfloat16().requires_grad_()
    beta = new(2, 4096, 16, grad=False).sigmoid().requires_grad_()
    return both(fla("delta_rule", "chunk_delta_rule"), q, k, v, beta)


def lightning():
    slopes = torch.rand(16, device="cuda")
    attend = importlib.import_module("lightning_attn.ops").lightning_attn_func
    return both(lambda q, k, v: attend(q, k, v, slopes), *(new(2, 16, 4096, 128) for _ in range(3)))


def sage(depth, causal):
    attend = importlib.import_module("sageattention").sageattn
    given = [new(2, 16, 4096, depth, dtype=torch.float16, grad=False) for _ in range(3)]
    return forward(lambda: attend(*given, is_causal=causal))


def rope():
    angles = [new(1, 4096, 128, grad=False) for _ in range(2)]
    turn = liger("rope", "Rope")
    q, k = new(2, 4096, 32, 128, grad=False), new(2, 4096, 8, 128, grad=False)
    return forward(lambda: turn(q.transpose(1, 2), k.transpose(1, 2), *angles))


def norm(module, name, *rest, rows=T, columns=H, terms=1):
    return both(lambda *args: liger(module, name)(*args, *rest), *[new(rows, columns) for _ in range(terms)], new(columns))


CASES = {
    "liger_rms_norm": lambda: norm("rms_norm", "RMSNorm", 1e-6, 0.0, "llama", False),
    "liger_rms_norm_small": lambda: norm("rms_norm", "RMSNorm", 1e-6, 0.0, "llama", False, rows=2 * T, columns=1024),
    "liger_fused_add_rms_norm": lambda: norm(
        "fused_add_rms_norm", "FusedAddRMSNorm", 1e-6, 0.0, "llama", False, terms=2
    ),
    "liger_layer_norm": lambda: both(
        lambda x, w, b: liger("layer_norm", "LayerNorm")(x, w, b, 1e-6), new(T, H), new(H), new(H)
    ),
    "liger_group_norm": lambda: both(
        lambda x, w, b: liger("group_norm", "GroupNorm")(x, w, b, 512, 32, 1e-6), new(16, 512, 4096), new(512), new(512)
    ),
    "liger_swiglu": lambda: both(liger("swiglu", "SiLUMul"), new(T, I), new(T, I)),
    "liger_geglu": lambda: both(liger("geglu", "GELUMul"), new(T, I), new(T, I)),
    "liger_rope": rope,
    "liger_cross_entropy": cross_entropy,
    "liger_kl_div": lambda: both(
        lambda x: liger("kl_div", "KLDivLoss")(x, shares(False), "batchmean", False), shares(True).requires_grad_()
    ),
    "liger_jsd": lambda: both(
        lambda x: liger("jsd", "JSD")(x, shares(True), None, 0.5), shares(True).requires_grad_()
    ),
    "liger_tvd": lambda: both(lambda x: liger("tvd", "TVDLoss")(x, shares(False)), shares(False).requires_grad_()),
    "liger_softmax": lambda: both(liger("softmax", "Softmax"), new(T, 8192)),
    "liger_sparsemax": lambda: both(
        lambda x: liger("sparsemax", "Sparsemax")(x, -1), new(4096, 4096, dtype=torch.float32)
    ),
    "liger_dyt": lambda: both(liger("dyt", "DyT"), new(T, H), new(1), new(H), new(H)),
    "liger_poly_norm": lambda: both(
        lambda x, w, b: liger("poly_norm", "PolyNorm")(x, w, b, 1e-6, False), new(T, H), new(3), new()
    ),
    "liger_relu_squared": lambda: both(liger("relu_squared", "ReLUSquared"), new(T, I)),
    "liger_fused_moe": fused_moe,
    "fla_parallel_attn": lambda: both(fla("attn", "parallel_attn"), *heads()),
    "fla_chunk_gla": lambda: both(fla("gla", "chunk_gla"), *heads(), decay(2, 4096, 16, 128)),
    "fla_chunk_delta_rule": delta_rule,
    "fla_chunk_retention": lambda: both(fla("retention", "chunk_retention"), *heads()),
    "fla_parallel_retention": lambda: both(fla("retention", "parallel_retention"), *heads(t=2048, d=64)),
    "fla_fused_recurrent_gla": lambda: forward(
        fla("gla", "fused_recurrent_gla"), *heads(4, 512, grad=False), decay(4, 512, 16, 128)
    ),
    "fla_hgrn": lambda: forward(
        fla("hgrn", "fused_recurrent_hgrn"), new(4, 1024, 2048, grad=False), decay(4, 1024, 2048)
    ),
    "fla_forgetting_attn": lambda: both(
        fla("forgetting_attn", "parallel_forgetting_attn"),
        *heads(t=2048, d=64),
        decay(2, 2048, 16, dtype=torch.float32),
    ),
    "lightning_attn": lightning,
    "sage_attention": lambda: sage(128, False),
    "sage_attention_causal": lambda: sage(64, True),
}


def measured(step, steps):
    """Returns how often each kernel runs in a step, and its mean microseconds."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    path = tempfile.mktemp(suffix=".json")
    profile.export_chrome_trace(path)
    found = collections.defaultdict(list)
    with open(path) as file:
        for event in json.load(file)["traceEvents"]:
            if event.get("ph") == "X" and event.get("cat") == "kernel":
                found[event["name"]].append(event["dur"])
    os.remove(path)
    return {name: (len(each) / steps, sum(each) / len(each)) for name, each in found.items()}


def main():
    names = sys.argv[2:] or list(CASES)
    with open(sys.argv[1], "w") as out:
        print("case,kernel,calls,us", file=out)
        for name in names:
            step = CASES[name]()
            for _ in range(1 if SIMULATED else 5):
                step()
            torch.cuda.synchronize()
            for kernel, (calls, us) in measured(step, 1 if SIMULATED else 10).items():
                if "," not in kernel:  # PyTorch's own have templates' arguments
                    print(f"{name},{kernel},{calls:g},{us:.2f}", file=out, flush=True)
            torch.cuda.empty_cache()


main()
