"""What ranks hold on purpose in parts is not averaged, and what they hold alike stays alike."""

from typing import Any

import pytest

import kernbench.torch.distributed as dist
from kernbench.testing import Kernbench
from kernbench.torch.nn.init import normal_
from kernbench.torch.nn.parallel import DistributedDataParallel
from kernbench.tp import parallel_state
from kernbench.tp.config import ModelParallelConfig
from kernbench.tp.layers import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding

# Parts that are not to be averaged


def test_data_parallelism_over_other_parts_is_refused(kernbench: Kernbench) -> None:
    """Four ranks, two experts, one of them on ranks 0 and 2; the dense layers are the same."""

    def worker(rank: int) -> None:
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
