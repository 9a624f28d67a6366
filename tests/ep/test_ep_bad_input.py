"""What does not fit is told with both sides, before or when ranks meet."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ep_cases import HIDDEN, config, on_ranks

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.ep import MoELayer
from kernbench.parallel import parallel_state
from kernbench.ranks.spawn_errors import SpawnException
from kernbench.routing.files import write_routing
from kernbench.testing import Kernbench


def _told(kernbench: Kernbench, ranks: int, work: Any, *, dials: Any = None, **fields: Any) -> str:
    with pytest.raises(SpawnException) as caught:
        on_ranks(kernbench.context("sip8", **(dials or {})), ranks, work, **fields)
    return str(caught.value)


def _forward(layer: MoELayer, rank: int) -> None:
    del rank
    layer(torch.zeros(4, HIDDEN, dtype=torch.float64, device="cuda"))


def test_experts_that_ranks_cannot_share_are_refused(kernbench: Kernbench) -> None:
    said = _told(kernbench, 4, _forward, num_moe_experts=6)
    assert "num_moe_experts=6 for 4 ranks that share experts" in said
    said = _told(kernbench, 2, _forward, expert_model_parallel_size=4)
    assert "expert_model_parallel_size=4" in said
    assert "the group has 2 ranks" in said


@pytest.mark.parametrize("kind", ["alltoall", "allgather"])
@pytest.mark.parametrize("differs", [{"moe_router_topk": 1}, {"num_moe_experts": 16}])
def test_ranks_with_different_layers_are_told_with_the_field(
    kernbench: Kernbench, kind: str, differs: dict[str, int]
) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        parallel_state.initialize_model_parallel(expert_model_parallel_size=4)
        fields = differs if rank == 2 else {}
        _forward(MoELayer(config(moe_token_dispatcher_type=kind, **fields)), rank)

    with pytest.raises(SpawnException) as caught:
        kernbench.context("sip8").multiprocessing.spawn(worker, nprocs=4)
    said = str(caught.value)
    assert "[C9] MoEA" in said
    assert next(iter(differs)) in said


def test_gathered_tokens_must_be_as_many_on_each_rank(kernbench: Kernbench) -> None:
    def work(layer: MoELayer, rank: int) -> None:
        layer(torch.zeros(4 + (rank == 1), HIDDEN, dtype=torch.float64, device="cuda"))

    said = _told(kernbench, 2, work, moe_token_dispatcher_type="allgather")
    assert "[C9] MoEAllGatherTokenDispatcher" in said
    assert "tokens" in said


def test_a_host_that_would_read_values_is_refused_with_the_way_out(kernbench: Kernbench) -> None:
    for kind in ("AlltoAll", "AllGather"):
        said = _told(
            kernbench, 2, _forward, dials={"data": False}, moe_token_dispatcher_type=kind.lower()
        )
        assert f"MoE{kind}TokenDispatcher of layer 0 reads how many rows each expert gets" in said
        assert "hint: --routing NAME|FILE" in said


def test_a_file_that_does_not_fit_names_step_and_numbers(
    kernbench: Kernbench, tmp_path: Path
) -> None:
    path = tmp_path / "routing.jsonl"
    chosen = np.array([[0, 1], [2, 3], [4, 5], [6, 7]])
    write_routing(path, 8, 2, [(0, 0, rank, chosen) for rank in range(2)])
    dials = {"routing": str(path)}

    def twice(layer: MoELayer, rank: int) -> None:
        _forward(layer, rank)
        _forward(layer, rank)

    said = _told(kernbench, 2, twice, dials=dials)
    assert "nothing of step 1 of layer 0, each of ranks 0-1" in said

    def five(layer: MoELayer, rank: int) -> None:
        del rank
        layer(torch.zeros(5, HIDDEN, dtype=torch.float64, device="cuda"))

    said = _told(kernbench, 2, five, dials=dials)
    assert "the file has 4, the program 5" in said
    assert "layer(torch.zeros(5, HIDDEN" in said
    said = _told(kernbench, 4, _forward, dials=dials)
    assert "no tokens of rank 2 among those that share the experts" in said


def test_a_file_of_choices_is_what_ranks_get(kernbench: Kernbench, tmp_path: Path) -> None:
    path = tmp_path / "routing.jsonl"
    header = {"schema": 1, "experts": 8, "topk": 2, "tokens_per_rank": [3, 1]}
    rows = [
        {"step": 0, "layer": 0, "rank": 0, "counts": [3, 0, 0, 0, 0, 0, 1, 2]},
        {"step": 0, "layer": 0, "rank": 1, "counts": [1, 0, 0, 0, 0, 1, 0, 0]},
    ]
    path.write_text("\n".join(map(json.dumps, [header, *rows])), encoding="utf-8")

    def work(layer: MoELayer, rank: int) -> list[int]:
        layer(torch.zeros(3 - 2 * rank, HIDDEN, dtype=torch.float64, device="cuda"))
        return layer.token_dispatcher.plan.by_expert

    ctx = kernbench.context("sip8", data=False, routing=str(path))
    assert on_ranks(ctx, 2, work) == [[4, 0, 0, 0], [0, 1, 1, 2]]
