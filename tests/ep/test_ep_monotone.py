"""Imbalance never helps: a row that moves to an expert with more rows makes no layer faster."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.ep import MoEConfig, MoELayer
from kernbench.parallel import parallel_state
from kernbench.routing import Asked, Choices, Routing
from kernbench.routing.choices import spread
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext

RANKS, EXPERTS, TOPK, TOKENS = 8, 16, 2, 256
Array = np.ndarray[Any, Any]


class Given(Routing):
    """Rows from each rank for each expert."""

    def __init__(self, counts: Array) -> None:
        super().__init__("given")
        self.counts = counts

    def choices(self, asked: Asked) -> Choices:
        """Returns choices with these rows."""
        return Choices(spread(self.counts[asked.rank], TOKENS, TOPK), None, EXPERTS)


def end_ps(counts: Array) -> int:
    """Returns when all ranks have passed a layer, which they begin as in any other run."""

    def worker(rank: int) -> None:
        del rank
        dist.init_process_group("nccl")
        parallel_state.initialize_model_parallel(expert_model_parallel_size=RANKS)
        layer = MoELayer(
            MoEConfig(
                hidden_size=1024,
                moe_ffn_hidden_size=512,
                num_moe_experts=EXPERTS,
                moe_router_topk=TOPK,
                params_dtype=torch.bfloat16,
            )
        )
        layer.router.routing = Given(counts)
        x = torch.empty(TOKENS, 1024, dtype=torch.bfloat16, device="cuda")
        dist.barrier()
        torch.cuda.synchronize()
        with torch.no_grad():
            layer(x)
        torch.cuda.synchronize()
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()

    with RuntimeContext(RunSpec(topology="h200x8", data=False)) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=RANKS)
        return ctx.engine.loop.now


def drawn(seed: int, skew: float) -> Array:
    """Returns rows by rank and expert: two different experts for each token."""
    pick = np.random.default_rng(seed)
    popular = pick.dirichlet(np.full(EXPERTS, skew))
    noise = pick.gumbel(size=(RANKS, TOKENS, EXPERTS)) + np.log(popular + 1e-9)
    chosen = np.argsort(-noise, axis=2)[:, :, :TOPK].reshape(RANKS, -1)
    return np.stack([np.bincount(each, minlength=EXPERTS) for each in chosen])


@pytest.mark.slow
@settings(max_examples=15)
@given(st.integers(0, 1 << 30), st.sampled_from([0.3, 1.0, 5.0]), st.integers(0, 1 << 30))
def test_a_row_that_moves_to_a_heavier_expert_makes_no_layer_faster(
    seed: int, skew: float, which: int
) -> None:
    counts = drawn(seed, skew)
    total = counts.sum(0)
    moves = [
        (rank, light, heavy)
        for rank in range(RANKS)
        for light in range(EXPERTS)
        for heavy in range(EXPERTS)
        if total[light] < total[heavy] and counts[rank, light] and counts[rank, heavy] < TOKENS
    ]
    rank, light, heavy = moves[which % len(moves)]
    moved = counts.copy()
    moved[rank, light] -= 1
    moved[rank, heavy] += 1
    assert end_ps(moved) >= end_ps(counts)
