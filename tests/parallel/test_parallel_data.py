"""Gradients add up in `main_grad`, and are those of the whole batch in float64."""

from typing import Any

import numpy as np
import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.parallel import parallel_state
from kernbench.parallel.config import ModelParallelConfig
from kernbench.parallel.data_parallel import DistributedDataParallel, DistributedDataParallelConfig
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench
from kernbench.torch.distributed.comm_debug import CommDebugMode
from kernbench.tp.gradients import finalize_model_grads
from kernbench.tp.layers import ColumnParallelLinear

IN, OUT = 4, 6


class Pair(torch.nn.Module):
    """A dense layer and one of an expert, each applied to the input."""

    dense: Any
    expert: Any

    def __init__(self, rank: int, dtype: Any) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(IN, OUT, dtype=dtype)
        self.expert = torch.nn.Linear(IN, OUT, bias=False, dtype=dtype)
        self.expert.weight.allreduce = False
        with torch.no_grad():
            self.expert.weight.fill_(rank)

    def forward(self, x: torch.Tensor) -> Any:
        return self.dense(x), self.expert(x)


def batch(rank: int, step: int) -> tuple[Any, Any]:
    numbers = np.random.default_rng([rank, step])
    # Few bits, so that 16-bit numbers hold them.
    return numbers.integers(-4, 5, (rank + 2, IN)), numbers.integers(-4, 5, (rank + 2, OUT))


def products(rank: int) -> Any:
    """Returns the sum of a rank's microbatches' gradients."""
    total = np.zeros((OUT, IN))
    for step in range(3):
        x, dy = batch(rank, step)
        total += dy.T @ x
    return total


def spawn(kernbench: Kernbench, ranks: int, work: Any, **sizes: Any) -> None:
    def run(rank: int) -> None:
        dist.init_process_group("nccl")
        parallel_state.initialize_model_parallel(**sizes)
        for _ in range(3 * rank):
            torch.ones(1, device="cuda")
        work(rank)
        parallel_state.destroy_model_parallel()

    kernbench.spawn(run, nprocs=ranks)


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("bucket_size", [None, 1])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_sums_are_those_of_the_whole_batch(
    kernbench: Kernbench, dtype: Any, overlap: bool, bucket_size: int | None, average: bool
) -> None:
    """Four ranks with two experts: one on ranks 0 and 2, one on ranks 1 and 3."""
    options = DistributedDataParallelConfig(
        grad_reduce_in_fp32=dtype is torch.bfloat16,
        overlap_grad_reduce=overlap,
        average_in_collective=average,
        bucket_size=bucket_size,
    )

    def work(rank: int) -> None:
        model = Pair(rank, dtype)
        ddp = DistributedDataParallel(ModelParallelConfig(), options, model)
        for _ in range(2):
            ddp.zero_grad_buffer()
            with CommDebugMode() as comm:
                for step in range(3):
                    x, dy = (torch.tensor(a, dtype=dtype, device="cuda") for a in batch(rank, step))
                    outs = [*(out for out in ddp(x))]
                    if step < 2:
                        with ddp.no_sync():
                            torch.autograd.backward(outs, [dy, dy])
                        assert not comm.get_total_counts()
                    else:
                        torch.autograd.backward(outs, [dy, dy])
                assert (comm.get_total_counts() > 0) == overlap
            finalize_model_grads(ddp)
            assert model.dense.weight.grad is None
            found = model.dense.weight.main_grad
            assert found.dtype is (torch.float32 if dtype is torch.bfloat16 else dtype)
            expected = sum(products(each) for each in range(4)) / 4
            np.testing.assert_allclose(found.cpu().numpy(), expected, rtol=1e-6)
            expected = (products(rank) + products(rank ^ 2)) / 4
            found = model.expert.weight.main_grad.cpu().numpy()
            np.testing.assert_allclose(found, expected, rtol=1e-6)

    spawn(kernbench, 4, work, expert_model_parallel_size=2)


def test_parameters_are_those_of_the_first_rank_with_the_same_part(kernbench: Kernbench) -> None:
    def work(rank: int) -> None:
        model = Pair(rank, torch.float32)
        with torch.no_grad():
            model.dense.weight.fill_(rank + 10)
        ddp = DistributedDataParallel(ModelParallelConfig(), DistributedDataParallelConfig(), model)
        ddp.broadcast_params()
        assert model.dense.weight[0, 0].item() == 10
        assert model.expert.weight[0, 0].item() == rank % 2
        assert [*ddp.state_dict()] == ["dense.weight", "dense.bias", "expert.weight"]
        ddp.load_state_dict(ddp.state_dict())

    spawn(kernbench, 4, work, expert_model_parallel_size=2)


@pytest.mark.parametrize("overlap", [False, True])
def test_products_that_add_to_main_grad_are_not_added_twice(
    kernbench: Kernbench, overlap: bool
) -> None:
    found: dict[tuple[bool, int], Any] = {}

    def work(rank: int) -> None:
        for fused in (True, False):
            torch.manual_seed(4)
            config = ModelParallelConfig(gradient_accumulation_fusion=fused)
            layer: Any = ColumnParallelLinear(
                IN, OUT, config=config, init_method=torch.nn.init.normal_
            )
            ddp = DistributedDataParallel(
                config, DistributedDataParallelConfig(overlap_grad_reduce=overlap), layer
            )
            replica = parallel_state.get_data_parallel_rank()
            for step in range(2):
                x = torch.tensor(batch(replica, step)[0], dtype=torch.float32, device="cuda")
                if step:
                    ddp(x)[0].sum().backward()
                else:
                    with ddp.no_sync():
                        ddp(x)[0].sum().backward()
            finalize_model_grads(ddp)
            ddp.scale_gradients(2.0)
            found[fused, rank] = layer.weight.main_grad.tolist()

    spawn(kernbench, 6, work, tensor_model_parallel_size=2)
    x = sum(batch(each, step)[0].sum(0) for each in range(3) for step in range(2)) / 3 * 2
    for each in found.values():
        np.testing.assert_allclose(each, np.tile(x, (OUT // 2, 1)), rtol=1e-6)


def test_what_goes_wrong_is_told(kernbench: Kernbench) -> None:
    def unused(rank: int) -> None:
        ddp = DistributedDataParallel(
            ModelParallelConfig(),
            DistributedDataParallelConfig(overlap_grad_reduce=True),
            Pair(rank, torch.float32),
        )
        ddp(torch.ones(1, IN, device="cuda"))[1].sum().backward()
        ddp.finish_grad_sync()

    with pytest.raises(SpawnException, match=r"without gradient: dense.bias, dense.weight"):
        spawn(kernbench, 2, unused, expert_model_parallel_size=2)

    def twice(rank: int) -> None:
        ddp = DistributedDataParallel(
            ModelParallelConfig(),
            DistributedDataParallelConfig(overlap_grad_reduce=True),
            torch.nn.Sequential(Pair(rank, torch.float32)),
        )
        for _ in range(2):
            ddp(torch.ones(1, IN, device="cuda"))[1].sum().backward()

    with pytest.raises(SpawnException, match=r"0\.expert\.weight got a second gradient"):
        spawn(kernbench, 2, twice, expert_model_parallel_size=2)
