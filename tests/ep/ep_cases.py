"""Layers of experts on some ranks, and the same layer on one without any of `kernbench.ep`."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.ep import MoEConfig, MoELayer
from kernbench.parallel import parallel_state
from kernbench.runtime_api.context import RuntimeContext

HIDDEN, WIDTH, EXPERTS = 6, 4, 8
TOKENS = (5, 0, 7, 3)
"""Of each rank: all differ, one has none."""


def config(**fields: Any) -> MoEConfig:
    """Returns a small configuration in float64."""
    usual: dict[str, Any] = {
        "hidden_size": HIDDEN,
        "moe_ffn_hidden_size": WIDTH,
        "num_moe_experts": EXPERTS,
        "params_dtype": torch.float64,
    }
    return MoEConfig(**{**usual, **fields})


def tokens_of(rank: int, count: int, hidden: int = HIDDEN) -> np.ndarray[Any, Any]:
    """Returns the tokens of a rank."""
    return np.random.default_rng(100 + rank).normal(size=(count, hidden))


def on_ranks(
    ctx: RuntimeContext,
    ranks: int,
    work: Callable[[MoELayer, int], Any],
    *,
    etp: int = 1,
    seed: int = 3,
    **fields: Any,
) -> list[Any]:
    """Returns what each rank makes of its layer.

    Args:
        ctx: Where they run.
        ranks: How many.
        work: Takes the layer and the rank.
        etp: Ranks that share an expert.
        seed: Of the weights.
        **fields: Of the configuration.
    """
    found: dict[int, Any] = {}

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        parallel_state.initialize_model_parallel(
            expert_model_parallel_size=ranks // etp, expert_tensor_parallel_size=etp
        )
        torch.manual_seed(seed)
        found[rank] = work(MoELayer(config(**fields)), rank)
        torch.cuda.synchronize()
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()

    ctx.multiprocessing.spawn(worker, nprocs=ranks)
    return [found[rank] for rank in range(ranks)]


def both_ways(tokens: Sequence[int]) -> Callable[[MoELayer, int], dict[str, Any]]:
    """Returns work that takes a layer forward and backward with gradients of its output."""

    def work(layer: MoELayer, rank: int) -> dict[str, Any]:
        count = tokens[rank]
        x = torch.tensor(tokens_of(rank, count), device="cuda", requires_grad=True)
        out, _ = layer(x)
        out.backward(torch.tensor(tokens_of(50 + rank, count), device="cuda"))
        assert x.grad is not None
        assert layer.router.weight.grad is not None
        return {
            "out": out.detach().cpu().numpy().copy(),
            "dx": x.grad.cpu().numpy().copy(),
            "router": layer.router.weight.grad.cpu().numpy().copy(),
            **{
                name: getattr(layer.experts, f"weight{name[-1]}").grad.cpu().numpy().copy()
                for name in ("d1", "d2")
            },
            **{
                name: getattr(layer.experts, f"weight{name[-1]}").detach().cpu().numpy().copy()
                for name in ("w1", "w2")
            },
            "gate": layer.router.weight.detach().cpu().numpy().copy(),
        }

    return work


def dense(
    ctx: RuntimeContext,
    gate: np.ndarray[Any, Any],
    w1: np.ndarray[Any, Any],
    w2: np.ndarray[Any, Any],
    tokens: Sequence[int],
    weigh: Callable[[torch.Tensor], torch.Tensor],
) -> dict[str, Any]:
    """Returns the same of all tokens: every expert computes all of them, weighted with 0 or more.

    Args:
        ctx: Where it runs, on one device.
        gate: The router's weight.
        w1: The experts' first weights.
        w2: Their second ones.
        tokens: Of each rank.
        weigh: Returns the weights of logits, `[tokens, experts]`.
    """
    with ctx:

        def made(values: np.ndarray[Any, Any]) -> torch.Tensor:
            return torch.tensor(values, device="cuda", requires_grad=True)

        x = made(np.concatenate([tokens_of(rank, count) for rank, count in enumerate(tokens)]))
        router, first, second = made(gate), made(w1), made(w2)
        weights = weigh(x @ router.T)
        out = torch.zeros_like(x)
        for expert in range(len(w1)):
            one, two = (x @ first[expert]).chunk(2, dim=-1)
            inner = torch.nn.functional.silu(one) * two
            out = out + (inner @ second[expert]) * weights[:, expert : expert + 1]
        grads = [tokens_of(50 + rank, count) for rank, count in enumerate(tokens)]
        out.backward(torch.tensor(np.concatenate(grads), device="cuda"))
        named = {"dx": x.grad, "router": router.grad, "d1": first.grad, "d2": second.grad}
        named["out"] = out.detach()
        return {name: each.cpu().numpy().copy() for name, each in named.items() if each is not None}


def best(logits: torch.Tensor, topk: int = 2) -> torch.Tensor:
    """Returns the softmax over the largest logits of each token, 0 elsewhere."""
    least = logits.topk(topk, dim=1).values[:, -1:].detach()
    return torch.softmax(logits.masked_fill(logits < least, float("-inf")), dim=1)
