"""What ranks hold on purpose in parts is not averaged, and what they hold alike stays alike."""

from typing import Any

import pytest
from report_text import views

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench
from kernbench.torch.nn.init import normal_
from kernbench.torch.nn.parallel import DistributedDataParallel
from kernbench.tp import parallel_state
from kernbench.tp.config import ModelParallelConfig
from kernbench.tp.gradients import finalize_model_grads
from kernbench.tp.layers import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding

# Parts that are not to be averaged


def test_data_parallelism_over_other_parts_is_refused(kernbench: Kernbench) -> None:
    """Four ranks, two experts, one of them on ranks 0 and 2; the dense layers are the same."""

    def worker(rank: int) -> None:
        torch.manual_seed(1)
        dist.init_process_group("nccl")
        parallel_state.initialize_model_parallel(expert_model_parallel_size=2)
        config = ModelParallelConfig(expert_model_parallel_size=2)
        shared: dict[str, Any] = {"config": config, "init_method": normal_, "is_expert": True}
        for layer in (
            ColumnParallelLinear(4, 8, **shared),
            RowParallelLinear(
                4, 8, bias=True, input_is_parallel=True, skip_bias_add=True, **shared
            ),
        ):
            with pytest.raises(RuntimeError, match="would overwrite weight of rank") as caught:
                DistributedDataParallel(
                    layer, process_group=parallel_state.get_data_parallel_group()
                )
            assert f"rank {rank ^ 1} of the group holds another part" in str(caught.value)
            weight: Any = layer.weight
            before = weight.tolist()
            DistributedDataParallel(
                layer, process_group=parallel_state.get_expert_data_parallel_group()
            )
            assert weight.tolist() == before
        parallel_state.destroy_model_parallel()

    kernbench.spawn(worker, nprocs=4)


