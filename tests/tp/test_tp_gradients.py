"""Gradients of a model in shards, finished and clipped as if the model were whole."""

from typing import Any

import numpy as np
import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.testing import Kernbench
from kernbench.torch.distributed.comm_debug import CommDebugMode
from kernbench.tp import parallel_state
from kernbench.tp.gradients import (
    clip_grad_norm_,
    finalize_model_grads,
    param_is_not_tensor_parallel_duplicate,
)


class Parts(torch.nn.Module):
    """A shard of five numbers, and two vectors that all ranks hold, one for its own rows only."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.shard = torch.nn.Parameter(torch.zeros(5, device="cuda"))
        vars(self.shard).update(tensor_model_parallel=True)
        self.whole = torch.nn.Parameter(torch.zeros(3, device="cuda"))
        self.rows = torch.nn.Parameter(torch.zeros(2, 2, device="cuda"))
        vars(self.rows).update(sequence_parallel=True)
        self.frozen = torch.nn.Parameter(torch.zeros(7, device="cuda"))
        for name, value in given(rank).items():
            getattr(self, name).grad = torch.from_numpy(value).cuda()


def given(rank: int) -> dict[str, Any]:
    """Returns gradients: `whole` is the same on all ranks, the others are not."""
    mine, everybody = np.random.default_rng(rank + 1), np.random.default_rng(0)
    return {
        "shard": mine.normal(size=5).astype(np.float32),
        "whole": everybody.normal(size=3).astype(np.float32),
        "rows": mine.normal(size=(2, 2)).astype(np.float32),
    }


def spawn(kernbench: Kernbench, ranks: int, work: Any) -> None:
    def run(rank: int) -> None:
        dist.init_process_group("nccl")
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks)
        work(rank)
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()

    kernbench.spawn(run, nprocs=ranks)


@pytest.mark.parametrize("ranks", [1, 3])
def test_rows_are_summed_together_and_nothing_else(kernbench: Kernbench, ranks: int) -> None:
    def work(rank: int) -> None:
        model = Parts(rank)
        with CommDebugMode() as comm:
            finalize_model_grads(model)
        assert comm.get_total_counts() == (ranks > 1)
        found = {n: p.grad.cpu().numpy() for n, p in model.named_parameters() if p.grad is not None}
        mine = given(rank)
        assert {*found} == {*mine}
        np.testing.assert_array_equal(found["shard"], mine["shard"])
        np.testing.assert_array_equal(found["whole"], mine["whole"])
        total = sum(given(each)["rows"] for each in range(ranks))
        np.testing.assert_allclose(found["rows"], total, rtol=1e-6)

    spawn(kernbench, ranks, work)


@pytest.mark.parametrize("order", [2.0, 3.0, float("inf")])
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_the_norm_is_that_of_the_whole_model(
    kernbench: Kernbench, order: float, factor: float
) -> None:
    ranks = 4
    everything = np.concatenate([given(0)["whole"], *(given(r)["shard"] for r in range(ranks))])
    expected = float(np.linalg.norm(everything.astype(np.float64), order))

    def work(rank: int) -> None:
        model = Parts(rank)
        del model.rows
        norm = clip_grad_norm_(model.parameters(), expected * factor, order)
        np.testing.assert_allclose(norm.item(), expected, rtol=1e-6)
        scale = min(1.0, factor)
        for name in ("shard", "whole"):
            found = getattr(model, name).grad.cpu().numpy()
            np.testing.assert_allclose(found, given(rank)[name] * scale, rtol=1e-5)

    spawn(kernbench, ranks, work)


def test_what_all_ranks_hold_counts_on_the_first(kernbench: Kernbench) -> None:
    counts: dict[int, tuple[bool, bool]] = {}

    def work(rank: int) -> None:
        model = Parts(rank)
        counts[rank] = (
            param_is_not_tensor_parallel_duplicate(model.shard),
            param_is_not_tensor_parallel_duplicate(model.whole),
        )

    spawn(kernbench, 3, work)
    assert counts == {0: (True, True), 1: (True, False), 2: (True, False)}