def test_data_parallelism_over_shards_is_refused(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
        shared: dict[str, Any] = {"config": ModelParallelConfig(), "init_method": normal_}
        for layer in (ColumnParallelLinear(4, 8, **shared), VocabParallelEmbedding(8, 2, **shared)):
            with pytest.raises(RuntimeError, match="would overwrite weight of rank") as caught:
                DistributedDataParallel(layer)
            assert f"rank {rank ^ 1} of the group holds another part" in str(caught.value)
            DistributedDataParallel(layer, process_group=parallel_state.get_data_parallel_group())
        parallel_state.destroy_model_parallel()

    kernbench.spawn(worker, nprocs=6)


# Weights that ranks hold alike


class Block(torch.nn.Module):
    """A norm of a rank's rows before a layer in shards, and a bias after another one."""

    norm: Any
    up: Any
    down: Any

    def __init__(self, norm: Any, *, marked: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        shared: dict[str, Any] = {
            "config": ModelParallelConfig(sequence_parallel=True),
            "init_method": normal_,
        }
        self.norm = norm(4, device="cuda")
        for each in self.norm.parameters():
            each.sequence_parallel = marked
        self.up = ColumnParallelLinear(4, 12, **shared)
        self.down = RowParallelLinear(
            12, 4, bias=True, input_is_parallel=True, skip_bias_add=False, **shared
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(self.up(self.norm(x))[0])[0]
        return out


def train(
    rank: int,
    model: torch.nn.Module,
    *,
    finalize: bool,
    steps: int = 1,
    parameters: Any = None,
    make: Any = torch.optim.SGD,
) -> None:
    numbers = torch.Generator().manual_seed(rank)
    optimizer = make(parameters or model.parameters(), lr=0.001)
    for _ in range(steps):
        # Ranks are not at the same step at the same time.
        for _ in range(7 * rank):
            torch.ones(2, device="cuda")
        optimizer.zero_grad()
        x = torch.randn(2, 1, 4, generator=numbers, device="cuda")
        (model(x) ** 2).sum().backward()
        if finalize:
            finalize_model_grads(model)
        optimizer.step()


def spawn(kernbench: Kernbench, work: Any, ranks: int = 3, **sizes: Any) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        parallel_state.initialize_model_parallel(**{"tensor_model_parallel_size": ranks, **sizes})
        work(rank)
        parallel_state.destroy_model_parallel()

    kernbench.spawn(worker, nprocs=ranks)


NORMS = [torch.nn.LayerNorm, torch.nn.RMSNorm]


@pytest.mark.parametrize("norm", NORMS)
def test_a_norm_of_rows_that_nobody_marked_is_found(kernbench: Kernbench, norm: Any) -> None:
    def work(rank: int) -> None:
        train(rank, torch.nn.Sequential(Block(norm, marked=False)), finalize=True)

    with pytest.raises(SpawnException) as caught:
        spawn(kernbench, work)
    text = str(caught.value)
    names = "0.norm.weight, 0.norm.bias" if norm is torch.nn.LayerNorm else "0.norm.weight"
    assert "[C21] ranks of the tensor-parallel group" in text
    assert f"held {names} alike, and a step has changed them differently" in text
    assert "optimizer.step()" in text
    assert (
        "0.norm.weight [4] torch.float32 is now one on rank 0, and another on rank 1; rank 2"
        in text
    )
    assert "set parameter.sequence_parallel = True and call" in text


def unmarked(rank: int) -> None:
    dist.init_process_group("nccl")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
    model = Block(torch.nn.RMSNorm, marked=False)
    x = torch.full((2, 1, 4), rank + 1.0, device="cuda") + torch.arange(4, device="cuda")
    model(x).sum().backward()
    finalize_model_grads(model)
    torch.optim.SGD(model.parameters(), lr=0.25).step()
    parallel_state.destroy_model_parallel()


def test_c21_a_norm_of_rows_is_told_in_full(kernbench: Kernbench) -> None:
    (found,) = views(kernbench, unmarked, 2).values()
    assert (
        found
        == """\
WeightDriftError: [C21] ranks of the tensor-parallel group WORLD/1{0-1} held norm.weight alike, \
and a step has changed them differently
  norm.weight [4] torch.float32 is now one on rank 0, and another on rank 1
  aten::_foreach_add_ was issued at FILE+7: torch.optim.SGD(model.parameters(), lr=0.25).step()
  hint: where each rank sees only its rows, as with sequence parallelism, set \
parameter.sequence_parallel = True and call \
kernbench.tp.gradients.finalize_model_grads(model) between backward() and step(); if ranks hold \
parts of it on purpose, set parameter.tensor_model_parallel = True"""
    )


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("norm", NORMS)
def test_marked_and_finalised_weights_stay_alike(
    kernbench: Kernbench, norm: Any, make: Any
) -> None:
    weights: dict[int, Any] = {}

    def work(rank: int) -> None:
        model = Block(norm, marked=True)
        train(rank, model, finalize=True, steps=3, make=make)
        weights[rank] = [model.norm.weight.tolist(), model.down.bias.tolist()]

    spawn(kernbench, work)
    assert weights[0] == weights[1] == weights[2]
    assert weights[0][0] != [1.0] * 4


def test_marks_without_finalising_are_found(kernbench: Kernbench) -> None:
    def work(rank: int) -> None:
        train(rank, Block(torch.nn.RMSNorm, marked=True), finalize=False)

    with pytest.raises(SpawnException) as caught:
        spawn(kernbench, work)
    text = str(caught.value)
    assert "held norm.weight, down.bias alike" in text
    assert "between backward() and step()" in text
    assert "tensor_model_parallel = True" not in text


def test_ranks_may_list_their_weights_in_another_order(kernbench: Kernbench) -> None:
    def work(rank: int) -> None:
        model = Block(torch.nn.LayerNorm, marked=True)
        listed = [*model.parameters()]
        train(
            rank,
            model,
            finalize=True,
            steps=2,
            parameters=[*reversed(listed)] if rank == 1 else listed,
        )

    spawn(kernbench, work)


def test_a_weight_that_one_rank_does_not_update_is_found(kernbench: Kernbench) -> None:
    def work(rank: int) -> None:
        model = Block(torch.nn.RMSNorm, marked=True)
        model.extra = torch.nn.Parameter(torch.ones(2, device="cuda"))
        if rank:
            model.extra.grad = torch.ones(2, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        if rank == 0:
            model.up.weight.grad = torch.zeros_like(model.up.weight)
        optimizer.step()

    text = r"extra \[2\] .* is now one on rank 0, and another on ranks 1-2"
    with pytest.raises(SpawnException, match=text):
        spawn(kernbench, work)


def test_weights_that_never_were_alike_are_the_users(kernbench: Kernbench) -> None:
    def work(rank: int) -> None:
        model = Block(torch.nn.RMSNorm, marked=True)
        model.mine = torch.nn.Parameter(torch.full((2,), float(rank), device="cuda"))
        model.mine.grad = torch.full((2,), float(rank), device="cuda")
        torch.optim.SGD(model.parameters(), lr=1.0).step()
        assert model.mine.tolist() == [0.0, 0.0]

    spawn(kernbench, work)


def test_norms_may_have_an_optimiser_of_their_own(kernbench: Kernbench) -> None:
    def work(rank: int) -> None:
        model = Block(torch.nn.RMSNorm, marked=False)
        norms = torch.optim.AdamW(model.norm.parameters(), lr=0.1)
        others = [*model.up.parameters(), *model.down.parameters()]
        optimizer = torch.optim.SGD(others, lr=0.1)
        numbers = torch.Generator().manual_seed(rank)
        model(torch.randn(2, 1, 4, generator=numbers, device="cuda")).sum().backward()
        finalize_model_grads(model)
        norms.step()
        optimizer.step()

    with pytest.raises(SpawnException, match=r"held norm\.weight alike"):
        spawn(kernbench, work)


def test_groups_are_compared_by_themselves(kernbench: Kernbench) -> None:
    """Two groups of two, with other data: each stays alike, and they part."""
    weights: dict[int, Any] = {}

    def work(rank: int) -> None:
        model = Block(torch.nn.RMSNorm, marked=True)
        train(rank, model, finalize=True, steps=2)
        weights[rank] = model.norm.weight.tolist()

    spawn(kernbench, work, 4, tensor_model_parallel_size=2)
    assert weights[0] == weights[1] != weights[2] == weights[3]


def test_without_data_there_is_nothing_to_look_at(kernbench: Kernbench) -> None:
    kernbench.spawn(unmarked, nprocs=2, data=False)


def test_looking_takes_no_simulated_time(kernbench: Kernbench) -> None:
    times: dict[bool, list[float]] = {}

    def work(looked_at: bool) -> Any:
        def run(rank: int) -> None:
            model = Block(torch.nn.RMSNorm, marked=True)
            for each in model.parameters():
                if not looked_at and hasattr(each, "parts_group"):
                    del each.parts_group
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            train(rank, model, finalize=True, steps=2)
            end.record()
            end.synchronize()
            times.setdefault(looked_at, []).append(start.elapsed_time(end))

        return run

    for looked_at in (False, True):
        spawn(kernbench, work(looked_at))
    assert times[False] == times[True]
